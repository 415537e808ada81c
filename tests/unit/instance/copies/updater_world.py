"""What a state updater is given in its tests: logs, followers and a folder, and what it said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from everflow.clock import Clock
from everflow.errors import RetriableError
from everflow.instance.copies.state_updater import BUDGETS, StateUpdater, UpdaterServices
from everflow.instance.restore.listeners import RestoreProgress, RestoreTracker, SuspendReason
from everflow.instance.restore.restoration import PreparedStore, prepare_store
from everflow.instance.restore.restore_plan import ChangelogState
from everflow.instance.tasks.task import StandbyTask, TaskRole, TaskStore
from everflow.metrics import Metrics
from everflow.records import Int64, TaskId, TopicPartition
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory
from unit.builders import store_spec
from unit.manual_clock import ManualClock

A, B = TaskId(0, 0), TaskId(0, 1)
SPEC = store_spec("counts")
ACCEPTABLE = 3
TASK_TIMEOUT_MS = 60_000.0


def log_of(task: TaskId) -> TopicPartition:
    return TopicPartition("app-counts-changelog", task.partition)


@dataclass(frozen=True)
class Chunk:
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: Int64
    next_position: int
    records: int


@dataclass
class Round:
    chunks: dict[TopicPartition, Chunk] = field(default_factory=dict)
    gone: dict[TopicPartition, str] = field(default_factory=dict)


class Reader:
    """A follower: ``world.step`` records of each of its logs, within its budget of a round; it
    notes how long it would wait."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.positions: dict[TopicPartition, int] = {}

    @property
    def far_behind(self) -> Mapping[TopicPartition, int]:
        return {tp: at for tp, at in self.positions.items() if tp in self.world.in_bulk}

    def follow(self, starts: Mapping[TopicPartition, int]) -> None:
        self.positions.update(starts)

    def unfollow(self, partitions: Collection[TopicPartition]) -> None:
        if self.world.reader_fault is not None:
            raise self.world.reader_fault
        for tp in partitions:
            self.positions.pop(tp, None)

    def poll(
        self,
        records_max: int,
        bulk_bytes: int,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
    ) -> Round:
        assert (records_max, bulk_bytes) in BUDGETS.values()
        assert all(ends[tp] <= self.world.stable[tp] for tp in self.positions)
        self.world.waits.append(timeout_s)
        found = Round()
        for tp, at in self.positions.items():
            if tp in self.world.damaged:
                raise RetriableError(f"{tp}: a batch that cannot be read", [tp])
            if tp in self.world.mute:
                continue
            if at < self.world.starts[tp]:
                found.gone[tp] = f"offset {at} is no longer in the changelog"
                continue
            end = min(at + min(self.world.step, records_max), self.world.stable[tp])
            if end > at:
                records_max -= end - at
                keys: list[bytes | None] = [b"%d" % (n % 10) for n in range(at, end)]
                values: list[bytes | None] = [b"%d" % n for n in range(at, end)]
                found.chunks[tp] = Chunk(
                    keys,
                    values,
                    np.arange(at, end, dtype=np.int64),
                    end,
                    end - at + self.world.replaced,
                )
                self.positions[tp] = end
        return found

    def rest(self) -> None:
        assert self.positions == {}
        self.world.rested += 1

    def close(self) -> None:
        self.positions.clear()


