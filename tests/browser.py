"""A headless Chromium over its debugging pipe, to see what a page does in a real browser."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
TIMEOUT = 60.0


class Page:
    """One tab: commands by name, and every event that it has sent."""

    def __init__(self, write: int, read: int):
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], deadline - time.monotonic())
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("the browser does not answer")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, url: str) -> None:
        """Loads a page and waits until it is there."""
        self.events.clear()
        self.send("Page.navigate", url=url)
        while not self.named("Page.loadEventFired"):
            self._receive()

    def named(self, method: str) -> list[dict[str, Any]]:
        """The events of one kind since the page was opened."""
        return [event["params"] for event in self.events if event["method"] == method]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def prefer(self, scheme: str) -> None:
        """The user's colour scheme, ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, max_height: int | None = None) -> None:
        """The whole page as a picture, or as much of it from its top."""
        clip: dict[str, Any] = {}
        if max_height is not None:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            box = {"x": 0, "y": 0, "width": size["width"], "scale": 1}
            clip = {"clip": box | {"height": min(size["height"], max_height)}}
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, **clip)
        path.write_bytes(base64.b64decode(data["data"]))

    def pdf(self, path: Path) -> None:
        """The page as it is printed, on A4."""
        size = {"paperWidth": 8.27, "paperHeight": 11.69}
        data = self.send("Page.printToPDF", printBackground=False, **size)
        path.write_bytes(base64.b64decode(data["data"]))


def need_browser() -> None:
    """Ends a command that cannot be run without one, with what to install."""
    if CHROMIUM is None:
        raise SystemExit(
            "This needs a browser, Chromium or Chrome, on the PATH as chromium, chromium-browser "
            "or google-chrome: for example `apt-get install chromium`."
        )


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with a fresh profile, closed at the end."""
    assert CHROMIUM is not None
    there_read, write = os.pipe()
    read, there_write = os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    # The browser expects the pipe at descriptors 3 and 4.
    command = f'exec "$0" "$@" 3<&{there_read} 4>&{there_write}'
    process = subprocess.Popen(
        ["bash", "-c", command, CHROMIUM, *options, f"--user-data-dir={profile}"],
        pass_fds=(there_read, there_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(there_read)
    os.close(there_write)
    try:
        page = Page(write, read)
        yield page
        with contextlib.suppress(TimeoutError, BrokenPipeError):
            page._session = None
            page.send("Browser.close")
    finally:
        os.close(write)
        os.close(read)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
