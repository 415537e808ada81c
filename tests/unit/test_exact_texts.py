"""Texts of numbers and times are read as they are written, or refused, whoever reads them."""

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

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
from everflow.windows import duration_ms

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
