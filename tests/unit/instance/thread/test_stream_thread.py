"""The loop of a stream thread with a fake job: what runs when, and what an abort means."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from everflow.config import BatchLimits
from everflow.errors import (
    DamagedEntryError,
    EverflowError,
    FatalError,
    RetriableError,
    TaskTimeoutError,
    WorkerDiedError,
)
from everflow.instance.tasks.task import ActiveTask, TaskState, TaskTimeouts
from everflow.instance.thread.batching import PlannedBatch
from everflow.instance.thread.failure_text import ending
from everflow.instance.thread.retry_policy import (
    ABORT_PAUSE_MS,
    ENDS_AFTER_MS,
    RepeatedFailures,
    RetryDecision,
    RetryPolicy,
    StalledTasks,
    first_size,
    may_pass,
    sameness,
)
from everflow.instance.thread.stream_thread import StreamThread
from everflow.memory import WorkerMemory
from everflow.metrics import CONNECTOR_ERRORS
from everflow.protocol.messages import (
    ABORTED,
    LEFT,
    BadEntry,
    BadRecord,
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
    CodeLine,
)
from everflow.records import UNBOUNDED_BYTES, OffsetRange, TaskId, TopicPartition
from everflow.topology.idle_sources import IdleSource
from unit.instance.thread.stream_thread_world import IN, OTHER, OTHER_TASK, TASK, World


@pytest.fixture
def world() -> World:
    return World()


def test_batches_follow_one_another_without_gap_or_overlap(world: World) -> None:
    task = world.give_task()
    world.end = 250
    world.turn()
    while world.turn():
        pass
    ranges = [(*r.ranges[IN], r.log_ends[IN]) for r in world.requests]
    assert ranges == [(0, 100, 250), (100, 200, 250), (200, 250, 250)]
    assert task.positions == {IN: 250}
    assert task.stream_times == {"A": 250}
    assert len({r.batch_id for r in world.requests}) == 3
    assert world.requests[-1].tasks[0].last_batch == world.requests[-2].batch_id


def test_a_batch_that_reads_to_the_end_takes_in_what_comes_until_it_is_read(world: World) -> None:
    world.fed(lambda request: world.commit(request.ending({IN: request.ranges[IN].end + 5})), 40)
    world.turns(2)
    world.end = 250
    world.turns(2)
    assert [(r.ranges[IN], dict(r.latest_ends)) for r in world.requests] == [
        ((0, 40), {IN: 100}),
        ((45, 145), {}),
        ((150, 250), {IN: 250}),
    ]
    world.end = 300
    world.behave = lambda request: BatchResult(outcome=ABORTED, reason="not-a-member")
    world.turns(2)
    assert [dict(r.latest_ends) for r in world.requests[-2:]] == [{IN: 355}, {}]
    assert world.requests[-1].ranges == {IN: (255, 300)}


def test_what_comes_meanwhile_is_left_where_several_logs_are_merged(world: World) -> None:
    """What was written to the other log before it may not be here."""
    task = ActiveTask(
        id=TASK, inputs=(IN, OTHER), state=TaskState.RUNNING, epoch=world.book.epoch(TASK)
    )
    task.positions |= {IN: 0, OTHER: 0}
    world.end = 40
    world.thread.add([task])
    world.turn()
    world.turn()
    assert [(dict(r.ranges), dict(r.latest_ends)) for r in world.requests] == [
        ({IN: (0, 40), OTHER: (0, 40)}, {})
    ]


@pytest.mark.parametrize(("left", "again"), [(0, False), (2, True)])
def test_a_batch_of_nothing_is_followed_by_one_where_records_wait_for_answers(
    world: World, left: int, again: bool
) -> None:
    """Else the thread would wait for another record."""
    world.give_task()
    world.turn()
    world.end += 2

    def nothing(request: BatchRequest) -> BatchResult:
        consumed = {tp: wanted.start for tp, wanted in request.ranges.items()}
        counts = {"in": 0, LEFT: left}
        return replace(world.commit(request), consumed=consumed, counts=counts)

    world.behave = nothing
    requests = len(world.requests)
    for _ in range(9):
        world.turn()
    assert (len(world.requests) > requests + 1) == again


def in_intervals(world: World, asking: bool = False) -> None:
    """Rows of `TASK` are written once a minute; its program asks services."""
    mine = frozenset({TASK.subtopology} if asking else ())
    every = {TASK.subtopology: 60_000}
    found = replace(world.thread.settings, every_ms=every, clocked=mine, asking=mine)
    world.thread.settings, world.thread._planner.every_ms = found, every
    world.thread._planner.clocked = mine


def test_calls_do_not_cut_an_interval_short_and_their_records_do_not_wait_for_one(
    world: World,
) -> None:
    in_intervals(world, asking=True)
    world.give_task()
    world.end = 5

    def answers_four(request: BatchRequest) -> BatchResult:
        done = world.commit(request)
        left = {IN: 4} if request.ranges.get(IN) == (0, 5) else done.consumed
        return replace(done, consumed=left, counts={"in": 4, LEFT: int(left == {IN: 4})})

    world.behave = answers_four
    world.turns(3)
    written_ms = world.clock.monotonic_ms()
    assert [r.ranges[IN] for r in world.requests if r.ranges][-2:] == [(0, 5), (4, 5)]
    world.end = 20
    while world.clock.monotonic_ms() < written_ms + 59_000:
        world.turn()
    # A batch that keeps the worker alive has the task, and none of the records that wait.
    kept = [r for r in world.requests if r.ranges.get(IN) == (5, 5)]
    assert kept
    assert not any(r.latest_ends for r in kept)
    assert (5, 20) not in [r.ranges.get(IN) for r in world.requests]


def test_tasks_whose_rows_are_written_at_intervals_wait_for_their_time(world: World) -> None:
    """But for a whole batch of records."""
    in_intervals(world)
    world.give_task()
    world.end = 5
    world.turns(2)
    assert [r.ranges[IN] for r in world.requests if r.ranges] == [(0, 5)]
    written_ms, world.end = world.clock.monotonic_ms(), 20
    while [r.ranges[IN] for r in world.requests if r.ranges][-1] == (0, 5):
        world.turn()
    assert world.requests[-1].ranges == {IN: (5, 20)}
    assert 60_000 <= world.clock.monotonic_ms() - written_ms <= 60_100
    world.end = 250
    world.turns(4)
    ranges = [r.ranges[IN] for r in world.requests if r.ranges]
    assert ranges[2:] == [(20, 120), (120, 220)]


def paced(world: World, took_ms: float, processor_ms: float, left: int = 0) -> None:
    """Each batch of `TASK` takes so long, and so much of its worker's processor."""
    limits = replace(world.thread.settings.limits, most_rest_ms=100)
    world.thread.settings = replace(world.thread.settings, limits=limits)
    world.thread.retries.limits = limits

    def commit(request: BatchRequest) -> BatchResult:
        world.clock.advance(took_ms)
        counts = {LEFT: left}
        return replace(world.commit(request), processor_ms=processor_ms, counts=counts)

    world.fed(commit)
    world.turn()


