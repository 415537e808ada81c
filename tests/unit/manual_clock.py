"""A clock that a test moves."""

from __future__ import annotations

import threading


class ManualClock:
    """A clock that moves only by `advance` and `wait`.

    ``wait`` never blocks: it moves the clock on by the time-out, so that a loop with a deadline
    ends.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms: float = start_ms

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic_ms(self) -> float:
        return self._now_ms

    def advance(self, milliseconds: float) -> None:
        """Move on; ValueError for a step back."""
        if milliseconds < 0:
            raise ValueError(f"a clock cannot go back ({milliseconds} ms)")
        self._now_ms += milliseconds

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        if not event.is_set():
            self.advance(max(0.0, timeout_ms))
        return event.is_set()
