"""The state folder of one instance: who owns it, which stores lie where, which may be trusted.

    <state.dir>/<application.id>/
        .lock                    locked by the running process (fcntl; its content is the pid)
        process-metadata         JSON: process id, transactional ids, boot id, clean close, ...
                                 (`ProcessMetadata`)
        input-topics             JSON: the ids of the topics that the application read here last
        <task>/<store>-<n>/      one LMDB store; a rebuild goes to n + 1, as a cached environment
                                 would write into the removed file (failure scenario 18)
        .removed/                tasks that were released, until `sweep` has deleted them
        .loaded/                 global tables that Spark loads; nothing of it lasts over a start

Stores in memory have the same layout elsewhere, see `disk`; they are here from `open` to
`close`.

The lock is fcntl's, not flock's: a child does not inherit it, so an orphaned worker cannot keep the
folder busy.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from everflow.errors import ConfigError, StateDiskError, StateFormatError, StateLockedError
from everflow.records import TaskId
from everflow.state.disk import NOTHING_IN_MEMORY, MemoryFolder, disk_errors, unusable

FORMAT = 1
"""Version of this layout; a higher one was written by a later release."""

_PRIVATE = 0o700
"""Stores hold the user's records, the log beside them what was said of them."""
_LOCK = ".lock"
_METADATA = "process-metadata"
_INPUTS = "input-topics"
_DISTRUSTED = "distrusted"
_REMOVED = ".removed"
_LOADED = ".loaded"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_lock_holders: dict[Path, int] = {}
_lock_guard = threading.Lock()
"""Folders that this process (by pid) has locked: fcntl locks do not exclude a second holder in one
process."""


@dataclass(frozen=True, kw_only=True)
class ProcessMetadata:
    """What a restart has to know of the process before it.

    ``process_id``: the instance's uuid, kept over restarts. ``transactional_ids``: all that it may
    have open transactions under, fenced first (D6). ``boot_id``: of the operating system's boot at
    the last use, ``clean_close``: whether that use ended with everything flushed.
    """

    application_id: str
    process_id: str
    transactional_ids: tuple[str, ...] = ()
    boot_id: str = ""
    clean_close: bool = False
    format: int = FORMAT