def batch_ms(world: World, records: int = 3) -> float:
    """From now to the end of the next batch, for which there are so many records."""
    world.end += records
    began_ms = world.clock.monotonic_ms()
    while not world.turn():
        pass
    return world.clock.monotonic_ms() - began_ms


@pytest.mark.parametrize(
    ("took_ms", "processor_ms", "left", "interval_ms"),
    [(10, 4, 0, 40), (50, 4, 0, 50), (10, 16, 0, 80), (10, 100, 0, 110), (10, 4, 1, 10)],
)
def test_batches_are_so_far_apart_that_another_ms_saves_little(
    world: World, took_ms: float, processor_ms: float, left: int, interval_ms: float
) -> None:
    """By the root of what they cost; they rest for `most_rest_ms` at most, and not while calls are
    under way (note 070)."""
    paced(world, took_ms, processor_ms, left)
    found = [batch_ms(world) for _ in range(12)]
    assert found[8:] == pytest.approx([interval_ms] * 4)
    assert batch_ms(world, records=300) == pytest.approx(interval_ms)
    assert batch_ms(world) == took_ms, "there is more to read"


def test_a_thread_that_had_little_to_do_begins_at_once(world: World) -> None:
    """At few records/s, what a batch wrote for the next sub-topology does not wait for a third."""
    paced(world, 10, 4)
    for _ in range(12):
        batch_ms(world)
    world.clock.advance(1_000)
    found = [batch_ms(world) for _ in range(9)]
    assert found[:3] == [10, 10, 10]
    assert found[-3:] == pytest.approx([40, 40, 40])


def test_a_thread_to_which_a_task_comes_does_not_rest(world: World) -> None:
    """Its records have waited for the rebalance."""
    paced(world, 10, 100)
    for _ in range(12):
        batch_ms(world)
    world.book.own([OTHER_TASK])
    world.give_task(OTHER_TASK, OTHER)
    assert batch_ms(world) == 10


def test_records_that_come_behind_the_first_to_an_idle_thread_share_its_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced(world, 10, 64)
    batch_ms(world)
    world.clock.advance(1_000)
    end = world.end

    def wait(event: threading.Event, timeout_ms: float) -> bool:
        world.end += 5
        world.ends.poll_once()
        world.clock.advance(min(timeout_ms, 4.0))
        return event.is_set()

    monkeypatch.setattr(world.clock, "wait", wait)
    began_ms = world.clock.monotonic_ms()
    while not world.turn():
        pass
    assert world.clock.monotonic_ms() - began_ms == 4.0 + 160 * 0.05 + 10
    assert world.requests[-1].ranges[IN] == (end, end + 15)


