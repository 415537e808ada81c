"""`RecoveryPorts` over the simulated log and disk; the order of the steps is the real one's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from everflow.errors import RetriableError
from everflow.instance.tasks.task import ActiveTask, TaskStore
from everflow.records import CommittedOffset, TopicPartition
from everflow.retry import StoppedError
from everflow_simulation.disk import SimulatedDisk
from everflow_simulation.log import SimulatedLog
from everflow_simulation.network import Network
from everflow_simulation.scheduler import SimulatedClock

SLICE_MS = 250.0
FENCE_PATIENCE_MS = 30_000.0
FENCE_PAUSE_MS = 20.0


@dataclass(kw_only=True)
class SimulatedRecoveryPorts:
    """See the module; used on a fiber. ``restored(records)`` is called for every replayed slice."""

    log: SimulatedLog
    clock: SimulatedClock
    network: Network
    disk: SimulatedDisk
    rate: float
    stopped: threading.Event
    slowdown: list[float] = field(default_factory=lambda: [1.0])
    restored: Callable[[ActiveTask, int], None] = lambda task, records: None

    def fence(self, transactional_ids: Collection[str]) -> None:
        for transactional_id in sorted(transactional_ids):
            fence(self.log, self.clock, transactional_id)

    def committed(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        self._travel()
        read = self.log.stable_committed if stable else self.log.committed_last
        return read(partitions)

    def purged(self) -> Sequence[TopicPartition]:
        return ()  # nothing is deleted here

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._travel()
        return self.log.ends(partitions)

    def stable_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._travel()
        return self.log.stable_ends(partitions)

    def log_starts(
        self, partitions: Sequence[TopicPartition], *, known: bool = False
    ) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def offsets_since(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def restore(
        self, task: ActiveTask, incarnation: str, targets: Mapping[TopicPartition, int]
    ) -> tuple[TaskStore, ...]:
        """Replay in slices, each in the store with its position."""
        for place in task.stores:
            store = self.disk.store(place.path)
            store.claim(incarnation)
            if place.changelog is None:
                continue
            while store.position < targets[place.changelog]:
                per_slice = max(1, int(self.rate * SLICE_MS / 1000 / self.slowdown[0]))
                part = min(per_slice, targets[place.changelog] - store.position)
                self.clock.park(SLICE_MS * part / per_slice)
                if self.stopped.is_set():
                    raise StoppedError("stopped while restoring")
                end = store.position + part
                content, _ = self.log.read(place.changelog, store.position, end)
                store.load(content, end, incarnation)
                self.restored(task, part)
        return task.stores

    def _travel(self) -> None:
        self.clock.park(self.network.delay() + self.network.delay())


def fence(log: SimulatedLog, clock: SimulatedClock, transactional_id: str) -> None:
    """`kafka.producer.fence`: returns once the id is this caller's."""
    end = clock.monotonic_ms() + FENCE_PATIENCE_MS
    while True:
        try:
            log.init_transactions(transactional_id)
            return
        except RetriableError:
            if clock.monotonic_ms() >= end:
                raise
            clock.park(FENCE_PAUSE_MS)
