"""One turn of a stream thread with a fake job: what is run, what is retried, and D6's order after a failure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from everflow import metrics as names
from everflow.clock import ManualClock
from everflow.config import BatchLimits
from everflow.errors import FatalError, RecordError, RetriableError, TaskTimeoutError
from everflow.metrics import Metrics
from everflow.records import TaskId, TopicPartition
from everflow.runtime.batch import (
    ABORTED,
    COMMITTED,
    EXACTLY_ONCE_V2,
    BadRecord,
    BatchFailedError,
    BatchRequest,
    BatchResult,
)
from everflow.runtime.batch_watchdog import SHOWN_AFTER_MS, any_stalled
from everflow.runtime.commit_gate import GateBook
from everflow.runtime.end_offsets import EndOffsets
from everflow.runtime.recovery import Committed, Recovery, RecoveryRules
from everflow.runtime.stream_thread import StreamThread, ThreadServices, ThreadSettings, brief
from everflow.runtime.task import ActiveTask, TaskState, TaskStore
from everflow.runtime.thread_job import failure_of

IN = TopicPartition("in", 0)
TASK = TaskId(0, 0)
OTHER, OTHER_TASK = TopicPartition("in", 1), TaskId(0, 1)


class World:
    """A log of one partition, a job whose behaviour the test sets, and a record of everything that was done."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000)
        self.end = 0
        self.committed_offset = 0
        self.paused = False
        self.done: list[str] = []
        self.opened: list[list[TopicPartition]] = []
        self.requests: list[BatchRequest] = []
        self.behave: Callable[[BatchRequest], BatchResult] = self.commit
        self.book = GateBook()
        self.book.own([TASK])
        self.ends = EndOffsets(lambda partitions: dict.fromkeys(partitions, self.end), self.clock, 15)
        self.metrics = Metrics()
        self.incarnations = iter(f"i{n}" for n in range(1_000))
        recovery = Recovery(self, RecoveryRules("app", {}), self.clock, 10_000, threading.Event(), lambda: next(self.incarnations))
        services = ThreadServices(
            self.open_job,
            lambda pids: self.done.append(f"kill {list(pids)}"),
            self.book,
            self.ends,
            recovery,
            self.metrics,
            lambda error: self.done.append(f"failed {error}"),
            paused=lambda: self.paused,
        )
        limits = BatchLimits(100, 1 << 30, 1_000)
        settings = ThreadSettings("app", EXACTLY_ONCE_V2, "app-p-0", "gate", {}, limits, 10_000, 30_000)
        self.thread = StreamThread(0, settings, services, self.clock, lambda: next(self.incarnations))

    def give_task(self) -> ActiveTask:
        task = ActiveTask(TASK, (IN,), (), TaskState.RUNNING, epoch=self.book.epoch(TASK))
        task.positions[IN] = self.committed_offset
        self.thread.add([task])
        return task

    def open_job(self, number: int, partitions: Sequence[TopicPartition]) -> World:
        self.opened.append(list(partitions))
        return self

    def turn(self) -> bool:
        self.ends.poll_once()
        return self.thread.run_once()

    # the job
    def warm_up(self, request: BatchRequest) -> BatchResult:
        return self.run(request)

    def run(self, request: BatchRequest) -> BatchResult:
        self.requests.append(request)
        self.book.hello(request.batch_id, "t0-0", 99)
        return self.behave(request)

    def close(self) -> None:
        self.done.append("close job")

    def commit(self, request: BatchRequest) -> BatchResult:
        consumed = {name: end for name, (_, end, _) in request.ranges.items()}
        self.committed_offset = consumed.get("in-0", self.committed_offset)
        read = sum(end - start for start, end, _ in request.ranges.values())
        return BatchResult(COMMITTED, consumed=consumed, stream_times={"0_0": {"A": self.committed_offset}}, counts={"in": read})

    # recovery's ports
    def fence(self, transactional_ids: Collection[str]) -> None:
        self.done.append(f"fence {','.join(transactional_ids)}")

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        self.done.append("committed")
        return {IN: Committed(self.committed_offset, "")}

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)

    stable_ends = log_ends

    def log_starts(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def restore(self, task: ActiveTask, incarnation: str, targets: Mapping[TopicPartition, int]) -> tuple[TaskStore, ...]:
        self.done.append("restore")
        return ()


@pytest.fixture
def world() -> World:
    return World()


def test_batches_follow_one_another_without_gap_or_overlap(world: World) -> None:
    task = world.give_task()
    world.end = 250
    world.turn()
    while world.turn():
        pass
    ranges = [tuple(r.ranges["in-0"]) for r in world.requests]
    assert ranges == [(0, 100, 250), (100, 200, 250), (200, 250, 250)]
    assert task.positions == {IN: 250}
    assert task.stream_times == {"A": 250}
    assert len({r.batch_id for r in world.requests}) == 3
    assert world.requests[-1].tasks[0].last_batch == world.requests[-2].batch_id


def test_the_first_batch_of_a_recovered_task_does_not_wait_for_the_poller(world: World) -> None:
    """What its recovery saw of the input's end is there to read; the poller's figure counts as soon as there is one."""
    task = world.give_task()
    task.ends = {IN: 40}
    world.end = 60
    assert world.thread.run_once()
    assert world.turn()
    assert [tuple(r.ranges["in-0"]) for r in world.requests] == [(0, 40, 40), (40, 60, 60)]


def test_no_job_where_nothing_is_new_but_one_before_the_workers_would_be_ended(world: World) -> None:
    world.give_task()
    world.turn()
    for _ in range(10):
        assert not world.turn()
    assert world.requests == []
    world.clock.advance(30_000)
    assert world.turn()
    assert world.requests[0].ranges == {"in-0": [0, 0, 0]}


def test_a_pause_reads_nothing_keeps_the_workers_and_goes_on_where_it_stopped(world: World) -> None:
    """KIP-834: also where the last batch before it is still to be run again, and where tasks come meanwhile."""
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
    assert world.requests[-1].ranges == {"in-0": [100, 100, 250]}
    assert not world.turn()
    world.paused = False
    while world.turn():
        pass
    assert [tuple(r.ranges["in-0"])[:2] for r in world.requests] == [(0, 100), (100, 100), (100, 200), (200, 250)]


def test_a_batch_that_is_to_be_run_again_waits_for_the_end_of_a_pause(world: World) -> None:
    def refuse(request: BatchRequest) -> BatchResult:
        return BatchResult(ABORTED, reason="not a member")

    world.behave = refuse
    world.give_task()
    world.end = 10
    for _ in range(3):
        world.turn()
    world.paused, tried = True, len(world.requests)
    world.clock.advance(3_600_000)
    for _ in range(5):
        assert not world.turn()
    assert len(world.requests) == tried
    world.paused = False
    world.turn()  # refused once more: the hour of the pause is not taken for an hour of failures
    world.behave = world.commit
    assert world.turn()
    assert {tuple(r.ranges["in-0"]) for r in world.requests} == {(0, 10, 10)}
    assert [r.attempt for r in world.requests] == list(range(len(world.requests)))


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


def test_a_failed_batch_is_killed_fenced_recovered_in_that_order_and_run_again(world: World) -> None:
    def fail(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        raise BatchFailedError("worker died", kind="worker")

    world.behave = fail
    task = world.give_task()
    world.end = 10
    for _ in range(3):
        world.turn()
    assert world.done[:4] == ["kill [99]", "fence app-p-0", "committed", "restore"]
    first, second = world.requests[:2]
    assert first.ranges == second.ranges
    assert (first.attempt, second.attempt) == (0, 1)
    assert second.tasks[0].incarnation != first.tasks[0].incarnation
    assert task.positions == {IN: 10}


def test_a_recovery_that_hangs_shows_as_a_stall_until_it_has_gone_through(world: World) -> None:
    stalls: list[bool] = []

    def stalled() -> bool:
        return any_stalled([world.thread], world.clock)

    def fail(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        raise BatchFailedError("no leader for the changelog", kind="worker")

    def hang(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        stalls.append(stalled())
        world.clock.advance(SHOWN_AFTER_MS + 1)
        stalls.append(stalled())
        return {IN: Committed(world.committed_offset, "")}

    world.behave, world.committed = fail, hang  # type: ignore[method-assign]
    world.give_task()
    world.end = 10
    while not stalls:
        world.turn()
    assert stalls == [False, True]
    assert not stalled()


def test_what_is_settled_is_as_of_a_moment_between_batches_with_a_known_outcome(world: World) -> None:
    """The stores lag behind the changelogs from a batch's commit to its apply, and after a failure until the recovery."""
    seen: list[int | None] = []

    def watch(request: BatchRequest) -> BatchResult:
        seen.append(world.thread.settled_ms)
        world.clock.advance(100)
        seen.append(world.thread.settled_ms)
        return world.commit(request)

    def fail(request: BatchRequest) -> BatchResult:
        world.clock.advance(100)
        raise BatchFailedError("died", kind="worker")

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


def test_a_batch_that_had_committed_is_not_run_again(world: World) -> None:
    def commit_then_die(request: BatchRequest) -> BatchResult:
        world.commit(request)
        world.behave = world.commit
        raise BatchFailedError("died after the commit", kind="worker")

    world.behave = commit_then_die
    task = world.give_task()
    world.end = 10
    for _ in range(3):
        world.turn()
    assert [r.ranges["in-0"][:2] for r in world.requests] == [[0, 10]]
    assert task.positions == {IN: 10}


def test_a_task_lost_in_the_failed_batch_is_not_recovered(world: World) -> None:
    """Its new owner's transactions are open for as long as it works: waiting for their end would stop the tasks that stay."""

    def lose_and_fail(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        world.book.disown_all()
        raise BatchFailedError("refused: another owns it", kind="migrated")

    world.behave = lose_and_fail
    task = world.give_task()
    world.end = 10
    while not world.requests:
        world.turn()
    assert world.done == ["kill [99]", "fence app-p-0"], "fenced, and nothing of it read or replayed"
    given: list[ActiveTask] = []
    world.thread.drop([TASK], given.extend)
    world.turn()
    assert given == [task]
    assert task.state is TaskState.RESTORING, "whoever takes it recovers it"


def test_a_task_lost_while_it_is_recovered_ends_the_wait(world: World) -> None:
    def fail(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        raise BatchFailedError("worker died", kind="worker")

    def lose_it(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        world.book.disown_all()
        raise RetriableError("a transaction is open")

    world.behave, world.committed = fail, lose_it  # type: ignore[method-assign]
    task = world.give_task()
    world.end = 10
    while not world.requests:
        assert not world.turn()
    assert task.state is TaskState.RESTORING
    assert world.clock.monotonic_ms() < 5_000, "it did not wait for task.timeout.ms"
    given: list[ActiveTask] = []
    world.thread.drop([TASK], given.extend)
    del world.committed  # type: ignore[method-assign]
    world.turn()
    assert given == [task]
    world.book.own([TASK])
    fresh = world.give_task()
    while world.turn():
        pass
    assert fresh.positions == {IN: 10}


def test_an_abort_by_the_gate_runs_the_same_range_without_recovery(world: World) -> None:
    def refuse(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        return BatchResult(ABORTED, reason="not-a-member: generation -1")

    world.behave = refuse
    world.give_task()
    world.end = 10
    for _ in range(3):
        world.turn()
    assert [(r.attempt, r.ranges["in-0"][:2]) for r in world.requests] == [(0, [0, 10]), (1, [0, 10])]
    assert "committed" not in world.done


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_batch_that_a_rebalance_refused_is_committed_before_its_task_is_given_up_but_only_tried_once(
    world: World, refusals: int
) -> None:
    """Its records would wait for the whole hand-over otherwise, after they have waited for this batch already."""
    given: list[Sequence[ActiveTask]] = []
    answers = ["generation: specified group generation id is not valid"] * refusals

    def refuse(request: BatchRequest) -> BatchResult:
        if not given and not world.thread._commands.qsize():
            world.thread.drop([TASK], given.append)
        return BatchResult(ABORTED, reason=answers.pop()) if answers else world.commit(request)

    world.behave = refuse
    task = world.give_task()
    world.end = 10
    for _ in range(4):
        world.turn()
    assert [r.attempt for r in world.requests] == [0, 1]
    assert given == [[task]]
    assert task.positions == {IN: 10 if refusals == 1 else 0}


def test_a_task_whose_ownership_broke_runs_no_batch(world: World) -> None:
    world.give_task()
    world.book.disown([TASK])
    world.book.own([TASK])
    world.end = 10
    for _ in range(3):
        assert not world.turn()
    assert world.requests == []


def test_a_bad_record_is_fatal_with_topic_partition_and_offset(world: World) -> None:
    def bad(request: BatchRequest) -> BatchResult:
        raise BatchFailedError("cannot decode", kind="record", record=BadRecord("in", 0, 7, "SOURCE"))

    world.behave = bad
    world.give_task()
    world.end = 10
    world.ends.watch(0, [IN], world.thread.wake)
    world.ends.poll_once()
    with pytest.raises(RecordError, match="in-0@7") as raised:
        world.thread.run_once()
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("in", 0, 7)
    assert "fence app-p-0" in world.done


def test_without_spark_the_thread_ends_after_it_has_fenced(world: World) -> None:
    """The JVM was killed: retrying until ``task.timeout.ms`` would only delay the restart."""

    def fail(request: BatchRequest) -> BatchResult:
        raise BatchFailedError("Connection refused", kind="spark-gone")

    world.behave = fail
    world.give_task()
    world.end = 10
    world.turn()
    with pytest.raises(FatalError, match="start the instance again"):
        world.turn()
    assert world.done[:4] == ["kill [99]", "fence app-p-0", "committed", "restore"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 0 in 5000 milliseconds", "timeout"),
        ("OffsetOutOfRangeException: in-0\nCannot fetch record for offset 0 in 5000 milliseconds", "data-loss"),
        ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost", "data-loss"),
    ],
)
def test_a_slow_broker_is_not_taken_for_lost_data(text: str, kind: str) -> None:
    assert failure_of(text).kind == kind


def test_a_slow_broker_is_a_warning_only_if_it_stays_slow(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def slow(request: BatchRequest) -> BatchResult:
        raise BatchFailedError("Cannot fetch record for offset 0 in 5000 milliseconds", kind="timeout")

    world.behave = slow
    world.give_task()
    world.end = 10
    with caplog.at_level(logging.INFO, "everflow"):
        for _ in range(3):
            world.turn()
    levels = [record.levelname for record in caplog.records if "batch failed (timeout)" in record.getMessage()]
    assert levels[:2] == ["INFO", "WARNING"]


def test_what_would_fail_again_ends_the_thread_at_once_with_the_cause_in_one_line(world: World) -> None:
    text = "An exception\nTraceback (most recent call last):\n  File x\neverflow.errors.FatalError: too big for out\n\tat j"

    def fail(request: BatchRequest) -> BatchResult:
        raise failure_of(text)

    world.behave = fail
    world.give_task()
    world.end = 10
    world.turn()
    with pytest.raises(FatalError, match=r"\Atoo big for out\Z"):
        world.turn()
    assert world.done[:4] == ["kill [99]", "fence app-p-0", "committed", "restore"]


def test_a_batch_with_too_many_bytes_runs_again_with_as_many_records_as_fit(world: World) -> None:
    """Nothing is known of a record's size before the first batch; the range is the same for a failure of another kind."""

    def weigh(request: BatchRequest) -> BatchResult:
        (begin, end, _) = request.ranges["in-0"]
        if (end - begin) << 20 > 2 * request.most_bytes:
            raise failure_of(f"everflow.topology.hops.HopTooLargeError: 40 records have {40 << 20} bytes already")
        return world.commit(request)

    world.thread.settings = replace(world.thread.settings, limits=BatchLimits(100, 20 << 20, 1_000))
    world.behave = weigh
    world.give_task()
    world.end = 100
    for _ in range(12):
        world.turn()
    sizes = [request.ranges["in-0"][1] - request.ranges["in-0"][0] for request in world.requests]
    assert sizes[:3] == [100, 20, 20]
    assert world.committed_offset == 100
    assert [request.attempt for request in world.requests[:2]] == [0, 1]


def test_a_batch_that_keeps_failing_is_tried_with_fewer_records(world: World) -> None:
    def no_memory(request: BatchRequest) -> BatchResult:
        (begin, end, _) = request.ranges["in-0"]
        if end - begin > 10:
            raise BatchFailedError("Python worker exited unexpectedly", kind="worker")
        return world.commit(request)

    world.behave = no_memory
    world.give_task()
    world.end = 100
    for _ in range(12):
        world.turn()
    sizes = [request.ranges["in-0"][1] - request.ranges["in-0"][0] for request in world.requests]
    assert sizes[:4] == [100, 100, 25, 6]
    assert world.committed_offset > 0


def test_retries_end_with_the_task_timeout(world: World) -> None:
    def fail(request: BatchRequest) -> BatchResult:
        raise BatchFailedError("again and again")

    world.behave = fail
    world.give_task()
    world.end = 10

    def turns() -> None:
        for _ in range(100):
            world.turn()

    with pytest.raises(TaskTimeoutError, match="no progress"):
        turns()
    assert world.metrics.snapshot()[names.BATCHES_FAILED] > 2


def test_the_failures_of_tasks_given_up_long_ago_do_not_count_against_new_ones(world: World) -> None:
    abort = BatchResult(ABORTED, reason="ownership-changed")
    world.behave = lambda request: abort
    world.give_task()
    world.end = 10
    world.turn()
    world.turn()
    assert len(world.requests) == 1
    world.thread.drop([TASK], lambda tasks: None)
    world.turn()
    world.clock.advance(3_600_000)
    world.give_task()
    world.turn()
    assert len(world.requests) == 2, "aborted, and run again below"
    world.behave = world.commit
    assert world.turn()


def test_a_thread_that_fails_hands_back_no_task_of_unknown_outcome(world: World) -> None:
    given: list[Sequence[ActiveTask]] = []

    def fail(request: BatchRequest) -> BatchResult:
        if not request.ranges:  # the warm-up
            return BatchResult(COMMITTED)
        world.thread.drop([TASK], given.append)
        raise RuntimeError("a defect")

    world.give_task()
    world.end = 10
    world.behave = fail
    world.thread.start()
    assert world.thread.join(10)
    assert given == [[]]
    assert [done for done in world.done if done.startswith("failed")] == ["failed Stream thread 0 failed: RuntimeError('a defect')"]


def test_tasks_are_given_up_between_batches_only(world: World) -> None:
    given: list[Sequence[ActiveTask]] = []

    def drop_during_batch(request: BatchRequest) -> BatchResult:
        world.thread.drop([TASK], given.append)
        assert given == []
        return world.commit(request)

    world.behave = drop_during_batch
    task = world.give_task()
    world.end = 10
    world.turn()
    world.turn()
    assert task.positions == {IN: 10}
    world.turn()
    assert given == [[task]]
    assert world.thread.tasks == {}


def test_tasks_come_and_go_without_a_new_job(world: World) -> None:
    """I4: preparing one takes most of a second, in which the tasks that stay would stand still."""
    world.thread.settings = replace(world.thread.settings, partitions=frozenset({IN, OTHER}))
    world.give_task()
    world.end = 10
    world.turn()
    world.turn()
    world.book.own([OTHER_TASK])
    other = ActiveTask(OTHER_TASK, (OTHER,), (), TaskState.RUNNING, epoch=world.book.epoch(OTHER_TASK))
    other.positions[OTHER] = 0
    world.thread.add([other])
    world.turn()
    world.turn()
    world.thread.drop([TASK], lambda tasks: None)
    world.end = 20
    world.turn()
    world.turn()
    assert [set(request.ranges) for request in world.requests] == [{"in-0"}, {"in-0", "in-1"}, {"in-1"}], world.requests
    assert len({request.batch_id for request in world.requests}) == 3
    assert world.opened == [[IN, OTHER]]
    assert world.done == []


def test_a_job_that_cannot_read_a_new_task_is_prepared_anew(world: World) -> None:
    world.give_task()
    world.end = 10
    world.turn()
    world.turn()
    other = ActiveTask(OTHER_TASK, (OTHER,), (), TaskState.RUNNING)
    world.thread.add([other])
    world.turn()
    assert world.opened == [[IN], [IN, OTHER]]
    assert world.done == ["close job"]


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ('Oh:\nTraceback (most recent call last):\n  File "x", line 1\n    f()\nValueError: bad\n\n\tat j', "ValueError: bad"),
        ("An error\n\tat x\nCaused by: worker crashed\n\tat y\nCaused by: java.io.EOFException\n\tat z", "worker crashed"),
        ("just this", "just this"),
        ("", "unknown"),
    ],
)
def test_the_log_names_the_cause_in_one_line(cause: str, line: str) -> None:
    assert brief(cause) == line
