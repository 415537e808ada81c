"""Records of a changelog as the new program stores them, and the comparison of two contents."""

import struct
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.columns.key_partitions import java_partitions
from everflow.migration.entries import (
    Content,
    UnconvertedError,
    by_field,
    by_function,
    partitions_of_keys,
    record_key,
)
from everflow.migration.programs import Form
from everflow.state.store import StoreSpec

TIME, SEQUENCE = struct.pack(">q", 60_000), struct.pack(">i", 1)


@pytest.mark.parametrize(
    ("form", "stored", "window_bytes"),
    [
        (Form.KEY, b"key", 0),
        (Form.KEY, b"key" + TIME, 8),
        (Form.WINDOW, b"key" + TIME + SEQUENCE, 0),
        (Form.SESSION, b"key" + TIME + TIME, 0),
        (Form.WAITING, TIME + b"\x01key", 0),
        (Form.GRACE, TIME + b"key" + SEQUENCE, 0),
        (Form.ENDS, TIME + b"key", 0),
        (Form.SUBSCRIPTIONS, struct.pack(">I", 3) + b"keyentry", 0),
        (Form.SUPPRESSED, b"\x00" + TIME + b"key", 0),
        (Form.SUPPRESSED, b"\x00" + TIME + b"key" + TIME, 8),
        (Form.SUPPRESSED, b"\x01key", 0),
    ],
)
def test_the_record_s_key_is_found_in_each_form(
    form: Form, stored: bytes, window_bytes: int
) -> None:
    assert record_key(stored, form, window_bytes) == b"key"
    (partition,) = java_partitions(pa.array([b"key"], pa.binary()), 6)
    assert partitions_of_keys([stored], form, window_bytes, 6).tolist() == [partition]


def test_the_count_of_a_suppressed_buffer_is_left_out() -> None:
    assert record_key(b"\x02", Form.SUPPRESSED) is None
    assert partitions_of_keys([b"\x02"], Form.SUPPRESSED, 0, 6).tolist() == [-1]


def spec(value: serdes.Serde, kind: str = "key_value", **more: object) -> StoreSpec:
    return StoreSpec(name="s", kind=kind, key_serde=serdes.string(), value_serde=value, **more)  # type: ignore[arg-type]


def test_fields_go_by_name_and_a_new_count_begins_at_zero() -> None:
    old = spec(serdes.packed("total bigint, gone string"), folds=("sum", "last"))
    new = spec(serdes.packed("n bigint, total bigint, most bigint"), folds=("count", "sum", "max"))
    written = old.value_serde.encode({"total": 5, "gone": "x"})
    made = by_field(old, new)([written, None])
    assert made[1] is None
    assert new.value_serde.decode(made[0]) == {"n": 0, "total": 5, "most": None}


def test_a_function_gets_the_old_value_and_its_failure_names_the_entry() -> None:
    def doubled(value: int) -> int | None:
        if value == 13:
            raise ValueError("unlucky")
        if value == 14:
            sys.exit(3)
        return None if value == 0 else 2 * value

    convert = by_function(spec(serdes.long()), spec(serdes.long()), doubled)
    long = serdes.long().encode
    assert convert([long(4), None, long(0)]) == [long(8), None, None]
    with pytest.raises(UnconvertedError) as failed:
        convert([long(1), long(13)])
    assert failed.value.index == 1
    assert "unlucky" in str(failed.value)
    with pytest.raises(UnconvertedError, match="SystemExit"):
        convert([long(14)])


Change = tuple[bytes, bytes | None, int]


def content(changes: Sequence[Change], cuts: int, of: StoreSpec) -> Content:
    found = Content(of)
    for at in range(0, len(changes), cuts):
        part = changes[at : at + cuts]
        found.add([k for k, _, _ in part], [v for _, v, _ in part], np.array([t for *_, t in part]))
    return found


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b", b"c", b"d"]),
            st.one_of(st.none(), st.sampled_from([b"1", b"2"])),
            st.integers(0, 3),
        ),
        max_size=40,
    ),
    st.integers(1, 7),
)
def test_a_total_is_that_of_the_folded_records(changes: list[Change], cuts: int) -> None:
    folded = {key: (value, time) for key, value, time in changes}
    kept = [(key, value, time) for key, (value, time) in folded.items() if value is not None]
    total = content(changes, cuts, spec(serdes.bytes_())).total()
    assert total == content(kept[::-1], 3, spec(serdes.bytes_())).total()
    assert total.count == len(kept)


def test_another_value_or_time_has_another_checksum() -> None:
    one = content([(b"a", b"1", 5)], 1, spec(serdes.bytes_())).total()
    for other in [(b"a", b"2", 5), (b"a", b"1", 6), (b"b", b"1", 5)]:
        assert content([other], 1, spec(serdes.bytes_())).total() != one


def test_expired_windows_do_not_count() -> None:
    windows = spec(serdes.bytes_(), "window", retention_ms=1_000)
    old, near = (b"k" + struct.pack(">q", at) + SEQUENCE for at in (0, 5_000))
    both = content([(old, b"1", 0), (near, b"1", 5_000)], 2, windows)
    assert both.total().count == 2
    assert both.total(1_000) == content([(near, b"1", 5_000)], 1, windows).total(1_000)
