"""Recover what was assigned, release after the revocation only, never keep a lost task."""

import re
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.errors import (
    EverflowError,
    FatalError,
    IllegalTransitionError,
    RetriableError,
    TaskTimeoutError,
)
from everflow.instance.client_state import CLIENT_TRANSITIONS, ClientState, StateMachine
from everflow.instance.commit_gate import GateBook
from everflow.instance.restore.listeners import SuspendReason
from everflow.instance.tasks.blueprint import Blueprint
from everflow.instance.tasks.recovery import fence_lost_writers, lost_writers
from everflow.instance.tasks.task import (
    PART_OF_LIMIT,
    ActiveTask,
    StandbyTask,
    TaskRole,
    TaskState,
    TaskStore,
    TaskTimeouts,
    deal,
    fitted,
)
from everflow.instance.tasks.task_manager import TaskManager, TaskServices
from everflow.records import MemberMetadata, TaskId, TopicPartition
from everflow.retry import StoppedError
from unit.manual_clock import ManualClock

A, B, C, D = (TaskId(0, p) for p in range(4))


def _store(task: TaskId) -> TaskStore:
    return TaskStore(f"s{task}", Path(f"s{task}"), TopicPartition("log", task.partition))


class FakeThread:
    def __init__(self, number: int) -> None:
        self.number = number
        self.tasks: dict[TaskId, ActiveTask] = {}
        self.drops: list[tuple[list[TaskId], Callable[[Sequence[ActiveTask]], None]]] = []

    def add(self, tasks: Sequence[ActiveTask]) -> None:
        self.tasks.update({task.id: task for task in tasks})

    def drop(self, tasks: Collection[TaskId], done: Callable[[Sequence[ActiveTask]], None]) -> None:
        self.drops.append((list(tasks), done))

    def restart(
        self, tasks: Collection[TaskId], done: Callable[[Sequence[ActiveTask]], None]
    ) -> None:
        self.drop(tasks, done)

    def finish_batch(self) -> None:
        drops, self.drops = self.drops, []
        for tasks, done in drops:
            done([self.tasks.pop(task) for task in tasks if task in self.tasks])


class FakeUpdater:
    def __init__(self) -> None:
        self.tasks: dict[TaskId, StandbyTask] = {}
        self.drops: list[
            tuple[list[TaskId], SuspendReason, Callable[[Sequence[StandbyTask]], None]]
        ] = []

    def add(self, tasks: Sequence[StandbyTask]) -> None:
        for task in tasks:
            assert task.id not in self.tasks
            task.to(TaskState.RUNNING)
            self.tasks[task.id] = task

    def drop(
        self,
        tasks: Collection[TaskId],
        reason: SuspendReason,
        done: Callable[[Sequence[StandbyTask]], None],
    ) -> None:
        self.drops.append((list(tasks), reason, done))

    def set_role(self, task: TaskId, role: TaskRole) -> None:
        self.tasks[task].role = role

    def finish_round(self) -> None:
        drops, self.drops = self.drops, []
        for tasks, _, done in drops:
            given = [self.tasks.pop(task) for task in tasks if task in self.tasks]
            for task in given:
                task.to(TaskState.SUSPENDED)
            done(given)


