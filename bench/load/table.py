"""The table of `bench load`: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.load.plan import AT
from bench.results import Row, number_text
from bench.systems import EVERFLOW, KAFKA_STREAMS

COLUMNS: Mapping[str, str] = {
    "latency_p50": "p50 ms",
    "latency_p99": "p99 ms",
    "processor": "cores",
    "broker_processor": "broker's cores",
    "memory": "MiB",
    "start": "start s",
}
"""Metric -> what its column is called."""


def table(
    rows: Sequence[Row], system: str = EVERFLOW, reference: str = KAFKA_STREAMS
) -> list[tuple[str, ...]]:
    """A head, and a line for each case and system: each figure, with its ratio to the reference
    where it is another system's; last, in what `system` is worse. A `>` stands before the latency
    of a system that fell behind."""
    cases: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows:
        if AT in row.case:
            cases.setdefault(row.case, {}).setdefault(row.system, {})[row.metric] = row
    worse = f"{system} worse in"
    lines = [("case", "records/s", "system", *COLUMNS.values(), worse)]
    for case, systems in cases.items():
        base = systems.get(reference, {})
        for name, found in systems.items():
            ratios = {} if name == reference else ratios_of(found, base)
            cells = [_cell(found.get(metric), ratios.get(metric)) for metric in COLUMNS]
            lost = [f"{COLUMNS[metric]} {by:.2f}" for metric, by in ratios.items() if by > 1]
            sent = found.get("sent")
            lines.append(
                (
                    case,
                    "" if sent is None else f"{sent.value:,.0f}",
                    name,
                    *cells,
                    ", ".join(lost) if name == system else "",
                )
            )
    return lines


def ratios_of(found: Mapping[str, Row], base: Mapping[str, Row]) -> dict[str, float]:
    """Of each metric with a column that both have: below 1 is better, of all of them."""
    return {
        metric: found[metric].value / base[metric].value
        for metric in COLUMNS
        if metric in found and metric in base and base[metric].value > 0
    }


def _cell(row: Row | None, ratio: float | None) -> str:
    if row is None:
        return ""
    bound = "> " if row.metric.startswith("latency") and FELL_BEHIND in row.note else ""
    return f"{bound}{number_text(row.value)}" + ("" if ratio is None else f" ({ratio:.2f})")


FELL_BEHIND = "fell behind"
"""In a row's note: its latencies are lower bounds."""
