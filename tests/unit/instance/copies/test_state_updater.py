"""Copies follow their changelogs to the stable end, say once that they are hot, are handed over."""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from everflow.clock import SystemClock
from everflow.errors import RetriableError
from everflow.instance.copies.state_updater import BUDGETS
from everflow.instance.describe import statuses
from everflow.instance.restore.listeners import SuspendReason
from everflow.instance.tasks.task import StandbyTask, TaskRole, TaskState
from everflow.instance.thread.retry_policy import troubles_of
from everflow.records import TaskId, TopicPartition
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner
from everflow.testing.waiting import wait_until
from unit.instance.copies.updater_world import ACCEPTABLE, TASK_TIMEOUT_MS, A, B, World, log_of


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
    assert (figures.role, figures.offset_sum, figures.lag, figures.remaining_s) == (
        TaskRole.STANDBY,
        5,
        0,
        0.0,
    )
    world.stable[log_of(A)] = 7
    world.rounds()
    assert world.content(A) == world.expected(A, 7)
    assert world.told == [
        "standby start 0_0",
        *(f"standby batch 0_0 {records}" for records in (2, 2, 1, 2)),
    ]


def test_copies_stand_still_while_paused_say_how_far_behind_and_may_go(world: World) -> None:
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


def test_a_standby_begins_with_what_it_has_to_copy_not_at_a_hundred_percent(world: World) -> None:
    world.stable[log_of(A)] = 9
    world.updater.add([world.task(A)])
    world.rounds()
    (began,) = world.began
    assert (began.start, began.position) == (0, 0)
    assert began.end >= 9


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


def test_a_standby_that_begins_hot_has_nothing_to_say_a_cold_one_has(world: World) -> None:
    world.stable[log_of(A)], world.stable[log_of(B)] = 2, 50
    world.updater.add([world.task(A), world.task(B)])
    world.rounds(40)
    assert world.hot == [B]


def test_a_standby_that_fell_behind_says_again_that_it_is_hot(world: World) -> None:
    """Found by the simulation: the group waited for it until the probing interval."""
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


