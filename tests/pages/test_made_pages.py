"""The tables of the guide that are made of the code are those of today, and know every name of the
other APIs."""

from __future__ import annotations

import inspect
import re

import pytest

from everflow import (
    KGroupedStream,
    KStream,
    Materialized,
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyWindowStore,
    StreamsBuilder,
)
from everflow.dsl.streams import BranchedKStream
from everflow.foreign_names import PYSPARK, names_of
from made_pages import GUIDE, PAGES, made, marked

# The public methods of Kafka Streams 4.x, by the class here that stands in for theirs.
# Of Structured Streaming: what a DataFrame, its grouping, its writer and its query are asked for.
SPARK = {
    "KStream": "select selectExpr withColumn where groupBy union join withWatermark dropDuplicates "
    "dropDuplicatesWithinWatermark "
    "writeStream foreachBatch trigger outputMode option format queryName show collect orderBy "
    "printSchema explode "
    "applyInPandasWithState transformWithStateInPandas checkpoint cache",
    "StreamsBuilder": "readStream format option options subscribe schema load sql createDataFrame",
    "KGroupedStream": "agg sum avg min max applyInPandasWithState",
    "KafkaStreams": (
        "awaitTermination stop isActive status lastProgress recentProgress exception "
        "processAllAvailable id name"
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_one_that_the_code_gives(name: str) -> None:
    text = (GUIDE / name).read_text()
    assert marked(text) == list(dict.fromkeys(marked(text)))
    assert set(marked(text)) == set(PAGES[name])
    assert text == made(text, PAGES[name]), "run .venv/bin/python tests/made_pages.py"


@pytest.mark.parametrize("owner", SPARK)
def test_no_method_of_structured_streaming_is_missing(owner: str) -> None:
    assert [name for name in SPARK[owner].split() if name not in names_of(PYSPARK)[owner]] == []


def _rows(title: str) -> list[list[str]]:
    """Cells of the table below a heading of the page for who comes from Kafka Streams."""
    text = (
        (GUIDE / "coming-from-kafka-streams.md")
        .read_text()
        .split(f"### {title}\n")[1]
        .split("\n#")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert rows
    return rows


def test_the_keywords_that_stand_for_option_objects_are_there() -> None:
    classes = (StreamsBuilder, KStream, KGroupedStream, BranchedKStream)
    methods = [
        method
        for one in classes
        for name, method in inspect.getmembers(one, callable)
        if not name.startswith("_")
    ]
    methods.append(Materialized)
    known = {name for method in methods for name in inspect.signature(method).parameters}
    assert {
        word for row in _rows("Option objects") for word in re.findall(r"\b(\w+)=", row[1])
    } <= known


@pytest.mark.parametrize(
    "store", [ReadOnlyKeyValueStore, ReadOnlyWindowStore, ReadOnlySessionStore]
)
def test_the_queries_that_are_named_are_there(store: type) -> None:
    (here,) = [row[1] for row in _rows("Interactive queries") if store.__name__ in row[0]]
    names = re.findall(r"`(\w+)`", here)
    assert names
    assert [name for name in names if not hasattr(store, name)] == []
