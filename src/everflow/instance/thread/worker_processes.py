"""Ends the Python workers of a failed batch (D6): one may be on its way to a commit."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from everflow.clock import Clock, Deadline
from everflow.errors import FatalError

WAIT_MS = 10_000.0
TRACE_MS = 2_000.0
POLL_MS = 5.0


def alive(pid: int) -> bool:
    """True if the process still runs; False for one that only waits to be reaped."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # another user's: a new process has the number
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return Path("/proc").is_dir() is False  # no /proc (macOS): the signal's answer stands
    return state not in ("Z", "X")


def is_worker(pid: int) -> bool:
    """False for another process with the number of a worker that Spark has ended after a minute."""
    try:
        return b"EVERFLOW_SLOT=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return True


def trace_and_kill(
    pids: Sequence[int],
    clock: Clock,
    *,
    kill: Callable[[int, int], None] = os.kill,
    is_alive: Callable[[int], bool] = alive,
) -> None:
    """`kill_and_wait`, after SIGABRT: Python's faulthandler writes which line is running."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "linux":
                # A core file is as large as the process.
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
            kill(pid, signal.SIGABRT)
    deadline = Deadline(clock, TRACE_MS)
    never = threading.Event()
    while any(map(is_alive, pids)) and not deadline.expired():
        clock.wait(never, POLL_MS)
    kill_and_wait(pids, clock, kill=kill, is_alive=is_alive)


def kill_and_wait(
    pids: Sequence[int],
    clock: Clock,
    *,
    kill: Callable[[int, int], None] = os.kill,
    is_alive: Callable[[int], bool] = alive,
) -> None:
    """SIGKILL the processes and wait until none runs. FatalError if one outlives it for 10 s (stuck
    in the kernel): going on beside it could commit a batch twice."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    deadline = Deadline(clock, WAIT_MS)
    never = threading.Event()
    while left := [pid for pid in pids if is_alive(pid)]:
        if deadline.expired():
            raise FatalError(
                f"Worker processes {left} do not end after SIGKILL; stopping rather than risking a "
                f"second commit."
            )
        clock.wait(never, POLL_MS)