def test_a_thread_rests_until_the_broker_has_ended_its_transaction(world: World) -> None:
    """What comes meanwhile is in the next batch, instead of waiting behind one that waits."""
    limits = replace(world.thread.settings.limits, most_rest_ms=40)
    world.thread.settings = replace(world.thread.settings, limits=limits)
    world.thread.retries.limits = limits
    world.give_task()
    world.turn()
    ends_after_ms = 200.0
    held: list[float] = []
    committed_ms = world.clock.monotonic_ms()

    def commit(request: BatchRequest) -> BatchResult:
        nonlocal committed_ms
        world.clock.advance(10.0)
        held.append(max(0.0, committed_ms + ends_after_ms - world.clock.monotonic_ms()))
        world.clock.advance(held[-1])
        committed_ms = world.clock.monotonic_ms()
        return replace(world.commit(request), blocked_ms=held[-1])

    world.behave = commit
    for _ in range(40):
        world.end += 5
        while not world.turn():
            pass
    assert held[1] > 100
    assert max(held[-20:]) < 100 < held[1], held
    ends_after_ms = 0.0
    for _ in range(60):
        world.end += 5
        while not world.turn():
            pass
    before_ms = world.clock.monotonic_ms()
    world.end += 5
    while not world.turn():
        pass
    assert world.clock.monotonic_ms() - before_ms < 10 + 40 + 1, "it is forgotten again"


def test_the_first_batch_of_a_recovered_task_does_not_wait_for_the_poller(world: World) -> None:
    """Its recovery saw the input's end; the poller's figure counts once there is one."""
    task = world.give_task()
    task.ends = {IN: 40}
    world.end = 60
    assert world.thread.run_once()
    assert world.turn()
    assert [(*r.ranges[IN], r.log_ends[IN]) for r in world.requests] == [(0, 40, 40), (40, 60, 60)]


def test_no_job_where_nothing_is_new_but_one_before_the_workers_end(world: World) -> None:
    world.give_task()
    world.turn()
    for _ in range(10):
        assert not world.turn()
    assert world.requests == []
    world.clock.advance(30_000)
    assert world.turn()
    assert (world.requests[0].ranges, world.requests[0].log_ends) == ({}, {})


@pytest.mark.parametrize("ahead_ms", [0, 500])
def test_a_bound_of_times_goes_by_the_clock_of_the_plan(world: World, ahead_ms: int) -> None:
    before = world.thread
    settings = replace(before.settings, max_event_time_ahead_ms=ahead_ms)
    world.thread = StreamThread(
        number=0,
        settings=settings,
        services=before.services,
        clock=world.clock,
        new_incarnation=before.new_incarnation,
    )
    world.give_task()
    world.end = 10
    while not world.requests:
        world.turn()
    (request,) = world.requests
    assert request.most_ms == (request.wall_clock_ms + ahead_ms if ahead_ms else None)


def test_a_pause_reads_nothing_keeps_the_workers_and_goes_on_where_it_stopped(world: World) -> None:
    """KIP-834: also with a batch to be run again, and with tasks that come meanwhile."""
    task = world.give_task()
    world.end = 250
    world.turn()
    assert world.turn()
    world.paused = True
    for _ in range(5):
        assert not world.turn()
    assert task.positions == {IN: 100}
    world.clock.advance(30_000)
    assert world.turn(), "an empty batch keeps the workers"
    assert (world.requests[-1].ranges, world.requests[-1].log_ends) == ({}, {})
    assert not world.turn()
    world.paused = False
    while world.turn():
        pass
    assert [r.ranges.get(IN) for r in world.requests] == [(0, 100), None, (100, 200), (200, 250)]


def test_a_batch_that_is_to_be_run_again_waits_for_the_end_of_a_pause(world: World) -> None:
    def refuse(request: BatchRequest) -> BatchResult:
        return BatchResult(outcome=ABORTED, reason="not a member")

    world.fed(refuse)
    world.turns(3)
    world.paused, tried = True, len(world.requests)
    world.clock.advance(3_600_000)
    for _ in range(5):
        assert not world.turn()
    assert len(world.requests) == tried
    world.paused = False
    world.turn()  # refused once more: the hour of the pause is not taken for an hour of failures
    world.behave = world.commit
    assert world.turn()
    assert {(*r.ranges[IN], r.log_ends[IN]) for r in world.requests} == {(0, 10, 10)}
    assert [r.attempt for r in world.requests] == list(range(len(world.requests)))


# --- paused connectors (note 074) -----------------------------------------------------------------


APART = TaskId(1, 0)


def test_a_paused_part_is_not_read_and_the_others_go_on(world: World) -> None:
    world.book.own([APART])
    task, other = world.give_task(), world.give_task(APART, OTHER)
    world.paused_parts, world.end = frozenset({APART.subtopology}), 30
    world.turns(3)
    assert world.thread.paused_tasks == {APART}
    assert (task.positions, other.positions) == ({IN: 30}, {OTHER: 0})
    assert all(one.task == TASK for request in world.requests for one in request.tasks)
    world.paused_parts = frozenset()
    world.turns(3)
    assert other.positions == {OTHER: 30}


