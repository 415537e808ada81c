"""Batches never look things up in a store of a global table that is being filled."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from everflow import serdes
from everflow.clock import Running, SystemClock
from everflow.errors import EverflowError, TableLoadError, TaskTimeoutError
from everflow.instance.copies.global_tables import CHECKED_EVERY_MS, GlobalTables, LoadedTables
from everflow.instance.restore.restoration import PreparedStore
from everflow.instance.restore.restore_plan import ChangelogState
from everflow.instance.tasks.task import TaskRole
from everflow.records import TaskId
from everflow.retry import StoppedError
from everflow.state.changelog import unpack_value
from everflow.state.lmdb_store import LmdbStore
from everflow.topology.graph import EdgeType, LoadedTableNode
from everflow.topology.plan import LoadedTable
from unit.builders import store_spec
from unit.instance.copies.updater_world import A, B, World, log_of
from unit.manual_clock import ManualClock


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


# Tables that are loaded.

TASK = TaskId(3, 0)
SPEC = store_spec("people", logging=False)


class Turns:
    """A clock on which the table's thread runs: each wait for the stop is a step of the test."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.steps: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def monotonic_ms(self) -> float:
        return self.clock.monotonic_ms()

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        self.clock.advance(timeout_ms)
        if not self.steps:
            return True
        self.steps.pop(0)()
        return event.is_set()


class Ended:
    def join(self, timeout_s: float | None = None) -> bool:
        return True


