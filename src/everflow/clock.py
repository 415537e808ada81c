"""Time as a parameter: nothing below the runtime's edge reads a clock of its own. And as text."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from everflow.exact_texts import epoch_ms, is_day, moment, whole

UTC = "UTC"
"""As ``TZ`` names it."""


class Clock(Protocol):
    """Wall clock and a monotonic clock, both in milliseconds."""

    def now_ms(self) -> int:
        """Wall clock, ms since the epoch; may jump."""

    def monotonic_ms(self) -> float:
        """Never goes back; only differences mean something. For deadlines and durations."""

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        """Wait until ``event`` is set or the time has passed; True if it is set."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        return event.wait(max(0.0, timeout_ms) / 1000.0)


class Running(Protocol):
    """Something that was started and ends by itself."""

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end, for so long at most; whether it has ended."""


Spawn = Callable[[str, Callable[[], None]], Running]
"""(name, code) -> that code, started beside other code: on a thread, or by a simulation."""


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


class Deadline:
    """One time limit shared by all steps of an operation."""

    def __init__(self, clock: Clock, timeout_ms: float) -> None:
        self._clock = clock
        self.timeout_ms = timeout_ms
        self._end_ms = clock.monotonic_ms() + timeout_ms

    def remaining_ms(self) -> float:
        return max(0.0, self._end_ms - self._clock.monotonic_ms())

    def expired(self) -> bool:
        return self._clock.monotonic_ms() >= self._end_ms


def believed_ms(kept_ms: int, now_ms: int, ahead_ms: int) -> int:
    """A kept wall-clock time (ms) as it is believed: more than ``ahead_ms`` ahead counts as now."""
    return now_ms if kept_ms > now_ms + ahead_ms else kept_ms


@contextmanager
def in_utc() -> Iterator[None]:
    """The local time of this process, all its threads, is UTC meanwhile: PySpark gives Python
    functions local times, and what a function makes of a local time must not depend on the
    machine."""
    before = os.environ.get("TZ")
    if before == UTC:
        yield
        return
    to_utc()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


def to_utc() -> None:
    """`in_utc` for the rest of a process that only workers come from."""
    os.environ["TZ"] = UTC
    time.tzset()


def instant(time_ms: int) -> str:
    """ISO 8601 in UTC, with ms where there are any; the number itself beyond a calendar."""
    try:
        when = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return when.isoformat(timespec="milliseconds" if time_ms % 1000 else "seconds").replace(
        "+00:00", "Z"
    )


def time_of(text: str) -> int:
    """Ms since 1970 of such a number, or of a time in ISO 8601, UTC where it names no zone; a date
    is its first moment.
    ValueError for anything else, for a time between two milliseconds, and for 1970's first moment
    (to Kafka's clients: now) and before."""
    try:
        if text.isdecimal():
            found = whole(text)
        else:
            found = epoch_ms(moment(f"{text}T00:00" if is_day(text) else text))
    except ValueError as error:
        why = f" ({error})" if str(error) else ""
        raise ValueError(
            f"not a time: {text!r}{why}; write 2026-11-21T21:14:06Z, or ms since 1970"
        ) from None
    if found <= 0:
        raise ValueError(f"the time {text!r} is not after 1970-01-01T00:00:00Z")
    return found
