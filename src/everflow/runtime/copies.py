"""Every copy on this instance, as the group is told of it: standbys, warm-ups, restores under way, and task folders that are
nobody's (note 005).

A copy that would be rebuilt when it is used (`restoration.restore_plan`) is none, and is not reported.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from everflow.clock import Clock
from everflow.errors import EverflowError
from everflow.records import TaskId, TopicPartition
from everflow.runtime.restoration import ChangelogState, restore_plan
from everflow.runtime.state_updater import FollowedTask
from everflow.runtime.task import TaskStore
from everflow.state.lmdb_store import WINDOW, LmdbStore
from everflow.state.store import StoreSpec

log = logging.getLogger("everflow")


class Folder(Protocol):
    """The part of `StateDirectory` that is needed."""

    def tasks(self) -> list[TaskId]: ...
    def stores(self, task: TaskId) -> list[str]: ...
    def store_path(self, task: TaskId, store: str) -> Path: ...
    def distrusted(self, task: TaskId, store: str) -> str | None: ...


class Copies:
    """`membership.assignor.LocalCopies` of this instance. ``offset_sums`` does no I/O; any thread may call everything.

    ``followed``: the state updater's figures. ``running``: tasks that run active: that the member claims them says enough.
    ``recovering``: active tasks that do not run yet, and ``restored``: positions of stores being restored, summed per task.
    """

    def __init__(
        self,
        followed: Callable[[], Mapping[TaskId, FollowedTask]],
        running: Callable[[], Collection[TaskId]],
        recovering: Callable[[], Collection[TaskId]] = tuple,
        restored: Callable[[], Mapping[TaskId, int]] = dict,
    ) -> None:
        self._followed = followed
        self._running = running
        self._recovering = recovering
        self._restored = restored
        self._lock = threading.Lock()
        self._at_rest: dict[TaskId, int] = {}

    def offset_sums(self) -> Mapping[TaskId, int]:
        """Sum of the changelog positions of every copy that does not run active here."""
        with self._lock:
            sums = dict(self._at_rest)
        sums.update((task, figures.offset_sum) for task, figures in self._followed().items())
        restored = self._restored()
        for task in self._recovering():
            sums[task] = max(sums.get(task, 0), restored.get(task, 0))
        for task in self._running():
            sums.pop(task, None)
        return sums

    def scan(
        self,
        folder: Folder,
        specs: Callable[[int], Iterable[StoreSpec]],
        changelog: Callable[[TaskId, StoreSpec], TopicPartition],
        states: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, ChangelogState]],
        clock: Clock,
    ) -> None:
        """Look at every task folder, once, before the group is joined. A store that cannot be judged is left out: then its task
        looks cold, which costs a restore at most."""
        found: list[tuple[TaskId, StoreSpec, TopicPartition]] = []
        for task in folder.tasks():
            here = set(folder.stores(task))
            for spec in specs(task.subtopology):
                if spec.logging and spec.name in here:
                    found.append((task, spec, changelog(task, spec)))
        try:
            known = states({tp for _, _, tp in found}) if found else {}
        except EverflowError as error:
            log.warning("The copies in the state folder cannot be compared with their changelogs: %s", error)
            return
        sums: dict[TaskId, int] = {}
        for task, spec, tp in found:
            position = _position(folder, task, spec, known[tp], clock.now_ms())
            if position is not None:
                sums[task] = sums.get(task, 0) + position
        with self._lock:
            self._at_rest = sums
        if sums:
            log.info("Copies in the state folder: %s", ", ".join(f"{task} at {sums[task]}" for task in sorted(sums)))

    def rest(self, task: TaskId, stores: Iterable[TaskStore]) -> None:
        """A task ended here, its copy stays on disk: note how far it is. Reads the stores' metadata, a fraction of a ms each."""
        positions = []
        for store in stores:
            if store.changelog is None:
                continue
            try:
                position = LmdbStore.open(store.path).position
            except EverflowError as error:
                log.debug("Copy of task %s: %s", task, error)
                continue
            if position is not None:
                positions.append(position)
        with self._lock:
            if positions:
                self._at_rest[task] = sum(positions)
            else:
                self._at_rest.pop(task, None)

    def forget(self, task: TaskId) -> None:
        """The copy is gone or must not be trusted any more."""
        with self._lock:
            self._at_rest.pop(task, None)


def _position(folder: Folder, task: TaskId, spec: StoreSpec, state: ChangelogState, now_ms: int) -> int | None:
    """How far a store on disk is; None for one that would be rebuilt."""
    path = folder.store_path(task, spec.name)
    distrusted = folder.distrusted(task, spec.name)
    retention_ms = spec.retention_ms if spec.kind == WINDOW else None
    try:
        if distrusted is not None or not (path / "data.mdb").exists():
            return None
        store = LmdbStore.open(path)
        meta = store.meta()
        store.close()
    except EverflowError as error:
        log.warning("The copy of %s in task %s is not used: %s", spec.name, task, error)
        return None
    plan = restore_plan(meta, state, now_ms=now_ms, kind=spec.kind, retention_ms=retention_ms)
    if plan.rebuild:
        log.info("The copy of %s in task %s is not used: %s", spec.name, task, plan.reason)
        return None
    return meta.position
