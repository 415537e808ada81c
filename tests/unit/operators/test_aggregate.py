"""Aggregates of every column type, and sessions in blocks against one sorted list."""

import datetime as dt
import decimal
import gc
import sys
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.errors import TopologyError
from everflow.operators import (
    AggregateSpec,
    PythonAggregateSpec,
    PythonAggregator,
    TableSpec,
    UserFunctionError,
    agg,
)
from everflow.operators.aggregates import windowed_aggregate
from everflow.operators.aggregates.windowed_aggregate import SessionOrder
from everflow.records import EdgeBatch
from everflow.state.store import InMemoryStore
from everflow.windows import TimeWindows
from properties.operators.operator_batches import TaskResult, done_by_one_task
from unit.builders import edge_batch

Spec = AggregateSpec | PythonAggregateSpec | TableSpec


def records(
    *rows: tuple[Any, Any, int], key: pa.DataType | None = None, value: pa.DataType | None = None
) -> EdgeBatch:
    """An EdgeBatch of (key, value, timestamp) rows; offsets start at 100."""
    seq = np.arange(len(rows), dtype=np.int64)
    zero = np.zeros(len(rows), np.int32)
    return EdgeBatch(
        key=pa.array([row[0] for row in rows], key or pa.string()),
        value=pa.array([row[1] for row in rows], value or pa.bool_()),
        timestamp=np.array([row[2] for row in rows], np.int64),
        seq=seq,
        source=zero + 7,
        partition=zero + 3,
        offset=seq + 100,
    )


def count(**options: Any) -> AggregateSpec:
    return AggregateSpec.of("s", serdes.string(), [agg.count()], None, pa.bool_(), **options)


def run(
    spec: Spec, batch: EdgeBatch, store: InMemoryStore | None = None, stream_time: int = -1
) -> TaskResult:
    store = InMemoryStore() if store is None else store
    result = done_by_one_task(spec, batch, store, stream_time)
    for changes in result.changes:
        store.apply(changes)
    return result


def shown(result: TaskResult) -> list[tuple[Any, Any, int]]:
    output = result.output
    return list(
        zip(output.key.to_pylist(), output.value.to_pylist(), output.timestamp, strict=True)
    )


def test_stray_timestamps_of_many_keys_do_not_overflow_the_grouping() -> None:
    spec = count(window=TimeWindows.of_size(1).grace(2**62))
    rows = [(f"k{i}", True, 2**61 if i == 0 else i) for i in range(20)]
    result = run(spec, records(*rows))
    assert [(r[0]["key"], r[0]["start"], r[1]) for r in shown(result)] == [
        (k, t, 1) for k, _, t in rows
    ]


