"""What a member tells of its copies, and the ends a leader compares them with."""

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from everflow.errors import RetriableError
from everflow.instance.copies.known_copies import (
    SETTLE_MS,
    AtRest,
    Copies,
    Freshness,
    IdleTasks,
    Settled,
    StateCleaner,
    StateMaintenance,
)
from everflow.instance.copies.state_updater import FollowedTask
from everflow.instance.restore.restoration import PreparedStore, prepare_store
from everflow.instance.restore.restore_plan import ChangelogState, restore_plan
from everflow.instance.tasks.task import TaskRole, TaskStore
from everflow.instance.topics.end_offsets import EndSums
from everflow.records import StoreChanges, TaskId, TopicPartition
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.store_meta import Owner
from everflow.state.task_directory import StateDirectory
from unit.builders import store_spec
from unit.manual_clock import ManualClock

A, B, C = (TaskId(0, p) for p in range(3))
COUNTS = store_spec("counts")
TOTALS = store_spec("totals")


def changelog(task: TaskId, spec: StoreSpec) -> TopicPartition:
    return TopicPartition(f"app-{spec.changelog}", task.partition)


def write(
    directory: StateDirectory, task: TaskId, spec: StoreSpec, position: int, topic_id: str = "t"
) -> None:
    store = LmdbStore.open(directory.store_path(task, spec.name), kind=spec.kind)
    store.bind("c", topic_id)
    store.load_chunk([b"k"], [b"v"], np.zeros(1, np.int64), position, now_ms=1_000)
    store.close()


def scanned(
    directory: StateDirectory,
    specs: Iterable[StoreSpec],
    end: int = 100,
    clock: ManualClock | None = None,
) -> Copies:
    followed: dict[TaskId, FollowedTask] = {}
    copies = Copies(lambda: followed, list, list, dict, clock=clock or ManualClock(2_000))

    def states(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, ChangelogState]:
        return {
            tp: ChangelogState(start=0, end=end, cluster_id="c", topic_id="t") for tp in partitions
        }

    copies.scan(directory, lambda subtopology: specs, changelog, states)
    return copies


def test_folders_that_are_nobodys_are_reported_with_the_sum_of_their_stores(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path, "app", boot_id="x")
    write(directory, A, COUNTS, 10)
    write(directory, A, TOTALS, 5)
    write(directory, B, COUNTS, 7)
    assert scanned(directory, [COUNTS, TOTALS]).offset_sums() == {A: 15, B: 7}
    directory.close()


def test_a_copy_that_would_be_rebuilt_is_none(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path, "app", boot_id="x")
    write(directory, A, COUNTS, 500)  # beyond the end
    write(directory, B, COUNTS, 7, topic_id="of a topic deleted since")
    write(directory, C, COUNTS, 7)
    directory.distrust(directory.store_path(C, "counts"), "a power cut")
    assert scanned(directory, [COUNTS]).offset_sums() == {}
    directory.close()


def test_copies_know_what_was_committed_of_topics_that_are_still_read(tmp_path: Path) -> None:
    """The user may be forbidden to ask for others, and then no task could be recovered."""
    directory = StateDirectory.open(tmp_path, "app", boot_id="x")
    write(directory, A, COUNTS, 10)
    store = LmdbStore.open(directory.store_path(A, "counts"))
    store.apply(
        StoreChanges("counts", [], [], np.empty(0, np.int64)),
        position=None,
        expected=Owner("", ""),
        batch="i.0.0",
        inputs={"in-0": 7, "dropped-since-0": 9},
    )
    store.close()
    copies = scanned(directory, [COUNTS])
    assert copies.applied({"in", "another"}) == {TopicPartition("in", 0): 7}
    directory.close()


HOUR_MS = 3_600_000


