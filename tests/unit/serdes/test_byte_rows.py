"""Varints, pieces and texts of rows, against Python."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.serdes.base import gathered
from everflow.serdes.byte_rows import Rows, joined, varint, varints

EDGES = sorted({edge + by for at in range(1, 10) for edge in (1 << 7 * at,) for by in (-1, 0)})
NUMBERS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, *EDGES, 2**64 - 1]))


@given(st.lists(NUMBERS, max_size=30))
def test_varints_of_all_sizes_come_back(numbers: list[int]) -> None:
    written = joined([varints(np.array(numbers, np.uint64))], len(numbers))
    assert written.to_pylist() == [varint(one) for one in numbers]
    rows = Rows.of(written)
    assert rows.varints().tolist() == numbers
    assert (rows.at == rows.end).all()
    assert not rows.bad.any()


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 10, b"\xff" * 9 + b"\x02"])
def test_a_varint_that_is_cut_or_too_large_marks_its_row(data: bytes) -> None:
    rows = Rows.of(pa.array([b"\x05", data, b"\x85\x01"], pa.binary()))
    found = rows.varints()
    assert [found[0], found[2]] == [5, 133]
    assert rows.bad.tolist() == [False, True, False]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=20))
def test_values_are_taken_from_where_they_are_in_any_order(places: list[tuple[int, int]]) -> None:
    content = np.arange(80, dtype=np.uint8)
    begins, sizes = (np.array([one[at] for one in places], np.int64) for at in (0, 1))
    for order in (np.arange(len(places)), np.argsort(begins, kind="stable")):
        found = gathered(content, begins[order], sizes[order])
        found.validate(full=True)
        assert found.to_pylist() == [
            bytes(range(begins[row], begins[row] + sizes[row])) for row in order
        ]


def test_pieces_of_each_kind_are_joined() -> None:
    column = pa.array([b"x", b"", b"yz"], pa.binary())
    matrix = np.array([[1, 2], [3, 4], [5, 6]], np.uint8)
    assert joined([b"a", matrix, b"", b"b", column, b"c"], 3).to_pylist() == [
        b"a\x01\x02bxc",
        b"a\x03\x04bc",
        b"a\x05\x06byzc",
    ]
    assert joined([matrix], 3).to_pylist() == [b"\x01\x02", b"\x03\x04", b"\x05\x06"]
    assert joined([b"a", b"b"], 2).to_pylist() == [b"ab", b"ab"]
    assert joined([], 2).to_pylist() == [b"", b""]
    assert joined([column], 3) is column
    assert joined([b"a", np.zeros((0, 2), np.uint8)], 0).to_pylist() == []
