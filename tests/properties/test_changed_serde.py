"""Changes of entries are written as Java's ChangedSerializer writes them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.serdes import SerdeError
from everflow.serdes.changed import ChangedSerde

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
