"""Serdes give back what they were given; columns and scalars agree; no bytes crash a reader."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everflow import Windowed, serdes
from everflow.serdes import SerdeError
from everflow.serdes.arrow_types import column_of
from everflow.serdes.base import decode_one, value_reader
from everflow.serdes.windowed import python_keys

longs = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
moments = st.datetimes(
    dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.timezone.utc)
)
finite = st.floats(allow_nan=False, allow_infinity=False)
STRUCT = (
    "n bigint, s string, x double, b boolean, l array<string>, t timestamp, d decimal(38,3), "
    "day date, raw binary"
)
structs = st.fixed_dictionaries(
    {
        "n": st.none() | longs,
        "s": st.none() | text,
        "x": st.none() | finite,
        "b": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | text, max_size=3),
        "t": st.none() | moments,
        "d": st.none() | st.decimals(-(10**30), 10**30, places=3),
        "day": st.none() | st.dates(),
        "raw": st.none() | st.binary(max_size=5),
    }
)
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
CASES = {
    "bytes": (serdes.bytes_(), st.binary()),
    "string": (serdes.string(), text),
    "boolean": (serdes.boolean(), st.booleans()),
    "short": (serdes.short(), st.integers(-(2**15), 2**15 - 1)),
    "float": (serdes.float_(), st.floats(allow_nan=False, width=32)),
    "list": (serdes.list_(serdes.string()), st.lists(st.none() | text, max_size=4)),
    "list of numbers": (serdes.list_(serdes.long()), st.lists(st.none() | longs, max_size=4)),
    "list of lists": (
        serdes.list_(serdes.list_(serdes.short())),
        st.lists(st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3), max_size=3),
    ),
    "int": (serdes.int_(), st.integers(-(2**31), 2**31 - 1)),
    "long": (serdes.long(), longs),
    "double": (serdes.double(), st.floats(allow_nan=False)),
    "json": (serdes.json(STRUCT), structs),
    "packed": (serdes.packed(STRUCT), structs),
    "plain": (serdes.packed(PLAIN), plains),
    "time_windowed": (
        serdes.time_windowed(serdes.string(), 10),
        st.builds(lambda k, s: Windowed(k, s, s + 10), text, st.integers(0, 2**62)),
    ),
    "session_windowed": (
        serdes.session_windowed(serdes.string()),
        st.builds(Windowed, text, st.integers(0, 2**62), st.integers(0, 2**62)),
    ),
}
KINDS = {"plain": "packed"}


@pytest.mark.parametrize("kind", CASES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_round_trips(kind: str, data: Any) -> None:
    serde, items = CASES[kind]
    assert serde.kind == KINDS.get(kind, kind.partition(" ")[0])
    rows = data.draw(st.lists(st.none() | items, max_size=6))
    column = column_of(rows, serde.type)
    encoded = serde.encode_array(column)
    assert encoded.to_pylist() == [serde.encode(row) for row in rows]
    assert serde.decode_array(encoded).equals(column)
    assert [serde.decode(item) for item in encoded.to_pylist()] == rows
    cut = data.draw(st.integers(0, len(rows)))
    assert serde.encode_array(column[cut:]).equals(encoded[cut:])
    assert serde.decode_array(encoded[cut:]).equals(column[cut:])


@pytest.mark.parametrize("kind", CASES)
@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.none() | st.binary(max_size=90), max_size=4))
def test_any_bytes_are_read_or_refused_alike_by_column_and_scalar(
    kind: str, rows: list[Any]
) -> None:
    serde, _ = CASES[kind]
    first_bad, values = None, []
    for index, row in enumerate(rows):
        try:
            values.append(serde.decode(row))
        except SerdeError:
            first_bad = index
            break
    if first_bad is None:
        found = python_keys(serde.decode_array(pa.array(rows, pa.binary())))
        assert repr(found) == repr(values)  # repr: NaN differs from itself
    else:
        with pytest.raises(SerdeError) as caught:
            serde.decode_array(pa.array(rows, pa.binary()))
        assert caught.value.index == first_bad


def said(read: Callable[[bytes], Any], data: bytes) -> str:
    """What comes of it; as text, as NaN differs from itself."""
    try:
        return repr(read(data))
    except SerdeError as error:
        return f"{error} at {error.index}"


@settings(max_examples=300, deadline=None)
@given(row=plains, cut=st.integers(0, 60), put=st.binary(max_size=3), drop=st.integers(0, 3))
def test_damaged_packed_values_are_read_or_refused_as_in_columns(
    row: dict[str, Any], cut: int, put: bytes, drop: int
) -> None:
    serde = serdes.packed(PLAIN)
    read = value_reader(serde)
    whole = serde.encode(row)
    assert read is not None
    assert whole is not None
    assert read(whole) == row
    data = whole[:cut] + put + whole[cut + drop :]
    assert said(read, data) == said(lambda one: decode_one(serde, one), data)


def test_values_with_fields_that_columns_alone_read_have_no_reader() -> None:
    for fields in (STRUCT, "t timestamp", "a array<int>", "d decimal(9,2)"):
        assert value_reader(serdes.packed(fields)) is None
    assert value_reader(serdes.json("n int")) is None
    assert value_reader(serdes.long()) is not None
