"""Every operator with state gives the same results, in the same order, and leaves the same in its
stores, wherever a script of records is cut into micro-batches.

The programs are those of the guide's tables (`semantics.families`): one topology of all of them,
every intermediate result wanted.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everflow import StreamsBuilder, serdes
from everflow.operators import AggregateSpec, PythonAggregateSpec, PythonReducer, TableSpec, agg
from everflow.operators.table import DeduplicateSpec
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.serdes.base import decode_one
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.state.store import InMemoryStore
from everflow.testing import InputTopic, TopologyTestDriver
from everflow.topology.graph import Inputs, beside
from properties.operators.operator_batches import (
    ONE_TASK,
    done_by_one_task,
    edge_batch,
    of_type,
    rows_of,
)
from semantics.families import PAGES, STATELESS
from semantics.probes import TEXT, Family, built, with_own_names

KEYS = ["a", "b", "b\0", "a", "", None]
LENGTH = 14
FAMILIES = {
    name: family
    for page in PAGES.values()
    for name, family in page.items()
    if family is not STATELESS
}
FOREIGN = re.compile(r"^table\.\w*join\(.*on=")
"""Of a foreign key's results those between are not fixed (docs/differences.md)."""

Record = tuple[str, str | None, int | None, int]
"""Side, key, value and time."""


class Programs:
    """All of them in one driver, which is emptied for each script."""

    def __init__(self) -> None:
        builder = StreamsBuilder()
        self.inputs: dict[str, list[tuple[str, Family]]] = {"left": [], "right": []}
        self.outputs: dict[str, bool] = {}
        for name, family in FAMILIES.items():
            for at, source in enumerate(family.programs.values()):
                if "global_table" in source:  # which is filled before all records of a batch
                    continue
                self._add(builder, family, source, f"{name}-{at}")
        self.driver = TopologyTestDriver(builder.build(), emit_every_update=True)
        self.topics: dict[str, InputTopic] = {
            topic: self.driver.create_input_topic(topic, TEXT, family.value)
            for listed in self.inputs.values()
            for topic, family in listed
        }

    def _add(self, builder: StreamsBuilder, family: Family, source: str, prefix: str) -> None:
        made = built(builder, family, with_own_names(source, prefix), prefix)
        for side, listed in made.sides.items():
            self.inputs[side] += [(topic, family) for topic in listed]
        self.outputs[made.output] = FOREIGN.match(source) is not None

    def run(self, script: Sequence[Record], cuts: Sequence[int]) -> tuple[Any, Any]:
        """Results by topic, and stores by name."""
        self.driver.reset()
        for begin, end in zip([0, *cuts], [*cuts, len(script)], strict=True):
            self.driver.pipe_batch(dict(self._piped(script[begin:end])))
        results = {}
        for topic, only_last in self.outputs.items():
            out = self.driver.create_output_topic(topic, serdes.bytes_(), serdes.bytes_())
            listed = [(one.key, one.value, one.timestamp) for one in out.read_records()]
            results[topic] = {one[0]: one[1] for one in listed} if only_last else listed
        return results, {
            name: self._content(name)
            for name in self.driver._stores
            if not name.endswith("-ttl")  # what is looked at for nothing may stay
        }

    def _content(self, name: str) -> list[tuple[bytes, bytes]]:
        """Of an operator's own formats without times, which nobody reads there."""
        own = self.driver._kept[name].key_serde == serdes.bytes_()
        found = self.driver._stores[name].range(None, None)
        return [(key, entry[TIMESTAMP_BYTES:] if own else entry) for key, entry in found]

    def _piped(self, records: Sequence[Record]) -> Iterator[tuple[InputTopic, list[Any]]]:
        for side, listed in self.inputs.items():
            for topic, family in listed:
                yield (
                    self.topics[topic],
                    [
                        (key, _value(family, value), time)
                        for of, key, value, time in records
                        if of == side
                    ],
                )


def _value(family: Family, value: int | None) -> Any:
    return value if value is None or family.value is not TEXT else f"v{value}"


def drawn(chance: random.Random) -> list[Record]:
    """Time goes on, with steps back and leaps. The sides take turns as they do in one micro-batch,
    where the earlier of the next ones comes first, so that all cuts have one order."""
    sides: dict[str, list[Record]] = {"left": [], "right": []}
    now = 10
    for _ in range(LENGTH):
        now += chance.choice([0, 1, 2, 3, 5, 9, 30])
        side = chance.choice(["left", "left", "right"])
        time = max(0, now - chance.choice([0, 0, 0, 0, 4, 8, 15, 60]))
        key, value = chance.choice(KEYS), chance.choice([1, 2, -1, 5, None])
        # No time is that of both sides.
        sides[side].append((side, key, value, 2 * time + (side == "right")))
    script = []
    while any(sides.values()):
        first = min((listed for listed in sides.values() if listed), key=lambda one: one[0][3])
        script.append(first.pop(0))
    return script


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    made = Programs()
    yield made
    made.driver.close()


