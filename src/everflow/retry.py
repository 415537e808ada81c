"""Retries passing faults under one deadline (KIP-572), and shows waits that last.

    with waiting("starting Spark"):
        ...

In a program and in a notebook's cell such a wait is a line of `everflow.moves` after five seconds,
and at growing intervals. A command has a live line, a test runner its report: they say how with
`shown_by`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

from everflow.clock import Clock, Deadline
from everflow.errors import EverflowError, RetriableError, TaskTimeoutError
from everflow.logs import install, rebalance_log

log = logging.getLogger("everflow")

T = TypeVar("T")

FIRST_PAUSE_MS = 100.0
LONGEST_PAUSE_MS = 5_000.0
SAY_FIRST_MS, SAY_SELDOM_MS = 5_000.0, 300_000.0
"""While it lasts it is said again after these, and each time after twice as long."""


def pauses_ms() -> Iterator[float]:
    """Between attempts: they double from 0.1 to 5 s; without end."""
    pause_ms = FIRST_PAUSE_MS
    while True:
        yield pause_ms
        pause_ms = min(pause_ms * 2, LONGEST_PAUSE_MS)


class StoppedError(EverflowError, code="EF-STOPPED"):
    """The instance is shutting down, and gives up a wait. Never shown to users."""


class StoppedRequest(RetriableError):
    """The owner of the client is shutting down: what waits for the answer ends, and nobody is
    warned."""


def retrying(
    operation: Callable[[], T],
    what: str,
    *,
    clock: Clock,
    deadline: Deadline,
    stop: threading.Event,
) -> T:
    """`attempting`, with TaskTimeoutError when ``deadline`` is over."""
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
    """Run ``operation`` until it does not raise RetriableError; pauses double from 0.1 to 5 s.

    ``what`` names it for people. Raises the last RetriableError when ``deadline`` is over (with
    time-out 0 the first), StoppedError when ``stop`` is set; any other error at once.
    """
    pauses = pauses_ms()
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
                    "Still %s: %s (for %.0f s more)", what, error, deadline.remaining_ms() / 1000
                )
                say_ms, say_again_ms = now_ms + say_again_ms, min(2 * say_again_ms, SAY_SELDOM_MS)
            clock.wait(stop, min(next(pauses), deadline.remaining_ms()))


def quietly(action: Callable[[], object]) -> None:
    """Run an action whose failure does no harm: it is tried again, or a recovery replaces it."""
    try:
        action()
    except EverflowError as error:
        log.warning("%s", error)


FIRST_S = 5.0
"""Two waits in a row, each just too short to be shown, then last less than 10 s."""
LONGEST_PAUSE_S = 60.0

Shower = Callable[[str], AbstractContextManager[object]]
"""Shows a text while its block runs."""

_showers: list[Shower] = []


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that the block waits for ``what`` (``starting Spark``), if it lasts. Any thread."""
    show = _showers[-1] if _showers else logged
    with show(what):
        yield


@contextmanager
def shown_by(show: Shower) -> Iterator[None]:
    """While the block runs, ``show`` shows all waits of this process, on any thread."""
    _showers.append(show)
    try:
        yield
    finally:
        _showers.remove(show)


def shown_elsewhere(_: str) -> AbstractContextManager[object]:
    """For `shown_by`, where another line shows the wait."""
    return nullcontext()


@contextmanager
def logged(
    what: str, say: Callable[[str], object] = rebalance_log.info, *, first_s: float = FIRST_S
) -> Iterator[None]:
    """Log the wait of the block, from a thread of its own: ``starting Spark, 10 s so far``."""
    install()

    def tell(elapsed_s: float) -> float:
        say(f"{what}, {elapsed_s:.0f} s so far")
        return min(elapsed_s, LONGEST_PAUSE_S)

    with telling(tell, first_s):
        yield


@contextmanager
def telling(
    tell: Callable[[float], float], first_s: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """While the block runs, call ``tell`` on a thread of its own, which has ended behind the block.

    ``tell`` gets how long the block has run and gives the next pause; all in s of ``clock``.
    """
    began, over = clock(), threading.Event()

    def run() -> None:
        pause_s = first_s
        while not over.wait(pause_s):
            pause_s = tell(clock() - began)

    teller = threading.Thread(target=run, name="everflow-waits", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
