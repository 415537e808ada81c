"""Tables of change data are what the changes make of them, under any cut, and so is their copy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.table import Changes, TableSpec
from everflow.serdes.debezium_serde import UNAVAILABLE, envelope_type, lacking
from everflow.state.store import InMemoryStore, StoreSpec
from everflow.topology.graph import Inputs
from properties.operators.operator_batches import edge_batch

VALUE = serdes.json("x bigint, note string, tags array<string>")
TEXTS = st.sampled_from([None, "a", "b", UNAVAILABLE])
LISTS = st.sampled_from([None, [], ["a"], ["a", "b"], [UNAVAILABLE]])
ENTRIES = st.none() | st.fixed_dictionaries({"x": st.integers(0, 9), "note": TEXTS, "tags": LISTS})
ROWS = st.tuples(st.sampled_from(["a", "b", "c"]), ENTRIES, st.integers(0, 100))
SPLITS = st.lists(st.lists(ROWS, min_size=1, max_size=8), min_size=1, max_size=4)


def completed(value: Any, before: Any) -> Any:
    """What a row is after a change."""
    if value is None:
        return None
    absent = {"note": UNAVAILABLE, "tags": [UNAVAILABLE]}
    return {
        name: (before or {}).get(name) if absent.get(name, "") == one else one
        for name, one in value.items()
    }


@given(split=SPLITS, every=st.booleans())
def test_what_a_change_lacks_stays_and_the_copy_is_the_table(split: Any, every: bool) -> None:
    table = TableSpec("t", serdes.string(), VALUE, emit_every_update=every, partial=True)
    spec = StoreSpec(name="t", kind="key_value", key_serde=serdes.string(), value_serde=VALUE)
    joined, store = JoinedTable(spec, VALUE, VALUE.type), InMemoryStore()
    changes = Changes(envelope_type(VALUE.type))
    model: dict[str, Any] = {}
    copy: dict[str, Any] = {}
    seq = 0
    for rows in split:
        batch = edge_batch(rows, VALUE.type, seq)
        batch = replace(batch, partition=np.zeros(len(batch), np.int32))
        seq += len(rows)
        held = {0: {"t": store}}
        done = table.run(Inputs((batch,), held, {0: -1}))
        was = joined.before(done.output, held).values
        side = replace(done.output, old=done.output.with_columns(value=was))
        written = changes.run(Inputs([side])).output
        for one in done.changes.get(0, []):
            store.apply(one)
        for key, value, _ in rows:
            model[key] = completed(value, model.get(key))
        ended: dict[str, bool] = {}
        for key, value in zip(written.key.to_pylist(), written.value.to_pylist(), strict=True):
            if value is None:  # a tombstone follows its deletion
                assert ended.pop(key)
                continue
            assert value["before"] == copy.get(key)
            assert value["op"] == ops(value["before"], value["after"])
            copy[key] = value["after"]
            if value["op"] == "d":
                ended[key] = True
        assert not ended
    there = {key: value for key, value in model.items() if value is not None}
    assert there == {key: value for key, value in copy.items() if value is not None}
    stored = {key.decode(): VALUE.decode(data[8:]) for key, data in store.range(None, None)}
    assert stored == there


def ops(before: Any, after: Any) -> str:
    if after is None:
        return "d"
    return "c" if before is None else "u"


def test_what_a_change_lacks_is_known_by_its_placeholder() -> None:
    """As the connector's `UnchangedToastedPlaceholder` has it."""
    raw = UNAVAILABLE.encode()
    type_ = serdes.arrow_type(
        "t string, b binary, ts array<string>, bs array<binary>, i array<int>, "
        "l array<bigint>, m map<string,string>, d double, e array<double>"
    )
    names = ("t", "b", "ts", "bs", "i", "l", "m", "d", "e")
    absent: list[Any] = [UNAVAILABLE, raw, [UNAVAILABLE], [raw], list(raw), list(raw)]
    absent += [[(UNAVAILABLE, UNAVAILABLE)], 1.0, [1.0]]
    lacks = dict(zip(names, absent, strict=True))
    other = ["x", b"x", ["x"], [b"x"], [0] * len(raw), [1], [("x", "y")], 2.0, []]
    there = dict(zip(names, other, strict=True))
    hstore = {**there, "t": '{"__debezium_unavailable_value":"__debezium_unavailable_value"}'}
    uuids = {**there, "ts": ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]}
    rows = pa.array([there, lacks, None, {}, uuids, hstore], type_)
    found = {name: flags.tolist() for name, flags in lacking(rows).items()}
    assert set(found) == {"t", "b", "ts", "bs", "i", "l", "m"}
    assert {tuple(one[:4]) for one in found.values()} == {(False, True, False, False)}
    assert [name for name, flags in found.items() if flags[4]] == ["ts"]
    assert [name for name, flags in found.items() if flags[5]] == ["t"]
