"""One chaos run: three instances, load, rounds of faults, and the books.

``./run chaos [--rounds N] [--minutes M] [--seed S] [--kinds a,b] [--instances I] [--rate R]
[--json FILE] [--keep FOLDER]``. Ends with 1 unless everything is clean. The seed replays the
schedule, at any rate.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.topics import REQUEST_TIMEOUT_S
from chaos.elastic_group import GroupTimeoutError
from chaos.report import tell, unused_folder
from chaos.rounds.books import (
    Report,
    Visible,
    check_changelogs,
    check_dropped,
    check_files,
    check_outputs,
    check_stores,
    store_of,
)
from chaos.rounds.coordinator import CoordinatorWatch, left_open
from chaos.rounds.fleet import SETTLE_S, Fleet, Place
from chaos.rounds.follower import Follower, begun_at, read_all
from chaos.rounds.load import Load
from chaos.rounds.markers import MarkerDoor, broker_with_door
from chaos.rounds.mutations import MUTATIONS
from chaos.rounds.orders import DROPS_OF_A_LATE_ORDER, SHOPS, Kind, Order, Truth, kinds_of, truth_of
from chaos.rounds.program import (
    COPIES,
    INPUTS,
    LARGEST_COPY_BYTES,
    OUTPUTS,
    PARTITIONS,
    topic,
)
from chaos.rounds.schedule import INSTANCES, FaultKind, Round, draw
from chaos.rounds.strikes import NotDoneError, Strikes
from chaos.rounds.surroundings import (
    USUAL_RATE,
    Network,
    Proxies,
    disk_mb,
    network,
    possible,
    sweep,
)
from everflow.kafka.admin import ClusterAdmin

APPLICATION = "chaos"
REPARTITIONED = f"{APPLICATION}-by-shop-repartition"
FILL = 40 * len(SHOPS)
"""Orders before the load: enough for the time of every partition to have begun."""
PROBES = 7
QUIET_S = 2.0
REMARKS_SHOWN = 40


@dataclass(frozen=True)
class Plan:
    """What a run is made of; ``kinds``: those that may be drawn. ``proxies``: networks as where
    namespaces cannot be made."""

    rounds: int
    seed: int
    kinds: frozenset[FaultKind] = frozenset(FaultKind)
    instances: int = INSTANCES
    rate: float = USUAL_RATE
    mutation: str = ""
    proxies: bool = False
    settle_s: float = SETTLE_S
    """How long tasks and results are waited for."""
    minutes: float = math.inf
    """After so many no round begins: the books are of those there were."""

    def schedule(self) -> list[Round]:
        """From the seed."""
        return draw(self.rounds, self.seed, self.kinds, self.instances)


@dataclass
class ChaosRun:
    """One run of a plan; `run` once. Everything under ``folder`` stays."""

    plan: Plan
    folder: Path
    report: Report = field(init=False)
    _held: ExitStack = field(default_factory=ExitStack)
    _stuck: bool = False
    """Something has not come: the books tell what, and nobody waits any more."""
    _truth: Truth = field(default_factory=Truth)
    """Of the first ``_known`` orders: computed anew each time it would take half a core in the
    end."""
    _known: int = 0

    def __post_init__(self) -> None:
        self.report = Report(self.plan.rounds, self.plan.seed, rate=self.plan.rate)

    def run(self, rounds: Sequence[Round] | None = None) -> Report:
        """All rounds (those of the seed, where none are given), then the checks. What fails in a
        round, or what does not come, ends the rounds and is a remark: the books are checked of
        those there were."""
        with self._held:
            self._open()
            with self._noted():
                self._rounds(self.plan.schedule() if rounds is None else rounds)
            self._finish()
        return self.report

    def _rounds(self, drawn: Sequence[Round]) -> None:
        files = self.fleet.files()
        until_s = time.monotonic() + 60 * self.plan.minutes
        self.report.rounds = 0
        for number, one in enumerate(drawn, 1):
            if self._stuck or time.monotonic() > until_s:
                break
            try:
                files = self._round(number, len(drawn), one, files)
            except Exception:
                with self._noted():
                    self.strikes.give_up()
                raise
            self.report.rounds = number

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """An error in it is a remark. Unless it is a fault that did not happen, and all of it is
        given back, nobody waits for anything behind it."""
        try:
            yield
        except Exception as error:
            traceback.print_exception(error)
            done = not isinstance(error, NotDoneError)
            self.report.not_done += not done
            self._stuck = self._stuck or done
            self.report.remarks.append(f"{type(error).__name__}: {error}")

    # --- the parts -------------------------------------------------------------------------------

    def _open(self) -> None:
        net: Network = Proxies() if self.plan.proxies else network()
        self._held.callback(net.close)
        self.report.network = net.name
        print(f"networks are made of {net.name}", flush=True)
        door = MarkerDoor() if FaultKind.LATE_MARKERS in self.plan.kinds else None
        if door is not None:
            self._held.callback(door.close)
        self.broker = self._held.enter_context(
            broker_with_door(self.folder / "broker", net.host, "768m", door)
        )
        for name in (*INPUTS, *OUTPUTS):
            config = {"max.message.bytes": str(LARGEST_COPY_BYTES)} if name == COPIES else {}
            self.broker.create_topic(topic(APPLICATION, name), PARTITIONS, config)
        servers = self.broker.bootstrap_servers
        self.fleet = Fleet(APPLICATION, servers, self.folder, net)
        self.fleet.mutation = self.plan.mutation
        self._held.callback(self.fleet.close)
        self.fleet.open(
            self.plan.instances,
            disk_mb(self.plan.rate) if FaultKind.FULL_DISK in self.plan.kinds else 0,
            FaultKind.CLOCK in self.plan.kinds,
        )
        self.load = Load(servers, APPLICATION, self.plan.seed, self.plan.rate)
        self.load.fill(FILL)
        for instance in range(1, self.plan.instances + 1):
            self.fleet.launch(instance)
        self.fleet.wait_spread()
        self.topics = self._topics()
        self.follower = Follower(servers, self.topics)
        self.follower.start()
        self._held.callback(self.follower.stop)
        self.visible = Visible(self.follower, APPLICATION)
        self._wait_visible(self.load.sent())
        self.load.start()
        self._held.callback(self.load.stop)
        self.strikes = Strikes(self.fleet, self.broker, self.load, door)
        self.coordinator = CoordinatorWatch(self.broker, APPLICATION, self._coordinator_stuck)
        self.fleet.watch = self.coordinator.look

    def _coordinator_stuck(self, told: str) -> None:
        self.report.coordinators_stuck += 1
        print(f"  the broker is restarted: its coordinator has {told}", flush=True)

    def _topics(self) -> dict[str, int]:
        """Outputs and changelogs."""
        with closing(ClusterAdmin({"bootstrap.servers": self.broker.inside_servers})) as admin:
            found = admin.list_topics(REQUEST_TIMEOUT_S)
        outputs = {topic(APPLICATION, name) for name in OUTPUTS}
        return {
            name: one.partitions
            for name, one in found.items()
            if name in outputs or store_of(APPLICATION, name) is not None
        }

    def _round(
        self, number: int, of: int, one: Round, files: dict[Place, tuple[str, int]]
    ) -> dict[Place, tuple[str, int]]:
        since = time.monotonic()
        print(f"round {number}/{of}: {one}", flush=True)
        for fault in one.faults:
            self.strikes.strike(fault)
        for fault in self.strikes.heal():
            name = fault.kind.value
            self.report.faults[name] = self.report.faults.get(name, 0) + 1
        self._wait_spread()
        sent = self.load.sent()
        self._wait_visible(sent)
        self.coordinator.note()
        now = self.fleet.files()
        check_files(files, now, self.report)
        took = time.monotonic() - since
        print(f"  healed, {len(sent):,} orders came through, {took:.0f} s", flush=True)
        return {**files, **now}

    def _wait_spread(self) -> None:
        try:
            self.fleet.wait_spread(self.plan.settle_s)
        except GroupTimeoutError as error:
            why = left_open(self.broker.bootstrap_servers, time.time() * 1000)
            raise GroupTimeoutError("\n".join([*why, str(error)])) from error

    def _wait_visible(self, orders: Sequence[Order]) -> None:
        if self._stuck:
            return
        for order in orders[self._known :]:
            self._truth.add(order)
        self._known = len(orders)
        left, missing = [""], self.visible.awaited(self._truth)

        def visible() -> bool:
            left[0] = missing()
            return not left[0]

        try:
            self.fleet.wait("every result to be there", visible, self.plan.settle_s)
        except GroupTimeoutError as error:
            self._stuck = True
            waited = f"not there after {self.plan.settle_s:.0f} s"
            self.report.remarks += left_open(self.broker.bootstrap_servers, time.time() * 1000)
            self.report.remarks.append(f"{waited}: {left[0]} ({error})")

    # --- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        report, probed, expected = self.report, 0, 0
        with self._noted():
            self.load.stop()
        with self._noted():
            if not self._stuck:  # a round that has failed has not waited for it
                self._wait_spread()
            self._wait_visible(self.load.sent())
            if not self._stuck:
                expected = PROBES * DROPS_OF_A_LATE_ORDER
                probed = self._probed(expected)
        if not self.coordinator.helped():
            report.remarks.append("a transaction is decided still, in a restarted broker")
        owners = {
            task: process.instance
            for process in self.fleet.living()
            for task in process.view().active
        }
        with self._noted():
            report.purged = self._purged()
        self._end_instances()
        with self._noted():
            self.follower.stop()
        orders = self.load.sent()
        truth = truth_of(orders)
        report.orders = dict(kinds_of(orders))
        early = self.follower.reads()
        with self._noted():
            late = read_all(self.broker.bootstrap_servers, self.topics)
            check_outputs(APPLICATION, truth, early, late, report)
            check_changelogs(APPLICATION, truth, early, late, report)
        check_stores(APPLICATION, truth, self.fleet.stores(), owners, early, report)
        check_dropped(truth, probed, expected, self.fleet.dropped(), report)

    def _purged(self) -> int:
        """How many records of the repartition topic are deleted, once any are: of a short run the
        first offsets settle behind its end (scenario 27)."""

        def begun() -> int:
            return begun_at(self.broker.bootstrap_servers, REPARTITIONED, PARTITIONS)

        if not self._stuck:
            self.fleet.wait(f"a purge of {REPARTITIONED}", lambda: begun() > 0, SETTLE_S)
        return begun()

    def _probed(self, expected: int) -> int:
        """How many dropped records are counted of late orders, while nothing else happens."""
        before = self._settled_drops()
        self.load.send_now([Kind.LATE] * PROBES)
        self._wait_visible(self.load.sent())
        return self._settled_drops(before + expected) - before

    def _end_instances(self) -> None:
        for process in self.fleet.living():
            ended = False
            with self._noted():
                self.fleet.stop(process.instance)
                ended = True
            if not ended and process in self.fleet.living():
                self.fleet.kill(process.instance, whole=True)

    def _settled_drops(self, wanted: int | None = None) -> int:
        """What the counters say, once they have not moved for a while (and say what is wanted)."""
        seen, since = [-1], [0.0]

        def settled() -> bool:
            now = self.fleet.dropped()
            if now != seen[0]:
                seen[0], since[0] = now, time.monotonic()
            waited_s = time.monotonic() - since[0]
            enough = wanted is None or now >= wanted or waited_s > 10 * QUIET_S
            return enough and waited_s >= QUIET_S

        self.fleet.wait("quiet counters of dropped records", settled, SETTLE_S)
        return seen[0]


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """What a run is asked for."""
    parser = argparse.ArgumentParser(prog="./run chaos", description="faults under load")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument(
        "--kinds",
        default=",".join(kind.value for kind in FaultKind),
        help="the faults that may be drawn, with commas; default: all",
    )
    parser.add_argument("--rate", type=float, default=USUAL_RATE, help="orders a second")
    parser.add_argument("--instances", type=int, choices=range(1, INSTANCES + 1), default=INSTANCES)
    parser.add_argument(
        "--mutation",
        default="",
        choices=("", *MUTATIONS),
        help="a guard of the product to take away: then it must fail",
    )
    parser.add_argument(
        "--proxies",
        action="store_true",
        help="networks are proxies, also where namespaces could be made",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="after so many no round begins; the books are checked of those there were",
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=SETTLE_S,
        help="seconds that tasks and results are waited for",
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.add_argument(
        "--keep",
        type=unused_folder,
        default=None,
        help="where logs stay, new or empty; default: a temporary folder",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """0 if everything is clean."""
    options = parsed(arguments)
    # Networks and disks are the machine's: they are taken down, also by who is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    asked = frozenset(FaultKind(name) for name in options.kinds.split(","))
    with tempfile.TemporaryDirectory(prefix="ef-chaos-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        sweep()
        kinds = asked & possible(Path(temporary))
        left_out = ", ".join(sorted(kind.value for kind in asked - kinds))
        print(f"seed {seed}" + (f"; impossible here: {left_out}" if left_out else ""), flush=True)
        plan = Plan(
            options.rounds,
            seed,
            kinds,
            options.instances,
            options.rate,
            mutation=options.mutation,
            proxies=options.proxies,
            minutes=options.minutes,
            settle_s=options.settle,
        )
        run = ChaosRun(plan, folder)
        run.report.left_out = sorted(kind.value for kind in asked - kinds)
        report = run.run()
    print("\n".join(report.remarks[:REMARKS_SHOWN]))
    tell(report.told(), options.json)
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
