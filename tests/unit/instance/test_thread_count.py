"""Stream threads come and go: tasks to warm threads only, and the group knows the number."""

import logging
import queue
import re
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everflow import sockets
from everflow.clock import SystemClock
from everflow.config import AT_LEAST_ONCE, EXACTLY_ONCE_V2
from everflow.errors import EverflowError, FatalError, RetriableError, SetupError, TaskTimeoutError
from everflow.instance.client_state import ClientState, IllegalStateError
from everflow.instance.commit_gate import (
    CommitGate,
    DeferredOffsets,
    GateBackend,
    GateBook,
    Offset,
    OpenBatch,
    decide,
)
from everflow.instance.instance import Extension, ThreadCount
from everflow.instance.tasks.recovery import CommittedLowerBounds
from everflow.instance.tasks.task import ActiveTask
from everflow.protocol.messages import WorkerClients
from everflow.records import CommittedOffset, MemberMetadata, TaskId, TopicPartition
from everflow.testing.waiting import wait_until
from everflow.topology.graph import Graph
from everflow.topology.patterns import TopicGrowth
from everflow.worker.serve import GateClient
from unit.manual_clock import ManualClock


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


# Topics that come while an instance runs (note 037).

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
def extended() -> ExtendedWorld:
    return ExtendedWorld()


def test_where_a_topic_begins_is_committed_before_tasks_go_over(extended: ExtendedWorld) -> None:
    extended.extension.check()
    assert extended.done == ["prepare", "exchange", {NEW[0]: 5}, "grown"]
    assert {task: one.positions for task, one in extended.begun.items()} == {
        A: {NEW[0]: 5},
        B: {NEW[1]: 5},
    }


def test_a_task_lost_meanwhile_and_all_without_commits_are_recovered(
    extended: ExtendedWorld,
) -> None:
    recover = extended.recover

    def lost(*given: Any) -> Any:
        found = recover(*given)
        extended.book.disown_all()
        extended.book.own([A, B])
        return found

    extended.recover = lost  # type: ignore[assignment,method-assign]
    extended.extension.check()
    assert (extended.begun, extended.done[-1]) == ({}, "grown")
    again = ExtendedWorld()
    again.commits = False
    again.extension.check()
    assert (again.begun, again.done[-1]) == ({}, "grown")


def test_an_instance_that_does_not_run_waits(extended: ExtendedWorld) -> None:
    extended.state = ClientState.REBALANCING
    extended.extension.check()
    assert extended.done == []


