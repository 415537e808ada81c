"""SIGINT, SIGTERM and SIGHUP: one owner in a process at a time, whose handlers set flags.

Where nothing runs yet that has to end in order, the first signal raises `StopRequestedError` in the
main thread, once. Where Python swallows it (a fork's hooks, a finaliser) it comes again a moment
later, and `StopSignals.check` raises it where a library has caught it. Inside
`StopSignals.reported_to` nothing is raised: a thread reports each to the listener. Afterwards
signals are only counted.

A SIGHUP is left to a parent that wants the process to outlive its terminal (``nohup``), and to the
program's own handler. A shell that ends sends several: it counts only as the first signal."""

from __future__ import annotations

import errno
import os
import queue
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.05
EXIT_BASE = 128
"""A shell's exit code of what a signal ended: this plus its number."""


class StopRequestedError(KeyboardInterrupt):
    """A signal where nothing runs yet that could be stopped in order; ``number`` says which.
    ``said``: what it means for who sent it; a command may say more."""

    said: str = "nothing was running yet"

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopSignals:
    """The owner while entered, or from `install` to the end of the process. Create and enter it in
    the main thread; elsewhere it hears nothing."""

    current: StopSignals | None = None

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self._raising = True
        self._arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._before: dict[int, Any] = {}
        self._unraisable = sys.unraisablehook

    def install(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._on_signal)
                for number in NUMBERS
                if _is_ours(number)
            }
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._on_swallowed
            StopSignals.current = self
        return self

    def __enter__(self) -> StopSignals:
        return self.install()

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        StopSignals.current = None
        sys.unraisablehook = self._unraisable
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @property
    def exit_code(self) -> int | None:
        return None if self.first is None else EXIT_BASE + self.first

    @property
    def interrupted(self) -> bool:
        """True if a signal arrived before anything ran."""
        return self.first is not None and self._raising

    def only_count(self) -> None:
        self._raising = False

    def over(self) -> None:
        """Ignore signals from now on: with their defaults Python's own end would be cut off."""
        self.only_count()
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def check(self) -> None:
        if self.first is not None:
            raise StopRequestedError(self.first)

    @contextmanager
    def reported_to(self, listener: Callable[[int, int], None]) -> Iterator[None]:
        """Inside the block each signal calls ``listener(count of signals, number)`` on a thread of
        its own; later ones are counted. StopRequestedError for one that came before."""
        self._raising = False
        self.check()
        teller = threading.Thread(
            target=self._tell, args=(listener,), name="everflow-signals", daemon=True
        )
        teller.start()
        try:
            yield
        finally:
            self._arrived.put(None)
            teller.join()

    def _tell(self, listener: Callable[[int, int], None]) -> None:
        count = 0
        while (number := self._arrived.get()) is not None:
            count += 1
            listener(count, number)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """May run inside of itself: a put of SimpleQueue may too, what takes a lock may not."""
        if number == signal.SIGHUP:
            _let_go_of_lost_terminal()
            if self.first is not None:
                return
        self.count += 1
        self.first = self.first or number
        if not self._raising:
            self._arrived.put(number)
        elif _forking.under_way:
            self._again()
        elif self.count == 1:
            raise StopRequestedError(number)

    def _on_swallowed(self, unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, StopRequestedError):
            self._again()
        else:
            self._unraisable(unraisable)

    def _again(self) -> None:
        self.count -= 1
        again = threading.Timer(AGAIN_S, lambda: os.kill(os.getpid(), self.first or signal.SIGINT))
        again.daemon = True
        again.start()


def _is_ours(number: int) -> bool:
    return number != signal.SIGHUP or signal.getsignal(number) is signal.SIG_DFL


def write_nowhere(descriptor: int) -> None:
    """Drop all output to ``descriptor`` from now on: its reader has ended."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _let_go_of_lost_terminal() -> None:
    """A line for a terminal that is gone would fail, and with it an end in order."""
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                write_nowhere(descriptor)


@contextmanager
def owned() -> Iterator[StopSignals]:
    if StopSignals.current is not None:
        yield StopSignals.current
        return
    with StopSignals() as signals:
        yield signals


class _Forking:
    """Python swallows what hooks around a fork raise: one of the logging module would leave a lock
    taken, and the next log line of another thread would wait for ever (seen)."""

    def __init__(self) -> None:
        self.under_way = False
        os.register_at_fork(
            before=self._begin,
            after_in_parent=self._end,
            after_in_child=self._end,
        )

    def _begin(self) -> None:
        self.under_way = True

    def _end(self) -> None:
        self.under_way = False


_forking = _Forking()
