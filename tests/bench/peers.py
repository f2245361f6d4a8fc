#!/usr/bin/env python3
"""attnd's core beside what else computes attention on a CPU: times faster, row by row, alternating in one run.

    tests/bench/peers.py [--bench build/release/bin/attnd_bench] [--pairs 5] [--threads 2] [--only TEXT]

Peers are PyTorch (flash), ONNX Runtime (MultiHeadAttention) and OpenVINO (ScaledDotProductAttention), each where it can
be imported; the others are named as missing. Every row is float32. For each pair the peer runs, then attnd_bench does,
each for about as long; the median of the ratios is printed (above 1: attnd is faster).
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The row's name in attnd_bench, B, Hq, Hkv, Nq, Nk, d, causal.
ROWS = [
    ("1,8/8,2048,2048,64", 1, 8, 8, 2048, 2048, 64, False),
    ("1,8/8,2048,2048,64 causal", 1, 8, 8, 2048, 2048, 64, True),
    ("1,8/8,4096,4096,128", 1, 8, 8, 4096, 4096, 128, False),
    ("1,32/8,2048,2048,128 causal", 1, 32, 8, 2048, 2048, 128, True),
    ("8,8/8,128,128,64", 8, 8, 8, 128, 128, 64, False),
    ("d 96", 1, 8, 8, 2048, 2048, 96, False),
    ("d 256", 1, 8, 8, 2048, 2048, 256, False),
    ("decode 1,32/32,1,4096,128", 1, 32, 32, 1, 4096, 128, False),
    ("decode 1,32/8,1,16384,128", 1, 32, 8, 1, 16384, 128, False),
    ("1,1/1,5,5,64 (time)", 1, 1, 1, 5, 5, 64, False),
]
MEASURE_SECONDS = 0.05


def tensors(batch, q_heads, kv_heads, q_rows, kv_rows, width):
    draw = np.random.default_rng(0).standard_normal
    q = draw((batch, q_heads, q_rows, width), dtype=np.float32)
    return q, *(draw((batch, kv_heads, kv_rows, width), dtype=np.float32) for _ in range(2))


def torch_peer(threads):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.set_num_threads(threads)

    def prepare(shape, causal):
        q, k, v = (torch.from_numpy(t) for t in tensors(*shape))
        grouped = shape[1] != shape[2]

        def run():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.inference_mode():
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

        return run

    return f"PyTorch {torch.__version__} flash", prepare


def onnxruntime_peer(threads):
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    def prepare(shape, causal):
        batch, q_heads, kv_heads, q_rows, kv_rows, width = shape
        if q_heads != kv_heads:
            raise NotImplementedError("MultiHeadAttention has no grouped heads")
        hidden = q_heads * width
        names, rows = ("query", "key", "value"), (q_rows, kv_rows, kv_rows)
        how = {"domain": "com.microsoft", "num_heads": q_heads, "unidirectional": int(causal)}
        node = helper.make_node("MultiHeadAttention", names, ["output"], **how)
        graph = helper.make_graph(
            [node],
            "attention",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, r, hidden]) for n, r in zip(names, rows)],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch, q_rows, hidden])],
        )
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        arrays = (np.ascontiguousarray(t.transpose(0, 2, 1, 3)).reshape(batch, -1, hidden) for t in tensors(*shape))
        feeds = dict(zip(names, arrays))
        return lambda: session.run(None, feeds)

    return f"ONNX Runtime {onnxruntime.__version__} (onnx {onnx.__version__})", prepare


def openvino_peer(threads):
    import openvino
    import openvino.opset13 as ops

    core = openvino.Core()

    def prepare(shape, causal):
        if shape[1] != shape[2]:
            raise NotImplementedError("ScaledDotProductAttention here has no grouped heads")
        arrays = tensors(*shape)
        inputs = [ops.parameter(list(t.shape), np.float32) for t in arrays]
        attention = ops.scaled_dot_product_attention(*inputs, causal=causal)
        model = openvino.Model([attention], inputs)
        properties = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(model, "CPU", properties).create_infer_request()
        return lambda: request.infer(list(arrays), share_inputs=True)

    return f"OpenVINO {openvino.__version__}", prepare


def seconds(run):
    """Of one run, over as many as fill MEASURE_SECONDS."""
    start, runs = time.perf_counter(), 0
    while runs == 0 or time.perf_counter() - start < MEASURE_SECONDS:
        run()
        runs += 1
    return (time.perf_counter() - start) / runs


def core_seconds(bench, name, threads):
    command = [bench, "--json", "--pairs", "3", "--threads", str(threads), "--only", name]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return next(row["seconds"] for row in map(json.loads, lines) if row["row"] == name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=ROOT / "build" / "release" / "bin" / "attnd_bench")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    peers = []
    for make in (torch_peer, onnxruntime_peer, openvino_peer):
        try:
            peers.append(make(options.threads))
            print(f"{peers[-1][0]}, {options.threads} threads")
        except ImportError as error:
            print(f"{make.__name__.removesuffix('_peer')}: cannot be imported here ({error})")
    if not peers:
        sys.exit("peers: no peer can be imported; pip install torch, or onnxruntime and onnx, or openvino")
    print(f"\n{'B,Hq/Hkv,Nq,Nk,d':32} {'peer':44} {'peer ms':>10} {'attnd ms':>10} {'times faster':>13}")
    for name, *shape, causal in ROWS:
        if options.only not in name:
            continue
        for peer, prepare in peers:
            try:
                run = prepare(tuple(shape), causal)
            except NotImplementedError as why:
                print(f"{name:32} {peer:44} {why}")
                continue
            run()  # its first run makes what it keeps
            pairs = [(seconds(run), core_seconds(options.bench, name, options.threads)) for _ in range(options.pairs)]
            theirs, ours = (statistics.median(column) * 1e3 for column in zip(*pairs))
            ratio = statistics.median(their / our for their, our in pairs)
            print(f"{name:32} {peer:44} {theirs:10.3f} {ours:10.3f} {ratio:13.2f}", flush=True)


if __name__ == "__main__":
    main()
