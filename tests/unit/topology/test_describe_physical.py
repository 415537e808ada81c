"""Where each node is computed, and by which line of the program."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from everflow import StreamsBuilder, agg, serdes
from everflow.topology.describe import physical_json, roads
from everflow.topology.plan import plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut

pytestmark = pytest.mark.spark
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