class World:
    def __init__(self, threads: int = 2) -> None:
        self.book = GateBook()
        self.threads = [FakeThread(n) for n in range(threads)]
        self.updater = FakeUpdater()
        self.posted: list[Callable[[], None]] = []
        self.works: list[Callable[[], None]] = []
        self.recovered: list[TaskId] = []
        self.rested: list[TaskId] = []
        self.closed: list[str] = []
        self.released = 0
        self.failures: list[EverflowError] = []
        self.anew = False
        """Whether what timed out is recovered anew, as the user's handler says."""
        self.error: EverflowError | None = None
        self.clock = ManualClock()
        self.inputs: dict[TaskId, tuple[TopicPartition, ...]] = {}
        self.begun: dict[TaskId, ActiveTask] = {}
        services = TaskServices(
            create=lambda task: ActiveTask(
                id=task,
                inputs=self.inputs.get(task, (TopicPartition("in", task.partition),)),
                stores=(_store(task),),
            ),
            fits=lambda task: fitted(task, self.inputs.get(task.id, task.inputs), self.begun),
            recover=lambda tasks, stop: self.recover(tasks, stop),
            submit=lambda work, quick: self.works.append(work),
            post=self.posted.append,
            before_release=lambda tasks: None,
            release=self.release,
            failed=self.failed,
            changed=lambda running: None,
            rest=lambda task, stores: self.rested.append(task),
            close=lambda stores: self.closed.extend(store.name for store in stores),
            clock=self.clock,
        )
        self.manager = TaskManager(
            gate=self.book,
            threads=self.threads,
            updater=self.updater,
            services=services,
            timeouts=TaskTimeouts(10_000),
        )

    def recover(self, tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
        if stop.is_set():
            raise StoppedError("stopped")
        if self.error is not None:
            raise self.error
        self.recovered += [task.id for task in tasks]

    def release(self) -> None:
        self.released += 1

    def failed(self, error: EverflowError) -> bool:
        self.failures.append(error)
        return self.anew

    def assign(self, *tasks: TaskId) -> None:
        self.book.own(tasks)
        self.manager.assigned(tasks)

    def settle(self) -> None:
        while self.works or self.posted:
            self.settle_once()

    def settle_once(self) -> None:
        self.work()
        self.deliver()

    def work(self) -> None:
        works, self.works[:] = list(self.works), []
        for work in works:
            work()

    def deliver(self) -> None:
        posted, self.posted[:] = list(self.posted), []
        for event in posted:
            event()

    def finish(self) -> None:
        """Everything that was asked for ends, and what follows from it."""
        for _ in range(4):
            for thread in self.threads:
                thread.finish_batch()
            self.updater.finish_round()
            self.settle()

    def held(self) -> set[TaskId]:
        return {task for thread in self.threads for task in thread.tasks}


@pytest.fixture
def world() -> World:
    return World()


def test_assigned_tasks_are_recovered_then_dealt_to_the_threads(world: World) -> None:
    world.assign(A, B, C, D)
    assert not world.manager.all_running()
    assert world.held() == set()
    assert world.manager.idle_stores().keys() == {A, B, C, D}, "queries may read these"
    world.settle()
    assert world.manager.all_running()
    assert world.manager.idle_stores() == {}
    assert [len(thread.tasks) for thread in world.threads] == [2, 2]
    assert all(
        task.state is TaskState.RUNNING
        for thread in world.threads
        for task in thread.tasks.values()
    )


def test_threads_come_and_go_without_a_restore_and_what_can_stay_does(world: World) -> None:
    world.assign(A, B, C, D)
    world.settle()
    before = [set(thread.tasks) for thread in world.threads]
    world.threads.append(FakeThread(2))
    world.manager.deal_without(frozenset())
    assert sum(len(tasks) for thread in world.threads for tasks, _ in thread.drops) == 1, (
        "one task moves, the others stay"
    )
    world.finish()
    assert world.manager.all_running()
    assert sorted(len(thread.tasks) for thread in world.threads) == [1, 1, 2]
    assert all(set(thread.tasks) <= had for thread, had in zip(world.threads, before, strict=False))
    world.manager.deal_without(frozenset({2}))
    world.manager.assigned([])  # whatever happens meanwhile
    assert [len(thread.drops) for thread in world.threads] == [0, 0, 1]
    world.finish()
    assert [len(thread.tasks) for thread in world.threads] == [2, 2, 0]
    assert world.manager.all_running()
    assert (sorted(world.recovered), world.rested) == ([A, B, C, D], [])


def test_revoked_tasks_are_released_only_after_their_batches_have_ended(world: World) -> None:
    world.assign(A, B, C, D)
    world.settle()
    world.manager.revoked([A, B])
    world.settle()
    assert world.released == 0
    assert {A, B} <= world.book.owned()  # the batch in flight may still commit
    world.finish()
    assert world.released == 1
    assert world.book.owned() == {C, D}
    assert world.held() == {C, D}
    assert sorted(world.recovered) == [A, B, C, D]  # those that stay were not recovered again (I4)


def test_a_lost_task_that_comes_back_is_recovered_again(world: World) -> None:
    world.assign(A, B)
    world.settle()
    world.book.disown_all()
    world.manager.lost([A, B])
    world.assign(A)
    world.finish()
    assert world.held() == {A}
    assert world.recovered.count(A) == 2
    assert world.released == 0


@pytest.mark.parametrize("goes", [TaskManager.revoked, TaskManager.lost])
def test_recovery_of_a_task_that_goes_is_given_up(world: World, goes: Callable[..., None]) -> None:
    world.assign(A, C)
    goes(world.manager, [A])
    world.settle()
    assert (world.recovered, world.held()) == ([C], {C})


def test_a_recovery_that_fails_stops_the_instance(world: World) -> None:
    world.error = FatalError("disk gone")
    world.assign(A)
    world.settle()
    assert world.failures == [world.error]
    assert world.held() == set()


def test_standbys_and_warm_ups_go_to_the_updater_and_change_role_there(world: World) -> None:
    world.manager.roles([A], [B])
    assert {task.id: task.role for task in world.updater.tasks.values()} == {
        A: TaskRole.STANDBY,
        B: TaskRole.WARMUP,
    }
    opened = dict(world.updater.tasks)
    world.manager.roles([A, B], [])
    assert world.updater.tasks == opened, "a change of role opens nothing again"
    assert world.manager.following == {A: TaskRole.STANDBY, B: TaskRole.STANDBY}
    world.manager.roles([B], [])
    world.finish()
    assert set(world.updater.tasks) == {B}
    assert world.closed == ["s0_0"]
    assert world.rested == [A], "its copy is reported on"


def test_promotion_keeps_the_stores_open_and_recovers_the_tail(world: World) -> None:
    world.manager.roles([A], [])
    world.assign(A)
    assert world.recovered == [], "the updater still writes into the stores"
    assert [reason for _, reason, _ in world.updater.drops] == [SuspendReason.PROMOTED]
    world.manager.roles([], [])
    world.finish()
    assert world.held() == {A}
    assert world.updater.tasks == {}
    assert world.closed == []
    assert world.threads[0].tasks.get(A) or world.threads[1].tasks.get(A)


def test_demotion_waits_for_the_last_batch_and_keeps_the_stores_open(world: World) -> None:
    world.assign(A, B)
    world.settle()
    world.manager.revoked([A])
    world.manager.roles([A], [])  # at the earliest
    assert world.updater.tasks == {}
    world.finish()
    assert world.released == 1
    assert set(world.updater.tasks) == {A}
    assert world.held() == {B}
    assert world.closed == []


def test_a_revoked_task_without_a_role_is_closed_by_the_next_rebalance(world: World) -> None:
    world.assign(A)
    world.settle()
    world.manager.revoked([A])
    world.finish()
    assert world.closed == []
    world.manager.roles([], [])
    assert world.closed == ["s0_0"]
    assert world.rested == [A]


def test_a_task_is_in_use_until_the_group_has_settled_without_a_role(world: World) -> None:
    """What is not in use may be removed by the cleaner."""
    steps: list[tuple[str, Callable[[], object]]] = [
        ("recovering", lambda: world.assign(A)),
        ("running", world.settle),
        ("on its way from its thread", lambda: world.manager.revoked([A])),
        ("suspended", world.finish),
        ("a standby", lambda: world.manager.roles([A], [])),
        ("let go of by the updater", lambda: world.manager.roles([], [])),
        ("assigned again", lambda: world.assign(A)),
        ("recovered again", world.finish),
        ("lost", lambda: world.manager.lost([A])),
        ("suspended again", world.finish),
    ]
    for name, step in steps:
        step()
        assert world.manager.in_use() == {A}, name
    world.manager.roles([], [])
    assert world.manager.in_use() == set()


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("assigned"), st.frozensets(st.sampled_from([A, B, C, D]), min_size=1)),
        st.tuples(st.just("revoked"), st.frozensets(st.sampled_from([A, B, C, D]), min_size=1)),
        st.tuples(st.just("lost"), st.just(frozenset())),
        st.tuples(st.just("standby"), st.frozensets(st.sampled_from([A, B, C, D]))),
        st.tuples(st.just("warm-up"), st.frozensets(st.sampled_from([A, B, C, D]))),
        st.tuples(st.sampled_from(["batch", "round", "recovery", "events"]), st.just(frozenset())),
    ),
    max_size=40,
)


