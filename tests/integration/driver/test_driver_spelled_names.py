"""Names resolve as Spark resolves them, in every place that takes a Column: whatever the case, in
backticks, by items and fields, the results are those of the plain spelling."""

import itertools
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as pyspark_functions

from everflow import (
    CountWindows,
    GlobalKTable,
    JoinWindows,
    KGroupedStream,
    KStream,
    KTable,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    agg,
    serdes,
)
from everflow.spark.session import get_session
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

F: Any = pyspark_functions
Spelling = Callable[[str], Any]
TEXT = serdes.string()
VALUE = serdes.json(
    "id string, Amount bigint, who struct<name: string, `First Name`: string, `a.b`: string>, "
    "tags array<struct<k: string, n: bigint>>, m map<string, string>, at timestamp, part int"
)
OTHER = serdes.json("id string, note string")


def row(at: int, **changed: Any) -> dict[str, Any]:
    return {
        "id": f"id-{at}",
        "Amount": at * 7 % 5,
        "who": {"name": f"n{at}", "First Name": f"f{at}", "a.b": f"d{at}"},
        "tags": [{"k": f"t{at % 2}", "n": at}, {"k": "t", "n": -at}],
        "m": {"x": f"x{at}", "X": f"big-{at}"},
        "at": datetime.fromtimestamp(1_000 + at, timezone.utc),
        "part": at % 2,
        **changed,
    }


ROWS = [(f"k{at % 3}", row(at), 1_000 + at) for at in range(1, 7)]
ROWS[3] = ("k1", row(4, who=None, tags=None, m=None), 1_004)
OTHERS = [(f"k{at}", {"id": f"id-{at}", "note": f"note {at}"}, 1_000 + at) for at in range(3)]
BY_ID = [(f"id-{at}", {"id": f"id-{at}", "note": f"by id {at}"}, 1_000) for at in range(3)]


def parts_of(path: str) -> list[str]:
    return [found.strip("`") for found in re.findall(r"`[^`]+`|[^.]+", path)]


def chained(path: str, step: Callable[[Any, str], Any]) -> Any:
    first, *rest = parts_of(path)
    found = F.col(first)
    for part in rest:
        found = step(found, part)
    return found


def quoted(path: str) -> str:
    return ".".join(f"`{part}`" for part in parts_of(path))


SPELLINGS: dict[str, Spelling] = {
    "plain": lambda path: F.col(path),
    "capitals": lambda path: F.col(path.upper()),
    "swapped": lambda path: F.col(path.swapcase()),
    "backticks": lambda path: F.col(quoted(path).swapcase()),
    "items": lambda path: chained(path.upper(), lambda found, part: found[part]),
    "fields": lambda path: chained(path.swapcase(), lambda found, part: found.getField(part)),
    "SQL": lambda path: F.expr(quoted(path).upper()),
    "alias": lambda path: F.struct(F.col(path).alias("One")).getField("oNE").alias("other"),
}
"""Spellings of a path; a map's keys are no names."""
PLAIN = SPELLINGS["plain"]


def doubled(text: str | None) -> str | None:
    return None if text is None else text * 2


def twice(numbers: pd.Series) -> pd.Series:
    return numbers * 2


def thrice(numbers: pa.Array) -> pa.Array:
    return pa.array([None if one is None else one * 3 for one in numbers.to_pylist()])


class Inputs:
    def __init__(self, builder: StreamsBuilder, c: Spelling) -> None:
        self.builder, self.c = builder, c
        self.stream: KStream = builder.stream("in", key=TEXT, value=VALUE)
        self.other: KStream = builder.stream("other", key=TEXT, value=OTHER)
        self.table: KTable = builder.table("table", key=TEXT, value=VALUE, store="table")
        self.entries: KTable = builder.table("entries", key=TEXT, value=OTHER, store="entries")
        self.whole: GlobalKTable = builder.global_table(
            "whole", key=TEXT, value=OTHER, store="whole"
        )

    @property
    def grouped(self) -> KGroupedStream:
        return self.stream.group_by_key()

    def aggregates(self) -> dict[str, Any]:
        c = self.c
        return {
            "n": agg.count(c("value.who.name")),
            "total": agg.sum(c("value.amount")),
            "low": agg.min(c("value.amount")),
            "high": agg.max(c("value.amount") + c("offset")),
            "mean": agg.avg(c("value.amount")),
            "head": agg.first(c("value.who.`a.b`")),
            "tail": agg.last(c("value.who.`First Name`")),
            "listed": agg.collect_list(c("value.tags.k")),
            "kinds": agg.collect_set(c("value.who")),
            "by_low": agg.min_by(c("value.id"), c("value.amount")),
            "by_high": agg.max_by(c("key"), c("timestamp")),
            "top": agg.top_n(c("value.id"), 2, by=c("value.amount")),
            "about": agg.approx_count_distinct(c("value.part")),
        }

    def joined(self) -> dict[str, Any]:
        """Fields of a joiner: its sides by their own names, and as fields of the value."""
        c = self.c
        return {
            "key": c("key"),
            "left": c("left.id"),
            "right": c("right.note"),
            "deep": c("left.who.`First Name`"),
            "from_value": c("value.left.amount"),
            "its": F.upper(c("value.right.id")),
            "at": c("timestamp"),
        }


