"""Rounds of kill -9 and of rebalances against a program that writes rows to a sink outside Kafka;
then the rows are read, and are those of the input.

Usage: ``./run chaos sinks [--rounds 50] [--sink NAME]... [--seed S] [--json FILE]``. Each sink of
`chaos.sink_places.KINDS` gets its rounds on an application of its own. In each round an instance
joins or leaves, and a worker, or the process of all instances, is killed: at a point between the
rows and Kafka's commit (`everflow.worker.crash_points`), or at a random moment; the one before the
other, while a worker stands at the point, or behind it. All is drawn from the seed. A sink that is
exact has each row once; of the others none may be missing, and doubles are counted. A round takes
3 to 15 s. Ends with 1 if anything was lost, wrong, or doubled where it must not be.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# The server of PostgreSQL is that of the tests.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import psutil  # noqa: E402
from confluent_kafka import Producer  # noqa: E402

from chaos.elastic_group import Group, GroupFailedError, Process  # noqa: E402
from chaos.hosted_instances import JOIN, LEAVE  # noqa: E402
from chaos.report import ChaosReport, tell  # noqa: E402
from chaos.sink_places import EXACT, KINDS, LEFT_OUT, ROWS, TOTALS, UPSERT, Place, place_of  # noqa: E402
from chaos.sinks_instance import application_of, order_of  # noqa: E402
from everflow.kafka.admin import ClusterAdmin  # noqa: E402
from everflow.records import TopicPartition  # noqa: E402
from everflow.testing.broker import EmbeddedBroker  # noqa: E402
from everflow.worker.crash_points import NAMES, SINK_PARTLY, SINK_WRITTEN  # noqa: E402

WORKER, DRIVER, HOST = "worker", "driver", "host"
"""A Python worker; the process of the instances; it and all that it started."""
BEFORE, MEANWHILE, BEHIND = "before", "meanwhile", "behind"
"""When the rebalance comes: seen from the kill."""
ANY_TIME = "any-time"
ITEMS = 20
PARTITIONS = 2
BURST, EVERY_S = 20, 0.1
LONGEST_WAIT_S = 1.5
COMMITTED_S = 240.0
START_S = 300.0
"""On a machine that is busy; on an idle one a process takes 10 s."""
POLL_S = 0.1
SETTINGS: Mapping[str, Any] = {
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 500,
    "task.timeout.ms": 120_000,
}


class Fault(NamedTuple):
    """``victim`` is killed at ``point`` (at `ANY_TIME` after ``wait_s``), and an instance joins or
    leaves, ``when``. A worker stands at the point for ``wait_s``."""

    victim: str
    point: str
    when: str
    wait_s: float


def draw(rounds: int, chance: random.Random) -> list[Fault]:
    """The faults of a sink, all of them before it begins."""
    return [
        Fault(
            chance.choice((WORKER,) * 22 + (DRIVER, HOST)),
            chance.choice((SINK_PARTLY, SINK_WRITTEN) * 2 + (*NAMES, ANY_TIME, ANY_TIME)),
            chance.choice((BEFORE, MEANWHILE, BEHIND)),
            round(chance.uniform(0.0, LONGEST_WAIT_S), 2),
        )
        for _ in range(rounds)
    ]


@dataclass
class SinkReport(ChaosReport):
    """``wrong``: totals that no run of the program gives. ``sent``: records. ``failure``: why its
    rounds were not ended."""

    exact: bool = True
    sent: int = 0
    rows: int = 0
    totals: int = 0
    wrong: int = 0
    failure: str = ""

    @property
    def clean(self) -> bool:
        doubled = self.exact and self.duplicated
        return not (self.lost or self.wrong or doubled or self.failure)


def account(report: SinkReport, place: Place, sent: int) -> None:
    """Compare the rows with those of records 0 to ``sent``."""
    wanted = Counter(n for n in range(sent) if n % LEFT_OUT)
    rows = place.rows(ROWS)
    found = Counter(row["n"] for row in rows)
    report.sent, report.rows = sent, len(rows)
    report.lost, report.duplicated = (wanted - found).total(), (found - wanted).total()
    report.wrong = sum(
        row["item"] != item_of(row["n"]) or row["id"] != f"k{row['n']}" for row in rows
    )
    totals: dict[str, list[tuple[int, int]]] = {}
    for row in place.rows(TOTALS):
        totals.setdefault(row["item"], []).append((row["count"], row["total"]))
    report.totals = sum(map(len, totals.values()))
    for at in range(min(ITEMS, sent)):
        seen = totals.pop(item_of(at), [(0, 0)])
        numbers = range(at, sent, ITEMS)
        report.lost += max(0, len(numbers) - max(seen)[0])
        # Counts rise: each is there once.
        report.duplicated += len(seen) - len({count for count, _ in seen})
        report.wrong += max(seen) > (len(numbers), sum(numbers))
        report.wrong += place.kind == UPSERT and seen != [(len(numbers), sum(numbers))]
    report.wrong += len(totals)


def item_of(number: int) -> str:
    return f"item-{number % ITEMS}"


class Load(threading.Thread):
    """Numbered records, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic, self._stop_asked, self.sent = topic, threading.Event(), 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})

    def run(self) -> None:
        while not self._stop_asked.wait(EVERY_S):
            self.burst()

    def burst(self) -> None:
        """One; returns when the broker has it."""
        for n in range(self.sent, self.sent + BURST):
            value = json.dumps({"n": n, "item": item_of(n)})
            self._producer.produce(self.topic, value, f"k{n}")
        assert self._producer.flush(60) == 0
        self.sent += BURST

    def stop(self) -> None:
        """End it; all that it counts is in the topic."""
        self._stop_asked.set()
        self.join()


