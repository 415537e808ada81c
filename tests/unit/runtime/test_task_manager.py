"""The task manager: recover what was assigned, release only when the revoked tasks are given up, never keep a lost one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

import pytest

from everflow.errors import EverflowError, FatalError
from everflow.records import TaskId
from everflow.runtime.commit_gate import GateBook
from everflow.runtime.retry import StoppedError
from everflow.runtime.task import ActiveTask, TaskState
from everflow.runtime.task_manager import TaskManager, TaskServices

A, B, C, D = (TaskId(0, p) for p in range(4))


class FakeThread:
    def __init__(self, number: int) -> None:
        self.number = number
        self.tasks: dict[TaskId, ActiveTask] = {}
        self.drops: list[tuple[list[TaskId], Callable[[Sequence[ActiveTask]], None]]] = []

    def add(self, tasks: Sequence[ActiveTask]) -> None:
        self.tasks.update({task.id: task for task in tasks})

    def drop(self, tasks: Collection[TaskId], done: Callable[[Sequence[ActiveTask]], None]) -> None:
        self.drops.append((list(tasks), done))

    def finish_batch(self) -> None:
        for tasks, done in self.drops:
            done([self.tasks.pop(task) for task in tasks if task in self.tasks])
        self.drops = []


class World:
    def __init__(self, threads: int = 2) -> None:
        self.book = GateBook()
        self.threads = [FakeThread(n) for n in range(threads)]
        self.posted: list[Callable[[], None]] = []
        self.works: list[Callable[[], None]] = []
        self.recovered: list[TaskId] = []
        self.released = 0
        self.failures: list[EverflowError] = []
        self.error: EverflowError | None = None
        services = TaskServices(
            create=lambda task: ActiveTask(task, ()),
            recover=self.recover,
            submit=self.works.append,
            post=self.posted.append,
            before_release=lambda tasks: None,
            release=self.release,
            failed=self.failures.append,
            changed=lambda running: None,
        )
        self.manager = TaskManager(self.book, self.threads, services)

    def recover(self, tasks: Sequence[ActiveTask], stop: threading.Event) -> None:
        if stop.is_set():
            raise StoppedError("stopped")
        if self.error is not None:
            raise self.error
        self.recovered += [task.id for task in tasks]

    def release(self) -> None:
        self.released += 1

    def assign(self, *tasks: TaskId) -> None:
        self.book.own(tasks)
        self.manager.assigned(tasks)

    def settle(self) -> None:
        while self.works or self.posted:
            works, self.works[:] = list(self.works), []
            for work in works:
                work()
            posted, self.posted[:] = list(self.posted), []
            for event in posted:
                event()

    def held(self) -> set[TaskId]:
        return {task for thread in self.threads for task in thread.tasks}


@pytest.fixture
def world() -> World:
    return World()


def test_assigned_tasks_are_recovered_then_dealt_to_the_threads(world: World) -> None:
    world.assign(A, B, C, D)
    assert not world.manager.all_running()
    assert world.held() == set()
    world.settle()
    assert world.manager.all_running()
    assert [len(thread.tasks) for thread in world.threads] == [2, 2]
    assert all(task.state is TaskState.RUNNING for thread in world.threads for task in thread.tasks.values())


def test_revoked_tasks_are_released_only_after_their_batches_have_ended(world: World) -> None:
    world.assign(A, B, C, D)
    world.settle()
    world.manager.revoked([A, B])
    world.settle()
    assert world.released == 0
    assert {A, B} <= world.book.owned()  # the batch in flight may still commit
    for _ in range(3):
        for thread in world.threads:
            thread.finish_batch()
        world.settle()
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
    for _ in range(3):
        for thread in world.threads:
            thread.finish_batch()
        world.settle()
    assert world.held() == {A}
    assert world.recovered.count(A) == 2
    assert world.released == 0


def test_a_revocation_during_recovery_cancels_it_and_the_others_start_again(world: World) -> None:
    world.assign(A, C)
    world.manager.revoked([A])
    world.settle()
    assert world.held() == {C}
    assert world.released == 1


def test_a_recovery_that_fails_stops_the_instance(world: World) -> None:
    world.error = FatalError("disk gone")
    world.assign(A)
    world.settle()
    assert world.failures == [world.error]
    assert world.held() == set()
