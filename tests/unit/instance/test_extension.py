"""Topics that come while an instance runs (note 037): in which order, and those refused."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.errors import EverflowError, RetriableError
from everflow.instance.client_state import ClientState
from everflow.instance.commit_gate import GateBook
from everflow.instance.instance import Extension
from everflow.instance.tasks.task import ActiveTask
from everflow.records import TaskId, TopicPartition
from everflow.topology.graph import Graph
from everflow.topology.patterns import TopicGrowth

A, B = TaskId(0, 0), TaskId(0, 1)
OLD, NEW = (tuple(TopicPartition(topic, p) for p in range(2)) for topic in ("old", "new"))


class Ended:
    def join(self, timeout_s: float | None = None) -> bool:
        return True


class World:
    """An instance with two tasks, and its cluster."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.found = TopicGrowth(Graph(()), {"new": 2}, {}, {"new": "program.py:3", "odd": "p.py"})
        self.state = ClientState.RUNNING
        self.replaces = self.commits = self.alive = True
        self.error: EverflowError | None = None
        self.book = GateBook()
        self.book.own([A, B])
        self.tasks = [
            ActiveTask(id=task, inputs=(OLD[task.partition],), epoch=self.book.epoch(task))
            for task in (A, B)
        ]
        self.begun: dict[TaskId, ActiveTask] = {}
        instance: Any = SimpleNamespace(
            states=self,
            book=self.book,
            begun=self.begun,
            member=SimpleNamespace(commit=self.commit),
            stop=threading.Event(),
            running_tasks=lambda: self.tasks,
            thread_count=self,
        )
        self.extension = Extension(instance=instance, ports=self)

    # --- the instance's threads ------------------------------------------------------------------

    @property
    def may_change(self) -> bool:
        return self.alive

    def replace_all(self, warmed: Callable[[], None], before: Callable[[], None]) -> bool:
        if self.replaces:
            warmed()
            before()
        return self.replaces

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        self.done.append({tp: offset for tp, (offset, _) in offsets.items()})
        return self.commits

    # --- ExtensionPorts --------------------------------------------------------------------------

    def spawn(self, name: str, work: Callable[[], None]) -> Ended:
        work()
        return Ended()

    def growth(self) -> TopicGrowth:
        return self.found

    def prepare(self, growth: TopicGrowth) -> Callable[[], None]:
        self.done.append("prepare")
        return lambda: self.done.append("undo")

    def inputs(self, task: TaskId) -> tuple[TopicPartition, ...]:
        return OLD[task.partition], NEW[task.partition]

    def exchange(self) -> None:
        self.done.append("exchange")

    def grown(self, growth: TopicGrowth) -> None:
        self.done.append("grown")

    def recovery(self, instance: Any, stop: threading.Event, *, pauses: bool) -> Any:
        return SimpleNamespace(recover=self.recover)

    def recover(
        self, tasks: Sequence[ActiveTask], fence: Sequence[str]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Any]]:
        if self.error is not None:
            raise self.error
        for task in tasks:
            task.positions = dict.fromkeys(task.inputs, 5)
        return {tp: 5 for task in tasks for tp in task.inputs if task.id == A}, {}


@pytest.fixture
def world() -> World:
    return World()


def test_where_a_topic_begins_is_committed_before_tasks_go_over(world: World) -> None:
    world.extension.check()
    assert world.done == ["prepare", "exchange", {NEW[0]: 5}, "grown"]
    assert {task: one.positions for task, one in world.begun.items()} == {
        A: {NEW[0]: 5},
        B: {NEW[1]: 5},
    }


def test_a_task_lost_meanwhile_and_all_without_commits_are_recovered(world: World) -> None:
    recover = world.recover

    def lost(*given: Any) -> Any:
        found = recover(*given)
        world.book.disown_all()
        world.book.own([A, B])
        return found

    world.recover = lost  # type: ignore[assignment,method-assign]
    world.extension.check()
    assert (world.begun, world.done[-1]) == ({}, "grown")
    again = World()
    again.commits = False
    again.extension.check()
    assert (again.begun, again.done[-1]) == ({}, "grown")


def test_an_instance_that_does_not_run_waits(world: World) -> None:
    world.state = ClientState.REBALANCING
    world.extension.check()
    assert world.done == []


def test_what_has_no_answer_is_tried_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.error = RetriableError("no leader yet")
    with caplog.at_level(logging.WARNING, "everflow"):
        world.extension.check()
        assert world.done == ["prepare", "undo"]
        assert caplog.text == ""
    world.error = None
    world.extension.check()
    assert world.done[-1] == "grown"


@pytest.mark.parametrize("ends", [False, True])
def test_without_slots_it_waits(world: World, caplog: pytest.LogCaptureFixture, ends: bool) -> None:
    world.replaces, world.alive = False, not ends
    with caplog.at_level(logging.WARNING, "everflow"):
        world.extension.check()
        world.extension.check()
    assert world.done == ["prepare", "undo"] * (2 if ends else 1)
    assert caplog.text.count("Topic new of the source at program.py:3 is not read") == (
        0 if ends else 1
    )


def test_what_is_left_out_is_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.found = TopicGrowth(Graph(()), {}, {"odd": "it has 3 partitions"}, {"odd": "p.py:4"})
    with caplog.at_level(logging.WARNING, "everflow"):
        world.extension.check()
        world.extension.check()
    (record,) = caplog.records
    assert "at p.py:4 is not read: it has 3 partitions. An instance" in record.getMessage()
