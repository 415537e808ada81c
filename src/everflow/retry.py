"""Retries passing faults under one deadline (KIP-572), visibly, and says so when it gives up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from everflow.clock import Clock, Deadline
from everflow.errors import EverflowError, RetriableError, TaskTimeoutError

log = logging.getLogger("everflow")

T = TypeVar("T")

FIRST_PAUSE_MS = 100.0
LONGEST_PAUSE_MS = 5_000.0
SAY_FIRST_MS, SAY_SELDOM_MS = 5_000.0, 300_000.0
"""While it lasts it is said again after these, and each time after twice as long."""


class StoppedError(EverflowError):
    """The instance is shutting down; what was being waited for is given up. Never shown to
    users."""

    code = "EF-STOPPED"


def retrying(
    operation: Callable[[], T],
    what: str,
    *,
    clock: Clock,
    deadline: Deadline,
    stop: threading.Event,
) -> T:
    """As `attempting`; TaskTimeoutError when ``deadline`` is over."""
    try:
        return attempting(operation, what, clock=clock, deadline=deadline, stop=stop)
    except RetriableError as error:
        raise TaskTimeoutError(
            f"Gave up {what} after {deadline.timeout_ms / 1000:g} s (task.timeout.ms): {error}"
        ) from error


def attempting(
    operation: Callable[[], T],
    what: str,
    *,
    clock: Clock,
    deadline: Deadline,
    stop: threading.Event,
) -> T:
    """Run ``operation`` until it does not raise RetriableError.

    ``what`` names it for people (``"reading committed offsets"``). Pauses double from 0.1 to 5 s.
    Raises the last RetriableError when ``deadline`` is over (with time-out 0 the first),
    StoppedError when ``stop`` is set; any other error at once.
    """
    pause_ms = FIRST_PAUSE_MS
    say_ms, say_again_ms = clock.monotonic_ms(), SAY_FIRST_MS
    while True:
        if stop.is_set():
            raise StoppedError(f"stopped while {what}")
        try:
            return operation()
        except RetriableError as error:
            if stop.is_set():
                raise StoppedError(f"stopped while {what}") from error
            if deadline.expired():
                raise
            now_ms = clock.monotonic_ms()
            if now_ms >= say_ms:
                log.warning(
                    "Still %s: %s (for %.0f s more)",
                    what,
                    error,
                    deadline.remaining_ms() / 1000,
                )
                say_ms, say_again_ms = now_ms + say_again_ms, min(2 * say_again_ms, SAY_SELDOM_MS)
            clock.wait(stop, min(pause_ms, deadline.remaining_ms()))
            pause_ms = min(pause_ms * 2, LONGEST_PAUSE_MS)


def quietly(action: Callable[[], object]) -> None:
    """For what may fail without harm: it is tried again, or recovery makes up for it."""
    try:
        action()
    except EverflowError as error:
        log.warning("%s", error)
