"""The direction of the arrows: proto <- server, client; core <- server; core never looks up."""

import re

import pytest

from project_files import text, with_suffix

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
GRPC_OR_PROTO = ("grpc", "grpcpp/", "google/protobuf/", "attnd/v1/")
# Room -> what no file of it may include.
FORBIDDEN = {
    "proto": ("core/", "server/", "client/", "tests/"),
    "core": ("server/", "client/", "proto/", "tests/", *GRPC_OR_PROTO),
    "server": ("client/", "tests/"),
    "client": ("core/", "server/", "tests/"),
}
# A library's headers -> the only files that may see them.
ONLY_IN = {
    "oneapi/dnnl/": re.compile(r"core/gemm\.(h|cc)|core/machine\.cc|tests/bench/.*"),
    "hwy/": re.compile(r"core/(softmax|pack|peak|simd)[a-z_]*(-inl)?\.(h|cc)|core/machine\.cc|tests/bench/.*"),
    "openssl/": re.compile(r"client/pem\.cc|server/tls[a-z_]*\.(h|cc)|server/auth[a-z_]*\.(h|cc)"),
}


def includes(path):
    return INCLUDE.findall(text(path))


def sources():
    return with_suffix(".cc", ".h")


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_includes_only_what_lies_below_it(room):
    files = with_suffix(".cc", ".h", under=room)
    assert files
    wrong = [f"{path}: {name}" for path in files for name in includes(path) if name.startswith(FORBIDDEN[room])]
    assert not wrong, wrong


@pytest.mark.parametrize("library", ONLY_IN)
def test_third_party_kernels_enter_through_few_files(library):
    users = [path for path in sources() if any(name.startswith(library) for name in includes(path))]
    assert users, f"nothing includes {library}: the rule is out of date"
    wrong = [str(path) for path in users if not ONLY_IN[library].fullmatch(path.as_posix())]
    assert not wrong, wrong


def test_the_rules_catch_what_they_are_for():
    assert INCLUDE.findall('  # include "server/a.h"\n#include <grpcpp/grpcpp.h>\n// #include "x.h"') == [
        "server/a.h",
        "grpcpp/grpcpp.h",
    ]
    assert "server/a.h".startswith(FORBIDDEN["core"]) and "grpcpp/grpcpp.h".startswith(FORBIDDEN["core"])
