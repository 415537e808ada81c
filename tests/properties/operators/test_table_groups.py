"""Groups are always the fold of the table's entries, under any cut, changes in order."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import TopologyError, agg, serdes
from everflow.operators.aggregates.aggregate import (
    AggregateSpec,
    PythonAggregateSpec,
    PythonAggregator,
    PythonReducer,
    PythonTableAggregator,
    TableAggregateSpec,
)
from everflow.operators.aggregates.windowed_aggregate import SessionAggregateSpec
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.table import DeduplicateSpec, TableChanges, TableSpec
from everflow.records import EdgeBatch, TasksResult
from everflow.state.store import InMemoryStore, StoreSpec
from everflow.topology.graph import Inputs, Operator
from everflow.windows import SessionWindows, TimeWindows
from properties.operators.operator_batches import apply_all, edge_batch, of_type, rows_of

ENTRY = pa.struct([("group", pa.string()), ("x", pa.int64())])
VALUE = serdes.json("group string, x bigint")
INPUTS = pa.struct([("a1", pa.int64()), ("a2", pa.int64())])
ENTRIES = st.none() | st.fixed_dictionaries(
    {"group": st.sampled_from(["g", "h", None]), "x": st.none() | st.integers(-5, 5)}
)
ROWS = st.tuples(st.sampled_from(["a", "b", "c"]), ENTRIES, st.integers(0, 100))
SPLITS = st.lists(st.lists(ROWS, min_size=1, max_size=10), min_size=1, max_size=4)


class Table:
    """A table in one task, the changes of its entries, and their aggregates."""

    def __init__(self, every: bool) -> None:
        self.table = TableSpec("t", serdes.string(), VALUE, emit_every_update=every)
        spec = StoreSpec(name="t", kind="key_value", key_serde=serdes.string(), value_serde=VALUE)
        self.joined = JoinedTable(spec, VALUE, ENTRY)
        self.stores = {name: InMemoryStore() for name in "tnf"}
        self.built_in = TableAggregateSpec.of(
            "n",
            serdes.string(),
            [agg.count(), agg.sum("a1"), agg.avg("a2"), agg.count("a1")],
            ["n", "total", "mean", "some"],
            INPUTS,
        )
        self.built_in = replace(self.built_in, emit_every_update=every)
        self.functions = PythonAggregateSpec(
            store="f",
            key_serde=serdes.string(),
            value_serde=serdes.json("array<string>"),
            aggregator=PythonTableAggregator(
                PythonAggregator(list, lambda key, value, kept: [*kept, str(value["x"])]),
                lambda key, value, kept: removed(kept, str(value["x"])),
            ),
            emit_every_update=every,
        )
        self.seq = 0

    def feed(self, rows: list[Any]) -> tuple[EdgeBatch, EdgeBatch]:
        batch = edge_batch(rows, ENTRY, self.seq)
        batch = replace(batch, partition=np.zeros(len(batch), np.int32))
        self.seq += len(rows)
        held = {0: {"t": self.stores["t"]}}
        table = self.table.run(Inputs((batch,), held, {0: -1}))
        was = self.joined.before(table.output, held).values
        old = selected(table.output.with_columns(value=was))
        side = replace(selected(table.output), old=old)
        changes = TableChanges(serdes.string()).run(Inputs([side])).output
        self._apply(table.changes)
        # As behind the repartition topic, where each change is a record of its own.
        changes = replace(changes, seq=np.arange(len(changes), dtype=np.int64))
        old, new = (inputs(changes, side) for side in ("old", "new"))
        views = {0: {"n": self.stores["n"]}}
        made = self.built_in.run(Inputs([replace(new, old=old)], views, {0: -1}))
        called = self.functions.run(Inputs((changes,), {0: {"f": self.stores["f"]}}, {0: -1}))
        self._apply(made.changes)
        self._apply(called.changes)
        assert made.dropped == called.dropped == {}
        return made.output, called.output

    def _apply(self, changes: Any) -> None:
        for one in changes.get(0, []):
            self.stores[one.store].apply(one)

    def groups(self, name: str, decoder: Any) -> dict[str, Any]:
        return {
            key.decode(): decoder.decode_array(pa.array([data[8:]]))[0].as_py()
            for key, data in self.stores[name].range(None, None)
        }


def removed(kept: list[str], one: str) -> list[str]:
    rest = list(kept)
    rest.remove(one)
    return rest


def selected(batch: EdgeBatch) -> EdgeBatch:
    return batch.with_columns(key=pc.struct_field(batch.value, "group"))


def inputs(changes: EdgeBatch, side: str) -> EdgeBatch:
    value = changes.value.field(0 if side == "new" else 1)
    x = pc.struct_field(value, "x")
    return changes.with_columns(
        value=pa.StructArray.from_arrays([x, x], fields=list(INPUTS), mask=value.is_null())
    )


@given(split=SPLITS, every=st.booleans())
def test_groups_are_those_of_the_entries(split: Any, every: bool) -> None:
    table, content = Table(every), dict[str, Any]()
    for rows in split:
        output, called = table.feed(rows)
        content.update({key: value for key, value, _ in rows})
        shown = Counter(output.key.to_pylist())
        assert every or max(shown.values(), default=1) == 1
        assert every or max(Counter(called.key.to_pylist()).values(), default=1) == 1
        groups = table.groups("n", table.built_in)
        lists = table.groups("f", serdes.json("array<string>"))
        for group in set(groups) | {one["group"] for one in content.values() if one} - {None}:
            values = [one["x"] for one in content.values() if one and one["group"] == group]
            numbers = [x for x in values if x is not None]
            assert groups[group] == {
                "n": len(values),
                "total": sum(numbers) if numbers else None,
                "mean": sum(numbers) / len(numbers) if numbers else None,
                "some": len(numbers),
            }
            assert sorted(lists[group]) == sorted(map(str, values))
        last = dict(zip(output.key.to_pylist(), output.value.to_pylist(), strict=True))
        assert all(groups[group] == value for group, value in last.items())


def test_a_change_within_a_group_is_one_result_and_a_move_two() -> None:
    table = Table(every=True)
    rows = [
        ("a", {"group": "g", "x": 1}, 10),
        ("a", {"group": "g", "x": 5}, 20),
        ("a", {"group": "h", "x": 6}, 30),
        ("a", None, 40),
    ]
    output, called = table.feed(rows)
    totals = [value["total"] for value in output.value.to_pylist()]
    assert list(zip(output.key.to_pylist(), totals, output.timestamp.tolist(), strict=True)) == [
        ("g", 1, 10),
        ("g", 5, 20),
        ("g", None, 30),
        ("h", 6, 30),
        ("h", None, 40),
    ]
    assert called.value.to_pylist() == [["1"], ["5"], [], ["6"], []]


@pytest.mark.parametrize("kind", ["min", "max", "first", "last"])
def test_what_cannot_take_back_is_refused(kind: str) -> None:
    with pytest.raises(TopologyError, match=r"adder=\.\.\., subtractor="):
        TableAggregateSpec.of("n", serdes.string(), [getattr(agg, kind)("a1")], ["n"], INPUTS)


# Keyed operators that take a batch of several tasks at once do what they do task by task.


SESSIONS = SessionWindows.of_inactivity_gap("5 seconds").grace("5 seconds")
WINDOW = TimeWindows.of_size("10 seconds").grace("5 seconds")
Make = Callable[[bool], Any]


def _count(every: bool) -> Any:
    return AggregateSpec.of(
        "s", serdes.string(), [agg.count()], None, pa.bool_(), emit_every_update=every
    )


def _windowed(every: bool) -> Any:
    input_type = pa.struct([("x", pa.int64())])
    return AggregateSpec.of(
        "s",
        serdes.string(),
        [agg.count(), agg.avg("x"), agg.last("x")],
        ["n", "mean", "last"],
        input_type,
        window=WINDOW,
        emit_every_update=every,
    )


def _reduced(every: bool) -> Any:
    return PythonAggregateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.long(),
        aggregator=PythonReducer(
            lambda total, value: None if total is None or value in (3, None) else total + value
        ),
        window=WINDOW,
        emit_every_update=every,
    )


def _table(every: bool) -> Any:
    return TableSpec("s", serdes.string(), serdes.long(), emit_every_update=every)


def _sessions(every: bool) -> Any:
    return SessionAggregateSpec(_windowed(every), SESSIONS, emit_every_update=every)


def _reduced_sessions(every: bool) -> Any:
    return SessionAggregateSpec(_reduced(every), SESSIONS, emit_every_update=every)


def _deduplicated(every: bool) -> Any:
    return DeduplicateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.bytes_(),
        within_ms=10_000,
        grace_ms=5_000,
        beside=False,
    )


VALUES: dict[Make, Callable[[int | None], Any]] = {
    _count: lambda x: None if x is None else True,
    _windowed: lambda x: None if x is None else {"x": x},
    _reduced: lambda x: x,
    _table: lambda x: x,
    _sessions: lambda x: None if x is None else {"x": x},
    _reduced_sessions: lambda x: x,
    _deduplicated: lambda x: x,
}
TYPES: dict[Make, pa.DataType] = {
    _count: pa.bool_(),
    _windowed: pa.struct([("x", pa.int64())]),
    _reduced: pa.int64(),
    _table: pa.int64(),
    _sessions: pa.struct([("x", pa.int64())]),
    _reduced_sessions: pa.int64(),
    _deduplicated: pa.int64(),
}
TOGETHER_ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b", "c", "longer"]),
        st.none() | st.integers(0, 5),
        st.integers(0, 60_000),
    ),
    min_size=1,
    max_size=40,
)


class Stores:
    def __init__(self, spec: Any) -> None:
        sessions = getattr(spec, "windows", None)
        kind, kept_ms = ("session", sessions.retention_ms) if sessions else ("key_value", None)
        kept = of_type(spec, kind, kept_ms)
        self.stores = {partition: InMemoryStore(kept) for partition in range(5)}
        self.times = dict.fromkeys(range(5), -1)

    def run(self, spec: Operator, batch: EdgeBatch) -> TasksResult:
        there = np.unique(batch.partition).tolist()
        inputs = Inputs(
            (batch,),
            {partition: {"s": self.stores[partition]} for partition in there},
            {partition: self.times[partition] for partition in there},
        )
        done = spec.run(inputs)
        apply_all(done, self.stores)
        self.times.update(done.stream_times)
        return done

    def content(self) -> Any:
        return {p: list(store.range(None, None)) for p, store in self.stores.items()}, self.times


def told(batch: EdgeBatch) -> list[Any]:
    return rows_of(batch, "key value timestamp seq partition offset")


def by_partition(batch: EdgeBatch) -> list[EdgeBatch]:
    return [batch.take(np.flatnonzero(batch.partition == p)) for p in np.unique(batch.partition)]


@pytest.mark.parametrize("make", VALUES, ids=lambda make: make.__name__.strip("_"))
@given(batches=st.lists(TOGETHER_ROWS, min_size=1, max_size=3), every=st.booleans())
def test_together_is_as_one_after_the_other(batches: Any, every: bool, make: Make) -> None:
    spec = make(every)
    together, apart = Stores(spec), Stores(spec)
    seq = 0
    for rows in batches:
        shown = [(key, VALUES[make](value), time) for key, value, time in rows]
        batch = edge_batch(shown, TYPES[make], seq)
        seq += len(rows)
        one = together.run(spec, batch)
        others = [apart.run(spec, part) for part in by_partition(batch)]
        assert told(one.output) == sorted(
            (record for other in others for record in told(other.output)), key=itemgetter(3)
        )
        assert one.dropped == sum((Counter(other.dropped) for other in others), Counter())
        assert together.content() == apart.content()
