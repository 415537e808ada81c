"""Runs code beside other code: on a thread, or on what a simulation has in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Running(Protocol):
    """Something that was started and ends by itself."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end, for so long at most; whether it has ended."""


Spawn = Callable[[str, Callable[[], None]], Running]
"""(name, code) -> that code, started."""


@dataclass(frozen=True)
class _Thread:
    thread: threading.Thread

    def join(self, timeout_s: float | None = None) -> bool:
        self.thread.join(timeout_s)
        return not self.thread.is_alive()


def on_thread(name: str, run: Callable[[], None]) -> Running:
    """A `Spawn`: a daemon thread."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return _Thread(thread)
