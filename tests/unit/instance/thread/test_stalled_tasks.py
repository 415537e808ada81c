"""One task's brokers are silent: the others go on, and the error names it (notes 018, 051)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from everflow.errors import RetriableError, TaskTimeoutError
from everflow.instance.tasks.task import ActiveTask, TaskState
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.protocol.messages import (
    COMMITTED,
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
)
from everflow.records import CommittedOffset, OffsetRange, TaskId, TopicPartition
from unit.instance.thread.stream_thread_world import IN, OTHER, OTHER_TASK, TASK, World


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
def world() -> TwoTasks:
    return TwoTasks()


def test_tasks_that_are_always_busy_leave_a_turn_to_one_that_failed(world: TwoTasks) -> None:
    fails_for(world, OTHER)
    failing = world.behave

    def busy(request: BatchRequest) -> BatchResult:
        world.clock.advance(400)
        return failing(request)

    world.behave = busy
    world.turns(8)

    def mended(request: BatchRequest) -> BatchResult:
        world.clock.advance(400)
        return world.commit(request)

    world.behave = mended
    world.turns(6)
    assert world.read[OTHER] > 0


def fails_for(world: TwoTasks, tp: TopicPartition, named: bool = False) -> None:
    """A batch with records of ``tp`` fails after a second."""

    def behave(request: BatchRequest) -> BatchResult:
        wanted = request.ranges.get(tp, OffsetRange(0, 0))
        if wanted.end > wanted.start:
            world.clock.advance(1_000)
            raise BatchFailedError(
                BatchFailure(
                    kind="retriable", error="no leader for out-0", partitions=(tp,) if named else ()
                )
            )
        return world.commit(request)

    world.behave = behave


@pytest.mark.parametrize("named", [True, False], ids=["named", "nobody knows whose fault it is"])
def test_the_others_go_on_and_the_error_names_the_task(world: TwoTasks, named: bool) -> None:
    fails_for(world, OTHER, named)
    with pytest.raises(TaskTimeoutError) as late:
        world.turns(60)
    assert late.value.task == OTHER_TASK
    assert "Task 0_1 made no progress for 1" in str(late.value)
    assert "no leader for out-0" in str(late.value)
    assert world.read[OTHER] == 0
    assert world.read[IN] > world.end - 10, "up to the last moment"
    tried = [one for one in world.requests if OTHER in one.ranges]
    assert 3 <= len(tried) < 12, "now and then"
    together = [one for one in tried if IN in one.ranges]
    assert len(together) == (1 if named else 2)


def test_who_gets_on_again_runs_with_the_others_as_before(world: TwoTasks) -> None:
    fails_for(world, OTHER)
    world.turns(6)
    found = world.thread.troubles()
    assert set(found) == {OTHER_TASK}
    assert found[OTHER_TASK].text == "no leader for out-0"
    world.behave = world.commit
    world.turns(10)
    assert world.thread.troubles() == {}
    assert world.read[OTHER] > world.end - 10
    assert set(world.requests[-1].ranges) == {IN, OTHER}


def test_a_silent_partition_costs_no_recovery_and_holds_up_nobody_for_long(world: TwoTasks) -> None:
    """The batch ends without its records."""

    def silent(request: BatchRequest) -> BatchResult:
        if OTHER not in request.ranges:
            return world.commit(request)
        world.clock.advance(3_000)
        assert not request.patient, "another task wants the thread"
        ends = {tp: r.end if tp == IN else r.start for tp, r in request.ranges.items()}
        return replace(world.commit(request.ending(ends)), silent=(OTHER,))

    world.behave = silent
    with pytest.raises(TaskTimeoutError, match=r"in-1 has more records"):
        world.turns(60)
    assert world.read[IN] > world.end - 10
    assert not any(done.startswith(("kill", "fence")) for done in world.done)
    assert world.thread.retries.size.bound >= 100_000, "records cost no more than before"


def test_a_leader_that_does_not_say_where_its_log_ends_is_named(world: TwoTasks) -> None:
    world.ends.read = lambda asked: {tp: world.end for tp in asked if tp != OTHER}
    with pytest.raises(TaskTimeoutError) as late:
        world.turns(60)
    assert late.value.task == OTHER_TASK
    assert "the leader of in-1 does not answer" in str(late.value)
    assert world.read[IN] > world.end - 10


def test_a_task_that_cannot_be_recovered_is_given_back(world: TwoTasks) -> None:
    def fail_once(request: BatchRequest) -> BatchResult:
        world.behave = world.commit
        raise BatchFailedError(BatchFailure(kind="worker", error="worker died"))

    def silent(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if OTHER in partitions:
            raise RetriableError("the leader of in-1 does not answer", [OTHER])
        return dict.fromkeys(partitions, world.end)

    world.behave, world.stable_ends = fail_once, silent  # type: ignore[method-assign]
    world.turns(30)
    assert world.given_back == [[OTHER_TASK]]
    assert world.read[IN] > world.end - 10
    assert world.thread.tasks.keys() == {TASK}
    assert world.done.index("fence app-p-0") < world.done.index("restore"), "fenced before"


def test_nothing_is_given_back_before_earlier_writers_are_fenced(world: TwoTasks) -> None:
    def fail(request: BatchRequest) -> BatchResult:
        raise BatchFailedError(BatchFailure(kind="worker", error="worker died"))

    def away(transactional_ids: Sequence[str]) -> None:
        raise RetriableError("no transaction coordinator")

    world.behave, world.fence = fail, away  # type: ignore[method-assign,assignment]
    with pytest.raises(TaskTimeoutError, match="no transaction coordinator"):
        world.turns(60)
    assert world.given_back == []


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
    for world in (few, many):
        world.batch()
    assert calls_of(many.batch) <= calls_of(few.batch) + 20
    (request,) = many.requests[-1:]
    assert list(request.ranges) == [TopicPartition("in", 7)]
    assert [task.task for task in request.tasks] == [TaskId(0, 7)]


def test_a_turn_without_records_calls_as_little() -> None:
    few, many = Tasks(FEW), Tasks(MANY)
    assert calls_of(many.thread.run_once) <= calls_of(few.thread.run_once) + 20


def test_a_task_that_has_something_is_read_with_all_its_inputs() -> None:
    """A merge has to know of the input that has nothing."""
    world = Tasks(FEW, ("a", "b"))
    world.grow("a", 3)
    assert world.thread.run_once()
    request = world.requests[-1]
    a, b = TopicPartition("a", 3), TopicPartition("b", 3)
    assert {tp: tuple(r) for tp, r in request.ranges.items()} == {a: (100, 101), b: (100, 100)}
    assert request.log_ends == {a: 101, b: 100}
    assert world.thread.tasks[TaskId(0, 3)].positions == {a: 101, b: 100}


@pytest.mark.parametrize("told", [True, False])
def test_who_knows_of_nothing_asks(monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    asked: list[float] = []

    def refresh(self: EndOffsets, timeout_ms: float) -> bool:
        asked.append(timeout_ms)
        return False

    monkeypatch.setattr(EndOffsets, "refresh", refresh)
    world = Tasks(FEW)
    asked.clear()
    world.ends.reports = told
    world.thread.run_once()
    assert len(asked) == (not told)
    world.batch()
    assert len(asked) == 1 + (not told), "who has something asks for more: it shares the commit"


def test_silent_logs_and_late_tasks_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    silent_ms = EndOffsets.silent_ms

    def counted(self: EndOffsets, partitions: Any) -> Mapping[TopicPartition, float]:
        looked.append(partitions)
        return silent_ms(self, partitions)

    monkeypatch.setattr(EndOffsets, "silent_ms", counted)
    world = Tasks(FEW)
    world.batch()
    assert looked == []
    world.ends._silent = {TopicPartition("in", 2): 0.0}
    world.thread.run_once()
    assert len(looked) == FEW
    assert list(world.thread.retries.stalled.timeouts.stalled()) == [TaskId(0, 2)]
