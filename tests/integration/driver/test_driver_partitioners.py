"""Partitioners of sinks through the real segments and steps, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from everflow import KStream, StreamsBuilder, TopologyError, serdes
from everflow.errors import RecordError
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()


def nowhere() -> Any:
    return F.array().cast("array<int>")


def written(partitioner: Any, topic: Any = "out", rows: tuple[int, ...] = (0, 1, 2)) -> list[int]:
    """The values that are written; every topic of a driver has one partition."""
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=LONG).to(topic, partitioner=partitioner)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", TEXT, LONG)
        source.pipe_batch([("k", row) for row in rows])
        out = driver.create_output_topic("out", TEXT, LONG)
        return [value for _, value in out.read_key_values()]


def asked(topic: str, key: str, value: int, partitions: int) -> Any:
    assert (topic, key, partitions) == ("out", "k", 1)
    return [None, [0], []][value]


@pytest.mark.parametrize(
    ("partitioner", "topic"),
    [
        (lambda: F.when(F.col("value") < 2, F.array(F.lit(0))).otherwise(nowhere()), "out"),
        (lambda: asked, "out"),
        (lambda: asked, lambda value: "out"),
        (lambda: asked, lambda: F.lit("out")),
    ],
)
def test_no_partition_drops_the_record_and_none_leaves_it_to_the_key(
    partitioner: Any, topic: Any
) -> None:
    StreamsBuilder()
    given = topic() if callable(topic) and topic.__code__.co_argcount == 0 else topic
    assert written(partitioner(), given) == [0, 1]


def test_a_column_of_numbers_says_the_partition() -> None:
    StreamsBuilder()
    null = F.when(F.col("value") > 0, F.lit(0))
    assert written(null) == [0, 1, 2]


@pytest.mark.parametrize(
    ("partitioner", "says"),
    [
        (lambda: F.col("value"), r"1.*partitions 0.*0.*in-0@1"),
        (lambda: F.array("value"), r"1.*partitions 0.*0.*in-0@1"),
        (lambda: lambda topic, key, value, count: -value, r"gave -1; out has .*in-0@1"),
        (lambda: lambda topic, key, value, count: str(value), r"gave '0'; out has .*in-0@0"),
        (lambda: lambda topic, key, value, count: 1 / 0, r"ZeroDivisionError.*in-0@0"),
    ],
)
def test_a_partition_that_is_not_there_names_the_record(partitioner: Any, says: str) -> None:
    StreamsBuilder()
    with pytest.raises(RecordError, match=says):
        written(partitioner())


MISTAKES: dict[str, tuple[Any, str]] = {
    "a number": (
        lambda s: s.to("out", partitioner=3),
        "to: partitioner takes a Column or a Python",
    ),
    "a name": (lambda s: s.to("out", partitioner="value"), r"F\.col\('value'\)"),
    "a text": (lambda s: s.to("out", partitioner=F.col("key")), "is string; it is the number of"),
    "too few": (
        lambda s: s.to("out", partitioner=lambda value: 1),
        r"calls its function with \(topic, key, value, partitions\)",
    ),
    "a udf's Column": (
        lambda s: s.to("out", partitioner=F.udf(lambda value: 1, LongType())("value")),
        "cannot be a Column that calls Python functions",
    ),
    "both Columns": (
        lambda s: s.to(F.col("key"), partitioner=F.col("value")),
        "partitioner and topic are both Columns; give one of them as a function",
    ),
    "of a repartition topic": (
        lambda s: s.repartition(name="r", partitioner=F.col("key")),
        "repartition: partitioner: .* is string",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_partitioner_that_is_none_is_refused_at_its_line(mistake: str) -> None:
    call, says = MISTAKES[mistake]
    stream: KStream = StreamsBuilder().stream("in", key=TEXT, value=LONG)
    with pytest.raises(TopologyError, match=says) as raised:
        call(stream)
    assert f"{__file__}:" in str(raised.value)


def test_numbers_of_numpy_are_numbers() -> None:
    assert written(lambda topic, key, value, count: np.int32(0)) == [0, 1, 2]
