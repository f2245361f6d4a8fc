"""A real headless Chromium for the tests of pages, spoken to in its DevTools protocol over a pair of pipes.

    with Browser() as browser:
        page = browser.open(path, width=390, dark=True)
        assert not page.errors and not page.requests
        page.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == "0.5"
        page.screenshot("phone.png")

The Chrome DevTools Protocol is JSON messages with a zero byte after each: a call
has an id, and its reply the same; everything else is an event of one page, named by its session.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

SECONDS_MAX = 120  # of one reply or of one page to load; a bound for hangs
HEIGHT_MAX = 16000  # pixels of a screenshot: Chromium's textures end there

# Nothing that a fresh browser asks the world for by itself, and no display.
FLAGS = """--headless --remote-debugging-pipe --no-first-run --no-default-browser-check --disable-background-networking
 --disable-component-update --disable-default-apps --disable-domain-reliability --disable-sync --disable-extensions
 --disable-gpu --disable-dev-shm-usage --disable-breakpad --metrics-recording-only --mute-audio --hide-scrollbars
 --force-color-profile=srgb --font-render-hinting=none""".split()

KEYS = {  # DOM name -> Windows key code, which Chromium's own handling of keys goes by, and the text it types
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
    "PageUp": (33, ""),
    "PageDown": (34, ""),
    "End": (35, ""),
    "Home": (36, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}


class Browser:
    """One Chromium with a profile of its own, ended at the end of a `with`; its pages do not share anything."""

    def __init__(self):
        self._profile = tempfile.mkdtemp(prefix="attnd-chromium-")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = [*FLAGS, f"--user-data-dir={self._profile}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium does not start as root without it
        # Chromium reads its pipe at descriptor 3 and answers at 4.
        with open(pathlib.Path(self._profile) / "log", "wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", "chromium", *flags, "about:blank"],
                pass_fds=(to_read, to_write),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        os.close(to_read)
        os.close(to_write)
        self._unread = b""
        self._next_id = 1
        self._pages = {}  # session -> page

    def open(self, path, width=1280, height=800, dark=False):
        """The page of a file, loaded. Width and height in CSS pixels."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session)
        page.load(pathlib.Path(path).resolve().as_uri(), width, height, dark)
        return page

    def call(self, method, parameters=None, session=None):
        """The result of a method; events that come before it go to their pages."""
        number, self._next_id = self._next_id, self._next_id + 1
        message = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        self._write(json.dumps(message).encode() + b"\0")
        while (reply := self._receive()).get("id") != number:
            self._dispatch(reply)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def wait_for(self, condition):
        """Hands out events until condition() is true."""
        while not condition():
            self._dispatch(self._receive())

    def _dispatch(self, message):
        page = self._pages.get(message.get("sessionId"))
        if page and "method" in message:
            page.take(message["method"], message["params"])

    def _write(self, data):
        while data:
            data = data[os.write(self._to, data) :]

    def _receive(self):
        end = time.monotonic() + SECONDS_MAX
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0, end - time.monotonic()))
            part = os.read(self._from, 1 << 20) if ready else b""
            if not part:
                log = (pathlib.Path(self._profile) / "log").read_text(errors="replace")
                raise RuntimeError(f"Chromium {'ended' if ready else 'says nothing'}:\n{log[-4000:]}")
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def close(self):
        for descriptor in (self._to, self._from):
            os.close(descriptor)
        try:  # it ends when its pipe does
            self._process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Page:
    """A page in its own tab. `errors`: what the console would show in red or yellow, exceptions among it; `requests`:
    the address of everything that the page asked for beside itself, whether or not it was let."""

    def __init__(self, browser, session):
        self._browser = browser
        self._session = session
        self._loaded = False
        self._url = None
        self.errors = []
        self.requests = []

    def load(self, url, width, height, dark):
        self._url = url
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]},
        )
        failed = self.call("Page.navigate", {"url": url}).get("errorText")
        if failed:
            raise RuntimeError(f"{url}: {failed}")
        self._browser.wait_for(lambda: self._loaded)
        self.evaluate("document.fonts.ready.then(() => true)")

    def call(self, method, parameters=None):
        return self._browser.call(method, parameters, self._session)

    def take(self, method, event):
        """An event of this page."""
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(part.get("value", part.get("description"))) for part in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.errors.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = event["request"]["url"]
            if url != self._url and not url.startswith("data:"):  # data: asks nobody
                self.requests.append(url)

    def evaluate(self, expression):
        """The value of JavaScript, as JSON brings it; a promise is waited for."""
        reply = self.call(
            "Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True}
        )
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return reply["result"].get("value")

    def text(self, selector):
        """The text that a person sees in each element that matches."""
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)")

    def press(self, key, shift=False):
        """A key as the keyboard sends it, to whatever has the focus."""
        code, typed = KEYS[key]
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", "text": typed, **event})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def hover(self, selector):
        """The mouse onto the middle of the first element that matches."""
        x, y = self.evaluate(
            f"""(() => {{
              const element = document.querySelector({json.dumps(selector)});
              element.scrollIntoView({{block: "center", inline: "center", behavior: "instant"}});
              const box = element.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        self.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def resize(self, width, height=800):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def overflow(self):
        """By how many pixels the page is wider than its window: 0 means that nobody has to scroll sideways."""
        root = "document.documentElement"
        return self.evaluate(f"{root}.scrollWidth - {root}.clientWidth")

    def cut_charts(self):
        """The titles of charts that are wider than their place, of which a part is seen by scrolling only."""
        return self.evaluate(
            """[...document.querySelectorAll("svg.chart")].filter((chart) => {
                 const place = chart.closest(".scroll");
                 return place.scrollWidth > place.clientWidth;
               }).map((chart) => chart.getAttribute("aria-label"))"""
        )

    def screenshot(self, path):
        """The whole page, from top to bottom, as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], HEIGHT_MAX), "scale": 1}
        shot = self.call("Page.captureScreenshot", {"format": "png", "clip": clip, "captureBeyondViewport": True})
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path):
        """The page as it is printed on A4."""
        printed = self.call(
            "Page.printToPDF", {"printBackground": False, "paperWidth": 8.27, "paperHeight": 11.69}
        )
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(printed["data"]))
