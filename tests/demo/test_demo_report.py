"""The verdict and the JSON document of a run."""

from __future__ import annotations

import io

from rich.console import Console

from everflow.records import TaskId
from everflow_demo.batch import CarrierDay, Figures, MeanDelay
from everflow_demo.report import (
    DIFFERENCES_SHOWN,
    Moves,
    Outcome,
    busiest_routes,
    moves_text,
    pauses,
    show,
    verdict,
    worst_carriers,
)

FIGURES = Figures(
    carriers={"UA": MeanDelay(2, 3.0), "F9": MeanDelay(1, 20.25)},
    carrier_days={CarrierDay("UA", 0): MeanDelay(2, 3.0)},
    routes={"EWR-ORD": 2, "JFK-LAX": 1_000},
)
MOVES = Moves(
    instances=2,
    rebalances=5,
    join_s=12.34567,
    leave_s=1.5,
    before={TaskId(0, 0): 0.25, TaskId(0, 1): 0.5},
    meanwhile={TaskId(0, 0): 0.75, TaskId(0, 1): 1.25},
    moved=frozenset({TaskId(0, 1)}),
)


def outcome(*differences: str, moves: Moves | None = None) -> Outcome:
    return Outcome(
        records_in=3,
        guarantee="exactly_once_v2",
        elapsed_s=1.23456,
        streamed=FIGURES,
        differences=differences,
        moves=moves,
    )


def test_a_run_without_differences_matches() -> None:
    assert verdict(outcome()) == "compared 2 carriers, 1 carrier-days, 2 routes\nmatches batch: yes"


def test_differences_are_shown_and_the_rest_counted() -> None:
    lines = verdict(outcome(*(f"route {n}" for n in range(DIFFERENCES_SHOWN + 5)))).splitlines()
    assert lines[1] == "matches batch: no"
    assert lines[2] == "  route 0"
    assert lines[-1] == "  and 5 more differences"


def test_json_has_the_promised_keys() -> None:
    assert outcome("x").to_json() == {
        "records_in": 3,
        "guarantee": "exactly_once_v2",
        "matches_batch": False,
        "elapsed_s": 1.235,
        "carriers": {
            "F9": {"flights": 1, "mean_dep_delay": 20.25},
            "UA": {"flights": 2, "mean_dep_delay": 3.0},
        },
        "routes": {"EWR-ORD": 2, "JFK-LAX": 1_000},
    }


def test_json_of_two_instances_has_the_same_keys_and_more() -> None:
    alone, moved = outcome().to_json(), outcome(moves=MOVES).to_json()
    assert {key: moved[key] for key in alone} == alone
    assert {key: value for key, value in moved.items() if key not in alone} == {
        "instances": 2,
        "rebalances": 5,
        "join_s": 12.346,
        "leave_s": 1.5,
        "longest_pause_s": 0.75,
        "longest_pause_moved_s": 1.25,
        "longest_pause_alone_s": 0.5,
        "tasks_moved": ["0_1"],
    }


def test_pauses_tell_tasks_that_stayed_from_those_that_moved() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(pauses(MOVES))
    rows = [
        line.split("│")[1:5] for line in console.export_text().splitlines() if line.startswith("│")
    ]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["0_0", "0.25", "0.75", "stayed"],
        ["0_1", "0.50", "1.25", "moved there and back"],
    ]
    assert (
        "0.50 s with one instance; then 0.75 s of the tasks that stayed, 1.25 s of those that moved"
        in moves_text(MOVES)
    )


def test_prose_is_not_wrapped_at_the_width_that_a_pipe_is_taken_to_have() -> None:
    out = io.StringIO()
    show(outcome(moves=MOVES), Console(width=60, file=out))
    assert set(moves_text(MOVES).splitlines()) <= set(out.getvalue().splitlines())


def test_tables_rank_by_delay_and_by_flights() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(worst_carriers(FIGURES), busiest_routes(FIGURES))
    text = console.export_text()
    assert text.index("F9") < text.index("UA")
    assert text.index("JFK-LAX") < text.index("EWR-ORD")
    assert "20.25" in text
    assert "1,000" in text
