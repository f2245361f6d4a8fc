"""The Dockerfile's command, ports and labels agree with the server and each other. tests/container.sh builds it."""

import json
import re

from attnd_server import BIN
from project import split_flags, text, version

DOCKERFILE = text("Dockerfile")


def words(instruction):
    return json.loads(re.search(rf"^{instruction} .*?(\[.*\])$", DOCKERFILE, re.MULTILINE).group(1))


def test_the_command_is_one_that_the_server_takes():
    flags = split_flags(words("CMD"))
    host, _, port = flags["listen"].rpartition(":")
    assert host == "0.0.0.0" and "insecure" in flags  # whoever reads the command sees that it is
    admin_port = flags["admin_listen"].rpartition(":")[2]
    assert re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE).group(1).split() == [port, admin_port]
    assert words("HEALTHCHECK")[1:] == ["health", f"--server=127.0.0.1:{port}"]
    assert words("ENTRYPOINT") == ["/usr/bin/attnd"]


def test_no_place_of_the_build_is_in_the_binaries():
    for name in ("attnd", "attn"):
        found = set(re.findall(rb"[\x20-\x7e]*/(?:server|client|core|proto)/\w+\.(?:cc|h)", (BIN / name).read_bytes()))
        assert not {path for path in found if path.startswith(b"/")}, found


def test_labels():
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', DOCKERFILE))
    assert labels["version"] == version() and labels["title"] == "attnd" and labels["description"]
    assert "created" not in labels  # it would change with every build