def system_boot_id() -> str:
    """Id of this boot of the operating system; empty where it has none: nothing is distrusted."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class StateDirectory:
    """The folder of one application and instance, locked exclusively from `open` until `close`. The
    driver's only; workers get paths of stores. One call at a time on one task."""

    def __init__(
        self,
        path: Path,
        lock: IO[str],
        found: ProcessMetadata | None,
        now: ProcessMetadata,
        memory: MemoryFolder,
    ) -> None:
        self.path = path
        self._in_memory = memory.stores
        self._memory = memory.place(path)
        self.previous = found
        """The metadata of the process before this one, None at the first start: fence its ids."""
        self._lock = lock
        self._metadata = now
        self._closed = False

    @staticmethod
    def open(
        state_dir: str | os.PathLike[str],
        application_id: str,
        *,
        sync: str = "none",
        boot_id: str | None = None,
        new_process_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        memory: MemoryFolder = NOTHING_IN_MEMORY,
    ) -> StateDirectory:
        """Lock the folder and take it over; ``memory``: which stores lie in memory, and where.

        Raises StateLockedError, naming the pid, if another process or this one holds it;
        StateFormatError if it belongs to another application or a later release, which leaves its
        content as it is. After a crash of the operating system (another ``boot_id``, no clean
        close, ``sync`` = ``none``) every store in it is marked as distrusted. ConfigError if there
        can be no such folder or it cannot be written to; StateDiskError if its disk is full or
        broken.
        """
        path = Path(os.path.realpath(state_dir)) / application_id
        try:
            with disk_errors(path, "opened"):
                _read_metadata(path, application_id)
                path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
                with suppress(PermissionError):  # another user's folder that this one may write to
                    path.chmod(_PRIVATE)  # also one that is there already
                lock = _acquire(path)
                try:
                    found = _read_metadata(path, application_id)
                    boot = system_boot_id() if boot_id is None else boot_id
                    now = ProcessMetadata(
                        application_id=application_id, process_id=new_process_id(), boot_id=boot
                    )
                    if found is not None:
                        if boot != found.boot_id and not found.clean_close and sync == "none":
                            _distrust_all(path)
                        now = replace(found, boot_id=boot, clean_close=False)
                    _write_metadata(path, now)
                    memory.emptied(path)
                    return StateDirectory(path, lock, found, now, memory)
                except BaseException:
                    _release(path, lock)
                    raise
        except OSError as error:
            raise ConfigError(unusable(path, error)) from error

    @property
    def process_id(self) -> str:
        return self._metadata.process_id

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        return self._metadata.transactional_ids

    def record_transactional_ids(self, ids: Iterable[str]) -> None:
        """Add ids, durably, BEFORE a producer first uses them: a restart fences what is here."""
        known = self._metadata.transactional_ids
        self._replace(transactional_ids=(*known, *sorted(set(ids) - set(known))))

    def forget_transactional_ids(self, ids: Iterable[str]) -> None:
        """Remove ids that were fenced or closed and are not used any more."""
        gone = set(ids)
        self._replace(
            transactional_ids=tuple(
                known for known in self._metadata.transactional_ids if known not in gone
            )
        )

    def input_ids(self, cluster_id: str) -> dict[str, str]:
        """The ids of the topics that the application read from that cluster when it ran here last;
        empty where that is not known."""
        try:
            found = json.loads((self.path / _INPUTS).read_text())
            return dict(found["ids"]) if found["cluster"] == cluster_id else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def record_input_ids(self, cluster_id: str, ids: Mapping[str, str]) -> None:
        """Note them for the next start. StateDiskError."""
        text = json.dumps(
            {"cluster": cluster_id, "ids": dict(ids)},
            indent=1,
            sort_keys=True,
        )
        with disk_errors(self.path, "written"):
            _write_durably(self.path / _INPUTS, text)

    @property
    def loaded_tables(self) -> Path:
        return self.path / _LOADED

    def tasks(self) -> list[TaskId]:
        places = [*_task_folders(self.path), *_task_folders(self._memory)]
        return sorted({task for task, _ in places})

    def stores(self, task: TaskId) -> list[str]:
        folders = (self.path / str(task), self._memory / str(task))
        return sorted({name for folder in folders for name, _, _ in _generations(folder)})

    def store_path(self, task: TaskId, store: str) -> Path:
        """The store's path, existing or not yet; removes older generations (cut-off rebuilds)."""
        folder = (self._memory if store in self._in_memory else self.path) / str(task)
        found = sorted(
            (number, path) for name, number, path in _generations(folder) if name == store
        )
        for _, path in found[:-1]:
            shutil.rmtree(path, ignore_errors=True)
        return found[-1][1] if found else folder / f"{store}-0"

    def rebuild(self, task: TaskId, store: str) -> Path:
        """A fresh folder for the store, at a new path; the old one is removed.

        Close the store in this process first; another process that still has it open writes into a
        removed file, which nobody reads.
        """
        old = self.store_path(task, store)
        fresh = old.with_name(f"{store}-{int(old.name.rpartition('-')[2]) + 1}")
        with disk_errors(fresh, "created"):
            fresh.mkdir(parents=True)
        shutil.rmtree(old, ignore_errors=True)
        return fresh

    def distrust(self, store_path: Path, reason: str) -> None:
        distrust(store_path, reason)

    def distrusted(self, task: TaskId, store: str) -> str | None:
        """Why the store must be rebuilt without even opening it; None if it may be used."""
        try:
            return (self.store_path(task, store) / _DISTRUSTED).read_text(errors="replace")
        except FileNotFoundError:
            return None

    def remove_task(self, task: TaskId) -> None:
        """Take the task's stores out of the folder, at once and as a whole, even if killed; `sweep`
        frees the disk. Readers go on; nobody may write to it. StateDiskError."""
        shutil.rmtree(self._memory / str(task), ignore_errors=True)
        if not (self.path / str(task)).exists():
            return
        place = self.path / _REMOVED / f"{task}-{uuid.uuid4().hex}"
        with disk_errors(place, "removed"):
            place.parent.mkdir(exist_ok=True)
            (self.path / str(task)).rename(place)

    def sweep(self) -> None:
        """Delete what `remove_task` took out, in an earlier life too; may be long. Any thread."""
        for place in (self.path / _REMOVED).glob("*"):
            shutil.rmtree(place, ignore_errors=True)

    def delete(self) -> None:
        """Delete the folder and release it, which may take a while; killed, each store is there or
        not. Nobody may use a store of it. StateDiskError."""
        for task in self.tasks():
            self.remove_task(task)
        self.sweep()
        with disk_errors(self.path, "deleted"):
            for found in list(self.path.iterdir()):
                if found.name == _LOCK:
                    continue  # last: nobody else is in the folder meanwhile
                if found.is_dir() and not found.is_symlink():
                    shutil.rmtree(found)
                else:
                    found.unlink()
            self._closed = True
            try:
                (self.path / _LOCK).unlink()
                with suppress(OSError):  # somebody has made the folder his by now
                    self.path.rmdir()
            finally:
                _release(self.path, self._lock)

    def require_locked(self) -> None:
        """StateDiskError if the folder was deleted or replaced since `open`: our lock is then on a
        file that nobody sees, and another process may take the folder for its own. Quick; often."""
        lost = self._lost()
        if lost:
            raise StateDiskError(
                f"The state folder {self.path} was {lost} under the running instance, so it stops "
                "and others take its tasks over. Nothing is lost: what was committed is in the "
                "changelogs. Start the instance again, its stores are rebuilt. To delete a state "
                "folder, stop its instance first."
            )

    def _lost(self) -> str:
        if self._closed:
            return ""
        try:
            now = os.stat(self.path / _LOCK)
        except FileNotFoundError:
            return "deleted"
        except OSError:
            return ""  # a fault of the disk shows at the next write
        ours = os.fstat(self._lock.fileno())
        return (
            ""
            if (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino)
            else "deleted and made anew"
        )

    def close(self, *, clean: bool = True) -> None:
        """Release the folder; stores in memory are gone. Idempotent.

        ``clean``: flush every store first, against power cuts; only when no worker applies changes
        any more. A folder that is not ours any more (`require_locked`) stays as it is.
        StateDiskError, and released, if the close cannot be noted.
        """
        if self._closed:
            return
        ours = not self._lost()
        self._closed = True
        if ours:
            shutil.rmtree(self._memory, ignore_errors=True)
        try:
            if clean and ours:
                with disk_errors(self.path, "closed in order"):
                    for _, folder in _task_folders(self.path):
                        for _, _, store in _generations(folder):
                            _flush_file(store / "data.mdb")
                    self._replace(clean_close=True)
        finally:
            _release(self.path, self._lock)

    def _replace(self, **changes: Any) -> None:
        changed = replace(self._metadata, **changes)
        with disk_errors(self.path, "written"):
            _write_metadata(self.path, changed)
        self._metadata = changed


