"""What the compiler and the linker were asked to put into the shipped binaries is in them, by binutils' word."""

import functools
import re
import subprocess

import pytest

from attnd_server import BIN, ROOT

BINARIES = ["attnd", "attn"]


@functools.lru_cache(maxsize=None)
def readelf(options, path):
    command = ["readelf", "--wide", *options.split(), path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def notes(path):
    """The x86 features that each object of a file says it is made for."""
    return [set(re.split(r",\s*", line)) for line in re.findall(r"x86 feature: ([A-Z, ]+)", readelf("--notes", path))]


@pytest.fixture(params=BINARIES)
def binary(request):
    return BIN / request.param


def test_it_is_loaded_anywhere_and_bound_at_once(binary):
    dynamic = readelf("--dynamic", binary)
    assert "DYN (Position-Independent Executable file)" in readelf("--file-header", binary)
    flags = re.search(r"\(FLAGS_1\)\s+Flags: (.*)", dynamic).group(1).split()
    assert "PIE" in flags and "NOW" in flags
    for wrong in ("(RPATH)", "(RUNPATH)", "TEXTREL"):
        assert wrong not in dynamic


def test_no_memory_is_written_and_run(binary):
    segments = re.findall(r"^  (\w+)\s+(?:0x\w+\s+){5}([RWE ]{3})", readelf("--segments", binary), re.MULTILINE)
    kinds = {kind: flags for kind, flags in segments}
    assert kinds["GNU_STACK"].strip() == "RW"
    assert "GNU_RELRO" in kinds
    assert "LOAD" in kinds and not [flags for _, flags in segments if "W" in flags and "E" in flags]


def test_checks_are_compiled_in(binary):
    wanted = set(re.findall(r"UND\s+(\w+)", readelf("--dyn-syms", binary)))
    assert "__stack_chk_fail" in wanted
    assert "_ZSt21__glibcxx_assert_failPKciS0_S0_" in wanted
    assert [name for name in wanted if name.endswith("_chk")], "no call that _FORTIFY_SOURCE checks"


def test_no_folder_of_the_build_is_in_it(binary):
    contents = binary.read_bytes()
    for folder in {ROOT, BIN.resolve().parent}:
        assert str(folder).encode() not in contents


def test_a_name_of_its_contents(binary):
    assert re.search(r"Build ID: [0-9a-f]{40}\b", readelf("--notes", binary))


def test_all_code_of_ours_is_made_for_control_flow_enforcement():
    libraries = [BIN.parent / name for name in (
        "core/libattnd_core.a", "proto/libattnd_proto.a", "proto/libattnd_wire.a", "server/libattnd_server.a",
        "client/libattnd_client.a", "client/libattn_commands.a")]
    for library in libraries:
        members = readelf("--file-header", library).count("\nFile: ")
        assert members > 0
        assert [{"IBT", "SHSTK"} <= features for features in notes(library)] == [True] * members, library


def test_the_binary_says_so_where_the_systems_start_files_do(binary):
    """The linker sets the mark only when every object has it. Debian's start files of the C library have none."""
    files = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("Scrt1.o", "crti.o", "crtbeginS.o", "crtendS.o", "crtn.o")
    ]
    marked = all(notes(file) for file in files)
    assert [{"IBT", "SHSTK"} <= features for features in notes(binary)] == [True] * marked
