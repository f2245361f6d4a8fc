"""The Open Inference Protocol gives what the native calls give: the same bytes, the same refusals, by its own names."""

import queue
import time

import grpc
import numpy as np
import pytest
from grpc import StatusCode

import infer_wire
import wire
from aftermath import eventually, good_answer, long_request, memory_reserved, random_request
from attnd.v1 import attention_pb2 as pb
from attnd.v1 import store_pb2, store_pb2_grpc
from attnd_server import CALL_SECONDS_MAX, AttndServer
from inference import inference_pb2 as infer_pb
from test_cases import GIVEN, dtype_of, request_of
from weight_sets import Store, inline, named, weights

REFUSED = StatusCode.INVALID_ARGUMENT


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def heads_of(x_rows=6, model=8, heads=4, kv_heads=2, width=4, **more):
    return wire.projection(
        heads,
        kv_heads,
        w_q=draw(model, heads * width),
        w_k=draw(model, kv_heads * width),
        w_v=draw(model, kv_heads * width),
        **more,
    )


Q, K, V = draw(2, 4, 5, 8), draw(2, 2, 7, 8), draw(2, 2, 7, 6)
ALL = [name for name in wire.OUTPUTS if not name.startswith("projected") and name not in ("unspecified", "output")]
MESSAGES = {
    "every_score": wire.request(Q, K, V, outputs=ALL, causal=True, softcap=3.0, scale=0.5),
    "window": wire.request(Q, K, V, window_left=2, window_right=1, outputs=["lse"]),
    "lists": wire.request(Q, K, V, kv_len=[7, 3], q_len=[5, 2], q_offset=[1, 0], causal=True, sinks=[0, 1, 2, -np.inf]),
    "alibi": wire.request(Q, K, V, alibi_slopes=[0.5, 0.25, 0.125, 0.0625]),
    "mask": wire.request(Q, K, V, mask=draw(5, 7) > 0, bias=draw(1, 4, 1, 7), outputs=["weights"]),
    "rotary": wire.request(
        Q, K, V, rotary={"style": "half", "dim": 4, "base": 500.0, "q_positions": np.arange(10).reshape(2, 5)}
    ),
    "layout": wire.request(*(t.swapaxes(1, 2) for t in (Q, K, V)), layout="bnhd", output_dtype="float16"),
    "float16": wire.request(Q, K, V, dtype="float16"),
    "bfloat16": wire.request(Q, K, V, dtype="bfloat16", output_dtype="float32"),
    "float64": wire.request(Q, K, V, dtype="float64", reference=True, outputs=["lse"]),
    "pages": wire.request(Q, draw(4, 2, 4, 8), draw(4, 2, 4, 6), page_table=[[3, 0], [1, 2]], kv_len=[7, 3]),
    "projected": wire.request(
        x=draw(2, 6, 8),
        projection=heads_of(w_o=draw(16, 3), b_q=draw(16)),
        outputs=["projected_k", "lse"],
        lengths=[6, 2],
        causal=True,
    ),
    "no_keys": wire.request(Q, np.zeros((2, 2, 0, 8)), np.zeros((2, 2, 0, 6)), outputs=["lse", "weights"]),
    "large": random_request(4, 300, 64),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_same_bytes_as_attend(stub, infer, name):
    message = MESSAGES[name]
    right = infer_wire.native_of(stub, message)
    forms = [infer_wire.infer_request(message)]
    if name not in ("float16", "bfloat16"):  # they travel raw only
        forms.append(infer_wire.infer_request(message, typed=True))
    for request in forms:
        assert infer_wire.raw_of(infer.ModelInfer(request, timeout=CALL_SECONDS_MAX)) == right
    for reply in infer.ModelStreamInfer(iter(forms), timeout=CALL_SECONDS_MAX):
        assert infer_wire.raw_of(reply.infer_response) == right


@pytest.mark.parametrize("reference", [False, True], ids=["tiled", "reference"])
def test_every_case_gives_the_same_bytes(stub, infer, reference):
    for case in GIVEN:
        dtype = dtype_of(case, reference)
        message = request_of(case, dtype, reference=reference)
        right = infer_wire.native_of(stub, message)
        for typed in (False, True) if dtype != "float16" else (False,):
            reply = infer.ModelInfer(infer_wire.infer_request(message, typed), timeout=CALL_SECONDS_MAX)
            assert infer_wire.raw_of(reply) == right, case["id"]


def test_outputs_come_as_asked(stub, infer):
    message = wire.request(Q, K, V, outputs=["weights", "lse"])
    right = infer_wire.native_of(stub, message)
    request = infer_wire.infer_request(message, id="7")
    for names in ([], ["lse"], ["weights", "output"]):
        del request.outputs[:]
        for name in names:
            request.outputs.add(name=name)
        reply = infer.ModelInfer(request, timeout=CALL_SECONDS_MAX)
        assert (reply.model_name, reply.model_version, reply.id) == ("attention", "1", "7")
        assert list(infer_wire.raw_of(reply).items()) == [(name, right[name]) for name in names or ["output"]]


def changed(change, message=None, typed=False):
    request = infer_wire.infer_request(message or wire.request(Q, K, V), typed)
    change(request)
    return request


def reshape(request):
    request.inputs[1].shape[:] = [2, 2, 8, 7]


def shorten(request):
    request.raw_input_contents[1] = b"1234"


def share_memory(request):
    request.inputs[0].parameters["shared_memory_region"].string_param = "a region"


def both_contents(request):
    request.inputs[2].contents.fp32_contents.append(1)


def wrong_contents(request):
    request.inputs[0].contents.int64_contents.append(1)


def set_datatype(number, datatype):
    return lambda request: setattr(request.inputs[number], "datatype", datatype)


def add_length(datatype, shape, data):
    return lambda request: infer_wire.add_input(request, "kv_len", datatype, shape, data)


def parameter(name, **value):
    return lambda request: request.parameters[name].CopyFrom(infer_pb.InferParameter(**value))


WRONG = [
    (reshape, 'inputs["k"]: shape [2,2,8,7], expected d_k = 8 as in q'),
    (shorten, 'inputs["k"]: 4 bytes, expected 896 for float32 [2,2,7,8]'),
    (lambda r: r.raw_input_contents.pop(), "raw_input_contents: 2, expected 3, one for each of inputs"),
    (lambda r: setattr(r.inputs[2], "name", "k"), 'inputs["k"]: twice, expected each at most once'),
    (lambda r: setattr(r.inputs[2], "name", "w_q"), 'inputs["w_q"]: unknown to model attention, expected q, k, v'),
    (lambda r: setattr(r.inputs[2], "name", "\n" * 999), 'inputs["\\n\\n'),
    (set_datatype(1, "FP8"), 'inputs["k"]: datatype "FP8", expected FP32, FP16, BF16, FP64, INT64 or BOOL'),
    (set_datatype(0, "FP64"), 'inputs["q"]'),
    (both_contents, 'inputs["v"]: contents, and raw_input_contents too'),
    (add_length("INT64", [2], bytes(15)), 'inputs["kv_len"]: 15 bytes, expected 8 for each of 2 of INT64'),
    (add_length("INT64", [1, 2], bytes(16)), 'inputs["kv_len"]: rank 2, expected 1'),
    (add_length("FP32", [2], bytes(8)), 'inputs["kv_len"]: datatype "FP32", expected INT64 or INT32'),
    (add_length("INT64", [1 << 62], bytes(8)), 'inputs["kv_len"]: 8 bytes, expected 8 for each of 46116860184273'),
    (add_length("INT32", [2], b"\x08\0\0\0\x01\0\0\0"), 'inputs["kv_len"]: 8 for sequence 0, expected 0 to 7'),
    (share_memory, 'inputs["q"].parameters["shared_memory_region"]: unknown, expected none'),
    (lambda r: r.outputs.add(name="nothing"), 'outputs["nothing"]: unknown, expected one of output, weights, lse'),
    (lambda r: (r.outputs.add(name="lse"), r.outputs.add(name="lse")), 'outputs["lse"]: twice'),
    (lambda r: r.outputs.add(name="projected_q"), "OUTPUT_KIND_PROJECTED_Q without x"),
    (
        parameter("nothing", int64_param=1),
        'parameters["nothing"]: unknown to model attention, expected timeout, scale, causal, window_left',
    ),
    (parameter("q_heads", int64_param=1), 'parameters["q_heads"]: unknown to model attention'),
    (lambda r: (r.inputs.pop(), r.raw_input_contents.pop()), 'inputs["v"]: missing, expected by model attention'),
    (parameter("priority", int64_param=-1), 'parameters["priority"]: int64_param, expected int64_param of at least 0'),
    (parameter("kv_len", string_param="n"), 'parameters["kv_len"]: a list of numbers, expected among the inputs'),
    (parameter("k", string_param="n"), 'inputs["k"]: given, and parameters["k"] names a stored tensor, expected one'),
    (parameter("k", int64_param=1), 'parameters["k"]: int64_param, expected string_param, the name of a stored tensor'),
    (parameter("mask", string_param=""), 'parameters["mask"]: "", expected the name of a stored tensor'),
    (parameter("scale", string_param="1"), 'parameters["scale"]: string_param, expected double_param'),
    (parameter("scale", double_param=float("nan")), 'parameters["scale"]: '),
    (parameter("causal", int64_param=1), 'parameters["causal"]: int64_param, expected bool_param'),
    (parameter("window_left", int64_param=-1), 'parameters["window_left"]: '),
    (parameter("window_left", uint64_param=1 << 63), 'parameters["window_left"]: uint64_param, expected int64_param'),
    (parameter("layout", string_param="hbnd"), 'parameters["layout"]: "hbnd", expected one of Layout'),
    (parameter("timeout", int64_param=-1), 'parameters["timeout"]: expected int64_param, microseconds'),
    (parameter("scale"), 'parameters["scale"]: no value, expected double_param'),
    (lambda r: setattr(r, "id", "x" * 1025), "id: 1025 bytes, expected at most 1024"),
    (lambda r: r.MergeFromString(b"\xf8\x07\x01"), "ModelInferRequest: unknown field 127"),
]


def test_a_refusal_names_what_is_wrong(server, stub, infer):
    requests = [(changed(change), words) for change, words in WRONG]
    words = 'inputs["q"].contents: int64_contents, expected fp32_contents'
    requests.append((changed(wrong_contents, typed=True), words))
    requests.append((changed(set_datatype(0, "BF16"), typed=True), "BF16 travels in raw_input_contents only"))
    codes = {}
    for request, words in requests:
        code, text = infer_wire.refusal(infer.ModelInfer, request)
        assert code == REFUSED and words in text and len(text) < 600, text
        codes[words] = text
    # The same words inside a stream that goes on, in order, each under its id.
    good = changed(lambda request: setattr(request, "id", "good"))
    sent = [part for request, _ in requests for part in (request, good)]
    replies = list(infer.ModelStreamInfer(iter(sent), timeout=CALL_SECONDS_MAX))
    right = infer_wire.native_of(stub, wire.request(Q, K, V))
    assert len(replies) == len(sent)
    for (request, words), bad, answered in zip(requests, replies[::2], replies[1::2], strict=True):
        assert bad.error_message == codes[words]
        assert bad.infer_response.parameters["status"].string_param == "INVALID_ARGUMENT"
        assert answered.error_message == "" and answered.infer_response.id == "good"
        assert infer_wire.raw_of(answered.infer_response) == right
    eventually("its memory is free", lambda: memory_reserved(server) == 0)
    good_answer(stub)


def stored(message, put, names):
    """`message` as a ModelInferRequest whose inputs `names` are put under those names with a dot, and named."""
    whole = infer_wire.infer_request(message)
    request = infer_pb.ModelInferRequest(
        model_name=whole.model_name, parameters=whole.parameters, outputs=whole.outputs
    )
    for tensor, data in zip(whole.inputs, whole.raw_input_contents, strict=True):
        if tensor.name not in names:
            infer_wire.add_input(request, tensor.name, tensor.datatype, tensor.shape, data)
            continue
        dtype = wire.DTYPES[infer_wire.DTYPES[tensor.datatype]]
        put(f"door.{tensor.name}", pb.Tensor(dtype=dtype, shape=tensor.shape, data=data))
        request.parameters[tensor.name].string_param = f"door.{tensor.name}"
    return request


def test_stored_tensors_stand_for_inputs(server, stub, infer):
    store = store_pb2_grpc.StoreServiceStub(server.channel())

    def put(name, tensor):
        header = store_pb2.PutTensorHeader(name=name, tensor=tensor)
        store.PutTensor(iter([store_pb2.PutTensorRequest(header=header)]), timeout=CALL_SECONDS_MAX)

    for message, names in (
        (MESSAGES["window"], ("k", "v")),
        (MESSAGES["mask"], ("mask", "bias", "q", "k", "v")),
        (MESSAGES["bfloat16"], ("v",)),
        (MESSAGES["rotary"], ("q_positions", "k")),
        (MESSAGES["pages"], ("k", "v", "page_table")),
        (MESSAGES["projected"], ("x", "w_q", "w_o", "b_q")),
    ):
        request = stored(message, put, names)
        right = infer_wire.native_of(stub, message)
        assert infer_wire.raw_of(infer.ModelInfer(request, timeout=CALL_SECONDS_MAX)) == right
        (reply,) = infer.ModelStreamInfer(iter([request]), timeout=CALL_SECONDS_MAX)
        assert infer_wire.raw_of(reply.infer_response) == right

    # What is wrong with a stored tensor is said of the input that it stands for; what is wrong with its name, of that.
    request = stored(wire.request(Q, K[..., :3], V), put, ("k",))
    code, words = infer_wire.refusal(infer.ModelInfer, request)
    assert (code, words) == (REFUSED, 'inputs["k"]: shape [2,2,7,3], expected d_k = 8 as in q')
    request.parameters["k"].string_param = "never.put"
    code, words = infer_wire.refusal(infer.ModelInfer, request)
    assert code == StatusCode.NOT_FOUND
    assert words.startswith('parameters["k"]: "never.put", expected the name of a stored tensor')
    for found in store.ListTensors(store_pb2.ListTensorsRequest(), timeout=CALL_SECONDS_MAX).tensors:
        store.DeleteTensor(store_pb2.DeleteTensorRequest(name=found.name), timeout=CALL_SECONDS_MAX)
    good_answer(stub)


def test_bytes_that_are_no_message(server, infer):
    method = "/inference.GRPCInferenceService/ModelInfer"
    call = server.channel().unary_unary(method, lambda message: message, lambda message: message)
    code, text = infer_wire.refusal(call, b"\x3a\xff")
    assert (code, text) == (REFUSED, "the message is not a valid inference.ModelInferRequest")
    stream = server.channel().stream_stream(method.replace("ModelInfer", "ModelStreamInfer"), lambda m: m, lambda m: m)
    good = infer_wire.infer_request(wire.request(Q, K, V)).SerializeToString()
    replies = [
        infer_pb.ModelStreamInferResponse.FromString(reply)
        for reply in stream(iter([good, b"\x3a\xff", good]), timeout=CALL_SECONDS_MAX)
    ]
    assert [bool(reply.error_message) for reply in replies] == [False, True, False]


def test_models_that_are_not_there(infer):
    for fields, words in (
        ({"model_name": "nothing"}, 'model_name: "nothing", expected attention, projected_attention or'),
        ({"model_version": "2"}, 'model_version: "2", not among those of "attention"'),
    ):
        request = infer_wire.infer_request(wire.request(Q, K, V))
        for name, value in fields.items():
            setattr(request, name, value)
        code, text = infer_wire.refusal(infer.ModelInfer, request)
        assert code == StatusCode.NOT_FOUND and words in text
    for call, kind in (
        (infer.ModelMetadata, infer_pb.ModelMetadataRequest),
        (infer.ModelConfig, infer_pb.ModelConfigRequest),
        (infer.ModelStatistics, infer_pb.ModelStatisticsRequest),
    ):
        assert infer_wire.refusal(call, kind(name="nothing"))[0] == StatusCode.NOT_FOUND
    assert not infer.ModelReady(infer_pb.ModelReadyRequest(name="nothing"), timeout=CALL_SECONDS_MAX).ready


def test_parameters_of_stock_clients_and_other_spellings(stub, infer):
    right = infer_wire.native_of(stub, wire.request(Q, K, V, scale=2.0, output_dtype="float16"))
    request = infer_wire.infer_request(wire.request(Q, K, V))
    for name, value in {
        "scale": {"int64_param": 2},
        "output_dtype": {"string_param": "FP16"},
        "layout": {"string_param": "bhnd"},
        "mode": {"string_param": "COMPUTE_MODE_TILED"},
        "priority": {"uint64_param": 3},
        "timeout": {"int64_param": CALL_SECONDS_MAX * 10**6},
        "sequence_id": {"int64_param": 7},
        "sequence_start": {"bool_param": True},
        "sequence_end": {"bool_param": True},
        "binary_data_output": {"bool_param": True},
        "headers": {"string_param": ""},
        "triton_enable_empty_final_response": {"bool_param": False},
    }.items():
        request.parameters[name].CopyFrom(infer_pb.InferParameter(**value))
    assert infer_wire.raw_of(infer.ModelInfer(request, timeout=CALL_SECONDS_MAX)) == right


def test_a_timeout_ends_a_problem_that_computes(server, stub, infer):
    request = infer_wire.infer_request(long_request(rows=16384))
    request.parameters["timeout"].int64_param = 300_000
    code, _ = infer_wire.refusal(infer.ModelInfer, request)
    assert code == StatusCode.DEADLINE_EXCEEDED
    (reply,) = infer.ModelStreamInfer(iter([request]), timeout=CALL_SECONDS_MAX)
    assert reply.infer_response.parameters["status"].string_param == "DEADLINE_EXCEEDED"
    eventually("its memory is free", lambda: memory_reserved(server) == 0)
    good_answer(stub)


def test_a_stream_of_many_is_answered_in_order(stub, infer):
    """More than may be in flight, large before small: backpressure, and no answer overtakes another."""
    sizes = [512 if number % 50 == 0 else 3 for number in range(300)]
    messages = {rows: random_request(2, rows, 64) for rows in set(sizes)}
    right = {rows: infer_wire.native_of(stub, message) for rows, message in messages.items()}
    sent = (infer_wire.infer_request(messages[rows], id=str(number)) for number, rows in enumerate(sizes))
    replies = list(infer.ModelStreamInfer(sent, timeout=CALL_SECONDS_MAX))
    assert [reply.infer_response.id for reply in replies] == [str(number) for number in range(len(sizes))]
    for rows, reply in zip(sizes, replies, strict=True):
        assert reply.error_message == "" and infer_wire.raw_of(reply.infer_response) == right[rows]


def test_who_does_not_read_is_not_read_from():
    """One request at a time: answers that nobody takes keep the next ones out, and then end the stream."""
    with AttndServer("--problems_in_flight_max=1", "--send_stall_ms=3000") as server:
        request = infer_wire.infer_request(random_request(1, 64, 1 << 16))  # 16 MiB in each answer
        replies = infer_wire.stub_of(server).ModelStreamInfer(iter([request] * 20), timeout=CALL_SECONDS_MAX)
        assert next(replies).error_message == ""
        eventually("the server gave up on it", lambda: "ModelStreamInfer" in server.log() and quiet(server))
        assert server.log().count(" ModelStreamInfer ") < 20
        with pytest.raises(grpc.RpcError):
            list(replies)
        good_answer(server.stub())


def quiet(server):
    """Nothing is reserved, and a second later still."""
    return memory_reserved(server) == 0 and not time.sleep(1) and memory_reserved(server) == 0


def test_a_cancelled_stream_stops_its_work(server, stub, infer):
    call = infer.ModelStreamInfer(
        iter([infer_wire.infer_request(long_request(rows=16384))] * 3), timeout=CALL_SECONDS_MAX
    )
    eventually("it computes", lambda: memory_reserved(server) > 0)
    call.cancel()
    eventually("its memory is free", lambda: memory_reserved(server) == 0)
    good_answer(stub)


def test_a_drain_answers_what_came_and_ends_the_stream():
    with AttndServer(f"--drain_ms={CALL_SECONDS_MAX * 1000}") as server:
        request = infer_wire.infer_request(long_request(rows=8192))
        requests = queue.Queue()
        call = infer_wire.stub_of(server).ModelStreamInfer(iter(requests.get, None), timeout=CALL_SECONDS_MAX)
        requests.put(request)
        eventually("it computes", lambda: memory_reserved(server) > 0)
        server.signal()
        eventually("it drains", lambda: "draining" in server.log())
        requests.put(request)
        first = next(call)
        assert first.error_message == "" and first.infer_response.outputs[0].name == "output"
        second = next(call, None)
        assert second is None or second.infer_response.parameters["status"].string_param == "UNAVAILABLE"
        requests.put(None)
        assert server.wait() == 0


def statistics(infer, name="attention", **version):
    request = infer_pb.ModelStatisticsRequest(name=name, **version)
    (model,) = infer.ModelStatistics(request, timeout=CALL_SECONDS_MAX).model_stats
    return model


def test_statistics_add_up():
    with AttndServer() as server:
        infer = infer_wire.stub_of(server)
        good = infer_wire.infer_request(random_request(2, 64, 64))
        bad = changed(reshape)
        good_answer(server.stub())  # a native call is not of this protocol
        for _ in range(5):
            infer.ModelInfer(good, timeout=CALL_SECONDS_MAX)
        infer_wire.refusal(infer.ModelInfer, bad)
        assert len(list(infer.ModelStreamInfer(iter([good, bad, good]), timeout=CALL_SECONDS_MAX))) == 3
        model = statistics(infer)
        parts = [getattr(model.inference_stats, part) for part in ("queue", "compute_input", "compute_infer")]
        parts.append(model.inference_stats.compute_output)
        success = model.inference_stats.success
        assert (model.version, model.inference_count, model.execution_count, success.count) == ("1", 7, 7, 7)
        assert [part.count for part in parts] == [7] * 4 and model.inference_stats.fail.count == 2
        assert sum(part.ns for part in parts) == success.ns > 0
        assert model.last_inference > 1.6e12
        (batch,) = model.batch_stats
        assert (batch.batch_size, batch.compute_infer) == (1, model.inference_stats.compute_infer)
        every = infer.ModelStatistics(infer_pb.ModelStatisticsRequest(), timeout=CALL_SECONDS_MAX).model_stats
        assert {m.name: m.inference_count for m in every} == {"attention": 7, "projected_attention": 0}


def test_what_models_say_of_themselves(infer):
    def ask(call, request):
        return call(request, timeout=CALL_SECONDS_MAX)

    assert ask(infer.ServerLive, infer_pb.ServerLiveRequest()).live
    assert ask(infer.ServerReady, infer_pb.ServerReadyRequest()).ready
    assert ask(infer.ServerMetadata, infer_pb.ServerMetadataRequest()).name == "attnd"
    index = ask(infer.RepositoryIndex, infer_pb.RepositoryIndexRequest()).models
    assert [(m.name, m.version, m.state) for m in index] == [
        ("attention", "1", "READY"),
        ("projected_attention", "1", "READY"),
    ]
    for name, required in (("attention", {"q", "k", "v"}), ("projected_attention", {"x", "w_q", "w_k", "w_v"})):
        assert ask(infer.ModelReady, infer_pb.ModelReadyRequest(name=name)).ready
        metadata = ask(infer.ModelMetadata, infer_pb.ModelMetadataRequest(name=name))
        config = ask(infer.ModelConfig, infer_pb.ModelConfigRequest(name=name)).config
        assert (metadata.name, list(metadata.versions), config.name) == (name, ["1"], name)
        assert {tensor.name for tensor in config.input if not tensor.optional} == required
        assert [(t.name, f"TYPE_{t.datatype}", list(t.shape)) for t in metadata.inputs] == [
            (t.name, infer_pb.DataType.Name(t.data_type), list(t.dims)) for t in config.input
        ]
        assert [t.name for t in metadata.outputs] == [t.name for t in config.output] == ["output", "lse"]
        assert (config.max_batch_size, config.model_transaction_policy.decoupled) == (0, False)
    # Every tensor and list of the native contract is an input of one of the two.
    inputs = {
        t.name for name in ("attention", "projected_attention")
        for t in ask(infer.ModelMetadata, infer_pb.ModelMetadataRequest(name=name)).inputs
    }
    messages = (pb.AttendRequest, pb.Projection, pb.Options, pb.Rotary)
    fields = [field for message in messages for field in message.DESCRIPTOR.fields]
    assert inputs == {
        field.name for field in fields
        if field.message_type is pb.Tensor.DESCRIPTOR
        or field.label == field.LABEL_REPEATED and field.enum_type is None
    }


def test_each_version_of_a_weight_set_is_a_model():
    with AttndServer() as server:
        store, infer = Store(server), infer_wire.stub_of(server)
        arrays = [weights(seed) for seed in (1, 2)]
        for each in arrays:
            store.put("llama.layer0", each)
        index = infer.RepositoryIndex(infer_pb.RepositoryIndexRequest(), timeout=CALL_SECONDS_MAX).models
        assert [(m.name, m.version) for m in index][2:] == [("llama.layer0", "1"), ("llama.layer0", "2")]
        metadata = infer.ModelMetadata(infer_pb.ModelMetadataRequest(name="llama.layer0"), timeout=CALL_SECONDS_MAX)
        assert list(metadata.versions) == ["1", "2"] and "w_q" not in [t.name for t in metadata.inputs]
        for version, which in (("", 1), ("1", 0), ("2", 1)):
            right = infer_wire.native_of(server.stub(), inline(arrays[which], causal=True))
            request = infer_wire.infer_request(named("llama.layer0", causal=True))
            request.model_name, request.model_version = "llama.layer0", version
            reply = infer.ModelInfer(request, timeout=CALL_SECONDS_MAX)
            assert infer_wire.raw_of(reply) == right and reply.model_version == str(which + 1)
        assert statistics(infer, "llama.layer0", version="2").inference_count == 2
        request.model_version = "3"
        assert infer_wire.refusal(infer.ModelInfer, request)[0] == StatusCode.NOT_FOUND
        infer_wire.add_input(request, "w_q", "FP32", [1], bytes(4))
        request.model_version = "2"
        assert 'inputs["w_q"]: unknown to model llama.layer0' in infer_wire.refusal(infer.ModelInfer, request)[1]
