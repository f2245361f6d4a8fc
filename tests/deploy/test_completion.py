"""Shells that complete attn's command line, each by itself: keys are typed at a terminal, and attn sees what came."""

import os
import pty
import re
import subprocess

import pytest

from attnd_server import BIN, CALL_SECONDS_MAX, eventually

COMMANDS = ["run", "explain", "plan", "bench", "store", "info", "health", "completion"]
# What starts each shell without anyone's settings, and makes it complete.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}\n"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D\nsource {script}\n"),
}


def completion(shell):
    return subprocess.run([BIN / "attn", "completion", shell], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def script(tmp_path):
    """script(shell) -> path of its script."""

    def write(shell):
        path = tmp_path / f"attn.{shell}"
        path.write_text(completion(shell))
        return path

    return write


def typed(shell, script, folder, keys):
    """The words that attn is called with after "attn " and these keys were typed in that folder."""
    command, setup = SHELLS[shell]
    seen, ready = folder / "seen", folder / "ready"
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=folder,
        start_new_session=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "INPUTRC": "/dev/null"},
    )
    os.close(terminal)
    try:
        lines = setup.format(script=script)
        lines += f"attn() {{ printf '%s\\n' \"$@\" > {seen}.part; mv {seen}.part {seen}; }}\n: > {ready}\n"
        os.write(master, lines.encode())
        eventually("the shell is ready", ready.exists)
        os.write(master, f"attn {keys}\r".encode())
        eventually(f"attn was called, after {keys!r}", seen.exists)
        return seen.read_text().split("\n")[:-1]
    finally:
        process.kill()
        process.wait(CALL_SECONDS_MAX)
        os.close(master)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "keys, words",
    [
        ("heal\t", "health"),
        ("comp\tfi\t", "completion fish"),
        ("run --caus\t--layo\tbn\t", "run --causal --layout bnhd"),
        ("run --layout=bn\t", "run --layout bnhd"),
        ("run --q arr\t --mode ref\t", "run --q array.npy --mode reference"),
    ],
)
def test_keys(script, tmp_path, shell, keys, words):
    (tmp_path / "array.npy").touch()
    called = typed(shell, script(shell), tmp_path, keys)
    # zsh puts "=" between an option and its value.
    assert " ".join(called).replace("=", " ").strip() == words


def fish(script, line):
    """What fish offers for the line, without descriptions."""
    said = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
        capture_output=True,
        text=True,
        check=True,
        cwd=script.parent,
        timeout=CALL_SECONDS_MAX,
    ).stdout
    return {row.split("\t")[0] for row in said.splitlines()}


def bash(script, line):
    """What bash offers for the last word of the line."""
    words = f"source {script}; COMP_WORDS=({line} --); COMP_CWORD={len(line.split())}; _attn"
    return set(
        subprocess.run(
            ["bash", "--norc", "-c", f'{words}; printf "%s\\n" "${{COMPREPLY[@]}}"'],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )


def test_fish(script, tmp_path):
    (tmp_path / "array.npy").touch()
    path = script("fish")
    assert set(COMMANDS) <= fish(path, "attn ")
    assert fish(path, "attn completion ") == {"bash", "zsh", "fish"}
    assert fish(path, "attn run --layout ") == {"bhnd", "bnhd"}
    assert fish(path, "attn run --layout=bn") == {"--layout=bnhd"}
    assert "array.npy" in fish(path, "attn run --q arr")
    assert fish(path, "attn run --timeout_ms ") == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_that_help_shows_is_offered(script, command):
    shown = subprocess.run([BIN / "attn", command, "--help"], capture_output=True, text=True, check=True).stdout
    flags = set(re.findall(r"^ +(?:-h,)?(--\w+)", shown, re.MULTILINE))
    assert "--help" in flags
    assert bash(script("bash"), f"attn {command}") == flags
    assert fish(script("fish"), f"attn {command} --") == flags
    zsh = completion("zsh")
    branch = zsh[zsh.index(f"        {command}) _arguments") :].split(";;", 1)[0]
    assert set(re.findall(r"'(--\w+)[=\[]", branch)) == flags


@pytest.mark.parametrize("shell", ["", "tcsh"])
def test_other_shells_are_a_mistake_in_one_line(shell):
    ran = subprocess.run([BIN / "attn", "completion", *shell.split()], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert shell in ran.stderr