def test_a_pause_drops_the_batch_that_fails(world: World) -> None:
    """A sink that is down is paused while its batch is run again and again."""
    world.book.own([APART])
    task, other = world.give_task(), world.give_task(APART, OTHER)
    world.end = 10

    def down(request: BatchRequest) -> BatchResult:
        if any(one.task == APART for one in request.tasks):
            raise BatchFailedError(
                BatchFailure(
                    kind="retriable",
                    error="Sink lake does not answer",
                    partitions=(OTHER,),
                    connector="lake",
                )
            )
        return world.commit(request)

    world.behave = down
    world.turns(3)
    assert APART in world.thread.troubles()
    assert world.metrics.series()[CONNECTOR_ERRORS]["lake",] >= 1
    assert "lake" in world.metrics.notes(CONNECTOR_ERRORS)["lake",]
    world.paused_parts = frozenset({APART.subtopology})
    world.turns(3)
    assert (task.positions, other.positions) == ({IN: 10}, {OTHER: 0})
    assert world.thread.troubles() == {}
    world.clock.advance(3_600_000)  # an hour of a pause is no hour of failures
    world.end = 20
    world.turns(3)
    assert task.positions == {IN: 20}
    world.paused_parts, world.behave = frozenset(), world.commit
    world.turns(3)
    assert other.positions == {OTHER: 20}


def test_a_thread_whose_tasks_are_all_paused_recovers_and_keeps_its_workers(world: World) -> None:
    def down(request: BatchRequest) -> BatchResult:
        raise BatchFailedError(BatchFailure(kind="retriable", error="down", connector="lake"))

    task = world.fed(down)
    world.turns(2)
    world.paused_parts = frozenset({TASK.subtopology})
    world.turns(2)
    assert task.state is TaskState.RUNNING
    assert not world.thread.stalled
    world.behave, requests = world.commit, len(world.requests)
    world.turns(3)
    world.clock.advance(30_000)
    world.turns(2)
    assert [(dict(r.ranges), r.tasks) for r in world.requests[requests:]] == [({}, [])]
    assert task.positions == {IN: 0}


def test_a_restart_ends_the_worker_and_gives_the_task_up(world: World) -> None:
    world.book.own([APART])
    world.give_task()
    world.give_task(APART, OTHER)
    world.end = 10
    world.turns(2)
    given_up: list[TaskId] = []
    world.thread.restart([TASK], lambda tasks: given_up.extend(task.id for task in tasks))
    world.done.clear()
    world.turn()
    assert given_up == [TASK]
    assert world.done[:2] == ["close job", "kill [99]"]
    assert [task.id for task in world.thread.all_tasks()] == [APART]
    opened = len(world.opened)
    world.end = 20
    world.turns(2)
    assert len(world.opened) == opened + 1


def test_without_tasks_the_workers_are_kept_alive_too(world: World) -> None:
    """A standby's instance may wait for hours; then a task must not wait for workers."""
    for _ in range(3):
        assert not world.turn()
    assert len(world.requests) <= 1
    world.requests.clear()
    world.clock.advance(30_000)
    world.turn()
    assert [(request.ranges, request.tasks) for request in world.requests] == [({}, [])]
    world.thread.wake.set()
    world.turn()
    assert len(world.requests) == 1


def test_what_is_settled_is_of_a_moment_between_known_batches(world: World) -> None:
    """Stores lag behind changelogs from commit to apply, and after a failure to recovery."""
    seen: list[int | None] = []

    def watch(request: BatchRequest) -> BatchResult:
        seen.append(world.thread.settled_ms)
        world.clock.advance(100)
        seen.append(world.thread.settled_ms)
        return world.commit(request)

    def fail(request: BatchRequest) -> BatchResult:
        world.clock.advance(100)
        raise BatchFailedError(BatchFailure(kind="worker", error="died"))

    world.give_task()
    world.turn()  # takes the task
    world.behave, world.end = watch, 10
    began_ms = world.clock.now_ms()
    assert world.turn()
    assert seen == [began_ms, began_ms]
    world.behave, world.end, failed_ms = fail, 20, world.clock.now_ms()
    assert not world.turn()
    assert world.thread.settled_ms == failed_ms, "when the batch began"
    world.behave = watch
    assert world.turn(), "the same range again"
    assert world.thread.settled_ms == failed_ms
    applied_ms = world.clock.now_ms()
    assert not world.turn()
    assert world.thread.settled_ms == applied_ms


