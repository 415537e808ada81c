"""Tables that are loaded: swapped as a whole, kept over failures, removed when unread."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from everflow import serdes
from everflow.clock import Running
from everflow.errors import TableLoadError
from everflow.instance.copies.global_tables import CHECKED_EVERY_MS, LoadedTables
from everflow.records import TaskId
from everflow.retry import StoppedError
from everflow.state.changelog import unpack_value
from everflow.state.lmdb_store import LmdbStore
from everflow.topology.graph import EdgeType, LoadedTableNode
from everflow.topology.plan import LoadedTable
from unit.builders import store_spec
from unit.manual_clock import ManualClock

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


class World:
    """A table of a function of the test's, loaded every ten seconds."""

    def __init__(self, folder: Path) -> None:
        self.turns, self.folder = Turns(), folder / "loaded"
        self.content: dict[str | None, int | None] = {"a": 1}
        self.failure: Exception | None = None
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
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.tables.close()
    assert not found.folder.exists()


def seconds(count: int) -> list[Callable[[], None]]:
    return [lambda: None] * count


def test_a_generation_takes_the_place_of_the_one_before_as_a_whole(world: World) -> None:
    seen: list[dict[str, int]] = []

    def change() -> None:
        seen.append(world.held())
        world.content = {"b": 2, None: 3, "c": 4}

    assert CHECKED_EVERY_MS == 1_000
    world.run(change, *seconds(8), lambda: seen.append(world.held()), *seconds(1))
    assert seen == [{"a": 1}, {"a": 1}]
    assert world.held() == {"b": 2, "c": 4}
    (figures,) = world.tables.followed().values()
    assert (figures.offset_sum, figures.lag) == (2, 0)
    assert [path.name for path in world.folder.iterdir()] == [world.place().name]


def test_a_failed_refresh_keeps_the_last(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def break_() -> None:
        world.failure = OSError("the lake is away")

    def mend() -> None:
        assert world.held() == {"a": 1}
        assert world.tables.followed()[TASK].lag is None
        world.failure, world.content = None, {"a": 2}

    with caplog.at_level("WARNING"):
        world.run(break_, *seconds(12), mend, *seconds(8))
    (told,) = [one.getMessage() for one in caplog.records]
    assert told.startswith("Global table people could not be loaded again: ")
    assert "the lake is away" in told
    assert "10 s ago; the next try is in 10 s" in told
    assert world.held() == {"a": 2}
    assert world.tables.followed()[TASK].lag == 0


def test_what_a_batch_may_read_stays_until_it_has_ended(world: World) -> None:
    first: list[Path] = []

    def begin() -> None:
        world.busy = [None, world.turns.monotonic_ms()]
        first.append(world.place())

    def still() -> None:
        assert world.place() != first[0]
        assert world.held(first[0]) == {"a": 1}

    def next_batch() -> None:
        world.busy = [world.turns.monotonic_ms(), None]

    world.run(begin, *seconds(14), still, *seconds(14), still, next_batch, *seconds(1))
    assert not first[0].exists()
    assert world.held() == {"a": 1}


def test_a_start_that_cannot_load_does_not_start(world: World) -> None:
    world.failure = OSError("no such table")
    world.run()
    assert not world.tables.ready
    with pytest.raises(TableLoadError, match=r"people.*program.py:3") as error:
        world.tables.await_loaded(threading.Event())
    assert isinstance(error.value.__cause__, OSError)
    assert world.tables.stores() == {}


def test_a_start_that_is_stopped_does_not_wait_for_spark(tmp_path: Path) -> None:
    world, stop = World(tmp_path), threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        world.tables.await_loaded(stop)


def test_without_such_tables_nothing_is_waited_for(tmp_path: Path) -> None:
    none = LoadedTables([], tmp_path / "loaded", list, ManualClock())
    none.start()
    none.await_loaded(threading.Event())
    assert none.ready
    assert (none.stores(), none.followed()) == ({}, {})
    none.close()


def test_an_empty_table_is_one(world: World) -> None:
    world.content = {}
    world.run()
    assert world.held() == {}


def test_two_rows_of_one_key_are_refused(world: World) -> None:
    world.content = {"a": 1}
    rows = world.rows

    def twice() -> Iterator[tuple[pa.Array, pa.Array]]:
        yield from rows()
        yield from rows()

    world.rows = twice  # type: ignore[method-assign]
    world.run()
    with pytest.raises(TableLoadError, match=r"rows.*'a'"):
        world.tables.await_loaded(threading.Event())
