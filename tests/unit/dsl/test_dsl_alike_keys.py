"""Streams and tables meet where equal keys are equal bytes, and are refused elsewhere."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import JoinWindows, StreamsBuilder, TopologyError, serdes
from everflow.dsl.streams import KStream
from everflow.serdes import Serde
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import write_alike
from everflow.windows import Windowed

pytestmark = pytest.mark.spark

TEXT = serdes.string()
LONG_WINDOW, SHORT_WINDOW = serdes.time_windowed(TEXT, 5_000), serdes.time_windowed(TEXT, 2_000)


def json_of(field: pa.Field) -> Serde:
    return serdes.json(pa.struct([field]))


class Upper:
    """A serde of a user's, of a class that does not say when two of them are equal."""

    type = "string"

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def encode(self, value: str) -> bytes:
        return (self.prefix + value).upper().encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class Lower(Upper):
    def encode(self, value: str) -> bytes:
        return value.lower().encode()


ALIKE: dict[str, tuple[Any, Any]] = {
    "sizes of windows": (LONG_WINDOW, SHORT_WINDOW),
    "nullability": (
        json_of(pa.field("a", pa.string(), nullable=False)),
        json_of(pa.field("a", pa.string(), metadata={"who": "me"})),
    ),
    "wide texts": (
        json_of(pa.field("a", pa.list_(pa.large_string()))),
        json_of(pa.field("a", pa.list_(pa.string()))),
    ),
    "in windows": (
        serdes.time_windowed(json_of(pa.field("a", pa.int64(), nullable=False)), 1),
        serdes.time_windowed(json_of(pa.field("a", pa.int64())), 2),
    ),
    "sessions of windows": (
        serdes.session_windowed(LONG_WINDOW),
        serdes.session_windowed(SHORT_WINDOW),
    ),
    "lists": (serdes.list_(LONG_WINDOW), serdes.list_(SHORT_WINDOW)),
    "users'": (Upper(), Upper()),
}
UNLIKE: dict[str, tuple[Any, Any]] = {
    "sessions and windows": (serdes.session_windowed(TEXT), LONG_WINDOW),
    "text and its JSON": (TEXT, serdes.json(pa.string())),
    "a number and its JSON": (serdes.long(), serdes.json("bigint")),
    "inner ones": (
        serdes.time_windowed(TEXT, 5),
        serdes.time_windowed(serdes.json(pa.string()), 5),
    ),
    "users' of another class": (Upper(), Lower()),
    "users' with something else in them": (Upper(), Upper("x")),
}


def sides(one: Any, other: Any) -> tuple[KStream, KStream]:
    builder = StreamsBuilder()
    return (builder.stream("a", key=one, value=TEXT), builder.stream("b", key=other, value=TEXT))


def joins(one: Any, other: Any) -> list[Any]:
    """Calls that bring streams of these keys together."""
    left, right = sides(one, other)
    table = right.to_table(store="t")
    return [
        lambda: left.join(right, windows=JoinWindows.of_time_difference(1), store="w"),
        lambda: left.join_asof(right, tolerance=1, store="v"),
        lambda: left.join(table),
        lambda: left.lookup_join(table, grace=1, store="l"),
        lambda: left.to_table(store="s").outer_join(table),
        lambda: (
            left.group_by_key()
            .cogroup(lambda value, found: found)
            .cogroup(right.group_by_key(), lambda value, found: found)
            .aggregate(lambda: 0, returns="int", store="c")
        ),
    ]


@pytest.mark.parametrize("name", ALIKE)
def test_keys_that_are_written_alike_meet(name: str) -> None:
    for join in joins(*ALIKE[name]):
        join()


@pytest.mark.parametrize("name", UNLIKE)
def test_keys_that_are_written_in_another_way_are_refused(name: str) -> None:
    for join in joins(*UNLIKE[name]):
        with pytest.raises(TopologyError) as raised:
            join()
        assert raised.value.code == "EF-COPARTITION" or "the keys are" in str(raised.value)


@pytest.mark.parametrize("name", [name for name in ALIKE if name != "users'"])
def test_what_is_taken_for_alike_writes_the_same_bytes(name: str) -> None:
    one, other = ALIKE[name]
    assert write_alike(one, other)
    values = {
        "sizes of windows": Windowed("k", 2_000, 7_000),
        "nullability": {"a": "x"},
        "wide texts": {"a": ["x", None]},
        "in windows": Windowed({"a": 5}, 2_000, 2_001),
        "sessions of windows": Windowed(Windowed("k", 0, 5), 7, 8),
        "lists": [Windowed("k", 0, 5)],
    }
    assert one.encode(values[name]) == other.encode(values[name])


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_join_has_the_left_ones_windows(first: str) -> None:
    builder = StreamsBuilder()
    left = builder.stream("a", key=LONG_WINDOW, value=TEXT)
    right = builder.stream("b", key=SHORT_WINDOW, value=TEXT)
    windows = JoinWindows.of_time_difference(60_000)
    left.join(right, windows=windows, store="p").map_values(
        lambda key, value: f"{key.key}@{key.start}-{key.end}", returns="string"
    ).to("out")
    left.join(right, windows=windows, store="q").map_values(F.col("key.end")).to("ends")
    with TopologyTestDriver(builder.build()) as driver:
        topics = {
            "a": driver.create_input_topic("a", LONG_WINDOW, TEXT),
            "b": driver.create_input_topic("b", SHORT_WINDOW, TEXT),
        }
        for topic in (first, "b" if first == "a" else "a"):
            topics[topic].pipe_input(Windowed("k", 2_000, 9), topic)
            topics[topic].pipe_input(Windowed("k", 4_000, 9), topic)
            topics[topic].pipe_input(None, topic)
        out = driver.create_output_topic("out", LONG_WINDOW, TEXT).read_records()
        ends = driver.create_output_topic("ends", LONG_WINDOW, serdes.long()).read_records()
    assert [record.value for record in out] == ["k@2000-7000", "k@4000-9000"]
    assert [record.value for record in ends] == [7_000, 9_000]
    assert [record.key for record in out] == [
        Windowed("k", 2_000, 7_000),
        Windowed("k", 4_000, 9_000),
    ]
