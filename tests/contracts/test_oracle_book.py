"""Programs of the oracle have every stateful operator before every other one."""

from __future__ import annotations

import pytest

from oracle.book import NEVER, PAIRS, STATEFUL, drawn_book, pairs_of
from oracle.programs import Program

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
