"""tests/style/breaking.sh lets the contract grow, and refuses what breaks clients of a released one."""

import re
import shutil
import subprocess

import pytest

from project_files import ROOT

CONTRACT = "attnd/v1/attention.proto"
# What is done to the contract: pattern, replacement, words of the refusal.
BROKEN = {
    "a field's number": (r"bool causal = 2;", "bool causal = 200;", 'field "2" with name "causal"'),
    "a field's name": (r"bool causal = 2;", "bool masked = 2;", 'from "causal" to "masked"'),
    "a field's type": (r"bool causal = 2;", "int64 causal = 2;", '"bool" to "int64"'),
    "a value of an enum": (r"LAYOUT_BNHD = 2;", "LAYOUT_BNHD = 3;", 'enum value "2" on enum "Layout"'),
    "a method": (r"rpc Plan\(.*?;", "", 'RPC "Plan"'),
    "a method's stream": (r"AttendStream\(stream ", "AttendStream(", "client streaming"),
}


def breaking(folder, pattern=None, replacement=None):
    """Exit code and words for a copy of the contract with one thing changed."""
    shutil.copytree(ROOT / "proto", folder)
    if pattern is not None:
        path = folder / CONTRACT
        changed, count = re.subn(pattern, replacement, path.read_text(), count=1)
        assert count == 1, f"{CONTRACT} has no {pattern}"
        path.write_text(changed)
    command = [ROOT / "tests/style/breaking.sh", folder]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_clients_is_refused(what, tmp_path):
    pattern, replacement, words = BROKEN[what]
    code, text = breaking(tmp_path / "proto", pattern, replacement)
    assert code != 0 and words in text, text


def test_growth_is_not(tmp_path):
    assert breaking(tmp_path / "as_it_is")[0] == 0
    new = "message Options {\n  int64 unheard_of = 1000;"
    assert breaking(tmp_path / "with_a_new_field", r"message Options \{", new)[0] == 0
