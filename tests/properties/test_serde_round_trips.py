"""Packed values are read one by one as in columns, whatever their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from everflow import serdes
from everflow.serdes import SerdeError
from everflow.serdes.base import decode_one, value_reader

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


@settings(max_examples=150, deadline=None)
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
    for fields in ("t timestamp", "a array<int>", "d decimal(9,2)"):
        assert value_reader(serdes.packed(fields)) is None
    assert value_reader(serdes.json("n int")) is None
    assert value_reader(serdes.long()) is not None