MOMENT = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("type_", "low", "middle", "high"),
    [
        (pa.int8(), -128, 0, 127),
        (pa.int32(), -5, 0, 2**31 - 1),
        (pa.int64(), -(2**63), 0, 2**63 - 1),
        (pa.float32(), -1.5, 0.0, float("inf")),
        (pa.float64(), float("-inf"), 0.1, 1e300),
        (pa.string(), "", "a", "\u00e9"),
        (pa.binary(), b"", b"a", b"\xff"),
        (pa.bool_(), False, False, True),
        (pa.date32(), dt.date(1969, 1, 1), dt.date(2000, 1, 1), dt.date(2024, 1, 1)),
        (
            pa.timestamp("us", "UTC"),
            MOMENT,
            MOMENT + dt.timedelta(microseconds=1),
            MOMENT + dt.timedelta(days=1),
        ),
        (pa.decimal128(38, 2), *map(decimal.Decimal, ("-1.50", "0.00", "9" * 36 + ".99"))),
    ],
)
@pytest.mark.parametrize("every", [False, True])
def test_min_max_first_last_of_every_type(
    type_: pa.DataType, low: Any, middle: Any, high: Any, every: bool
) -> None:
    struct = pa.struct([("a0", type_)])
    names = ["low", "high", "first", "last"]
    kinds = [agg.min("a0"), agg.max("a0"), agg.first("a0"), agg.last("a0")]
    spec = AggregateSpec.of("s", serdes.string(), kinds, names, struct, emit_every_update=every)
    store = InMemoryStore()
    none = dict.fromkeys(names)
    result = run(spec, records(("a", {"a0": None}, 0), value=struct), store)
    assert shown(result) == [("a", none, 0)]
    result = run(
        spec, records(("a", {"a0": middle}, 0), ("a", {"a0": low}, 0), value=struct), store
    )
    assert shown(result)[-1] == ("a", {"low": low, "high": middle, "first": None, "last": low}, 0)
    result = run(spec, records(("a", {"a0": high}, 1), ("a", {"a0": None}, 0), value=struct), store)
    assert shown(result)[-1] == ("a", {"low": low, "high": high, "first": None, "last": None}, 1)
    assert result.output.value.type == spec.result


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("type_", "rows", "total", "mean"),
    [
        (pa.int32(), [2**31 - 1, 1, None], 2**31, 2**30),
        (pa.int64(), [2**63 - 1, 1], -(2**63), 2.0**62),  # wraps as Java's long; the mean does not
        (pa.float32(), [0.5, 0.25], 0.75, 0.375),
        (
            pa.decimal128(30, 2),
            [decimal.Decimal("9" * 28 + ".99"), decimal.Decimal("0.01")],
            decimal.Decimal("1e28"),
            5e27,
        ),
        (pa.float64(), [None], None, None),
    ],
)
def test_sums_and_means(
    type_: pa.DataType, rows: list[Any], total: Any, mean: float | None, every: bool
) -> None:
    struct = pa.struct([("a0", type_)])
    spec = AggregateSpec.of(
        "s",
        serdes.string(),
        [agg.sum("a0"), agg.avg("a0")],
        ["sum", "avg"],
        struct,
        emit_every_update=every,
    )
    result = run(spec, records(*[("a", {"a0": row}, 0) for row in rows], value=struct))
    assert shown(result)[-1][1] == {"sum": total, "avg": mean}


def test_impossible_aggregates_are_refused_when_they_are_built() -> None:
    struct = pa.struct([("t", pa.string()), ("l", pa.list_(pa.int32()))])
    for wrong in (agg.sum("t"), agg.avg("t"), agg.min("l"), agg.max("l")):
        with pytest.raises(TopologyError, match=f"agg.{wrong.kind}"):
            AggregateSpec.of("s", serdes.string(), [wrong], ["x"], struct)
    with pytest.raises(TopologyError, match="column"):
        agg.sum(None)
    with pytest.raises(TopologyError, match="unknown aggregate"):
        agg.Aggregator(kind="median", column="x")
    with pytest.raises(TopologyError, match="names"):
        AggregateSpec.of("s", serdes.string(), [agg.count()], ["a", "b"], struct)


@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        (lambda k, v, total: total / 0, "ZeroDivisionError"),
        (lambda k, v, total: "text", "cannot be stored"),
        (lambda k, v, total: (_ for _ in ()).throw(GeneratorExit("all")), "GeneratorExit: all"),
    ],
)
def test_a_failing_function_names_its_record(aggregator: Callable[..., Any], message: str) -> None:
    spec = PythonAggregateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.long(),
        aggregator=PythonAggregator(lambda: 0, aggregator),
    )
    with pytest.raises(UserFunctionError, match=message) as caught:
        run(spec, records(("a", None, 0), ("a", 1, 0), value=pa.int64()))
    assert (caught.value.source, caught.value.partition, caught.value.offset) == (7, 3, 101)
    assert caught.value.__cause__ is not None


class _Refusing:
    """A serde of a user that cannot write one text."""

    kind, type = "own", pa.string()

    def encode(self, value: Any) -> bytes | None:
        return None if value is None else {"a": b"a"}[value]

    def decode(self, data: bytes | None) -> str | None:
        return None if data is None else data.decode()

    def encode_array(self, values: pa.Array) -> pa.Array:
        return pa.array([self.encode(item) for item in values.to_pylist()], pa.binary())

    def decode_array(self, data: pa.Array) -> pa.Array:
        return pa.array([self.decode(item) for item in data.to_pylist()], pa.string())


@pytest.mark.parametrize(
    "spec",
    [TableSpec("s", _Refusing(), serdes.string()), TableSpec("s", serdes.string(), _Refusing())],
    ids=["key", "value"],
)
def test_what_a_serde_of_the_user_cannot_write_names_its_record(spec: Spec) -> None:
    with pytest.raises(UserFunctionError, match="KeyError: 'b'") as caught:
        run(spec, records(("a", "a", 0), (None, "a", 0), ("b", "b", 0), value=pa.string()))
    assert (caught.value.partition, caught.value.offset) == (3, 102)