def test_what_has_no_answer_is_tried_again(
    extended: ExtendedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    extended.error = RetriableError("no leader yet")
    with caplog.at_level(logging.WARNING, "everflow"):
        extended.extension.check()
        assert extended.done == ["prepare", "undo"]
        assert caplog.text == ""
    extended.error = None
    extended.extension.check()
    assert extended.done[-1] == "grown"


@pytest.mark.parametrize("ends", [False, True])
def test_without_slots_it_waits(
    extended: ExtendedWorld, caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    extended.replaces, extended.alive = False, not ends
    with caplog.at_level(logging.WARNING, "everflow"):
        extended.extension.check()
        extended.extension.check()
    assert extended.done == ["prepare", "undo"] * (2 if ends else 1)
    told = re.findall(r"Topic new .* at program\.py:3 .* not read", caplog.text)
    assert len(told) == (0 if ends else 1)


def test_what_is_left_out_is_told_once(
    extended: ExtendedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    extended.found = TopicGrowth(Graph(()), {}, {"odd": "it has 3 partitions"}, {"odd": "p.py:4"})
    with caplog.at_level(logging.WARNING, "everflow"):
        extended.extension.check()
        extended.extension.check()
    (record,) = caplog.records
    assert "at p.py:4 is not read: it has 3 partitions. An instance" in record.getMessage()


# The commit gate's rules: failure scenarios 6, 7, 8, 10 and 34, as values and over the socket.

TASK, OTHER = TaskId(0, 0), TaskId(0, 1)
MEMBER = MemberMetadata(4, "member-1", None)
BATCH = OpenBatch("i.0.0", 0, EXACTLY_ONCE_V2, {TASK: 3})


def test_yes_for_an_open_batch_of_a_member_that_owns_its_tasks() -> None:
    assert decide("i.0.0", BATCH, False, MEMBER, {TASK: 3, OTHER: 1}).ok


@pytest.mark.parametrize(
    ("batch", "answered", "member", "epochs", "word"),
    [
        (None, False, MEMBER, {TASK: 3}, "unknown-batch"),
        (BATCH, True, MEMBER, {TASK: 3}, "already-answered"),
        (BATCH, False, MemberMetadata(-1, "", None), {TASK: 3}, "not-a-member"),
        (BATCH, False, MemberMetadata(4, "", None), {TASK: 3}, "not-a-member"),
        (BATCH, False, MemberMetadata(-1, "member-1", None), {TASK: 3}, "not-a-member"),
        (BATCH, False, MEMBER, {}, "ownership-changed"),
        (BATCH, False, MEMBER, {TASK: 4}, "ownership-changed"),  # lost and back: scenario 8
    ],
)
def test_no_otherwise(
    batch: OpenBatch | None,
    answered: bool,
    member: MemberMetadata,
    epochs: dict[TaskId, int],
    word: str,
) -> None:
    decision = decide("i.0.0", batch, answered, member, epochs)
    assert not decision.ok
    assert decision.reason.startswith(word)


def test_a_task_that_was_lost_and_came_back_needs_recovery_before_a_batch() -> None:
    book = GateBook()
    book.own([TASK])
    epoch = book.epoch(TASK)
    book.disown_all()
    book.own([TASK])
    assert book.broken(TASK, epoch)
    assert not book.begin("i.0.0", 0, EXACTLY_ONCE_V2, {TASK: epoch})
    assert book.begin("i.0.0", 0, EXACTLY_ONCE_V2, {TASK: book.epoch(TASK)})


def test_a_revoked_task_commits_in_the_generation_that_revoked_it_and_in_no_later_one() -> None:
    """Evicted in its last batch, who holds nothing else hears of no loss and joins at once."""
    book = GateBook()
    book.own([TASK])
    epoch = book.epoch(TASK)
    book.revoke([TASK], MEMBER)
    for number, member in enumerate(
        (MEMBER, MemberMetadata(6, "member-2", None), MemberMetadata(5, "member-1", None))
    ):
        assert book.begin(f"i.{number}.0", 0, EXACTLY_ONCE_V2, {TASK: epoch})
        decision, _ = book.ask(f"i.{number}.0", member)
        assert decision.ok == (member is MEMBER)
    book.release([TASK])
    assert book.broken(TASK, epoch)


def test_a_revoked_task_that_comes_back_before_its_release_is_a_new_ownership_and_stays() -> None:
    book = GateBook()
    book.own([TASK])
    epoch = book.epoch(TASK)
    book.revoke([TASK], MEMBER)
    book.own([TASK])
    assert book.broken(TASK, epoch), "another member may have run it in between"
    book.release([TASK])
    assert book.owned() == {TASK}
    book.revoke([TASK], MEMBER)
    book.release([TASK])
    assert book.owned() == frozenset()


def test_owning_again_keeps_the_ownership_of_tasks_that_stay() -> None:
    book = GateBook()
    book.own([TASK])
    epoch = book.epoch(TASK)
    book.own([TASK, OTHER])
    assert book.epoch(TASK) == epoch


def test_an_older_attempt_is_refused_and_pids_are_those_of_the_batch_in_flight() -> None:
    book = GateBook()
    book.own([TASK])
    epochs = {TASK: book.epoch(TASK)}
    assert book.begin("i.0.0", 7, EXACTLY_ONCE_V2, epochs)
    assert book.serves("i.0.0", 111)
    book.end("i.0.0")
    assert not book.serves("i.0.0", 111)
    assert book.begin("i.0.1", 7, EXACTLY_ONCE_V2, epochs)
    assert book.serves("i.0.1", 222)
    assert not book.ask("i.0.0", MEMBER)[0].ok
    assert book.ask("i.0.1", MEMBER)[0].ok
    assert book.take_pids(7) == (222,)
    assert book.take_pids(7) == ()


def test_a_thread_that_was_left_behind_begins_nothing_and_its_batch_is_refused() -> None:
    book = GateBook()
    book.own([TASK])
    epochs = {TASK: book.epoch(TASK)}
    assert book.begin("i-1-0", 0, EXACTLY_ONCE_V2, epochs)
    assert book.begin("j-1-0", 1, EXACTLY_ONCE_V2, epochs)
    book.abandon(0)
    assert not book.serves("i-1-0", 77)
    assert not book.ask("i-1-0", MEMBER)[0].ok
    assert not book.begin("i-2-0", 0, EXACTLY_ONCE_V2, epochs)
    assert book.serves("j-1-0", 78)
    assert book.ask("j-1-0", MEMBER)[0].ok


def test_a_worker_that_serves_another_instance_of_this_process_by_now_is_not_taken() -> None:
    closing, staying = GateBook(), GateBook()
    for book, batch in ((closing, "a.0.0"), (staying, "b.0.0")):
        assert book.begin(batch, 0, EXACTLY_ONCE_V2, {})
    assert closing.serves("a.0.0", 501)
    assert staying.serves("b.0.0", 501)
    assert closing.take_pids(0) == ()
    assert staying.take_pids(0) == (501,)


class Group:
    def __init__(self) -> None:
        self.metadata = MEMBER
        self.commits: list[Sequence[Offset]] = []
        self.takes = True

    def commit(self, offsets: Sequence[Offset]) -> bool:
        self.commits.append(offsets)
        return self.takes


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def gate(group: Group) -> Iterator[tuple[GateBook, str]]:
    book = GateBook()
    book.own([TASK])
    server = CommitGate(book=book, backend=backend_of(group))
    yield book, server.start()
    server.close()


def backend_of(group: Group) -> GateBackend:
    return GateBackend(
        lambda: group.metadata, lambda m: f"{m.generation}/{m.member_id}".encode(), group.commit
    )


def test_the_socket_is_private_and_goes_with_the_gate(group: Group) -> None:
    gate = CommitGate(book=GateBook(), backend=backend_of(group))
    path = Path(gate.start())
    gate.require_reachable()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    gate.close()
    gate.close()
    assert not path.parent.exists()


def test_a_socket_that_was_deleted_is_an_error_not_aborted_batches_for_ever(group: Group) -> None:
    gate = CommitGate(book=GateBook(), backend=backend_of(group))
    try:
        path = Path(gate.start())
        path.unlink()
        with pytest.raises(FatalError, match=r"gate\.sock.*deleted.*TMPDIR"):
            gate.require_reachable()
    finally:
        gate.close()


def test_no_socket_is_said(group: Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(sockets, "_SHORT_BASE", str(tmp_path / "none"))
    gate = CommitGate(book=GateBook(), backend=backend_of(group))
    with pytest.raises(SetupError, match="Set TMPDIR"):
        gate.start()
    gate.close()


def test_the_answer_has_that_moment_s_metadata(gate: tuple[GateBook, str], group: Group) -> None:
    book, path = gate
    assert len(path) < 100
    book.begin("i.0.0", 0, EXACTLY_ONCE_V2, {TASK: book.epoch(TASK)})
    assert book.serves("i.0.0", 4321)
    with closing(GateClient(path)) as client:
        group.metadata = MemberMetadata(
            5, "member-1", None
        )  # a rebalance completed during the batch: scenario 6
        answer = client.commit("i.0.0", [("in", 0, 12, "ef1|i.0.0|{}")])
        assert answer.ok
        assert answer.group_metadata == b"5/member-1"
        assert not client.commit("i.0.0", []).ok
    assert book.take_pids(0) == (4321,)


def test_a_worker_is_told_its_clients_settings_over_the_socket_unseen(group: Group) -> None:
    clients = WorkerClients({"sasl.password": "hunter2"}, {"linger.ms": 5})
    backend = GateBackend(lambda: group.metadata, lambda _: b"", group.commit, clients)
    gate = CommitGate(book=GateBook(), backend=backend)
    try:
        with closing(GateClient(gate.start())) as client:
            assert client.clients() == clients
    finally:
        gate.close()
    assert "hunter2" not in f"{clients!r} {backend!r}"


def test_at_least_once_commits_through_the_member(gate: tuple[GateBook, str], group: Group) -> None:
    book, path = gate
    group.takes = False  # the group is rebalancing: scenario 26
    book.begin("i.1.0", 0, AT_LEAST_ONCE, {TASK: book.epoch(TASK)})
    with closing(GateClient(path)) as client:
        answer = client.commit("i.1.0", [("in", 0, 12, "m")])
    assert answer.ok
    assert answer.deferred
    assert group.commits == [[Offset("in", 0, 12, "m")]]


def test_only_a_second_attempt_holds_the_next_generation_back() -> None:
    """Two micro-batches of pause at most: the group may refuse one, not the one after it."""
    book = GateBook()
    book.own([TASK])
    epochs = {TASK: book.epoch(TASK)}
    for batch_id in ("i.0.0", "i.0.1"):
        assert book.begin(batch_id, 0, EXACTLY_ONCE_V2, epochs)
        assert book.finishing == (batch_id == "i.0.1")
        book.end(batch_id)
        assert not book.finishing
    assert not book.begin("i.0.2", 0, EXACTLY_ONCE_V2, {TASK: 99})
    assert not book.finishing, "it was not begun"


def test_a_driver_that_is_gone_means_abort(tmp_path: Path) -> None:
    with closing(GateClient(str(tmp_path / "nobody.sock"))) as client:
        with pytest.raises(ConnectionError, match="driver gone"):
            client.clients()
        answer = client.commit("i.0.0", [])
    assert not answer.ok
    assert answer.reason.startswith("driver gone")


GATE_A, GATE_B = TopicPartition("in", 0), TopicPartition("in", 1)
Asked = Mapping[TopicPartition, tuple[int, str]]


def test_what_was_refused_goes_with_the_next_commit_unless_it_was_forgotten() -> None:
    asked: list[Asked] = []
    answers = iter([False, True])

    def commit(offsets: Asked) -> bool:
        asked.append(offsets)
        return next(answers)

    told: list[dict[TopicPartition, int]] = []
    deferred = DeferredOffsets(commit, lambda offsets: told.append(dict(offsets)))
    assert not deferred.commit([Offset("in", 0, 5, "m"), Offset("in", 1, 7, "m")])
    assert deferred.partitions() == {GATE_A, GATE_B}
    deferred.forget([GATE_A])
    assert deferred.commit([Offset("in", 1, 9, "m")])
    assert asked[1] == {GATE_B: (9, "m")}
    assert told == [{GATE_B: 9}], "what waits is not committed"
    assert deferred.partitions() == frozenset()


def test_forgetting_does_not_wait_for_a_commit_and_counts_for_it() -> None:
    """The loss of partitions is told on the thread that the commit under way needs to end."""

    def commit(offsets: Asked) -> bool:
        group_client = threading.Thread(target=lambda: deferred.forget([GATE_A]), daemon=True)
        group_client.start()
        group_client.join(5)
        assert not group_client.is_alive()
        return False

    deferred = DeferredOffsets(commit, lambda offsets: None)
    deferred.commit([Offset("in", 0, 5, "m"), Offset("in", 1, 7, "m")])
    assert deferred.partitions() == {GATE_B}


def test_a_task_that_was_recovered_while_its_offsets_waited_goes_back_rightly() -> None:
    """It was told 100, its 150 goes with another thread's commit, and it commits 120 behind that:
    another recovery is told no less than is true (note 064)."""
    lower_bounds, answers = CommittedLowerBounds(ManualClock()), iter([False, True, True])
    deferred = DeferredOffsets(lambda offsets: next(answers), lower_bounds.replaced)
    assert not deferred.commit([Offset("in", 0, 150, "m")])
    lower_bounds.raised({GATE_A: 100})
    assert deferred.commit([Offset("in", 1, 9, "m")])
    assert lower_bounds.went_back({GATE_A: CommittedOffset(149, "")}, [GATE_A])
    assert deferred.commit([Offset("in", 0, 120, "m")])
    assert lower_bounds.went_back({GATE_A: CommittedOffset(120, "")}, [GATE_A]) == {}
    assert lower_bounds.went_back({GATE_A: CommittedOffset(119, "")}, [GATE_A])
