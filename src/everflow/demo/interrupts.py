"""Ctrl-C and SIGTERM as KeyboardInterrupt, but never in the middle of a fork.

Python runs the logging module's lock handlers around a fork and swallows what they raise. An interrupt that arrives there (PySpark
forks to launch the JVM) is lost, and the lock stays taken: the next log line of another thread waits for ever (seen).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, both signals raise KeyboardInterrupt in the main thread; inside `held` they wait for its end."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._holding = False
        self._pending = False

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Run the block to its end; a signal that came meanwhile raises behind it."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _on_signal(self, *_: object) -> None:
        if self._holding:
            self._pending = True
        else:
            raise KeyboardInterrupt
