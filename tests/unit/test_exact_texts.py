"""Texts of numbers and times are read as they are written, or refused, whoever reads them."""

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import StreamsConfig, serdes
from everflow.cli.commands import Format
from everflow.cli.records import decoded, encoded
from everflow.clock import time_of
from everflow.errors import ConfigError, StatePointError, TopologyError
from everflow.exact_texts import (
    day,
    epoch_ms,
    exact_ms,
    is_number,
    moment,
    number,
    number_text,
    whole,
)
from everflow.instance.serving.answers import Parameters, as_json
from everflow.observe.requests import RefusedRequest
from everflow.records import TaskId, TopicPartition
from everflow.setting_checks import offset_reset, reset_duration_ms
from everflow.snapshots.points import Point
from everflow.testing import InputTopic
from everflow.windows import SessionWindows, SlidingWindows, TimeWindows, duration_ms

UTC = dt.timezone.utc
NO_INTEGERS = (
    "1_000",
    " 5",
    "5 ",
    "5\n",
    "\u0665",
    "+5",
    "05",
    "5.0",
    "1e3",
    "0x1",
    "",
    "-",
    "\uff15",
)


@pytest.mark.parametrize("text", NO_INTEGERS)
@pytest.mark.parametrize(
    "read",
    [
        whole,
        lambda text: encoded(text, Format.short),
        lambda text: encoded(text, Format.int_),
        lambda text: encoded(text, Format.long),
        lambda text: TaskId.parse(f"0_{text}"),
        lambda text: TopicPartition.parse(f"topic-{text}"),
        lambda text: Parameters([("limit", text)], ["limit"]).number("limit", None),
    ],
)
def test_an_integer_is_written_as_json_writes_it(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises((ValueError, RefusedRequest)):
        read(text)


@pytest.mark.parametrize(
    "text",
    ["1_0.5", " 1.5", "1.5 ", "\u0661.5", "+1.5", ".5", "5.", "01.5", "nan", "inf", "1e400", ""],
)
@pytest.mark.parametrize(
    "read",
    [number, lambda text: encoded(text, Format.float_), lambda text: encoded(text, Format.double)],
)
def test_a_number_is_written_as_json_writes_it(read: Callable[[str], Any], text: str) -> None:
    assert text == "1e400" or not is_number(text)
    with pytest.raises(ValueError, match=r"^$|^not "):
        read(text)


@given(st.floats().filter(lambda one: one == one))
def test_a_number_that_was_written_is_read(value: float) -> None:
    assert number(number_text(value)) == value
    assert encoded(
        decoded(encoded(number_text(value), Format.double), Format.double), Format.double
    )


def test_no_number_is_a_number_that_was_written() -> None:
    assert math.isnan(number(number_text(math.nan)))
    assert decoded(encoded("NaN", Format.double), Format.double) == "NaN"
    with pytest.raises(ValueError, match="not JSON"):
        encoded("[NaN]", Format.json)


@given(
    st.datetimes(timezones=st.sampled_from([None, UTC, dt.timezone(dt.timedelta(minutes=-570))]))
)
def test_a_time_that_was_written_is_read(value: dt.datetime) -> None:
    text = value.isoformat()
    try:
        expected = value if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        with pytest.raises(ValueError, match="years 1 to 9999"):
            moment(text)
        return
    assert moment(text) == expected
    assert moment(text.replace("T", "t").replace("+00:00", "z")) == expected
    assert day(text[:10]) == value.date()


@pytest.mark.parametrize(
    "text",
    [
        *("2024-01-31T12:00:00.1234567Z", "2024-01-31T12:00:00,5Z", "2024-01-31X12:00:00Z"),
        *("2024-1-31", "20240131T120000Z", "2024-W05-3T12:00Z", "2024-01-31T24:00:00Z"),
        *(
            "2024-01-31T12:00:60Z",
            "2024-02-30T12:00:00Z",
            "2024-01-31T12:00:00+24:00",
            "0000-01-01T00:00Z",
        ),
        *(" 2024-01-31T12:00:00Z", "2024-01-31T12:00:00Z\n", "\u0662024-01-31T12:00:00Z", "noon"),
    ],
)
def test_a_time_is_refused_that_is_written_otherwise_or_would_be_cut(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (some have no text)
        moment(text)
    with pytest.raises(ValueError, match="not a time"):
        time_of(text)
    with pytest.raises(StatePointError, match="not a time"):
        Point.of(text)


def test_zeros_behind_microseconds_cut_nothing() -> None:
    assert moment("2024-01-31T12:00:00.120000000Z") == dt.datetime(
        2024, 1, 31, 12, 0, 0, 120_000, UTC
    )
    assert moment("2024-01-31T12:00+0530") == dt.datetime(2024, 1, 31, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["2024-01-31T12:00:00.1234Z", "\u0661706702400000", "017067024000"]
)
def test_a_time_in_ms_is_whole(text: str) -> None:
    with pytest.raises(ValueError, match="not a time"):
        time_of(text)
    assert time_of("2024-01-31T12:00:00.123Z") == 1_706_702_400_123


@pytest.mark.parametrize(
    "span",
    [dt.timedelta(microseconds=1999), dt.timedelta(microseconds=-1), dt.timedelta(seconds=1e-6)],
)
def test_a_span_is_no_part_of_a_millisecond(span: dt.timedelta) -> None:
    with pytest.raises(ValueError, match="milliseconds"):
        exact_ms(span)
    with pytest.raises(TopologyError, match="milliseconds"):
        duration_ms(span)
    when = dt.datetime(2024, 1, 31, tzinfo=UTC) + span
    with pytest.raises(ValueError, match="milliseconds"):
        epoch_ms(when)
    with pytest.raises(StatePointError, match="milliseconds"):
        Point.of(when)
    assert exact_ms(dt.timedelta(milliseconds=1999)) == 1999


@pytest.mark.parametrize("text", ["\u0665 seconds", "1_0 seconds", "99999999999999999999 weeks"])
def test_a_duration_has_the_digits_of_ascii_and_fits_a_long(text: str) -> None:
    with pytest.raises(TopologyError):
        duration_ms(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT12H", 43_200_000),
        ("P1DT6H", 108_000_000),
        ("PT1.5S", 1_500),
        ("PT1.500000S", 1_500),
        ("PT0.0005S", None),
        ("PT1.0001S", None),
        ("PT\u0661S", None),
    ],
)
def test_a_reset_reaches_back_by_whole_milliseconds(text: str, ms: int | None) -> None:
    assert reset_duration_ms(f"by_duration:{text}") == ms
    assert (offset_reset(f"by_duration:{text}") is None) == (ms is not None)


@pytest.mark.parametrize("text", ["\u0661\u0660", "1_0", "1.0", "1e1", "0x10"])
def test_a_setting_is_a_number_in_ascii(text: str) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        StreamsConfig(application_id="a", num_stream_threads=text)


def test_what_is_no_number_is_named_in_answers_of_the_query_service() -> None:
    entry = {"x": math.nan, "pairs": [(1.5, -math.inf)], "none": None}
    assert as_json(entry) == b'{"x":"NaN","pairs":[[1.5,"-Infinity"]],"none":null}'


def test_a_test_records_time_is_a_whole_number_of_milliseconds() -> None:
    text = serdes.string()
    topic = InputTopic(lambda _: None, "in", (text, text), 0, 0, lambda *_: 0)
    for time in (1.5, "5", dt.timedelta(seconds=1)):
        with pytest.raises(TypeError, match="datetime"):
            topic.pipe_input("k", "v", time)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="milliseconds"):
        topic.pipe_input("k", "v", dt.datetime(2024, 1, 31, microsecond=1))


# Which windows a record falls into, and until when they are open.


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
