"""What a source refuses as its time while the topology is built, with the line and the cure."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from everflow import ConfigError, StreamsBuilder, StreamsConfig, TopologyError, serdes
from everflow.topology.graph import WallclockTimestampExtractor

pytestmark = pytest.mark.spark
TEXT = serdes.string()
VALUE = serdes.json("at bigint, day string, on date")


def four_and_more(key: str, value: str, record: str, time: int, more: int) -> int:
    return 1


MISTAKES: dict[str, tuple[Any, str]] = {
    "the name of a field": ("value.at", r"found 'value.at'; write F\.col\('value.at'\)"),
    "a number": (7, "stream: timestamp takes a Column or a Python function, found 7"),
    "no such field": (lambda: F.col("value.att"), r"columns: .*value\.at bigint"),
    "a text": (lambda: F.col("value.day"), r"is string; a time is a number of ms since 1970"),
    "a day": (lambda: F.col("value.on"), r"is date; .*F\.to_timestamp"),
    "a fraction": (lambda: F.col("value.at") / 1000, r"is double; .*cast\('bigint'\)"),
    "the clock": (lambda: F.current_timestamp(), "the current time cannot be used in a Column"),
    "nothing": (lambda: lambda: 1, r"\(key, value, record, partition_time\); .*takes 0 arguments"),
    "too much": (lambda: four_and_more, "four_and_more takes 5 arguments"),
    "a function for columns": (
        lambda: F.udf(lambda value: 1, LongType())("value.at"),
        "cannot be a Column that calls Python functions; pass a function of",
    ),
    "a function of PySpark": (lambda: F.unix_millis, "stream: timestamp"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_time_that_is_none_is_refused_at_its_line(mistake: str) -> None:
    builder = StreamsBuilder()
    given, says = MISTAKES[mistake]
    given = given() if callable(given) else given
    with pytest.raises(TopologyError, match=says) as raised:
        builder.stream("in", key=TEXT, value=VALUE, timestamp=given)
    assert f"{__file__}:" in str(raised.value)


def test_a_table_names_itself() -> None:
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match="table: timestamp"):
        builder.table("in", key=TEXT, value=VALUE, store="s", timestamp="at")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        "WallclockTimestampExtractor",
        "org.apache.kafka.streams.processor.WallclockTimestampExtractor",
        WallclockTimestampExtractor,
    ],
)
def test_the_setting_takes_the_name_in_java_too(given: Any) -> None:
    settings = StreamsConfig(
        application_id="a", bootstrap_servers="b:1", default_timestamp_extractor=given
    )
    assert settings.default_timestamp_extractor.endswith("WallclockTimestampExtractor")


def test_the_setting_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match=r"timestamp.*timestamp="):
        StreamsConfig(
            {"default.timestamp.extractor": "mine:Extractor"},
            application_id="a",
            bootstrap_servers="b:1",
        )
