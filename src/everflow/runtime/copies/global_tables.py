"""Global tables on an instance: a task for each partition of their topics, followed as copies are.

The tasks are nobody's to assign, and their stores' changelog is the topic itself (note 026). What
batches look up is never a store that is being filled: while one is, at the start or because the
topic lost what it would have to read, they are told of the one before, or wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from everflow.clock import Clock, Deadline
from everflow.errors import EverflowError, TaskTimeoutError
from everflow.moves import counted, moves
from everflow.records import TaskId
from everflow.retry import StoppedError
from everflow.runtime.copies.copied_tasks import FollowedTask
from everflow.runtime.copies.loaded_tables import LoadedTables
from everflow.runtime.copies.stalled_copies import StalledCopy
from everflow.runtime.copies.state_updater import StateUpdater
from everflow.runtime.tasks.task import StandbyTask, TaskStore, context_of
from everflow.waits import waiting

if TYPE_CHECKING:
    from everflow.runtime.commit.batch import TaskContext

LOOK_MS = 50.0


class GlobalTables:
    """See the module. ``updater`` follows nothing but ``tasks``; None where there are none;
    ``loaded``: those that Spark loads.
    ``failed``: the instance cannot go on. From any thread, but for `prepared`."""

    def __init__(
        self,
        tasks: Sequence[StandbyTask],
        updater: StateUpdater | None,
        failed: Callable[[EverflowError], None],
        clock: Clock,
        loaded: LoadedTables | None = None,
    ) -> None:
        self.tasks: Collection[TaskId] = frozenset(task.id for task in tasks)
        self._given = tasks
        self._updater = updater
        self._failed = failed
        self._clock = clock
        self._loaded = loaded
        self._lock = threading.Lock()
        self._targets: dict[TaskId, tuple[Path, int]] = {}
        """Where each store was opened last, and the end of its topic's partition then."""
        self._filled: dict[TaskId, tuple[TaskStore, ...]] = {}
        """The stores that were read up to that end."""
        self._started = False
        self._failure: EverflowError | None = None
        self._waits: EverflowError | None = None

    # --- the updater's side ----------------------------------------------------------------------

    def prepared(self, task: TaskId, path: Path, end: int) -> None:
        """A store was opened, to be read up to ``end`` before anybody looks things up in it."""
        with self._lock:
            self._targets[task] = path, end

    def refused(self, error: EverflowError) -> None:
        """A record cannot be taken: the instance stops, or does not start."""
        with self._lock:
            told = self._started
            self._failure = self._failure or error
        if told:
            self._failed(error)

    def waits(self, error: EverflowError) -> None:
        """A record cannot be taken now: it is tried again."""
        with self._lock:
            self._waits = error

    # --- the instance's side ---------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read, and to load."""
        if self._loaded is not None:
            self._loaded.start()
        if self._updater is not None:
            self._updater.add(self._given)
            self._updater.start()

    def await_filled(self, stop: threading.Event, patience_ms: float) -> None:
        """Wait until every table was read up to the end that its topic had at the start, or loaded.
        Raises what refused a record, TaskTimeoutError without any progress of reading for
        ``patience_ms``, TableLoadError, StoppedError."""
        if self._updater is not None:
            self._await_read(stop, patience_ms)
        if self._loaded is not None:
            self._loaded.await_loaded(stop)

    def _await_read(self, stop: threading.Event, patience_ms: float) -> None:
        moves.info("Reading global tables: %s", counted(len(self.tasks), "partition"))
        deadline, before = Deadline(self._clock, patience_ms), -1
        with waiting("reading global tables"):
            while not self._read():
                if self._failure is not None:
                    raise self._failure
                if stop.is_set():
                    raise StoppedError("stopped while global tables were read")
                if deadline.expired():
                    raise self._too_late(patience_ms)
                self._clock.wait(stop, LOOK_MS)
                read = sum(one.offset_sum for one in self.followed().values())
                if read != before:
                    deadline, before = Deadline(self._clock, patience_ms), read
        with self._lock:
            self._started = True
        if self._failure is not None:
            raise self._failure

    def _too_late(self, patience_ms: float) -> TaskTimeoutError:
        with self._lock:
            waits = self._waits
        text = (
            f"Nothing more of the topics of global tables came for {patience_ms / 1000:g} s "
            f"(task.timeout.ms): "
        )
        if waits is None:
            return TaskTimeoutError(
                f"{text}the brokers do not answer, or a transaction is open in them."
            )
        return TaskTimeoutError(f"{text}{waits}")

    @property
    def filled(self) -> bool:
        """Whether every table may be looked up in as it is followed now."""
        return self._read() and (self._loaded is None or self._loaded.ready)

    def _read(self) -> bool:
        self._look()
        with self._lock:
            return all(
                task in self._targets
                and self._targets[task][0] in (store.path for store in self._filled.get(task, ()))
                for task in self.tasks
            )

    def contexts(self) -> list[TaskContext]:
        """What batches look up, as their workers see it, by partition."""
        return [context_of(task, stores) for task, stores in sorted(self.stores().items())]

    def stores(self) -> Mapping[TaskId, tuple[TaskStore, ...]]:
        """The stores that may be read."""
        self._look()
        loaded = {} if self._loaded is None else self._loaded.stores()
        with self._lock:
            return {**self._filled, **loaded}

    def followed(self) -> Mapping[TaskId, FollowedTask]:
        """Figures of each task."""
        loaded = {} if self._loaded is None else self._loaded.followed()
        return loaded if self._updater is None else {**self._updater.followed(), **loaded}

    def stalled(self) -> Mapping[TaskId, StalledCopy]:
        """Those that do not get on, and why."""
        return {} if self._updater is None else self._updater.stalled()

    def close(self) -> None:
        """End with following; the stores are closed."""
        if self._updater is not None:
            self._updater.close()
        if self._loaded is not None:
            self._loaded.close()

    def _look(self) -> None:
        if self._updater is None:
            return
        # In this order: whoever sees a new place sees figures of it, too.
        stores = self._updater.stores()
        followed = self._updater.followed()
        with self._lock:
            for task, opened in stores.items():
                path, end = self._targets.get(task, (None, 0))
                known = followed.get(task)
                if known is not None and opened[0].path == path and known.offset_sum >= end:
                    self._filled[task] = opened
