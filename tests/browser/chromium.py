"""A headless Chromium, spoken to over a pipe: what a page asks for, says and looks like."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")


class Browser:
    """One page of a browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, os.fdopen(from_browser, "rb")
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[Mapping[str, Any]] = []

    def ask(self, method: str, **parameters: object) -> Mapping[str, Any]:
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def _next(self) -> Mapping[str, Any]:
        while b"\0" not in self._rest:
            more = self._in.read1(1 << 16)
            assert more, "the browser is gone"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def open_tab(self) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            self.ask(f"{domain}.enable")

    def show(self, path: Path, *, width: int, dark: bool = False) -> None:
        """Open a page and wait until it has been drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def value(self, expression: str) -> Any:
        """What a script in the page comes to."""
        result = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def complaints(self) -> list[str]:
        """What the page has written to the console, thrown, or been refused."""
        bad = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in bad]

    def requests(self) -> list[str]:
        """What the page has asked for."""
        asked = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in asked]

    def close(self) -> None:
        os.close(self._out)
        self._in.close()

    def screenshot(self, path: Path) -> None:
        """All of the page, as a PNG file."""
        picture = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block."""
    assert PROGRAM is not None
    to_read, to_write = map(_moved, os.pipe())
    from_read, from_write = map(_moved, os.pipe())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:

        def keep() -> None:
            os.dup2(to_read, 3)
            os.dup2(from_write, 4)

        command = [PROGRAM, *_OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            command, preexec_fn=keep, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(from_write)
        page = Browser(to_write, from_read)
        try:
            page.open_tab()
            yield page
        finally:
            process.terminate()
            process.wait(20)
            page.close()


def _moved(end: int) -> int:
    """The same end of a pipe, away from 3 and 4, where the browser looks for its own."""
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return moved
