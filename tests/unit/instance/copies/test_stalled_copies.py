"""A copy whose log's leader is silent waits by itself, counted and named (note 051)."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from everflow.errors import RetriableError
from everflow.instance.describe import statuses
from everflow.instance.restore.listeners import SuspendReason
from everflow.instance.tasks.task import TaskRole, TaskState
from everflow.instance.thread.retry_policy import troubles_of
from unit.instance.copies.updater_world import TASK_TIMEOUT_MS, A, B, World, log_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.updater.close()
    found.directory.close()


def followed(world: World) -> None:
    world.updater.add([world.task(A), world.task(B)])
    world.rounds(2)


def grow(world: World, records: int = 2) -> None:
    for log in world.stable:
        world.stable[log] += records


def test_a_silent_leader_holds_up_its_copy(world: World, caplog: pytest.LogCaptureFixture) -> None:
    followed(world)
    world.silent, world.slow_ms = {log_of(B)}, 1_000
    before = world.asked_of[log_of(B)]
    for _ in range(100):  # half a minute
        grow(world)
        world.rounds()
    assert world.content(A) == world.expected(A, world.stable[log_of(A)]), "the other one goes on"
    assert 2 < world.asked_of[log_of(B)] - before < 10, "it rests, longer each time"
    (stalled,) = world.updater.stalled().items()
    assert (stalled[0], stalled[1].role) == (B, TaskRole.STANDBY)
    assert stalled[1].stalled.count == world.asked_of[log_of(B)] - before
    assert f"the leader of {log_of(B)} does not answer" in stalled[1].stalled.cause
    assert f"Task {B} (standby) cannot follow its changelogs: the leader of" in caplog.text
    assert str(A) not in caplog.text
    world.silent = set()
    world.rounds(300)
    assert world.updater.stalled() == {}
    assert world.content(B) == world.expected(B, world.stable[log_of(B)])


def test_a_log_that_has_records_of_which_none_come_is_named_after_a_while(world: World) -> None:
    followed(world)
    world.mute = {log_of(B)}
    for _ in range(30):  # nine seconds
        grow(world)
        world.rounds()
    assert world.updater.stalled() == {}
    for _ in range(40):  # and twelve more
        grow(world)
        world.rounds()
    stalled = world.updater.stalled()[B].stalled
    assert stalled.count == 2
    assert f"{log_of(B)} has more records" in stalled.cause
    assert world.content(A) == world.expected(A, world.stable[log_of(A)])
    world.mute = set()
    world.rounds()
    assert world.updater.stalled() == {}


def test_who_waits_its_turn_or_has_nothing_or_is_paused_is_not_stalled(world: World) -> None:
    followed(world)
    world.mute = {log_of(B)}
    world.rounds(100)
    assert world.updater.stalled() == {}, "there is nothing to read"
    world.stable[log_of(B)] += 2
    world.in_bulk = {log_of(B)}
    world.rounds(100)
    assert world.updater.stalled() == {}, "others are read before it"
    world.in_bulk, world.paused = set(), True
    world.rounds(100)
    world.paused = False
    world.rounds(10)
    assert world.updater.stalled() == {}, "nobody reads while the instance is paused"
    world.rounds(40)
    assert set(world.updater.stalled()) == {B}


def test_a_copy_that_cannot_be_opened_is_tried_by_itself_and_shown(world: World) -> None:
    world.silent, world.slow_ms = {log_of(B)}, 10_000
    grow(world)
    world.updater.add([world.task(A), world.task(B, TaskRole.WARMUP)])
    world.rounds(10)
    assert world.content(A) == world.expected(A, 2)
    stalled = world.updater.stalled()
    assert (set(stalled), stalled[B].role) == ({B}, TaskRole.WARMUP)
    now_ms, wall_ms = world.clock.monotonic_ms(), world.clock.now_ms()
    shown = statuses(
        *((), (), {}, world.updater.followed(), (), {}),
        troubles=troubles_of(
            {task: copy.stalled for task, copy in stalled.items()}, now_ms, wall_ms
        ),
        stalled_copies={task: copy.role for task, copy in stalled.items()},
    )
    assert (shown[B].role, shown[B].state) == (TaskRole.WARMUP, TaskState.CREATED)
    trouble = shown[B].trouble
    assert trouble is not None
    assert f"no answer about {log_of(B)}" in trouble.text
    assert shown[A].trouble is None
    world.silent = set()
    world.rounds(400)
    assert world.content(B) == world.expected(B, 2)
    assert world.updater.stalled() == {}


def test_a_log_that_cannot_be_read_is_its_own_copys_and_holds_no_other_up(world: World) -> None:
    world.updater.add([world.task(A, TaskRole.STANDBY), world.task(B, TaskRole.WARMUP)])
    world.rounds(2)
    world.damaged = {log_of(B)}
    for _ in range(50):
        grow(world)
        with pytest.raises(RetriableError):
            world.rounds()
    assert world.content(A) == world.expected(A, world.stable[log_of(A)])
    assert set(world.updater.stalled()) == {B}
    assert "a batch that cannot be read" in world.updater.stalled()[B].stalled.cause


def test_brokers_that_are_all_away_make_every_copy_stalled_and_none_rests(world: World) -> None:
    followed(world)
    world.fault = RetriableError("away")
    for _ in range(20):
        with pytest.raises(RetriableError):
            world.rounds()
    assert {t: one.stalled.count for t, one in world.updater.stalled().items()} == {A: 20, B: 20}
    world.fault = None
    grow(world)
    world.rounds(2)
    assert world.updater.stalled() == {}
    assert world.content(B) == world.expected(B, 2)


def test_a_copy_whose_time_is_over_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    followed(world)
    world.silent, world.slow_ms = {log_of(B)}, 1_000
    for _ in range(int(3 * TASK_TIMEOUT_MS / 300)):
        grow(world)
        world.rounds()
    errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(errors) == 1
    assert f"Task {B} made no progress for" in errors[0]
    assert "without this copy" in errors[0]
    assert world.content(A) == world.expected(A, world.stable[log_of(A)])


def test_a_copy_that_was_given_away_is_no_matter_any_more(world: World) -> None:
    followed(world)
    world.silent = {log_of(B)}
    world.rounds(3)
    assert set(world.updater.stalled()) == {B}
    world.updater.drop([B], SuspendReason.MIGRATED, lambda _: None)
    world.rounds()
    assert world.updater.stalled() == {}
