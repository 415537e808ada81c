"""Looks at what this process is running, a hundred times a second for some seconds (note 059).

Names of functions and lines of files are kept, and no values: nothing of a record is in a sample.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from everflow.location import is_everflow, short
from everflow.runtime.step.user_line import of_user

HERTZ = 100
MOST_STACKS = 2_000
"""Different ones; what comes later is counted together."""
DEPTH = 96
"""Frames of a stack: of a deeper one those in the middle are left out."""
MOST_NAME = 160
LEFT_OUT = "..."
BESIDES = "(stacks that are too many)"
WAITING = frozenset(
    (
        "concurrent.futures.thread",
        "multiprocessing.connection",
        "queue",
        "selectors",
        "subprocess",
        "threading",
    )
)
"""Whoever is in Python code of these modules waits for a lock, a socket or a process."""


class StackFrame(NamedTuple):
    """A frame for people: function and file; of the user's program the line, too. ``own``: it is of
    the user's program."""

    name: str
    own: bool


@dataclass
class StackCounts:
    """For how long each stack ran. One thread writes. ``looked_ms``: for how long was looked; the
    stacks of two threads that work have twice that."""

    samples: int = 0
    looked_ms: float = 0.0
    _ms: dict[tuple[StackFrame, ...], float] = field(default_factory=dict)

    def add(self, stack: Sequence[StackFrame], elapsed_ms: float) -> None:
        """The outermost frame first. A stack stands for the time since the look before it: code
        that lets nobody else run (C) would be seen too seldom otherwise."""
        whole = tuple(stack)
        if len(whole) > DEPTH:
            half = DEPTH // 2
            whole = (*whole[:half], StackFrame(LEFT_OUT, False), *whole[1 - half :])
        if whole not in self._ms and len(self._ms) >= MOST_STACKS:
            whole = (StackFrame(BESIDES, False),)
        self._ms[whole] = self._ms.get(whole, 0.0) + elapsed_ms

    def told(self) -> dict[str, Any]:
        """For the way to another process: ``samples``, ``ms`` that were looked, ``frames`` ([name,
        own]), and ``stacks``: ms and places in ``frames``, those that ran longest first."""
        places: dict[StackFrame, int] = {}
        ranked = sorted(self._ms.items(), key=lambda item: -item[1])
        stacks = [
            [round(ms, 1), *(places.setdefault(place, len(places)) for place in stack)]
            for stack, ms in ranked
        ]
        frames = [[place.name, place.own] for place in places]
        looked_ms = round(self.looked_ms, 1)
        return {"samples": self.samples, "ms": looked_ms, "frames": frames, "stacks": stacks}


def sampled(seconds: float, hertz: int = HERTZ) -> StackCounts:
    """All threads of this process but the calling one and those that wait in it for a question."""
    counts = StackCounts()
    ends_s = time.monotonic() + seconds
    before_s = time.monotonic()
    while before_s < ends_s:
        time.sleep(1 / hertz)
        now_s = time.monotonic()
        look(counts, (now_s - before_s) * 1000)
        before_s = now_s
    return counts


def look(counts: StackCounts, elapsed_ms: float) -> None:
    """Once, for the time since the look before. A helper thread that waits (Kafka's client, a pool
    without work) is no work and is left out; the main thread's wait keeps a batch from ending."""
    counts.samples += 1
    counts.looked_ms += elapsed_ms
    main = threading.main_thread().ident
    names = {one.ident: one.name for one in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, "a thread")
        if ident == threading.get_ident() or name.startswith(SAMPLER):
            continue
        if ident != main and frame.f_globals.get("__name__") in WAITING:
            continue
        stack = list(places(frame))
        counts.add(
            stack if ident == main else [StackFrame(f"thread {name}", False), *stack], elapsed_ms
        )


SAMPLER = "everflow-sampler"
"""How threads are called that only wait to be asked for samples."""


def places(frame: FrameType | None) -> Iterator[StackFrame]:
    """The outermost first; what called everflow's code (Spark's worker) is left out."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    found.reverse()
    begin = next((n for n, (code, _) in enumerate(found) if is_everflow(code.co_filename)), 0)
    for code, line in found[begin:]:
        yield _place(code.co_filename, getattr(code, "co_qualname", code.co_name), line)


def _place(file: str, function: str, line: int) -> StackFrame:
    where, own = _of_file(file)
    return _named(function, f"{where}:{line}" if own else where, own)


@lru_cache(maxsize=4_096)
def _named(function: str, where: str, own: bool) -> StackFrame:
    return StackFrame(f"{function} ({where})"[:MOST_NAME], own)


@lru_cache(maxsize=4_096)
def _of_file(file: str) -> tuple[str, bool]:
    return short(file, sys.path), of_user(file)
