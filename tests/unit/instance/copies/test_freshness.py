"""Stores of quiet tasks stay trusted, and nothing is claimed that is not known (I6)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from everflow.instance.copies.known_copies import Freshness, Settled
from everflow.instance.restore.restoration import PreparedStore, prepare_store
from everflow.instance.restore.restore_plan import ChangelogState
from everflow.records import TaskId
from everflow.state.task_directory import StateDirectory
from unit.builders import store_spec

A = TaskId(0, 0)
SPEC = store_spec("counts")
HOUR_MS = 3_600_000
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
