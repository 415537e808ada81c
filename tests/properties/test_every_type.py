"""What is written is read again, value by value as in columns: every type, serde and store."""

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everflow import Windowed, serdes
from everflow.operators.aggregates.folds import pack, unpack
from everflow.records import StoreChanges
from everflow.serdes import Serde, SerdeError
from everflow.serdes.arrow_types import column_of
from everflow.serdes.base import decode_one, value_reader
from everflow.serdes.changed import ChangedSerde
from everflow.serdes.windowed import python_keys, session_key, window_store_key
from everflow.snapshots.entry_columns import EntryColumns
from everflow.state.changelog import fold, pack_value
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec, Version, memory_store
from properties.drawn_types import keys, present, same, types, values

SIZE_MS = 10
"""Drawing a type takes its time on a loaded machine."""


def drawn(data: Any, type_: pa.DataType, most: int = 4) -> list[Any]:
    return data.draw(st.lists(values(type_), max_size=most))  # type: ignore[no-any-return]


def through(serde: Serde, rows: list[Any]) -> None:
    """Written and read in a column, cut, and one by one."""
    column = column_of(rows, serde.type)
    encoded = serde.encode_array(column)
    assert encoded.to_pylist() == [serde.encode(row) for row in rows]
    assert same(serde.decode_array(encoded), column)
    alone = [serde.decode(one) for one in encoded.to_pylist()]
    assert repr(alone) == repr(python_keys(column))
    cut = len(rows) // 2
    assert serde.encode_array(column[cut:]).equals(encoded[cut:])
    assert same(serde.decode_array(encoded[cut:]), column[cut:])


@given(data=st.data(), type_=types)
def test_every_type_round_trips_through_every_serde(data: Any, type_: pa.DataType) -> None:
    rows = drawn(data, type_)
    through(serdes.json(type_), rows)
    through(serdes.from_type(type_), rows)
    through(
        serdes.packed(pa.struct([("f", type_), ("n", pa.int32())])),
        [None, *({"f": row, "n": None} for row in rows)],
    )
    through(serdes.list_(serdes.json(type_)), [rows, None, []])
    through(serdes.list_(serdes.from_type(type_)), [rows])
    changes = [{"new": row, "old": other} for row, other in itertools.pairwise(rows)]
    changed = ChangedSerde(serdes.from_type(type_))
    there = [row for row in changes if row != {"new": None, "old": None}]
    column = column_of(there, changed.type)
    assert same(changed.decode_array(changed.encode_array(column)), column)


@given(data=st.data(), type_=types)
def test_every_type_round_trips_as_a_windowed_key(data: Any, type_: pa.DataType) -> None:
    if pa.types.is_null(type_):
        return  # no key
    rows = data.draw(st.lists(present(type_), max_size=3))
    starts = data.draw(st.lists(st.integers(0, 2**62), min_size=3, max_size=3))
    keyed = [Windowed(row, at, at + SIZE_MS) for row, at in zip(rows, starts, strict=False)]
    for inner in (serdes.json(type_), serdes.from_type(type_)):
        through(serdes.time_windowed(inner, SIZE_MS), keyed)
        through(serdes.session_windowed(inner), keyed)


@given(data=st.data(), type_=types)
def test_lists_of_every_type_round_trip_as_states(data: Any, type_: pa.DataType) -> None:
    lists = column_of([drawn(data, type_), None, []], pa.list_(type_))
    assert same(unpack(pack(lists), lists.type), lists)


def stored_key(kind: str, key: bytes, at: int) -> bytes:
    if kind == "window":
        return window_store_key(key, at)
    return session_key(key, at, at + 1) if kind == "session" else key


