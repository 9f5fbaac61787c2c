"""Headless Chromium over the DevTools protocol, with the standard library alone: JSON messages that end in a null byte
through file descriptors 3 (to the browser) and 4 (from it), as `--remote-debugging-pipe` offers them."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Chromium:
    """A browser with one page, as a context manager. `complaints` holds the messages of the page's console."""

    def __init__(self, binary: str, profile: Path, timeout_s: float = 60.0) -> None:
        self.complaints: list[str] = []
        self._timeout_s = timeout_s
        self._session: str | None = None
        self._last_id = 0
        self._loaded = False
        self._pending = b""
        command = [binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        self._process = _start(command, theirs_in, theirs_out)

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(self._timeout_s)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Returns the result of a command. Events that arrive before it are processed."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last_id:
            self._look_at(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def screen(self, width: int, scheme: str) -> None:
        """scheme is light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        narrow = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=narrow)

    def open(self, url: str) -> None:
        # Noted in _look_at: the event may come before the answer to the command.
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._look_at(self._next())

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _look_at(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(params["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Network.requestWillBeSent" if not params["request"]["url"].startswith(("file:", "data:", "about:")):
                self.complaints.append(f"fetched {params['request']['url']}")

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout_s
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._in], [], [], max(deadline - time.monotonic(), 0))
            piece = os.read(self._in, 1 << 16) if ready else b""
            assert piece, "the browser ended or did not answer"
            self._pending += piece
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)


def _start(command: Sequence[str], theirs_in: int, theirs_out: int) -> subprocess.Popen[bytes]:
    def wire() -> None:
        # First far away: the pipes themselves may be numbered 3 or 4.
        os.dup2(theirs_in, 100)
        os.dup2(theirs_out, 101)
        os.dup2(100, 3)
        os.dup2(101, 4)

    # Python's own descriptors are not inherited; close_fds would close 3 and 4 after `wire`.
    process = subprocess.Popen(
        command, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(theirs_in)
    os.close(theirs_out)
    return process
