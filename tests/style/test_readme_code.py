"""What a README shows as a file is that file, word for word."""

import pytest

from project_files import text

SHOWN = {
    "README.md": ("client/python/lesson.py",),
    "client/README.md": ("client/example/first_call.cc", "client/example/CMakeLists.txt"),
}
LANGUAGE = {"cc": "cpp", "txt": "cmake", "py": "python"}


@pytest.mark.parametrize("readme, file", [(readme, file) for readme, files in SHOWN.items() for file in files])
def test_shown_files_are_the_files(readme, file):
    block = f"```{LANGUAGE[file.rpartition('.')[2]]}\n{text(file)}```\n"
    assert block in text(readme), f"{readme} does not show {file} as it is"
