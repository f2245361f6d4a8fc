"""A client of attnd from the .proto alone: python3 client.py ADDRESS [FOLDER], with generated stubs on PYTHONPATH."""

import pathlib
import queue
import sys

import grpc
import numpy as np

from attnd.v1 import attention_pb2 as pb
from attnd.v1 import attention_pb2_grpc

PIECE_BYTES = 256 << 10


def tensor(rows):
    """One sequence, one head: [1, 1, N, d]."""
    array = np.array(rows, "<f4")[None, None]
    return pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=array.shape, data=array.tobytes())


def lesson():
    return pb.AttendRequest(
        q=tensor([[1, 0, 0.5, 1]]),
        k=tensor([[1, 0, 0.8, 1], [0, 1, 0.2, 0], [0.2, 0.2, 0.4, 0.1]]),
        v=tensor([[0.9, 0.1, 0.7, 0.8], [0.1, 0.9, 0.2, 0.1], [0.3, 0.3, 0.5, 0.2]]),
        outputs=[pb.OUTPUT_KIND_WEIGHTS],
    )


def wrong():
    request = lesson()
    request.k.CopyFrom(tensor([[1, 0], [0, 1], [1, 1]]))
    return request


def show(name, tensor_):
    print(name, *(f"{value:.4f}" for value in np.frombuffer(tensor_.data, "<f4")))


def unary(stub):
    reply = stub.Attend(lesson(), timeout=60)
    show("weights", reply.extras[0].tensor)
    show("output", reply.output)


def refused(name, stub, request, timeout):
    """Prints the code and the words of a call that fails."""
    try:
        stub.Attend(request, timeout=timeout)
    except grpc.RpcError as error:
        print(name, error.code().name, error.details())


def long():
    """Seconds of work."""
    empty = pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[1, 1, 60000, 1], data=bytes(4 * 60000))
    return pb.AttendRequest(q=empty, k=empty, v=empty, options=pb.Options(mode=pb.COMPUTE_MODE_REFERENCE))


def filled(salt, shape):
    index = np.arange(np.prod(shape), dtype=np.int64)
    return ((index * 389 + salt * 101) % 9973 / 4986 - 1).astype("<f4").reshape(shape)


def stream(stub, folder):
    """Problem 1 is wrong, problem 2 is large and comes in pieces; the stream stays open until both are closed."""
    arrays = {"q": filled(0, (2, 4, 600, 64)), "k": filled(1, (2, 2, 600, 64)), "v": filled(2, (2, 2, 600, 64))}
    header = pb.AttendRequest(
        options=pb.Options(scale=1, causal=True),
        outputs=[pb.OUTPUT_KIND_LSE],
        **{name: pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=array.shape) for name, array in arrays.items()},
    )
    requests = queue.SimpleQueue()
    requests.put(pb.AttendStreamRequest(problem_id=1, header=wrong()))
    requests.put(pb.AttendStreamRequest(problem_id=2, header=header))
    for name, array in arrays.items():
        data = array.tobytes()
        for at in range(0, len(data), PIECE_BYTES):
            piece = pb.TensorPiece(tensor=name, offset_bytes=at, data=data[at : at + PIECE_BYTES])
            requests.put(pb.AttendStreamRequest(problem_id=2, piece=piece))
    blocks, closings = [], {}
    for reply in stub.AttendStream(iter(requests.get, None), timeout=60):
        if reply.WhichOneof("part") == "block":
            blocks.append(reply.block)
        else:
            closings[reply.problem_id] = reply.closing
            if len(closings) == 2:
                requests.put(None)
    error = closings[1].error
    print("stream_error", error.code, error.message)
    assert not closings[2].HasField("error"), closings[2].error
    for output in closings[2].outputs:
        whole = np.full(output.shape, np.nan, "<f4")
        mine = [block for block in blocks if block.kind == output.kind]
        for b in mine:
            rows, columns = slice(b.first_row, b.first_row + b.rows), slice(b.first_column, b.first_column + b.columns)
            whole[b.batch, b.head, rows, columns] = np.frombuffer(b.data, "<f4").reshape(b.rows, b.columns)
        name = pb.OutputKind.Name(output.kind).removeprefix("OUTPUT_KIND_").lower()
        whole.tofile(folder / f"{name}.f32")
        print("stream", name, *output.shape, "in", len(mine), "blocks")


def main(address, folder="."):
    with grpc.insecure_channel(address) as channel:
        stub = attention_pb2_grpc.AttentionServiceStub(channel)
        unary(stub)
        refused("error", stub, wrong(), timeout=60)
        refused("deadline", stub, long(), timeout=3)
        stream(stub, pathlib.Path(folder))


main(*sys.argv[1:])
