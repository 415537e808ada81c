"""What ``everflow simulate`` does with its options: simulates a scaling step, and shows it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from everflow.errors import ConfigError
from everflow_simulation.forecast import Forecast, Round, Step, forecast

SHOWN_ROUNDS = 16
DEFAULT_RATE = 400_000.0
COLUMNS = ("after", "members", "assigned", "to release", "warm-ups", "to migrate")


@dataclass(frozen=True)
class Files:
    """Files to write, besides the terminal."""

    result: Path | None = None
    history: Path | None = None


def run(step: Step, files: Files, console: Console) -> Forecast:
    """Simulate and print. ConfigError for a step that cannot be or a file that cannot be
    written."""
    step.check()
    for path in (files.result, files.history):
        if path is not None:
            _require_writable(path)
    began = time.monotonic()
    with console.status("simulating"):
        found = forecast(step, files.history)
    show(found, console)
    console.print(f"simulated in {time.monotonic() - began:.1f} s, seed {step.seed}", style="dim")
    if files.result is not None:
        files.result.write_text(json.dumps(found.as_json(), indent=1) + "\n")
    return found


def _require_writable(path: Path) -> None:
    """ConfigError for a file that cannot be written, before the simulation runs."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{path}: that is a folder; give the name of a file.")
    if not folder.is_dir():
        raise ConfigError(f"{path}: the folder {folder} does not exist.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"{path}: this user may not write there.")


def show(found: Forecast, console: Console) -> None:
    """Print the rebalances as a table, and a summary."""
    step = found.step
    console.print(_headline(step), markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for one in _shown(found.rounds):
        cells = ("...",) * 6 if one is None else (_seconds(one.at_s), *map(str, _cells(one)))
        table.add_row(*cells)
    console.print(table)
    all_tasks = step.tasks + step.stateless_tasks
    tasks, longest = sorted(found.tasks_per_member.values()), _seconds(found.longest_pause_s)
    rows = {
        "moves": f"{found.moves} of {all_tasks} tasks migrate, {found.warmed} after a warm-up",
        "rebalances": str(found.rebalances),
        "paused": f"{found.task_seconds_paused:,.1f} task-seconds, at most {longest} for one task",
        "tasks": f"{tasks[0]} to {tasks[-1]} per instance afterwards, {len(tasks)} instances",
        "balanced": _balanced(found),
    }
    for label, text in rows.items():
        console.print(f"{label:<12} {text}", markup=False, highlight=False, soft_wrap=True)


def _headline(step: Step) -> str:
    named = (("to join", step.add), ("to stop", step.remove), ("to be killed", step.crash))
    changes = [f"{number} {what}" for what, number in named if number]
    kind = " static" if step.static else ""
    return (
        f"{step.members}{kind} instances, {step.tasks} stateful tasks of {step.state_records:,} "
        f"records, {step.stateless_tasks} stateless tasks: {', '.join(changes)}. "
        f"Restoring {step.restore_rate:,.0f} records/s per thread, warming up "
        f"{step.follow_rate:,.0f} records/s per instance, "
        f"at most {step.warmups} warm-ups."
    )


def _balanced(found: Forecast) -> str:
    if found.balanced_after_s is None:
        return (
            "not within a simulated day: warm-ups do not keep up with the input, or the "
            "acceptable lag is too small"
        )
    warming = found.step.state_records / found.step.follow_rate
    return (
        f"after {_seconds(found.balanced_after_s)} (warming one task up takes {_seconds(warming)})"
    )


def _cells(one: Round) -> tuple[int, int, int, int, int]:
    return (one.members, one.given, one.withheld, one.warmups, one.left)


def _shown(rounds: tuple[Round, ...]) -> list[Round | None]:
    """All, or the first and last ones around a gap."""
    if len(rounds) <= SHOWN_ROUNDS:
        return list(rounds)
    half = SHOWN_ROUNDS // 2
    return [*rounds[:half], None, *rounds[-half:]]


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Rates(NamedTuple):
    """Records a second."""

    restore: float
    follow: float


def rates(restore: float | None, follow: float | None, measured: Path | None) -> Rates:
    """As the options say, as measured, or the default."""
    if measured is None:
        restoring = DEFAULT_RATE if restore is None else restore
        return Rates(restoring, restoring if follow is None else follow)
    for option, rate in (("--restore-rate", restore), ("--follow-rate", follow)):
        if rate is not None:
            raise ConfigError(
                f"{option} and --measured both say how fast copies are made; give one of them."
            )
    return Rates(_measured(measured, "restore"), _measured(measured, "follow"))


def _measured(file: Path, metric: str) -> float:
    """The slowest of everflow's figures."""
    try:
        found: Any = json.loads(file.read_text())
        rates = [
            float(row["value"])
            for row in found["rows"]
            if row["system"] == "everflow" and row["metric"] == metric
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--measured {file}: not the JSON of `./run bench restore --json FILE`: {error}"
        ) from error
    if not rates:
        raise ConfigError(
            f"--measured {file}: it holds no {metric} rate of everflow. Run `./run bench restore "
            f"--json` again."
        )
    return min(rates)
