"""Headless Chromium for tests of the page, driven over its own pipe: nothing to install but it."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from everflow.testing import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium is installed: `apt-get install chromium` brings it"
WAIT_S = 90.0


@dataclass
class Browser:
    """One page of a browser. It speaks the DevTools protocol: JSON that ends with a zero byte."""

    to: int
    answers: Any
    session: str = ""
    said: list[str] = field(default_factory=list)
    """What the page's console said, and what its security policy has refused."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def ask(self, method: str, **values: Any) -> dict[str, Any]:
        number = next(self._numbers)
        asked: dict[str, Any] = {"id": number, "method": method, "params": values}
        if self.session:
            asked["sessionId"] = self.session
        os.write(self.to, json.dumps(asked).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == number:
                assert "error" not in found, found
                return dict(found["result"])

    def value(self, expression: str) -> Any:
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, url: str) -> None:
        """Goes there; the page may not be complete yet."""
        self.ask("Page.navigate", url=url)

    def until(self, expression: str, what: str) -> None:
        wait_until(lambda: self.value(expression) is True, WAIT_S, what)

    def picture(self, element: str, path: Path) -> None:
        box = self.value(
            f"(() => {{ const found = document.querySelector({json.dumps(element)})"
            ".getBoundingClientRect(); return {x: found.x, y: found.y + scrollY, "
            "width: found.width, height: found.height, scale: 1}; })()"
        )
        found = self.ask("Page.captureScreenshot", clip=box, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _message(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self.answers.read(1)) not in (b"\0", b""):
            text += byte
        assert text, "the browser has ended"
        found = dict(json.loads(text))
        if found.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
            self.said.append(json.dumps(found["params"]))
        return found


@contextlib.contextmanager
def browser(folder: Path, width: int = 1200) -> Iterator[Browser]:
    """Chromium with an empty profile in ``folder``; skips the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(MISSING)
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def placed() -> None:  # it reads at 3 and writes at 4
        os.dup2(to_read, 103)
        os.dup2(from_write, 104)
        os.dup2(103, 3)
        os.dup2(104, 4)

    started = subprocess.Popen(
        [
            program,
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",  # the test's page is our own, and containers have no user namespaces
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},900",
        ],
        preexec_fn=placed,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        with os.fdopen(from_read, "rb") as answers:
            found = Browser(to_write, answers)
            target = found.ask("Target.createTarget", url="about:blank")["targetId"]
            attached = found.ask("Target.attachToTarget", targetId=target, flatten=True)
            found.session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                found.ask(f"{domain}.enable")
            yield found
    finally:
        started.kill()
        started.wait(30)
        os.close(to_write)
