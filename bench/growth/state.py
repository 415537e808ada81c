"""What a micro-batch costs beside a state that grows: the operators' own code on LMDB stores,
without a broker."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.growth.state_programs import LEFT, LONG, RIGHT, TEXT, Piped, StateProgram
from everflow import StreamsBuilder
from everflow.records import StoreChanges
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.testing import TopologyTestDriver

CHUNK = 20_000


class Read(NamedTuple):
    """Of one micro-batch: its time, and how many entries of its stores it has read."""

    seconds: float
    entries: int


class Counter:
    """Counts the entries that are read from stores."""

    def __init__(self) -> None:
        self.entries = 0


class CountedStore:
    """A store of a test driver whose reads are counted; ``opened``: a view of each micro-batch."""

    def __init__(self, opened: Any, apply: Any, counter: Counter) -> None:
        self._opened, self._apply, self._counter = opened, apply, counter
        self._stack = ExitStack()
        self._view: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._view is None:
            self._view = self._stack.enter_context(self._opened())
        found = getattr(self._view, name)
        return self._counted(found) if callable(found) and name != "entries" else found

    def apply(self, changes: StoreChanges) -> None:
        """See `InMemoryStore`."""
        self.close()
        self._apply(changes)

    def close(self) -> None:
        """What was read is not needed any more."""
        self._stack.close()
        self._view = None

    def _counted(self, read: Any) -> Any:
        def counting(*given: Any) -> Any:
            found = read(*given)
            if isinstance(found, list):
                self._counter.entries += sum(
                    len(one) if isinstance(one, list) else one is not None for one in found
                )
                return found
            return self._one_by_one(found)

        return counting

    def _one_by_one(self, entries: Iterator[Any]) -> Iterator[Any]:
        for entry in entries:
            self._counter.entries += 1
            yield entry


def on_disk(spec: StoreSpec, folder: Path, counter: Counter) -> CountedStore:
    """In LMDB, as an instance's."""
    store = LmdbStore.open(folder, kind=spec.kind, retention_ms=spec.retention_ms)

    def apply(changes: StoreChanges) -> None:
        store.load_chunk(
            changes.keys, changes.values, changes.timestamps, (store.position or 0) + 1
        )

    return CountedStore(store.snapshot, apply, counter)


@contextmanager
def driver_of(
    program: StateProgram, folder: Path | None, counter: Counter
) -> Iterator[TopologyTestDriver]:
    """A driver of the program, with its stores in ``folder``; None: in memory."""
    builder = StreamsBuilder()
    program.build(builder)
    with TopologyTestDriver(builder.build(), application_id="growth") as driver:
        for name, spec in driver._kept.items():
            memory = driver._stores[name]
            driver._stores[name] = (
                CountedStore(_always(memory), memory.apply, counter)
                if folder is None
                else on_disk(spec, folder / name, counter)
            )
        yield driver


def _always(store: Any) -> Any:
    @contextmanager
    def opened() -> Iterator[Any]:
        yield store

    return opened


def batches(
    driver: TopologyTestDriver,
    program: StateProgram,
    count: int,
    own: bool,
    runs: int,
    counter: Counter,
) -> Iterator[Read]:
    """Fills the state, and runs so many batches."""
    known = [
        topic for topic in (LEFT, RIGHT) if topic in {*driver._offsets, *driver._tables.topics}
    ]
    topics = {name: driver.create_input_topic(name, TEXT, LONG) for name in known}

    def pipe(records: list[Piped]) -> None:
        driver.pipe_batch(
            {
                topic: [one[1:] for one in records if one[0] == name]
                for name, topic in topics.items()
            }
        )

    state = program.state(count, own)
    for first in range(0, len(state), CHUNK):
        pipe([one for one in state[first : first + CHUNK] if one[0] in topics])
    for number in range(runs):
        counter.entries = 0
        began = time.perf_counter()
        pipe(program.batch(count, number))
        yield Read(time.perf_counter() - began, counter.entries)


def measured(program: StateProgram, count: int, own: bool, runs: int) -> Any:
    """Medians of time (s) and entries read."""
    counter = Counter()
    with tempfile.TemporaryDirectory(prefix="bench-state-") as name:
        with driver_of(program, Path(name), counter) as driver:
            found = list(batches(driver, program, count, own, runs, counter))
            for store in driver._stores.values():
                store.close()
    return round(1000 * statistics.median(one.seconds for one in found), 2), statistics.median(
        one.entries for one in found
    )
