"""Shows the enrichment's end: three tables, the verdict, the JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from everflow_demo.batch import MeanDelay
from everflow_demo.enrichment.batch import Enriched
from everflow_demo.report import SHOWN, verdict_lines


@dataclass(frozen=True, kw_only=True)
class EnrichmentOutcome:
    """One run; ``elapsed_s`` from the start of the instance until all results were committed."""

    records_in: Mapping[str, int]
    guarantee: str
    elapsed_s: float
    streamed: Enriched
    differences: Sequence[str]

    @property
    def matches_batch(self) -> bool:
        """Whether every figure equals that of the plain batch."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` writes."""
        return {
            "records_in": dict(self.records_in),
            "guarantee": self.guarantee,
            "matches_batch": self.matches_batch,
            "elapsed_s": round(self.elapsed_s, 3),
            **{
                name: {key: delay._asdict() for key, delay in sorted(found.items())}
                for name, found in vars(self.streamed).items()
            },
        }


def show(outcome: EnrichmentOutcome, console: Console) -> None:
    """Everything, the verdict last."""
    found = outcome.streamed
    for what, delays in (
        ("airline", found.airlines),
        ("airport and visibility in miles", found.visibilities),
        ("manufacturer of the plane", found.manufacturers),
    ):
        console.print(_table(what, delays))
    read = ", ".join(f"{n:,} {topic}" for topic, n in outcome.records_in.items())
    lines = [
        f"{read} in {outcome.elapsed_s:.1f} s, {outcome.guarantee}, start and stop included",
        *verdict(outcome),
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def verdict(outcome: EnrichmentOutcome) -> list[str]:
    """As `everflow_demo.report.verdict`."""
    found = outcome.streamed
    compared = (
        f"{len(found.airlines)} airlines, {len(found.visibilities)} airports by visibility, "
        f"{len(found.manufacturers)} manufacturers"
    )
    return verdict_lines(compared, outcome.differences)


def _table(what: str, delays: Mapping[str, MeanDelay]) -> Table:
    """The ten groups with the highest mean delay."""
    table = Table(title=f"The {SHOWN} longest delays, by {what}", title_justify="left")
    table.add_column(what)
    table.add_column("flights", justify="right")
    table.add_column("mean delay at departure, min", justify="right")
    ranked = sorted(delays.items(), key=lambda item: (-item[1].mean_dep_delay, item[0]))
    for key, delay in ranked[:SHOWN]:
        table.add_row(key, f"{delay.flights:,}", f"{delay.mean_dep_delay:.2f}")
    return table
