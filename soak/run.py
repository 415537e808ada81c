"""One pace for an hour, a second instance that comes and goes each minute, and nothing grows.

``./run soak [--minutes 60] [--rate 20000] [--every 60] [--json FILE] [--plot FILE]``. One instance
stays, and is looked at; the other joins and leaves in turns, so that each ``--every`` seconds the
group rebalances. Ends with 1 unless every result is right, nothing was dropped, and memory, files,
threads and stores of the instance that stays are flat behind the first quarter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from confluent_kafka.admin import AdminClient

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.results import Measurement, results, summarise, write_json  # noqa: E402
from bench.topics import create_topics  # noqa: E402
from chaos.elastic_group import POLL_S, Group  # noqa: E402
from everflow.testing.broker import EmbeddedBroker  # noqa: E402
from soak.flatness import Trend, trend  # noqa: E402
from soak.plot import drawing  # noqa: E402
from soak.program import PARTITIONS, TASKS, TOTALS, TRADES, expected, topic  # noqa: E402
from soak.samples import FIGURES, Sampler, SoakSample  # noqa: E402
from soak.totals import Totals  # noqa: E402

APPLICATION = "soak"
STAYS, GOES = 1, 2
WARM_UP = 0.25
SAMPLES = 360
CAUGHT_UP_S = 180.0
_TOPIC_BYTES = {"retention.bytes": str(256 << 20), "segment.bytes": str(64 << 20)}


@dataclass(frozen=True)
class Plan:
    """``rate`` in records/s; ``minutes`` of load; ``every`` so many seconds somebody comes or
    goes."""

    minutes: float = 60.0
    rate: float = 20_000.0
    every: float = 60.0


@dataclass
class SoakReport:
    """What was seen. ``wrong``: a sentence for each thing that is not as it must be."""

    sent: int = 0
    results: int = 0
    rebalances_s: list[float] = field(default_factory=list)
    samples: list[SoakSample] = field(default_factory=list)
    trends: dict[str, Trend] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def seen(self, name: str) -> list[float]:
        """The samples of a figure."""
        return [one.values[name] for one in self.samples]

    def measure(self, last_s: float) -> None:
        """Trends of what lies behind the warm-up."""
        kept = [one for one in self.samples if one.at_s >= WARM_UP * last_s]
        at_s = [one.at_s for one in kept]
        for name, unit in FIGURES.items():
            found = self.trends[name] = trend(at_s, [one.values[name] for one in kept])
            if not found.flat:
                self.wrong.append(
                    f"{name} grew by {found.growth:,.1f} {unit} at a level of {found.level:,.1f}; "
                    f"{found.noise:,.1f} would be noise"
                )


def soak(plan: Plan, folder: Path) -> SoakReport:
    """Run it; everything under ``folder`` stays."""
    report = SoakReport()
    with ExitStack() as held:
        broker = held.enter_context(EmbeddedBroker(folder / "broker", heap="768m"))
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        names = [topic(APPLICATION, name) for name in (TRADES, TOTALS)]
        create_topics(admin, names, PARTITIONS, _TOPIC_BYTES)
        group = Group(APPLICATION, servers, folder, TASKS, module="soak.instance")
        held.callback(group.close)
        group.start(STAYS)
        group.wait_spread()
        totals = Totals(servers, names[1])
        totals.start()
        held.callback(totals.stop)
        _under_load(plan, folder, servers, group, report)
        _check(report, totals, group)
    return report


def _under_load(plan: Plan, folder: Path, servers: str, group: Group, report: SoakReport) -> None:
    sent_file = folder / "sent"
    command = [sys.executable, "-m", "soak.load", servers, topic(APPLICATION, TRADES)]
    load = subprocess.Popen(
        [*command, str(plan.rate), str(sent_file)], stdin=subprocess.PIPE, cwd=ROOT
    )
    try:
        _go_round(plan, group, report, load)
    finally:
        load.communicate(timeout=CAUGHT_UP_S)
    if load.returncode != 0:
        raise RuntimeError(f"the load ended with {load.returncode}")
    report.sent = int(sent_file.read_text())


def _go_round(plan: Plan, group: Group, report: SoakReport, load: subprocess.Popen[bytes]) -> None:
    """A member more or fewer, each at its time, while the one that stays is looked at."""
    began, last_s = time.monotonic(), plan.minutes * 60
    sampler = Sampler(group.of(STAYS).process.pid, group.state(STAYS), last_s / SAMPLES)
    sampler.start()
    pause, move_s = threading.Event(), plan.every
    while (now_s := time.monotonic() - began) < last_s:
        if load.poll() is not None:
            raise RuntimeError(f"the load ended with {load.returncode}")
        if now_s >= move_s:
            report.rebalances_s.append(now_s)
            _move(group)
            move_s = max(move_s + plan.every, time.monotonic() - began)
            _say(sampler.samples[-1], plan)
        pause.wait(POLL_S)
    report.samples = sampler.stop()
    report.measure(last_s)


def _move(group: Group) -> None:
    """The other instance comes, or goes."""
    here = [process.instance for process in group.living()]
    if GOES in here:
        group.leave(GOES)
    else:
        group.start(GOES)
        group.wait_spread()


def _say(last: SoakSample, plan: Plan) -> None:
    told = ", ".join(f"{name} {value:,.1f}" for name, value in last.values.items())
    print(f"{last.at_s / 60:.1f} of {plan.minutes:g} min: {told}", flush=True)


def _check(report: SoakReport, totals: Totals, group: Group) -> None:
    due = expected(report.sent)
    deadline, pause = time.monotonic() + CAUGHT_UP_S, threading.Event()
    while not np.array_equal(totals.found(), due) and time.monotonic() < deadline:
        pause.wait(1.0)
    report.results = totals.results
    missing = due - totals.found()
    if missing.any():
        report.wrong.append(
            f"{int(np.abs(missing[:, 0]).sum())} trades of {int((missing[:, 0] != 0).sum())} "
            f"symbols are missing or double"
        )
    report.wrong += [f"a count went back: {text}" for text in totals.fallen]
    dropped = sum(
        max((event.fields["records"] for event in events if event.kind == "dropped"), default=0)
        for events in (process.events.read() for process in group.processes)
    )
    if dropped:
        report.wrong.append(f"{dropped:.0f} records were dropped")


def rows(plan: Plan, report: SoakReport) -> list[Measurement]:
    """For ``--json``: level and growth of each figure."""
    case = f"{plan.minutes:g} min at {plan.rate:,.0f} records/s"
    found = [
        Measurement("soak", case, "everflow", "exactly_once_v2", "records", "records", report.sent)
    ]
    for name, one in report.trends.items():
        for metric, value in (("level", one.level), ("growth_per_hour", one.per_hour)):
            found.append(
                Measurement(
                    "soak",
                    f"{case}, {name}",
                    "everflow",
                    "exactly_once_v2",
                    metric,
                    FIGURES[name],
                    value,
                )
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all is right and flat."""
    parser = argparse.ArgumentParser(prog="./run soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20_000.0, help="records/s")
    parser.add_argument("--every", type=float, default=60.0, help="s between two rebalances")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="an SVG of all figures over time")
    options = parser.parse_args(arguments)
    plan = Plan(options.minutes, options.rate, options.every)
    folder = Path(tempfile.mkdtemp(prefix="everflow-soak-"))
    print(f"logs: {folder}", flush=True)
    report = soak(plan, folder)
    title = (
        f"{plan.minutes:g} minutes at {plan.rate:,.0f} records/s, a rebalance each {plan.every:g} s"
    )
    if options.plot:
        at_s = [one.at_s for one in report.samples]
        panels = [
            (name, FIGURES[name], report.seen(name), found) for name, found in report.trends.items()
        ]
        options.plot.write_text(drawing(title, at_s, panels, report.rebalances_s))
    if options.json:
        command = (
            f"./run soak --minutes {plan.minutes:g} --rate {plan.rate:g} --every {plan.every:g}"
        )
        today = datetime.now(tz=timezone.utc).date().isoformat()
        write_json(results(summarise(rows(plan, report)), command, today), options.json)
    print(
        f"{title}: {report.sent:,} records, {report.results:,} results, "
        f"{len(report.rebalances_s)} rebalances"
    )
    for name, one in report.trends.items():
        print(
            f"  {name}: {one.level:,.1f} {FIGURES[name]}, {one.per_hour:+,.1f} an hour "
            f"({'flat' if one.flat else 'GROWS'})"
        )
    for sentence in report.wrong:
        print(f"wrong: {sentence}")
    print(json.dumps({"clean": not report.wrong}))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
