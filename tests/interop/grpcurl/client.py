"""Drives grpcurl (on PATH), which asks the server itself what its messages are: python3 client.py ADDRESS [FOLDER].

Messages are JSON: bytes are base64, 64-bit numbers may come as strings, and what is 0 or empty does not come at all.
"""

import array
import base64
import json
import math
import pathlib
import re
import subprocess
import sys

PIECE_BYTES = 256 << 10
FLOAT32 = "DATA_TYPE_FLOAT32"


def encoded(values):
    return base64.b64encode(array.array("f", values).tobytes()).decode()


def decoded(data):
    return array.array("f", base64.b64decode(data))


def tensor(*rows):
    """One sequence, one head: [1, 1, N, d]."""
    return {"dtype": FLOAT32, "shape": [1, 1, len(rows), len(rows[0])], "data": encoded(sum(rows, []))}


LESSON = {
    "q": tensor([1, 0, 0.5, 1]),
    "k": tensor([1, 0, 0.8, 1], [0, 1, 0.2, 0], [0.2, 0.2, 0.4, 0.1]),
    "v": tensor([0.9, 0.1, 0.7, 0.8], [0.1, 0.9, 0.2, 0.1], [0.3, 0.3, 0.5, 0.2]),
    "outputs": ["OUTPUT_KIND_WEIGHTS"],
}
WRONG = {**LESSON, "k": tensor([1, 0], [0, 1], [1, 1])}


def call(address, method, messages, seconds=60):
    """What came, or the code and the words of the refusal."""
    command = ["grpcurl", "-plaintext", "-max-time", str(seconds), "-d", "@", address]
    asked = "\n".join(json.dumps(message) for message in messages)
    ran = subprocess.run(
        [*command, f"attnd.v1.AttentionService/{method}"], input=asked, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(" ".join(re.search(r"Code: (.*)\n\s*Message: (.*)", ran.stderr).groups()))
    decoder, text, replies = json.JSONDecoder(), ran.stdout.strip(), []
    while text:
        reply, end = decoder.raw_decode(text)
        replies.append(reply)
        text = text[end:].lstrip()
    return replies


def show(name, got):
    print(name, *(f"{value:.4f}" for value in decoded(got["data"])))


def unary(address):
    (reply,) = call(address, "Attend", [LESSON])
    show("weights", reply["extras"][0]["tensor"])
    show("output", reply["output"])


def refused(name, address, message, seconds=60):
    """Prints the code and the words of a call that fails."""
    try:
        call(address, "Attend", [message], seconds)
    except RuntimeError as error:
        print(name, error)


def long():
    """Seconds of work."""
    empty = {"dtype": FLOAT32, "shape": [1, 1, 60000, 1], "data": encoded([0] * 60000)}
    return {"q": empty, "k": empty, "v": empty, "options": {"mode": "COMPUTE_MODE_REFERENCE"}}


def filled(salt, shape):
    values = ((i * 389 + salt * 101) % 9973 / 4986 - 1 for i in range(math.prod(shape)))
    return {"dtype": FLOAT32, "shape": shape, "data": encoded(values)}


def stream(address, folder):
    """Problem 1 is wrong, problem 2 is large and comes in pieces."""
    tensors = {"q": filled(0, [2, 4, 600, 64]), "k": filled(1, [2, 2, 600, 64]), "v": filled(2, [2, 2, 600, 64])}
    header = {"options": {"scale": 1, "causal": True}, "outputs": ["OUTPUT_KIND_LSE"]}
    header.update((name, {"dtype": FLOAT32, "shape": whole["shape"]}) for name, whole in tensors.items())
    messages = [{"problem_id": 1, "header": WRONG}, {"problem_id": 2, "header": header}]
    for name, whole in tensors.items():
        data = base64.b64decode(whole["data"])
        for at in range(0, len(data), PIECE_BYTES):
            part = base64.b64encode(data[at : at + PIECE_BYTES]).decode()
            messages.append({"problem_id": 2, "piece": {"tensor": name, "offset_bytes": at, "data": part}})
    replies = call(address, "AttendStream", messages)
    blocks = [reply["block"] for reply in replies if "block" in reply]
    closings = {int(reply["problem_id"]): reply["closing"] for reply in replies if "closing" in reply}
    error = closings[1]["error"]
    print("stream_error", error["code"], error["message"])
    assert "error" not in closings[2], closings[2]
    for output in closings[2]["outputs"]:
        shape = [int(n) for n in output["shape"]]
        mine = [block for block in blocks if block["kind"] == output["kind"]]
        name = output["kind"].removeprefix("OUTPUT_KIND_").lower()
        (folder / f"{name}.f32").write_bytes(assemble(shape, mine).tobytes())
        print("stream", name, *shape, "in", len(mine), "blocks")


def assemble(shape, blocks):
    """Puts blocks at their places."""
    _, heads, all_rows, all_columns = shape
    whole = array.array("f", [math.nan]) * math.prod(shape)
    for block in blocks:
        names = ("batch", "head", "first_row", "rows", "first_column", "columns")
        batch, head, first_row, rows, first_column, columns = (int(block.get(name, 0)) for name in names)
        data = decoded(block["data"])
        for row in range(rows):
            to = ((batch * heads + head) * all_rows + first_row + row) * all_columns + first_column
            whole[to : to + columns] = data[row * columns : (row + 1) * columns]
    return whole


def main(address, folder="."):
    unary(address)
    refused("error", address, WRONG)
    refused("deadline", address, long(), seconds=3)
    stream(address, pathlib.Path(folder))


main(*sys.argv[1:])
