"""The README's first call, taken from the README as it stands: its commands make stubs, its program gets the lesson."""

import json
import os
import re
import subprocess

from google.protobuf import json_format

import wire
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX, ROOT

README = (ROOT / "README.md").read_text()
DEFAULT_ADDRESS = "127.0.0.1:50051"


def block(language, beginning):
    """The README's one code block in that language that holds `beginning`."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if beginning in text]
    assert len(found) == 1
    return found[0]


def test_the_python_example(server, tmp_path):
    commands = [line for line in re.sub(r"\\\n\s*", " ", block("sh", "first_call.py")).splitlines() if line]
    assert commands[0].startswith("apt-get install ") and commands[-1].endswith("first_call.py")
    for package in commands[0].split()[2:]:
        subprocess.run(["dpkg-query", "-W", package], check=True, capture_output=True)
    program = block("python", "import grpc")
    assert DEFAULT_ADDRESS in program
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    (tmp_path / "first_call.py").write_text(program.replace(DEFAULT_ADDRESS, server.address))
    script = "set -eu\n" + "\n".join(commands[1:])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=CALL_SECONDS_MAX,
    )
    assert ran.returncode == 0, ran.stderr
    # What it prints is what its comments say it prints.
    promised = re.findall(r"#\s+(\[\[\[\[.*\]\]\]\])", program)
    printed = [line.split(maxsplit=1)[1] for line in ran.stdout.splitlines()]
    assert len(promised) == 2 and [p.split() for p in printed] == [p.split() for p in promised]
    assert "0.5871 0.1859 0.227" in ran.stdout and "0.6151 0.2941 0.5616 0.5337" in ran.stdout


def test_the_grpcurl_example_is_a_request_that_works(stub):
    command = block("sh", "grpcurl")
    body, target, method = re.search(r"-d '(.*?)' (\S+) (\S+)", command, re.DOTALL).groups()
    assert target == DEFAULT_ADDRESS
    service = pb.DESCRIPTOR.services_by_name["AttentionService"]
    assert method == f"{service.full_name}/{service.methods_by_name['Attend'].name}"
    request = json_format.ParseDict(json.loads(body), pb.AttendRequest())
    assert wire.attend(stub, request)["output"].ravel().tolist() == [2.0]


def test_every_name_in_the_readme_is_there():
    """Links and paths lead somewhere."""
    links = re.findall(r"\]\(([\w/.]+)\)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
