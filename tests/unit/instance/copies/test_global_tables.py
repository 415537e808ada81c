"""Batches never look things up in a store of a global table that is being filled."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everflow.clock import SystemClock
from everflow.errors import EverflowError, TaskTimeoutError
from everflow.instance.copies.global_tables import GlobalTables
from everflow.instance.restore.restoration import PreparedStore
from everflow.instance.restore.restore_plan import ChangelogState
from everflow.instance.tasks.task import TaskRole
from everflow.records import TaskId
from everflow.retry import StoppedError
from unit.instance.copies.updater_world import A, B, World, log_of


class GlobalWorld(World):
    """A world whose tasks are those of a global table of two partitions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.failures: list[EverflowError] = []
        tasks = [self.task(task, TaskRole.GLOBAL) for task in (A, B)]
        self.tables = GlobalTables(tasks, self.updater, self.failures.append, SystemClock())
        self.updater.add(tasks)

    def prepare(
        self, task: TaskId, store: str, state: ChangelogState, incarnation: str
    ) -> PreparedStore:
        found = super().prepare(task, store, state, incarnation)
        self.tables.prepared(task, found.store.path, self.stable[log_of(task)])
        return found

    def places(self) -> list[str]:
        return [context.stores["counts"].path for context in self.tables.contexts()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[GlobalWorld]:
    found = GlobalWorld(tmp_path)
    yield found
    found.tables.close()
    found.directory.close()


def test_a_table_is_told_of_once_all_was_read_to_its_first_end(world: GlobalWorld) -> None:
    world.stable = {log_of(A): 4, log_of(B): 6}
    world.rounds(2)
    assert not world.tables.filled
    world.rounds()
    assert world.tables.filled
    world.stable = {log_of(A): 9, log_of(B): 9}
    world.rounds(5)
    assert world.tables.filled
    assert [context.task for context in world.tables.contexts()] == [A, B]
    assert world.places() == [str(world.directory.store_path(task, "counts")) for task in (A, B)]
    assert world.content(A) == world.expected(A, 9)


def test_while_one_is_read_anew_batches_are_told_of_the_store_before(world: GlobalWorld) -> None:
    world.stable = {log_of(A): 2, log_of(B): 2}
    world.rounds(2)
    before = world.places()
    world.starts[log_of(A)], world.stable[log_of(A)] = 5, 9
    world.rounds(2)
    assert not world.tables.filled
    assert world.places() == before
    world.rounds(3)
    assert world.tables.filled
    assert world.places() == [str(world.directory.store_path(A, "counts")), before[1]]
    assert world.places() != before


def test_what_is_refused_at_the_start_is_raised_later_it_ends_all(world: GlobalWorld) -> None:
    refused = EverflowError("no JSON")
    world.tables.refused(refused)
    with pytest.raises(EverflowError, match="no JSON"):
        world.tables.await_filled(threading.Event(), 1_000.0)
    assert world.failures == []
    later = GlobalWorld(world.directory.path / "later")
    later.rounds()
    later.tables.await_filled(threading.Event(), 1_000.0)
    later.tables.refused(refused)
    assert later.failures == [refused]
    later.tables.close()
    later.directory.close()


def test_waiting_ends_when_the_instance_stops_or_nothing_comes(world: GlobalWorld) -> None:
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(StoppedError):
        world.tables.await_filled(stopped, 1_000.0)
    with pytest.raises(TaskTimeoutError, match="topics"):
        world.tables.await_filled(threading.Event(), 0.0)


def test_without_global_tables_nothing_is_waited_for() -> None:
    none = GlobalTables((), None, lambda error: None, SystemClock())
    none.start()
    none.await_filled(threading.Event(), 0.0)
    assert none.filled
    assert none.contexts() == []
    none.close()
