"""Instances come and go under load, cleanly and not; then the books, the stores and the assignment
log are checked.

``./run chaos elastic [--keys N] [--rate R] [--scale 1,2,3,1] [--bounces N] [--kills N] [--seed N]
[--json FILE]``. Three parts, one load through all of them: the group grows and shrinks step by
step; static members are bounced one after the other; then random instances are killed (-9), with
their whole tree of processes or the driver alone, and come back on their own disk, soon or late.
Everything random is drawn from the seed before anything runs. Ends with 1 unless all of it is
clean.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaos.elastic_stage import Report, Sizes, Stage
from chaos.report import tell, unused_folder
from everflow.testing.broker import EmbeddedBroker

APPLICATION = "elastic"
LONGEST_AWAY_S = 15.0
STATIC_SESSION_MS = 300_000
"""A static member's tasks wait for it: longer than a restart takes on a machine that runs
everything at once."""
DYNAMIC_SESSION_MS = 10_000
REMARKS_SHOWN = 40


@dataclass(frozen=True)
class Kill:
    """SIGKILL of an instance: the whole tree of processes, or the driver alone; it comes back
    ``away_s`` later."""

    instance: int
    whole: bool
    away_s: float


@dataclass(frozen=True)
class Plan:
    """``scale``: sizes of the group in the first part. ``members``: instances in the two other
    parts. ``static`` members from the first moment to the last, otherwise dynamic ones grow, shrink
    and are killed. ``rate`` in records/s."""

    keys: int = 1_000_000
    rate: float = 200.0
    scale: tuple[int, ...] = (1, 2, 3, 1)
    bounces: int = 20
    kills: int = 20
    members: int = 3
    partitions: int = 6
    seed: int = 0
    static: bool = False

    def draw_kills(self) -> list[Kill]:
        """From the seed."""
        chance = random.Random(self.seed)
        return [
            Kill(
                chance.randint(1, self.members),
                chance.random() < 0.5,
                round(chance.uniform(0.0, LONGEST_AWAY_S), 1),
            )
            for _ in range(self.kills)
        ]

    def leavers(self) -> random.Random:
        """Who leaves at a step down."""
        return random.Random(self.seed + 1)


class ElasticRun:
    """One run of a plan; `run` once."""

    def __init__(
        self, plan: Plan, broker: EmbeddedBroker, folder: Path, name: str = APPLICATION
    ) -> None:
        self.plan = plan
        self.stage = Stage(name, broker, folder, Sizes(plan.keys, plan.rate, plan.partitions))
        self.group, self.report = self.stage.group, self.stage.report
        self.report.seed = plan.seed

    def run(self) -> Report:
        """All parts, then the checks."""
        with self.stage:
            self._scale()
            if self.plan.bounces:
                self._become(static=True)
                self._bounce()
            if self.plan.kills:
                self._become(static=self.plan.static)
                self._kill()
            return self.stage.finish()

    # --- the parts -------------------------------------------------------------------------------

    def _scale(self) -> None:
        chance = self.plan.leavers()
        self._start(1, self.plan.static, standbys=0)
        self.group.wait_balanced(0)
        began = time.monotonic()
        self.stage.fill()
        print(f"{self.plan.keys:,} keys counted in {time.monotonic() - began:.0f} s", flush=True)
        for before, after in pairwise(self.plan.scale):
            while len(self.group.living()) < after:
                new = min(
                    {*range(1, after + 1)} - {process.instance for process in self.group.living()}
                )
                with self._round("scale-out", f"instance {new} joins"):
                    self._start(new, self.plan.static, standbys=0)
                    self.group.wait_balanced(0)
            while len(self.group.living()) > after:
                gone = chance.choice([process.instance for process in self.group.living()])
                with self._round("scale-in", f"instance {gone} leaves ({before} to {after})"):
                    self.group.leave(gone)
                    self.stage.note_files()
                    self.group.wait_balanced(0)

    def _become(self, static: bool) -> None:
        """The members of the next part, one after the other: further steps out and in, with
        standbys from here on."""
        running = {process.instance for process in self.group.living()}
        # Those that are away come first: somebody must be there to take over from those that are
        # replaced.
        for instance in sorted(
            range(1, self.plan.members + 1), key=lambda number: (number in running, number)
        ):
            here = [process for process in self.group.living() if process.instance == instance]
            if here and self.plan.static:
                continue
            if here:
                with self._round("scale-in", f"instance {instance} leaves"):
                    self.group.leave(instance)
                    self.stage.note_files()
                    self.group.wait_spread()
            with self._round(
                "scale-out",
                f"instance {instance} joins as a {'static' if static else 'dynamic'} member",
            ):
                self._start(instance, static, standbys=1)
                self.group.wait_spread()
        for process in self.group.living():
            if process.instance > self.plan.members:
                with self._round("scale-in", f"instance {process.instance} leaves"):
                    self.group.leave(process.instance)
                    self.stage.note_files()
        self.group.wait_balanced(0 if self.plan.static else 1)

    def _bounce(self) -> None:
        for number in range(self.plan.bounces):
            instance = 1 + number % self.plan.members
            settings, before = self.group.of(instance).settings, self.group.generation()
            with self._round("bounce", f"instance {instance}, generation {before}"):
                self.group.stop(instance)
                self.stage.note_files()
                self.group.start(instance, **settings)
                self.group.wait_balanced(0 if self.plan.static else 1)
            after = self.group.generation()
            if after != before:
                self.report.generations_changed_in_bounces += 1
                self.report.remarks.append(
                    f"bounce {number + 1} of instance {instance}: generation {before} became "
                    f"{after}"
                )

    def _kill(self) -> None:
        for kill in self.plan.draw_kills():
            settings = self.group.of(kill.instance).settings
            kind = "kill-host" if kill.whole else "kill-driver"
            with self._round(kind, f"instance {kill.instance}, back after {kill.away_s} s"):
                self.group.kill(kill.instance, kill.whole)
                self.stage.note_files()
                back_s = time.monotonic() + kill.away_s
                self.group.wait(
                    "its return",
                    partial(lambda until: time.monotonic() >= until, back_s),
                    LONGEST_AWAY_S + 60,
                )
                self.group.start(kill.instance, **settings)
                self.group.wait_balanced(0 if self.plan.static else 1)

    # --- small things ----------------------------------------------------------------------------

    def _start(self, instance: int, static: bool, standbys: int) -> None:
        settings: dict[str, Any] = {"num.standby.replicas": 0 if self.plan.static else standbys}
        if static:
            settings |= {
                "group.instance.id": f"static-{instance}",
                "session.timeout.ms": STATIC_SESSION_MS,
            }
        else:
            settings |= {"session.timeout.ms": DYNAMIC_SESSION_MS}
        self.group.start(instance, **settings)

    def _round(self, kind: str, what: str) -> _Round:
        return _Round(self, kind, what)


class _Round:
    """Counts a fault and says in one line how long it took."""

    def __init__(self, run: ElasticRun, kind: str, what: str) -> None:
        self._run, self._kind, self._what = run, kind, what

    def __enter__(self) -> None:
        report = self._run.report
        report.rounds += 1
        report.faults[self._kind] = report.faults.get(self._kind, 0) + 1
        self._since = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            took, sent = time.monotonic() - self._since, self._run.stage.load.sent
            number = self._run.report.rounds
            print(
                (
                    f"round {number}: {self._kind}, {self._what}: {sent:,} records under way, "
                    f"{took:.0f} s"
                ),
                flush=True,
            )


def main(arguments: Sequence[str]) -> int:
    """0 if everything is clean."""
    parser = argparse.ArgumentParser(
        prog="./run chaos elastic", description="instances come and go under load"
    )
    parser.add_argument("--keys", type=int, default=Plan.keys)
    parser.add_argument("--rate", type=float, default=Plan.rate, help="records/s")
    parser.add_argument(
        "--scale", default=",".join(map(str, Plan.scale)), help="sizes of the group, e.g. 1,2,3,1"
    )
    parser.add_argument("--bounces", type=int, default=Plan.bounces)
    parser.add_argument("--kills", type=int, default=Plan.kills)
    parser.add_argument(
        "--members", type=int, default=Plan.members, help="instances that are bounced and killed"
    )
    parser.add_argument("--partitions", type=int, default=Plan.partitions)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument(
        "--static", action="store_true", help="static members throughout, no standbys"
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.add_argument(
        "--keep",
        type=unused_folder,
        default=None,
        help="where logs and state stay, new or empty; default: a temporary one",
    )
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    scale = tuple(int(size) for size in options.scale.split(","))
    plan = Plan(
        options.keys,
        options.rate,
        scale,
        options.bounces,
        options.kills,
        options.members,
        options.partitions,
        seed,
        options.static,
    )
    with tempfile.TemporaryDirectory(prefix="ef-elastic-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with EmbeddedBroker(folder / "broker", heap="768m") as broker:
            report = ElasticRun(plan, broker, folder).run()
    print("\n".join(report.remarks[:REMARKS_SHOWN]))
    tell({key: value for key, value in asdict(report).items() if key != "remarks"}, options.json)
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
