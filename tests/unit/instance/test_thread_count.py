"""Stream threads come and go: tasks to warm threads only, and the group knows the number."""

import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.clock import SystemClock
from everflow.errors import EverflowError, RetriableError, TaskTimeoutError
from everflow.instance.client_state import ClientState, IllegalStateError
from everflow.instance.commit_gate import GateBook
from everflow.instance.instance import Extension, ThreadCount
from everflow.instance.tasks.task import ActiveTask
from everflow.records import TaskId, TopicPartition
from everflow.testing.waiting import wait_until
from everflow.topology.graph import Graph
from everflow.topology.patterns import TopicGrowth


class Thread:
    """A stream thread that is warm, and between batches, when the test says so."""

    def __init__(self, number: int, done: list[str]) -> None:
        self.number, self.name, self.done = number, f"t{number}", done
        self.warm = threading.Event()
        self.ended = False
        self.busy = False
        self.waiting: list[Callable[[Sequence[Any]], None]] = []

    def start(self) -> None:
        self.done.append(f"start {self.number}")

    def drop(self, tasks: Collection[TaskId], done: Callable[[Sequence[Any]], None]) -> None:
        assert not tasks
        if self.busy:
            self.waiting.append(done)
        else:
            done([])

    def stop(self) -> None:
        self.done.append(f"stop {self.number}")
        self.ended = True

    def join(self, timeout_s: float) -> bool:
        return self.ended