Place = Callable[[Inputs, Spelling], Any]


def of_windows(windows: Any) -> Place:
    return lambda at, c: at.grouped.windowed_by(windows).aggregate(
        store=f"w-{type(windows).__name__}", **at.aggregates()
    )


def aggregate_of_a_table(at: Inputs, c: Spelling) -> KTable:
    grouped = at.table.group_by(c("value.part"), c("value.who"), name="by-part")
    return grouped.aggregate(
        store="of-table", n=agg.count(c("value.name")), names=agg.count(c("value.`a.b`"))
    )


PLACES: dict[str, Place] = {
    "filter": lambda at, c: at.stream.filter(c("value.amount") > 1),
    "filter-in-spark": lambda at, c: at.stream.filter(F.reverse(c("value.who.name")).like("%n")),
    "filter-not": lambda at, c: at.stream.filter_not(c("key") == "k1"),
    "map-values": lambda at, c: at.stream.map_values(c("value.amount")),
    "map-values-nested": lambda at, c: at.stream.map_values(c("value.who.`a.b`")),
    "map-values-of-maps": lambda at, c: at.stream.map_values(
        F.concat(c("value.m")["x"], c("value.m").getItem("X"), F.lit("/"))
    ),
    "map-values-fields": lambda at, c: at.stream.map_values(
        a=c("value.amount"),
        b=F.reverse(c("value.who.`First Name`")),
        c=c("value.tags.n"),
        d=c("value.tags")[0]["k" if c is PLAIN else "K"],
        e=c("topic"),
        f=c("partition") + c("offset"),
        g=F.size(c("headers")),
        h=c("timestamp"),
        i=F.date_format(c("value.at"), "HH:mm:ss"),
    ),
    "changed-fields": lambda at, c: at.stream.map_values(
        c("value.who").withField("more", c("value.amount")).dropFields("name")
    ),
    "star": lambda at, c: at.stream.map_values(
        F.struct("value.*" if c is PLAIN else "VALUE.*", c("key").alias("own"))
    ),
    "higher-order": lambda at, c: at.stream.map_values(
        F.transform(c("value.tags"), lambda tag: tag["N"] + c("value.amount"))
    ),
    "udf": lambda at, c: at.stream.map_values(F.udf(doubled, "string")(c("value.who.name"))),
    "pandas-udf": lambda at, c: at.stream.map_values(
        F.pandas_udf(twice, "bigint", F.PandasUDFType.SCALAR)(c("value.amount"))
    ),
    "arrow-udf": lambda at, c: at.stream.map_values(
        F.arrow_udf(thrice, "bigint")(c("value.tags")[0]["N"])
    ),
    "map": lambda at, c: at.stream.map(key=c("value.id"), value=c("value.amount")),
    "map-pair": lambda at, c: at.stream.map(
        F.struct(c("value.id").alias("key"), c("value.amount").alias("value"))
    ),
    "select-key": lambda at, c: at.stream.select_key(c("value.who.name")),
    "flat-map": lambda at, c: at.stream.flat_map(
        F.array(F.struct(c("value.id").alias("key"), c("value.amount").alias("value")))
    ),
    "flat-map-values": lambda at, c: at.stream.flat_map_values(c("value.tags.k")),
    "branch": lambda at, c: at.stream.branch(
        big=c("value.amount") > 2, rest=c("value.who.name").isNotNull()
    )["rest"],
    "group-by": lambda at, c: at.stream.group_by(c("value.part"), name="by").count(store="by"),
    "aggregate": lambda at, c: at.grouped.aggregate(store="kept", **at.aggregates()),
    "time-windows": of_windows(TimeWindows.of_size("2 ms").grace("1 hour")),
    "sessions": of_windows(SessionWindows.of_inactivity_gap("1 ms").grace("1 hour")),
    "sliding": of_windows(SlidingWindows.of_time_difference("2 ms").grace("1 hour")),
    "counted": of_windows(CountWindows.of_size(2)),
    "windowed-key": lambda at, c: (
        at.grouped.windowed_by(TimeWindows.of_size("2 ms"))
        .count(store="of-windows")
        .to_stream()
        .map(key=c("key.key"), value=F.struct(c("key.start"), c("key.end")).cast("string"))
    ),
    "repartition": lambda at, c: at.stream.repartition(
        name="spread", partitions=2, partitioner=c("value.part")
    ),
    "deduplicate": lambda at, c: at.stream.deduplicate("1 hour", by=c("value.part"), store="ids"),
    "join-in-windows": lambda at, c: at.stream.join(
        at.other,
        windows=JoinWindows.of_time_difference("1 hour").grace(0),
        store="ww",
        **at.joined(),
    ),
    "outer-join": lambda at, c: at.stream.outer_join(
        at.other,
        F.coalesce(c("left.id"), c("right.id")),
        windows=JoinWindows.of_time_difference("1 hour").grace(0),
        store="wo",
    ),
    "join-asof": lambda at, c: at.stream.join_asof(
        at.other, tolerance="1 hour", how="left", store="asof", **at.joined()
    ),
    "join-interval": lambda at, c: at.stream.join_interval(
        at.other, before="1 hour", how="left", store="interval", **at.joined()
    ),
    "join-table": lambda at, c: at.stream.left_join(at.entries, **at.joined()),
    "join-versioned": lambda at, c: at.stream.join(
        at.other.to_table(store=Materialized("versions", history="1 hour"), name="versions"),
        grace="2 ms",
        store="held",
        **at.joined(),
    ),
    "join-tables": lambda at, c: at.table.join(at.entries, **at.joined()),
    "join-by-foreign-key": lambda at, c: at.table.left_join(
        at.entries, on=F.concat(F.lit("k"), c("value.amount")), name="fk", **at.joined()
    ),
    "join-global": lambda at, c: at.stream.left_join(at.whole, on=c("value.id"), **at.joined()),
    "lookup-join": lambda at, c: at.stream.lookup_join(
        at.entries, grace="1 ms", store="waiting", **at.joined()
    ),
    "lookup-join-global": lambda at, c: at.stream.lookup_join(
        at.whole, on=c("value.id"), grace="1 ms", store="waiting-too", **at.joined()
    ),
    "table-filter": lambda at, c: at.table.filter(c("value.amount") > 1),
    "table-filter-not": lambda at, c: at.table.filter_not(c("value.amount") > 1, store="not"),
    "table-map-values": lambda at, c: at.table.map_values(
        a=c("value.amount"), b=F.reverse(c("value.who.name"))
    ),
    "table-aggregate": aggregate_of_a_table,
    "cogroup": lambda at, c: (
        at.stream.map_values(c("value.amount"))
        .group_by_key()
        .cogroup(lambda value, found: found + value)
        .cogroup(
            at.other.map_values(F.length(c("value.note")).cast("bigint")).group_by_key(),
            lambda value, found: found - value,
        )
        .aggregate(lambda: 0, store="cogrouped", returns="bigint")
    ),
}


