"""A headless Chromium that tests drive through its debugging pipe: pages, scripts, keys and pictures.

Nothing but the browser is needed. Its pipe carries the DevTools protocol: JSON messages that end with a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "--hide-scrollbars"),
]


class Browser:
    """One page. `errors` collects what its scripts did not catch and what its policy refused."""

    def __init__(self, folder: Path, width: int = 1440, height: int = 900) -> None:
        command, self._to = os.pipe()
        self._from, answers = os.pipe()
        # The browser reads file 3 and writes file 4.
        script = f'exec "$0" "$@" 3<&{command} 4>&{answers}'
        flags = [
            *_FLAGS,
            f"--window-size={width},{height}",
            f"--user-data-dir={folder / 'profile'}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", script, str(BROWSER), *flags],
            pass_fds=(command, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command)
        os.close(answers)
        self._rest = b""
        self._serial = 0
        self._session: dict[str, str] = {}
        self.errors: list[str] = []
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def call(self, method: str, timeout: float = 60, **params: Any) -> Any:
        """Call a method of the protocol and wait for its result."""
        self._serial += 1
        message = {"id": self._serial, "method": method, "params": params, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while True:
            answer = self._next(end)
            if answer.get("id") == self._serial:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._from, 1 << 16)
            assert data, "the browser has left"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = event["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                self.errors.append(event["params"]["entry"]["text"])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str, seconds: float = 30) -> Any:
        """Wait until the expression is true; returns it."""
        end = time.monotonic() + seconds
        while not (value := self.js(expression)):
            assert time.monotonic() < end, f"{expression} did not come true; {self.errors}"
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of an element."""
        box = self.js(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def key(self, name: str) -> None:
        """Press and release a key."""
        text = {"Enter": "\r"}.get(name, name if len(name) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, code=name)

    def picture(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        os.close(self._to)
        os.close(self._from)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