class World:
    """Changelogs as lists of values (the key is the offset modulo 10), a stable end each, and
    readers of ``step`` records."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.clock = ManualClock(1_000_000)
        self.directory = StateDirectory.open(folder, "app", boot_id="x")
        self.replaced = 0
        """Records that every chunk lacks because it replaces them."""
        self.stable = {log_of(A): 0, log_of(B): 0}
        self.starts = dict.fromkeys(self.stable, 0)
        self.step = 2
        self.readers: list[Reader] = []
        self.waits: list[float] = []
        self.rested = 0
        self.paused = False
        self.mute: set[TopicPartition] = set()
        """Logs of which no records come."""
        self.damaged: set[TopicPartition] = set()
        self.in_bulk: set[TopicPartition] = set()
        """Logs that are read in bulk, or wait for it."""
        self.silent: set[TopicPartition] = set()
        """Logs whose leaders do not say where they end, nor anything else of them."""
        self.slow_ms = 0.0
        """How long such a question takes."""
        self.hot: list[TaskId] = []
        self.lost: list[Mapping[TaskId, object]] = []
        self.doubted = set[str]()
        self.told: list[str] = []
        self.began: list[RestoreProgress] = []
        self.asked_ends = 0
        self.asked_of = Counter[TopicPartition]()
        self.fault: Exception | None = None
        self.reader_fault: Exception | None = None
        self.tracker = RestoreTracker(Metrics())
        self.tracker.listener = self
        services = UpdaterServices(
            open_follower=self.open_reader,
            states=self.states,
            stable_ends=self.stable_ends,
            prepare=self.prepare,
            distrust=lambda task, store, reason: self.directory.distrust(
                self.directory.store_path(task, store), reason
            ),
            became_hot=self.hot.append,
            lost=lambda: self.lost.append(dict(self.updater.followed())),
            restores=self.tracker,
            standbys=lambda: self,
            paused=lambda: self.paused,
            doubt_topics=self.doubted.update,
        )
        self.updater = StateUpdater(services, clock or self.clock, ACCEPTABLE, TASK_TIMEOUT_MS)

    def task(self, task: TaskId, role: TaskRole = TaskRole.STANDBY) -> StandbyTask:
        return StandbyTask(
            task,
            (TaskStore("counts", self.directory.store_path(task, "counts"), log_of(task)),),
            role,
        )

    def open_reader(self) -> Reader:
        self.readers.append(Reader(self))
        return self.readers[-1]

    @property
    def positions(self) -> dict[TopicPartition, int]:
        return {tp: at for reader in self.readers for tp, at in reader.positions.items()}

    def rounds(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance(300)
            self.updater.run_once()

    def content(self, task: TaskId) -> dict[bytes, bytes]:
        with LmdbStore.open(self.directory.store_path(task, "counts")).snapshot() as view:
            return {key: value[8:] for key, value in view.range(None, None)}

    def expected(self, task: TaskId, end: int) -> dict[bytes, bytes]:
        return {b"%d" % (at % 10): b"%d" % at for at in range(self.starts[log_of(task)], end)}

    # services
    def states(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ChangelogState]:
        silent = self.silent.intersection(partitions)
        if silent:
            self.clock.advance(self.slow_ms)
            raise RetriableError(f"no answer about {min(silent)}", silent)
        return {
            tp: ChangelogState(
                start=self.starts[tp],
                end=self.stable[tp] + 5,
                cluster_id="cluster",
                topic_id="topic",
            )
            for tp in partitions
        }

    def stable_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked_ends += 1
        if self.fault is not None:
            raise self.fault
        self.asked_of.update(partitions)
        if self.silent.intersection(partitions):
            self.clock.advance(self.slow_ms)
        return {tp: self.stable[tp] for tp in partitions if tp not in self.silent}

    def prepare(
        self, task: TaskId, store: str, state: ChangelogState, incarnation: str
    ) -> PreparedStore:
        return prepare_store(
            self.directory, task, SPEC, state, incarnation=incarnation, now_ms=self.clock.now_ms()
        )

    # listeners
    def restore_start(self, progress: RestoreProgress) -> None:
        self.told.append(f"restore start {progress.task}")

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        self.told.append(f"restore batch {progress.task} {records}")

    def restore_end(self, progress: RestoreProgress) -> None:
        self.told.append(f"restore end {progress.task}")

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        self.told.append(f"restore suspended {progress.task} {reason}")

    def update_start(self, progress: RestoreProgress) -> None:
        self.told.append(f"standby start {progress.task}")
        self.began.append(progress)

    def batch_loaded(self, progress: RestoreProgress, records: int) -> None:
        self.told.append(f"standby batch {progress.task} {records}")

    def update_suspended(self, progress: RestoreProgress, reason: SuspendReason) -> None:
        self.told.append(f"standby suspended {progress.task} {reason.value}")
