"""Keeps the last lines that people were told, for who looks later."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace

from everflow.logs import LOGGER as MOVES

KEPT = 500
LONGEST = 2_000
"""Characters of a line: an error may name ten thousand partitions."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """A line. ``at_ms``: epoch, of the last time; ``times``: how often in a row; ``about``:
    ``assignment`` for what moves and why, else empty."""

    at_ms: float
    level: str
    text: str
    about: str = ""
    times: int = 1


class EventBook(logging.Handler):
    """What the instances of this process say: what `everflow run` shows, and every warning. Any
    thread may write and read. One repeated line is kept once."""

    def __init__(self, kept: int = KEPT) -> None:
        super().__init__(logging.INFO)
        self._events: dict[str, deque[Event]] = {}
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and record.name != MOVES:
            return
        about = str(getattr(record, "about", ""))
        events = self._events.setdefault(about, deque(maxlen=self._kept))
        event = Event(
            at_ms=record.created * 1000,
            level=record.levelname,
            text=_short(record),
            about=about,
        )
        last = events[-1] if events else None
        if last is not None and (last.text, last.level) == (event.text, event.level):
            events[-1] = replace(event, times=last.times + 1)
        else:
            events.append(event)

    def events(self) -> list[Event]:
        """The oldest first. Those about the assignment are kept apart: a noisy hour of warnings
        does not push out why a task has moved."""
        self.acquire()
        try:
            found = [event for events in self._events.values() for event in events]
        finally:
            self.release()
        return sorted(found, key=lambda event: event.at_ms)


def _short(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:  # a message that does not fit its arguments is no reason to fail
        text = str(record.msg)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