@given(EVENTS)
def test_whatever_comes_a_task_is_in_one_place(events: list[tuple[str, frozenset[TaskId]]]) -> None:
    world = World()
    group: set[TaskId] = set()
    for kind, tasks in events:
        _happen(world, group, kind, tasks)
        _check(world, events)
    world.finish()
    manager = world.manager
    assert world.held() == manager.owned == group, events
    assert set(world.updater.tasks) == set(manager.copies) - group, events
    assert {task: t.role for task, t in world.updater.tasks.items()} == {
        task: role for task, role in manager.copies.items() if task not in group
    }, events
    assert world.book.owned() == group, (events, "the group waits for a release")
    assert world.failures == []


def _happen(world: World, group: set[TaskId], kind: str, tasks: frozenset[TaskId]) -> None:
    if kind == "assigned":
        group |= tasks
        world.assign(*tasks)
    elif kind == "revoked":
        gone = tasks & group
        group -= gone
        world.book.revoke(gone, MemberMetadata(1, "m", None))
        if gone:
            world.manager.revoked(gone)
    elif kind == "lost":
        world.book.disown_all()
        world.manager.lost(frozenset(group))
        group.clear()
    elif kind in ("standby", "warm-up"):
        world.manager.roles(
            tasks - group if kind == "standby" else (), tasks - group if kind == "warm-up" else ()
        )
    elif kind == "batch":
        for thread in world.threads:
            thread.finish_batch()
    elif kind == "round":
        world.updater.finish_round()
    elif kind == "recovery":
        world.work()
    else:
        world.deliver()


