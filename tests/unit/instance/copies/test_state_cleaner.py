"""State that nobody needs is removed after `state.cleanup.delay.ms`, and nothing else (I5, I6)."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from everflow.instance.copies.known_copies import (
    SETTLE_MS,
    Copies,
    Freshness,
    IdleTasks,
    StateCleaner,
    StateKeeper,
)
from everflow.instance.tasks.task import TaskStore
from everflow.records import TaskId, TopicPartition
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory
from unit.manual_clock import ManualClock

A, B = TaskId(0, 0), TaskId(0, 1)
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


class World:
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
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.directory.close()


def test_a_task_in_no_role_goes_with_time(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="everflow")
    world.leave_copy(A)
    world.leave_copy(B)
    world.used = {B}
    assert not world.wait(DELAY_MS - 1_000)
    assert world.copies.offset_sums() == {A: 10, B: 10}, "within the delay it is worth having"
    assert world.wait(DELAY_MS / 5)
    assert (world.directory.tasks(), world.copies.offset_sums()) == ([B], {B: 10})
    assert "for 600 s (state.cleanup.delay.ms): 0_0" in caplog.text


def test_after_a_crash_or_an_eviction_everything_waits_for_the_group(world: World) -> None:
    world.leave_copy(A)
    world.generation = None
    assert not world.wait(20 * DELAY_MS)
    world.generation = 2
    assert not world.wait(SETTLE_MS - 1_000)
    world.used = {A}  # the group has given it back because of its copy
    assert not world.wait(20 * DELAY_MS)
    assert world.directory.tasks() == [A]


def test_a_copy_that_a_join_may_have_told_of_stays(world: World) -> None:
    """Between decision and removal a rebalance may give us the task because of the copy."""
    world.leave_copy(A)
    forget = world.copies.forget

    def join_told_of_it(task: TaskId) -> object:
        world.generation = None
        return forget(task)

    world.copies.forget = join_told_of_it  # type: ignore[assignment, method-assign]
    assert not world.wait(2 * DELAY_MS)
    assert (world.directory.tasks(), world.copies.offset_sums()) == ([A], {A: 10})


def test_a_folder_that_stays_is_warned_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.leave_copy(A)
    (world.directory.path / ".removed").write_text("in the way")
    assert not world.wait(2 * DELAY_MS)
    assert world.copies.offset_sums() == {A: 10}
    assert "The state of task 0_0" in caplog.text
    (world.directory.path / ".removed").unlink()


def test_a_read_goes_on_while_its_task_is_removed_and_comes_again(world: World) -> None:
    store = world.leave_copy(A)
    with store.snapshot() as view:
        assert world.wait(2 * DELAY_MS)
        again = LmdbStore.open(
            world.directory.store_path(A, "s"), kind="key_value"
        )  # assigned again at this moment
        again.load_chunk([b"k"], [b"new"], np.zeros(1, np.int64), 20)
        LmdbStore.close_removed()
        world.directory.sweep()
        assert list(view.range(None, None)) == [(b"k", b"\0" * 8 + b"v")]
    assert again.path == store.path
    with LmdbStore.open(again.path).snapshot() as view:
        assert list(view.range(None, None)) == [(b"k", b"\0" * 8 + b"new")]
    assert world.directory.tasks() == [A]


def test_the_keeper_frees_the_disk_space_of_this_life_and_of_an_earlier_one(world: World) -> None:
    removed = world.directory.path / ".removed"
    (removed / "0_5-killed-meanwhile").mkdir(parents=True)
    world.leave_copy(A)
    world.cleaner = world.new_cleaner(0.0)
    keeper = StateKeeper(
        Freshness(list, lambda task, epoch: False, lambda: 0),
        world.cleaner,
        world.directory.sweep,
        world.clock,
    )
    for _ in range(10):
        world.clock.advance(1_000)
        keeper.turn()
    keeper.close()
    assert (world.directory.tasks(), list(removed.iterdir())) == ([], [])


def test_the_running_stores_are_looked_at_now_and_then(world: World) -> None:
    """A look at a thousand takes milliseconds, and the loop turns ten times a second."""
    looks: list[float] = []

    class Counted(Freshness):
        def collect(self) -> None:
            looks.append(world.clock.monotonic_ms())

    freshness = Counted(list, lambda task, epoch: False, lambda: 0)
    keeper = StateKeeper(freshness, world.cleaner, world.directory.sweep, world.clock)
    for _ in range(600):
        world.clock.advance(100)
        keeper.turn()
    keeper.close()
    assert 3 <= len(looks) <= 7, "two of them make a claim that is proven"


def test_the_loop_does_not_wait_for_an_apply_that_hangs(world: World) -> None:
    """LMDB has one writer: a worker that stands still in its apply holds up whoever else writes."""
    released, noting, heartbeats = threading.Event(), threading.Event(), [0]

    class Hanging(Freshness):
        def note(self) -> None:
            noting.set()
            assert released.wait(30)

    keeper = StateKeeper(
        Hanging(list, lambda task, epoch: False, lambda: heartbeats[0]),
        world.cleaner,
        world.directory.sweep,
        world.clock,
    )
    for _ in range(200):
        world.clock.advance(1_000)
        keeper.turn()
    assert noting.wait(30)
    released.set()
    keeper.close()
