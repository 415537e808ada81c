"""Global tables that Spark loads: a folder for each generation, swapped as a whole (note 033).

A batch is told the newest one when it begins, and reads that until it ends, over all its attempts'
retries anew; who was replaced is removed when no batch that has begun before is under way.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from everflow.clock import Clock
from everflow.errors import TableLoadError
from everflow.location import place
from everflow.moves import counted, moves
from everflow.operators.lookups.loaded_rows import LoadedRows, loaded_rows
from everflow.records import TaskId
from everflow.retry import StoppedError
from everflow.runtime.copies.copied_tasks import FollowedTask
from everflow.runtime.tasks.task import TaskRole, TaskStore
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_snapshot import KEY_VALUE
from everflow.threads import Running, Spawn, on_thread
from everflow.topology.physical_plan import LoadedTable
from everflow.user_texts import error_text
from everflow.waits import waiting

LOOK_MS = 1_000.0
CLOSE_S = 5.0


@dataclass(kw_only=True)
class _Loaded:
    """What is known of one table. ``due_ms``: when it is loaded again, by the monotonic clock;
    ``behind``: its last refresh failed."""

    table: LoadedTable
    path: Path | None = None
    rows: int = 0
    at_ms: int = 0
    due_ms: float = 0.0
    behind: bool = False


class LoadedTables:
    """``folder``: what belongs to these tables alone, emptied at the start; ``busy_since``: when
    the batches that run have begun, by the monotonic clock, before they asked for `stores`. From
    any thread."""

    def __init__(
        self,
        tables: Sequence[LoadedTable],
        folder: Path,
        busy_since: Callable[[], Iterable[float | None]],
        clock: Clock,
        spawn: Spawn = on_thread,
    ) -> None:
        self._tables = {table.task: _Loaded(table=table) for table in tables}
        self._folder, self._busy_since = folder, busy_since
        self._clock, self._spawn = clock, spawn
        self._lock = threading.Lock()
        self._replaced: list[tuple[Path, float]] = []
        self._stop, self._ready = threading.Event(), threading.Event()
        self._failure: TableLoadError | None = None
        self._running: Running | None = None

    @property
    def ready(self) -> bool:
        """Whether every table was loaded once."""
        return not self._tables or self._ready.is_set()

    def start(self) -> None:
        """Begin to load."""
        if self._tables:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._running = self._spawn("everflow-loaded-tables", self._run)

    def await_loaded(self, stop: threading.Event) -> None:
        """Wait until every table was loaded once; however long Spark takes. TableLoadError,
        StoppedError."""
        if self.ready:
            return
        moves.info("Loading global tables: %s", counted(len(self._tables), "DataFrame"))
        with waiting("loading global tables in Spark"):
            while not self._ready.is_set():
                if self._failure is not None:
                    raise self._failure
                if stop.is_set():
                    raise StoppedError("stopped while global tables were loaded")
                self._clock.wait(self._ready, 50.0)

    def stores(self) -> Mapping[TaskId, tuple[TaskStore, ...]]:
        """Where each table lies now."""
        with self._lock:
            return {
                task: (TaskStore(one.table.store.name, one.path, None),)
                for task, one in self._tables.items()
                if one.path is not None
            }

    def followed(self) -> Mapping[TaskId, FollowedTask]:
        """Figures of each: the rows that it has; no lag is known where the last refresh failed."""
        with self._lock:
            return {
                task: FollowedTask(TaskRole.GLOBAL, one.rows, None if one.behind else 0)
                for task, one in self._tables.items()
                if one.path is not None
            }

    def close(self) -> None:
        """End with loading; the stores are closed and removed. What Spark is computing meanwhile is
        not waited for."""
        self._stop.set()
        if self._running is not None:
            self._running.join(CLOSE_S)
        with self._lock:
            paths = [one.path for one in self._tables.values() if one.path is not None]
            paths += [path for path, _ in self._replaced]
        for path in paths:
            LmdbStore.close_at(path)
        if self._tables:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- its own thread --------------------------------------------------------------------------

    def _run(self) -> None:
        for one in self._tables.values():
            try:
                self._load(one)
            except Exception as error:
                self._failure = _refusal(one.table, error)
                self._failure.__cause__ = error
                return
        self._ready.set()
        while not self._clock.wait(self._stop, LOOK_MS):
            now_ms = self._clock.monotonic_ms()
            for one in self._tables.values():
                if one.table.node.refresh_ms is not None and one.due_ms <= now_ms:
                    self._refresh(one)
            self._remove_replaced()

    def _refresh(self, one: _Loaded) -> None:
        try:
            self._load(one)
        except Exception as error:
            one.behind = True
            age_s = (self._clock.now_ms() - one.at_ms) / 1000
            moves.warning(
                "Global table %s could not be loaded again: %s. Records go on meeting what was "
                "loaded %.0f s ago; it is tried again in %g s",
                one.table.store.name,
                error_text(error),
                age_s,
                (one.table.node.refresh_ms or 0) / 1000,
            )

    def _load(self, one: _Loaded) -> None:
        """The next generation, written as a whole before anybody is told."""
        # From the begin of one to the begin of the next, and a pause where it takes longer.
        one.due_ms = self._clock.monotonic_ms() + (one.table.node.refresh_ms or 0)
        rows = loaded_rows(one.table.node)
        if self._stop.is_set():
            return
        if rows.without_key:
            moves.warning(
                "Global table %s: %s without a key left out",
                one.table.store.name,
                counted(rows.without_key, "row"),
            )
        at_ms = max(self._clock.now_ms(), one.at_ms + 1)
        path = self._folder / f"{one.table.store.name}-{at_ms}"
        _write(path, rows, at_ms)
        with self._lock:
            if one.path is not None:
                self._replaced.append((one.path, self._clock.monotonic_ms()))
            one.path, one.rows, one.at_ms, one.behind = path, len(rows.keys), at_ms, False

    def _remove_replaced(self) -> None:
        """Those that no batch can read any more."""
        oldest = min((since for since in self._busy_since() if since is not None), default=None)
        with self._lock:
            free = [one for one in self._replaced if oldest is None or oldest > one[1]]
            self._replaced = [one for one in self._replaced if one not in free]
        for path, _ in free:
            LmdbStore.close_at(path)
            shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, rows: LoadedRows, at_ms: int) -> None:
    store = LmdbStore.open(path, kind=KEY_VALUE)
    for part in rows.chunks(at_ms):
        store.load_chunk(part.keys, part.values, part.timestamps, at_ms, now_ms=at_ms)


def _refusal(table: LoadedTable, error: Exception) -> TableLoadError:
    where = f", at {place(table.node.where)}" if table.node.where else ""
    return TableLoadError(
        f"The rows of global table {table.store.name}{where}, could not be loaded: "
        f"{error_text(error)}. Nothing was processed; remove the cause and start again."
    )
