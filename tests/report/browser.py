"""Drives Debian's chromium through chromedriver's plain HTTP: no package is needed for it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that the WebDriver standard prescribes


def missing() -> str:
    """Why there is no browser to test with; empty where there is one."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"no {program} here: apt-get install chromium chromium-driver"
    return ""


class Browser:
    """One headless window."""

    def __init__(self, address: str, dark: bool = False) -> None:
        self.address = address
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            arguments.append("--no-sandbox")
        if dark:
            arguments.append("--force-dark-mode")
        options = {"args": arguments, "binary": shutil.which("chromium")}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        body = {"capabilities": {"alwaysMatch": wanted}}
        self.session = f"/session/{self._call('POST', '/session', body)['sessionId']}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def open(self, page: Path) -> None:
        """Show a page from disk; a busy machine may still be at the blank one when it is asked."""
        self._call("POST", self.session + "/url", {"url": page.resolve().as_uri()})
        for _ in range(100):
            if self.run("return location.protocol + document.readyState") == "file:complete":
                return
            time.sleep(0.1)
        raise AssertionError(f"the browser does not show {page}")

    def resize(self, width: int, height: int) -> None:
        """Pretend to be a screen of this size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        body = {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics}
        self._call("POST", self.session + "/goog/cdp/execute", body)

    def run(self, script: str) -> Any:
        """What a script returns."""
        return self._call("POST", self.session + "/execute/sync", {"script": script, "args": []})

    def find(self, selector: str) -> str:
        """The first element that a CSS selector names."""
        body = {"using": "css selector", "value": selector}
        return str(self._call("POST", self.session + "/element", body)[ELEMENT])

    def click(self, selector: str) -> None:
        """A real click."""
        self._call("POST", f"{self.session}/element/{self.find(selector)}/click", {})

    def press(self, *keys: str) -> None:
        """Press and release real keys, one after the other."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]}
        self._call("POST", self.session + "/actions", body)

    def download_to(self, folder: Path) -> None:
        """Let what a page saves lie in this folder."""
        where = {"behavior": "allow", "downloadPath": str(folder)}
        body = {"cmd": "Browser.setDownloadBehavior", "params": where}
        self._call("POST", self.session + "/goog/cdp/execute", body)

    def hover(self, selector: str) -> None:
        """Move the mouse onto an element."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        time.sleep(0.2)  # scrolling tells the page afterwards, and the page then hides its tip
        target = {ELEMENT: self.find(selector)}
        moves = [{"type": "pointerMove", "duration": 0, "origin": target, "x": 0, "y": 0}]
        body = {"actions": [{"type": "pointer", "id": "mouse", "actions": moves}]}
        self._call("POST", self.session + "/actions", body)

    def console(self) -> list[dict[str, Any]]:
        """What was said on the console since it was last asked for."""
        found: list[dict[str, Any]] = self._call(
            "POST", self.session + "/se/log", {"type": "browser"}
        )
        return found

    def screenshot(self, path: Path) -> None:
        """The window as a PNG."""
        path.write_bytes(base64.b64decode(self._call("GET", self.session + "/screenshot")))

    def close(self) -> None:
        """Close the window."""
        self._call("DELETE", self.session)


@contextmanager
def browser(dark: bool = False) -> Iterator[Browser]:
    """A browser for the length of a block."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    command = ["chromedriver", f"--port={port}", "--log-level=OFF"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
            except OSError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.05)
        window = Browser(f"http://127.0.0.1:{port}", dark)
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait(10)
