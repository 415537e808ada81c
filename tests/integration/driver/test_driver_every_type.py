"""A record with a field of every type goes through every kind of store and comes back."""

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    BufferConfig,
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    agg,
    serdes,
)
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
SCALARS = {
    "b": ("boolean", True),
    "y": ("tinyint", -128),
    "h": ("smallint", 7),
    "i": ("int", -7),
    "n": ("bigint", 2**63 - 1),
    "f": ("float", 1.5),
    "x": ("double", float("inf")),
    "s": ("string", 'é"'),
    "r": ("binary", b"\x00\xff"),
    "d": ("date", dt.date(2024, 1, 31)),
    "t": ("timestamp", dt.datetime(2024, 1, 31, 12, tzinfo=dt.timezone.utc)),
    "z": ("timestamp_ntz", dt.datetime(2024, 1, 31, 12, 0, 0, 5)),
    "c": ("decimal(38,38)", decimal.Decimal("0." + "1" * 38)),
}
PLAIN = ", ".join(f"{name} {type_}" for name, (type_, _) in SCALARS.items())
MAPS = ", ".join(f"m{name} map<{type_},{type_}>" for name, (type_, _) in SCALARS.items())
NESTED = f"o struct<{PLAIN}>, a array<struct<{PLAIN}>>, mo map<struct<i:int,s:string>,array<date>>"
EVERY = f"{PLAIN}, {MAPS}, {NESTED}"
VALUES = {name: value for name, (_, value) in SCALARS.items()}
ROW: dict[str, Any] = {
    **VALUES,
    **{f"m{name}": [(value, value)] for name, value in VALUES.items()},
    "o": VALUES,
    "a": [VALUES, None, dict.fromkeys(VALUES)],
    "mo": [({"i": 1, "s": None}, [dt.date(1, 1, 1), None])],
}
KEY, VALUE = serdes.json("o struct<i:int,a:array<string>>, d date"), serdes.json(EVERY)
A_KEY = {"o": {"i": 1, "a": ["x", None]}, "d": dt.date(2024, 1, 31)}


class Keeps(Processor):
    """Puts each record into its store, and forwards what the store has."""

    def process(self, record: Record) -> None:
        kept = self.context.store("kept")
        kept.put(record.key, record.value)
        self.context.forward(Record(record.key, kept.get(record.key), record.timestamp))


def table(stream: KStream, **options: Any) -> Any:
    return stream.to_table(store=Materialized("t", **options)).to_stream()


def listed(stream: KStream) -> Any:
    counted = stream.group_by_key().aggregate(l=agg.collect_list("value"), store="l")
    return counted.to_stream().map_values(F.col("value.l")[0])


def first(stream: KStream, windows: Any) -> Any:
    grouped = stream.group_by_key().windowed_by(windows)
    made = grouped.aggregate(v=agg.last("value"), store="w").to_stream()
    return made.map(key=F.col("key.key"), value=F.col("value.v"))


def held(stream: KStream) -> Any:
    bounds = BufferConfig.unbounded()
    return (
        stream.to_table(store="t")
        .suppress(Suppressed.until_time_limit("1 ms", bounds), store="held")
        .to_stream()
    )


def joined(stream: KStream) -> Any:
    windows = JoinWindows.of_time_difference_with_no_grace("1 second")
    both = stream.join(
        stream.map_values(F.col("value.i")), windows=windows, store="j", v=F.col("left")
    )
    return both.map_values(F.col("value.v"))


def reduced(stream: KStream) -> Any:
    return stream.group_by_key().reduce(lambda first, second: second, store="r").to_stream()


ROADS: dict[str, Callable[[KStream], Any]] = {
    "stream": lambda stream: stream,
    "function": lambda stream: stream.map_values(lambda value: value, returns=VALUE),
    "repartition": lambda stream: stream.repartition(name="again"),
    "table": table,
    "table in memory": lambda stream: table(stream, in_memory=True),
    "table with ttl": lambda stream: stream.to_table(store="t", ttl="1 day").to_stream(),
    "versioned table": lambda stream: table(stream, history="1 day"),
    "suppress": held,
    "collect_list": listed,
    "reduce": reduced,
    "windows": lambda stream: first(stream, TimeWindows.of_size("1 second")),
    "sessions": lambda stream: first(stream, SessionWindows.of_inactivity_gap("1 second")),
    "stream join": joined,
    "processor": lambda stream: stream.process(
        Keeps, stores=[Stores.key_value("kept", key=KEY, value=VALUE)], returns=(KEY, VALUE)
    ),
}


@pytest.mark.parametrize("road", ROADS)
def test_every_type_comes_back(road: str) -> None:
    builder = StreamsBuilder()
    ROADS[road](builder.stream("in", key=KEY, value=VALUE)).to("out", key=KEY, value=VALUE)
    with TopologyTestDriver(builder.build()) as driver:
        given = driver.create_input_topic("in", KEY, VALUE)
        given.pipe_input(A_KEY, ROW, 1)
        given.pipe_input({**A_KEY, "d": None}, ROW, 100)
        found = driver.create_output_topic("out", KEY, VALUE).read_records()
    assert found[0].key == A_KEY
    assert found[0].value == ROW


UNWRITTEN: dict[str, Callable[[], Any]] = {
    "interval": lambda: F.col("value.t") - F.col("value.t"),
    "intervals": lambda: F.array(F.col("value.t") - F.col("value.t")),
    "months": lambda: F.make_ym_interval(F.lit(1)),
}


@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_no_serde_writes_is_refused_where_it_is_declared(name: str) -> None:
    stream = StreamsBuilder().stream("in", key=KEY, value=VALUE)
    with pytest.raises(TopologyError, match="cast"):
        stream.map_values(UNWRITTEN[name]()).to("out")
    with pytest.raises(TopologyError, match=r"declare|cast"):
        stream.group_by_key().aggregate(l=agg.collect_list(UNWRITTEN[name]()), store="l")
