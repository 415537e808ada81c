"""Scale-out: what the readers of the output notice while a second instance joins, and how long
until both do their share.

Instance 1 holds the state of all tasks and works under a steady load; instance 2 starts with an
empty folder. Balanced: the actives are spread evenly over both and no copy is being built. Kafka
Streams looks after its warm-ups every 10 minutes (`probing.rebalance.interval.ms`), hence the long
default for `cut_off_s`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.elastic import RUNNING_TIMEOUT_S, SETTLED_S, Application, Load, Trial, application
from bench.gaps import gap_lines, worst
from bench.rebalances import rebalance_lines, records_in
from bench.results import Measurement
from bench.systems import Launcher, turns
from bench.topics import warm_broker

CUT_OFF_NOTES = {
    "gap_max": "not balanced at the cut-off: without the hand-over",
    "time_to_balance": "not balanced at the cut-off: a lower bound",
    "time_to_balance_from_join": "not balanced at the cut-off: a lower bound",
}


@dataclass(frozen=True)
class ScaleoutPlan:
    """What to measure; times in s. A group that is not balanced after `cut_off_s` is reported with
    that time, as a lower bound."""

    guarantees: Sequence[str]
    load: Load = field(default_factory=Load)
    threads: int = 2
    runs: int = 1
    settle_s: float = 10.0
    cut_off_s: float = 660.0


def measure(
    plan: ScaleoutPlan, bootstrap_servers: str, launchers: Mapping[str, Launcher], log_folder: Path
) -> Iterator[Measurement]:
    """Let the systems take turns; yields the figures of each run as it ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    for guarantee, run, system, launcher in turns(plan.guarantees, plan.runs, launchers):
        trial = Trial("scaleout", system, launcher, guarantee, plan.threads, plan.load)
        with application(trial, admin, bootstrap_servers, log_folder) as app:
            yield from _run_once(plan, app, run)


def _run_once(plan: ScaleoutPlan, app: Application, run: int) -> Iterator[Measurement]:
    first = app.start()
    first.process.wait_running(RUNNING_TIMEOUT_S)
    app.fill()
    with app.under_load() as probe:
        app.wait_output(probe, 0.0)
        load_s = time.time()
        app.watch(plan.settle_s)
        second = app.start()
        balanced_s = _wait_balanced(app, second.started_s + plan.cut_off_s)
        end_s = balanced_s or time.time()
        app.watch(SETTLED_S)
        app.wait_output(probe, end_s)
        gaps = probe.longest_gaps(second.started_s, time.time())
        steady = probe.longest_gaps(load_s, second.started_s)
    records = records_in(instance.state for instance in app.instances)
    joined = second.events.first("joined")
    to_balance_s = end_s - second.started_s
    at_least = "" if balanced_s is not None else "> "
    print(
        f"{app.trial.guarantee}, run {run + 1}: {app.trial.system}: longest time without a "
        f"committed output, by partition:"
    )
    lines = gap_lines(gaps, second.started_s, steady)
    print("\n".join([*lines, *rebalance_lines(records, second.started_s)]))
    joined_s = "" if joined is None else f", which joined at {joined.at_s - second.started_s:.1f} s"
    print(
        (
            f"  balanced {at_least}{to_balance_s:.1f} s after the start of the second "
            f"process{joined_s}"
        ),
        flush=True,
    )
    case = f"{plan.load.keys_per_task:,} keys a task, 1 to 2 instances"
    figures = {"gap_max": worst(gaps), "gap_steady": worst(steady), "time_to_balance": to_balance_s}
    if joined is not None:
        figures["time_to_balance_from_join"] = end_s - joined.at_s
    for metric, value in figures.items():
        note = "" if balanced_s is not None else CUT_OFF_NOTES.get(metric, "")
        yield Measurement(
            "scaleout", case, app.trial.system, app.trial.guarantee, metric, "s", value, note
        )


def _wait_balanced(app: Application, until_s: float) -> float | None:
    """When the group became balanced; None if it is not at `until_s`."""
    found: list[float] = []

    def reached() -> bool:
        since = app.balanced_since(standbys=0)
        if since is not None:
            found.append(since)
        return since is not None or time.time() >= until_s

    app.wait("a balanced group", reached, until_s - time.time() + 60.0)
    return found[0] if found else None
