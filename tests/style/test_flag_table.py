"""The README's table of the server's flags says what server/flags.h says: every name, default and range of meaning."""
import re

from project_files import text

FLAG = re.compile(r'X\((\w+),\s*(.+?),\s*[^,"]+,\s*[^,"]+,\s*"(.*?)"\)')
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def defaults():
    """Flag -> its default as a number, from the table of the header."""
    table = re.sub(r"\s*\\\n\s*", " ", text("server/flags.h"))
    found = {}
    for name, default, _ in FLAG.findall(table):
        plain = re.sub(r"std::int64_t\{(\d+)\}", r"\1", default)
        assert re.fullmatch(r"[\d\s<*+]+", plain), plain
        found[name] = eval(plain)  # digits and operators only
    return found


def readme_number(cell):
    """"256 MiB" -> 268435456; words where the default is one."""
    units = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    number = re.fullmatch(r"([\d,]+)(?: (KiB|MiB|GiB))?", cell)
    return int(number.group(1).replace(",", "")) * units[number.group(2) or ""] if number else None


def test_numbers():
    rows = {name: cell for name, cell, _, _ in ROW.findall(text("README.md"))}
    flags = defaults()
    assert len(flags) > 10
    assert not set(flags) - set(rows), "flags the README does not have"
    for name, default in flags.items():
        if default == 0 and name != "drain_ms":
            assert readme_number(rows[name]) is None, f"{name}: the README must say in words what 0 stands for"
        else:
            assert readme_number(rows[name]) == default, name


def test_words():
    rows = {name for name, _, _, _ in ROW.findall(text("README.md"))}
    words = set(re.findall(r"ABSL_FLAG\([\w:]+, (\w+), [^v]", text("server/flags.cc"))) - {"name"}
    assert words and rows == words | set(defaults()), rows ^ (words | set(defaults()))
