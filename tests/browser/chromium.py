"""A real Chromium without a window, driven by its own protocol: layout and accessible names of a page."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import websocket

from tests.support.patience import HUNG_S

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
ANNOUNCES = "DevTools listening on "

Scheme = Literal["light", "dark"]


class Browser:
    """One tab."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=HUNG_S, suppress_origin=True)
        self._numbers = count(1)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, file: Path, *, width: int, scheme: Scheme = "light", media: str = "") -> None:
        """Show the page in a window of this width, once it is laid out."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=844,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Page.navigate", url=file.as_uri())
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done() : "
            "addEventListener('load', () => done()))"
        )

    def evaluate(self, expression: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, file: Path) -> None:
        """All of the page, as far down as it goes."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def printed(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def read_aloud(self) -> list[tuple[str, str]]:
        """Role and name of each part that a screen reader reads out."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]


@contextmanager
def browsing() -> Iterator[Browser]:
    assert CHROMIUM is not None, "these tests need a Chromium; on Debian: apt-get install chromium"
    with tempfile.TemporaryDirectory(prefix="everstep-browser-") as profile:
        process = subprocess.Popen(
            [
                CHROMIUM,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stderr is not None
            address = next(
                line.partition(ANNOUNCES)[2].strip()
                for line in process.stderr
                if line.startswith(ANNOUNCES)
            )
            browser = Browser(address)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            process.kill()
            process.communicate()
