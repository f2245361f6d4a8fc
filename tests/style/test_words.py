"""Words that no file may hold: unfinished work, tests that do not run, addresses of other people's machines."""

import re

from project_files import all_files, text

THIS_FILE = "tests/style/test_words.py"
UNFINISHED = re.compile(
    r"\b(?:TODO|FIXME|XXX|HACK)\b|not implemented yet|GTEST_SKIP|, DISABLED_|pytest\.mark\.skip|EXPECT_TRUE\(true\)"
)
# The project stands alone: no path outside it, no registry or mirror by name.
OUTSIDE = re.compile(r"\.\./shared|/work/|\b(?:SEMANTICS|HOUSE|FACTS)\.md\b")
ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]+)")
OWN_ADDRESSES = re.compile(r"127\.0\.0\.1|localhost|.*\.invalid|.*\.example|example\.(?:com|org)|www\.w3\.org")
TEXT = {
    ".cc",
    ".h",
    ".py",
    ".js",
    ".go",
    ".mod",
    ".sum",
    ".sh",
    ".proto",
    ".md",
    ".txt",
    ".json",
    ".yaml",
    ".yml",
    ".cmake",
    ".clang-tidy",
    ".clang-format",
    "",
}


def findings(pattern):
    for path in all_files():
        if path.as_posix() == THIS_FILE or path.suffix not in TEXT or "corpus" in path.parts:
            continue
        for number, line in enumerate(text(path).splitlines(), 1):
            for found in pattern.finditer(line):
                yield f"{path}:{number}: {found.group(0)[:80]}", found


def test_nothing_is_left_unfinished():
    assert not [where for where, _ in findings(UNFINISHED)]


def test_nothing_outside_the_project_is_named():
    assert not [where for where, _ in findings(OUTSIDE)]


def test_no_address_of_a_registry_or_mirror_is_written_down():
    assert not [where for where, found in findings(ADDRESS) if not OWN_ADDRESSES.fullmatch(found.group(1))]


def test_the_patterns_catch_what_they_are_for():
    assert UNFINISHED.search("// TODO: later") and OUTSIDE.search("see ../shared/x")
    assert ADDRESS.search("pip install -i https://packages.test/simple").group(1) == "packages.test"
