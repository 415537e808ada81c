"""A wait that lasts is shown, by whoever owns the screen.

    with waiting("starting Spark"):
        ...

In a program and in a notebook's cell that is a line of `everflow.moves` after five seconds, and at
growing intervals. A command has a live line, a test runner its report: they say how with
`shown_by`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from everflow.logs import install
from everflow.moves import moves

FIRST_S = 5.0
"""Of two waits in a row, each just too short to be told, nobody waits 10 s without a word."""
LONGEST_PAUSE_S = 60.0

Shower = Callable[[str], AbstractContextManager[object]]
"""Shows what is waited for while its block runs."""

_showers: list[Shower] = []


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """While the block runs, whoever waits for ``what`` (``starting Spark``) is told, if it lasts.
    Any thread."""
    show = _showers[-1] if _showers else told
    with show(what):
        yield


@contextmanager
def shown_by(show: Shower) -> Iterator[None]:
    """While the block runs, all waits of this process are shown by ``show``, which may be called
    from any thread."""
    _showers.append(show)
    try:
        yield
    finally:
        _showers.remove(show)


def shown_elsewhere(_: str) -> AbstractContextManager[object]:
    """For `shown_by`, where another line says what is waited for."""
    return nullcontext()


@contextmanager
def told(
    what: str, say: Callable[[str], object] = moves.info, *, first_s: float = FIRST_S
) -> Iterator[None]:
    """Lines, from a thread of its own that has ended behind the block: ``starting Spark, 10 s so
    far``."""
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

    Args:
        tell: takes how long the block has run and returns the pause before the next call, both in
        seconds.
        first_s: the pause before the first call.
        clock: monotonic seconds, for how long the block has run.
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