def require_the_same(
    programs: Programs, script: Sequence[Record], cuts: Sequence[int], others: Sequence[int]
) -> None:
    wanted, found = programs.run(script, cuts), programs.run(script, others)
    for kind in (0, 1):
        for name, one in wanted[kind].items():
            assert found[kind][name] == one, (name, script, cuts, others)


@pytest.mark.parametrize("seed", range(2))
def test_results_and_stores_do_not_depend_on_the_cut(programs: Programs, seed: int) -> None:
    chance = random.Random(seed)
    require_the_same(programs, drawn(chance), sorted(chance.sample(range(1, LENGTH), 3)), [])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_results_and_stores_are_as_of_record_after_record(programs: Programs, seed: int) -> None:
    chance = random.Random(seed)
    script, each = drawn(chance), range(1, LENGTH)
    require_the_same(programs, script, each, sorted(chance.sample(each, chance.randint(0, 5))))


# Deduplication against one record after the other, whatever the micro-batches.


Row = tuple[str | None, int, int]
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "ab", "b", None]), st.integers(0, 9), st.integers(-2, 40)),
    max_size=30,
)


def spec_of(within: int, grace: int, by_value: bool) -> DeduplicateSpec:
    return DeduplicateSpec(
        store="s",
        key_serde=serdes.long() if by_value else serdes.string(),
        value_serde=serdes.bytes_(),
        within_ms=within,
        grace_ms=grace,
        beside=by_value,
    )


def one_by_one(
    rows: list[Row], within: int, grace: int, by_value: bool
) -> tuple[list[Row], dict[str, int]]:
    went_on: dict[Any, list[int]] = {}
    results, dropped, stream_time = [], {"late": 0, "negative-timestamp": 0}, -1
    for key, value, time in rows:
        id_ = (value or None) if by_value else key
        if id_ is None:
            results.append((key, value, time))
            continue
        stream_time = max(stream_time, time)
        if time < 0:
            dropped["negative-timestamp"] += 1
        elif time < stream_time - grace:
            dropped["late"] += 1
        elif all(abs(time - other) > within for other in went_on.setdefault(id_, [])):
            went_on[id_].append(time)
            results.append((key, value, time))
    return results, {reason: count for reason, count in dropped.items() if count}


@given(
    rows=ROWS,
    within=st.integers(1, 12),
    grace=st.integers(0, 15),
    cuts=st.sets(st.integers(0, 30)),
    by_value=st.booleans(),
)
@example([("a", 1, 0), ("a", 2, 10), ("a", 3, 11), ("a", 4, 5)], 10, 10, {1, 2}, False)
def test_it_is_what_one_record_after_the_other_gives(
    rows: list[Row], within: int, grace: int, cuts: set[int], by_value: bool
) -> None:
    spec = spec_of(within, grace, by_value)
    store = InMemoryStore(of_type(spec, "window", spec.retention_ms))
    found: list[Row] = []
    dropped = Counter[str]()
    stream_time, begin = -1, 0
    for end in [*sorted(cut for cut in cuts if cut < len(rows)), len(rows)]:
        part, first, begin = rows[begin:end], begin, end
        values = pa.int64()
        if by_value:
            values = beside(pa.int64(), values)
            batch = edge_batch(
                [(k, {"answer": v or None, "value": v}, t) for k, v, t in part], values, first
            )
        else:
            batch = edge_batch(part, values, first)
        done = done_by_one_task(spec, batch, store, stream_time)
        stream_time = done.stream_time
        for changes in done.changes:
            store.apply(changes)
        dropped.update(done.dropped)
        output = done.output
        assert output.offset.tolist() == sorted(output.offset.tolist())
        found += rows_of(output, "key value timestamp")
    assert (found, dropped) == one_by_one(rows, within, grace, by_value)


# Entries with a time to live, and the tombstones of ended ones, equal a model under any cut.


Update = tuple[int, str, Any, int]
"""Position, key, what the table shows, time."""

records = st.tuples(
    st.none() | st.sampled_from(["", "a", "aa", "b"]),
    st.none() | st.integers(0, 9),
    st.integers(0, 40) | st.integers(-5, 200),
)
batches = st.lists(st.lists(records, max_size=12), max_size=6)


