"""One LMDB environment shared by threads and processes: opening, growing, reading, writing.

What LMDB demands and this module keeps (D4, failure scenario 18):

- A file is opened once per process and never used across a fork: `forget_inherited` runs in every
  forked child.
- The map grows: a write that fills it is rolled back, the map doubled, the write run again. Other
  processes then see MapResizedError and adopt the size. Changing the size invalidates the
  transactions of this process, so it waits until its readers have left; reads are short.
- Closing unmaps the pages under their readers, and py-lmdb reads without the interpreter's
  lock: with readers still there the last one closes.
- Dead readers would pin old pages for ever: `reader_check` runs at opening and before the map
  grows.
- Not flushing at commit is safe when a process is killed, as the pages are the operating system's;
  only a crash of the operating system may lose or tear them, which the task directory detects by
  the boot id.
- LMDB makes its lock file as one hole and writes into it through a mapping: on a full disk that
  ends the process (SIGBUS), so the file's space is reserved first. Data is written with pwrite:
  there a full disk is an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from everflow.errors import FatalError, RetriableError
from everflow.state.disk import disk_errors

MAP_BYTES_AT_FIRST = 1 << 30
MAP_BYTES_LIMIT = 1 << 42
READERS_MAX = 510
READERS_LEAVE_S = 30.0
CLOSE_WAIT_S = 2.0
LOCK_FILE_BYTES = 40 << 10
"""Space for READERS_MAX slots of 64 bytes and the head."""
DATA_FILE = "data.mdb"
FLUSH_MARKER = "flush-each-commit"
"""A file of this name in the folder makes every process flush at commit (``state.sync=commit``)."""

_Result = TypeVar("_Result")


class StoreClosedError(RetriableError, code="EF-STORE-CLOSED"):
    """Another thread of this process closed the store; open it again."""


class StoreEnvironment:
    """One open environment with named databases ``names``; used by any number of threads of one
    process.

    A thread that holds a read must not write: the write would wait for that read if the map has to
    grow.
    """

    def __init__(
        self, path: Path, names: tuple[bytes, ...], map_bytes: int = MAP_BYTES_AT_FIRST
    ) -> None:
        self.path = path
        flush = (path / FLUSH_MARKER).exists()
        self._pid = os.getpid()
        _allocate_lock_file(path)
        self._env = lmdb.open(
            str(path),
            map_size=_map_bytes(path, map_bytes),
            max_dbs=len(names),
            max_readers=READERS_MAX,
            sync=flush,
            metasync=False,
            readahead=False,
            create=False,
        )
        self._identity = file_identity(path)
        self._writing = threading.RLock()
        self._gate = threading.Condition()
        self._readers = 0
        self._resizing = False
        self._closed = False
        self._env.reader_check()
        try:
            self.databases = self._open_databases(names)
        except BaseException:
            self._env.close()
            raise

    def _open_databases(self, names: tuple[bytes, ...]) -> dict[bytes, Any]:
        """Handles outlive the transaction that opened them only if it writes and commits: py-lmdb
        resets a read transaction in another process."""
        try:
            return {name: self._env.open_db(name, create=False) for name in names}
        except lmdb.NotFoundError:
            return self.write(
                lambda txn: {name: self._env.open_db(name, txn=txn) for name in names}
            )

    @property
    def stale(self) -> bool:
        """True if the file behind this is gone or another one, or a parent process opened it."""
        return not self.is_at(self.path)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """True if the file behind this is the one in the folder ``path``, and this process has
        opened it."""
        there = file_identity(path)
        return there is not None and there == self._identity and self._pid == os.getpid()

    @contextmanager
    def read(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A read transaction on a stable snapshot; keep it short, it pins pages. StoreClosedError
        after `close`."""
        self._check_process()
        txn = self._begin_read()
        try:
            yield txn
        finally:
            txn.abort()
            self._leave()

    @contextmanager
    def read_beside(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A read transaction for a helper of a thread that waits in a read or a write, so nobody
        closes or resizes. `read` would wait for a resize that waits for that thread, and is refused
        behind `close`. lmdb's MapResizedError and ReadersFullError as they come."""
        txn = self._env.begin()
        try:
            yield txn
        finally:
            txn.abort()

    def write(self, body: Callable[[lmdb.Transaction[bytes]], _Result]) -> _Result:
        """Run ``body`` in one write transaction: all of it is stored or nothing.

        ``body`` may run several times (map full or resized), so it has no other effect. Blocks
        while another process writes. RetriableError if the map cannot grow, StateDiskError if the
        disk refuses, StoreClosedError after `close`.
        """
        self._check_process()
        with self._writing:
            self._require_open()
            while True:
                try:
                    with disk_errors(self.path, "written"), self._env.begin(write=True) as txn:
                        return body(txn)
                except lmdb.MapResizedError:
                    self._resize(0)
                except lmdb.MapFullError:
                    self._grow()

    def copy_to(self, folder: Path) -> None:
        """Write what is committed at this moment into the empty ``folder``, as an environment of
        its own. It pins pages, and lets nobody of this process resize the map, for as long as the
        disk takes. StateDiskError, StoreClosedError."""
        with self.read(), disk_errors(folder, "copied"):
            self._env.copy(str(folder), compact=True)

    def close(self, wait_s: float = CLOSE_WAIT_S) -> None:
        """Close, waiting up to ``wait_s`` for the reads of other threads; if some go on, the last
        of them closes it. Idempotent."""
        if (
            self._pid != os.getpid()
        ):  # inherited: the readers stayed behind, and the locks may stay for ever
            self._env.close()
            return
        with self._writing, self._gate:
            self._closed = True
            if self._gate.wait_for(lambda: self._readers == 0, wait_s):
                self._env.close()

    def _begin_read(self) -> lmdb.Transaction[bytes]:
        while True:
            with self._gate:
                self._gate.wait_for(lambda: not self._resizing)
                self._require_open()
                self._readers += 1
            try:
                return self._env.begin()
            except lmdb.MapResizedError:
                self._leave()
                with self._writing:
                    self._resize(0)
            except BaseException:
                self._leave()
                raise

    def _leave(self) -> None:
        with self._gate:
            self._readers -= 1
            if self._closed and self._readers == 0:
                self._env.close()
            self._gate.notify_all()

    def _grow(self) -> None:
        self._env.reader_check()
        size = 2 * self._env.info()["map_size"]
        if size > MAP_BYTES_LIMIT:
            raise FatalError(
                f"The store in {self.path} would need more than {MAP_BYTES_LIMIT >> 40} TiB."
            )
        self._resize(size)

    def _resize(self, size: int) -> None:
        """Set the map's size (0 = as another process set it); holding ``_writing``, outside a
        write."""
        with self._gate:
            self._resizing = True
            try:
                if not self._gate.wait_for(lambda: self._readers == 0, READERS_LEAVE_S):
                    raise RetriableError(
                        f"The store in {self.path} has to grow, but a read of it has been open for "
                        f"more than {READERS_LEAVE_S:.0f} s in this process. Close range scans and "
                        "snapshots soon."
                    )
                self._env.set_mapsize(size)
            finally:
                self._resizing = False
                self._gate.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosedError(
                f"The store in {self.path} was closed by another thread: open it again."
            )

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise FatalError(
                f"The store in {self.path} was opened in process {self._pid} and used in its fork "
                f"{os.getpid()}: open it again in the child."
            )


def _map_bytes(path: Path, least: int) -> int:
    """Space for what is there and more: LMDB's own map of a larger file ends where the file does,
    and each store that was opened anew would run its next write twice."""
    try:
        there = (path / DATA_FILE).stat().st_size
    except FileNotFoundError:
        return least
    while there > least - least // 4:
        least *= 2
    return least


def _allocate_lock_file(path: Path) -> None:
    """Reserve a new environment's lock file (not on macOS); OSError if there is no space."""
    if not hasattr(os, "posix_fallocate"):
        return
    name = path / "lock.mdb"
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except (FileExistsError, FileNotFoundError):
        return  # there, or no folder: LMDB says so
    try:
        os.posix_fallocate(descriptor, 0, LOCK_FILE_BYTES)
    except OSError:
        name.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def file_identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    try:
        found = os.stat(os.path.join(path, DATA_FILE))
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