def test_a_copy_that_nobody_follows_is_offered_until_it_means_a_rebuild(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    store = LmdbStore.open(tmp_path / "s", kind="key_value")
    store.bind("c", "t")
    store.load_chunk([b"k"], [b"v"], np.zeros(1, np.int64), 10, now_ms=1_000)
    newer = LmdbStore.open(tmp_path / "newer", kind="key_value")
    newer.load_chunk([b"k"], [b"v"], np.zeros(1, np.int64), 5, now_ms=1_000 + HOUR_MS)
    retention_ms = {"log": 10 * HOUR_MS, "other": 20 * HOUR_MS}
    copies = Copies(dict, list, delete_retention_ms=retention_ms.__getitem__, clock=clock)
    places = [
        TaskStore("s", store.path, TopicPartition("log", 0)),
        TaskStore("newer", newer.path, TopicPartition("other", 0)),
        TaskStore("unlogged", tmp_path / "unlogged", None),
    ]
    copies.rest(A, places)
    offered = {}
    for _ in range(12):
        state = ChangelogState(
            start=0, end=12, cluster_id="c", topic_id="t", delete_retention_ms=10 * HOUR_MS
        )
        plan = restore_plan(store.meta(), state, now_ms=clock.now_ms(), kind="key_value")
        assert (copies.offset_sums() == {A: 15}) is not plan.rebuild, (clock.now_ms(), plan)
        offered[plan.rebuild] = copies.offset_sums()
        clock.advance(HOUR_MS)
    assert offered == {False: {A: 15}, True: {}}
    LmdbStore.close_at(store.path)
    LmdbStore.close_at(newer.path)


def test_a_copy_found_at_the_start_ages_too(tmp_path: Path) -> None:
    directory, clock = StateDirectory.open(tmp_path, "app", boot_id="x"), ManualClock(2_000)
    write(directory, A, COUNTS, 10)
    write(directory, B, COUNTS, 100)
    copies = scanned(directory, [COUNTS], clock=clock)
    clock.advance(23 * HOUR_MS - 1_000)
    assert copies.offset_sums() == {A: 10, B: 100}
    clock.advance(1)
    assert copies.offset_sums() == {B: 100}, (
        "one at the very end of its changelog has missed nothing before the scan"
    )
    clock.advance(1_000)
    assert copies.offset_sums() == {}
    directory.close()


def test_a_copy_forgotten_for_nothing_is_remembered_unless_it_is_newer(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path, "app", boot_id="x")
    write(directory, A, COUNTS, 10)
    copies = scanned(directory, [COUNTS])
    copy = copies.forget(A)
    assert (copy, copies.offset_sums()) == (AtRest(10, copy.until_ms if copy else 0), {})
    assert copy is not None
    copies.remember(A, copy)
    copies.remember(A, AtRest(9))
    assert copies.offset_sums() == {A: 10}
    directory.close()


def test_followed_copies_count_as_they_are_now_and_running_tasks_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "s"
    LmdbStore.open(path, kind="key_value").load_chunk(
        [b"k"], [b"v"], np.zeros(1, np.int64), 10, now_ms=1_000
    )
    followed: dict[TaskId, FollowedTask] = {}
    running: set[TaskId] = set()
    recovering: set[TaskId] = set()
    copies = Copies(
        lambda: followed,
        lambda: running,
        lambda: recovering,
        lambda: {B: 3},
        clock=ManualClock(2_000),
    )
    copies.rest(A, [TaskStore("s", path, TopicPartition("log", 0))])
    assert copies.offset_sums() == {A: 10}
    followed[A] = FollowedTask(TaskRole.STANDBY, 12, 0)
    assert copies.offset_sums() == {A: 12}
    del followed[A]
    recovering |= {A, B, C}
    assert copies.offset_sums() == {A: 10, B: 3, C: 0}, "what restores does not run yet"
    recovering -= {A, B, C}
    running.add(A)
    assert copies.offset_sums() == {}
    LmdbStore.close_at(path)


def test_end_sums_are_read_after_they_are_asked_for_and_summed_per_task() -> None:
    ends = {TopicPartition("x", 0): 10, TopicPartition("y", 0): 5, TopicPartition("x", 1): 7}
    changelogs = {A: [TopicPartition("x", 0), TopicPartition("y", 0)], B: [TopicPartition("x", 1)]}
    sums = EndSums(lambda asked: dict(ends), changelogs, ManualClock())
    assert sums.latest() == {A: 15, B: 7}
    ends[TopicPartition("x", 1)] = 8
    assert sums.latest() == {A: 15, B: 8}, "never older than positions"
    sums.close()


def test_ends_that_cannot_be_read_are_none(caplog: pytest.LogCaptureFixture) -> None:
    def fail(asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        raise RetriableError("away")

    stopping = threading.Event()
    sums = EndSums(fail, {A: [TopicPartition("x", 0)]}, ManualClock(), stopping)
    assert sums.latest() is None
    assert re.fullmatch(".* changelogs .*: away", "\n".join(caplog.messages))
    stopping.set()
    assert sums.latest() is None
    assert len(caplog.messages) == 1, "an instance that ends is refused by its own client"
    sums.close()


def test_a_slow_answer_leaves_the_last_one_for_some_seconds() -> None:
    clock = ManualClock()
    quick = threading.Event()
    quick.set()

    def read(asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        quick.wait(30)
        return dict.fromkeys(asked, 1)

    sums = EndSums(read, {A: [TopicPartition("x", 0)]}, clock)
    assert sums.latest() == {A: 1}
    quick.clear()
    assert sums.latest() == {A: 1}
    clock.advance(10_000)
    assert sums.latest() is None
    quick.set()
    sums.close()


# Stores of quiet tasks stay trusted, and nothing is claimed that is not known (I6).

SPEC = store_spec("counts")
BEGAN_MS = 1_800_000_000_000


class World:
    """A running task whose thread was between batches at ``at_ms``; the group confirms
    heartbeats."""

    def __init__(self, directory: StateDirectory) -> None:
        self.directory = directory
        self.store = self.prepare("i1", 0, BEGAN_MS).store
        self.at_ms, self.epoch, self.heartbeats = BEGAN_MS, 1, 10
        self.running = True
        self.freshness = Freshness(
            self.settled, lambda task, epoch: epoch != self.epoch, lambda: self.heartbeats
        )

    def settled(self) -> list[Settled]:
        return [Settled(A, self.epoch, "i1", (self.store.path,), self.at_ms)][: self.running]

    def prepare(self, incarnation: str, end: int, now_ms: int) -> PreparedStore:
        state = ChangelogState(start=0, end=end, cluster_id="c", topic_id="t")
        return prepare_store(self.directory, A, SPEC, state, incarnation=incarnation, now_ms=now_ms)

    def apply(self, position: int, now_ms: int) -> None:
        self.store.load_chunk(
            [b"k"], [b"v"], np.zeros(1, np.int64), position, incarnation="i1", now_ms=now_ms
        )

    def turn(self, heartbeats: int, at_ms: int | None = None) -> int:
        """What the store says after the group has confirmed so many more."""
        self.heartbeats += heartbeats
        self.at_ms = self.at_ms if at_ms is None else at_ms
        self.freshness.collect()
        self.freshness.note()
        return self.store.meta().updated_ms


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    directory = StateDirectory.open(tmp_path, "app")
    yield World(directory)
    directory.close()


def test_a_task_without_records_for_days_is_not_rebuilt_after_a_kill(world: World) -> None:
    """Exactly once: the position is that of the last record, the commit's marker lies behind it."""
    world.apply(100, BEGAN_MS)
    for hour in range(1, 31):
        world.turn(2, BEGAN_MS + hour * HOUR_MS)
    plan = world.prepare("i2", 101, BEGAN_MS + 31 * HOUR_MS).plan
    assert plan is not None
    assert not plan.rebuild, plan
    assert plan.start == 100


def test_a_claim_counts_after_two_more_heartbeats(world: World) -> None:
    world.turn(0, BEGAN_MS + 1)
    assert world.turn(1, BEGAN_MS + 2) == BEGAN_MS, "it may have been sent before the claim"
    assert world.turn(1, BEGAN_MS + 3) == BEGAN_MS + 1, "the moment of the claim"


def test_a_suspended_machine_claims_nothing_of_the_time_after_its_eviction(world: World) -> None:
    """It wakes up 30 hours later, its thread takes a turn before anybody knows of the eviction."""
    world.turn(0, BEGAN_MS + 1)
    late_ms = BEGAN_MS + 30 * HOUR_MS
    assert world.turn(0, late_ms) == BEGAN_MS
    world.epoch += 1  # lost, and got again
    assert world.turn(5, late_ms + 1) == BEGAN_MS
    assert world.turn(2, late_ms + 2) == late_ms + 1


def test_without_confirmed_heartbeats_nothing_is_claimed_however_long(world: World) -> None:
    assert [world.turn(0, BEGAN_MS + hour * HOUR_MS) for hour in range(30)] == [BEGAN_MS] * 30


def test_the_heartbeats_of_another_membership_prove_nothing(world: World) -> None:
    world.turn(0, BEGAN_MS + 1)
    world.heartbeats = 0
    assert world.turn(0, BEGAN_MS + 2) == BEGAN_MS
    assert world.turn(2, BEGAN_MS + 3) == BEGAN_MS + 2


def test_a_store_with_another_owner_or_that_was_rebuilt_is_left_alone(world: World) -> None:
    world.apply(100, BEGAN_MS)
    world.turn(0, BEGAN_MS + 1)
    world.store.claim("i2")
    assert world.turn(2, BEGAN_MS + 2) == BEGAN_MS
    world.store.close()
    fresh = world.directory.rebuild(A, "counts")
    world.heartbeats += 2
    world.freshness.collect()
    world.freshness.note()
    assert not world.store.path.exists(), "the claim is of the old one"
    assert list(fresh.iterdir()) == []


# State that nobody needs is removed after `state.cleanup.delay.ms`, and nothing else (I5, I6).

DELAY_MS = 600_000.0


def test_only_what_was_idle_for_the_whole_delay_is_due() -> None:
    idle = IdleTasks(DELAY_MS)
    assert idle.after({A, B}, {B}, 7, 0.0) == []
    assert idle.after({A, B}, {B}, 7, DELAY_MS - 1) == []
    assert idle.after({A, B}, {B}, 7, DELAY_MS) == [A]
    assert idle.after({A, B}, set(), 7, DELAY_MS + 1) == [A], "B begins to wait now"
    assert idle.after({A, B}, {A}, 7, DELAY_MS + 2) == []
    assert idle.after({A, B}, {B}, 7, 2 * DELAY_MS) == [], "the delay begins afresh"


def test_nothing_is_due_while_the_group_settles() -> None:
    idle = IdleTasks(DELAY_MS)
    idle.after({A}, set(), 7, 0.0)
    assert idle.after({A}, set(), None, DELAY_MS) == [], "a rebalance, or the instance does not run"
    assert idle.after({A}, set(), 7, DELAY_MS + 1) == [], "its roles may come"
    assert idle.after({A}, set(), 7, DELAY_MS + 1 + SETTLE_MS) == [A]
    assert idle.after({A}, set(), 8, DELAY_MS + 2 + SETTLE_MS) == []


class CleanerWorld:
    def __init__(self, folder: Path) -> None:
        self.directory = StateDirectory.open(folder, "app")
        self.clock = ManualClock(1_000_000)
        self.used: set[TaskId] = set()
        self.generation: int | None = 1
        self.copies = Copies(dict, list, clock=self.clock)
        self.cleaner = self.new_cleaner(DELAY_MS)

    def new_cleaner(self, delay_ms: float) -> StateCleaner:
        return StateCleaner(
            self.directory,
            self.copies,
            lambda: self.used,
            lambda: self.generation,
            self.clock,
            delay_ms,
        )

    def leave_copy(self, task: TaskId) -> LmdbStore:
        store = LmdbStore.open(self.directory.store_path(task, "s"), kind="key_value")
        store.load_chunk([b"k"], [b"v"], np.zeros(1, np.int64), 10, now_ms=self.clock.now_ms())
        self.copies.rest(task, [TaskStore("s", store.path, TopicPartition("log", task.partition))])
        return store

    def wait(self, milliseconds: float) -> bool:
        removed, until_ms = False, self.clock.monotonic_ms() + milliseconds
        while self.clock.monotonic_ms() < until_ms:
            self.clock.advance(1_000)
            removed = self.cleaner.clean() or removed
        return removed


@pytest.fixture
def cleaned(tmp_path: Path) -> Iterator[CleanerWorld]:
    made = CleanerWorld(tmp_path)
    yield made
    made.directory.close()


def test_a_task_in_no_role_goes_with_time(
    cleaned: CleanerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="everflow")
    cleaned.leave_copy(A)
    cleaned.leave_copy(B)
    cleaned.used = {B}
    assert not cleaned.wait(DELAY_MS - 1_000)
    assert cleaned.copies.offset_sums() == {A: 10, B: 10}, "within the delay it is worth having"
    assert cleaned.wait(DELAY_MS / 5)
    assert (cleaned.directory.tasks(), cleaned.copies.offset_sums()) == ([B], {B: 10})
    assert "for 600 s (state.cleanup.delay.ms): 0_0" in caplog.text


def test_after_a_crash_or_an_eviction_everything_waits_for_the_group(cleaned: CleanerWorld) -> None:
    cleaned.leave_copy(A)
    cleaned.generation = None
    assert not cleaned.wait(20 * DELAY_MS)
    cleaned.generation = 2
    assert not cleaned.wait(SETTLE_MS - 1_000)
    cleaned.used = {A}  # the group has given it back because of its copy
    assert not cleaned.wait(20 * DELAY_MS)
    assert cleaned.directory.tasks() == [A]


def test_a_copy_that_a_join_may_have_told_of_stays(cleaned: CleanerWorld) -> None:
    """Between decision and removal a rebalance may give us the task because of the copy."""
    cleaned.leave_copy(A)
    forget = cleaned.copies.forget

    def join_told_of_it(task: TaskId) -> object:
        cleaned.generation = None
        return forget(task)

    cleaned.copies.forget = join_told_of_it  # type: ignore[assignment, method-assign]
    assert not cleaned.wait(2 * DELAY_MS)
    assert (cleaned.directory.tasks(), cleaned.copies.offset_sums()) == ([A], {A: 10})


def test_a_folder_that_stays_is_warned_of(
    cleaned: CleanerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    cleaned.leave_copy(A)
    (cleaned.directory.path / ".removed").write_text("in the way")
    assert not cleaned.wait(2 * DELAY_MS)
    assert cleaned.copies.offset_sums() == {A: 10}
    assert "state of task 0_0" in caplog.text
    (cleaned.directory.path / ".removed").unlink()


def test_a_read_goes_on_while_its_task_is_removed_and_comes_again(cleaned: CleanerWorld) -> None:
    store = cleaned.leave_copy(A)
    with store.snapshot() as view:
        assert cleaned.wait(2 * DELAY_MS)
        again = LmdbStore.open(
            cleaned.directory.store_path(A, "s"), kind="key_value"
        )  # assigned again at this moment
        again.load_chunk([b"k"], [b"new"], np.zeros(1, np.int64), 20)
        LmdbStore.close_removed()
        cleaned.directory.sweep()
        assert list(view.range(None, None)) == [(b"k", b"\0" * 8 + b"v")]
    assert again.path == store.path
    with LmdbStore.open(again.path).snapshot() as view:
        assert list(view.range(None, None)) == [(b"k", b"\0" * 8 + b"new")]
    assert cleaned.directory.tasks() == [A]


def test_the_keeper_frees_the_disk_space_of_this_life_and_of_an_earlier_one(
    cleaned: CleanerWorld,
) -> None:
    removed = cleaned.directory.path / ".removed"
    (removed / "0_5-killed-meanwhile").mkdir(parents=True)
    cleaned.leave_copy(A)
    cleaned.cleaner = cleaned.new_cleaner(0.0)
    keeper = StateMaintenance(
        Freshness(list, lambda task, epoch: False, lambda: 0),
        cleaned.cleaner,
        cleaned.directory.sweep,
        cleaned.clock,
    )
    for _ in range(10):
        cleaned.clock.advance(1_000)
        keeper.turn()
    keeper.close()
    assert (cleaned.directory.tasks(), list(removed.iterdir())) == ([], [])


def test_the_running_stores_are_looked_at_now_and_then(cleaned: CleanerWorld) -> None:
    looks: list[float] = []

    class Counted(Freshness):
        def collect(self) -> None:
            looks.append(cleaned.clock.monotonic_ms())

    freshness = Counted(list, lambda task, epoch: False, lambda: 0)
    keeper = StateMaintenance(freshness, cleaned.cleaner, cleaned.directory.sweep, cleaned.clock)
    for _ in range(600):
        cleaned.clock.advance(100)
        keeper.turn()
    keeper.close()
    assert 3 <= len(looks) <= 7, "two of them make a claim that is proven"


def test_the_loop_does_not_wait_for_an_apply_that_hangs(cleaned: CleanerWorld) -> None:
    """LMDB has one writer: a worker that stands still in its apply holds up whoever else writes."""
    released, noting, heartbeats = threading.Event(), threading.Event(), [0]

    class Hanging(Freshness):
        def note(self) -> None:
            noting.set()
            assert released.wait(30)

    keeper = StateMaintenance(
        Hanging(list, lambda task, epoch: False, lambda: heartbeats[0]),
        cleaned.cleaner,
        cleaned.directory.sweep,
        cleaned.clock,
    )
    for _ in range(200):
        cleaned.clock.advance(1_000)
        keeper.turn()
    assert noting.wait(30)
    released.set()
    keeper.close()
