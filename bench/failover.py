"""Failover: what the readers of the output notice when one of two instances, with one standby for
each task, ends.

Once by SIGKILL to its whole process tree, once by SIGTERM; both systems with the same short session
time-out, and on the clean stop both leave the group.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.elastic import (
    RUNNING_TIMEOUT_S,
    SETTLED_S,
    Application,
    Instance,
    Load,
    Trial,
    application,
)
from bench.gaps import OutputProbe, gap_lines, worst
from bench.results import Measurement
from bench.systems import KAFKA_STREAMS, Launcher
from bench.topics import warm_broker

KILLED = "kill -9"
STOPPED = "clean stop"
CASES = (KILLED, STOPPED)
FLEET_WORKER = "fleet-worker"
"""Of everflow alone: `bench.fleet.worker_lost`."""
HOT_LAG = 10_000
"""`acceptable.recovery.lag` of both systems: a copy that lacks no more may take over."""
AFTERMATH_S = 10.0
"""How much longer than the session time-out it is watched, at least: follow-up rebalances come
within it."""
RESUME_TIMEOUT_S = 120.0
FLOWING_S = 1.0


@dataclass(frozen=True)
class FailoverPlan:
    """What to measure; times in s."""

    guarantees: Sequence[str]
    load: Load = field(default_factory=lambda: Load(keys_per_task=100_000))
    threads: int = 2
    runs: int = 3
    settle_s: float = 10.0
    session_timeout_s: float = 6.0
    cases: Sequence[str] = CASES

    def settings(self, system: str) -> dict[str, str]:
        """The same for both, but Kafka Streams' heartbeat, 3 s, must be at most a third of the
        session time-out."""
        timeout_ms = round(self.session_timeout_s * 1000)
        settings = {"num.standby.replicas": "1", "session.timeout.ms": str(timeout_ms)}
        return (
            {**settings, "heartbeat.interval.ms": str(timeout_ms // 3)}
            if system == KAFKA_STREAMS
            else settings
        )


def measure(
    plan: FailoverPlan, bootstrap_servers: str, launchers: Mapping[str, Launcher], log_folder: Path
) -> Iterator[Measurement]:
    """Let the systems take turns; yields the figures of each run as it ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    turns = product(plan.guarantees, range(plan.runs), plan.cases, launchers.items())
    for guarantee, run, case, (system, launcher) in turns:
        trial = Trial(
            "failover", system, launcher, guarantee, plan.threads, plan.load, plan.settings(system)
        )
        with application(trial, admin, bootstrap_servers, log_folder) as app:
            yield from _run_once(plan, app, case, run)


def _run_once(plan: FailoverPlan, app: Application, case: str, run: int) -> Iterator[Measurement]:
    # Both before there is any state: so each gets its half at once, and nobody waits for Kafka
    # Streams' probing.
    first, second = app.start(), app.start()
    app.wait(
        "two instances with a standby each",
        lambda: app.balanced_since(standbys=1) is not None,
        RUNNING_TIMEOUT_S,
    )
    app.fill()
    filled_s = time.time()
    with app.under_load() as probe:
        app.wait(
            "hot standbys",
            lambda: all(_hot(instance, filled_s) for instance in (first, second)),
            RUNNING_TIMEOUT_S,
        )
        app.wait_output(probe, 0.0)
        load_s = time.time()
        app.watch(plan.settle_s)
        if app.balanced_since(standbys=1) is None:
            raise second.process.failure("the group is not balanced any more")
        ended_s = time.time()
        if case == KILLED:
            second.process.kill()
        else:
            second.process.ask_to_stop()
        _wait_resumed(plan, app, first, second, probe, ended_s)
        gaps = probe.longest_gaps(ended_s, time.time())
        steady = probe.longest_gaps(load_s, ended_s)
    print(
        f"{app.trial.guarantee}, run {run + 1}, {case}: {app.trial.system}: longest time without a "
        f"committed output, by partition "
        f"(session time-out {plan.session_timeout_s:.1f} s):"
    )
    print("\n".join(gap_lines(gaps, ended_s, steady)), flush=True)
    for metric, values in (("gap_max", gaps), ("gap_steady", steady)):
        yield Measurement(
            "failover", case, app.trial.system, app.trial.guarantee, metric, "s", worst(values)
        )


def _hot(instance: Instance, since_s: float) -> bool:
    """Whether the copies on the instance lacked little at a moment after `since_s`."""
    lag = instance.events.last("lag")
    return lag is not None and lag.at_s > since_s and int(lag.fields["records"]) <= HOT_LAG


def _wait_resumed(
    plan: FailoverPlan,
    app: Application,
    first: Instance,
    second: Instance,
    probe: OutputProbe,
    ended_s: float,
) -> None:
    """Until the instance is gone and every partition flows again, and some time longer."""
    watched_s = ended_s + plan.session_timeout_s + AFTERMATH_S

    def resumed() -> bool:
        now = time.time()
        return (
            now >= watched_s
            and second.process.ended
            and now - min(probe.latest().values()) < FLOWING_S
        )

    app.wait("outputs on every partition again", resumed, RESUME_TIMEOUT_S, survivors=[first])
    app.watch(SETTLED_S, survivors=[first])
