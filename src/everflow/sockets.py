"""Makes private, locked folders for Unix sockets (short: a socket's path ends at 108 bytes; the
lock shows what a killed process has left), and bounds what is read from a socket."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

LONGEST = 100
"""Bytes of a socket's path that work on Linux and macOS."""
PREFIX = "ef"
LOCK = ".everflow-lock"
ABANDONED_AFTER_S = 5.0
"""A younger folder may belong to a process that is just about to lock it."""
MOST_LINE_BYTES = 256 << 20
"""Of a line between the driver and a worker: a batch's offsets, or prints, never its records."""
MOST_MESSAGE_BYTES = 1 << 30
"""Of what comes with its length before it: a slice of a batch, or one record that is larger."""
_NAME_BYTES = 40
_SHORT_BASE = "/tmp"
_locks: dict[Path, int] = {}


class TooLargeError(ConnectionError):
    """A message over a socket is larger than any valid one. The reader closes the connection, as
    nothing more can be read of it."""


class Lines(Protocol):
    """The part of `socket.makefile` that is needed."""

    def readline(self, limit: int = ..., /) -> bytes: ...


def read_line(lines: Lines, what: str) -> bytes:
    """The next line with its end (without it, or empty, after a hang-up). TooLargeError."""
    line = lines.readline(MOST_LINE_BYTES + 1)
    require_size(len(line), what, MOST_LINE_BYTES)
    return line


def require_size(size: int, what: str, most: int | None = None) -> None:
    """TooLargeError unless a length is from 0 to ``most`` bytes (None: `MOST_MESSAGE_BYTES`)."""
    most = MOST_MESSAGE_BYTES if most is None else most
    if not 0 <= size <= most:
        said = f"has {size:,} bytes" if size >= 0 else f"says that its length is {size:,}"
        raise TooLargeError(f"{what} {said}: {most:,} are the most")


def socket_folder() -> Path:
    """A new folder, mode 0700, in the temporary folder, or the system's short one where that path
    is too long for sockets. For `remove_socket_folder`, at the latest at exit."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_base()))
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _locks[folder] = lock
    return folder


def socket_folder_of_process() -> Path:
    folder = socket_folder()
    atexit.register(remove_socket_folder, folder)
    return folder


def remove_socket_folder(folder: Path) -> None:
    """Remove it and what is in it. Idempotent, never raises."""
    shutil.rmtree(folder, ignore_errors=True)
    lock = _locks.pop(folder, None)
    if lock is not None:
        os.close(lock)


def remove_abandoned(now_s: float | None = None) -> list[Path]:
    """Remove, and give, socket folders that killed processes of this user left; never raises."""
    before = (time.time() if now_s is None else now_s) - ABANDONED_AFTER_S
    removed = []
    for folder in Path(_base()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            ours = (
                stat.S_ISDIR(found.st_mode)
                and found.st_uid == os.geteuid()
                and found.st_mtime <= before
            )
            if ours and _only_sockets(folder) and not _locked(folder / LOCK):
                shutil.rmtree(folder)
                removed.append(folder)
    return removed


def _base() -> str:
    base = tempfile.gettempdir()
    return _SHORT_BASE if len(base.encode()) + _NAME_BYTES > LONGEST else base


def _only_sockets(folder: Path) -> bool:
    return all(
        entry.name == LOCK or stat.S_ISSOCK(entry.lstat().st_mode) for entry in folder.iterdir()
    )


def _locked(path: Path) -> bool:
    """FileNotFoundError without a lock: then it is no folder of ours."""
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
