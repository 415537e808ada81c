"""Which windows a record falls into, and until when they are open."""

import datetime as dt
from typing import Any

import numpy as np
import pytest

from everflow.errors import TopologyError
from everflow.windows import SessionWindows, SlidingWindows, TimeWindows, duration_ms


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("5 seconds", 5_000),
        ("1 day 12 hours", 129_600_000),
        ("100ms", 100),
        ("2 Minutes", 120_000),
        ("1h", 3_600_000),
        ("0 seconds", 0),
        (1_500, 1_500),
        (dt.timedelta(milliseconds=1), 1),
    ],
)
def test_durations(duration: Any, ms: int) -> None:
    assert duration_ms(duration) == ms


@pytest.mark.parametrize(
    "duration", ["", "5", "five seconds", "5 lightyears", "-1 second", 1.5, None, True]
)
def test_unreadable_durations(duration: Any) -> None:
    with pytest.raises(TopologyError):
        duration_ms(duration)


def test_names_of_kafka_streams() -> None:
    assert TimeWindows.of_size("5 seconds") == TimeWindows(5_000, 5_000, 0)
    assert TimeWindows.of_size_with_no_grace(5_000) == TimeWindows(5_000, 5_000, 0)
    assert TimeWindows.of_size_and_grace(5_000, "1 s") == TimeWindows.of_size(5_000).grace(1_000)
    hopping = TimeWindows.of_size("1 minute").advance_by("20 seconds").grace("1 hour")
    assert hopping == TimeWindows(60_000, 20_000, 3_600_000)
    assert hopping.retention_ms == 3_660_000


@pytest.mark.parametrize(
    ("size", "advance", "grace"), [(0, 1, 0), (10, 0, 0), (10, 11, 0), (10, 10, -1)]
)
def test_impossible_windows_are_refused(size: int, advance: int, grace: int) -> None:
    with pytest.raises(TopologyError):
        TimeWindows(size, advance, grace)


def test_tumbling_windows_start_at_multiples_of_the_size() -> None:
    at, starts = TimeWindows.of_size(10).expand(np.array([0, 9, 10, 25]))
    assert at.tolist() == [0, 1, 2, 3]
    assert starts.tolist() == [0, 0, 10, 20]


@pytest.mark.parametrize("advance", [1, 3, 5, 7, 10])
def test_hopping_windows_are_those_of_the_original(advance: int) -> None:
    windows = TimeWindows.of_size(10).advance_by(advance)
    times = np.arange(-20, 60)  # records before 0 are in none
    at, starts = windows.expand(times)
    found = list(zip(times[at].tolist(), starts.tolist(), strict=True))
    expected = []
    for time in times.tolist():  # TimeWindows.windowsFor
        start = max(0, time - 10 + advance) // advance * advance
        while start <= time:
            expected.append((time, start))
            start += advance
    assert found == expected
    assert all(start <= time < start + 10 for time, start in found)


def test_a_window_is_open_until_stream_time_reaches_end_plus_grace() -> None:
    windows = TimeWindows.of_size(10).grace(5)
    assert windows.is_open(np.array([0, 0]), np.array([14, 15])).tolist() == [True, False]


def test_sessions_are_made_with_kafka_streams_names_or_ours() -> None:
    assert SessionWindows.of_inactivity_gap_with_no_grace("5 minutes") == SessionWindows(300_000)
    ours = SessionWindows.of_inactivity_gap("5 minutes").grace("1 minute")
    assert (
        ours
        == SessionWindows.of_inactivity_gap_and_grace("5 minutes", "1 minute")
        == SessionWindows(300_000, 60_000)
    )
    assert ours.retention_ms == 360_000
    assert str(ours) == "sessions with a gap of 300000 ms, grace 60000 ms"


def test_sliding_windows_are_made_with_kafka_streams_names_or_ours() -> None:
    ours = SlidingWindows.of_time_difference("5 minutes").grace("1 minute")
    assert (
        ours
        == SlidingWindows.of_time_difference_and_grace("5 minutes", "1 minute")
        == SlidingWindows(300_000, 60_000)
    )
    assert SlidingWindows.of_time_difference_with_no_grace(500) == SlidingWindows(500)
    assert ours.retention_ms == 660_000
    assert str(ours) == "sliding over 300000 ms, grace 60000 ms"


@pytest.mark.parametrize(
    ("difference", "grace", "message"),
    [
        (-1, 0, r"difference.*-1"),
        (5, -1, r"grace.*negative"),
        ("5 minutes", 0, "of_time_difference_and_grace"),
        (True, 0, "True"),
    ],
)
def test_sliding_windows_that_cannot_be(difference: Any, grace: int, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        SlidingWindows(difference, grace)


@pytest.mark.parametrize(
    ("gap", "grace", "message"),
    [
        (-1, 0, "gap between sessions"),
        (5, -1, r"grace.*negative"),
        ("5 minutes", 0, "of_inactivity_gap"),
        (1.5, 0, "1.5"),
    ],
)
def test_sessions_that_cannot_be(gap: Any, grace: int, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        SessionWindows(gap, grace)


@pytest.mark.parametrize("value", [True, 1.5, None, 1 << 63, "99999999999999 weeks"])
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(TopologyError):
        SessionWindows.of_inactivity_gap(value)
    with pytest.raises(TopologyError):
        TimeWindows(value, 5, 0)


def test_a_duration_may_be_a_number_of_numpy() -> None:
    assert SessionWindows.of_inactivity_gap(np.int64(5)) == SessionWindows(5)


def test_a_gap_of_zero_joins_records_of_one_moment() -> None:
    assert SessionWindows.of_inactivity_gap_and_grace(0, 5) == SessionWindows.of_inactivity_gap(
        0
    ).grace(5)
