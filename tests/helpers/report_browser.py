"""A real browser, driven through its debugging pipe: JSON messages, each ended by a zero byte."""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip


# It reads commands from descriptor 3 and answers on 4; the pipes may be either, so they step aside first.
_START = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
for pipe, place in zip(pipes, (3, 4)):
    os.dup2(pipe, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser():
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Browser:
    """One tab; whatever the page complains of is kept in ``complaints``."""

    def __init__(self, program, seconds=60):
        self._deadline = time.monotonic() + seconds
        self._profile = tempfile.mkdtemp()
        its_in, self._out = os.pipe()
        self._in, its_out = os.pipe()
        words = [sys.executable, "-c", _START, str(its_in), str(its_out), program, *_FLAGS]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(
            [*words, f"--user-data-dir={self._profile}"], pass_fds=(its_in, its_out), **quiet
        )
        os.close(its_in)
        os.close(its_out)
        self._number, self._buffer, self._events, self._session = 0, b"", [], {}
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._events.append(answer)

    def open(self, url, *, width, dark=False, still=False):
        """Show a page as a window of this width would, and wait until it is loaded; ``still`` asks for no motion."""
        self._events.clear()
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, motion])
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._read())

    def ask(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression, seconds=10):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.ask(f"Boolean({expression})"):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)

    def press(self, *keys):
        """Press keys, as a person would who has no mouse: names such as Tab, or characters."""
        for key in keys:
            code = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}.get(key)
            text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
            named = {"key": key, "code": key, "windowsVirtualKeyCode": code} if code else {"key": key}
            self.call("Input.dispatchKeyEvent", type="keyDown", **named, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    @property
    def complaints(self):
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self._events if event.get("method") in methods]

    @property
    def requests(self):
        sent = (event for event in self._events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def close(self):
        self._process.terminate()
        self._process.wait(10)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, self._deadline - time.monotonic()))
            part = os.read(self._in, 1 << 16) if ready else b""
            assert part, "the browser has gone, or does not answer"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
