"""Errors of the state folder's disk in words, and the folder of stores in memory.

    <state.memory.dir>/everflow-<user id>/<digest of the state folder>/<task>/<store>-<n>/

The folder in memory belongs to the holder of the state folder's lock. It is emptied when that one
begins, since what a killed process left must not be found again, and when it ends (note 039).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from everflow.errors import ConfigError, StateDiskError

MEMORY_DIR = "/dev/shm"
"""The file system in memory that every Linux has."""
_PREFIX = "everflow-"
_CURE = (
    "set state.memory.dir to a folder of a file system in memory that this user may write to, or "
    "leave in_memory=True out"
)


@dataclass(frozen=True)
class MemoryFolder:
    """``root``: ``state.memory.dir``; ``stores``: the names of the stores that lie in memory."""

    root: Path
    stores: frozenset[str] = field(default_factory=frozenset)

    def place(self, state_folder: Path) -> Path:
        digest = hashlib.sha256(os.fsencode(state_folder)).hexdigest()[:16]
        return self.root / f"{_PREFIX}{os.getuid()}" / digest

    def emptied(self, state_folder: Path) -> Path:
        """The folder, with nothing in it; the caller holds the state folder's lock. ConfigError
        where there can be no such folder."""
        place = self.place(state_folder)
        shutil.rmtree(place, ignore_errors=True)
        if not self.stores:
            return place
        named = ", ".join(sorted(self.stores))
        if not self.root.is_dir():
            raise ConfigError(
                f"state.memory.dir: there is no folder {self.root}, and stores of this program are "
                f"to lie in memory ({named}); {_CURE}."
            )
        try:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            if place.parent.stat().st_uid != os.getuid():
                raise PermissionError(f"{place.parent} belongs to another user")
            place.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"state.memory.dir: {self.root} cannot hold the stores in memory ({named}): "
                f"{error}; {_CURE}."
            ) from error
        return place


NOTHING_IN_MEMORY = MemoryFolder(Path(MEMORY_DIR))


def lies_in_memory(path: Path) -> bool:
    return f"{_PREFIX}{os.getuid()}" in path.parts


FULL_BYTES = 16 << 20
"""With less free space than this a refused write counts as a full disk, whatever the system calls
it."""

_FULL = ("No space left", "Disk quota exceeded")
_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG})


@contextmanager
def disk_errors(path: Path, doing: str) -> Iterator[None]:
    """StateDiskError instead of what LMDB or the system raises when the disk refuses a write to
    ``path``; ``doing`` completes "The state could not be ...". Other errors pass."""
    try:
        yield
    except (lmdb.Error, OSError) as error:
        if not _of_the_disk(error):
            raise
        raise StateDiskError(message(path, doing, str(error))) from error


def message(
    path: Path, doing: str, reason: str, *, free_bytes: Callable[[Path], int] | None = None
) -> str:
    free = (free_bytes or _free_bytes)(path)
    if lies_in_memory(path):
        return (
            f"The store in memory in {path} could not be {doing}: {reason}. {_megabytes(free)} are "
            f"free there. Give that file system more (docker run --shm-size), choose another "
            f"state.memory.dir, run more instances, or leave in_memory=True out, and start again: "
            f"nothing is lost, the store is rebuilt from its changelog."
        )
    if any(text in reason for text in _FULL) or 0 <= free < FULL_BYTES:
        cause = f"The disk is full ({_megabytes(free)} free)"
        cure = "Free space there"
    else:
        cause = f"The disk or its file system refuses the write ({_megabytes(free)} free)"
        cure = "Look at the system's log, at quotas and at how it is mounted"
    return (
        f"The state in {path} could not be {doing}: {reason}. {cause}. {cure}, or choose another "
        f"state.dir, and start again: "
        "nothing is lost, the store goes on where it stands or is rebuilt from its changelog."
    )


def _of_the_disk(error: Exception) -> bool:
    """py-lmdb has a class for each of LMDB's own codes and for a full disk; what is left of the
    system's comes as plain Error (LMDB calls a write that was cut short an input/output error)."""
    if isinstance(error, OSError):
        return error.errno in _DISK_ERRNOS
    return isinstance(error, lmdb.DiskError) or (
        type(error) is lmdb.Error and "No such file" not in str(error)
    )


def _free_bytes(path: Path) -> int:
    for place in (path, *path.parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            break
    return -1


def _megabytes(size: int) -> str:
    return "unknown" if size < 0 else f"{size / 1e6:,.1f} MB"


def require_usable(folder: Path) -> None:
    """ConfigError unless files can be made in ``folder``, which is created; StateDiskError."""
    try:
        with disk_errors(folder, "opened"):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(unusable(folder, error)) from error


def unusable(path: Path, error: OSError) -> str:
    """Why ``path`` cannot be the state folder, and what to do: for a ConfigError."""
    existing = next((place for place in (path, *path.parents) if os.path.lexists(place)), path)
    if isinstance(error, FileExistsError | NotADirectoryError):
        cause = f"{existing} is a file, not a folder" if existing.is_file() else str(error)
    elif isinstance(error, PermissionError):
        cause = f"this user may not write to {existing}"
    elif error.errno == errno.EROFS:
        cause = f"{existing} is mounted read-only"
    else:
        cause = f"{existing} takes no new folders ({error.strerror or error})"
    return (
        f"state.dir: {path} cannot hold the state: {cause}. Set state.dir to a folder on a local "
        "disk that this user may write to; it is created if it is missing."
    )
