"""What becomes of a batch that fails: fewer records, or all but one (notes 041, 042)."""

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from everflow.errors import (
    BatchTimeoutError,
    FatalError,
    RetriableError,
    TaskTimeoutError,
    WorkerDiedError,
)
from everflow.instance.tasks.task import ActiveTask, TaskState
from everflow.instance.thread.batching import BatchSize
from everflow.instance.thread.retry_policy import FIRST_WITH_FUNCTIONS, first_size
from everflow.instance.thread.stream_thread import StreamThread
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.memory import MIB, WORKER_BYTES, Taken, WorkerMemory
from everflow.protocol.messages import (
    COMMITTED,
    BadRecord,
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
)
from everflow.records import CommittedOffset, OffsetRange, TaskId, TopicPartition
from unit.instance.thread.stream_thread_world import IN, OTHER, OTHER_TASK, TASK, World

PAYMENTS = TopicPartition("payments", 0)


def failed(kind: str, error: str = "it failed", **more: Any) -> BatchFailedError:
    return BatchFailedError(BatchFailure(kind=kind, error=error, **more))


def world(
    made: World | None = None,
    *,
    limit: int = 100_000,
    goes_on: bool = True,
    functions: bool = False,
    memory: WorkerMemory | None = None,
) -> World:
    """A thread whose records that fail need not stop it."""
    made = made or World()
    before = made.thread
    settings = dataclasses.replace(
        before.settings,
        limits=dataclasses.replace(before.settings.limits, max_records=limit),
        may_continue=lambda stage, node: goes_on,
        functions=functions,
        task_timeout_ms=300_000,
    )
    made.thread = StreamThread(
        number=0,
        settings=settings,
        services=before.services
        if memory is None
        else dataclasses.replace(before.services, worker_memory=lambda: memory),
        clock=made.clock,
        new_incarnation=before.new_incarnation,
    )
    return made


def left_out(request: BatchRequest) -> set[int]:
    return {
        failure.record.offset for failure in request.earlier_failures if failure.record is not None
    }