def test_an_abort_by_the_gate_runs_the_same_range_without_recovery(world: World) -> None:
    def refuse(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        return BatchResult(outcome=ABORTED, reason="not-a-member: generation -1")

    world.fed(refuse)
    world.turns(3)
    assert [(r.attempt, r.ranges[IN]) for r in world.requests] == [(0, (0, 10)), (1, (0, 10))]
    assert "committed" not in world.done


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_batch_that_a_rebalance_refused_is_tried_once_more(world: World, refusals: int) -> None:
    """Else its records would wait for the whole hand-over, after this batch already."""
    given: list[Sequence[ActiveTask]] = []
    answers = ["generation: specified group generation id is not valid"] * refusals

    def refuse(request: BatchRequest) -> BatchResult:
        if not given and not world.thread._commands._waiting:
            world.thread.drop([TASK], given.append)
        return (
            BatchResult(outcome=ABORTED, reason=answers.pop()) if answers else world.commit(request)
        )

    task = world.fed(refuse)
    world.turns(4)
    assert [r.attempt for r in world.requests] == [0, 1]
    assert given == [[task]]
    assert task.positions == {IN: 10 if refusals == 1 else 0}


def test_a_task_whose_ownership_broke_runs_no_batch(world: World) -> None:
    world.give_task()
    world.book.disown_all()
    world.book.own([TASK])
    world.end = 10
    for _ in range(3):
        assert not world.turn()
    assert world.requests == []


def test_tasks_are_given_up_between_batches_only(world: World) -> None:
    given: list[Sequence[ActiveTask]] = []

    def drop_during_batch(request: BatchRequest) -> BatchResult:
        world.thread.drop([TASK], given.append)
        assert given == []
        return world.commit(request)

    task = world.fed(drop_during_batch)
    world.turn()
    world.turn()
    assert task.positions == {IN: 10}
    world.turn()
    assert given == [[task]]
    assert world.thread.tasks == {}


def test_a_task_is_held_from_the_moment_it_is_given_until_it_is_given_up(world: World) -> None:
    """Queries find it once the instance is RUNNING, maybe before the thread's next turn."""
    held: list[list[ActiveTask]] = []
    task = world.give_task()
    held.append(world.thread.all_tasks())
    world.thread.run_once()
    held.append(world.thread.all_tasks())
    world.thread.drop([TASK], lambda tasks: held.append(world.thread.all_tasks()))
    held.append(world.thread.all_tasks())
    world.thread.run_once()
    assert held == [[task], [task], [task], []]


def test_tasks_come_and_go_without_a_new_job(world: World) -> None:
    """I4: preparing one takes most of a second, in which the tasks that stay would stand still."""
    world.give_task()
    world.end = 10
    world.turn()
    world.turn()
    world.book.own([OTHER_TASK])
    world.give_task(OTHER_TASK, OTHER)
    world.turn()
    world.turn()
    world.thread.drop([TASK], lambda tasks: None)
    world.end = 20
    world.turn()
    world.turn()
    # Of the tasks that have something to read: IN was at its end.
    assert [set(request.ranges) for request in world.requests] == [{IN}, {OTHER}, {OTHER}]
    assert [[task.task for task in request.tasks] for request in world.requests] == [
        [TASK],
        [OTHER_TASK],
        [OTHER_TASK],
    ]
    assert len({request.batch_id for request in world.requests}) == 3
    assert world.opened == [0]
    assert world.done == []


def idle_world() -> World:
    """Its source moves time after 5 s, and its worker does what it is asked to."""
    world = World(idle={0: {"in": IdleSource("in/idle", 5_000)}})

    def commit(request: BatchRequest) -> BatchResult:
        times = {"in/idle": 100 * world.end, **request.idle.get(TASK, {})}
        return replace(world.commit(request), stream_times={TASK: times})

    world.fed(commit, 3)
    world.turn()
    assert world.turn()
    assert not world.turn()  # from here on it is silent, and a second goes by
    return world


def test_a_silent_source_makes_a_batch_that_moves_its_time() -> None:
    world = idle_world()
    world.clock.advance(3_999)
    assert not world.turn()  # it waits for no longer than it has to
    assert world.turn()
    assert world.requests[-1].idle == {TASK: {"in/idle": 5_300}}
    assert world.requests[-1].ranges == {IN: OffsetRange(3, 3)}
    assert world.thread.tasks[TASK].stream_times["in/idle"] == 5_300
    world.clock.advance(5_000)
    assert world.turn()
    assert world.requests[-1].idle == {TASK: {"in/idle": 10_300}}


def test_an_attempt_again_moves_time_to_the_same() -> None:
    world = idle_world()
    works, world.behave = world.behave, lambda request: BatchResult(outcome=ABORTED, reason="no")
    world.clock.advance(4_000)
    assert not world.turn()
    world.behave = works
    world.clock.advance(9_000)
    assert world.turn()
    assert world.requests[-1].idle == world.requests[-2].idle == {TASK: {"in/idle": 5_300}}


def test_silence_is_no_silence_while_nobody_knows_the_ends_or_all_is_paused() -> None:
    world = idle_world()
    world.clock.advance(6_000)
    world.paused = True
    assert not world.turn()
    world.paused = False
    ends = world.ends.read

    def refused(partitions: object) -> dict[TopicPartition, int]:
        raise RetriableError("no answer")

    world.ends.read = refused
    world.ends.poll_once()
    world.clock.advance(1)
    assert not world.turn()
    world.ends.read = ends
    assert world.turn()


# What a stream thread does after each event.


DIVISION = BatchFailure(kind="other", error="division by zero", where=("app.py:3",))
COLUMN = BatchFailure(
    kind="column",
    error="A Column cannot be computed: [DIVIDE_BY_ZERO] Division by zero.",
    where=("app.py:3",),
)


@pytest.mark.parametrize("kind", BatchFailure.KINDS)
def test_only_causes_outside_the_program_may_pass(kind: str) -> None:
    passing = {"migrated", "generation", "data-loss", "retriable"}
    assert may_pass(BatchFailure(kind=kind, error="text")) == (kind in passing)


def test_ports_ids_offsets_and_times_do_not_make_a_failure_another_one() -> None:
    one = BatchFailure(
        kind="other",
        error="no answer from 127.0.0.1:4711 at offset 7 in 5000 ms (pid 12, <object at 0x7f1e2a>)",
    )
    two = BatchFailure(
        kind="other",
        error=(
            "no answer from 127.0.0.1:39923 at offset 1234 in 61 ms (pid 9, <object at 0xdeadbeef>)"
        ),
    )
    assert sameness(one) == sameness(two)
    member = "member app-{}-x is unknown"
    first, second = (member.format(f"{digit * 8}-aaaa-bbbb-cccc-{digit * 12}") for digit in "af")
    assert len({sameness(BatchFailure(kind="other", error=one)) for one in (first, second)}) == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(DIVISION, kind="worker"),
        replace(DIVISION, error="A Column cannot be computed: [CAST_OVERFLOW] too large."),
        replace(DIVISION, where=("app.py:4",)),
        replace(DIVISION, record=BadRecord("in", 0, 7)),
        replace(DIVISION, line=CodeLine("app.py", 9, "f")),
    ],
    ids=["kind", "text", "operator", "record", "line"],
)
def test_another_kind_text_or_place_is_another_failure(other: BatchFailure) -> None:
    assert sameness(DIVISION) != sameness(other)