@dataclass(frozen=True)
class FolderContent:
    """What a state folder has: the number of stores, and `ProcessMetadata`'s ids."""

    path: Path
    stores: int
    transactional_ids: tuple[str, ...]


def content_of(state_dir: str | os.PathLike[str], application_id: str) -> FolderContent | None:
    """The content of the application's folder, without locking it; None if there is none.
    StateFormatError as `StateDirectory.open`."""
    path = Path(os.path.realpath(state_dir)) / application_id
    if not path.is_dir():
        return None
    found = _read_metadata(path, application_id)
    stores = {
        (task, name) for task, folder in _task_folders(path) for name, *_ in _generations(folder)
    }
    return FolderContent(path, len(stores), () if found is None else found.transactional_ids)


def _task_folders(path: Path) -> Iterator[tuple[TaskId, Path]]:
    if not path.is_dir():
        return
    for folder in path.iterdir():
        try:
            yield TaskId.parse(folder.name), folder
        except ValueError:
            continue


def _generations(task_folder: Path) -> Iterator[tuple[str, int, Path]]:
    if not task_folder.is_dir():
        return
    for path in task_folder.iterdir():
        store, _, number = path.name.rpartition("-")
        if store and number.isdigit() and path.is_dir():
            yield store, int(number), path


def _distrust_all(path: Path) -> None:
    for _, folder in _task_folders(path):
        for _, _, store in _generations(folder):
            reason = "the operating system stopped while the store was open, unflushed"
            _write_durably(store / _DISTRUSTED, reason)


