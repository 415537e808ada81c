"""Recovery's ports on the real cluster and the local stores (`recovery.RecoveryPorts`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everflow.clock import Clock
from everflow.instance.restore import restoration
from everflow.instance.restore.changelogs import Changelogs
from everflow.instance.restore.listeners import RestoreListener
from everflow.instance.restore.restoration import RestoreJob, prepare_store
from everflow.instance.tasks.task import ActiveTask, TaskStore
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.writing.transaction import fence_all
from everflow.records import CommittedOffset, TopicPartition
from everflow.retry import StoppedError
from everflow.state.store import StoreSpec
from everflow.state.task_directory import StateDirectory

FENCE_TIMEOUT_S = 30.0
COMMITTED_TIMEOUT_S = 5.0
"""Of waiting for an open transaction."""
KNOWN_STARTS_S = 1.0


def _reused(spec: StoreSpec) -> StoreSpec | None:
    return None if spec.source_topic is None else spec


@dataclass(kw_only=True)
class ClusterRecoveryPorts:
    """See `RecoveryPorts`; safe from several recovering threads (each replay has its own reader).
    ``stopped`` is asked between the chunks of a replay, and ends it."""

    admin: ClusterAdmin
    group: str
    producer_config: Mapping[str, Any]
    reader_config: Mapping[str, Any]
    fetch_bytes: int
    directory: StateDirectory
    purged: Callable[[], Sequence[TopicPartition]]
    specs: Callable[[int], Sequence[StoreSpec]]
    changelogs: Changelogs
    state_sync: str
    clock: Clock
    listener: RestoreListener
    stopped: Callable[[], bool]

    def fence(self, transactional_ids: Collection[str]) -> None:
        fence_all(self.producer_config, transactional_ids, FENCE_TIMEOUT_S)

    def committed(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        return self.admin.committed(self.group, partitions, COMMITTED_TIMEOUT_S, stable=stable)

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.changelogs.log_ends(partitions)

    def stable_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.changelogs.stable_ends(partitions)

    def log_starts(
        self, partitions: Sequence[TopicPartition], *, known: bool = False
    ) -> Mapping[TopicPartition, int]:
        if known:
            return self.admin.known_starts(partitions, KNOWN_STARTS_S)
        return self.admin.list_offsets(partitions, "earliest", "read_uncommitted")

    def offsets_since(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> Mapping[TopicPartition, int]:
        return self.admin.offsets_for_time(partitions, time_ms, "read_uncommitted")

    def restore(
        self, task: ActiveTask, incarnation: str, targets: Mapping[TopicPartition, int]
    ) -> tuple[TaskStore, ...]:
        specs = {spec.name: spec for spec in self.specs(task.id.subtopology)}
        changelogs = [store.changelog for store in task.stores if store.changelog is not None]
        states = self.changelogs.states(changelogs, targets)
        stores: list[TaskStore] = []
        jobs: list[RestoreJob] = []
        for store in task.stores:
            state = None if store.changelog is None else states[store.changelog]
            prepared = prepare_store(
                self.directory,
                task.id,
                specs[store.name],
                state,
                incarnation=incarnation,
                now_ms=self.clock.now_ms(),
                sync=self.state_sync,
            )
            stores.append(TaskStore(store.name, prepared.store.path, store.changelog))
            if prepared.plan is not None and store.changelog is not None:
                jobs.append(
                    RestoreJob(
                        task=task.id,
                        store_name=store.name,
                        store=prepared.store,
                        changelog=store.changelog,
                        plan=prepared.plan,
                        incarnation=incarnation,
                        reused=_reused(specs[store.name]),
                        left_out=self.changelogs.left_out(store.changelog, prepared.plan.end),
                    )
                )
        self._replay(jobs)
        return tuple(stores)

    def _replay(self, jobs: Sequence[RestoreJob]) -> None:
        with LogReader(self.reader_config, latest=True, fetch_bytes=self.fetch_bytes) as reader:
            done = restoration.restore_all(
                jobs, reader, clock=self.clock, listener=self.listener, stopped=self.stopped
            )
        if any(not progress.done for progress in done) or len(done) < len(jobs):
            raise StoppedError("stopped while restoring")