def test_it_is_told_the_second_time_and_ends_the_third_time_after_seconds() -> None:
    failures = RepeatedFailures()
    for attempt, now_ms in enumerate((0.0, 700.0, 1_500.0, ENDS_AFTER_MS), 1):
        failures = failures.with_one(DIVISION, now_ms)
        assert failures.logged_in_full(DIVISION) == (attempt == 2)
        assert failures.in_vain(DIVISION, now_ms, smallest=False) == (attempt == 4), "too soon"


def test_two_failures_that_take_turns_end_too() -> None:
    failures, other = RepeatedFailures(), BatchFailure(kind="retriable", error="slow")
    for now_ms in (0.0, 1_000.0, 2_000.0):
        failures = failures.with_one(other, now_ms).with_one(DIVISION, now_ms)
    assert failures.in_vain(DIVISION, 2_000.0, smallest=False)
    assert not failures.in_vain(other, 2_000.0, smallest=False), "it may pass"


@pytest.mark.parametrize("kind", ["record", "undecodable", "fatal", "spark-gone"])
def test_what_is_known_to_come_again_ends_at_once(kind: str) -> None:
    failure = BatchFailure(kind=kind, error="text")
    assert RepeatedFailures().with_one(failure, 0.0).in_vain(failure, 0.0, smallest=False)


def test_a_store_is_rebuilt_once_whatever_entry_of_it_cannot_be_read() -> None:
    entry = BadEntry("counts", TaskId(0, 3), "6b", "app-counts-changelog")
    first = BatchFailure(kind="damaged", error="Store counts: key k, folder a", entry=entry)
    second = replace(first, error="folder b", entry=entry._replace(key="6c"))
    failures = RepeatedFailures().with_one(first, 0.0)
    assert not failures.in_vain(first, 0.0, True)
    assert failures.with_one(second, 1.0).in_vain(second, 1.0, False)
    of_another = replace(first, entry=entry._replace(task=TaskId(0, 4)))
    assert not failures.with_one(of_another, 1.0).in_vain(of_another, 1.0, True)
    error = ending(second, 2, "")
    assert isinstance(error, DamagedEntryError)
    assert (error.store, error.task, error.key) == ("counts", TaskId(0, 3), b"l")
    assert error.changelog == "app-counts-changelog"
    assert "was rebuilt" in str(error)


