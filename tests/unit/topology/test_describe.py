"""`describe()` against what Kafka Streams prints; where, by which line, nodes are computed."""

import json
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from everflow import StreamsBuilder, agg, serdes
from everflow.topology.describe import as_json, as_mermaid, physical_json, roads
from everflow.topology.plan import plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut

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


TEXT = serdes.string()
MATCHES = "rlike(value.s, 'x+')"


def shout(value: str) -> str:
    return value.upper()


class Digits:
    type = "int"

    def decode(self, data: bytes) -> int:
        return int(data)

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def __repr__(self) -> str:
        return "Digits()"


DIGITS: Any = Digits()


def program() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=serdes.json("a bigint, s string"))
    kept = stream.filter(F.col("value.a") > 0).filter(F.col("value.s").rlike("x+"))
    kept.map_values(lambda value: value["s"], returns="string").map_values(
        shout, returns="string"
    ).to("loud")
    kept.group_by_key().aggregate(n=agg.sum("value.a"), store="sums")
    kept.group_by_key().aggregate(
        initializer=lambda: 0, aggregator=lambda key, value, n: n + 1, value=DIGITS, store="own"
    )
    return builder.build()


def listed(topology: Topology) -> list[tuple[str, str]]:
    found = roads(plan(topology, cut(topology).index_of, "app"))
    return [(road.road, road.why.replace(__file__, "file")) for road in found]


def test_each_road_is_named_with_its_reason() -> None:
    found = listed(program())
    assert ("Arrow", ">(value.a, 0)") in found
    assert ("Catalyst", f"{MATCHES}; rlike has no Arrow expression") in found
    line = shout.__code__.co_firstlineno
    assert ("Python", f"calls shout (file:{line}) for each record") in found
    assert ("Arrow", "store sums") in found
    (own,) = (why for road, why in found if why.startswith("store own"))
    assert own.count("file:") == 2
    assert ("Python", own) in found


def test_lines_of_the_program_stand_behind_the_nodes() -> None:
    text = program().describe_physical()
    lines = [line for line in text.splitlines() if "KSTREAM-FILTER" in line]
    assert [line.split()[0] for line in lines] == ["Arrow", "Catalyst"]
    assert all(f"({__file__}:" in line for line in lines)
    assert text.startswith("computed in Arrow ")


def test_nodes_stand_under_the_number_that_their_tasks_have() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT).map_values(shout, returns="string")
    moved = stream.select_key(shout, returns="string").group_by_key(name="by-value")
    moved.aggregate(n=agg.count(), store="sums")
    topology = builder.build()
    heads, found = [], {}
    for line in topology.describe_physical().splitlines()[1:]:
        if line.startswith("  Sub-topology "):
            heads.append(line.strip())
        else:
            found[line.split()[1]] = len(heads) - 1
    assert heads == [f"Sub-topology {n} (tasks {n}_0, {n}_1, ...)" for n in (0, 1)]
    assert len(found) > 4
    assert found == {name: cut(topology).index_of[name] for name in found}


def test_programs_get_the_same_physical_json() -> None:
    topology = program()
    index_of = cut(topology).index_of
    planned = plan(topology, index_of, "app")
    told = json.loads(physical_json(planned, index_of))
    assert [(one["node"], one["road"], one["why"]) for one in told] == [
        (road.node, road.road, road.why) for road in roads(planned)
    ]
    assert {one["sub_topology"] for one in told} == {0}
    assert any(one["where"] and one["where"].startswith(__file__) for one in told)


def test_a_serde_of_the_user_is_called_for_each_record() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=DIGITS).to("out")
    assert [road for road, _ in listed(builder.build())] == ["Python", "Python"]
    assert listed(builder.build())[0][1] == "reads by Digits(), record by record"


def test_behind_a_merge_a_node_is_listed_once() -> None:
    builder = StreamsBuilder()
    one, two = (builder.stream(name, key=TEXT, value=TEXT) for name in ("a", "b"))
    one.merge(two).map_values(F.reverse("value")).to("out")
    assert [road for road, _ in listed(builder.build())].count("Catalyst") == 1


def test_topics_by_column_and_by_function() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.to(F.concat(F.lit("to-"), "value"))
    stream.to(F.concat_ws("-", F.lit("to"), "value"))
    stream.to(lambda key, value: value)
    found = listed(builder.build())
    assert ("Arrow", "the topic is concat('to-', value)") in found
    assert (
        "Catalyst",
        "the topic is concat_ws('-', 'to', value); concat_ws has no Arrow expression",
    ) in found
    assert any(road == "Python" and why.endswith("for each record's topic") for road, why in found)


def test_columns_that_call_functions() -> None:
    doubled = F.udf(lambda value: value * 2, StringType(), useArrow=True)
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT).map_values(doubled("value")).to("out")
    (why,) = (why for road, why in listed(builder.build()) if road == "Python")
    assert why.startswith("calls functions for columns of records: ")


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("try_cast(value.a as int)", "try_cast"),
        ("try_add(value.a, 1)", "try_add"),
        ("split(value.s, '[,;]')", "split by a regular expression"),
        ("value.s collate unicode_ci = 'x'", "collate"),
        ("value.a % 2", "remainder"),
        ("date_format(timestamp_millis(timestamp), 'yyyy')", "date_format"),
        ("substring(value.s, 2)", "substring"),
        ("cast(value.s as int)", "cast of string as int32"),
    ],
    ids=str,
)
def test_what_has_no_arrow_expression_is_named(column: str, why: str) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=serdes.json("a bigint, s string"))
    stream.map_values(F.struct(F.expr(column).alias("made"))).to("out")
    (said,) = (said for road, said in listed(builder.build()) if road == "Catalyst")
    assert said.endswith(f"; {why} has no Arrow expression")
