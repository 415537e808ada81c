"""What a stream thread does about a failed batch: D6's order, tries, ends."""

import logging
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, TimeWindows, TopologyError, serdes
from everflow import metrics as names
from everflow.clock import SystemClock
from everflow.config import BatchLimits
from everflow.errors import (
    BatchTimeoutError,
    ColumnError,
    DamagedEntryError,
    EverflowError,
    FatalError,
    InternalTopicError,
    PunctuatorError,
    RecordError,
    RepeatedFailureError,
    RetriableError,
    StateDiskError,
    TaskTimeoutError,
    WorkerDiedError,
)
from everflow.instance.tasks.task import ActiveTask, TaskState, TaskTimeouts
from everflow.instance.thread.batch_counts import (
    HEAD_EVERY,
    BatchCounts,
    DroppedRecords,
    TablePrinter,
    TableText,
)
from everflow.instance.thread.retry_policy import (
    ReplacementLimits,
    RetryPolicy,
    StalledTasks,
    first_size,
)
from everflow.instance.thread.stream_thread import (
    SHOWN_AFTER_MS,
    Hung,
    StreamThreadExceptionResponse,
    Uncaught,
)
from everflow.instance.thread.worker_processes import alive, is_worker, trace_and_kill
from everflow.memory import WorkerMemory
from everflow.metrics import Metrics
from everflow.protocol.messages import (
    ABORTED,
    COMMITTED,
    BadRecord,
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
    CodeLine,
    Printed,
)
from everflow.records import LATE_UNMATCHED, UNBOUNDED_BYTES, CommittedOffset, TopicPartition
from everflow.testing import TopologyTestDriver, wait_until
from everflow.worker.failures import innermost_line_in
from everflow.worker.task_step import cell
from unit.instance.thread.stream_thread_world import IN, OTHER, OTHER_TASK, TASK, World
from unit.manual_clock import ManualClock


def failed(kind: str, error: str, **more: Any) -> BatchFailedError:
    return BatchFailedError(BatchFailure(kind=kind, error=error, **more))


@pytest.fixture
def world() -> World:
    return World()


