"""Batches of records for operators, and what is aggregated of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators import PythonAggregateSpec, PythonAggregator, agg
from everflow.records import EdgeBatch, StoreChanges, TasksResult
from everflow.state.store import StoreSpec, StoreView
from everflow.topology.graph import Inputs, TableOperator

AGGREGATES = {
    "n": agg.count(),
    "n_x": agg.count("x"),
    "sum_i": agg.sum("i"),
    "sum_x": agg.sum("x"),
    "min_x": agg.min("x"),
    "max_i": agg.max("i"),
    "mean": agg.avg("x"),
    "first_t": agg.first("t"),
    "last_t": agg.last("t"),
    "max_t": agg.max("t"),
    "min_t": agg.min("t"),
}
INPUT = pa.struct([("i", pa.int64()), ("x", pa.float64()), ("t", pa.string())])
NOTHING = {"i": None, "x": None, "t": None}
keys = st.none() | st.sampled_from(["", "a", "a", "a\x00\x00\x00\x00\x00\x00\x00\x00", "b"])
values = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
        "t": st.none() | st.text("ab\u00e9", max_size=2),
    }
)
"""Values of `INPUT`."""


def split_of(value: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[tuple[Any, Any, int]]]]:
    """Micro-batches of (key, value, time); times near each other, so that windows meet."""
    records = st.tuples(keys, value, st.integers(-2, 25) | st.integers(0, 60))
    return st.lists(st.lists(records, max_size=14), max_size=5)


def fold(key: Any, value: Any, before: Any) -> dict[str, Any]:
    value = value or NOTHING
    i, x, t = value["i"], value["x"], value["t"]
    if before is None:
        before = dict.fromkeys(AGGREGATES) | {"n": 0, "n_x": 0, "first_t": t}

    def with_(name: str, item: Any, merge: Callable[[Any, Any], Any]) -> Any:
        old = before[name]
        return old if item is None else item if old is None else merge(old, item)

    total, used = with_("sum_x", x, lambda a, b: a + b), before["n_x"] + (x is not None)
    return {
        "n": before["n"] + 1,
        "n_x": used,
        "sum_i": with_("sum_i", i, lambda a, b: (a + b + 2**63) % 2**64 - 2**63),
        "sum_x": total,
        "min_x": with_("min_x", x, min),
        "max_i": with_("max_i", i, max),
        "mean": None if used == 0 else total / used,
        "first_t": before["first_t"],
        "last_t": t,
        "max_t": with_("max_t", t, lambda a, b: max(a, b, key=str.encode)),
        "min_t": with_("min_t", t, lambda a, b: min(a, b, key=str.encode)),
    }


def edge_batch(
    rows: Sequence[tuple[Any, Any, int]], value_type: pa.DataType, first_seq: int
) -> EdgeBatch:
    """Records (key, value, time) with string keys; all else follows from the positions."""
    seq = np.arange(first_seq, first_seq + len(rows), dtype=np.int64)
    return EdgeBatch(
        key=pa.array([row[0] for row in rows], pa.string()),
        value=pa.array([row[1] for row in rows], value_type),
        timestamp=np.array([row[2] for row in rows], np.int64),
        seq=seq,
        source=(seq % 3).astype(np.int32),
        partition=(seq % 5).astype(np.int32),
        offset=seq * 2,
    )


def of_type(spec: Any, kind: str, retention_ms: int | None, **more: Any) -> StoreSpec:
    """An operator's store ``s``, with the operator's serdes."""
    return StoreSpec(
        name="s",
        kind=kind,
        key_serde=spec.key_serde,
        value_serde=spec.value_serde,
        retention_ms=retention_ms,
        **more,
    )


def rows_of(batch: EdgeBatch, columns: str = "seq key value timestamp") -> list[Any]:
    named: list[Any] = [getattr(batch, column) for column in columns.split()]
    return list(zip(*(column.tolist() for column in named), strict=True))


def apply_all(done: TasksResult, stores: Mapping[int, Any]) -> None:
    """The changes of each task, in its only store or in its stores by name."""
    for task, listed in done.changes.items():
        for changes in listed:
            mine = stores[task]
            (mine[changes.store] if isinstance(mine, dict) else mine).apply(changes)


def entries(store: StoreView, decode: Callable[[bytes], Any]) -> dict[bytes, tuple[Any, int]]:
    return {k: (decode(d[8:]), int.from_bytes(d[:8], "big")) for k, d in store.range(None, None)}


def items_step(key: Any, value: Any, before: Any) -> Any:
    """What `items_layout` makes of a value, without a change in place."""
    items = [*(before or {"items": []})["items"], f"{key}{value}"]
    return None if value == 0 else {"items": items}


def items_layout(**more: Any) -> PythonAggregateSpec:
    """An aggregator that deletes at 0, and changes its aggregate in place."""

    def aggregator(key: Any, value: Any, aggregate: Any) -> Any:
        aggregate["items"].append(f"{key}{value}")
        return None if value == 0 else aggregate

    return PythonAggregateSpec(
        store="s",
        key_serde=serdes.string(),
        value_serde=serdes.json("items array<string>"),
        aggregator=PythonAggregator(lambda: {"items": []}, aggregator),
        **more,
    )


class TaskResult(NamedTuple):
    output: EdgeBatch
    changes: list[StoreChanges]
    stream_time: int
    dropped: dict[str, int]


ONE_TASK = 3


def done_by_one_task(
    spec: TableOperator, batch: EdgeBatch, store: StoreView, stream_time: int
) -> TaskResult:
    """The operator run with all records as those of task `ONE_TASK`, whose only store is ``s``."""
    mine = replace(batch, partition=np.full(len(batch), ONE_TASK, np.int32))
    done = spec.run(Inputs((mine,), {ONE_TASK: {"s": store}}, {ONE_TASK: stream_time}))
    changes = done.changes.get(ONE_TASK, [])
    return TaskResult(done.output, changes, done.stream_times[ONE_TASK], done.dropped)
