"""The state updater: copies follow their changelogs to the stable end and no further, say once that they are hot, and are handed
over with their stores open."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from everflow import serdes
from everflow.clock import ManualClock
from everflow.errors import RetriableError
from everflow.records import Int64, TaskId, TopicPartition
from everflow.runtime.restoration import ChangelogState, PreparedStore, RestoreProgress, prepare_store
from everflow.runtime.standby_listener import SuspendReason
from everflow.runtime.state_updater import ROUND_RECORDS, StateUpdater, UpdaterServices
from everflow.runtime.task import StandbyTask, TaskRole, TaskState, TaskStore
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.store_meta import Owner
from everflow.state.task_directory import StateDirectory

A, B = TaskId(0, 0), TaskId(0, 1)
SPEC = StoreSpec("counts", "key_value", serdes.string(), serdes.long())
ACCEPTABLE = 3


def log_of(task: TaskId) -> TopicPartition:
    return TopicPartition("app-counts-changelog", task.partition)


@dataclass(frozen=True)
class Chunk:
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: Int64
    next_position: int


@dataclass
class Round:
    chunks: dict[TopicPartition, Chunk] = field(default_factory=dict)
    gone: dict[TopicPartition, str] = field(default_factory=dict)


class World:
    """Changelogs as lists of values (the key is the offset modulo 10), a stable end each, and a reader of ``step`` records."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1_000_000)
        self.directory = StateDirectory.open(folder, "app", boot_id="x")
        self.stable = {log_of(A): 0, log_of(B): 0}
        self.starts = dict.fromkeys(self.stable, 0)
        self.step = 2
        self.paused = False
        self.positions: dict[TopicPartition, int] = {}
        self.hot: list[TaskId] = []
        self.told: list[str] = []
        self.asked_ends = 0
        self.fault: Exception | None = None
        services = UpdaterServices(
            open_follower=lambda: self,
            states=self.states,
            stable_ends=self.stable_ends,
            prepare=self.prepare,
            distrust=lambda task, store, reason: self.directory.distrust(self.directory.store_path(task, store), reason),
            became_hot=self.hot.append,
            restores=self,
            standbys=lambda: self,
            paused=lambda: self.paused,
        )
        self.updater = StateUpdater(services, self.clock, ACCEPTABLE)

    def task(self, task: TaskId, role: TaskRole = TaskRole.STANDBY) -> StandbyTask:
        return StandbyTask(task, (TaskStore("counts", self.directory.store_path(task, "counts"), log_of(task)),), role)

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
    def states(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, ChangelogState]:
        return {tp: ChangelogState(self.starts[tp], self.stable[tp] + 5, "cluster", "topic") for tp in partitions}

    def stable_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked_ends += 1
        if self.fault is not None:
            raise self.fault
        return {tp: self.stable[tp] for tp in partitions}

    def prepare(self, task: TaskId, store: str, state: ChangelogState, incarnation: str) -> PreparedStore:
        return prepare_store(self.directory, task, SPEC, state, incarnation=incarnation, now_ms=self.clock.now_ms())

    # follower
    def follow(self, starts: Mapping[TopicPartition, int]) -> None:
        self.positions.update(starts)

    def unfollow(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self.positions.pop(tp, None)

    def poll(self, records_max: int, timeout_s: float) -> Round:
        assert records_max == ROUND_RECORDS
        found = Round()
        for tp, at in self.positions.items():
            if at < self.starts[tp]:
                found.gone[tp] = f"offset {at} is no longer in the changelog"
                continue
            end = min(at + self.step, self.stable[tp])
            if end > at:
                keys: list[bytes | None] = [b"%d" % (n % 10) for n in range(at, end)]
                values: list[bytes | None] = [b"%d" % n for n in range(at, end)]
                found.chunks[tp] = Chunk(keys, values, np.arange(at, end, dtype=np.int64), end)
                self.positions[tp] = end
        return found

    def close(self) -> None:
        self.positions.clear()

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

    def batch_loaded(self, progress: RestoreProgress, records: int) -> None:
        self.told.append(f"standby batch {progress.task} {records}")

    def update_suspended(self, progress: RestoreProgress, reason: SuspendReason) -> None:
        self.told.append(f"standby suspended {progress.task} {reason.value}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.updater.close()
    found.directory.close()


def test_a_standby_follows_to_the_stable_end_and_goes_on_from_there(world: World) -> None:
    world.stable[log_of(A)] = 5
    task = world.task(A)
    world.updater.add([task])
    world.rounds(4)
    assert world.content(A) == world.expected(A, 5)
    assert task.state is TaskState.RUNNING
    figures = world.updater.followed()[A]
    assert (figures.role, figures.offset_sum, figures.lag, figures.remaining_s) == (TaskRole.STANDBY, 5, 0, 0.0)
    world.stable[log_of(A)] = 7
    world.rounds()
    assert world.content(A) == world.expected(A, 7)
    assert world.told == ["standby start 0_0", *(f"standby batch 0_0 {records}" for records in (2, 2, 1, 2))]


def test_copies_stand_still_while_paused_say_how_far_behind_they_are_and_may_go(world: World) -> None:
    world.stable[log_of(A)] = 2
    world.updater.add([world.task(A)])
    world.rounds(2)
    world.paused = True
    world.stable[log_of(A)] = 6
    world.rounds(3)
    figures = world.updater.followed()[A]
    assert (figures.offset_sum, figures.lag) == (2, 4), world.told
    world.paused = False
    world.rounds(3)
    assert world.content(A) == world.expected(A, 6)
    world.paused = True
    given: list[StandbyTask] = []
    world.updater.drop([A], SuspendReason.MIGRATED, given.extend)
    world.rounds()
    assert [task.id for task in given] == [A]


def test_a_warm_up_says_that_it_is_hot_and_again_only_after_a_while(world: World) -> None:
    world.stable[log_of(A)] = 9
    world.updater.add([world.task(A, TaskRole.WARMUP)])
    world.rounds(2)
    assert world.hot == [], world.updater.followed()
    assert world.updater.followed()[A].lag == 5
    world.rounds(8)
    assert world.hot == [A]
    assert world.told[0] == "restore start 0_0"
    assert world.told[-1] == "restore end 0_0"
    world.rounds(20)
    assert world.hot == [A]
    world.stable[log_of(A)] = 40
    world.rounds(60)
    assert world.hot[:2] == [A, A]
    assert len(world.hot) <= 3


def test_a_standby_that_begins_hot_has_nothing_to_say_but_one_that_was_cold_has(world: World) -> None:
    world.stable[log_of(A)], world.stable[log_of(B)] = 2, 50
    world.updater.add([world.task(A), world.task(B)])
    world.rounds(40)
    assert world.hot == [B]


def test_a_standby_that_fell_behind_says_again_that_it_is_hot(world: World) -> None:
    """Found by the simulation: the group saw it behind and waited for it until the probing interval."""
    world.updater.add([world.task(A)])
    world.rounds(2)
    assert world.hot == []
    for said in (1, 2):
        world.stable[log_of(A)] += 60
        world.rounds(2)
        assert (world.updater.followed()[A].lag or 0) > ACCEPTABLE, world.updater.followed()
        assert len(world.hot) == said - 1
        world.rounds(40)
        assert world.hot == [A] * said, world.updater.followed()


def test_a_standby_that_falls_behind_again_and_again_says_so_ever_more_seldom(world: World) -> None:
    world.updater.add([world.task(A)])
    world.rounds(2)
    at: list[float] = []
    for _ in range(250):
        world.stable[log_of(A)] += 2 * world.step + ACCEPTABLE
        world.rounds(4)
        at.extend(world.clock.monotonic_ms() for _ in range(len(world.hot) - len(at)))
    between = [later - before for before, later in pairwise(at)]
    assert len(between) >= 4, at
    assert all(later >= 1.8 * before for before, later in pairwise(between)), between


def test_a_standby_made_a_warm_up_says_that_it_is_hot_already(world: World) -> None:
    world.updater.add([world.task(A)])
    world.rounds(2)
    world.updater.set_role(A, TaskRole.WARMUP)
    world.rounds(2)
    assert world.hot == [A]
    assert world.updater.followed()[A].role is TaskRole.WARMUP


def test_promotion_gives_the_task_back_with_its_store_open_for_the_tail(world: World) -> None:
    world.stable[log_of(A)] = 4
    world.updater.add([world.task(A)])
    world.rounds(3)
    store = LmdbStore.open(world.directory.store_path(A, "counts"))
    given: list[Sequence[StandbyTask]] = []
    world.clock.advance(60_000)
    now_ms = world.clock.now_ms()
    world.updater.drop([A], SuspendReason.PROMOTED, given.append)
    world.rounds()
    ((task,),) = given
    assert task.state is TaskState.SUSPENDED
    assert world.told[-1] == "standby suspended 0_0 PROMOTED"
    active = task.recycle((TopicPartition("in", 0),))
    assert LmdbStore.open(active.stores[0].path) is store
    assert store.position == 4
    assert world.positions == {}
    assert world.updater.followed() == {}
    assert store.meta().updated_ms >= now_ms, "it has followed until now"


def test_a_task_never_opened_is_given_back_too(world: World) -> None:
    given: list[Sequence[StandbyTask]] = []
    world.updater.add([world.task(A)])
    world.updater.drop([A], SuspendReason.MIGRATED, given.append)
    world.rounds()
    assert [task.state for task in given[0]] == [TaskState.CREATED]


def test_a_copy_whose_log_begins_behind_it_is_rebuilt(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.stable[log_of(A)] = 4
    world.updater.add([world.task(A)])
    world.rounds(3)
    world.starts[log_of(A)], world.stable[log_of(A)] = 20, 25
    world.rounds(6)
    assert world.content(A) == world.expected(A, 25)
    assert "offset 4 is no longer in the changelog" in caplog.text
    assert world.directory.store_path(A, "counts").name == "counts-1"


def test_nobody_else_writes_into_a_followed_store(world: World) -> None:
    store = LmdbStore.open(world.directory.store_path(A, "counts"), kind="key_value")
    store.claim("orphan")
    world.updater.add([world.task(A)])
    world.rounds()
    assert store.meta().owner == Owner("standby", "")


def test_idle_copies_ask_for_the_ends_some_times_a_second_all_together(world: World) -> None:
    world.updater.add([world.task(A), world.task(B)])
    world.rounds(2)
    before = world.asked_ends
    for _ in range(100):  # a second
        world.clock.advance(10)
        world.updater.run_once()
    assert world.asked_ends - before <= 6


def test_brokers_that_do_not_answer_are_only_waited_for(world: World) -> None:
    world.updater.add([world.task(A)])
    world.rounds()
    world.fault = RetriableError("away")
    with pytest.raises(RetriableError):
        world.rounds()
    world.fault = None
    world.stable[log_of(A)] = 2
    world.rounds(2)
    assert world.content(A) == world.expected(A, 2)
