"""What a micro-batch costs beside a state that grows: the operators' own code on LMDB stores,
without a broker (`state_programs`). Entries read are counted at the store, so that what is read for
nothing shows however fast the machine is."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.growth.state_programs import LEFT, LONG, PROGRAMS, RIGHT, TEXT, Piped, StateProgram
from bench.results import Measurement
from bench.systems import EVERFLOW
from everflow import StreamsBuilder
from everflow.records import StoreChanges
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.testing import TopologyTestDriver

CHUNK = 20_000
RUNS = 9
READ_MORE = 1.5
"""A batch may read this many times the entries that it reads beside a tenth of the state."""
TAKES_LONGER = 2.0
"""And take this many times as long: trees get deeper, and pages are not in the processor's
caches."""
NOISE_MS = 4.0
NOISE_ENTRIES = 8


class StateGrowsError(Exception):
    """A batch costs more beside more state."""


class Cost(NamedTuple):
    """Of one micro-batch: processor time, which other work on the machine changes least, and how
    many entries of its stores it has read."""

    seconds: float
    entries: float


class Reads:
    """Counts the entries that are read from stores."""

    def __init__(self) -> None:
        self.entries = 0


class CountedStore:
    """A store for a test driver, whose reads are counted. ``opened``: shows it during a
    micro-batch."""

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Any]],
        apply: Callable[[StoreChanges], None],
        reads: Reads,
    ) -> None:
        self._opened, self._apply, self._reads = opened, apply, reads
        self._stack = ExitStack()
        self._view: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._view is None:
            self._view = self._stack.enter_context(self._opened())
        found = getattr(self._view, name)
        return partial(self._read, found) if callable(found) and name != "entries" else found

    def apply(self, changes: StoreChanges) -> None:
        """See `InMemoryStore`."""
        self.close()
        self._apply(changes)

    def close(self) -> None:
        """What was read is not needed any more."""
        self._stack.close()
        self._view = None

    def _read(self, read: Callable[..., Any], *given: Any, **named: Any) -> Any:
        found = read(*given, **named)
        if isinstance(found, list):
            self._reads.entries += sum(
                len(one) if isinstance(one, list) else one is not None for one in found
            )
            return found
        return self._one_by_one(found) if hasattr(found, "__next__") else found

    def _one_by_one(self, entries: Iterator[Any]) -> Iterator[Any]:
        for entry in entries:
            self._reads.entries += 1
            yield entry


def measure(states: Sequence[int], runs: int | None = None) -> Iterator[Measurement]:
    """Each program beside each number of entries, of the batch's own key and of others; medians.
    StateGrowsError behind them all, where one costs more beside more."""
    grown: list[str] = []
    for program in PROGRAMS:
        for own in program.owners:
            whose = "of the key" if own else "of others"
            costs = [cost_on_disk(program, count, own, runs or RUNS) for count in states]
            for count, cost in zip(states, costs, strict=True):
                case = f"{program.name}, {count:,} {whose}"
                print(f"{case}: {cost.seconds * 1e3:.1f} ms, {cost.entries:,.0f} read", flush=True)
                yield _figure(case, "processor_per_batch", "ms", cost.seconds * 1e3)
                yield _figure(case, "entries_read", "entries", cost.entries)
            grown += growth(f"{program.name}, {whose}", states, costs)
    if grown:
        raise StateGrowsError("; ".join(grown))


def growth(case: str, states: Sequence[int], costs: Sequence[Cost]) -> Iterator[str]:
    """What a batch costs more beside more state; says nothing where that is no more than trees
    that get deeper."""
    for (few, before), (many, after) in zip(
        zip(states, costs, strict=True), list(zip(states, costs, strict=True))[1:], strict=False
    ):
        if after.entries > READ_MORE * before.entries + NOISE_ENTRIES:
            yield (
                f"{case}: a batch reads {before.entries:,.0f} entries beside {few:,}, and "
                f"{after.entries:,.0f} beside {many:,}"
            )
        took, takes = before.seconds * 1e3, after.seconds * 1e3
        if takes > TAKES_LONGER * took + NOISE_MS:
            yield f"{case}: a batch takes {took:.1f} ms beside {few:,}, {takes:.1f} beside {many:,}"


def cost_on_disk(program: StateProgram, count: int, own: bool, runs: int) -> Cost:
    """With stores in LMDB, as an instance's."""
    reads = Reads()
    with tempfile.TemporaryDirectory(prefix="bench-state-") as name, ExitStack() as stack:
        folder = Path(name)

        def on_disk(spec: StoreSpec, memory: Any) -> CountedStore:
            store = LmdbStore.open(
                folder / spec.name, kind=spec.kind, retention_ms=spec.retention_ms
            )
            stack.callback(store.close)
            made = CountedStore(store.snapshot, partial(_load, store), reads)
            stack.callback(made.close)
            return made

        return _cost(program, count, own, runs, on_disk, reads)


def cost_in_memory(program: StateProgram, count: int, own: bool, runs: int) -> Cost:
    """With the test driver's own stores."""
    reads = Reads()

    def in_memory(spec: StoreSpec, memory: Any) -> CountedStore:
        return CountedStore(partial(_shown, memory), memory.apply, reads)

    return _cost(program, count, own, runs, in_memory, reads)


def _cost(
    program: StateProgram,
    count: int,
    own: bool,
    runs: int,
    counted: Callable[[StoreSpec, Any], CountedStore],
    reads: Reads,
) -> Cost:
    builder = StreamsBuilder()
    program.build(builder)
    with TopologyTestDriver(builder.build(), application_id="growth") as driver:
        stores: dict[str, Any] = {
            name: counted(spec, driver._stores[name]) for name, spec in driver._kept.items()
        }
        for name, store in stores.items():  # stand-ins
            driver._stores.replace(name, store)
        found = list(_batches(driver, program, count, own, runs, reads))
        for store in stores.values():
            store.close()
    return Cost(
        statistics.median(one.seconds for one in found),
        statistics.median(one.entries for one in found),
    )


def _batches(
    driver: TopologyTestDriver,
    program: StateProgram,
    count: int,
    own: bool,
    runs: int,
    reads: Reads,
) -> Iterator[Cost]:
    known = {*(tp.topic for tp in driver._offsets), *driver._tables.topics}
    topics = {
        name: driver.create_input_topic(name, TEXT, LONG) for name in (LEFT, RIGHT) if name in known
    }

    def pipe(records: Sequence[Piped]) -> None:
        driver.pipe_batch(
            {
                topic: [one[1:] for one in records if one[0] == name]
                for name, topic in topics.items()
            }
        )

    state = program.state(count, own)
    for first in range(0, len(state), CHUNK):
        pipe(state[first : first + CHUNK])
    for number in range(runs):
        reads.entries, began = 0, time.process_time()
        pipe(program.batch(count, number))
        yield Cost(time.process_time() - began, reads.entries)


def _load(store: LmdbStore, changes: StoreChanges) -> None:
    position = (store.position or 0) + max(1, len(changes))
    store.load_chunk(changes.keys, changes.values, changes.timestamps, position)


@contextmanager
def _shown(store: Any) -> Iterator[Any]:
    yield store


def _figure(case: str, metric: str, unit: str, value: float) -> Measurement:
    return Measurement("growth", case, EVERFLOW, "", metric, unit, value)