def test_a_batch_that_hangs_gets_smaller_and_ends_when_twice_there_are_none() -> None:
    hang = BatchFailure(kind="hang", error="it did not end")
    failures = RepeatedFailures().with_one(hang, 0.0)
    assert not failures.in_vain(hang, 0.0, smallest=True), "it was small from the start"
    failures = failures.with_one(hang, 1.0)
    assert not failures.in_vain(hang, 1.0, smallest=False)
    assert failures.in_vain(hang, 1.0, smallest=True)


def test_a_column_that_fails_for_no_record_alone_ends_the_second_time() -> None:
    """Its worker has searched for the record."""
    failures = RepeatedFailures().with_one(COLUMN, 0.0)
    assert not failures.in_vain(COLUMN, 0.0, smallest=False)
    assert failures.with_one(COLUMN, 1.0).in_vain(COLUMN, 1.0, smallest=False)


def test_a_dying_worker_gets_smaller_batches_before_it_is_given_up() -> None:
    died = BatchFailure(kind="worker", error="A Python worker process died (Segmentation fault)")
    failures = RepeatedFailures()
    for now_ms in range(0, 9_000, 1_000):
        failures = failures.with_one(died, now_ms)
        assert not failures.in_vain(died, now_ms, smallest=False)
    assert failures.in_vain(died, 9_000, smallest=True)


A, B = TopicPartition("in", 0), TopicPartition("in", 1)
TASKS = {
    TaskId(0, number): ActiveTask(
        id=TaskId(0, number), inputs=(tp,), stores=(), state=TaskState.RUNNING, epoch=1
    )
    for number, tp in enumerate((A, B))
}
ONE = {TaskId(0, 0): TASKS[TaskId(0, 0)]}


def policy(*, may_continue: bool = False) -> RetryPolicy:
    return RetryPolicy(
        limits=BatchLimits(1_000, 1 << 30, 1_000),
        size=first_size(functions=False),
        worker=lambda: WorkerMemory(UNBOUNDED_BYTES),
        may_continue=lambda stage, node: may_continue,
        stalled=StalledTasks(TaskTimeouts(10_000)),
    )


def batch(records: int = 160, *partitions: TopicPartition) -> PlannedBatch:
    ranges = {tp: OffsetRange(0, records) for tp in partitions or (A,)}
    return PlannedBatch(ranges=ranges, log_ends={})


def decided(
    retries: RetryPolicy,
    failure: BatchFailure,
    planned: PlannedBatch,
    *,
    tasks: dict[TaskId, ActiveTask] = ONE,
    took_ms: float = 0.0,
    now_ms: float = 0.0,
    committed: bool = False,
    owned: tuple[TopicPartition, ...] = (A, B),
) -> RetryDecision:
    retries.batch_failed(failure, took_ms, now_ms, 0, cut_off=False)
    return retries.recovered(failure, planned, tasks, owned, committed, now_ms)


