"""Wait for a condition instead of sleeping: a failure says for what, and what happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Event
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.02
_MOST_POLL_S = 0.25
_REST = 4
"""A condition that takes long, such as a question to a broker, takes a fifth of a core at most."""
_HISTORY_SHOWN = 30


def wait_until(
    condition: Callable[[], T | None],
    timeout_s: float,
    what: str,
    history: Iterable[object] | Callable[[], Iterable[object]] | None = None,
) -> T:
    """Call ``condition`` until it returns a true value, and return that value. AssertionError, with
    ``what``, the last value and the last 30 items of ``history``, after ``timeout_s`` seconds.

    Args:
        condition: called about every 20 ms on the calling thread, less often where it takes long,
            at least once and once more at the end; an exception it raises ends the wait.
        timeout_s: seconds, on the monotonic clock.
        what: the end of the sentence "waited 5 s for ...".
        history: what happened meanwhile, or a function that returns it.
    """
    deadline = time.monotonic() + timeout_s
    pause = Event()
    while True:
        began = time.monotonic()
        expired = began >= deadline
        value = condition()
        if value:
            return value
        if expired:
            raise AssertionError(_message(timeout_s, what, value, history))
        took_s = time.monotonic() - began
        pause.wait(min(max(_POLL_S, _REST * took_s), _MOST_POLL_S))


def _message(
    timeout_s: float,
    what: str,
    value: object,
    history: Iterable[object] | Callable[[], Iterable[object]] | None,
) -> str:
    lines = [f"waited {timeout_s:g} s for {what}; last value: {value!r}"]
    if history is not None:
        items = list(history() if callable(history) else history)
        lines.append(f"history, last {min(len(items), _HISTORY_SHOWN)} of {len(items)}:")
        lines += [f"  {item}" for item in items[-_HISTORY_SHOWN:]]
    return "\n".join(lines)
