"""Store changes and changelog records are the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from everflow.records import StoreChanges
from everflow.serdes.windowed import session_key
from everflow.state import changelog

CHANGES = StoreChanges(
    "counts", [b"a", b"b", b"a", b"b"], [b"1", b"2", b"3", None], np.array([5, 6, 7, 8])
)


def test_records_keep_every_change_in_order() -> None:
    assert list(changelog.records(CHANGES)) == [
        (b"a", b"1", 5),
        (b"b", b"2", 6),
        (b"a", b"3", 7),
        (b"b", None, 8),
    ]


def test_the_fold_keeps_the_last_value_with_its_time_in_front() -> None:
    assert changelog.fold(CHANGES) == {b"a": (7).to_bytes(8, "big") + b"3", b"b": None}


def test_a_null_key_is_skipped() -> None:
    assert changelog.last_values([None, b"a"], [b"1", b"2"], np.array([1, 2])) == {
        b"a": changelog.pack_value(2, b"2")
    }


@pytest.mark.parametrize("timestamp", [-1, 0, 1_700_000_000_000])
def test_a_stored_value_is_a_big_endian_timestamp_and_the_value(timestamp: int) -> None:
    packed = changelog.pack_value(timestamp, b"v")
    assert packed == timestamp.to_bytes(8, "big", signed=True) + b"v"
    assert changelog.unpack_value(packed) == (timestamp, b"v")
    assert changelog.pack_values([b"v", None], np.array([timestamp, 1])) == [packed, None]


def test_as_many_timestamps_as_values_are_demanded() -> None:
    with pytest.raises(ValueError, match="2 values but 1 timestamps"):
        changelog.pack_values([b"a", b"b"], np.array([1]))


def test_expiry_times_are_read_from_the_key_s_end() -> None:
    keys = [b"k" + start.to_bytes(8, "big") + b"\x00\x00\x00\x07" for start in (0, 86_400_000)]
    assert changelog.expiry_times(keys, "window").tolist() == [0, 86_400_000]
    with pytest.raises(ValueError, match="no window store key"):
        changelog.expiry_times([b"short"], "window")


def test_sessions_expire_by_their_end_which_stands_before_their_start() -> None:
    keys = [session_key(b"a", 3, 5), session_key(b"", 0, 86_400_000)]
    assert changelog.expiry_times(keys, "session").tolist() == [5, 86_400_000]
    with pytest.raises(ValueError, match=r"session.*key.*15.*16"):
        changelog.expiry_times([bytes(15)], "session")
