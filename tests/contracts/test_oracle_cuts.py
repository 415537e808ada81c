"""What of a program's results the oracle knows where repartition topics meet."""

from __future__ import annotations

import pytest

from oracle.cuts import left_out, taken_in_turn
from oracle.programs import Node, Program

STREAM = {"op": "stream", "id": "s", "topic": "in0"}
TABLE = {"op": "table", "id": "t", "topic": "in1", "store": "t"}


def grouped(name: str) -> Node:
    return {"op": "group_count", "id": name, "in": "t", "store": name}


@pytest.mark.parametrize(
    ("nodes", "of_keys", "unknown"),
    [
        # One topic, one order.
        ([TABLE, grouped("g"), {"op": "to_stream", "id": "o", "in": "g"}], "", ""),
        # A change takes from one group and adds to another: two records of a time in each topic.
        (
            [
                *(TABLE, grouped("g"), grouped("h")),
                {"op": "to_stream", "id": "o", "in": "g"},
                {"op": "to_stream", "id": "p", "in": "h"},
                {"op": "merge", "id": "m", "left": "o", "right": "p"},
                {"op": "to_table", "id": "u", "in": "m", "store": "u"},
            ],
            "",
            "m u",
        ),
        # A join of tables takes each key's in order; a processor takes all keys'.
        (
            [
                *(TABLE, grouped("g"), grouped("h")),
                {"op": "join", "id": "j", "left": "g", "right": "h", "store": "j"},
                {"op": "to_stream", "id": "o", "in": "j"},
                {"op": "process", "id": "p", "in": "o", "store": "p"},
            ],
            "j o",
            "p",
        ),
        # A stream behind a new key, and the table that is made of it: one record, one result.
        (
            [
                STREAM,
                {"op": "select_key", "id": "k", "in": "s"},
                {"op": "to_table", "id": "u", "in": "k", "store": "u"},
                {"op": "join", "id": "j", "left": "k", "right": "u", "kind": "left"},
            ],
            "",
            "",
        ),
        # The same of a processor that may give several.
        (
            [
                STREAM,
                {"op": "process", "id": "k", "in": "s", "does": "split"},
                {"op": "child", "id": "c", "in": "k", "which": "left"},
                {"op": "to_table", "id": "u", "in": "c", "store": "u"},
                {"op": "join", "id": "j", "left": "c", "right": "u", "kind": "left"},
            ],
            "",
            "j",
        ),
    ],
)
def test_only_what_a_broker_says_is_compared(nodes: list[Node], of_keys: str, unknown: str) -> None:
    assert taken_in_turn(Program(nodes=nodes)) == (set(of_keys.split()), set(unknown.split()))


def test_stores_behind_what_is_not_known_are_left_out() -> None:
    sink = {"op": "sink", "id": "o", "in": "u", "topic": "out0"}
    nodes = [STREAM, {"op": "to_table", "id": "u", "in": "s", "store": "u"}, sink]
    assert left_out(Program(nodes=nodes), {"u", "o"}) == ({"out0"}, {"u"}, {"u"})
    assert left_out(Program(nodes=nodes), set()) == (set(), set(), set())