@pytest.mark.parametrize("kind", ["key_value", "window", "session", "versioned"])
@settings(max_examples=12)
@given(data=st.data(), key_type=keys, value_type=types)
def test_every_type_comes_back_from_every_store_and_changelog(
    kind: str, data: Any, key_type: pa.DataType, value_type: pa.DataType
) -> None:
    spec = StoreSpec(
        name="s",
        kind=kind,
        key_serde=serdes.from_type(key_type),
        value_serde=serdes.packed(pa.struct([("v", value_type)])),
        retention_ms=None if kind == "key_value" else 1_000_000,
        window_size_ms=SIZE_MS if kind == "window" else None,
    )
    drawn_keys = data.draw(
        st.lists(present(key_type), min_size=1, max_size=3, unique_by=spec.key_serde.encode)
    )
    rows = [{"v": data.draw(values(value_type))} for _ in drawn_keys]
    times = np.arange(len(rows), dtype=np.int64)
    written = [spec.value_serde.encode(row) for row in rows]
    raw = [
        stored_key(kind, spec.key_serde.encode(key) or b"", int(at))
        for key, at in zip(drawn_keys, times, strict=True)
    ]
    changes = StoreChanges("s", raw, written, times)
    memory = memory_store(spec)
    memory.apply(changes)
    expected = sorted(zip(raw, drawn_keys, rows, strict=True), key=lambda one: one[0])
    shown = EntryColumns(spec, spec.value_serde)
    with tempfile.TemporaryDirectory() as folder:
        store = LmdbStore.open(Path(folder) / "s", kind=kind, retention_ms=spec.retention_ms)
        try:
            store.claim("i")
            owner = store.meta().owner
            store.apply(changes, position=None, expected=owner, batch="b")
            with store.snapshot() as view:
                for found in (memory.get_many(raw), view.get_many(raw)):
                    assert found == [
                        pack_value(int(at), value or b"")
                        for at, value in zip(times, written, strict=True)
                    ]
        finally:
            store.close()
    if kind == "versioned":
        page = [
            (key, Version(int(at), int(at) + 1, value))
            for key, value, at in zip(raw, written, times, strict=True)
        ]
        batch = shown.versions(sorted(page, key=lambda one: one[0]), 0, repr)
    else:
        batch = shown.entries([(k, v or b"") for k, v in sorted(fold(changes).items())], 0, repr)
    key_column = column_of([key for _, key, _ in expected], spec.key_serde.type)
    assert same(batch.column("key"), key_column)
    assert same(
        batch.column("value"), column_of([row for _, _, row in expected], spec.value_serde.type)
    )


longs = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = "n bigint, i int, h smallint, y tinyint, s string, x double, f float, b boolean, raw binary"
plains = st.fixed_dictionaries(
    {
        "n": st.none() | longs,
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "h": st.none() | st.integers(-(2**15), 2**15 - 1),
        "y": st.none() | st.integers(-(2**7), 2**7 - 1),
        "s": st.none() | text,
        "x": st.none() | finite,
        "f": st.none() | st.floats(width=32, allow_nan=False),
        "b": st.none() | st.booleans(),
        "raw": st.none() | st.binary(max_size=5),
    }
)


def said(read: Callable[[bytes], Any], data: bytes) -> str:
    """What comes of it; as text, as NaN differs from itself."""
    try:
        return repr(read(data))
    except SerdeError as error:
        return f"{error} at {error.index}"


@given(row=plains, cut=st.integers(0, 60), put=st.binary(max_size=3), drop=st.integers(0, 3))
def test_damaged_values_as_in_columns(row: dict[str, Any], cut: int, put: bytes, drop: int) -> None:
    serde = serdes.packed(PLAIN)
    read = value_reader(serde)
    whole = serde.encode(row)
    assert read is not None
    assert whole is not None
    assert read(whole) == row
    data = whole[:cut] + put + whole[cut + drop :]
    assert said(read, data) == said(lambda one: decode_one(serde, one), data)


def test_values_with_fields_that_columns_alone_read_have_no_reader() -> None:
    for fields in ("t timestamp", "a array<int>", "d decimal(9,2)"):
        assert value_reader(serdes.packed(fields)) is None
    assert value_reader(serdes.json("n int")) is None
    assert value_reader(serdes.long()) is not None


TEXTS = ChangedSerde(serdes.string())


@pytest.mark.parametrize(
    ("new", "old", "data"),
    [
        (None, "old", b"old\x00"),
        ("new", None, b"new\x01"),
        ("new", "old", b"\x06newold\x02"),
        ("", "", b"\x00\x02"),
        ("n" * 64, "o", b"\x80\x01" + b"n" * 64 + b"o\x02"),
        (None, None, None),
    ],
)
def test_the_bytes_are_javas(new: str | None, old: str | None, data: bytes | None) -> None:
    assert TEXTS.encode({"new": new, "old": old}) == data
    if data is not None:
        assert TEXTS.decode(data) == {"new": new, "old": old}


@given(st.lists(st.none() | st.tuples(st.none() | st.text(), st.none() | st.text(max_size=200))))
def test_what_is_written_is_read(pairs: list[Any]) -> None:
    values = [None if pair is None else {"new": pair[0], "old": pair[1]} for pair in pairs]
    read = TEXTS.decode_array(TEXTS.encode_array(pa.array(values, TEXTS.type)))
    nothing = {"new": None, "old": None}
    assert read.to_pylist() == [None if value == nothing else value for value in values]


@pytest.mark.parametrize("data", [b"", b"x\x07", b"\x40short\x02", b"\xff\xff\xff\xff\xff\x02"])
def test_what_is_no_change_names_its_row(data: bytes) -> None:
    with pytest.raises(SerdeError, match="change of an entry") as error:
        TEXTS.decode_array(pa.array([b"x\x01", data]))
    assert error.value.index == 1