def test_keys_and_headers_of_any_type_travel() -> None:
    key = pa.struct([("k", pa.int32())])
    spec = AggregateSpec.of("s", serdes.json("k int"), [agg.count()], None, pa.bool_())
    batch = records(({"k": 1}, True, 0), ({"k": None}, True, 0), ({"k": 1}, True, 0), key=key)
    batch.headers = pa.array(
        [[{"key": str(i), "value": b""}] for i in range(3)],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    result = run(spec, batch)
    assert shown(result) == [({"k": None}, 1, 0), ({"k": 1}, 2, 0)]
    assert result.output.headers is not None
    assert [h[0]["key"] for h in result.output.headers.to_pylist()] == ["1", "2"]


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python a call runs; one that loops counts once for each turn."""
    lines = 0

    def trace(frame: object, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    # What other tests have left runs lines of its own when it is collected.
    gc.collect()
    gc.disable()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return lines


def lines_to_count(n: int) -> int:
    """Of ``n`` records of 100 keys, all of which the store has."""
    keys, ones = pa.array([f"key-{k % 100:06d}" for k in range(n)]), pa.array(np.ones(n, bool))
    batch = edge_batch(keys, ones, timestamp=np.arange(n, dtype=np.int64) + 10**12)
    store, results = InMemoryStore(), list[TaskResult]()
    run(count(), batch, store)
    lines = lines_run(lambda: results.append(done_by_one_task(count(), batch, store, -1)))
    assert sum(results[0].output.value.to_pylist()) == 2 * n
    return lines


def test_a_large_batch_is_counted_without_a_loop_over_records() -> None:
    """250,000 records of 50,000 keys took 35 ms of a laptop core; a loop takes ten times that."""
    assert lines_to_count(20_000) == lines_to_count(2_000)
    assert lines_run(lambda: [0 for _ in range(2_000)]) > 2_000, "a loop would show"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed_aggregate, "MOST", 4)


def inserted(order: SessionOrder, session: int, end: int) -> None:
    order.insert(*order.first_from(end), session, end)


@given(st.data())
def test_blocks_hold_what_one_list_would(data: Any) -> None:
    order, ends = SessionOrder(), dict[int, int]()
    for session in range(data.draw(st.integers(0, 60))):
        listed = sorted(ends, key=lambda one: (ends[one], one))
        action = data.draw(st.sampled_from(["insert", "insert", "insert", "replace", "remove"]))
        if action == "insert" or not listed:
            end = data.draw(st.integers(0, 99))
            if end not in ends.values():
                inserted(order, session, end)
                ends[session] = end
        elif action == "remove":
            gone = data.draw(st.sampled_from(listed))
            order.remove(gone, ends.pop(gone))
        else:
            first = data.draw(st.integers(0, len(listed) - 1))
            met = listed[first : data.draw(st.integers(first + 1, len(listed)))]
            place = order.first_from(ends[met[0]])
            end = ends[met[-1]]
            order.replace(*place, len(met), session, end)
            for one in met:
                del ends[one]
            ends[session] = end
        listed = sorted(ends, key=lambda one: ends[one])
        assert list(order) == listed
        assert [one for block in order.ends for one in block] == [ends[one] for one in listed]
        assert all(order.ends) or len(order.ends) == 1
        assert max(map(len, order.ends)) <= 4
        wanted = data.draw(st.integers(0, 100))
        behind = listed[bisect_left([ends[one] for one in listed], wanted) :]
        assert list(order.following(*order.first_from(wanted))) == behind


def test_of_sessions_with_one_end_the_named_one_goes() -> None:
    """One that a store hides may end when a new one does."""
    order = SessionOrder()
    for session in range(9):
        order.append(session, 7)
    order.remove(5, 7)
    order.remove(8, 7)
    assert list(order) == [0, 1, 2, 3, 4, 6, 7]


def test_a_key_of_many_sessions_moves_a_block_for_each_not_all() -> None:
    order = SessionOrder()
    for session in range(1_000):
        inserted(order, session, -session)
    assert list(order) == list(range(999, -1, -1))
    assert max(map(len, order.ends)) <= 4
