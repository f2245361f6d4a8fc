#!/usr/bin/env python3
"""A decode step whose K and V the server keeps, beside the core's own time and beside a step that carries them.

    tests/bench/named_tensors.py [--steps 30] [--keys 16384]

Starts a server on loopback and ends it. A step of (1, 32/8, 1, keys, 128), float32: appends a row to k and v, then asks
for the attention of one query over all rows. The core's time is what the reply's statistics say (compute_us); the
caller is Python, one call at a time on one connection.
"""

import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import conftest  # noqa: F401, E402  (makes the stubs, and puts them and the helpers below on the path)

import numpy as np  # noqa: E402

import wire  # noqa: E402
from attnd.v1 import attention_pb2 as pb  # noqa: E402
from attnd.v1 import store_pb2, store_pb2_grpc  # noqa: E402
from attnd_server import CALL_SECONDS_MAX, AttndServer  # noqa: E402

PIECE_BYTES = 4 << 20


def put(store, name, array, capacity):
    tensor = wire.tensor(array)
    data = tensor.data
    tensor.ClearField("data")
    header = store_pb2.PutTensorHeader(name=name, tensor=tensor, append_axis=2, capacity=capacity)
    messages = [store_pb2.PutTensorRequest(header=header)]
    messages += [
        store_pb2.PutTensorRequest(data=data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)
    ]
    store.PutTensor(iter(messages), timeout=CALL_SECONDS_MAX)


def timed(call, request):
    """(whole, computing, queued) in ms."""
    start = time.perf_counter()
    reply = call(request, timeout=CALL_SECONDS_MAX)
    whole = time.perf_counter() - start
    return whole * 1e3, reply.statistics.compute_us / 1e3, reply.statistics.queue_us / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--keys", type=int, default=16384)
    options = parser.parse_args()
    draw = np.random.default_rng(0).standard_normal
    k, v = (draw((1, 8, options.keys, 128), np.float32) for _ in range(2))
    q = draw((1, 32, 1, 128), np.float32)
    row = wire.tensor(draw((1, 8, 1, 128), np.float32))
    with AttndServer() as server:
        channel = server.channel()
        stub, store = type(server.stub())(channel), store_pb2_grpc.StoreServiceStub(channel)
        for name, array in (("k", k), ("v", v)):
            put(store, name, array, options.keys + options.steps)
        named = pb.AttendRequest(q=wire.tensor(q), k=pb.Tensor(name="k"), v=pb.Tensor(name="v"))
        carried = wire.request(q, k, v)
        both = store_pb2.AppendTensorsRequest(
            appends=[store_pb2.TensorAppend(name=name, rows=row) for name in ("k", "v")]
        )
        appending, asking, carrying = [], [], []
        for _ in range(options.steps):
            start = time.perf_counter()
            store.AppendTensors(both, timeout=CALL_SECONDS_MAX)
            appending.append((time.perf_counter() - start) * 1e3)
            asking.append(timed(stub.Attend, named))
        for _ in range(max(3, options.steps // 5)):
            carrying.append(timed(stub.Attend, carried))
    whole, computing, queued = (statistics.median(column) for column in zip(*asking))
    beyond = statistics.median(call - compute for call, compute, _ in asking)
    print(f"named:   {whole:.2f} ms, of which the core {computing:.2f}: {beyond:.2f} ms beyond ({queued:.2f} waiting)")
    print(f"append:  {statistics.median(appending):.2f} ms for a row of k and v")
    whole_carried, computing, _ = (statistics.median(column) for column in zip(*carrying))
    print(f"carried: {whole_carried:.2f} ms, of which the core {computing:.2f}: {whole_carried / whole:.1f} times")


if __name__ == "__main__":
    main()
