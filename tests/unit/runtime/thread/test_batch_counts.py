"""Dropped records are told at once, and then once a minute."""

from __future__ import annotations

from everflow.runtime.thread.batch_counts import DroppedRecords

LATE = (
    "too late: the window's grace was over, by the newest record time its task had seen "
    "(docs/guide/time.md)"
)


def test_the_first_are_told_at_once_and_the_next_together_after_a_minute() -> None:
    dropped = DroppedRecords()
    assert dropped.lines({"by-item": {"late": 1}}, 5_000) == [f"by-item dropped 1 record {LATE}"]
    assert dropped.lines({"by-item": {"late": 2}}, 6_000) == []
    assert dropped.lines({"by-item": {"late": 1_000}}, 64_999) == []
    assert dropped.lines({}, 65_000) == [f"by-item dropped 1,002 records {LATE}"]
    assert dropped.lines({}, 200_000) == []


def test_operators_and_reasons_are_told_apart() -> None:
    dropped = DroppedRecords()
    assert dropped.lines({"a": {"late": 1, "null-key": 2}, "b": {"null-value": 3}}, 0) == [
        f"a dropped 1 record {LATE}",
        "a dropped 2 records without a key",
        "b dropped 3 records without a value",
    ]
    assert dropped.lines({"b": {"null-key": 1}}, 1) == ["b dropped 1 record without a key"]
