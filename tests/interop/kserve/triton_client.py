"""What users of the tritonclient package do, with the package itself: unary, by asyncio and by stream. Run by
build/venv's Python, which has it.

    triton_client.py ADDRESS ANSWER.npz     which holds q, k, v, output and lse, as the native call gave them

The server has k and v under the names triton.k and triton.v as well.
"""

import asyncio
import queue
import sys

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

OPTIONS = {"causal": True, "scale": 0.25}


def tensor(name, array, datatype="FP32"):
    made = triton.InferInput(name, array.shape, datatype)
    return made.set_data_from_numpy(array)


def check(result, right, names=("output",)):
    assert [output.name for output in result.get_response().outputs] == list(names)
    for name in names:
        np.testing.assert_array_equal(result.as_numpy(name), right[name], strict=True)


def refusal(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except triton.InferenceServerException as error:
        return str(error)
    raise AssertionError("it was answered")


def unary(address, inputs, right):
    with triton.InferenceServerClient(address) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("attention")
        assert not client.is_model_ready("nothing")
        assert "statistics" in client.get_server_metadata().extensions
        assert client.get_model_metadata("attention").inputs[0].name == "q"
        optional = {tensor.name: tensor.optional for tensor in client.get_model_config("attention").config.input}
        assert [name for name, may_miss in optional.items() if not may_miss] == ["q", "k", "v"]
        assert "attention" in [model.name for model in client.get_model_repository_index().models]
        check(client.infer("attention", inputs, parameters=OPTIONS), right)
        wanted = [triton.InferRequestedOutput(name) for name in ("lse", "output")]
        every = {"priority": 1, "timeout": 60_000_000, "sequence_id": 5, "sequence_start": True, "request_id": "a"}
        result = client.infer("attention", inputs, outputs=wanted, parameters=OPTIONS, **every)
        check(result, right, ("lse", "output"))
        assert result.get_response().id == "a"
        narrow = tensor("k", right["k"][..., 1:])
        assert 'inputs["k"]: shape' in refusal(client.infer, "attention", [*inputs[::2], narrow])
        names = {name: f"triton.{name}" for name in "kv"}  # which the server has
        check(client.infer("attention", inputs[:1], parameters={**OPTIONS, **names}), right)
        assert "UNIMPLEMENTED" in refusal(client.load_model, "attention")
        answers = queue.Queue()

        def take(result, error):
            answers.put((result, error))

        for _ in range(8):
            client.async_infer("attention", inputs, take, parameters=OPTIONS)
        for _ in range(8):
            result, error = answers.get(timeout=60)
            assert error is None
            check(result, right)
        statistics = client.get_inference_statistics("attention").model_stats[0]
        assert statistics.inference_count >= 10 and statistics.inference_stats.fail.count >= 1


def stream(address, inputs, right):
    replies = queue.Queue()
    with triton.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: replies.put((result, error)))
        for number in range(9):
            sent = inputs if number % 3 else inputs[:2]
            client.async_stream_infer("attention", sent, request_id=str(number), parameters=OPTIONS)
        client.stop_stream()
    for number in range(9):
        result, error = replies.get(timeout=60)
        if number % 3 == 0:
            assert 'inputs["v"]: missing' in str(error)
        else:
            assert result.get_response().id == str(number)
            check(result, right)


async def asynchronous(address, inputs, right):
    async with triton_aio.InferenceServerClient(address) as client:
        assert await client.is_model_ready("attention")
        results = await asyncio.gather(*(client.infer("attention", inputs, parameters=OPTIONS) for _ in range(8)))
        for result in results:
            check(result, right)

        async def requests():
            for number in range(4):
                sent = inputs if number % 2 else inputs[:2]
                yield {"model_name": "attention", "inputs": sent, "request_id": str(number), "parameters": OPTIONS}

        number = 0
        async for result, error in client.stream_infer(requests()):
            if number % 2:
                assert result.get_response().id == str(number)
                check(result, right)
            else:
                assert 'inputs["v"]: missing' in str(error)
            number += 1
        assert number == 4


def main(address, path):
    right = dict(np.load(path))
    inputs = [tensor(name, right[name]) for name in "qkv"]
    unary(address, inputs, right)
    stream(address, inputs, right)
    asyncio.run(asynchronous(address, inputs, right))


if __name__ == "__main__":
    main(*sys.argv[1:])
