"""Built-in aggregates of many values give what Spark's own give of the same records."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from everflow import StreamsBuilder, agg, serdes
from everflow.operators.agg import precision_of
from everflow.operators.aggregates.folds import Bounds, Items, StateColumn, distinct, estimates
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT = serdes.string()
SALE = serdes.json("item string, amount double, n int, day date")

OURS = {
    "listed": agg.collect_list("value.item"),
    "distinct": agg.collect_set("value.n"),
    "dearest": agg.max_by("value.item", "value.amount"),
    "cheapest": agg.min_by("value.item", "value.amount"),
    "top": agg.top_n("value.item", 3, by="value.amount"),
    "low": agg.min_by("value.item", "value.amount", 2),
    "about": agg.approx_count_distinct("value.item"),
    "about_n": agg.approx_count_distinct("value.n", rsd=0.2),
    "about_x": agg.approx_count_distinct("value.amount", rsd=0.01),
}
SPARKS: dict[str, Callable[[], Column]] = {
    "listed": lambda: F.collect_list("item"),
    "distinct": lambda: F.collect_set("n"),
    "dearest": lambda: F.max_by("item", "amount"),
    "cheapest": lambda: F.min_by("item", "amount"),
    "top": lambda: F.max_by("item", "amount", 3),
    "low": lambda: F.min_by("item", "amount", 2),
    "about": lambda: F.approx_count_distinct("item"),
    "about_n": lambda: F.approx_count_distinct("n", rsd=0.2),
    "about_x": lambda: F.approx_count_distinct("amount", rsd=0.01),
}


def sales(count: int, seed: int) -> list[tuple[str, dict[str, Any], int]]:
    """Records of which no two of a key cost the same, so that Spark has one answer, too."""
    draw = random.Random(seed)
    amounts = draw.sample(range(100 * count), count)
    return [
        (
            draw.choice(["a", "b", "empty"]),
            {
                "item": draw.choice([None, f"i{draw.randrange(900)}"]),
                "amount": draw.choice([None, amounts[at] / 8]),
                "n": draw.choice([None, draw.randrange(40)]),
                "day": None,
            },
            at,
        )
        for at in range(count)
    ]


def batch(records: list[tuple[str, dict[str, Any], int]]) -> dict[str, dict[str, Any]]:
    spark = SparkSession.builder.getOrCreate()
    rows = [(key, value["item"], value["amount"], value["n"]) for key, value, _ in records]
    table = spark.createDataFrame(rows, "key string, item string, amount double, n int")
    columns = [made().alias(name) for name, made in SPARKS.items()]
    found = table.coalesce(1).groupBy("key").agg(*columns).collect()
    return {row["key"]: {name: row[name] for name in SPARKS} for row in found}


def test_what_spark_computes_of_the_same_records() -> None:
    records = sales(2000, 7)
    for record in records:
        if record[0] == "empty":
            record[1].update(item=None, amount=None, n=None)
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=TEXT, value=SALE).group_by_key()
    grouped.aggregate(store="all", **OURS)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, SALE)
        for at in range(0, len(records), 700):
            topic.pipe_batch(records[at : at + 700])
        found = dict(driver.get_key_value_store("all").all())

    expected = batch(records)

    assert found.keys() == expected.keys() == {"a", "b", "empty"}
    for key, sparks in expected.items():
        ours = found[key]
        ours["distinct"], sparks["distinct"] = sorted(ours["distinct"]), sorted(sparks["distinct"])
        assert ours == {
            name: [] if value is None and name in ("top", "low") else value
            for name, value in sparks.items()
        }
    assert found["a"]["about"] > 200


@pytest.mark.parametrize("counted", [10, 1200, 20000])
@pytest.mark.parametrize("rsd", [0.39, 0.05, pytest.param(0.01, marks=pytest.mark.slow)])
def test_an_estimate_is_sparks_to_the_last_digit(counted: int, rsd: float) -> None:
    spark = SparkSession.builder.getOrCreate()
    table = spark.range(counted).select((F.col("id") * 7919).alias("id"))
    expected = table.agg(F.approx_count_distinct("id", rsd)).collect()[0][0]
    hashes = table.select(F.xxhash64("id").alias("h")).toArrow()["h"].combine_chunks()
    precision = precision_of(rsd)
    column = StateColumn("n", pa.binary(), "distinct", "h", Bounds(precision))
    items = Items.of_groups([pa.nulls(1, pa.binary())], np.zeros(counted, np.int64), [hashes])

    assert estimates(distinct([column], items)[0], precision).to_pylist() == [expected]