def test_a_failed_batch_is_killed_fenced_recovered_and_run_again(world: World) -> None:
    def fail(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        raise failed("worker", "worker died")

    task = world.fed(fail)
    world.turns(3)
    assert world.done[:4] == ["kill [99]", "fence app-p-0", "committed", "restore"]
    first, second = world.requests[:2]
    assert first.ranges == second.ranges
    assert (first.attempt, second.attempt) == (0, 1)
    assert second.tasks[0].incarnation != first.tasks[0].incarnation
    assert task.positions == {IN: 10}


def test_a_recovery_that_hangs_shows_as_a_stall_until_it_has_gone_through(world: World) -> None:
    stalls: list[bool] = []

    def fail(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        raise failed("worker", "no leader for the changelog")

    def hang(*_: object, **__: object) -> Mapping[TopicPartition, CommittedOffset]:
        stalls.append(world.thread.stalled)
        world.clock.advance(SHOWN_AFTER_MS + 1)
        stalls.append(world.thread.stalled)
        return {IN: CommittedOffset(world.committed_offset, "")}

    world.behave, world.committed = fail, hang  # type: ignore[method-assign]
    world.give_task()
    world.end = 10
    while not stalls:
        world.turn()
    assert stalls == [False, True]
    assert not world.thread.stalled


def test_a_batch_that_had_committed_is_not_run_again(world: World) -> None:
    def commit_then_die(request: BatchRequest) -> BatchResult:
        world.commit(request)
        world.behave = world.commit
        raise failed("worker", "died after the commit")

    task = world.fed(commit_then_die)
    world.turns(3)
    assert [r.ranges[IN] for r in world.requests] == [(0, 10)]
    assert task.positions == {IN: 10}


def test_a_task_lost_in_the_failed_batch_is_not_recovered(world: World) -> None:
    """To wait for its new owner's transactions would stop the tasks that stay."""

    def lose_and_fail(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        world.book.disown_all()
        raise failed("migrated", "refused: another owns it")

    task = world.fed(lose_and_fail)
    while not world.requests:
        world.turn()
    assert world.done == ["kill [99]", "fence app-p-0"], "fenced, and nothing read"
    given: list[ActiveTask] = []
    world.thread.drop([TASK], given.extend)
    world.turn()
    assert given == [task]
    assert task.state is TaskState.RESTORING, "whoever takes it recovers it"


def test_a_task_lost_while_it_is_recovered_ends_the_wait(world: World) -> None:
    def fail(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        raise failed("worker", "worker died")

    def lose_it(*_: object, **__: object) -> Mapping[TopicPartition, CommittedOffset]:
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
    del world.committed
    world.turn()
    assert given == [task]
    world.book.own([TASK])
    fresh = world.give_task()
    while world.turn():
        pass
    assert fresh.positions == {IN: 10}


def test_a_bad_record_is_fatal_with_topic_partition_and_offset(world: World) -> None:
    def bad(request: BatchRequest) -> BatchResult:
        raise BatchFailedError(
            BatchFailure(
                kind="undecodable", error="cannot decode", record=BadRecord("in", 0, 7, "SOURCE")
            )
        )

    world.fed(bad)
    world.ends.watch(0, [IN], world.thread.wake)
    world.ends.poll_once()
    with pytest.raises(RecordError, match="in-0@7") as raised:
        world.thread.run_once()
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("in", 0, 7)
    assert "fence app-p-0" in world.done


def test_what_would_fail_again_ends_the_thread_at_once_with_the_cause(world: World) -> None:
    def fail(request: BatchRequest) -> BatchResult:
        raise failed(
            "fatal",
            "too big for out",
            code="EF-RECORD-TOO-LARGE",
            details="Traceback (most recent call last):\n  File x",
        )

    world.fed(fail)
    world.turn()
    with pytest.raises(FatalError, match=r"\Atoo big for out\Z") as raised:
        world.turn()
    assert raised.value.code == "EF-RECORD-TOO-LARGE"
    assert world.done[:4] == ["kill [99]", "fence app-p-0", "committed", "restore"]


def test_a_full_disk_behind_each_commit_ends_the_thread(world: World) -> None:
    """The recovery makes room for a moment: this batch counts, the next fails the same way."""

    def commit_and_fail_to_apply(request: BatchRequest) -> BatchResult:
        world.commit(request)
        raise failed("fatal", "no space left on device", code="EF-STATE-DISK")

    world.fed(commit_and_fail_to_apply)
    world.turn()
    with pytest.raises(StateDiskError, match="no space left"):
        world.turn()
    assert [r.ranges[IN] for r in world.requests] == [(0, 10)]
    assert world.done[:4] == ["kill [99]", "fence app-p-0", "committed", "restore"]


def test_failures_of_tasks_given_up_long_ago_do_not_count(world: World) -> None:
    abort = BatchResult(outcome=ABORTED, reason="ownership-changed")
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
            return BatchResult(outcome=COMMITTED)
        world.thread.drop([TASK], given.append)
        raise RuntimeError("a defect")

    world.give_task().ends = {IN: 10}
    world.behave = fail
    world.thread.start()
    assert world.thread.join(10)
    assert given == [[]]
    assert [done for done in world.done if done.startswith("failed")] == [
        "failed Stream thread 0 failed: RuntimeError('a defect')"
    ]


def test_what_repeats_unchanged_ends_soon(world: World, caplog: pytest.LogCaptureFixture) -> None:
    said = "KeyError: 'nobody thought of it'"

    def fail(request: BatchRequest) -> BatchResult:
        world.clock.advance(1_000)
        raise failed("other", said, where=("app.py:3",))

    world.fed(fail)
    began = world.clock.monotonic_ms()
    with (
        caplog.at_level(logging.WARNING, "everflow"),
        pytest.raises(RepeatedFailureError) as raised,
    ):
        world.turns(10)
    assert world.clock.monotonic_ms() - began < 5_000
    first, operator, *cure = str(raised.value).splitlines()
    assert first.startswith(f"{said} (3 times ")
    assert operator.endswith(" at app.py:3")
    assert "micro-batch was" in "".join(cure)
    second = [record.getMessage() for record in caplog.records][1]
    assert "same failure again" in second
    assert "micro-batch was" in second, "the cure is told before the end"


def test_a_record_that_hangs_is_found(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The records before it are committed."""
    poison, said = 37, "The batch did not end."

    def divide(request: BatchRequest) -> BatchResult:
        begin, end = request.ranges[IN]
        world.clock.advance(2_600)
        if begin <= poison < end:
            raise failed("hang", said, where=("app.py:3",))
        return world.commit(request)

    world.fed(divide, 100)

    with caplog.at_level(logging.INFO, "everflow"), pytest.raises(BatchTimeoutError) as raised:
        world.turns(60)
    first, operator, cure = str(raised.value).splitlines()
    assert first.startswith(f"{said} (2 times ")
    assert first.endswith(" in-0@37)")
    assert operator.endswith(" at app.py:3")
    assert "max.poll.interval.ms" in cure
    assert re.search("Stream thread 0: .* smaller batches", caplog.text)
    told = [line for line in caplog.messages if "still looked for" in line]
    assert re.fullmatch("Stream thread 0: .*, 5 s so far: trying 6 from in-0@12", told[0])
    assert [line.partition(" so far")[0].rpartition(", ")[2] for line in told] == [
        "5 s",
        "10 s",
        "16 s",
        "21 s",
    ], "and repeated"
    assert world.committed_offset == poison
    assert world.metrics.snapshot()[names.BATCHES_FAILED] < 6


def test_what_is_before_a_record_that_a_column_names_is_committed(world: World) -> None:
    """A resident step knows which record it is: nothing is looked for."""
    poison, said = 37, "A Column cannot be computed: [DIVIDE_BY_ZERO] Division by zero."

    def divide(request: BatchRequest) -> BatchResult:
        begin, end = request.ranges[IN]
        if begin <= poison < end:
            raise failed("column", said, where=("app.py:3",), record=BadRecord(*IN, poison))
        return world.commit(request)

    world.fed(divide, 100)

    with pytest.raises(ColumnError) as raised:
        world.turns(10)
    assert str(raised.value).splitlines()[0] == f"{said} (on in-0@37)"
    assert world.committed_offset == poison
    assert world.metrics.snapshot()[names.BATCHES_FAILED] == 2


@pytest.mark.parametrize("bad", [IN, OTHER], ids=str)
@pytest.mark.parametrize(
    ("kind", "raised"), [("worker", WorkerDiedError), ("hang", BatchTimeoutError)]
)
def test_of_several_tasks_the_record_that_ends_the_worker_is_found(
    world: World, bad: TopicPartition, kind: str, raised: type[Exception]
) -> None:
    read = {IN: 0, OTHER: 0}

    def divide(request: BatchRequest) -> BatchResult:
        begin, end = request.ranges.get(bad, (0, 0))
        if begin <= 37 < end:
            raise failed(kind, "no trace of why")
        read.update({tp: places.end for tp, places in request.ranges.items()})
        return BatchResult(outcome=COMMITTED, consumed=dict(read), counts={"in": 1})

    world.behave = divide
    committed = lambda partitions, **_: {tp: CommittedOffset(read[tp], "") for tp in partitions}  # noqa: E731
    world.committed = committed  # type: ignore[method-assign]
    world.book.own([OTHER_TASK])
    world.give_task(OTHER_TASK, OTHER)
    world.give_task()
    world.end = 100

    with pytest.raises(raised, match=rf"times.*{bad}@37"):
        world.turns(100)
    assert read[bad] == 37, "all that is before it was committed"


def test_a_batch_that_hangs_is_told_as_that_and_its_record_found(world: World) -> None:
    """How the watchdog's victims died is not why; a loop's line is another one each time."""
    sizes: list[int] = []

    def hangs_at_7(request: BatchRequest) -> BatchResult:
        start, end = request.ranges[IN]
        if not start <= 7 < end:
            return world.commit(request)
        sizes.append(end - start)
        assert world.thread.batch_since_ms is not None
        world.thread.hung = Hung(world.thread.batch_since_ms, 4_000)
        raise failed(
            "worker",
            "A Python worker process died (Aborted)",
            line=CodeLine("app.py", len(sizes), "loop"),
        )

    world.fed(hangs_at_7, 20)

    with pytest.raises(BatchTimeoutError) as error:
        world.turns(40)
    text = str(error.value)
    assert re.match(r".* 4 s \(max\.poll\.interval\.ms\) \(2 times .* in-0@7\)", text)
    assert "app.py:" in text
    assert "time-out" in text
    assert sizes == [20, 1, 1]
    assert world.committed_offset == 7


def test_a_worker_that_dies_after_a_batch_that_hung_is_told_as_that(world: World) -> None:
    def dies(request: BatchRequest) -> BatchResult:
        raise failed("worker", "A Python worker process died (Segmentation fault)")

    world.thread.hung = Hung(-1.0, 4_000)
    world.give_task()
    world.turn()
    world.end, world.behave = 5, dies
    world.turn()
    assert world.thread.trouble is not None
    assert "Segmentation fault" in world.thread.trouble.text


def test_a_program_that_no_worker_can_build_ends_the_thread_at_once(world: World) -> None:
    def refuse(request: BatchRequest) -> BatchResult:
        raise failed(
            "fatal", "a Spark Python worker cannot build the program", code="EF-PROGRAM-IN-WORKER"
        )

    world.behave = refuse
    world.thread.start()
    assert world.thread.join(10)
    assert [done for done in world.done if done.startswith("failed")] == [
        "failed a Spark Python worker cannot build the program"
    ]
    assert world.thread.warm.is_set(), "whoever waits for the workers must not wait for ever"


def test_a_batch_cut_off_is_no_failure(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def killed(request: BatchRequest) -> BatchResult:
        world.thread.cut_off = True
        raise failed("worker", "A Python worker process died (no trace of why)")

    caplog.set_level(logging.INFO)
    world.fed(killed)
    world.turns(2)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert "was cut off" in caplog.text


# A stream thread that cannot go on (KIP-671).


REPLACE = StreamThreadExceptionResponse.REPLACE_THREAD
DEFAULTS = ReplacementLimits()
BAD = RecordError("no such city", topic="in", partition=0, offset=7)


def asked(handler: Callable[[EverflowError], Any] | None) -> ReplacementLimits | None:
    return Uncaught(lambda _: None, handler).limits_for(BAD)


def policy() -> RetryPolicy:
    return RetryPolicy(
        limits=BatchLimits(100, 1 << 30, 1_000),
        size=first_size(functions=False),
        worker=lambda: WorkerMemory(UNBOUNDED_BYTES),
        may_continue=lambda stage, node: False,
        stalled=StalledTasks(TaskTimeouts(10_000)),
    )


def rest_ms(
    retries: RetryPolicy,
    now_ms: float,
    error: EverflowError = BAD,
    limits: ReplacementLimits | None = DEFAULTS,
) -> int | None:
    """For how long the task of a thread that is replaced rests; None: the thread ends."""
    task = ActiveTask(id=TASK, inputs=(IN,), stores=(), state=TaskState.RUNNING, epoch=1)
    replaced, _ = retries.uncaught(error, limits, None, {TASK: task}, now_ms)
    if not replaced:
        return None
    steps = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000)
    found = next(ms for ms in steps if not retries.resting(now_ms + ms))
    assert retries.resting(now_ms + found - 1) == {TASK}
    return found


def test_without_a_handler_the_instance_ends() -> None:
    assert asked(None) is None
    assert asked(lambda _: StreamThreadExceptionResponse.SHUTDOWN_CLIENT) is None, "as it may ask"
    assert rest_ms(policy(), 0, limits=None) is None


def test_each_replacement_waits_longer_and_the_window_moves_on() -> None:
    limits, retries = ReplacementLimits(most=3, within_ms=100_000), policy()
    rests = [rest_ms(retries, at, limits=limits) for at in (0, 10, 20)]
    assert rests == [1_000, 2_000, 4_000]
    assert rest_ms(retries, 30, limits=limits) is None, "the fourth within the window"
    assert rest_ms(policy(), 30, limits=limits) == 1_000, "another thread has its own count"
    assert rest_ms(retries, 100_015, limits=limits) == 2_000, "two of them are long ago"


def test_a_rest_is_a_minute_at_most() -> None:
    limits, retries = ReplacementLimits(most=20), policy()
    assert max(rest_ms(retries, 0, limits=limits) or 0 for _ in range(20)) == 60_000


@pytest.mark.parametrize("error", [FatalError("x"), InternalTopicError("x")])
def test_what_only_a_restart_mends_replaces_nothing(error: EverflowError) -> None:
    assert rest_ms(policy(), 0, error) is None


@pytest.mark.parametrize(
    "error", [TaskTimeoutError("x"), DamagedEntryError("x"), EverflowError("a defect")]
)
def test_what_may_pass_replaces(error: EverflowError) -> None:
    assert rest_ms(policy(), 0, error) == 1_000


def test_a_handler_that_fails_ends_the_instance(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: EverflowError) -> Any:
        raise ZeroDivisionError

    assert asked(broken) is None
    assert asked(lambda _: sys.exit(1)) is None, "not only its thread"
    assert asked(lambda _: "REPLACE_THREAD") is None
    assert asked(lambda _: REPLACE) == ReplacementLimits()
    assert "handler failed" in caplog.text
    assert "returned 'REPLACE_THREAD'" in caplog.text


def test_the_whole_application_is_asked_to_end() -> None:
    shut: list[EverflowError] = []
    answer = StreamThreadExceptionResponse.SHUTDOWN_APPLICATION
    assert Uncaught(shut.append, lambda _: answer).limits_for(BAD) is None
    assert shut == [BAD]


NO_SUCH_CITY = BatchFailure(kind="record", error="no such city", record=BadRecord("in", 0, 7))
IN_A_CALL = BatchFailure(
    kind="fatal", error="no such city", code=PunctuatorError.code, partitions=(IN,)
)
"""A punctuator's, which has no record."""


class TwoTasks(World):
    """`TASK` fails at offset 7 of its partition until it is mended; `OTHER_TASK` never does."""

    def __init__(
        self, handler: Callable[[EverflowError], Any], failure: BatchFailure = NO_SUCH_CITY
    ) -> None:
        super().__init__()
        self.failure = failure
        self.at = {IN: 0, OTHER: 0}
        self.mended = False
        self.behave = self.process
        policy = Uncaught(lambda _: None, handler)
        self.thread.services = replace(self.thread.services, uncaught=policy.limits_for)
        self.book.own([TASK, OTHER_TASK])
        self.both = [self.give_task(), self.give_task(OTHER_TASK, OTHER)]

    def process(self, request: BatchRequest) -> BatchResult:
        wanted = request.ranges.get(IN)
        if not self.mended and wanted is not None and wanted.start <= 7 < wanted.end:
            raise BatchFailedError(self.failure)
        self.at.update({tp: wanted.end for tp, wanted in request.ranges.items()})
        consumed = {tp: wanted.end for tp, wanted in request.ranges.items()}
        return BatchResult(outcome=COMMITTED, consumed=consumed, counts={"in": 1})

    def committed(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        self.done.append("committed")
        return {tp: CommittedOffset(self.at[tp], "") for tp in partitions}

    def go(self, turns: int = 4) -> None:
        for _ in range(turns):
            self.ends.poll_once()
            self.thread._turn()


@pytest.mark.parametrize("failure", [NO_SUCH_CITY, IN_A_CALL], ids=["record", "punctuator"])
def test_the_task_that_failed_rests_and_the_others_go_on(failure: BatchFailure) -> None:
    world = TwoTasks(lambda _: REPLACE, failure)
    world.end = 10
    world.go()
    assert world.at == {IN: 0, OTHER: 10}, "the other task does not wait"
    assert "failed" not in " ".join(world.done)
    assert len(world.opened) == 2, "another job"
    assert all(task.state is TaskState.RUNNING for task in world.both)
    assert world.done.index("kill [99]") < world.done.index("fence app-p-0")
    found = world.thread.troubles()
    assert list(found) == [TASK]
    assert "no such city" in found[TASK].text
    world.end = 20
    world.go()
    assert world.at == {IN: 0, OTHER: 20}
    world.mended = True
    world.clock.advance(60_000)
    world.go()
    assert world.at == {IN: 20, OTHER: 20}
    assert world.thread.troubles() == {}


def test_a_task_that_never_gets_well_ends_the_instance_after_so_many_replacements() -> None:
    met: list[EverflowError] = []

    def handler(error: EverflowError) -> StreamThreadExceptionResponse:
        met.append(error)
        return REPLACE

    world = TwoTasks(handler)
    world.end = 10

    def go_on() -> None:
        for _ in range(100):
            world.go()
            world.clock.advance(20_000)

    with pytest.raises(RecordError, match="no such city"):
        go_on()
    assert len(met) == 6
    assert world.at == {IN: 0, OTHER: 10}


def test_without_a_culprit_all_tasks_of_the_thread_rest() -> None:
    world = TwoTasks(lambda _: REPLACE)
    world.mended = True
    world.end = 10
    process = world.process

    def break_down(_: BatchRequest) -> BatchResult:
        world.behave = process
        raise ZeroDivisionError("a defect")

    world.behave = break_down
    world.go(2)
    assert world.at == {IN: 0, OTHER: 0}
    assert set(world.thread.troubles()) == {TASK, OTHER_TASK}
    world.clock.advance(2_000)
    world.go()
    assert world.at == {IN: 10, OTHER: 10}


def test_a_task_that_goes_takes_its_trouble_along() -> None:
    world = TwoTasks(lambda _: REPLACE)
    world.end = 10
    world.go()
    given: list[ActiveTask] = []
    world.thread.drop([TASK], given.extend)
    world.go(1)
    assert [task.id for task in given] == [TASK]
    assert world.thread.troubles() == {}


# What a batch prints and counts, and which processes an instance may end.

LATE = (
    "too late: the window's grace was over, by the newest record time of the task "
    "(docs/guide/time.md)"
)


def test_the_first_are_told_at_once_and_the_next_together_after_a_minute() -> None:
    dropped = DroppedRecords()
    assert dropped.lines({"by-item": {"late": 1}}, 5_000) == [f"by-item dropped 1 record {LATE}"]
    assert dropped.lines({"by-item": {"late": 2}}, 6_000) == []
    assert dropped.lines({"by-item": {"late": 1_000}}, 64_999) == []
    assert dropped.lines({}, 65_000) == [f"by-item dropped 1,002 records {LATE}"]
    assert dropped.lines({}, 200_000) == []


def test_a_clocks_call_is_no_record() -> None:
    (line,) = DroppedRecords().lines({"ticks": {"punctuation": 2}}, 0.0)
    assert line.startswith("ticks dropped 2 clock's calls ")


def test_a_late_row_that_was_emitted_without_a_match_is_not_dropped() -> None:
    metrics = Metrics()
    counts = BatchCounts(metrics, ManualClock(), 1)
    dropped = {"by-order": {LATE_UNMATCHED: 2, "null-key": 1}}
    counts.add(BatchResult(outcome=COMMITTED, dropped=dropped))
    assert metrics.snapshot()[names.DROPPED_RECORDS] == 1
    assert metrics.series()[names.DROPPED] == {("1", "by-order", "null-key"): 1}
    assert metrics.series()[names.UNMATCHED_LATE] == {("1", "by-order"): 2}
    emitted, left_out = DroppedRecords().lines(dropped, 0)
    assert emitted.startswith("by-order emitted 2 records ")
    assert re.fullmatch("by-order dropped 1 record .* key", left_out)


def test_operators_and_reasons_are_told_apart() -> None:
    dropped = DroppedRecords()
    lines = dropped.lines({"a": {"late": 1, "null-key": 2}, "b": {"null-value": 3}}, 0)
    lines += dropped.lines({"b": {"null-key": 1}}, 1)
    assert lines[0] == f"a dropped 1 record {LATE}"
    assert re.fullmatch("a dropped 2 records .* key", lines[1])
    assert re.fullmatch("b dropped 3 records .* value", lines[2])
    assert re.fullmatch("b dropped 1 record .* key", lines[3])


def test_the_last_are_told_in_silence_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Who adds the lines up has all of them."""
    clock = ManualClock()
    counts = BatchCounts(Metrics(), clock, 0)
    for _ in range(2):
        counts.add(BatchResult(outcome=COMMITTED, dropped={"a": {"null-key": 2}}))
        clock.advance(1_000)
    with caplog.at_level("WARNING", "everflow"):
        caplog.clear()
        counts.log_drops(59_999)
        assert caplog.messages == []
        counts.log_drops(60_000)
        clock.advance(59_000)
        counts.add(BatchResult(outcome=COMMITTED, dropped={"a": {"null-key": 1}}))
        counts.log_drops(math.inf)
    said = "\n".join(caplog.messages)
    assert re.fullmatch("a dropped 2 records .* key\na dropped 1 record .* key", said)


def test_a_commit_has_a_time_and_an_abort_its_cause() -> None:
    metrics, clock = Metrics(), ManualClock(7_000)
    counts = BatchCounts(metrics, clock, 2)
    counts.add(BatchResult(outcome=COMMITTED))
    assert names.LAST_COMMIT not in metrics.series(), "a batch of nothing commits nothing"
    committed = BatchResult(outcome=COMMITTED, counts={"renewed": 1}, timings={"gate": 0.2})
    counts.add(committed)
    clock.advance(3_000)
    counts.add(committed)
    counts.again(reason="ownership-changed: task 0_0 is not owned")
    counts.again("worker")
    series = metrics.series()
    assert series[names.LAST_COMMIT] == {("2",): 10_000}
    assert series[names.RENEWED_PRODUCERS] == {("2",): 2}
    assert series[names.REFUSED_COMMITS] == {("2", "ownership-changed"): 1}
    assert series[names.FAILED_BATCHES] == {("2", "aborted"): 1, ("2", "worker"): 1}


def test_remarks_of_a_batch_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    counts = BatchCounts(Metrics(), ManualClock(), 0)
    with caplog.at_level("WARNING", "everflow"):
        counts.add(BatchResult(outcome=COMMITTED, remarks=["a", "b", "c", "d", "e"]))
    assert caplog.messages == ["a; b; c; and 2 more"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="tells it by /proc")
@pytest.mark.parametrize("ours", [True, False])
def test_a_worker_is_told_by_its_slot(ours: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "EVERFLOW_SLOT"}
    if ours:
        environment["EVERFLOW_SLOT"] = "t0-0"
    program = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_worker(process.pid) == ours
        process.communicate(b"\n")


LOOPS = """
import faulthandler, signal, sys
faulthandler.enable(open(sys.argv[1], "w"))
def forever():
    print("up", flush=True)
    while True:
        pass
forever()
"""


@pytest.mark.parametrize("deaf", [False, True])
def test_a_worker_that_hangs_says_where_before_it_is_killed(tmp_path: Path, deaf: bool) -> None:
    """One that takes no notice of the signal is killed all the same."""
    program, trace = tmp_path / "program.py", tmp_path / "trace"
    ignoring = 'signal.signal(signal.SIGABRT, signal.SIG_IGN); open(sys.argv[1], "w")'
    program.write_text(
        LOOPS.replace('faulthandler.enable(open(sys.argv[1], "w"))', ignoring) if deaf else LOOPS
    )
    with subprocess.Popen(
        [sys.executable, str(program), str(trace)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        trace_and_kill([process.pid], SystemClock())
        assert not alive(process.pid)
    line = innermost_line_in(trace.read_text())
    assert (line is None) == deaf
    if line is not None:
        assert (line.file, line.function) == (str(program), "forever")


TEXT, LONG = serdes.string(), serdes.long()
ORDER = serdes.json("item string, amount double")


def printed(*rows: str, most: int = 3, left_out: int = 0) -> Printed:
    return Printed("t", ["key", "value"], [[row, "1"] for row in rows], most, left_out)


def test_rows_stand_under_each_other_and_the_head_comes_again() -> None:
    text = TableText()
    assert text.lines(printed("a", "bcdef", left_out=1_200)) == [
        "--- t",
        "key    value",
        "a      1",
        "bcdef  1",
        "... and 1,200 more",
    ]
    assert text.lines(printed("x")) == ["x      1"]
    assert text.lines(printed("longer-one"))[:2] == ["--- t", "key         value"]
    for _ in range(HEAD_EVERY - 1):
        assert text.lines(printed("x")) == ["x           1"]
    assert text.lines(printed("x"))[0] == "--- t"
    assert text.lines(printed("x")._replace(title="u"))[0] == "--- u"


def test_what_comes_between_two_looks_is_bounded() -> None:
    written: list[str] = []
    printer = TablePrinter(written.append)
    printer.add([printed("a", "b"), printed("c", "d", left_out=5)])
    printer.flush()
    wait_until(lambda: written, 10, "the rows")
    assert "".join(written).splitlines()[2:] == ["a    1", "b    1", "c    1", "... and 6 more"]


def test_whoever_adds_never_waits_for_who_prints() -> None:
    import threading

    may_write, written = threading.Event(), list[str]()

    def slowly(text: str) -> None:
        may_write.wait(30)
        written.append(text)

    printer = TablePrinter(slowly)
    for at in range(1_000):
        printer.add([printed(f"{at}", most=5)])
    may_write.set()

    def told() -> int:
        lines = [line for text in written for line in text.splitlines()]
        more = sum(int(line.split()[2].replace(",", "")) for line in lines if "more" in line)
        return more + sum(line.endswith("  1") for line in lines)

    wait_until(lambda: told() == 1_000, 20, "all rows to be printed or counted", history=written)
    assert sum(text.count("\n") for text in written) < 60


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), ("a\nb", "a\\nb"), ("x" * 80, "x" * 57 + "...")]
)
def test_cells_are_one_line(value: Any, text: str) -> None:
    assert cell(value) == text


@pytest.mark.spark
def test_a_program_prints_its_streams_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=TEXT, value=ORDER)
    orders.filter(F.col("value.amount") > 1).print_table("orders", rows=2)
    hours = orders.group_by_key().windowed_by(TimeWindows.of_size("1 hour"))
    hours.count(store="n").map_values(F.col("value") * 2).print_table()
    assert "KSTREAM-PRINTER-" in builder.build().describe()
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("orders", TEXT, ORDER)
        topic.pipe_batch([("ann", {"item": "tea", "amount": float(at)}, at) for at in range(5)])
    assert capsys.readouterr().out.splitlines() == [
        "--- orders",
        "time                     key  item  amount",
        "1970-01-01 00:00:00.002  ann  tea   2.0",
        "1970-01-01 00:00:00.003  ann  tea   3.0",
        "... and 1 more",
        "--- KTABLE-TOSTREAM-0000000005",
        "time                     key.key  key.start  key.end  value",
        "1970-01-01 00:00:00.004  ann      0          3600000  10",
    ]


@pytest.mark.spark
@pytest.mark.parametrize("options", [{"rows": 0}, {"rows": "5"}, {"rows": 1_001}, {"title": 3}])
def test_what_cannot_be_printed_is_refused(options: dict[str, Any]) -> None:
    stream = StreamsBuilder().stream("s", key=TEXT, value=LONG)
    with pytest.raises(TopologyError, match=r"print_table: (rows|title) is"):
        stream.print_table(**options)