class MergedWorld(World):
    """Of two inputs: a payment comes with each so many orders, and the merge stops where the range
    of one of them ends."""

    def __init__(self, orders_each: int) -> None:
        super().__init__()
        self.each, self.paid = orders_each, 0

    def give_task(self, task_id: TaskId = TASK, tp: TopicPartition = IN) -> ActiveTask:
        task = ActiveTask(
            id=TASK,
            inputs=(IN, PAYMENTS),
            stores=(),
            state=TaskState.RUNNING,
            epoch=self.book.epoch(TASK),
        )
        task.positions.update({IN: 0, PAYMENTS: 0})
        self.thread.add([task])
        return task

    def commit(self, request: BatchRequest) -> BatchResult:
        orders, payments = request.ranges[IN], request.ranges[PAYMENTS]
        reached = min(orders.end, self.each * payments.end)
        at = {IN: max(orders.start, reached), PAYMENTS: max(payments.start, reached // self.each)}
        read = at[IN] - orders.start + at[PAYMENTS] - payments.start
        self.committed_offset, self.paid = at[IN], at[PAYMENTS]
        return BatchResult(outcome=COMMITTED, consumed=at, counts={"in": read})

    def committed(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        at = {IN: self.committed_offset, PAYMENTS: self.paid}
        return {tp: CommittedOffset(offset, "") for tp, offset in at.items()}


def until_all_read(made: World, turns: int) -> None:
    for _ in range(turns):
        if made.committed_offset == made.end:
            return
        made.turn()
    raise AssertionError(f"at {made.committed_offset} of {made.end} after {turns} turns")


class Poison:
    """A job that fails on some offsets, in the way of ``kind``."""

    def __init__(self, made: World, kind: str, bad: set[int], named: bool) -> None:
        self.made, self.kind, self.bad, self.named = made, kind, bad, named
        self.runs = 0
        self.committed: list[int] = []
        self.dead: list[int] = []

    def __call__(self, request: BatchRequest) -> BatchResult:
        self.runs += 1
        wanted = request.ranges[IN]
        aside = left_out(request)
        for offset in range(wanted.start, wanted.end):
            if offset in self.bad and offset not in aside:
                record = BadRecord("in", 0, offset, "node") if self.named else None
                raise failed(self.kind, record=record)
        offsets = set(range(wanted.start, wanted.end))
        self.dead += sorted(offsets & aside)
        self.committed += sorted(offsets - aside)
        return self.made.commit(request)


@pytest.mark.parametrize(
    ("kind", "named"), [("record", True), ("column", True), ("worker", False), ("hang", False)]
)
def test_a_record_that_another_failed_on_is_left_to_its_handler(kind: str, named: bool) -> None:
    made = world()
    poison = Poison(made, kind, {37, 700}, named)
    made.fed(poison, 1_000)
    until_all_read(made, 400)
    assert poison.dead == [37, 700]
    assert poison.committed == [n for n in range(1_000) if n not in (37, 700)]
    assert poison.runs < (6 if kind == "record" else 120)
    assert made.thread.trouble is None


@pytest.mark.parametrize("records", [1, 1_000])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_search_is_no_time_out_of_its_task(goes_on: bool, records: int) -> None:
    """By default a batch hangs after as long as a task may stall; KIP-572 counts what waits for
    brokers."""
    made = world(goes_on=goes_on)
    poison = Poison(made, "hang", {0}, named=False)

    def hangs(request: BatchRequest) -> BatchResult:
        made.clock.advance(10 if request.ranges[IN].start or left_out(request) else 300_000)
        return poison(request)

    made.fed(hangs, records)
    if goes_on:
        until_all_read(made, 400)
        assert poison.dead == [0]
        assert poison.committed == list(range(1, records))
    else:
        with pytest.raises(BatchTimeoutError, match="on in-0@0"):
            until_all_read(made, 400)


def test_where_no_handler_goes_on_the_instance_stops_with_the_record() -> None:
    made = world(goes_on=False)
    made.fed(Poison(made, "worker", {3}, named=False))
    with pytest.raises(WorkerDiedError, match="on in-0@3"):
        until_all_read(made, 100)


def test_a_record_that_fails_though_it_is_left_out_stops_the_instance() -> None:
    made = world()

    def always(request: BatchRequest) -> BatchResult:
        raise failed("record", record=BadRecord("in", 0, 4, "node"))

    made.fed(always)
    with pytest.raises(FatalError, match="in-0@4"):
        until_all_read(made, 10)


def test_what_a_handler_has_said_fail_of_is_not_asked_about_again() -> None:
    made = world()
    runs: list[int] = []

    def fails(request: BatchRequest) -> BatchResult:
        runs.append(1)
        raise failed("record", record=BadRecord("in", 0, 4, "node"), judged=True)

    made.fed(fails)
    with pytest.raises(FatalError, match="in-0@4"):
        until_all_read(made, 10)
    assert len(runs) == 1


class Slow:
    """A job that takes ``each_ms`` a record and fails beyond ``limit_ms``."""

    def __init__(self, made: World, each_ms: float, limit_ms: float, kind: str) -> None:
        self.made, self.each_ms, self.limit_ms, self.kind = made, each_ms, limit_ms, kind
        self.sizes: list[int] = []

    def __call__(self, request: BatchRequest) -> BatchResult:
        wanted = request.ranges[IN]
        count = wanted.end - wanted.start
        self.sizes.append(count)
        spent = count * self.each_ms
        self.made.clock.advance(min(spent, self.limit_ms))
        if spent > self.limit_ms:
            raise failed(self.kind, "the transaction has timed out")
        done = self.made.commit(request)
        return dataclasses.replace(done, outcome=COMMITTED, timings={"operators": spent})


@pytest.mark.parametrize("kind", ["migrated", "retriable", "worker"])
def test_a_batch_that_meets_a_time_out_gets_smaller_until_it_ends(kind: str) -> None:
    made = world()
    slow = Slow(made, 3.0, 10_000, kind)
    made.fed(slow, 100_000)
    until_all_read(made, 1_000)
    assert slow.sizes[:2] == [100_000, 100_000], "once may be bad luck"
    assert max(slow.sizes[2:]) <= 50_000
    assert len([size for size in slow.sizes if size > 3_333]) <= 12


def test_a_failure_that_came_at_once_is_no_matter_of_size() -> None:
    made = world()
    failures = iter([True] * 4)

    def away(request: BatchRequest) -> BatchResult:
        if next(failures, False):
            raise failed("retriable", "no broker answers")
        return made.commit(request)

    made.fed(away, 100_000)
    until_all_read(made, 100)
    assert {request.ranges[IN] for request in made.requests} == {(0, 100_000)}


def test_a_plan_with_functions_begins_small_and_keeps_to_what_a_record_costs() -> None:
    made = world(functions=True)
    slow = Slow(made, 3.0, 300_000, "hang")
    made.fed(slow, 20_000)
    until_all_read(made, 200)
    assert slow.sizes[0] == FIRST_WITH_FUNCTIONS
    assert max(slow.sizes[2:]) <= 400, "what costs 3 ms a record has a second for a batch"


def test_a_call_of_a_second_each_leaves_the_batch_in_bounds() -> None:
    size = first_size(functions=True)
    limits = world().thread.settings.limits
    slow = size.after(limits, 1_000, 1_000, 1_000_000.0, None, 1_000_000.0)
    assert slow.records(limits) == 1
    fixed = size.after(limits, 1_000, 1_000, 1_000_000.0, None, 5.0)
    assert fixed.records(limits) == 1_000, "what no record costs is no reason for smaller batches"


def test_after_a_hang_batches_are_as_large_as_what_a_record_seemed_to_cost() -> None:
    made = world()
    assert made.thread.retries.size == BatchSize()
    slow = Slow(made, 10.0, 300_000, "hang")
    made.fed(slow, 100_000)
    until_all_read(made, 5_000)
    assert slow.sizes[0] == 100_000
    assert slow.sizes[1] == 333
    assert TopicPartition("in", 0) == IN


@pytest.mark.parametrize("orders_each", [3, 1_000])
def test_a_merge_that_was_made_small_grows_back(orders_each: int) -> None:
    """A range of one record each: it reads one of them, and did not count as full. An instance read
    two records a second for ever."""
    made = world(MergedWorld(orders_each))
    deaths = iter([True] * 5)

    def dies_at_first(request: BatchRequest) -> BatchResult:
        if next(deaths, False):
            raise failed("worker")
        return made.commit(request)

    made.fed(dies_at_first, 1_000)
    for _ in range(6):
        made.turn()
    assert {r.end - r.start for r in made.requests[-1].ranges.values()} == {1}
    made.end = 30_000
    until_all_read(made, 60)


def test_a_batch_has_as_many_bytes_as_there_is_memory_for_what_is_made_of_them() -> None:
    """The reader ends there (note 045), and so do the records of the next plan."""
    made = world(memory=WorkerMemory(WORKER_BYTES + 800 * MIB))
    made.end, record_bytes, times = 1_000_000, 10_000, 20

    def commit(request: BatchRequest) -> BatchResult:
        result = made.commit(request)
        raw = result.counts["in"] * record_bytes
        return dataclasses.replace(
            result,
            counts={**result.counts, "bytes": raw},
            memory=Taken(WORKER_BYTES, WORKER_BYTES + raw, WORKER_BYTES + times * raw),
        )

    made.behave = commit
    made.give_task()
    for _ in range(12):
        made.turn()
        made.clock.advance(1_000)
    asked = [request.most_bytes for request in made.requests[:4]]
    read = [r.ranges[IN].end - r.ranges[IN].start for r in made.requests[:4]]
    assert asked[0] == 75 * MIB
    assert asked[1:] == [30 * MIB] * 3
    assert all(0.9 * 30 * MIB < records * record_bytes <= 30 * MIB for records in read[1:])


def test_after_a_worker_that_died_the_same_range_is_read_with_half_the_bytes() -> None:
    made = world(memory=WorkerMemory(WORKER_BYTES + 800 * MIB))

    def die(request: BatchRequest) -> BatchResult:
        made.behave = made.commit
        raise failed("worker")

    made.fed(die, 1_000)
    until_all_read(made, 10)
    first, second = made.requests
    assert second.ranges == first.ranges
    assert second.most_bytes * 2 == first.most_bytes


# One task's brokers are silent: the others go on, and the error names it (notes 018, 051).


class TwoTasks(World):
    """Both have all that is in their logs, which grow; ``bad`` tells what fails with each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.read = {IN: 0, OTHER: 0}
        self.book.own([OTHER_TASK])
        self.give_task(OTHER_TASK, OTHER)
        self.give_task()
        self.end = 10

    def commit(self, request: BatchRequest) -> BatchResult:
        self.read.update({tp: wanted.end for tp, wanted in request.ranges.items()})
        return replace(super().commit(request), consumed=dict(self.read), stream_times={})

    def committed(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        return {tp: CommittedOffset(self.read[tp], "") for tp in partitions}

    def turns(self, seconds: float) -> None:
        until_ms = self.clock.monotonic_ms() + seconds * 1000
        while self.clock.monotonic_ms() < until_ms:
            self.end += 1
            self.turn()
            self.clock.advance(10)


@pytest.fixture
def two_tasks() -> TwoTasks:
    return TwoTasks()


def test_tasks_that_are_always_busy_leave_a_turn_to_one_that_failed(two_tasks: TwoTasks) -> None:
    fails_for(two_tasks, OTHER)
    failing = two_tasks.behave

    def busy(request: BatchRequest) -> BatchResult:
        two_tasks.clock.advance(400)
        return failing(request)

    two_tasks.behave = busy
    two_tasks.turns(8)

    def mended(request: BatchRequest) -> BatchResult:
        two_tasks.clock.advance(400)
        return two_tasks.commit(request)

    two_tasks.behave = mended
    two_tasks.turns(6)
    assert two_tasks.read[OTHER] > 0


def fails_for(two_tasks: TwoTasks, tp: TopicPartition, named: bool = False) -> None:
    """A batch with records of ``tp`` fails after a second."""

    def behave(request: BatchRequest) -> BatchResult:
        wanted = request.ranges.get(tp, OffsetRange(0, 0))
        if wanted.end > wanted.start:
            two_tasks.clock.advance(1_000)
            raise BatchFailedError(
                BatchFailure(
                    kind="retriable", error="no leader for out-0", partitions=(tp,) if named else ()
                )
            )
        return two_tasks.commit(request)

    two_tasks.behave = behave


@pytest.mark.parametrize("named", [True, False], ids=["named", "nobody knows whose fault it is"])
def test_the_others_go_on_and_the_error_names_the_task(two_tasks: TwoTasks, named: bool) -> None:
    fails_for(two_tasks, OTHER, named)
    with pytest.raises(TaskTimeoutError) as late:
        two_tasks.turns(60)
    assert late.value.task == OTHER_TASK
    assert "Task 0_1 made no progress" in str(late.value)
    assert "no leader for out-0" in str(late.value)
    assert two_tasks.read[OTHER] == 0
    assert two_tasks.read[IN] > two_tasks.end - 10, "up to the last moment"
    tried = [one for one in two_tasks.requests if OTHER in one.ranges]
    assert 3 <= len(tried) < 12, "now and then"
    together = [one for one in tried if IN in one.ranges]
    assert len(together) == (1 if named else 2)


def test_who_gets_on_again_runs_with_the_others_as_before(two_tasks: TwoTasks) -> None:
    fails_for(two_tasks, OTHER)
    two_tasks.turns(6)
    found = two_tasks.thread.troubles()
    assert set(found) == {OTHER_TASK}
    assert found[OTHER_TASK].text == "no leader for out-0"
    two_tasks.behave = two_tasks.commit
    two_tasks.turns(10)
    assert two_tasks.thread.troubles() == {}
    assert two_tasks.read[OTHER] > two_tasks.end - 10
    assert set(two_tasks.requests[-1].ranges) == {IN, OTHER}


def test_a_silent_partition_costs_no_recovery_and_holds_up_nobody_for_long(
    two_tasks: TwoTasks,
) -> None:
    def silent(request: BatchRequest) -> BatchResult:
        if OTHER not in request.ranges:
            return two_tasks.commit(request)
        two_tasks.clock.advance(3_000)
        assert not request.patient, "another task wants the thread"
        ends = {tp: r.end if tp == IN else r.start for tp, r in request.ranges.items()}
        return replace(two_tasks.commit(request.ending(ends)), silent=(OTHER,))

    two_tasks.behave = silent
    with pytest.raises(TaskTimeoutError, match=r"in-1 has more records"):
        two_tasks.turns(60)
    assert two_tasks.read[IN] > two_tasks.end - 10
    assert not any(done.startswith(("kill", "fence")) for done in two_tasks.done)
    assert two_tasks.thread.retries.size.bound >= 100_000, "records cost no more than before"


def test_a_leader_that_does_not_say_where_its_log_ends_is_named(two_tasks: TwoTasks) -> None:
    two_tasks.ends.read = lambda asked: {tp: two_tasks.end for tp in asked if tp != OTHER}
    with pytest.raises(TaskTimeoutError) as late:
        two_tasks.turns(60)
    assert late.value.task == OTHER_TASK
    assert "the leader of in-1 does not answer" in str(late.value)
    assert two_tasks.read[IN] > two_tasks.end - 10


def test_where_no_broker_answers_a_task_is_named_once_its_time_is_over(two_tasks: TwoTasks) -> None:
    def away(asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        raise RetriableError("no broker answers")

    two_tasks.turns(1)
    two_tasks.ends.read = away
    began_ms = two_tasks.clock.monotonic_ms()
    with pytest.raises(TaskTimeoutError, match="no broker answers where the logs end") as late:
        two_tasks.turns(60)
    assert late.value.task in (TASK, OTHER_TASK)
    assert two_tasks.clock.monotonic_ms() - began_ms > 10_000


def test_a_task_that_cannot_be_recovered_is_given_back(two_tasks: TwoTasks) -> None:
    def fail_once(request: BatchRequest) -> BatchResult:
        two_tasks.behave = two_tasks.commit
        raise BatchFailedError(BatchFailure(kind="worker", error="worker died"))

    def silent(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if OTHER in partitions:
            raise RetriableError("the leader of in-1 does not answer", [OTHER])
        return dict.fromkeys(partitions, two_tasks.end)

    two_tasks.behave, two_tasks.stable_ends = fail_once, silent  # type: ignore[method-assign]
    two_tasks.turns(30)
    assert two_tasks.given_back == [[OTHER_TASK]]
    assert two_tasks.read[IN] > two_tasks.end - 10
    assert two_tasks.thread.tasks.keys() == {TASK}
    assert two_tasks.done.index("fence app-p-0") < two_tasks.done.index("restore"), "fenced before"


def test_nothing_is_given_back_before_earlier_writers_are_fenced(two_tasks: TwoTasks) -> None:
    def fail(request: BatchRequest) -> BatchResult:
        raise BatchFailedError(BatchFailure(kind="worker", error="worker died"))

    def away(transactional_ids: Sequence[str]) -> None:
        raise RetriableError("no transaction coordinator")

    two_tasks.behave, two_tasks.fence = fail, away  # type: ignore[method-assign,assignment]
    with pytest.raises(TaskTimeoutError, match="no transaction coordinator"):
        two_tasks.turns(60)
    assert two_tasks.given_back == []


FEW, MANY = 10, 1_000


class Tasks(World):
    """A thread with so many tasks, all caught up; task 7 gets records."""

    def __init__(self, count: int, inputs: tuple[str, ...] = ("in",)) -> None:
        super().__init__()
        ids = [TaskId(0, partition) for partition in range(count)]
        self.log_ends_known = {
            TopicPartition(topic, n): 100 for n in range(count) for topic in inputs
        }
        self.ends.read = lambda asked: {tp: self.log_ends_known[tp] for tp in asked}
        self.book.own(ids)
        tasks = [
            ActiveTask(
                id=task,
                inputs=tuple(TopicPartition(topic, task.partition) for topic in inputs),
                state=TaskState.RUNNING,
                epoch=self.book.epoch(task),
            )
            for task in ids
        ]
        for task in tasks:
            task.positions.update(dict.fromkeys(task.inputs, 100))
        self.thread.add(tasks)
        self.turn()

    def commit(self, request: BatchRequest) -> BatchResult:
        consumed = {tp: wanted.end for tp, wanted in request.ranges.items()}
        return BatchResult(outcome=COMMITTED, consumed=consumed, counts={"in": 1})

    def grow(self, topic: str = "in", partition: int = 7) -> None:
        """A record more, of which the brokers have told."""
        tp = TopicPartition(topic, partition)
        self.log_ends_known[tp] += 1
        self.ends._ends = {**self.ends.ends(), tp: self.log_ends_known[tp]}
        self.clock.advance(2_000)

    def batch(self) -> None:
        self.grow()
        assert self.thread.run_once()


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions are called meanwhile: a measure that no busy machine changes."""
    count = 0

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_what_is_called_for_a_batch_does_not_grow_with_the_tasks_that_have_nothing() -> None:
    few, many = Tasks(FEW), Tasks(MANY)
    for two_tasks in (few, many):
        two_tasks.batch()
    assert calls_of(many.batch) <= calls_of(few.batch) + 20
    (request,) = many.requests[-1:]
    assert list(request.ranges) == [TopicPartition("in", 7)]
    assert [task.task for task in request.tasks] == [TaskId(0, 7)]


def test_a_turn_without_records_calls_as_little() -> None:
    few, many = Tasks(FEW), Tasks(MANY)
    assert calls_of(many.thread.run_once) <= calls_of(few.thread.run_once) + 20


def test_a_task_that_has_something_is_read_with_all_its_inputs() -> None:
    """A merge has to know of the input that has nothing."""
    two_tasks = Tasks(FEW, ("a", "b"))
    two_tasks.grow("a", 3)
    assert two_tasks.thread.run_once()
    request = two_tasks.requests[-1]
    a, b = TopicPartition("a", 3), TopicPartition("b", 3)
    assert {tp: tuple(r) for tp, r in request.ranges.items()} == {a: (100, 101), b: (100, 100)}
    assert request.log_ends == {a: 101, b: 100}
    assert two_tasks.thread.tasks[TaskId(0, 3)].positions == {a: 101, b: 100}


@pytest.mark.parametrize("told", [True, False])
def test_who_knows_of_nothing_asks(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    asked: list[float] = []

    def refresh(self: EndOffsets, timeout_ms: float) -> bool:
        asked.append(timeout_ms)
        return False

    monkeypatch.setattr(EndOffsets, "refresh", refresh)
    two_tasks = Tasks(FEW)
    asked.clear()
    two_tasks.ends.reports = told
    two_tasks.thread.run_once()
    assert len(asked) == (not told)
    two_tasks.batch()
    assert len(asked) == 1 + (not told), "who has something asks for more: it shares the commit"


def test_silent_logs_and_late_tasks_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    silent_ms = EndOffsets.silent_ms

    def counted(self: EndOffsets, partitions: Any) -> Mapping[TopicPartition, float]:
        looked.append(partitions)
        return silent_ms(self, partitions)

    monkeypatch.setattr(EndOffsets, "silent_ms", counted)
    two_tasks = Tasks(FEW)
    two_tasks.batch()
    assert looked == []
    two_tasks.ends._silent = {TopicPartition("in", 2): 0.0}
    two_tasks.thread.run_once()
    assert len(looked) == FEW
    assert list(two_tasks.thread.retries.stalled.timeouts.stalled()) == [TaskId(0, 2)]