def _acquire(path: Path) -> IO[str]:
    with _lock_guard:
        if _lock_holders.get(path) == os.getpid():
            raise _locked(path, str(os.getpid()))
        lock = open(path / _LOCK, "a+")  # noqa: SIM115  # open until `close`
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            pid = lock.read().strip()
            lock.close()
            raise _locked(path, pid) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        _lock_holders[path] = os.getpid()
        return lock


def _release(path: Path, lock: IO[str]) -> None:
    with _lock_guard:
        lock.close()
        if _lock_holders.get(path) == os.getpid():
            del _lock_holders[path]


def _locked(path: Path, pid: str) -> StateLockedError:
    if pid == str(os.getpid()):
        return StateLockedError(
            f"The state folder {path} is in use by another KafkaStreams of this process: close() "
            "that one first (where its variable is gone: `for one in "
            f"KafkaStreams.running({path.name!r}): one.close()`), or give this instance a "
            "state.dir of its own."
        )
    return StateLockedError(
        f"The state folder {path} is in use by process {pid or '(unknown)'}. Stop that process, or "
        "give this instance a state.dir of its own: two instances of an application on one host "
        "each need one."
    )


def _read_metadata(path: Path, application_id: str) -> ProcessMetadata | None:
    try:
        content = (path / _METADATA).read_bytes()
    except FileNotFoundError:
        return None
    try:
        raw = json.loads(content)
        written_format, owner = int(raw["format"]), raw["application_id"]
        if written_format > FORMAT:
            raise StateFormatError(
                f"The state folder {path} has format {written_format}, this release reads up to "
                f"{FORMAT}. Run the release that wrote it, or choose another state.dir. The folder "
                "was left untouched."
            )
        if owner != application_id:
            raise StateFormatError(
                f"The state folder {path} belongs to application {owner!r}, not to "
                f"{application_id!r}. Choose another state.dir. The folder was left untouched."
            )
        return ProcessMetadata(**{**raw, "transactional_ids": tuple(raw["transactional_ids"])})
    except (KeyError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"{path / _METADATA} cannot be read ({error}): this is no state folder of everflow, or "
            "it was damaged. Choose another state.dir, or remove the folder: its stores are then "
            "rebuilt from their changelogs."
        ) from error


def _write_metadata(path: Path, metadata: ProcessMetadata) -> None:
    _write_durably(path / _METADATA, json.dumps(asdict(metadata), indent=1))


def distrust(store_path: Path, reason: str) -> None:
    """Mark a store, durably: it is to be rebuilt; ``reason`` is shown then. From any process.
    StateDiskError."""
    with disk_errors(store_path, "marked"):
        _write_durably(store_path / _DISTRUSTED, reason)


def _write_durably(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".new")
    with open(draft, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)
    _flush_file(path.parent)


def _flush_file(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
