"""Joins with global tables against a model; a table of several partitions is one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.columns.key_partitions import java_partitions
from everflow.operators.joins import JoinedTable, JoinKind
from everflow.operators.joins.stream_table import StreamGlobalJoin
from everflow.operators.joins.table_table import selected_type
from everflow.records import StoreChanges
from everflow.state.store import InMemoryStore, StoreSpec
from everflow.topology.graph import Inputs
from everflow.worker.stores import WholeTable
from properties.operators.operator_batches import edge_batch, rows_of

KEY, VALUE = serdes.string(), serdes.long()
SPEC = StoreSpec(name="g", kind="key_value", key_serde=KEY, value_serde=VALUE, logging=False)
TABLE = JoinedTable(SPEC, VALUE, pa.int64())
TYPE = selected_type(pa.string(), pa.int64())
KEYS = st.sampled_from(["a", "b", "ab", "", "c"])
CONTENT = st.dictionaries(KEYS, st.integers(-5, 5))
ROWS = st.lists(
    st.tuples(KEYS | st.none(), KEYS | st.none(), st.integers(0, 9) | st.none(), st.integers(0, 9)),
    max_size=25,
)


def store(entries: Sequence[tuple[str, int]]) -> InMemoryStore:
    found = InMemoryStore(SPEC)
    keys = [key.encode() for key, _ in entries]
    values = [VALUE.encode(value) for _, value in entries]
    found.apply(StoreChanges("g", keys, values, np.arange(len(keys))))
    return found


def model(
    kind: JoinKind, rows: Sequence[tuple[Any, ...]], content: dict[str, int]
) -> tuple[list[Any], dict[str, int]]:
    """KStreamKTableJoinProcessor of Kafka 4, with a key mapper."""
    results, dropped = [], dict[str, int]()
    for key, mapped, value, time in rows:
        if value is None or (mapped is None and kind is JoinKind.INNER):
            reason = "null-value" if value is None else "null-key"
            dropped[reason] = dropped.get(reason, 0) + 1
            continue
        other = None if mapped is None else content.get(mapped)
        if other is not None or kind is JoinKind.LEFT:
            results.append((key, (value, other, mapped), time))
    return results, dropped


@given(st.sampled_from([JoinKind.INNER, JoinKind.LEFT]), ROWS, CONTENT, st.booleans(), st.data())
def test_each_record_meets_the_entry_of_its_mapped_key(
    kind: JoinKind,
    rows: list[tuple[Any, ...]],
    content: dict[str, int],
    mapped: bool,
    data: st.DataObject,
) -> None:
    parts: list[list[tuple[str, int]]] = [[] for _ in range(data.draw(st.integers(1, 4)))]
    for entry in content.items():
        parts[data.draw(st.integers(0, len(parts) - 1))].append(entry)
    whole = WholeTable([store(part) for part in parts])
    made = [
        (key, None if value is None and at % 2 else {"fk": fk, "value": value}, time)
        for at, (key, fk, value, time) in enumerate(rows)
    ]
    batch = edge_batch(made, TYPE, 0)
    done = StreamGlobalJoin(TABLE, kind, mapped).run(Inputs((batch,), {0: {"g": whole}}))
    found = [
        (key, (value["left"], value["right"], value.get("mapped")), time)
        for key, value, time in rows_of(done.output, "key value timestamp")
    ]
    wanted, dropped = model(kind, rows, content)
    if not mapped:
        wanted = [(key, (*value[:2], None), time) for key, value, time in wanted]
    assert (found, done.dropped) == (wanted, dropped)


@given(st.lists(CONTENT, min_size=1, max_size=4), st.lists(KEYS, max_size=12))
def test_a_key_is_first_of_its_partition(contents: list[dict[str, int]], asked: list[str]) -> None:
    whole = WholeTable([store(list(part.items())) for part in contents])
    keys = [key.encode() for key in asked]

    def wanted(key: bytes) -> bytes | None:
        home = int(java_partitions(pa.array([key], pa.binary()), len(contents))[0])
        order = [home, *(at for at in range(len(contents)) if at != home)]
        found = [contents[at][key.decode()] for at in order if key.decode() in contents[at]]
        return VALUE.encode(found[0]) if found else None

    found = whole.get_many(keys)
    assert [None if one is None else one[8:] for one in found] == [wanted(key) for key in keys]
    listed = [key.decode() for key, _ in whole.range(None, None)]
    assert listed == sorted(set().union(*contents))
