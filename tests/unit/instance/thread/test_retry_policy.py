"""What a stream thread does after each event: the table of the module, row by row."""

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
from everflow.memory import WorkerMemory
from everflow.protocol.messages import BadEntry, BadRecord, BatchFailure, CodeLine
from everflow.records import UNBOUNDED_BYTES, OffsetRange, TaskId, TopicPartition

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
    assert "was rebuilt from its changelog" in str(error)


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