def results(spelling: Spelling) -> Mapping[str, list[Any]]:
    builder = StreamsBuilder()
    at = Inputs(builder, spelling)
    for name, place in PLACES.items():
        made = place(at, spelling)
        stream = made if isinstance(made, KStream) else made.to_stream()
        stream.to(f"out-{name}")
    at.stream.to(F.concat(F.lit("to-"), F.coalesce(spelling("value.who.name"), F.lit("none"))))
    at.stream.to("spread", partitioner=spelling("value.part"))
    builder.stream("timed", key=TEXT, value=VALUE, timestamp=spelling("value.at")).to("out-timed")
    builder.table(
        "timed-table", key=TEXT, value=VALUE, timestamp=spelling("value.amount"), store="timed"
    ).to_stream().to("out-timed-table")
    return outputs(builder)


def outputs(builder: StreamsBuilder) -> Mapping[str, list[Any]]:
    with TopologyTestDriver(builder.build(), partitions=2) as driver:
        driver.create_input_topic("whole", TEXT, OTHER).pipe_batch(BY_ID)
        driver.create_input_topic("entries", TEXT, OTHER).pipe_batch(OTHERS)
        for topic in ("table", "timed", "timed-table"):
            driver.create_input_topic(topic, TEXT, VALUE).pipe_batch(ROWS)
        driver.create_input_topic("other", TEXT, OTHER).pipe_batch(OTHERS)
        driver.create_input_topic("in", TEXT, VALUE).pipe_batch(ROWS)
        driver.create_input_topic("in", TEXT, VALUE).pipe_input(*ROWS[0])
        bytes_ = serdes.bytes_()
        return {
            topic: driver.create_output_topic(topic, bytes_, bytes_).read_records()
            for topic in sorted(driver.produced_topics())
        }


@pytest.fixture(scope="module")
def plain() -> Mapping[str, list[Any]]:
    return results(PLAIN)