def of_kind(kind: str, **more: object) -> BatchFailure:
    return replace(BatchFailure(kind=kind, error="it failed"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["migrated", "generation", "data-loss", "retriable", "worker"])
def test_a_first_failure_is_retried_with_the_same_records_after_a_pause(kind: str) -> None:
    decision = decided(policy(), of_kind(kind), batch())
    assert decision.planned is not None
    assert (decision.planned.ranges, decision.planned.attempt) == (batch().ranges, 1)
    assert decision.pause_ms == 100


def test_pauses_double_up_to_five_seconds_and_begin_anew_with_progress() -> None:
    retries, planned, pauses = policy(), batch(), []
    for _ in range(8):
        decision = decided(retries, of_kind("retriable"), planned)
        assert decision.planned is not None
        planned = decision.planned
        pauses.append(decision.pause_ms)
    assert pauses == [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    assert decided(retries, of_kind("retriable"), planned, committed=True).planned is None
    assert retries.trouble is None
    assert decided(retries, of_kind("retriable"), batch()).pause_ms == 100


def test_the_record_that_a_batch_hangs_on_is_searched_for_in_a_smaller_batch() -> None:
    decision = decided(policy(), of_kind("hang"), batch(160))
    assert decision.planned is not None
    assert decision.planned.records == 10
    assert len(decision.lines) == 1, "it is logged that the search begins"


def test_a_long_attempt_that_fails_again_is_halved() -> None:
    retries = policy()
    first = decided(retries, of_kind("migrated"), batch(160), took_ms=1_500)
    assert first.planned is not None
    assert first.planned.records == 160
    second = decided(retries, of_kind("migrated"), first.planned, took_ms=1_500)
    assert second.planned is not None
    assert second.planned.records == 80


@pytest.mark.parametrize("kind", ["record", "fatal", "undecodable"])
def test_what_comes_again_for_certain_ends_the_thread(kind: str) -> None:
    with pytest.raises(FatalError):
        decided(policy(), of_kind(kind), batch())


@pytest.mark.parametrize("committed", [True, False])
def test_without_spark_the_thread_ends_whatever_was_committed(committed: bool) -> None:
    with pytest.raises(FatalError):
        decided(policy(), of_kind("spark-gone"), batch(), committed=committed)


def test_a_known_record_that_may_be_skipped_goes_to_its_handler_at_once() -> None:
    retries = policy(may_continue=True)
    failure = of_kind("record", record=BadRecord("in", 0, 7))
    decision = decided(retries, failure, batch())
    assert decision.planned is not None
    assert (decision.planned.records, decision.pause_ms) == (160, 0)
    assert [one.record for one in retries.skipped(decision.planned)] == [failure.record]
    with pytest.raises(FatalError):
        decided(retries, failure, decision.planned)


def test_a_bad_record_of_a_task_that_is_lost_ends_nobody() -> None:
    failure = of_kind("record", record=BadRecord("in", 0, 7))
    decision = decided(policy(), failure, batch(), owned=(B,))
    assert decision.planned is not None


def test_the_only_record_left_ends_the_thread_in_which_it_kills_the_worker_three_times() -> None:
    retries, planned = policy(), batch(1)
    for now_ms in (0.0, 1_000.0):
        decision = decided(retries, of_kind("worker"), planned, now_ms=now_ms)
        assert decision.planned is not None
        planned = decision.planned
    with pytest.raises(WorkerDiedError):
        decided(retries, of_kind("worker"), planned, now_ms=2_000.0)


def test_a_task_that_the_failure_names_rests_and_the_others_are_planned_anew() -> None:
    retries = policy()
    failure = of_kind("retriable", partitions=(B,))
    decision = decided(retries, failure, batch(10, A, B), tasks=TASKS)
    assert (decision.planned, decision.pause_ms) == (None, 0)
    assert retries.resting(0) == {TaskId(0, 1)}


@pytest.mark.parametrize(
    ("reason", "attempt", "keeps"),
    [("generation 3", 0, True), ("generation 3", 1, False), ("ownership-changed", 0, False)],
)
def test_an_aborted_batch_runs_again_once(reason: str, attempt: int, keeps: bool) -> None:
    planned = replace(batch(), attempt=attempt)
    decision = policy().batch_aborted(reason, planned, ONE, 0.0)
    assert decision.planned is not None
    assert (decision.planned.attempt, decision.keeps_tasks) == (attempt + 1, keeps)
    assert decision.pause_ms == (0.0 if reason.startswith("generation") else ABORT_PAUSE_MS)


def test_batches_that_the_group_aborts_for_too_long_end_the_thread() -> None:
    retries = policy()
    first = retries.batch_aborted("not a member", batch(), ONE, 0.0)
    again = retries.batch_aborted("not a member", first.planned, ONE, 10_000.0)
    with pytest.raises(TaskTimeoutError, match=r"aborted .* not a member") as late:
        retries.batch_aborted("not a member", again.planned, ONE, 10_001.0)
    assert late.value.task == TaskId(0, 0)


def test_tasks_are_given_back_once_writers_are_fenced_and_their_time_counts() -> None:
    retries, error = policy(), RetriableError("the leader does not answer", [B])
    restoring = list(TASKS.values())
    assert list(retries.recovery_failed(error, restoring, TASKS, False, 0.0)) == []
    given = retries.recovery_failed(error, restoring, TASKS, True, 5_000.0)
    assert [task.id for task in given] == [TaskId(0, 1)]
    with pytest.raises(TaskTimeoutError):
        retries.recovery_failed(error, restoring, TASKS, True, 10_001.0)


def test_a_pause_of_the_instance_forgets_what_was_against_its_tasks() -> None:
    retries = policy()
    decided(retries, of_kind("retriable"), batch(10, A, B), tasks=TASKS)
    assert retries.troubles(TASKS, 0.0, 0).keys() == TASKS.keys()
    retries.paused()
    assert retries.troubles(TASKS, 0.0, 0) == {}


def test_an_error_that_no_handler_replaces_ends_the_thread() -> None:
    error = EverflowError("a defect")
    assert policy().uncaught(error, None, None, ONE, 0.0) == (False, ())


def test_a_batch_under_way_is_hurried_for_a_task_that_goes_and_at_the_end() -> None:
    """Note 070: calls to the outside do not keep anybody waiting."""
    world = World()
    wanted: list[bool] = []

    def behave(request: BatchRequest) -> BatchResult:
        world.thread.drop([OTHER_TASK], lambda tasks: None)
        wanted.append(world.book.wanted(request.batch_id))
        return world.commit(request)

    def notes(request: BatchRequest) -> BatchResult:
        wanted.append(world.book.wanted(request.batch_id))
        return world.commit(request)

    world.fed(behave)
    world.turns(2)
    world.behave, world.end = notes, 20
    world.turns(2)
    assert wanted == [False, True]
    assert world.requests[0].calls_ms == 1_000
    world.thread.stop()
    world.end = 30
    world.turns(2)
    assert wanted == [False, True, False]
