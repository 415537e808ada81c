"""Shows the demo's end: two tables, the verdict, the JSON file. Values in, renderables out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from everflow.records import TaskId
from everflow_demo.batch import Figures


@dataclass(frozen=True, kw_only=True)
class Moves:
    """What was seen. Times in s; pauses: the longest time between two committed batches of a task
    while records waited.

    Attributes:
        rebalances: completed ones, from the second instance's start to its end.
        join_s: from the start of its process until it had its share.
        leave_s: from being told to stop until the process had ended and the first one ran
        everything.
        before: pauses while the first instance was alone; meanwhile: from the second one's start to
        its end.
        moved: the tasks that ran on both.
    """

    instances: int
    rebalances: int
    join_s: float
    leave_s: float
    before: Mapping[TaskId, float]
    meanwhile: Mapping[TaskId, float]
    moved: frozenset[TaskId]

    def longest(self, *, moved: bool) -> float:
        """The longest pause, of the tasks that moved or of those that stayed; 0 if there are
        none."""
        return max(
            (pause for task, pause in self.meanwhile.items() if (task in self.moved) == moved),
            default=0.0,
        )


SHOWN = 10
DIFFERENCES_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run of the demo; ``elapsed_s`` from the start of the instance until all results were
    committed. ``moves`` only where another one came and went meanwhile."""

    records_in: int
    guarantee: str
    elapsed_s: float
    streamed: Figures
    differences: Sequence[str]
    moves: Moves | None = None

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
            "carriers": {
                code: delay._asdict() for code, delay in sorted(self.streamed.carriers.items())
            },
            "routes": dict(sorted(self.streamed.routes.items())),
            **({} if self.moves is None else _moves_json(self.moves)),
        }


def show(outcome: Outcome, console: Console) -> None:
    """Everything, the verdict last."""
    console.print(worst_carriers(outcome.streamed), busiest_routes(outcome.streamed))
    if outcome.moves is not None:
        console.print(pauses(outcome.moves))
        console.print(moves_text(outcome.moves), markup=False, highlight=False, soft_wrap=True)
    line = (
        f"{outcome.records_in:,} flights in {outcome.elapsed_s:.1f} s, {outcome.guarantee}, "
        f"start and stop included"
    )
    console.print(f"{line}\n{verdict(outcome)}", markup=False, highlight=False, soft_wrap=True)


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
    for route, flights in sorted(streamed.routes.items(), key=lambda item: (-item[1], item[0]))[
        :SHOWN
    ]:
        table.add_row(route, f"{flights:,}")
    return table


def pauses(moves: Moves) -> Table:
    """Each task's longest time between two committed batches while records waited, before and while
    instances came and went."""
    table = Table(title="The longest pause of each task, s", title_justify="left")
    table.add_column("task")
    table.add_column("one instance", justify="right")
    table.add_column("while the second came and went", justify="right")
    table.add_column("")
    for task, pause in sorted(moves.meanwhile.items()):
        went = "moved there and back" if task in moves.moved else "stayed"
        table.add_row(str(task), f"{moves.before.get(task, 0.0):.2f}", f"{pause:.2f}", went)
    return table


def moves_text(moves: Moves) -> str:
    """What came and went, in two lines."""
    return (
        f"the second instance had its share of the tasks {moves.join_s:.1f} s after its start, and "
        f"was gone {moves.leave_s:.1f} s "
        f"after it was told to stop ({moves.rebalances} rebalances)\n"
        f"longest time between two committed batches: "
        f"{max(moves.before.values(), default=0.0):.2f} s with one instance; then "
        f"{moves.longest(moved=False):.2f} s of the tasks that stayed, "
        f"{moves.longest(moved=True):.2f} s of those that moved"
    )


def _moves_json(moves: Moves) -> dict[str, Any]:
    return {
        "instances": moves.instances,
        "rebalances": moves.rebalances,
        "join_s": round(moves.join_s, 3),
        "leave_s": round(moves.leave_s, 3),
        "longest_pause_s": round(moves.longest(moved=False), 3),
        "longest_pause_moved_s": round(moves.longest(moved=True), 3),
        "longest_pause_alone_s": round(max(moves.before.values(), default=0.0), 3),
        "tasks_moved": sorted(str(task) for task in moves.moved),
    }


def verdict(outcome: Outcome) -> str:
    """``matches batch: yes``, or ``no`` followed by the differences (at most `DIFFERENCES_SHOWN` of
    them)."""
    figures = outcome.streamed
    compared = (
        f"{len(figures.carriers)} carriers, {len(figures.carrier_days):,} carrier-days, "
        f"{len(figures.routes)} routes"
    )
    return "\n".join(verdict_lines(compared, outcome.differences))


def verdict_lines(compared: str, differences: Sequence[str]) -> list[str]:
    """What was compared, and whether it is equal."""
    if not differences:
        return [f"compared {compared}", "matches batch: yes"]
    lines = [f"  {line}" for line in differences[:DIFFERENCES_SHOWN]]
    hidden = len(differences) - len(lines)
    if hidden:
        lines.append(f"  and {hidden:,} more differences")
    return [f"compared {compared}", "matches batch: no", *lines]