def in_turn() -> Spelling:
    """Each name in another spelling than the one before."""
    others = itertools.cycle(one for name, one in SPELLINGS.items() if name != "plain")
    return lambda path: next(others)(path)


@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param(in_turn(), id="in turn"),
        *(
            pytest.param(one, id=name, marks=pytest.mark.slow)
            for name, one in SPELLINGS.items()
            if name != "plain"
        ),
    ],
)
def test_each_place_takes_each_spelling(spelling: Spelling, plain: Mapping[str, list[Any]]) -> None:
    assert set(plain) > {f"out-{place}" for place in PLACES}
    found = results(spelling)
    assert {topic for topic in plain if plain[topic] != found.get(topic)} == set()
    assert set(found) == set(plain)


AMBIGUOUS: dict[str, Callable[[KStream], Any]] = {
    "filter": lambda s: s.filter(F.col("value.id") == "x"),
    "map": lambda s: s.map(key=F.col("VALUE.Id")),
    "a struct": lambda s: s.map_values(F.struct("value.id")),
    "an item": lambda s: s.select_key(F.col("value")["iD"]),
    "backticks": lambda s: s.group_by(F.col("`value`.`ID`"), name="by"),
    "an aggregate": lambda s: s.group_by_key().aggregate(store="s", n=agg.count("value.id")),
    "an order": lambda s: s.group_by_key().aggregate(store="s", n=agg.max_by("key", "value.ID")),
    "a topic": lambda s: s.to(F.col("value.id")),
    "an id": lambda s: s.deduplicate("1 minute", by=F.col("value.id"), store="s"),
    "a joiner": lambda s: s.join(s.to_table(store="t"), F.col("left.id")),
    "a table": lambda s: s.to_table(store="t").filter(F.col("value.id") == "x"),
    "a group": lambda s: s.to_table(store="t").group_by(F.col("value.id"), name="by"),
}


@pytest.mark.parametrize("place", AMBIGUOUS)
def test_a_name_that_two_fields_have_but_for_case_is_refused_at_the_users_line(place: str) -> None:
    stream = StreamsBuilder().stream("in", key=TEXT, value=serdes.json("id string, ID string"))
    with pytest.raises(TopologyError, match=r"(?i)ambiguous") as raised:
        AMBIGUOUS[place](stream)
    assert raised.value.where is not None
    assert raised.value.where.startswith(f"{__file__}:")


ODD = serdes.json("`a b` bigint, `a.b` string, `or``der` int, `select` struct<`x-y`: bigint>")
ODD_ROW: dict[str, Any] = {"a b": 1, "a.b": "dot", "or`der": 2, "select": {"x-y": 3}}


def test_names_that_are_no_words_go_through_cogroups_and_loaded_tables() -> None:
    session = get_session()
    frame = session.sql("SELECT 'k' AS `the.key`, 5 AS `a b`, 6 AS `or``der`")
    builder = StreamsBuilder()
    rows = builder.global_table_from(frame, key=F.col("`THE.key`"), store="rows")
    stream = builder.stream("in", key=TEXT, value=ODD)
    (
        stream.group_by_key()
        .cogroup(lambda value, found: found + value["a b"])
        .cogroup(
            stream.filter(F.col("VALUE.`A.B`") == "dot").group_by_key(),
            lambda value, found: found + value["select"]["x-y"],
        )
        .aggregate(lambda: 0, store="cogrouped", returns="bigint")
        .to_stream()
        .to("cogrouped")
    )
    stream.join(
        rows,
        F.col("right.`OR``der`") + F.col("left.`Or``DER`") + F.col("right")["A b"],
        on=F.col("KEY"),
    ).to("joined", value=serdes.int_())
    stream.flat_map(
        F.array(F.struct(F.col("key").alias("KEY"), F.col("value.`a b`").alias("Value")))
    ).to("pairs")
    stream.map(F.struct(F.col("key").alias("Key"), F.col("value.`a b`").alias("VALUE"))).to("pair")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, ODD).pipe_input("k", ODD_ROW)

        def values(topic: str, serde: Any) -> list[Any]:
            found = driver.create_output_topic(topic, TEXT, serde).read_key_values()
            return [value for _, value in found]

        assert values("cogrouped", serdes.long())[-1] == 4
        assert values("joined", serdes.int_()) == [13]
        assert values("pairs", serdes.long()) == values("pair", serdes.long()) == [1]


def test_a_hint_names_a_field_in_any_case() -> None:
    stream = StreamsBuilder().stream("in", key=TEXT, value=VALUE)
    with pytest.raises(TopologyError, match=r"F\.col\('value\.Amount'\)"):
        stream.filter(F.col("AMOUNT") > 1)
