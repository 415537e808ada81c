"""Measures a rolling bounce in lost task-seconds: static, drained, leaving, an eager group.

``.venv/bin/python -m bench.bounce --members 1000 --tasks 10000 --json FILE`` writes rows as benches
do.

Only some of the members are bounced, the rest would cost the same again: figures are for the whole
group, scaled. The eager protocol is not run (there is no such code here) but counted: with it every
task stops from the first JoinGroup of a rebalance to its end, in the two rebalances that leaving
and joining make; how long those take is measured in the cooperative run.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from everflow_simulation.forecast import LARGE, Step
from everflow_simulation.simulation import Simulation

MODES = ("static", "drained", "leaving")


@dataclass(frozen=True, kw_only=True)
class BouncePlan:
    """``down_s``: from the end of a process to the start of the next; ``bounced`` of the
    ``members`` are simulated."""

    members: int = 1_000
    tasks: int = 10_000
    bounced: int = 3
    down_s: float = 10.0
    state_records: int = 100_000
    threads: int = 2
    seed: int = 1


@dataclass(frozen=True)
class BounceRow:
    """For the whole group: task-seconds in which tasks ran nowhere, and new generations."""

    mode: str
    task_seconds_lost: float
    generations: int
    rebalance_s: float
    """Mean time from the first JoinGroup to the assignment; 0 where there was none."""


def rolling_bounce(
    plan: BouncePlan, say: Callable[[str], None] = lambda line: None
) -> list[BounceRow]:
    """One row for each of `MODES`, and ``eager``. Raises InvariantError like every simulation."""
    rows = []
    for mode in MODES:
        row = _bounce(plan, mode)
        rows.append(row)
        say(f"{mode}: {row.task_seconds_lost:,.0f} task-seconds, {row.generations} generations")
    eager = rows[-1].task_seconds_lost + 2 * plan.members * plan.tasks * rows[-1].rebalance_s
    rows.append(BounceRow("eager", eager, 2 * plan.members, rows[-1].rebalance_s))
    return rows


def _bounce(plan: BouncePlan, mode: str) -> BounceRow:
    step = Step(
        members=plan.members,
        add=1,
        tasks=plan.tasks,
        state_records=plan.state_records,
        input_rate=1.0,
        threads=plan.threads,
        warmups=max(2, plan.tasks // 20),
        static=mode == "static",
    )
    check_ms = 1_000.0 if plan.members > LARGE else 250.0
    with Simulation(step.settings(), plan.seed) as group:
        group.start_with_state(plan.members, plan.state_records, static=step.static)
        group.settle(600_000, check_ms)
        lost, rebalances, took = (
            group.count_pauses(),
            group.coordinator.rebalances,
            len(group.coordinator.durations_ms),
        )
        for number in range(1, plan.bounced + 1):
            name = f"i{number}"
            group.close_instance(
                name,
                leave_group=mode != "static",
                drain_ms=600_000.0 if mode == "drained" else None,
            )
            while group.instances[name].process.alive:
                group.run_for(check_ms)
            group.run_for(plan.down_s * 1000)
            group.restart(name)
            group.settle(1_200_000, check_ms)
        scale = plan.members / plan.bounced
        durations = group.coordinator.durations_ms[took:]
        seconds = (group.count_pauses() - lost) / 1000 * scale
        mean_s = sum(durations) / len(durations) / 1000 if durations else 0.0
        return BounceRow(
            mode, seconds, round((group.coordinator.rebalances - rebalances) * scale), mean_s
        )


def bench_rows(plan: BouncePlan, rows: Sequence[BounceRow]) -> list[dict[str, Any]]:
    """The figures as benches write them."""
    case = f"{plan.members} members, {plan.tasks} tasks"
    return [
        {
            "bench": "bounce",
            "case": f"{case}, {row.mode}",
            "system": "everflow",
            "guarantee": "exactly_once_v2",
            "metric": metric,
            "value": round(value, 1),
            "unit": unit,
            "runs": [round(value, 1)],
            "note": f"simulated, {plan.bounced} bounces of {plan.members}"
            + (", counted" if row.mode == "eager" else ""),
        }
        for row in rows
        for metric, value, unit in (
            ("task_seconds_lost", row.task_seconds_lost, "s"),
            ("generations", float(row.generations), "rebalances"),
        )
    ]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description="Task-seconds lost in a rolling bounce, simulated."
    )
    defaults = asdict(BouncePlan())
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--json", type=Path)
    given = vars(parser.parse_args())
    path = given.pop("json")
    logging.getLogger("everflow").setLevel(logging.ERROR)
    plan = BouncePlan(**given)
    rows = rolling_bounce(plan, print)
    print(
        f"eager (counted): {rows[-1].task_seconds_lost:,.0f} task-seconds, {rows[-1].generations} "
        f"generations"
    )
    if path is not None:
        path.write_text(json.dumps(bench_rows(plan, rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
