"""The browser that the tests of pages stand on sees what it is there to see: a clean page is told from a bad one."""

import pytest

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">{head}</head>
<body><style>:root {{ color-scheme: light dark }} @media print {{ p {{ display: none }} }}</style>
<p id="a" tabindex="0">one &lt; two</p><button id="b">press</button>
<script>{script}</script></body></html>"""
POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
 style-src 'unsafe-inline'; img-src data:">"""
IMAGE = 'document.body.append(Object.assign(new Image(), {src: "http://127.0.0.1:9/seen.png"}));'


@pytest.fixture
def opened(browser, tmp_path):
    def open_page(script="", head="", **how):
        path = tmp_path / "page.html"
        path.write_text(PAGE.format(head=head, script=script))
        return browser.open(path, **how)

    return open_page


def test_a_clean_page(opened):
    page = opened("console.log('only a word')")
    assert page.text("#a") == ["one < two"]
    assert page.errors == [] and page.requests == []
    assert page.overflow() == 0


@pytest.mark.parametrize(
    "script, words",
    [
        ("console.error('a thing', 7)", "a thing 7"),
        ("console.warn('beware')", "beware"),
        ("console.assert(1 > 2, 'not so')", "not so"),
        ("null.of", "TypeError"),
        ("setTimeout(() => { throw new Error('later') }, 0)", "later"),
        ("Promise.reject(new Error('nobody waited'))", "nobody waited"),
    ],
)
def test_errors_are_seen(opened, script, words):
    page = opened(script)
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert any(words in error for error in page.errors), page.errors


def test_requests_are_seen_and_what_the_policy_stops_is_an_error(opened):
    page = opened(IMAGE)
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert page.requests == ["http://127.0.0.1:9/seen.png"]
    stopped = opened(IMAGE, head=POLICY)
    stopped.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert any("Content Security Policy" in error for error in stopped.errors), stopped.errors


def test_keys_and_mouse_reach_the_page(opened):
    page = opened(
        """const seen = [];
        for (const kind of ["keydown", "mouseover", "click", "focusin"])
          addEventListener(kind, (event) => seen.push(kind + " " + (event.key || event.target.id)));"""
    )
    page.press("Tab")
    page.press("ArrowRight")
    page.press("Tab")
    page.press("Enter")
    page.press("Tab", shift=True)
    page.hover("#b")
    seen = page.evaluate("seen")
    assert seen.index("focusin a") < seen.index("keydown ArrowRight") < seen.index("focusin b"), seen
    for event in ("focusin a", "focusin b", "keydown Enter", "click b", "mouseover b"):
        assert event in seen, (event, seen)
    assert page.evaluate("document.activeElement.id") == "a"


def test_widths_colours_pictures_and_print(opened, tmp_path):
    for dark in (False, True):
        page = opened("document.body.append('x'.repeat(9))", width=390, dark=dark)
        assert page.evaluate("innerWidth") == 390
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == dark
    page.resize(1280)
    assert page.evaluate("innerWidth") == 1280
    page.screenshot(tmp_path / "a.png")
    png = (tmp_path / "a.png").read_bytes()
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20], "big") == 1280
    page.pdf(tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    page.evaluate("document.body.style.width = '2000px'")
    assert page.overflow() > 600


def test_what_the_page_throws_while_it_is_asked_is_an_error_of_the_test(opened):
    with pytest.raises(RuntimeError, match="ReferenceError"):
        opened().evaluate("no_such_name")
