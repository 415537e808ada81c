"""Places in a changelog: how they are written, and those that it does not have."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from everflow.errors import StatePointError
from everflow.records import OffsetRange
from everflow.snapshots.points import Point, Span, before_all

SPANS = {0: Span(0, 100, 100), 1: Span(0, 50, 60)}


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (None, "end"),
        ("end", "end"),
        ("2026-11-21T21:14:06Z", "2026-11-21T21:14:06Z"),
        ("2026-11-21T22:14:06+01:00", "2026-11-21T21:14:06Z"),
        ("1795295646000", "2026-11-21T21:14:06Z"),
        (1795295646000, "2026-11-21T21:14:06Z"),
        (datetime(2026, 11, 21, 21, 14, 6), "2026-11-21T21:14:06Z"),
        (
            datetime(2026, 11, 21, 22, 14, 6, tzinfo=timezone(timedelta(hours=1))),
            "2026-11-21T21:14:06Z",
        ),
        ("0=120,1=98", "0=120,1=98"),
        ({1: 98, 0: 120}, "0=120,1=98"),
    ],
)
def test_points_are_written_in_many_ways(at: object, text: str) -> None:
    assert str(Point.of(at)) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("at", ["yesterday", "0=", "0=1;1=2", "", "-5"])
def test_what_is_no_point_is_refused_with_the_ways(at: str) -> None:
    with pytest.raises(StatePointError, match=r"2026-11-21T21:14:06Z.*0=120,1=98; or end"):
        Point.of(at)


def test_the_end_is_where_transactions_are_decided() -> None:
    assert Point.of(None).reaches("t", SPANS, {}) == {0: OffsetRange(0, 100), 1: OffsetRange(0, 50)}


def test_offsets_leave_the_other_partitions_out() -> None:
    assert Point.of("1=7").reaches("t", SPANS, {}) == {1: OffsetRange(0, 7)}
    assert Point.of("1=0").reaches("t", SPANS, {}) == {1: OffsetRange(0, 0)}


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("0=101", r"t-0.*offset 100.*101"),
        ("1=55", r"t-1.*transaction.*50.*55"),
        ("2=5", r"partitions 0.*1.*2"),
    ],
)
def test_offsets_that_the_log_does_not_have(at: str, says: str) -> None:
    with pytest.raises(StatePointError, match=says):
        Point.of(at).reaches("t", SPANS, {})


def test_what_was_deleted_is_said() -> None:
    spans = {0: Span(40, 100, 100)}
    with pytest.raises(StatePointError, match=r"t-0 begins.*40.*39"):
        Point.of({0: 39}).reaches("t", spans, {})
    with pytest.raises(StatePointError, match=r"t-0 begins.*1970.*40"):
        Point.of(5_000).reaches("t", spans, {0: 40})
    assert Point.of({0: 40}).reaches("t", spans, {}) == {0: OffsetRange(40, 40)}


def test_a_time_is_the_place_before_its_first_record() -> None:
    reaches = Point.of(5_000).reaches("t", SPANS, {0: 17, 1: -1})
    assert reaches == {0: OffsetRange(0, 17), 1: OffsetRange(0, 50)}
    assert not before_all(reaches, SPANS)
    assert before_all(Point.of(5_000).reaches("t", SPANS, {0: 0, 1: 0}), SPANS)
    assert not before_all({0: OffsetRange(0, 0)}, {0: Span(0, 0, 0)}), "it is empty anyway"
