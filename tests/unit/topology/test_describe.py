"""`describe()` against what Kafka Streams prints; where, by which line, nodes are computed."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from everflow import StreamsBuilder, TimeWindows, Topology, agg, serdes
from everflow.dsl.streams import KStream
from everflow.topology.describe import as_json, as_mermaid, execution_paths, physical_json
from everflow.topology.graph import StatefulNode
from everflow.topology.plan import (
    ARROW,
    CATALYST,
    PYTHON,
    ColumnsOp,
    NodeOp,
    PhysicalPlan,
    SinkOp,
    StatefulOp,
    TimeOp,
    computed_by,
    emitting_every_update,
    plan,
)
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
    found = execution_paths(plan(topology, cut(topology).index_of, "app"))
    return [(path.kind, path.why.replace(__file__, "file")) for path in found]


def test_each_road_is_named_with_its_reason() -> None:
    found = listed(program())
    assert ("Arrow", ">(value.a, 0)") in found
    assert any(road == "Catalyst" and f"{MATCHES}; rlike has no " in why for road, why in found)
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
        (path.node, path.kind, path.why) for path in execution_paths(planned)
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
    (catalyst,) = (why for road, why in found if road == "Catalyst")
    assert "concat_ws('-', 'to', value); concat_ws has no " in catalyst
    assert any(road == "Python" and why.endswith("for each record's topic") for road, why in found)


def test_columns_that_call_functions() -> None:
    doubled = F.udf(lambda value: value * 2, StringType(), useArrow=True)
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT).map_values(doubled("value")).to("out")
    (why,) = (why for road, why in listed(builder.build()) if road == "Python")
    assert why.startswith("calls functions for columns")


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
    assert f"; {why} has no " in said


# Where the planner puts each node: Columns together, merges, shared stores (design D2, D5).


def planned(builder: StreamsBuilder | Topology) -> PhysicalPlan:
    topology = builder if isinstance(builder, Topology) else builder.build()
    return plan(topology, cut(topology).index_of, "app")


def columns(*found: ColumnsOp) -> list[tuple[str, int]]:
    """By what each is computed, and of how many projections."""
    return [(computed_by(op.projections[0]), len(op.projections)) for op in found]


def test_operators_stand_behind_those_whose_records_they_read() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    kept = stream.filter(F.col("value") != "").map_values(lambda v: v + "!", returns="string")
    kept.map_values(F.reverse("value")).to("out")
    found = planned(builder)
    assert [type(op) for op in found.ops] == [ColumnsOp, NodeOp, ColumnsOp, SinkOp]
    assert columns(*found.columns) == [(ARROW, 1), (CATALYST, 1)]
    assert [op.inputs for op in found.ops] == [
        (found.sources[0].slot,),
        found.columns[0].outputs,
        (found.ops[1].output,),  # type: ignore[union-attr]
        found.columns[1].outputs,
    ]


def test_columns_that_the_same_means_compute_of_the_same_records_are_one_operator() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    up = stream.filter(F.col("value") != "")
    up.map_values(F.upper("value")).to("up")
    stream.map_values(F.lower("value")).to("low")
    stream.map_values(F.reverse("value")).map_values(F.reverse("value")).to("same")
    up.map_values(F.reverse("value")).to("back")
    found = planned(builder)
    assert columns(*found.columns) == [(ARROW, 3), (CATALYST, 2), (CATALYST, 1)]
    first, _, last = found.columns
    assert len(first.outputs) == 3, "one is read by other Columns, too"
    assert last.input in first.outputs
    assert len(found.columns[1].outputs) == 1, "what stands between the two is nobody's"


def test_columns_that_call_functions_stand_alone() -> None:
    called = F.udf(lambda value: value, StringType(), useArrow=True)
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT).filter(F.col("value") != "")
    stream.map_values(called("value")).map_values(called("value")).to("out")
    assert columns(*planned(builder).columns) == [(ARROW, 1), (PYTHON, 1), (PYTHON, 1)]


def test_a_merge_is_dissolved_and_what_is_behind_exists_once_per_path() -> None:
    builder = StreamsBuilder()
    streams = [builder.stream(name, key=TEXT, value=TEXT) for name in ("a", "b")]
    merged = streams[0].merge(streams[1])
    merged.map_values(F.upper("value")).to("up")
    merged.for_each(lambda k, v: None)
    found = planned(builder)
    assert {op.input for op in found.columns} == {source.slot for source in found.sources}
    (function,) = [op for op in found.ops if isinstance(op, NodeOp)]
    assert len(function.inputs) == 2
    assert all(source.merged for source in found.sources)


def test_operators_on_one_store_may_have_columns_between_them() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    early = stream.to_table(store="early")
    early.to_stream().map_values(F.upper("value")).to_table(store="late")
    topology = builder.build()
    stores = {n.stores[0].name: n.stores for n in topology.nodes if isinstance(n, StatefulNode)}
    shared = tuple(
        replace(n, stores=stores["early"]) if isinstance(n, StatefulNode) else n
        for n in topology.nodes
    )
    found = plan(replace(topology, nodes=shared), cut(topology).index_of, "app")
    assert [type(op) for op in found.ops] == [StatefulOp, ColumnsOp, StatefulOp]
    assert found.stores() == {0: stores["early"]}


def test_columns_that_say_times_come_before_the_merge() -> None:
    builder = StreamsBuilder()
    timed = builder.stream("in", key=TEXT, value=serdes.long(), timestamp=F.col("value"))
    timed.filter(F.col("value") > 0).to("out")
    found = planned(builder)
    assert [type(op) for op in found.times] == [ColumnsOp, TimeOp]
    assert [type(op) for op in found.ops] == [ColumnsOp, SinkOp]
    assert [op.input for op in found.columns] == [found.sources[0].slot, found.times[1].output]  # type: ignore[union-attr]


def test_headers_are_read_only_where_someone_needs_them() -> None:
    def of(describe: Callable[[KStream], None]) -> bool:
        builder = StreamsBuilder()
        describe(builder.stream("in", key=TEXT, value=TEXT))
        return planned(builder).headers

    def counted(s: KStream) -> None:
        s.group_by(F.col("value"), name="g").count(store="c").to_stream().for_each(print)

    assert of(lambda s: s.to("out")) is True
    assert of(lambda s: s.repartition(name="r").to("out")) is True
    assert of(counted) is False, "functions do not get them"
    assert of(lambda s: counted(s.filter(F.size("headers") > 0))) is True
    assert of(lambda s: s.group_by_key().count(store="c").to_stream().to("out")) is True


def test_names_of_internal_topics_carry_the_application() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT).repartition(name="r").to("out")
    found = planned(builder)
    assert [source.topic for source in found.sources] == ["in", "app-r-repartition"]
    sinks = [op for op in found.ops if isinstance(op, SinkOp)]
    assert [(op.topic, op.drop_null_keys) for op in sinks] == [
        ("app-r-repartition", True),
        ("out", False),
    ]


def test_a_topology_without_consumers_has_a_plan() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT)
    found = planned(builder)
    assert (found.times, found.ops, len(found.sources)) == ((), (), 1)


def test_emitting_every_update_changes_every_operator() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
    grouped.count(store="a")
    grouped.windowed_by(TimeWindows.of_size("1 minute")).aggregate(store="b", n=agg.count())
    grouped.reduce(max, store="c")
    topology = builder.build()
    operators = [
        n.operator for n in emitting_every_update(topology).nodes if isinstance(n, StatefulNode)
    ]
    assert [op for op in operators if getattr(op, "emit_every_update", False)] == operators
    assert not any(
        getattr(n.operator, "emit_every_update", False)
        for n in topology.nodes
        if isinstance(n, StatefulNode)
    )