class LoadedWorld:
    """A table of a function of the test's, loaded every ten seconds."""

    def __init__(self, folder: Path) -> None:
        self.turns, self.folder = Turns(), folder / "loaded"
        self.content: dict[str | None, int | None] = {"a": 1}
        self.failure: BaseException | None = None
        self.busy: list[float | None] = []
        node = LoadedTableNode(
            name="people",
            inputs=(),
            out=EdgeType(pa.string(), pa.int64()),
            where="program.py:3",
            source="people-rows",
            store=SPEC,
            rows=lambda: self.rows(),
            refresh_ms=10_000,
        )
        table = LoadedTable(TASK.subtopology, node)
        self.tables = LoadedTables([table], self.folder, lambda: self.busy, self.turns, self._spawn)

    def rows(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        if self.failure is not None:
            raise self.failure
        for key, value in self.content.items():
            yield pa.array([key], pa.string()), pa.array([value], pa.int64())

    def run(self, *steps: Callable[[], None]) -> None:
        """The thread's whole life: each of ``steps`` is what happens while it waits a second."""
        self.turns.steps = list(steps)
        self.tables.start()

    def place(self) -> Path:
        ((store,),) = self.tables.stores().values()
        return store.path

    def held(self, path: Path | None = None) -> dict[str, int]:
        with LmdbStore.open(path or self.place()).snapshot() as view:
            return {
                key.decode(): serdes.long().decode(unpack_value(value)[1])
                for key, value in view.range(None, None)
            }

    @staticmethod
    def _spawn(name: str, run: Callable[[], None]) -> Running:
        run()
        return Ended()


@pytest.fixture
def loaded_world(tmp_path: Path) -> Iterator[LoadedWorld]:
    found = LoadedWorld(tmp_path)
    yield found
    found.tables.close()
    assert not found.folder.exists()


def seconds(count: int) -> list[Callable[[], None]]:
    return [lambda: None] * count


def test_a_generation_takes_the_place_of_the_one_before_as_a_whole(
    loaded_world: LoadedWorld,
) -> None:
    seen: list[dict[str, int]] = []

    def change() -> None:
        seen.append(loaded_world.held())
        loaded_world.content = {"b": 2, None: 3, "c": 4}

    assert CHECKED_EVERY_MS == 1_000
    loaded_world.run(change, *seconds(8), lambda: seen.append(loaded_world.held()), *seconds(1))
    assert seen == [{"a": 1}, {"a": 1}]
    assert loaded_world.held() == {"b": 2, "c": 4}
    (figures,) = loaded_world.tables.followed().values()
    assert (figures.offset_sum, figures.lag) == (2, 0)
    assert [path.name for path in loaded_world.folder.iterdir()] == [loaded_world.place().name]


AWAY = [OSError("the lake is away"), SystemExit("the lake is away")]
"""What the user's function may raise: ``sys.exit()`` would end the thread that loads, too."""


@pytest.mark.parametrize("failure", AWAY, ids=["error", "exit"])
def test_a_failed_refresh_keeps_the_last(
    loaded_world: LoadedWorld, caplog: pytest.LogCaptureFixture, failure: BaseException
) -> None:
    def break_() -> None:
        loaded_world.failure = failure

    def mend() -> None:
        assert loaded_world.held() == {"a": 1}
        assert loaded_world.tables.followed()[TASK].lag is None
        loaded_world.failure, loaded_world.content = None, {"a": 2}

    with caplog.at_level("WARNING"):
        loaded_world.run(break_, *seconds(12), mend, *seconds(8))
    (told,) = [one.getMessage() for one in caplog.records]
    assert told.startswith("Global table people ")
    assert "the lake is away" in told
    assert re.search("10 s ago; .* in 10 s", told)
    assert loaded_world.held() == {"a": 2}
    assert loaded_world.tables.followed()[TASK].lag == 0


def test_what_a_batch_may_read_stays_until_it_has_ended(loaded_world: LoadedWorld) -> None:
    first: list[Path] = []

    def begin() -> None:
        loaded_world.busy = [None, loaded_world.turns.monotonic_ms()]
        first.append(loaded_world.place())

    def still() -> None:
        assert loaded_world.place() != first[0]
        assert loaded_world.held(first[0]) == {"a": 1}

    def next_batch() -> None:
        loaded_world.busy = [loaded_world.turns.monotonic_ms(), None]

    loaded_world.run(begin, *seconds(14), still, *seconds(14), still, next_batch, *seconds(1))
    assert not first[0].exists()
    assert loaded_world.held() == {"a": 1}


@pytest.mark.parametrize("failure", AWAY, ids=["error", "exit"])
def test_a_start_that_cannot_load_does_not_start(
    loaded_world: LoadedWorld, failure: BaseException
) -> None:
    loaded_world.failure = failure
    loaded_world.run()
    assert not loaded_world.tables.ready
    with pytest.raises(TableLoadError, match=r"people.*program.py:3") as error:
        loaded_world.tables.await_loaded(threading.Event())
    assert error.value.__cause__ is failure
    assert loaded_world.tables.stores() == {}


def test_a_start_that_is_stopped_does_not_wait_for_spark(tmp_path: Path) -> None:
    loaded_world, stop = LoadedWorld(tmp_path), threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        loaded_world.tables.await_loaded(stop)


def test_without_such_tables_nothing_is_waited_for(tmp_path: Path) -> None:
    none = LoadedTables([], tmp_path / "loaded", list, ManualClock())
    none.start()
    none.await_loaded(threading.Event())
    assert none.ready
    assert (none.stores(), none.followed()) == ({}, {})
    none.close()


def test_an_empty_table_is_one(loaded_world: LoadedWorld) -> None:
    loaded_world.content = {}
    loaded_world.run()
    assert loaded_world.held() == {}


def test_two_rows_of_one_key_are_refused(loaded_world: LoadedWorld) -> None:
    loaded_world.content = {"a": 1}
    rows = loaded_world.rows

    def twice() -> Iterator[tuple[pa.Array, pa.Array]]:
        yield from rows()
        yield from rows()

    loaded_world.rows = twice  # type: ignore[method-assign]
    loaded_world.run()
    with pytest.raises(TableLoadError, match=r"rows.*'a'"):
        loaded_world.tables.await_loaded(threading.Event())
