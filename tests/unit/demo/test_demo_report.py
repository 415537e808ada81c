"""The verdict and the JSON document of a run."""

from __future__ import annotations

import io

from rich.console import Console

from everflow.demo.batch import CarrierDay, Delay, Figures
from everflow.demo.report import DIFFERENCES_SHOWN, Outcome, busiest_routes, verdict, worst_carriers

FIGURES = Figures(
    carriers={"UA": Delay(2, 3.0), "F9": Delay(1, 20.25)},
    carrier_days={CarrierDay("UA", 0): Delay(2, 3.0)},
    routes={"EWR-ORD": 2, "JFK-LAX": 1_000},
)


def outcome(*differences: str) -> Outcome:
    return Outcome(3, "exactly_once_v2", 1.23456, FIGURES, differences)


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


def test_tables_rank_by_delay_and_by_flights() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(worst_carriers(FIGURES), busiest_routes(FIGURES))
    text = console.export_text()
    assert text.index("F9") < text.index("UA")
    assert text.index("JFK-LAX") < text.index("EWR-ORD")
    assert "20.25" in text
    assert "1,000" in text
