"""Deduplication against one record after the other, whatever the micro-batches."""

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.table import DeduplicateSpec
from everflow.state.store import InMemoryStore
from everflow.topology.graph import beside
from properties.operators.operator_batches import done_by_one_task, edge_batch, of_type, rows_of

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