def _check(world: World, events: object) -> None:
    manager = world.manager
    active = [task for thread in world.threads for task in thread.tasks]
    assert len(active) == len(set(active)), (events, "active on two threads")
    assert not set(active) & set(world.updater.tasks), (events, "active, and followed")
    places = [
        *manager.running,
        *manager.recovering,
        *manager.leaving,
        *manager.following,
        *manager.letting_go,
    ]
    assert len(places) == len(set(places)), (events, places)
    assert not set(places) & set(manager.suspended), (events, "suspended, but somewhere")


def test_a_task_that_cannot_be_recovered_holds_up_no_other(world: World) -> None:
    """Those that the brokers' silence concerns are tried by themselves, and the others run."""
    attempts: list[list[TaskId]] = []

    def recover(tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
        attempts.append([task.id for task in tasks])
        if any(task.id == B for task in tasks):
            world.clock.advance(3_000)
            raise RetriableError(
                "the leader of in-1 does not answer", [TopicPartition("in", B.partition)]
            )

    world.recover = recover  # type: ignore[method-assign]
    world.assign(A, B, C, D)
    world.settle_once()
    assert [B, D] in attempts
    world.settle_once()
    assert world.held() == {A, C, D}
    assert world.failures == []
    while not world.failures:
        world.settle_once()
    assert sum(B in tried and tried != [B] for tried in attempts) == 1
    (late,) = world.failures
    assert isinstance(late, TaskTimeoutError)
    assert late.task == B
    assert "the leader of in-1 does not answer" in str(late)
    assert world.held() == {A, C, D}


def test_a_task_whose_time_is_over_is_recovered_anew_where_the_handler_says_so(
    world: World,
) -> None:
    """Also one that a thread has given back."""

    away = {A}

    def recover(tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
        if away:
            world.clock.advance(3_000)
            raise RetriableError("no answer in time")

    world.recover, world.anew = recover, True  # type: ignore[method-assign]
    world.assign(A)
    while len(world.failures) < 2:
        world.settle_once()
    assert [type(error) for error in world.failures] == [TaskTimeoutError] * 2
    assert world.manager.timeouts.stalled() == {}, "its time begins anew"
    assert world.closed == []
    away.clear()
    world.settle()
    assert world.held() == {A}
    (thread,) = (thread for thread in world.threads if A in thread.tasks)
    task = thread.tasks.pop(A)
    task.to(TaskState.RESTORING)
    world.manager.timeouts.failed([A], "no answer in time", world.clock.monotonic_ms())
    world.clock.advance(60_000)
    world.manager.recovery_failed([task], RetriableError("no answer in time"))
    assert len(world.failures) == 3
    world.settle()
    assert world.held() == {A}


def test_where_nobody_knows_whom_it_concerns_each_is_tried_by_itself(world: World) -> None:
    bad = {A, B}

    def recover(tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
        if any(task.id in bad for task in tasks):
            raise RetriableError("no answer in time")

    world.recover = recover  # type: ignore[method-assign]
    world.assign(A, B, C, D)
    for _ in range(3):
        world.settle_once()
    assert world.held() == {C, D}
    bad.clear()
    world.settle()
    assert world.held() == {A, B, C, D}
    assert world.manager.timeouts.stalled() == {}


def test_what_a_thread_gives_back_is_recovered_by_itself(world: World) -> None:
    world.assign(A, B)
    world.settle()
    thread = next(thread for thread in world.threads if B in thread.tasks)
    task = thread.tasks.pop(B)
    task.to(TaskState.RESTORING)
    world.manager.recovery_failed([task], RetriableError("no answer in time"))
    assert not world.manager.all_running()
    assert world.held() == {A}
    world.settle()
    assert world.held() == {A, B}
    assert world.manager.all_running()
    assert world.recovered.count(B) == 2


def test_what_a_thread_gives_back_while_it_is_asked_for_it_is_given_up(world: World) -> None:
    world.assign(A, B)
    world.settle()
    thread = next(thread for thread in world.threads if B in thread.tasks)
    world.manager.revoked([B])
    task = thread.tasks.pop(B)
    task.to(TaskState.RESTORING)
    world.manager.recovery_failed([task], RetriableError("no answer in time"))
    world.finish()
    assert world.released == 1
    assert world.held() == {A}
    assert world.book.owned() == {A}


@pytest.mark.parametrize("begun", [True, False])
def test_a_task_gets_a_new_topic_when_it_changes_its_thread(world: World, begun: bool) -> None:
    """Note 037: as it is where it is known where the topic begins, and recovered elsewhere."""
    world.assign(A, B)
    world.settle()
    task = next(thread.tasks[A] for thread in world.threads if A in thread.tasks)
    came, before = TopicPartition("new", A.partition), task.inputs
    task.positions = {before[0]: 5}
    world.inputs[A] = (*before, came)
    if begun:
        stand_in = ActiveTask(
            id=A, inputs=(came,), positions={came: 7}, stream_times={"n": 3}, epoch=task.epoch
        )
        world.begun[A] = stand_in
    number = next(thread.number for thread in world.threads if A in thread.tasks)
    world.manager.deal_without(frozenset({number}))
    world.finish()
    (now,) = [thread for thread in world.threads if A in thread.tasks]
    assert now.number != number
    assert now.tasks[A].inputs == (*before, came)
    assert world.recovered.count(A) == (1 if begun else 2)
    if begun:
        assert now.tasks[A].positions == {before[0]: 5, came: 7}
        assert now.tasks[A].stream_times == {"n": 3}
    assert world.manager.all_running()


def test_a_topic_that_came_while_a_task_was_recovered_is_not_forgotten(world: World) -> None:
    world.assign(A)
    came = TopicPartition("new", A.partition)
    world.inputs[A] = (TopicPartition("in", A.partition), came)
    world.settle()
    assert next(thread.tasks[A].inputs for thread in world.threads if thread.tasks) == (
        TopicPartition("in", A.partition),
        came,
    )
    assert world.recovered.count(A) == 2


# Tasks are dealt to threads by the table (reference 5.1), and have a time-out each (KIP-572).

tasks = st.sets(st.builds(TaskId, st.integers(0, 3), st.integers(0, 7)))


@given(tasks, tasks, st.integers(1, 5))
def test_dealing_is_balanced_and_stable(before: set[TaskId], now: set[TaskId], count: int) -> None:
    threads = range(count)
    first = deal(before, threads, {})
    second = deal(now, threads, first)
    for dealt, wanted in ((first, before), (second, now)):
        assert dealt.keys() == wanted
        loads = [sum(1 for t in dealt.values() if t == thread) for thread in threads]
        assert max(loads) - min(loads) <= 1
    assert deal(now, threads, second) == second
    assert deal(sorted(now, reverse=True), threads, first) == second


@given(
    st.dictionaries(st.builds(TaskId, st.integers(0, 1), st.integers(0, 5)), st.integers(0, 3)),
    tasks,
    tasks,
)
def test_what_runs_stays_on_its_thread_wherever_the_balance_allows(
    previous: dict[TaskId, int], now: set[TaskId], gone: set[TaskId]
) -> None:
    """``gone`` ran here once and come back, or come for the first time: they must not drive away
    what runs."""
    threads = range(4)
    running = now & previous.keys() - gone
    dealt = deal(now, threads, previous, running)
    held = [sum(1 for task in running if previous[task] == thread) for thread in threads]
    low, extra = divmod(len(now), len(threads))
    most = sum(min(one, low) for one in held) + min(extra, sum(one > low for one in held))
    stay = sum(dealt[task] == previous[task] for task in running)
    assert stay == most, f"{stay} of {most} stay: {previous} -> {dealt}, running {running}"


def test_tasks_of_one_subtopology_are_spread() -> None:
    dealt = deal([TaskId(s, p) for s in range(2) for p in range(4)], [0, 1], {})
    for sub in range(2):
        assert sorted(dealt[TaskId(sub, p)] for p in range(4)) == [0, 0, 1, 1]


def test_the_listener_sees_every_change_in_order_and_may_fail() -> None:
    machine = StateMachine()
    seen: list[tuple[ClientState, ClientState]] = []

    def listener(new: ClientState, old: ClientState) -> None:
        seen.append((new, old))
        raise RuntimeError("the user's listener")

    machine.listener = listener
    for state in (
        ClientState.REBALANCING,
        ClientState.RUNNING,
        ClientState.PENDING_SHUTDOWN,
        ClientState.NOT_RUNNING,
    ):
        assert machine.to(state)
    assert [new for new, _ in seen] == [
        ClientState.REBALANCING,
        ClientState.RUNNING,
        ClientState.PENDING_SHUTDOWN,
        ClientState.NOT_RUNNING,
    ]
    assert machine.wait_ended(0)


def test_late_events_do_not_revive_an_instance_and_impossible_steps_raise() -> None:
    machine = StateMachine()
    with pytest.raises(IllegalTransitionError):
        machine.to(ClientState.RUNNING)
    machine.to(ClientState.PENDING_SHUTDOWN)
    assert not machine.to(ClientState.RUNNING)
    assert not machine.to(ClientState.PENDING_ERROR)
    assert machine.state is ClientState.PENDING_SHUTDOWN
    assert CLIENT_TRANSITIONS[ClientState.ERROR] == frozenset()


TASK = TaskId(0, 1)
INPUTS = (TopicPartition("in", 1),)
STORES = (TaskStore("s", Path("s"), TopicPartition("log", 1)),)
ACTIVE = {
    ("CREATED", "RESTORING"),
    ("CREATED", "CLOSED"),
    ("RESTORING", "RUNNING"),
    ("RESTORING", "SUSPENDED"),
    ("RESTORING", "CLOSED"),
    ("RUNNING", "RESTORING"),
    ("RUNNING", "SUSPENDED"),
    ("SUSPENDED", "RESTORING"),
    ("SUSPENDED", "CLOSED"),
}
STANDBY = {
    ("CREATED", "RUNNING"),
    ("CREATED", "CLOSED"),
    ("RUNNING", "SUSPENDED"),
    ("SUSPENDED", "RUNNING"),
    ("SUSPENDED", "CLOSED"),
}


@pytest.mark.parametrize("old", TaskState)
@pytest.mark.parametrize("new", TaskState)
def test_the_steps_there_are(old: TaskState, new: TaskState) -> None:
    for task, steps in (
        (ActiveTask(id=TASK, inputs=INPUTS, stores=STORES, state=old), ACTIVE),
        (StandbyTask(TASK, STORES, state=old), STANDBY),
    ):
        if (old.name, new.name) in steps:
            task.to(new)
            assert task.state is new
        else:
            with pytest.raises(IllegalTransitionError, match=rf"{old.name}.*{new.name}"):
                task.to(new)


def test_a_task_changes_its_role_with_its_stores_and_only_suspended() -> None:
    standby = StandbyTask(TASK, STORES)
    standby.to(TaskState.RUNNING)
    with pytest.raises(IllegalTransitionError, match="suspended"):
        standby.recycle(INPUTS)
    standby.to(TaskState.SUSPENDED)
    active = standby.recycle(INPUTS)
    assert (active.stores, active.inputs, active.state) == (STORES, INPUTS, TaskState.SUSPENDED)
    active.to(TaskState.RESTORING)
    active.to(TaskState.RUNNING)
    with pytest.raises(IllegalTransitionError):
        active.recycle(TaskRole.STANDBY)
    active.to(TaskState.SUSPENDED)
    again = active.recycle(TaskRole.WARMUP)
    assert (again.stores, again.role, again.state) == (STORES, TaskRole.WARMUP, TaskState.SUSPENDED)


def test_only_topics_that_nobody_else_deletes_from_say_what_was_purged() -> None:
    blueprint = Blueprint(
        application_id="app",
        cluster_id="c",
        plan=cast(Any, None),
        inputs={},
        stores={},
        partitions={"in": 1, "kept": 2, "aging": 2},
        offset_reset={},
        repartition=frozenset({"kept", "aging"}),
        kept=frozenset({"kept"}),
    )
    assert blueprint.purged() == [TopicPartition("kept", 0), TopicPartition("kept", 1)]


ME, LIVE, DEAD = (f"{digit * 8}-aaaa-bbbb-cccc-{digit * 12}" for digit in "123")


def test_only_ids_of_processes_that_are_no_members_are_lost() -> None:
    open_ids = [f"app-{ME}-0", f"app-{LIVE}-0", f"app-{DEAD}-0", f"app-{DEAD}-11"]
    open_ids += [f"other-{DEAD}-0", "app-foreign", f"app-x-{DEAD}-0"]
    assert lost_writers("app", open_ids, [f"app-{LIVE}", f"app-{ME}"], ME) == [
        f"app-{DEAD}-0",
        f"app-{DEAD}-11",
    ]


def test_the_own_process_lives_even_where_the_group_does_not_list_it() -> None:
    assert lost_writers("app", [f"app-{ME}-0"], [], ME) == []


def test_a_member_of_whom_the_process_cannot_be_told_may_own_any_of_them() -> None:
    assert lost_writers("app", [f"app-{DEAD}-0"], [f"app-{LIVE}", "everflow"], ME) == []


def test_nobody_is_asked_for_members_where_nothing_is_open_and_a_fault_is_no_failure() -> None:
    fenced: list[str] = []

    def refuse() -> list[str]:
        raise RetriableError("away")

    assert fence_lost_writers("app", ME, list, refuse, fenced.extend) == []
    assert fence_lost_writers("app", ME, lambda: [f"app-{DEAD}-0"], refuse, fenced.extend) == []
    assert fenced == []
    assert fence_lost_writers("app", ME, lambda: [f"app-{DEAD}-0"], list, fenced.extend)
    assert fenced == [f"app-{DEAD}-0"]


DEALT_C = TaskId(1, 0)
ALL = (A, B, DEALT_C)
LIMIT_MS = 10_000.0


def test_the_time_of_a_task_begins_with_a_failure_and_ends_with_progress() -> None:
    timeouts = TaskTimeouts(LIMIT_MS)
    timeouts.failed([A], "no leader", 0)
    timeouts.failed([A, B], "no leader", 9_000)
    timeouts.progressed(A)
    timeouts.failed([A], "no leader", 15_000)
    timeouts.failed([B], "no leader", 19_000)
    with pytest.raises(TaskTimeoutError) as late:
        timeouts.failed([A, B], "no answer", 19_001)
    assert late.value.task == B, "A got on meanwhile"
    said = r"Task 0_1 .* 10 s \(task\.timeout\.ms: 10 s\); .*: no answer"
    assert re.fullmatch(said, str(late.value))


def test_with_no_time_at_all_the_first_failure_is_forgiven() -> None:
    """As in Kafka Streams: it only says when the time ends."""
    timeouts = TaskTimeouts(0)
    timeouts.failed([A], "no leader", 5)
    with pytest.raises(TaskTimeoutError):
        timeouts.failed([A], "no leader", 6)


def test_who_failed_rests_longer_each_time_and_the_longer_it_held_the_others_up() -> None:
    timeouts = TaskTimeouts(1_000_000)
    rests = []
    for number, took_ms in enumerate((0, 0, 0, 3_000, 900_000)):
        timeouts.failed([A], "no leader", 0)
        timeouts.rest([A], 0, took_ms)
        assert timeouts.resting(0) == {A}, number
        rests.append(timeouts.stalled()[A].until_ms)
    assert rests == [500, 1_000, 2_000, 9_000, 1_000_000 * PART_OF_LIMIT]


def test_tasks_that_failed_together_are_tried_one_by_one_and_who_gets_on_is_free_again() -> None:
    timeouts = TaskTimeouts(LIMIT_MS)
    timeouts.failed([A, B], "nobody knows of whom", 0)
    assert timeouts.chosen(ALL, 0) == [A, B, DEALT_C], "once may be bad luck"
    timeouts.set_apart([A, B])
    assert timeouts.chosen(ALL, 0) == [A]
    timeouts.progressed(A)
    assert timeouts.chosen(ALL, 0) == [B]
    timeouts.failed([B], "it is B", 100)
    timeouts.rest([B], 100, 100)
    assert timeouts.chosen([A, DEALT_C], 200) == [A, DEALT_C]
    assert timeouts.chosen(ALL, timeouts.stalled()[B].until_ms) == [B]


def test_tasks_that_get_on_have_most_of_the_time_however_many_do_not() -> None:
    timeouts = TaskTimeouts(1_000_000)
    many = [TaskId(2, number) for number in range(40)]
    timeouts.failed(many, "no leader", 0)
    timeouts.set_apart(many)
    now_ms, others_ms, took_ms = 0.0, 0.0, 3_000.0
    while now_ms < 300_000:
        awake = [task for task in many if task not in timeouts.resting(now_ms)]
        if timeouts.chosen([A, *awake], now_ms) == [A]:
            now_ms, others_ms = now_ms + 100, others_ms + 100
            continue
        (tried,) = timeouts.chosen([A, *awake], now_ms)
        now_ms += took_ms
        timeouts.failed([tried], "no leader", now_ms)
        timeouts.rest([tried], now_ms, took_ms)
    assert others_ms > 0.7 * now_ms


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("failed", "got on", "rest", "apart", "keep")),
            st.sets(st.sampled_from(ALL), min_size=1),
            st.integers(0, 4_000),
        ),
        max_size=40,
    )
)
def test_only_time_without_progress_ends_a_task(events: list[tuple[str, set[TaskId], int]]) -> None:
    """Against the rule in its plainest form: a list of what happened to each task."""
    timeouts, now_ms = TaskTimeouts(LIMIT_MS), 0.0
    since: dict[TaskId, float] = {}
    for what, tasks, later_ms in events:
        now_ms += later_ms
        known = sorted(tasks & timeouts.stalled().keys())
        if what == "failed":
            for task in tasks:
                since.setdefault(task, now_ms)
            over = {task for task in tasks if now_ms - since[task] > LIMIT_MS}
            if over:
                with pytest.raises(TaskTimeoutError) as late:
                    timeouts.failed(tasks, "no leader", now_ms)
                assert late.value.task in over
                return
            timeouts.failed(tasks, "no leader", now_ms)
        elif what == "rest":
            timeouts.rest(known, now_ms, later_ms)
        elif what == "apart":
            timeouts.set_apart(known)
        elif what == "keep":
            timeouts.keep(tasks)
            since = {task: at for task, at in since.items() if task in tasks}
        else:
            for task in tasks:
                timeouts.progressed(task)
                since.pop(task, None)
        assert timeouts.stalled().keys() == since.keys()
        awake = set(ALL) - timeouts.resting(now_ms)
        assert set(timeouts.chosen(sorted(awake), now_ms)) <= awake
        assert timeouts.chosen(sorted(awake), now_ms) or not awake, "somebody is always tried"
        assert all(one.until_ms <= now_ms + LIMIT_MS for one in timeouts.stalled().values()), (
            "who rests is tried again before its time is over"
        )


def test_a_restart_recovers_what_runs_and_leaves_the_others(world: World) -> None:
    world.assign(A, B, C)
    world.settle()
    world.recovered.clear()
    world.manager.restart({A, D})
    assert world.manager.restarting == {A}
    assert not world.manager.all_running()
    for thread in world.threads:
        thread.finish_batch()
    world.settle()
    assert world.recovered == [A]
    assert world.manager.restarting == set()
    assert world.manager.all_running()


def test_a_task_that_is_revoked_in_its_restart_goes(world: World) -> None:
    world.assign(A, B)
    world.settle()
    world.recovered.clear()
    world.manager.restart({A})
    world.book.revoke([A], MemberMetadata(1, "m", None))
    world.manager.revoked([A])
    for thread in world.threads:
        thread.finish_batch()
    world.settle()
    assert (world.recovered, world.released) == ([], 1)
    assert world.manager.restarting == set()
