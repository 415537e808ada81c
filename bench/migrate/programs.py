"""The programs of `bench migrate` and their next versions; the twins for Kafka Streams are in
`java/Programs.java`.

`everflow run bench.migrate.programs:NAME`; the topics come from the environment. ``by`` in each
output says which version it is of.
"""

from __future__ import annotations

import os
from functools import partial

from pyspark.sql import Column
from pyspark.sql import functions as F

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.migrate.orders import PAIRED_S, WINDOW_S
from everflow import JoinWindows, KStream, Materialized, StreamsBuilder, TimeWindows, agg, serdes

ORDER = serdes.json("id bigint, order bigint, user string, kind string, amount bigint")
PAIRS = "-pairs"
"""Behind the output topic's name."""


def _orders(builder: StreamsBuilder) -> KStream:
    return builder.stream(os.environ[INPUT_TOPIC_VARIABLE], key=serdes.string(), value=ORDER)


def _by_user(builder: StreamsBuilder, partitions: int, inserted: bool) -> KStream:
    found = (
        _orders(builder)
        .select_key(F.col("value.user"))
        .repartition(name="by-user", partitions=partitions)
    )
    return found.filter(F.col("value.amount") >= 0) if inserted else found


def _folds(most: bool) -> dict[str, agg.Aggregator]:
    folds = {
        "orders": agg.count(),
        "total": agg.sum("value.amount"),
        "last": agg.last("value.id"),
    }
    return {**folds, "most": agg.max("value.amount")} if most else folds


def _told(most: bool, by: str) -> dict[str, Column]:
    names = ("orders", "total", "last", "most") if most else ("orders", "total", "last")
    return {**{name: F.col(f"value.{name}") for name in names}, "by": F.lit(by)}


def _sums(
    *,
    partitions: int = 4,
    inserted: bool = False,
    most: bool = False,
    store: str = "sums",
    by: str = "new",
) -> StreamsBuilder:
    """Number, sum and last record of each user; every update goes out."""
    builder = StreamsBuilder()
    (
        _by_user(builder, partitions, inserted)
        .group_by_key()
        .aggregate(store=Materialized(store, caching=False), **_folds(most))
        .to_stream()
        .map_values(**_told(most, by))
        .to(os.environ[OUTPUT_TOPIC_VARIABLE])
    )
    return builder


def _joined(
    *,
    partitions: int = 4,
    inserted: bool = False,
    most: bool = False,
    store: str = "windows",
    pairs: str = "pairs",
    by: str = "new",
) -> StreamsBuilder:
    """The same in windows, and each payment with its order."""
    builder = StreamsBuilder()
    users = _by_user(builder, partitions, inserted)
    (
        users.group_by_key()
        .windowed_by(TimeWindows.of_size(f"{WINDOW_S} seconds").grace("1 hour"))
        .aggregate(store=Materialized(store, caching=False), **_folds(most))
        .to_stream()
        .map_values(**_told(most, by))
        .to(os.environ[OUTPUT_TOPIC_VARIABLE])
    )
    (
        users.filter(F.col("value.kind") == "order")
        .join(
            users.filter(F.col("value.kind") == "payment"),
            windows=JoinWindows.of_time_difference(f"{PAIRED_S} seconds").grace("1 hour"),
            store=pairs,
            order=F.col("left.id"),
            payment=F.col("right.id"),
            of=F.col("right.order"),
            by=F.lit(by),
        )
        .to(os.environ[OUTPUT_TOPIC_VARIABLE] + PAIRS)
    )
    return builder


def direct() -> StreamsBuilder:
    """The sums, of an input whose keys are the users: the state's tasks read it."""
    builder = StreamsBuilder()
    (
        _orders(builder)
        .group_by_key()
        .aggregate(store=Materialized("sums", caching=False), **_folds(False))
        .to_stream()
        .map_values(**_told(False, "old"))
        .to(os.environ[OUTPUT_TOPIC_VARIABLE])
    )
    return builder


sums = partial(_sums, by="old")
sums_insert = partial(_sums, inserted=True)
sums_rename = partial(_sums, store="totals")
sums_field = partial(_sums, most=True)
sums_grow = partial(_sums, partitions=8)
sums_reshard = partial(_sums, partitions=6)

joined = partial(_joined, by="old")
joined_insert = partial(_joined, inserted=True)
joined_rename = partial(_joined, store="spans", pairs="matches")
joined_field = partial(_joined, most=True)
joined_grow = partial(_joined, partitions=8)
joined_reshard = partial(_joined, partitions=6)