def test_a_copy_before_its_log_is_rebuilt(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.stable[log_of(A)] = 4
    world.updater.add([world.task(A)])
    world.rounds(3)
    world.starts[log_of(A)], world.stable[log_of(A)] = 20, 25
    world.rounds(6)
    assert world.content(A) == world.expected(A, 25)
    assert "offset 4 is no longer" in caplog.text
    assert world.directory.store_path(A, "counts").name == "counts-1"
    assert world.doubted == {log_of(A).topic}, "it may be another topic"


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


def rounds_until_hot(world: World, standbys: int) -> tuple[int, dict[TaskId, int]]:
    """Rounds until a warm-up is hot beside standbys that are as far behind, and how far those have
    come by then."""
    others, warmup = [TaskId(0, number) for number in range(standbys)], TaskId(0, 9)
    world.step = 10_000
    for task in (*others, warmup):
        world.stable[log_of(task)], world.starts[log_of(task)] = 60_000, 0
    world.updater.add([*(world.task(task) for task in others), world.task(warmup, TaskRole.WARMUP)])
    for count in range(1, 50):
        world.rounds()
        if warmup in world.hot:
            return count, {task: world.updater.followed()[task].offset_sum for task in others}
    raise AssertionError(f"not hot after {count} rounds: {world.updater.followed()}")


def test_standbys_far_behind_do_not_slow_a_warm_up_down_and_are_not_starved(tmp_path: Path) -> None:
    found = {}
    for standbys in (0, 5):
        world = World(tmp_path / str(standbys))
        found[standbys] = rounds_until_hot(world, standbys)
        world.updater.close()
        world.directory.close()
    assert found[5][0] == found[0][0], found
    records, _ = BUDGETS[TaskRole.STANDBY]
    assert sum(found[5][1].values()) >= (found[5][0] - 1) * records, found


def test_idle_readers_share_one_wait_and_busy_ones_do_not_wait(world: World) -> None:
    world.updater.add([world.task(A), world.task(B, TaskRole.WARMUP)])
    world.rounds()
    assert world.waits == [0.025, 0.025]
    world.stable[log_of(A)] = 3 * world.step
    world.waits.clear()
    world.rounds(5)
    assert world.waits == [0.025, 0.025, *([0.0] * 6), 0.025, 0.025], (
        "the round behind the last records is the first to wait again"
    )


def test_another_role_goes_on_where_the_copy_is(world: World) -> None:
    world.stable[log_of(A)] = 10
    world.updater.add([world.task(A)])
    world.rounds(2)
    world.updater.set_role(A, TaskRole.WARMUP)
    world.rounds(6)
    assert [list(reader.positions) for reader in world.readers] == [[], [log_of(A)]]
    assert world.content(A) == world.expected(A, 10)
    assert world.updater.followed()[A].offset_sum == 10


def test_a_promotion_in_the_middle_takes_the_store_as_it_is(world: World) -> None:
    world.stable[log_of(A)] = 100
    world.updater.add([world.task(A, TaskRole.WARMUP)])
    world.rounds()
    opened_ms = world.clock.now_ms()
    world.rounds(2)
    given: list[Sequence[StandbyTask]] = []
    world.updater.drop([A], SuspendReason.PROMOTED, given.append)
    world.rounds()
    ((task,),) = given
    store = LmdbStore.open(task.stores[0].path)
    assert store.position == 6
    assert store.meta().updated_ms <= opened_ms, "not at the end since"
    assert world.content(A) == world.expected(A, 6)


@pytest.mark.parametrize("others", [0, 1])
def test_a_reader_without_copies_gives_back_what_it_holds(world: World, others: int) -> None:
    world.updater.add([world.task(A, TaskRole.WARMUP), *([world.task(B)] * others)])
    world.rounds(2)
    assert world.rested == 0
    world.updater.drop([A], SuspendReason.PROMOTED, lambda given: None)
    world.rounds(2)
    assert world.rested == 2


def test_a_warm_up_that_goes_away_early_is_told_as_suspended(world: World) -> None:
    world.stable[log_of(A)] = 100
    world.updater.add([world.task(A, TaskRole.WARMUP)])
    world.rounds(2)
    world.updater.drop([A], SuspendReason.MIGRATED, lambda given: None)
    world.rounds()
    assert world.told[0] == "restore start 0_0"
    assert world.told[-1] == "restore suspended 0_0 MIGRATED"
    assert "restore end 0_0" not in world.told


@pytest.mark.parametrize("reason", list(SuspendReason))
def test_why_a_followed_standby_is_suspended(world: World, reason: SuspendReason) -> None:
    world.stable[log_of(A)] = 4
    world.updater.add([world.task(A)])
    world.rounds()
    assert world.updater.followed()[A].role is TaskRole.STANDBY, "it is open"
    world.updater.drop([A], reason, lambda given: None)
    world.rounds()
    assert world.told[-1] == f"standby suspended 0_0 {reason.value}"


def test_records_that_a_chunk_replaces_count(world: World) -> None:
    world.replaced, world.stable[log_of(A)] = 7, 4
    world.updater.add([world.task(A)])
    world.rounds(3)
    assert world.told == ["standby start 0_0", "standby batch 0_0 9", "standby batch 0_0 9"]


def broken(*_: object) -> None:
    raise RuntimeError("the user's own fault")


@pytest.mark.parametrize("role", [TaskRole.STANDBY, TaskRole.WARMUP])
def test_listeners_that_raise_stop_nothing(
    world: World, role: TaskRole, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("restore_start", "batch_restored", "restore_end", "restore_suspended"):
        monkeypatch.setattr(World, name, broken)
    for name in ("update_start", "batch_loaded", "update_suspended"):
        monkeypatch.setattr(World, name, broken)
    world.stable[log_of(A)] = 10
    world.updater.add([world.task(A, role), world.task(B, role)])
    world.rounds(2)
    given: list[Sequence[StandbyTask]] = []
    world.updater.drop([B], SuspendReason.PROMOTED, given.append)
    world.rounds(8)
    assert world.content(A) == world.expected(A, 10)
    assert [task.id for task in given[0]] == [B]
    assert f"{Path(__file__).name}:" in caplog.text
    assert "RuntimeError: the user's own fault" in caplog.text


def test_tasks_are_given_back_whatever_the_reader_says(world: World) -> None:
    world.stable[log_of(A)] = 4
    world.updater.add([world.task(A), world.task(B)])
    world.rounds(3)
    given: list[Sequence[StandbyTask]] = []
    world.updater.drop([A, B], SuspendReason.PROMOTED, given.append)
    world.reader_fault = RetriableError("away")
    with pytest.raises(RetriableError):
        world.rounds()
    world.reader_fault = None
    assert [(task.id, task.state) for task in given[0]] == [
        (A, TaskState.SUSPENDED),
        (B, TaskState.SUSPENDED),
    ]


def test_the_thread_survives_a_fault_and_serves_drops_while_it_waits(tmp_path: Path) -> None:
    world = World(tmp_path, SystemClock())
    world.fault = ValueError("a defect")
    world.updater.add([world.task(A)])
    world.updater.start()
    try:
        wait_until(lambda: world.asked_ends == 1 and not world.positions, 10, "the fault")
        wait_until(lambda: bool(world.lost), 10, "the word that no copy follows")
        assert world.lost[0] == {}, "the member's next word is without them"
        given: list[Sequence[StandbyTask]] = []
        world.updater.drop([A], SuspendReason.PROMOTED, given.append)
        wait_until(lambda: bool(given), 5, "the task, before the next try", lambda: [world.told])
        assert [task.id for task in given[0]] == [A]
    finally:
        world.updater.close()
        world.directory.close()


# A copy whose log's leader is silent waits by itself, counted and named (note 051).


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
    assert f"Task {B} (standby) cannot follow" in caplog.text
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
    assert f"Task {B} made no progress" in errors[0]
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
