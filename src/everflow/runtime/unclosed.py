"""Closes what a program that ends has not closed.

`atexit` comes too late, behind the end of all executors, whose submits then fail in the middle of a
batch. So would a thread that waits for the main one. `threading._register_atexit`, by which
`concurrent.futures` ends, calls in the opposite order of registration: before that. It is not
public; where it is missing, nothing is closed.

A notebook's kernel that is shut down ends its child processes first, the JVM of a Spark session of
the user's among them. So its ``do_shutdown``, by which a kernel is told to, closes before that.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import thread as _executors  # noqa: F401  # registers its own end first
from typing import Any, Protocol

from everflow.runtime.client_state import STOPPING, ClientState

log = logging.getLogger("everflow")

HURRIED_S = 10.0


class Closable(Protocol):
    """What a running instance is here."""

    @property
    def state(self) -> ClientState:
        """The state now."""

    def close(self) -> bool:
        """End in order."""

    def _hurry_up(self, timeout_s: float) -> bool:
        """Wait for an end that has begun, and cut off what can be."""


class _Unclosed:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._process = 0

    def watch(self, instance: Closable) -> None:
        with self._lock:
            self._started.add(instance)
            first, self._process = self._process != os.getpid(), os.getpid()
        register: Callable[[Callable[[], None]], None] | None = getattr(
            threading, "_register_atexit", None
        )
        if first and register is not None:
            register(self._close)
        if first:
            _before_kernel_ends(self._close)

    def running(self) -> list[Closable]:
        with self._lock:
            # Otherwise a fork's copy: the instance is its parent's.
            mine = self._process == os.getpid()
            return [found for found in self._started if mine and found.state not in STOPPING]

    def _close(self) -> None:
        """On the main thread, which has nothing else to do any more, or a kernel's for control."""
        for instance in self.running():
            log.warning(
                "The program ends and has not closed its instance: it is closed now "
                "(call close() or run(), or write `with KafkaStreams(...) as streams:`)"
            )
            try:
                instance.close()
            except KeyboardInterrupt:
                instance._hurry_up(HURRIED_S)


def _before_kernel_ends(close: Callable[[], None]) -> None:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(shell, "kernel", None)
    shut_down = getattr(kernel, "do_shutdown", None)
    if kernel is None or shut_down is None:
        return

    def close_and_shut_down(restart: bool) -> Any:
        close()
        return shut_down(restart)

    kernel.do_shutdown = close_and_shut_down


_unclosed = _Unclosed()


def close_at_exit(instance: Closable) -> None:
    """``instance``, started in this process, is closed when the program ends, unless its end has
    begun by then."""
    _unclosed.watch(instance)


def running_here() -> list[Closable]:
    """What was started in this process and has not begun to end."""
    return _unclosed.running()