@dataclass
class SinkRun:
    """The rounds of one sink. Owned by one thread."""

    group: Group
    place: Place
    load: Load
    admin: ClusterAdmin
    members: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[TopicPartition]:
        return [TopicPartition(self.load.topic, at) for at in range(PARTITIONS)]

    def tell(self, word: str, *names: str) -> None:
        """Instances join, or leave, and are then members, or none."""
        left = tuple(one for one in self.members if one not in names)
        self.members = left if word == LEAVE else (*left, *names)
        for name in names:
            self.group.of(1).tell(str(order_of(word, name, self.place)))

    def begin(self) -> None:
        """A process with the present members."""
        self.group.start(1)
        self.tell(JOIN, *self.members)

    def rebalance(self) -> None:
        """The second instance joins, or leaves."""
        self.tell(LEAVE if "b" in self.members else JOIN, "b")

    def run_round(self, fault: Fault) -> None:
        """Returns when what was there at the kill is committed, and the members run."""
        process, pause = self.group.of(1), threading.Event()
        if fault.when == BEFORE:
            self.rebalance()
        worker = None
        if fault.point != ANY_TIME:
            process.arm(fault.point)
            self.group.wait(
                f"a worker to reach {fault.point}",
                lambda: process.reached(fault.point),
                COMMITTED_S,
                poll_s=POLL_S,
            )
            worker = process.caught(fault.point)
        if fault.when == MEANWHILE:
            self.rebalance()
        pause.wait(fault.wait_s)
        self.strike(process, fault.victim, worker)
        if fault.when == BEHIND:
            if fault.victim != WORKER:
                self.group.wait("the members to run", self.running, START_S, poll_s=POLL_S)
            self.rebalance()
        ends = self.admin.end_offsets(self.inputs, "read_uncommitted")
        self.group.wait(
            "the input to be committed",
            lambda: self.running() and self.committed(ends),
            START_S,
            poll_s=POLL_S,
        )

    def strike(self, process: Process, victim: str, worker: int | None) -> None:
        """Kill, and start what does not come back by itself."""
        if victim != WORKER:
            self.group.kill(1, whole=victim == HOST)
            self.begin()
            return
        for one in process.family()[1:]:
            with suppress(psutil.NoSuchProcess):
                is_worker = "python" in one.name() and not one.children()
                if one.pid == worker or (worker is None and is_worker):
                    one.kill()
                    return

    def running(self) -> bool:
        """Whether the members run, and no other."""
        states: dict[str, str] = {}
        application = application_of(self.place.kind)
        for event in self.group.of(1).events.read():
            if event.kind == "member" and event.fields["application"] == application:
                states[event.fields["name"]] = event.fields["state"]
        ended = ("NOT_RUNNING", "CREATED")
        there = {name: state for name, state in states.items() if state not in ended}
        return there == dict.fromkeys(self.members, "RUNNING")

    def committed(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether the group has come so far."""
        application = application_of(self.place.kind)
        found = self.admin.committed(application, list(ends), 30.0)
        return all(tp in found and found[tp].offset >= end for tp, end in ends.items())


def run(
    kind: str, faults: Sequence[Fault], seed: int, broker: EmbeddedBroker, group: Group
) -> SinkReport:
    """All rounds on one sink, a line each. Leaves the group's process without instances."""
    topic = f"{application_of(kind)}-in"
    report = SinkReport(len(faults), seed, exact=kind in EXACT)
    broker.create_topic(topic, PARTITIONS)
    folder = group.folder / kind
    folder.mkdir()
    with (
        closing(ClusterAdmin({"bootstrap.servers": broker.bootstrap_servers})) as admin,
        place_of(kind, folder) as place,
    ):
        load = Load(broker.bootstrap_servers, topic)
        rounds = SinkRun(group, place, load, admin)
        rounds.tell(JOIN, "a")
        group.wait("the first instance to run", rounds.running, START_S)
        load.start()
        try:
            for number, fault in enumerate(faults, 1):
                since = time.monotonic()
                rounds.run_round(fault)
                report.faults[fault.victim] = report.faults.get(fault.victim, 0) + 1
                print(
                    f"{kind}, round {number}/{len(faults)}: {fault.victim} at {fault.point}, "
                    f"rebalance {fault.when}: {load.sent} records, "
                    f"{time.monotonic() - since:.1f} s",
                    flush=True,
                )
            load.stop()
            settle(report, rounds)
        except GroupFailedError as error:
            print(error, flush=True)
            report.failure = str(error).splitlines()[0]
            group.kill(1, whole=True)
            group.start(1)
        finally:
            load.stop()
    return report


def settle(report: SinkReport, rounds: SinkRun) -> None:
    """Wait until no row is missing, or for as long as rows may take; end the instances, and
    account."""
    sent, deadline = rounds.load.sent, time.monotonic() + COMMITTED_S

    def complete() -> bool:
        trial = SinkReport()
        account(trial, rounds.place, sent)
        return trial.lost == 0 or time.monotonic() > deadline

    rounds.group.wait("all rows", complete, 2 * COMMITTED_S, poll_s=2.0)
    rounds.tell(LEAVE, *rounds.members)
    rounds.group.wait("the instances to leave", rounds.running, COMMITTED_S)
    account(report, rounds.place, sent)


def main(arguments: Sequence[str]) -> int:
    """0 if everything is clean."""
    parser = argparse.ArgumentParser(
        prog="./run chaos sinks", description="kill -9 and rebalances, then read the rows of sinks"
    )
    parser.add_argument("--rounds", type=int, default=50, help="of each sink")
    parser.add_argument("--sink", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    reports: dict[str, SinkReport] = {}
    with (
        tempfile.TemporaryDirectory(prefix="ef-chaos-") as folder,
        EmbeddedBroker(Path(folder) / "broker") as broker,
    ):
        servers, module = broker.bootstrap_servers, "chaos.sinks_instance"
        group = Group("chaos", servers, Path(folder), PARTITIONS, SETTINGS, module=module)
        with closing(group):
            group.start(1)
            for kind in options.sink or KINDS:
                faults = draw(options.rounds, random.Random(f"{seed} {kind}"))
                reports[kind] = run(kind, faults, seed, broker, group)
                print(f"{kind}: {asdict(reports[kind])}", flush=True)
    tell({kind: asdict(report) for kind, report in reports.items()}, options.json)
    return 0 if all(report.clean for report in reports.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
