"""The rows every bench writes, and how they are printed."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import everflow
from bench.load.machine import loop_ms


@dataclass(frozen=True)
class Row:
    """One figure: `value` is the median of `runs`, the values of the single runs in the order they
    ran. A ratio of two systems is that of their medians, and `runs` has those of the single rounds.
    `note` says what the value alone would hide, e.g. that it is a lower bound; it is not written
    where it is empty."""

    bench: str
    case: str
    system: str
    guarantee: str
    metric: str
    value: float
    unit: str
    runs: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class Measurement:
    """One value of one run; measurements that differ in the value alone become one row."""

    bench: str
    case: str
    system: str
    guarantee: str
    metric: str
    unit: str
    value: float
    note: str = ""


def summarise(measurements: Iterable[Measurement]) -> list[Row]:
    """Group the runs of each figure, in order of first appearance, and take the median."""
    grouped: dict[tuple[str, str, str, str, str, str], list[float]] = {}
    notes: dict[tuple[str, str, str, str, str, str], list[str]] = {}
    for m in measurements:
        key = (m.bench, m.case, m.system, m.guarantee, m.metric, m.unit)
        grouped.setdefault(key, []).append(round(m.value, 3))
        if m.note and m.note not in notes.setdefault(key, []):
            notes[key].append(m.note)
    rows: list[Row] = []
    for key, runs in grouped.items():
        bench, case, system, guarantee, metric, unit = key
        value = round(statistics.median(runs), 3)
        rows.append(
            Row(
                bench,
                case,
                system,
                guarantee,
                metric,
                value,
                unit,
                tuple(runs),
                "; ".join(notes.get(key, ())),
            )
        )
    return rows


@dataclass(frozen=True)
class Results:
    """What a run wrote with `--json`: its rows, the command that makes them, the date (ISO), the
    machine (`loop_ms`: `bench.load.machine`) and the versions of all that ran."""

    command: str
    date: str
    machine: Mapping[str, str | float]
    versions: Mapping[str, str]
    rows: Sequence[Row]


def results(rows: Sequence[Row], command: str, date: str) -> Results:
    """The results of a run on this machine."""
    machine: dict[str, str | float] = {
        "cores": os.cpu_count() or 0,
        "architecture": platform.machine(),
        "loop_ms": round(loop_ms(), 1),
    }
    return Results(command, date, machine, versions(), rows)


def versions() -> dict[str, str]:
    """Of everflow, Python and Spark, and of the jars of broker, Kafka Streams and Flink."""
    pinned = (Path(everflow.__file__).parent / "ivy" / "ivy.xml").read_text()
    jars = {"kafka": "kafka_2.13", "kafka-streams": "kafka-streams", "flink": "flink-clients"}
    found = {
        name: match.group(1)
        for name, jar in jars.items()
        if (match := re.search(rf'name="{re.escape(jar)}" rev="([^"]+)"', pinned))
    }
    return {
        "everflow": everflow.__version__,
        "python": platform.python_version(),
        "spark": metadata.version("pyspark"),
        **found,
    }


def write_json(done: Results, path: Path) -> None:
    """Write them as one JSON object; rows without a note have none."""
    written = {
        **asdict(done),
        "rows": [
            {name: value for name, value in asdict(row).items() if name != "note" or value}
            for row in done.rows
        ],
    }
    path.write_text(json.dumps(written, indent=1) + "\n")


def read_json(path: Path) -> Results:
    """The inverse of `write_json`; raises `ValueError` where the file holds anything else."""
    try:
        found = json.loads(path.read_text())
        rows = [Row(**{**row, "runs": tuple(row["runs"])}) for row in found.pop("rows")]
        return Results(**found, rows=rows)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: not the JSON of a bench: {error}") from error


def print_rows(rows: Sequence[Row], system: str, reference: str) -> None:
    """Print every row, then the ratio of `system` to `reference` wherever both were measured."""
    cells = [("case", "guarantee", "metric", "system", "median", "unit", "runs")]
    for row in rows:
        runs = " ".join(number_text(value) for value in row.runs)
        cells.append(
            (
                row.case,
                row.guarantee,
                row.metric,
                row.system,
                number_text(row.value),
                row.unit,
                runs,
            )
        )
    print_table(cells)
    for row in rows:
        if row.note:
            print(f"{row.system}, {row.metric}: {row.note}", flush=True)
    values = {(row.case, row.guarantee, row.metric, row.system): row.value for row in rows}
    ratios = [("case", "guarantee", "metric", f"{system} / {reference}")]
    for (case, guarantee, metric, measured), value in values.items():
        other = values.get((case, guarantee, metric, reference))
        if measured == system and other:
            ratios.append((case, guarantee, metric, f"{value / other:.2f}"))
    if len(ratios) > 1:
        print()
        print_table(ratios)


def number_text(value: float) -> str:
    """Three digits at least where it is small, such as seconds without an output."""
    return (
        f"{value:,.0f}"
        if abs(value) >= 1000
        else f"{value:,.1f}"
        if abs(value) >= 10
        else f"{value:,.2f}"
    )


def print_table(cells: Sequence[tuple[str, ...]]) -> None:
    """Lines of cells, in columns."""
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(),
            flush=True,
        )


def markdown(cells: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of a table whose first line is its head."""
    head, *lines = [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in cells]
    return [head, f"|{' --- |' * len(cells[0])}", *lines]
