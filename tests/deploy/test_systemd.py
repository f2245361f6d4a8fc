"""deploy/systemd: the unit is one that systemd takes, confined as it says, and the server lives in that confinement."""

import configparser
import ctypes
import re
import shlex
import signal
import subprocess

import pytest

from aftermath import good_call, long_request, random_request
from attnd_server import BIN, ROOT, AttndServer
from certificates import Authority
from edge import DeployedServer, Edge
from project import drain_ms, number_flags, split_flags, watchdog_seconds
import wire

UNIT = ROOT / "deploy" / "systemd" / "attnd.service"
EXPOSURE_MAX = 20  # of 100, as systemd-analyze counts; 14 by systemd 252


class Repeated(dict):
    """A key that comes again adds a line to the first."""

    def __setitem__(self, key, value):
        if key in self and isinstance(value, list):
            value = self[key] + value
        super().__setitem__(key, value)


@pytest.fixture(scope="module")
def service():
    """Key -> the lines of its values, in order."""
    parser = configparser.RawConfigParser(dict_type=Repeated, strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(UNIT.read_text().replace("\\\n", " "))
    return {key: value.splitlines() for key, value in parser["Service"].items()}


@pytest.fixture(scope="module")
def flags(service):
    (command,) = service["ExecStart"]
    program, *arguments = shlex.split(command)
    assert program == "/usr/bin/attnd"
    return split_flags(arguments)


def analyze(*arguments):
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_systemd_takes_it(tmp_path):
    unit = tmp_path / "attnd.service"
    text = UNIT.read_text()
    unit.write_text(text.replace("/usr/bin/attnd", str(BIN / "attnd")))
    checked = analyze("verify", "--man=no", unit)
    assert checked.returncode == 0 and not checked.stderr, checked.stderr
    unit.write_text(unit.read_text().replace("ProtectHome=", "ProtectHouse="))
    assert "ProtectHouse" in analyze("verify", "--man=no", unit).stderr


def test_it_is_confined(tmp_path):
    security = ("security", "--offline=true", f"--threshold={EXPOSURE_MAX}")
    checked = analyze(*security, UNIT)
    assert checked.returncode == 0, checked.stdout
    loose = tmp_path / "attnd.service"
    loose.write_text(re.sub(r"^(ProtectSystem|SystemCallFilter|DynamicUser)=.*$", "", UNIT.read_text(), flags=re.M))
    assert analyze(*security, loose).returncode != 0


def test_its_numbers_fit_the_server(service, flags):
    (stop,) = service["TimeoutStopSec"]
    assert int(stop) > drain_ms(flags) / 1000 + watchdog_seconds()
    (files,) = service["LimitNOFILE"]
    connections = int(flags.get("connections_max", number_flags()["connections_max"]))
    assert int(files) >= 2 * connections + 200
    credentials = {line.partition(":")[0] for line in service["LoadCredential"]}
    used = {value.rpartition("/")[2] for value in flags.values() if value.startswith("${CREDENTIALS_DIRECTORY}/")}
    assert used == credentials
    assert "MemoryDenyWriteExecute" not in service


def system_calls(lines):
    """The names that are allowed after these lines, each adding or, with ~, taking away."""
    allowed = set()
    for line in lines:
        names = set()
        for word in line.lstrip("~").split():
            names |= of_set(word) if word.startswith("@") else {word}
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed | of_set("@default")


def of_set(name):
    words = analyze("syscall-filter", name).stdout.split("\n")[1:]
    found = set()
    for word in (line.strip() for line in words):
        if word.startswith("@"):
            found |= of_set(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def only_these(names):
    """For a child, before it becomes the server: whatever else it asks the kernel for ends it with SIGSYS."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    allow, kill_process = 0x7FFF0000, 0x80000000
    numbers = [library.seccomp_syscall_resolve_name(name.encode()) for name in sorted(names)]

    def load():
        context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(kill_process)))
        for number in numbers:
            if number >= 0:  # those that this machine has
                library.seccomp_rule_add_array(context, ctypes.c_uint32(allow), number, 0, None)
        if library.seccomp_load(context) != 0:
            raise OSError("seccomp_load")

    return load


def test_the_server_lives_with_its_system_calls(service, tmp_path):
    allowed = system_calls(service["SystemCallFilter"])
    assert "accept4" in allowed and not {"mount", "ptrace", "setuid", "bpf", "kexec_load"} & allowed
    authority = Authority(tmp_path)
    certificate = authority.issue(tmp_path / "attnd", "attnd")
    with DeployedServer(certificate, preexec=only_these(allowed), admin=True) as server:
        with Edge([server.port], upstream=authority) as edge:  # by TLS
            wire.attend(edge.stub(), random_request(1, 8, 8))
        assert server.admin("/metrics")[0] == 200
        good_call(server)
        for request in (random_request(8, 512, 64), long_request(512)):
            for call in (wire.attend, wire.attend_stream):
                call(server.stub(), request)
        assert server.stop() == 0
    # The filter is there: without one that every server needs it does not start.
    with pytest.raises(RuntimeError, match=f"ended with {-signal.SIGSYS}"):
        AttndServer(preexec=only_these(allowed - {"accept4", "bind", "listen"}))
