"""Global tables: a task for each partition of their topics, followed as copies are (note 026).
Batches never read a store that is being filled: they read the one before it, or wait."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from everflow import metrics as names
from everflow.clock import Clock, Deadline, Running, Spawn, on_thread
from everflow.errors import EverflowError, TableLoadError, TaskTimeoutError
from everflow.instance.copies.state_updater import FollowedTask, StalledCopy, StateUpdater
from everflow.instance.tasks.task import StandbyTask, TaskRole, TaskStore, context_of
from everflow.logs import counted, rebalance_log
from everflow.metrics import Labels, Metrics
from everflow.operators.stored_records import loaded_rows
from everflow.records import TaskId
from everflow.retry import StoppedError, waiting
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_snapshot import KEY_VALUE
from everflow.topology.plan import LoadedTable
from everflow.user_program import ANY_FAILURE, error_text, place

if TYPE_CHECKING:
    from everflow.protocol.messages import LetterGroup, TaskContext


POLL_MS = 50.0


@dataclass
class GlobalTables:
    """The global tables of an instance. ``updater``: follows only ``follows``; None without tasks.
    ``failed``: the instance cannot go on. From any thread, except `prepared`."""

    follows: Sequence[StandbyTask]
    updater: StateUpdater | None
    failed: Callable[[EverflowError], object]
    clock: Clock
    loaded: LoadedTables | None = None
    _targets: dict[TaskId, tuple[Path, int]] = field(default_factory=dict)
    """Each store's last path, and the end of its topic's partition then."""
    _filled: dict[TaskId, tuple[TaskStore, ...]] = field(default_factory=dict)
    _started: bool = False
    _failure: EverflowError | None = None
    _waits: EverflowError | None = None

    def __post_init__(self) -> None:
        self.tasks: Collection[TaskId] = frozenset(task.id for task in self.follows)
        self._loaded = self.loaded or LoadedTables((), Path(), tuple, self.clock)
        self._lock = threading.Lock()

    # --- the updater's side ----------------------------------------------------------------------

    def prepared(self, task: TaskId, path: Path, end: int) -> None:
        """A store was opened. Lookups in it begin once it was read up to ``end``."""
        with self._lock:
            self._targets[task] = path, end

    def refused(self, error: EverflowError) -> None:
        """A record is refused: the instance stops, or does not start."""
        with self._lock:
            started = self._started
            self._failure = self._failure or error
        if started:
            self.failed(error)

    def waits(self, error: EverflowError) -> None:
        with self._lock:
            self._waits = error

    # --- the instance's side ---------------------------------------------------------------------

    def start(self) -> None:
        self._loaded.start()
        if self.updater is not None:
            self.updater.add(self.follows)
            self.updater.start()

    def await_filled(self, stop: threading.Event, patience_ms: float) -> None:
        """Wait until every table was read up to its topic's end at the start, or loaded. Raises the
        error of a refused record; TaskTimeoutError without progress for ``patience_ms``;
        TableLoadError, StoppedError."""
        if self.updater is not None:
            self._await_read(stop, patience_ms)
        self._loaded.await_loaded(stop)

    def _await_read(self, stop: threading.Event, patience_ms: float) -> None:
        rebalance_log.info("Reading global tables: %s", counted(len(self.tasks), "partition"))
        deadline, before = Deadline(self.clock, patience_ms), -1
        with waiting("reading global tables"):
            while not self._read():
                if self._failure is not None:
                    raise self._failure
                if stop.is_set():
                    raise StoppedError("stopped while global tables were read")
                if deadline.expired():
                    raise self._too_late(patience_ms)
                self.clock.wait(stop, POLL_MS)
                read = sum(one.offset_sum for one in self.followed().values())
                if read != before:
                    deadline, before = Deadline(self.clock, patience_ms), read
        with self._lock:
            self._started = True
        if self._failure is not None:
            raise self._failure

    def _too_late(self, patience_ms: float) -> TaskTimeoutError:
        with self._lock:
            why = self._waits or "the brokers do not answer, or a transaction is open in them."
        return TaskTimeoutError(
            f"No more records of the global tables' topics came for {patience_ms / 1000:g} s "
            f"(task.timeout.ms): {why}"
        )

    @property
    def filled(self) -> bool:
        return self._read() and self._loaded.ready

    def _read(self) -> bool:
        self._note_filled()
        with self._lock:
            paths = {store.path for stores in self._filled.values() for store in stores}
            return all(self._targets.get(task, (None, 0))[0] in paths for task in self.tasks)

    def contexts(self) -> list[TaskContext]:
        return [context_of(task, stores) for task, stores in sorted(self.stores().items())]

    def stores(self) -> Mapping[TaskId, tuple[TaskStore, ...]]:
        self._note_filled()
        loaded = self._loaded.stores()
        with self._lock:
            return {**self._filled, **loaded}

    def followed(self) -> Mapping[TaskId, FollowedTask]:
        loaded = self._loaded.followed()
        return loaded if self.updater is None else {**self.updater.followed(), **loaded}

    def stalled(self) -> Mapping[TaskId, StalledCopy]:
        return {} if self.updater is None else self.updater.stalled()

    def close(self) -> None:
        if self.updater is not None:
            self.updater.close()
        self._loaded.close()

    def _note_filled(self) -> None:
        if self.updater is None:
            return
        # In this order: a new path has its measurements, too.
        stores = self.updater.stores()
        followed = self.updater.followed()
        with self._lock:
            for task, opened in stores.items():
                path, end = self._targets.get(task, (None, 0))
                known = followed.get(task)
                if known is not None and opened[0].path == path and known.offset_sum >= end:
                    self._filled[task] = opened


# --- tables that Spark loads (note 033) -----------------------------------------------------------
# Generations are swapped as a whole; a replaced one goes once no batch runs that began before.

CHECKED_EVERY_MS = 1_000.0
CLOSE_S = 5.0


@dataclass(kw_only=True)
class _Loaded:
    """``due_ms``: when it is loaded again (monotonic); ``behind``: the last refresh failed."""

    table: LoadedTable
    path: Path | None = None
    rows: int = 0
    at_ms: int = 0
    due_ms: float = 0.0
    behind: bool = False


@dataclass
class LoadedTables:
    """``folder``: belongs to these tables alone, emptied at the start; ``busy_since``: when the
    running batches began, by the monotonic clock, before they called `stores`. From any thread."""

    tables: Sequence[LoadedTable]
    folder: Path
    busy_since: Callable[[], Iterable[float | None]]
    clock: Clock
    spawn: Spawn = on_thread
    _replaced: list[tuple[Path, float]] = field(default_factory=list)
    _failure: TableLoadError | None = None
    _running: Running | None = None

    def __post_init__(self) -> None:
        self._tables = {table.task: _Loaded(table=table) for table in self.tables}
        self._lock = threading.Lock()
        self._stop, self._ready = threading.Event(), threading.Event()

    @property
    def ready(self) -> bool:
        return not self._tables or self._ready.is_set()

    def start(self) -> None:
        if self._tables:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._running = self.spawn("everflow-loaded-tables", self._run)

    def await_loaded(self, stop: threading.Event) -> None:
        """Wait until all were loaded, without a limit. TableLoadError, StoppedError."""
        if self.ready:
            return
        rebalance_log.info("Loading global tables: %s", counted(len(self._tables), "DataFrame"))
        with waiting("loading global tables in Spark"):
            while not self._ready.is_set():
                if self._failure is not None:
                    raise self._failure
                if stop.is_set():
                    raise StoppedError("stopped while global tables were loaded")
                self.clock.wait(self._ready, POLL_MS)

    def stores(self) -> Mapping[TaskId, tuple[TaskStore, ...]]:
        with self._lock:
            return {
                task: (TaskStore(one.table.store.name, one.path, None),)
                for task, one in self._tables.items()
                if one.path is not None
            }

    def followed(self) -> Mapping[TaskId, FollowedTask]:
        """Measurements of each: its rows; the lag is unknown after a failed refresh."""
        with self._lock:
            return {
                task: FollowedTask(TaskRole.GLOBAL, one.rows, None if one.behind else 0)
                for task, one in self._tables.items()
                if one.path is not None
            }

    def close(self) -> None:
        """Stop loading and remove the stores. Does not wait for a computation of Spark."""
        self._stop.set()
        if self._running is not None:
            self._running.join(CLOSE_S)
        with self._lock:
            paths = [one.path for one in self._tables.values() if one.path is not None]
            paths += [path for path, _ in self._replaced]
        for path in paths:
            LmdbStore.close_at(path)
        if self._tables:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- its own thread --------------------------------------------------------------------------

    def _run(self) -> None:
        for one in self._tables.values():
            try:
                self._load(one)
            except ANY_FAILURE as error:
                self._failure = _refusal(one.table, error)
                self._failure.__cause__ = error
                return
        self._ready.set()
        while not self.clock.wait(self._stop, CHECKED_EVERY_MS):
            now_ms = self.clock.monotonic_ms()
            for one in self._tables.values():
                if one.table.node.refresh_ms is not None and one.due_ms <= now_ms:
                    self._refresh(one)
            self._remove_replaced()

    def _refresh(self, one: _Loaded) -> None:
        try:
            self._load(one)
        except ANY_FAILURE as error:
            one.behind = True
            age_s = (self.clock.now_ms() - one.at_ms) / 1000
            rebalance_log.warning(
                "Global table %s could not be loaded again: %s. Joins go on with the rows loaded "
                "%.0f s ago; the next try is in %g s",
                one.table.store.name,
                error_text(error),
                age_s,
                (one.table.node.refresh_ms or 0) / 1000,
            )

    def _load(self, one: _Loaded) -> None:
        # From the begin of one to the begin of the next, and a pause where it takes longer.
        one.due_ms = self.clock.monotonic_ms() + (one.table.node.refresh_ms or 0)
        rows = loaded_rows(one.table.node)
        if self._stop.is_set():
            return
        if rows.without_key:
            name, skipped = one.table.store.name, counted(rows.without_key, "row")
            rebalance_log.warning("Global table %s: skipped %s without a key", name, skipped)
        at_ms = max(self.clock.now_ms(), one.at_ms + 1)
        path = self.folder / f"{one.table.store.name}-{at_ms}"
        store = LmdbStore.open(path, kind=KEY_VALUE)
        for part in rows.chunks(at_ms):
            store.load_chunk(part.keys, part.values, part.timestamps, at_ms, now_ms=at_ms)
        with self._lock:
            if one.path is not None:
                self._replaced.append((one.path, self.clock.monotonic_ms()))
            one.path, one.rows, one.at_ms, one.behind = path, len(rows.keys), at_ms, False

    def _remove_replaced(self) -> None:
        oldest = min((since for since in self.busy_since() if since is not None), default=None)
        with self._lock:
            free = [one for one in self._replaced if oldest is None or oldest > one[1]]
            self._replaced = [one for one in self._replaced if one not in free]
        for path, _ in free:
            LmdbStore.close_at(path)
            shutil.rmtree(path, ignore_errors=True)


def _refusal(table: LoadedTable, error: BaseException) -> TableLoadError:
    where = f", at {place(table.node.where)}" if table.node.where else ""
    return TableLoadError(
        f"The rows of global table {table.store.name}{where}, could not be loaded: "
        f"{error_text(error)}. Nothing was processed; remove the cause and start again."
    )


GLOBAL = "global"
"""In the place of a stream thread's number."""
_WHY = {
    "failed": "that failed, as their exception handler decided",
    "null-key": "without a key",
}


def count_left_out(
    metrics: Metrics,
    dead_letters: int,
    dropped: Mapping[str, Mapping[str, int]],
    groups: Sequence[LetterGroup],
    lines: Sequence[str],
) -> None:
    counts: dict[Labels, float] = {
        (GLOBAL, node, reason): float(count)
        for node, reasons in dropped.items()
        for reason, count in reasons.items()
    }
    causes = {(one.exception, one.node, one.topic): one for one in groups}
    metrics.add(names.DEAD_LETTERS, dead_letters)
    metrics.add(names.DROPPED_RECORDS, sum(counts.values()))
    metrics.add_series(names.DROPPED, counts)
    metrics.add_series(names.LEFT_OUT, {cause: one.records for cause, one in causes.items()})
    metrics.note(names.LEFT_OUT, {cause: one.sample for cause, one in causes.items()})
    if lines:
        rebalance_log.warning("records skipped by a global table: %s", "; ".join(lines))
    for (_, node, reason), count in counts.items():
        rebalance_log.warning(
            "%s dropped %s %s",
            node,
            counted(int(count), "record"),
            _WHY[reason],
        )
