"""What the demo shows at its end: two tables, the verdict, and the JSON file. Values in, renderables out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from everflow.demo.batch import Figures

SHOWN = 10
DIFFERENCES_SHOWN = 20


@dataclass(frozen=True)
class Outcome:
    """One run of the demo; ``elapsed_s`` from the start of the instance until all results were committed."""

    records_in: int
    guarantee: str
    elapsed_s: float
    streamed: Figures
    differences: Sequence[str]

    @property
    def matches_batch(self) -> bool:
        """Whether every figure equals that of the plain batch."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` writes."""
        return {
            "records_in": self.records_in,
            "guarantee": self.guarantee,
            "matches_batch": self.matches_batch,
            "elapsed_s": round(self.elapsed_s, 3),
            "carriers": {code: delay._asdict() for code, delay in sorted(self.streamed.carriers.items())},
            "routes": dict(sorted(self.streamed.routes.items())),
        }


def worst_carriers(streamed: Figures) -> Table:
    """The ten carriers with the highest mean departure delay."""
    table = Table(title=f"The {SHOWN} worst carriers", title_justify="left")
    table.add_column("carrier")
    table.add_column("flights", justify="right")
    table.add_column("mean delay at departure, min", justify="right")
    ranked = sorted(streamed.carriers.items(), key=lambda item: (-item[1].mean_dep_delay, item[0]))
    for code, delay in ranked[:SHOWN]:
        table.add_row(code, f"{delay.flights:,}", f"{delay.mean_dep_delay:.2f}")
    return table


def busiest_routes(streamed: Figures) -> Table:
    """The ten routes with the most flights."""
    table = Table(title=f"The {SHOWN} busiest routes", title_justify="left")
    table.add_column("route")
    table.add_column("flights", justify="right")
    for route, flights in sorted(streamed.routes.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]:
        table.add_row(route, f"{flights:,}")
    return table


def verdict(outcome: Outcome) -> str:
    """``matches batch: yes``, or ``no`` followed by the differences (at most `DIFFERENCES_SHOWN` of them)."""
    figures = outcome.streamed
    compared = f"{len(figures.carriers)} carriers, {len(figures.carrier_days):,} carrier-days, {len(figures.routes)} routes"
    if outcome.matches_batch:
        return f"compared {compared}\nmatches batch: yes"
    lines = [f"  {line}" for line in outcome.differences[:DIFFERENCES_SHOWN]]
    hidden = len(outcome.differences) - len(lines)
    if hidden:
        lines.append(f"  and {hidden:,} more differences")
    return "\n".join([f"compared {compared}", "matches batch: no", *lines])
