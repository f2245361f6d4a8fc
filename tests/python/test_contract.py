"""The package offers what the contract has: every option, output and number, by the contract's names."""

import dataclasses
import subprocess
import sys

import pytest

import attnd
from attnd import _contract
from attnd.v1 import attention_pb2 as pb
from attnd_server import CALL_SECONDS_MAX, ROOT

# Fields of Options whose keyword is a field of AttendRequest too, or whose place is q, k and v's.
REQUEST = {"q", "k", "v", "options"}


def names(message):
    return {field.name for field in message.DESCRIPTOR.fields}


def test_every_option_is_a_keyword():
    assert set(attnd.Options.__annotations__) == names(pb.Options) | names(pb.AttendRequest) - REQUEST


def test_every_keyword_and_output_is_explained():
    explained = attnd.Options.__doc__
    assert not [name for name in attnd.Options.__annotations__ if f"\n    {name} " not in explained]
    assert not [name for name in _contract.OUTPUTS if name != "output" and f'"{name}"' not in explained]


@pytest.mark.parametrize(
    "ours, theirs", [("Rotary", "Rotary"), ("Projection", "Projection"), ("Statistics", "Statistics")]
)
def test_every_field_has_its_name(ours, theirs):
    assert {field.name for field in dataclasses.fields(getattr(attnd, ours))} == names(getattr(pb, theirs))


@pytest.mark.parametrize("enum", ["DataType", "OutputKind", "Layout", "ComputeMode", "Priority", "RotaryStyle"])
def test_every_value_has_its_name(enum):
    prefix = pb.DESCRIPTOR.enum_types_by_name[enum].values[0].name.removesuffix("UNSPECIFIED")
    ours = {prefix + name.upper(): number for name, number in _contract.names(enum).items()}
    assert ours == {name: number for name, number in getattr(pb, enum).items() if number}


BESIDE = """
import sys
sys.path[:0] = sys.argv[1:]
{imports}
tensor = attention_pb2.Tensor(dtype=1, shape=[2])
mine = attnd._contract.message("Tensor")(dtype=1, shape=[2])
assert type(tensor) is not type(mine) and tensor.SerializeToString() == mine.SerializeToString()
assert attnd.connect
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import attnd, attnd._contract\nfrom attnd.v1 import attention_pb2",
        "from attnd.v1 import attention_pb2\nimport attnd, attnd._contract",
    ],
    ids=["package first", "stubs first"],
)
def test_a_programs_own_stubs_live_beside_it(imports):
    package = attnd.__path__[0].removesuffix("/attnd")
    subprocess.run(
        [sys.executable, "-c", BESIDE.format(imports=imports), str(ROOT / "build" / "stubs"), package],
        check=True,
        timeout=CALL_SECONDS_MAX,
    )
