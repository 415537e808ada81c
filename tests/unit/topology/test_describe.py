"""`describe()` against what Kafka Streams prints for the same program."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.topology.describe import as_json, as_mermaid

pytestmark = pytest.mark.spark

NAMED_COUNT = """Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [input-topic])
      --> KSTREAM-AGGREGATE-0000000001
    Processor: KSTREAM-AGGREGATE-0000000001 (stores: [count-store])
      --> none
      <-- KSTREAM-SOURCE-0000000000

"""

WORD_COUNT = """Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [lines])
      --> KSTREAM-FLATMAPVALUES-0000000001
    Processor: KSTREAM-FLATMAPVALUES-0000000001 (stores: [])
      --> words
      <-- KSTREAM-SOURCE-0000000000
    Processor: words (stores: [])
      --> words-repartition-filter
      <-- KSTREAM-FLATMAPVALUES-0000000001
    Processor: words-repartition-filter (stores: [])
      --> words-repartition-sink
      <-- words
    Sink: words-repartition-sink (topic: words-repartition)
      <-- words-repartition-filter

  Sub-topology: 1
    Source: words-repartition-source (topics: [words-repartition])
      --> KSTREAM-AGGREGATE-0000000002
    Processor: KSTREAM-AGGREGATE-0000000002 (stores: [counts])
      --> KTABLE-TOSTREAM-0000000006
      <-- words-repartition-source
    Processor: KTABLE-TOSTREAM-0000000006 (stores: [])
      --> KSTREAM-SINK-0000000007
      <-- KSTREAM-AGGREGATE-0000000002
    Sink: KSTREAM-SINK-0000000007 (topic: out)
      <-- KTABLE-TOSTREAM-0000000006

"""

BRANCHES = """Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [a, b])
      --> KSTREAM-BRANCH-0000000001
    Processor: KSTREAM-BRANCH-0000000001 (stores: [])
      --> KSTREAM-BRANCH-00000000010, KSTREAM-BRANCH-00000000011
      <-- KSTREAM-SOURCE-0000000000
    Processor: KSTREAM-BRANCH-00000000010 (stores: [])
      --> KSTREAM-SINK-0000000005
      <-- KSTREAM-BRANCH-0000000001
    Processor: KSTREAM-BRANCH-00000000011 (stores: [])
      --> KSTREAM-SINK-0000000004
      <-- KSTREAM-BRANCH-0000000001
    Sink: KSTREAM-SINK-0000000004 (topic: one)
      <-- KSTREAM-BRANCH-00000000011
    Sink: KSTREAM-SINK-0000000005 (topic: zero)
      <-- KSTREAM-BRANCH-00000000010

"""

TABLE = """Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [users])
      --> KTABLE-SOURCE-0000000001
    Processor: KTABLE-SOURCE-0000000001 (stores: [users])
      --> KTABLE-FILTER-0000000002
      <-- KSTREAM-SOURCE-0000000000
    Processor: KTABLE-FILTER-0000000002 (stores: [])
      --> none
      <-- KTABLE-SOURCE-0000000001

"""


def word_count() -> StreamsBuilder:
    builder = StreamsBuilder()
    lines = builder.stream("lines", key=serdes.string(), value=serdes.string())
    words = lines.flat_map_values(F.split("value", " ")).group_by(F.col("value"), name="words")
    words.count(store="counts").to_stream().to("out")
    return builder


def test_count() -> None:
    builder = StreamsBuilder()
    builder.stream("input-topic").group_by_key().count(store="count-store")
    assert builder.build().describe() == NAMED_COUNT


def test_word_count() -> None:
    assert word_count().build().describe() == WORD_COUNT


def test_branches() -> None:
    builder = StreamsBuilder()
    branches = builder.stream(["b", "a"]).split().branch(F.col("offset") > 1).default_branch()
    branches["1"].to("one")
    branches["0"].to("zero")
    assert builder.build().describe() == BRANCHES


def test_table() -> None:
    builder = StreamsBuilder()
    builder.table("users", store="users").filter(F.col("value").isNotNull())
    assert builder.build().describe() == TABLE


def test_json_holds_the_same_nodes() -> None:
    found = json.loads(as_json(word_count().build()))
    first, second = found["subtopologies"]
    assert [node["name"] for node in second["nodes"]] == [
        "words-repartition-source",
        "KSTREAM-AGGREGATE-0000000002",
        "KTABLE-TOSTREAM-0000000006",
        "KSTREAM-SINK-0000000007",
    ]
    assert second["nodes"][1]["stores"] == ["counts"]
    assert (second["nodes"][3]["topic"], second["nodes"][3]["value"]) == ("out", "bigint")
    assert first["nodes"][0]["topics"] == ["lines"]


def test_mermaid_links_topics_and_stores() -> None:
    text = as_mermaid(word_count().build())
    assert text.startswith("flowchart TD\n")
    assert '[("counts")]' in text
    assert '>"words-repartition"]' in text
    assert text.count("subgraph") == 2