class World:
    """Two threads, and a loop that runs what is posted."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.warm_at_once = True
        self.slots = 10
        self.running = True
        self.opened: list[Thread] = []
        self.threads: list[Any] = [Thread(number, self.done) for number in range(2)]
        self.events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        instance: Any = SimpleNamespace(
            threads=self.threads,
            open_thread=self.open,
            ports=SimpleNamespace(slots=lambda: self.slots),
            loop=SimpleNamespace(post=self.events.put),
            manager=SimpleNamespace(
                deal_without=lambda without: self.done.append(
                    f"deal to {sorted({t.number for t in self.threads} - without)}"
                )
            ),
            member=SimpleNamespace(set_threads=lambda count: self.done.append(f"tell {count}")),
            states=self,
            clock=SystemClock(),
        )
        self.count = ThreadCount(instance)
        self.loop = threading.Thread(target=self.run, daemon=True)
        self.loop.start()

    @property
    def state(self) -> ClientState:
        return ClientState.RUNNING if self.running else ClientState.PENDING_SHUTDOWN

    def run(self) -> None:
        while (event := self.events.get()) is not None:
            event()

    def open(self, number: int) -> Any:
        thread = Thread(number, self.done)
        if self.warm_at_once:
            thread.warm.set()
        self.opened.append(thread)
        return thread


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.running = False
    found.events.put(None)
    found.loop.join(10)


def in_background(work: Callable[[], object]) -> list[object]:
    """What it returned or raised, once it has."""
    result: list[object] = []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:
            result.append(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def test_a_thread_gets_tasks_only_when_it_is_warm(world: World) -> None:
    world.warm_at_once = False
    result = in_background(world.count.add)
    wait_until(lambda: world.done == ["start 2"], 10, "the thread", lambda: world.done)
    assert (len(world.threads), result) == (2, [])
    world.opened[0].warm.set()
    wait_until(lambda: result == ["t2"], 10, "the thread", lambda: [*world.done, result])
    assert world.done == ["start 2", "tell 3", "deal to [0, 1, 2]"]


def test_a_thread_gives_its_tasks_up_before_it_ends(world: World) -> None:
    world.threads[1].busy = True
    going = world.threads[1]
    result = in_background(lambda: world.count.remove(None))
    wait_until(lambda: going.waiting != [], 10, "the thread to be asked", lambda: world.done)
    assert (world.done, result) == (["tell 1", "deal to [0]"], [])
    going.waiting[0]([])
    wait_until(lambda: result == ["t1"], 10, "the thread to end", lambda: [*world.done, result])
    assert world.done == ["tell 1", "deal to [0]", "stop 1", "deal to [0]"]
    assert [thread.number for thread in world.threads] == [0]


def test_a_thread_that_is_not_free_in_time_stays_and_gets_tasks_again(world: World) -> None:
    world.threads[1].busy = True
    with pytest.raises(TaskTimeoutError, match=r"t1.*within 0\.2"):
        world.count.remove(0.2)
    assert world.done == ["tell 1", "deal to [0]", "tell 2", "deal to [0, 1]"]
    assert len(world.threads) == 2


def test_a_number_that_is_free_is_used_again(world: World) -> None:
    assert [world.count.add(), world.count.remove(None), world.count.add()] == ["t2", "t2", "t2"]


def test_the_last_thread_stays(world: World) -> None:
    world.count.remove(None)
    with pytest.raises(IllegalStateError, match="removed"):
        world.count.remove(None)


def test_each_thread_needs_a_slot_and_one_is_left(world: World) -> None:
    world.slots = 4
    assert world.count.add() == "t2"
    with pytest.raises(IllegalStateError, match=r"4.*3.*threads"):
        world.count.add()


def test_an_instance_that_ends_meanwhile_keeps_its_threads(world: World) -> None:
    world.warm_at_once = False
    adding = in_background(world.count.add)
    wait_until(lambda: world.done == ["start 2"], 10, "the thread", lambda: world.done)
    world.running = False
    wait_until(lambda: adding == [None], 10, "the addition to return", lambda: adding)
    assert world.opened[0].ended
    world.running, world.threads[1].busy = True, True
    removing = in_background(lambda: world.count.remove(None))
    wait_until(
        lambda: world.threads[1].waiting != [], 10, "the thread to be asked", lambda: world.done
    )
    world.running = False
    wait_until(lambda: removing == [None], 10, "the removal to return", lambda: removing)
    assert [thread.number for thread in world.threads] == [0, 1]


def test_all_threads_are_replaced_between_their_batches(world: World) -> None:
    """Note 037: tasks go to threads that are warm, once each has ended its batch."""
    world.threads[1].busy = True
    going = list(world.threads)
    note = world.done.append
    result = in_background(
        lambda: world.count.replace_all(lambda: note("warm"), lambda: note("exchange"))
    )
    wait_until(lambda: going[1].waiting != [], 10, "the thread to be asked", lambda: world.done)
    begun = ["start 2", "start 3", "warm", "exchange", "deal to [2, 3]"]
    assert (world.done[:5], result) == (begun, [])
    going[1].waiting[0]([])
    wait_until(lambda: result == [True], 10, "all to be replaced", lambda: [*world.done, result])
    assert world.done[5:] == ["stop 0", "stop 1", "deal to [2, 3]"]
    assert [thread.number for thread in world.threads] == [2, 3]


def test_nothing_is_replaced_without_slots_for_both(world: World) -> None:
    world.slots = 4
    assert not world.count.replace_all(lambda: None, lambda: None)
    assert world.done == []


def test_threads_that_are_not_needed_after_all_end(world: World) -> None:
    def refused() -> None:
        raise TaskTimeoutError("no answer")

    with pytest.raises(TaskTimeoutError):
        world.count.replace_all(refused, lambda: world.done.append("exchange"))
    assert world.done == ["start 2", "start 3", "stop 2", "stop 3"]
    assert [thread.number for thread in world.threads] == [0, 1]


# Topics that come while an instance runs (note 037): in which order, and those refused.

A, B = TaskId(0, 0), TaskId(0, 1)
OLD, NEW = (tuple(TopicPartition(topic, p) for p in range(2)) for topic in ("old", "new"))


class Ended:
    def join(self, timeout_s: float | None = None) -> bool:
        return True


class ExtendedWorld:
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
def extended_world() -> ExtendedWorld:
    return ExtendedWorld()


def test_where_a_topic_begins_is_committed_before_tasks_go_over(
    extended_world: ExtendedWorld,
) -> None:
    extended_world.extension.check()
    assert extended_world.done == ["prepare", "exchange", {NEW[0]: 5}, "grown"]
    assert {task: one.positions for task, one in extended_world.begun.items()} == {
        A: {NEW[0]: 5},
        B: {NEW[1]: 5},
    }


def test_a_task_lost_meanwhile_and_all_without_commits_are_recovered(
    extended_world: ExtendedWorld,
) -> None:
    recover = extended_world.recover

    def lost(*given: Any) -> Any:
        found = recover(*given)
        extended_world.book.disown_all()
        extended_world.book.own([A, B])
        return found

    extended_world.recover = lost  # type: ignore[assignment,method-assign]
    extended_world.extension.check()
    assert (extended_world.begun, extended_world.done[-1]) == ({}, "grown")
    again = ExtendedWorld()
    again.commits = False
    again.extension.check()
    assert (again.begun, again.done[-1]) == ({}, "grown")


def test_an_instance_that_does_not_run_waits(extended_world: ExtendedWorld) -> None:
    extended_world.state = ClientState.REBALANCING
    extended_world.extension.check()
    assert extended_world.done == []


def test_what_has_no_answer_is_tried_again(
    extended_world: ExtendedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    extended_world.error = RetriableError("no leader yet")
    with caplog.at_level(logging.WARNING, "everflow"):
        extended_world.extension.check()
        assert extended_world.done == ["prepare", "undo"]
        assert caplog.text == ""
    extended_world.error = None
    extended_world.extension.check()
    assert extended_world.done[-1] == "grown"


@pytest.mark.parametrize("ends", [False, True])
def test_without_slots_it_waits(
    extended_world: ExtendedWorld, caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    extended_world.replaces, extended_world.alive = False, not ends
    with caplog.at_level(logging.WARNING, "everflow"):
        extended_world.extension.check()
        extended_world.extension.check()
    assert extended_world.done == ["prepare", "undo"] * (2 if ends else 1)
    assert caplog.text.count("Topic new of the source at program.py:3 is not read") == (
        0 if ends else 1
    )


def test_what_is_left_out_is_told_once(
    extended_world: ExtendedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    extended_world.found = TopicGrowth(
        Graph(()), {}, {"odd": "it has 3 partitions"}, {"odd": "p.py:4"}
    )
    with caplog.at_level(logging.WARNING, "everflow"):
        extended_world.extension.check()
        extended_world.extension.check()
    (record,) = caplog.records
    assert "at p.py:4 is not read: it has 3 partitions. An instance" in record.getMessage()
