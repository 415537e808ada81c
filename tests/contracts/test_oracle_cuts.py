"""What of a program's results the oracle knows where repartition topics meet, and its book."""

import pytest

from oracle.book import NEVER, PAIRS, STATEFUL, drawn_book, pairs_of
from oracle.cuts import left_out, taken_in_turn, unsettled
from oracle.programs import Node, Program

STREAM: Node = {"op": "stream", "id": "s", "topic": "in0"}
FINAL = {"gap": 3, "grace": 30, "results": "final"}
TABLE: Node = {"op": "table", "id": "t", "topic": "in1", "store": "t"}


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
        # A table joined with one that is made of it: of windows that close, several entries of a
        # key may come at once.
        (
            [
                STREAM,
                {"op": "count", "id": "w", "in": "s", "store": "w", "windows": FINAL},
                {"op": "to_table", "id": "u", "in": "w", "store": "u"},
                {"op": "group_reduce", "id": "g", "in": "u", "store": "g"},
                {"op": "group_aggregate", "id": "h", "in": "g", "store": "h"},
                {"op": "join", "id": "j", "left": "g", "right": "h", "store": "j"},
            ],
            "",
            "j",
        ),
        (
            [
                *(
                    TABLE,
                    grouped("g"),
                    {"op": "group_aggregate", "id": "h", "in": "g", "store": "h"},
                ),
                {"op": "join", "id": "j", "left": "g", "right": "h", "store": "j"},
            ],
            "j",
            "",
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
        # Two entries of a group by one record, through a topic: the first one is answered, or not.
        (
            [
                *(STREAM, TABLE),
                {"op": "map_values", "id": "k", "in": "s"},
                {"op": "merge", "id": "m", "left": "k", "right": "s"},
                {"op": "to_table", "id": "u", "in": "m", "store": "u"},
                {"op": "group_aggregate", "id": "g", "in": "u", "store": "g"},
                {"op": "foreign", "id": "f", "left": "g", "right": "t", "store": "f"},
                {"op": "foreign", "id": "n", "left": "t", "right": "g", "store": "n"},
                {"op": "foreign", "id": "o", "left": "u", "right": "t", "store": "o"},
            ],
            "",
            "f",
        ),
    ],
)
def test_only_what_a_broker_says_is_compared(nodes: list[Node], of_keys: str, unknown: str) -> None:
    assert taken_in_turn(Program(nodes=nodes)) == (set(of_keys.split()), set(unknown.split()))


def rekeyed(given: str) -> list[Node]:
    return [
        {"op": "to_stream", "id": f"{given}s", "in": given},
        {"op": "select_key", "id": f"{given}k", "in": f"{given}s"},
        {"op": "to_table", "id": f"{given}t", "in": f"{given}k", "store": f"{given}t"},
    ]


def joined(left: str, right: str) -> Node:
    return {"op": "join", "id": "j", "left": left, "right": right, "kind": "left"}


OTHER: Node = {"op": "table", "id": "o", "topic": "in2", "store": "o"}
HELD: Node = {"op": "suppress", "id": "h", "in": "o", "store": "h", "wait": 50}
KEYED: Node = {"op": "select_key", "id": "k", "in": "h"}


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        # Of seed 1006: what was held back comes through a topic, beside the table's.
        ([TABLE, OTHER, *rekeyed("t"), HELD, KEYED, joined("k", "tt")], "j"),
        # It is let out at once, so that times rise.
        ([TABLE, OTHER, *rekeyed("t"), {**HELD, "wait": 0}, KEYED, joined("k", "tt")], ""),
        # Nothing is held back.
        ([TABLE, OTHER, *rekeyed("t"), *rekeyed("o")[:2], joined("ok", "tt")], ""),
        # It is held back behind both topics, whose records are taken as they were made.
        ([TABLE, OTHER, *rekeyed("t"), *rekeyed("o"), {**HELD, "in": "ot"}, joined("h", "tt")], ""),
        # There is only one topic.
        ([OTHER, HELD, KEYED, {"op": "count", "id": "c", "in": "k", "store": "c"}], ""),
        # Two topics, and old times in a third one that does not come here.
        (
            [
                *(TABLE, OTHER, *rekeyed("t"), *rekeyed("o"), joined("ok", "tt")),
                *(HELD, KEYED, {"op": "count", "id": "c", "in": "k", "store": "c"}),
            ],
            "",
        ),
    ],
)
def test_old_times_meet_others_in_the_order_of_batches(nodes: list[Node], found: str) -> None:
    assert unsettled(Program(nodes=nodes)) == set(found.split())


@pytest.mark.parametrize(
    ("more", "old"),
    [
        ({"results": "each", "size": 10}, False),
        ({"results": "final", "size": 10}, True),
        ({"results": "suppressed", "size": 10}, True),
        ({"results": "each", "gap": 3}, True),
    ],
)
def test_windows_that_close_and_sessions_give_old_times(more: Node, old: bool) -> None:
    windows = {"op": "count", "id": "w", "in": "s", "store": "w", "windows": more}
    nodes = [STREAM, windows, {"op": "select_key", "id": "k", "in": "w"}, TABLE, *rekeyed("t")]
    assert unsettled(Program(nodes=[*nodes, joined("k", "tt")])) == ({"j"} if old else set())


def test_stores_behind_what_is_not_known_are_left_out() -> None:
    sink = {"op": "sink", "id": "o", "in": "u", "topic": "out0"}
    nodes = [STREAM, {"op": "to_table", "id": "u", "in": "s", "store": "u"}, sink]
    assert left_out(Program(nodes=nodes), {"u", "o"}) == ({"out0"}, {"u"}, {"u"})
    assert left_out(Program(nodes=nodes), set()) == (set(), set(), set())


CASES = 20_000
SCRIPTS = 8


def test_a_pair_is_an_operator_before_one_that_has_results_of_it() -> None:
    program = Program(
        nodes=[
            {"op": "stream", "id": "a", "topic": "in0"},
            {"op": "table", "id": "b", "topic": "in1", "store": "b", "history": 5},
            {"op": "join", "id": "c", "left": "a", "right": "b", "kind": "left"},
            {"op": "filter", "id": "d", "in": "c", "without": "x"},
            {"op": "count", "id": "e", "in": "d", "store": "e"},
        ]
    )
    assert pairs_of(program) == {
        ("versioned table", "join with table"),
        ("versioned table", "aggregate"),
        ("join with table", "aggregate"),
    }


def test_a_book_says_what_was_never_drawn() -> None:
    book = drawn_book(2, seed=1)
    assert len(PAIRS) + len(NEVER) == len(STATEFUL) ** 2
    assert len(book.missing) > len(PAIRS) / 2
    first, second = book.missing[0]
    assert f"never: {first} before {second}" in book.said()


@pytest.mark.slow
def test_each_pair_of_stateful_operators_is_drawn() -> None:
    assert drawn_book(CASES // SCRIPTS, seed=103).missing == []
