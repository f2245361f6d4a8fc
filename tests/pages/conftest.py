"""One Chromium for all tests of pages, and the folder where their pictures are kept for a person to look at."""

import pytest

from attnd_server import ROOT
from browser import Browser

PICTURES = ROOT / "build" / "pages"


@pytest.fixture(scope="session")
def browser():
    with Browser() as running:
        yield running


@pytest.fixture(scope="session")
def pictures():
    PICTURES.mkdir(parents=True, exist_ok=True)
    return PICTURES
