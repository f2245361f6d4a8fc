"""The project's own files, as the style tests see them: what git tracks or would add."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def all_files():
    """Paths relative to the root. A plain export without git is walked instead."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [pathlib.Path(name) for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        paths = [path for path in paths if path.parts[0] not in ("build", ".git") and "__pycache__" not in path.parts]
    return sorted(path for path in set(paths) if (ROOT / path).is_file())


def with_suffix(*suffixes, under=None):
    return [path for path in all_files() if path.suffix in suffixes and (under is None or path.parts[0] == under)]


def text(path):
    return (ROOT / path).read_text(errors="replace")
