"""A thousand tasks of which few have records cost about what those few cost (note 018)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest

from everflow.instance.tasks.task import ActiveTask, TaskState
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.protocol.messages import COMMITTED, BatchRequest, BatchResult
from everflow.records import TaskId, TopicPartition
from unit.instance.thread.stream_thread_world import World

FEW, MANY = 10, 1_000


class Tasks(World):
    """A thread with so many tasks, all caught up; task 7 gets records."""

    def __init__(self, count: int, inputs: tuple[str, ...] = ("in",)) -> None:
        super().__init__()
        ids = [TaskId(0, partition) for partition in range(count)]
        self.log_ends_known = {
            TopicPartition(topic, n): 100 for n in range(count) for topic in inputs
        }
        self.ends._read = lambda asked: {tp: self.log_ends_known[tp] for tp in asked}
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
def test_who_knows_of_nothing_asks_only_where_it_is_not_told(
    monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    asked: list[float] = []

    def refresh(self: EndOffsets, timeout_ms: float) -> bool:
        asked.append(timeout_ms)
        return False

    monkeypatch.setattr(EndOffsets, "refresh", refresh)
    world = Tasks(FEW)
    asked.clear()
    world.ends._reports = told
    world.thread.run_once()
    assert len(asked) == (not told)
    world.batch()
    assert len(asked) == 1 + (not told), "who has something asks for more: it shares the commit"


def test_silent_logs_and_late_tasks_are_looked_for_only_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
