"""The top level is fixed, headers say what they own, and sizes are reported (not judged)."""

import re

from project_files import all_files, text, with_suffix

TOP = re.compile(
    r"proto|server|client|core|deploy|tests|CMakeLists\.txt|CMakePresets\.json|Dockerfile|README\.md|"
    r"LICENSE|CHANGELOG\.md|SECURITY\.md|\..+"
)
# Lines that the codebases we learn from seldom pass.
FEELING = {".h": 150, ".cc": 400, ".py": 400, ".sh": 200}


def test_the_top_level_holds_only_the_rooms():
    strangers = {path.parts[0] for path in all_files() if not TOP.fullmatch(path.parts[0])}
    assert not strangers, strangers


def test_every_header_opens_with_what_it_owns_and_its_thread_rule():
    wrong = []
    for path in with_suffix(".h"):
        lines = text(path).splitlines()
        opening = "\n".join(lines[: lines.index("#pragma once")]) if "#pragma once" in lines else ""
        if not lines or not lines[0].startswith("// ") or len(lines[0]) < 20:
            wrong.append(f"{path}: the first line does not say what it owns")
        elif any('"hwy/foreach_target.h"' in line or "HWY_TARGET_TOGGLE" in line for line in lines):
            continue  # made to be read once for each instruction set
        elif not opening:
            wrong.append(f"{path}: no #pragma once")
        elif "hread" not in opening and path.parts[0] != "tests":
            wrong.append(f"{path}: no thread rule above #pragma once")
    assert not wrong, "\n".join(wrong)


def test_no_line_is_longer_than_120():
    wrong = [
        f"{path}:{number}"
        for path in with_suffix(".h", ".py", ".sh", ".cc", ".js", ".go")
        for number, line in enumerate(text(path).splitlines(), 1)
        if len(line) > 120
    ]
    assert not wrong, wrong


def test_sizes_are_reported():
    large = [(len(text(path).splitlines()), str(path)) for suffix in FEELING for path in with_suffix(suffix)]
    for lines, path in sorted(large, reverse=True)[:8]:
        print(f"{lines:5d} {path}")
    assert large