@dataclass
class Model:
    """One record after the other; ``step`` gives the next value, ``latest``: a table's rules."""

    ttl: int
    step: Callable[[Any, Any], Any]
    latest: bool
    stored: dict[str, tuple[Any, int]] = field(default_factory=dict)
    stream_time: int = -1
    dropped: dict[str, int] = field(default_factory=dict)

    def feed(self, seq: int, key: str | None, value: Any, time: int) -> list[Update]:
        if key is None:
            return self.drop("null-key")
        if value is None and not self.latest:
            return self.drop("null-value")
        self.stream_time = max(self.stream_time, time)
        ended = sorted(
            (at + self.ttl, one)
            for one, (_, at) in self.stored.items()
            if at + self.ttl <= self.stream_time
        )
        updates: list[Update] = []
        for end, one in ended:
            del self.stored[one]
            updates.append((seq, one, None, end))
        old = time + self.ttl <= self.stream_time
        before, at = self.stored.get(key, (None, time))
        if old and (self.latest or key not in self.stored) and value is not None:
            self.drop("late")
            return updates
        after = self.step(before, value)
        known = time if self.latest else max(time, at)
        self.stored.pop(key, None)
        if after is not None:
            self.stored[key] = (after, known)
        return [*updates, (seq, key, after, known)]

    def drop(self, reason: str) -> list[Update]:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        return []


def check(spec: TimeToLiveSpec, model: Model, split: Any, type_: pa.DataType) -> None:
    store, index, stream_time, seq = InMemoryStore(), InMemoryStore(), -1, 0
    for rows in split:
        model.dropped, before = {}, set(model.stored)
        updates = [u for at, row in enumerate(rows) for u in model.feed(seq + at, *row)]
        if not spec.emit_every_update:
            last = {update[1]: at for at, update in enumerate(updates)}
            fed = {seq + at: row[0] for at, row in enumerate(rows)}
            updates = [
                u
                for at, u in enumerate(updates)
                if last[u[1]] == at and (u[1] in before or fed[u[0]] == u[1])
            ]
        batch = edge_batch(rows, type_, seq)
        batch.partition[:] = ONE_TASK
        stores = {ONE_TASK: {"s": store, "s-ttl": index}}
        done = spec.run(Inputs((batch,), stores, {ONE_TASK: stream_time}))
        assert rows_of(done.output) == updates
        assert done.dropped == model.dropped
        for changes in done.changes.get(ONE_TASK, []):
            (store if changes.store == "s" else index).apply(changes)
        stream_time = done.stream_times[ONE_TASK]
        assert stream_time == model.stream_time
        found = {
            key.decode(): (
                decode_one(spec.results, data[8:]),
                int.from_bytes(data[:8], "big", signed=True),
            )
            for key, data in store.range(None, None)
        }
        assert found == model.stored
        seq += len(rows)
    ends = {key[8:] for key, _ in index.range(None, None)}
    assert {key.encode() for key in model.stored} <= ends


ttls = st.integers(1, 40)


@given(split=batches, ttl=ttls, every=st.booleans())
def test_a_count(split: Any, ttl: int, every: bool) -> None:
    inner = AggregateSpec.of("s", serdes.string(), [agg.count()], None, pa.bool_())
    rows = [[(key, None if value is None else True, t) for key, value, t in part] for part in split]
    spec = TimeToLiveSpec(layout=inner, ttl_ms=ttl, emit_every_update=every)

    check(spec, Model(ttl, lambda n, _: (n or 0) + 1, latest=False), rows, pa.bool_())


@given(split=batches, ttl=ttls, every=st.booleans())
def test_a_reducer_that_deletes(split: Any, ttl: int, every: bool) -> None:
    def reduced(before: int | None, value: int) -> int | None:
        if before is None:
            return value
        return None if value == 0 else before + value

    inner = PythonAggregateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.long(),
        aggregator=PythonReducer(reduced),
    )
    spec = TimeToLiveSpec(layout=inner, ttl_ms=ttl, emit_every_update=every)

    check(spec, Model(ttl, reduced, latest=False), split, pa.int64())


@given(split=batches, ttl=ttls, every=st.booleans())
def test_a_table(split: Any, ttl: int, every: bool) -> None:
    spec = TimeToLiveSpec(
        layout=TableSpec("s", serdes.string(), serdes.long()), ttl_ms=ttl, emit_every_update=every
    )

    check(spec, Model(ttl, lambda _, value: value, latest=True), split, pa.int64())
