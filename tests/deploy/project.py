"""What the project says of itself: flags and their defaults, the watchdog, the image. What deploy/ uses must agree."""

import re

from attnd_server import ROOT


def text(path):
    return (ROOT / path).read_text()


def number_flags():
    """Name -> the default as it is written."""
    table = re.sub(r"\s*\\\n\s*", " ", text("server/flags.h"))
    return dict(re.findall(r'X\((\w+),\s*(.+?),\s*[^,"]+,\s*[^,"]+,\s*".*?"\)', table))


def server_flags():
    return set(number_flags()) | set(re.findall(r"ABSL_FLAG\([\w:]+, (\w+),", text("server/flags.cc")))


def watchdog_seconds():
    """After drain_ms, until the process ends itself."""
    return int(re.search(r"StartWatchdog\(.*drain_ms\) \+ absl::Seconds\((\d+)\)\)", text("server/main.cc")).group(1))


def split_flags(arguments):
    """["--name=value", "--word"] -> {"name": "value", "word": ""}; each of them one that the server has."""
    flags = {}
    for argument in arguments:
        name, _, value = re.fullmatch(r"--(\w+)(=(.*))?", argument, re.DOTALL).group(1, 2, 3)
        flags[name] = value or ""
    unknown = set(flags) - server_flags()
    assert not unknown, unknown
    return flags


def drain_ms(flags):
    return int(flags.get("drain_ms", number_flags()["drain_ms"]))


def image_user():
    return int(re.search(r"^USER (\d+):\d+$", text("Dockerfile"), re.MULTILINE).group(1))


def version():
    return re.search(r"project\(attnd VERSION ([\d.]+)", text("CMakeLists.txt")).group(1)
