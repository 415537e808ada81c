"""Rounds of kill -9 against a real instance on a real broker, with input all the while; then the
books are checked.

Usage: ``./run chaos kills [--rounds N] [--seed N] [--matrix] [--json FILE]``. The faults are drawn
from the seed before anything runs: who is killed (a Python worker, the driver, Spark's JVM, the
broker), and when (at a named point of a micro-batch, or at a random moment). ``--matrix`` takes
every process at every named point once instead. Ends with 1 if anything was lost, doubled, wrong or
wiped.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# A chaos round needs the same instance, and the same looks into it, as the crash tests.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.report import ChaosReport, tell  # noqa: E402
from everflow.state.changelog import unpack_value  # noqa: E402
from everflow.testing.broker import EmbeddedBroker  # noqa: E402
from everflow.worker.crash_points import NAMES  # noqa: E402
from integration.crash.crash_instance import PARTITIONS, Application, Pair, kill  # noqa: E402
from integration.crash.crash_topologies import copies_topic, counts_topic  # noqa: E402

WORKER, DRIVER, JVM, BROKER = "worker", "driver", "jvm", "broker"
ANY_TIME = "any-time"
KEYS = 50
BURST = 20
LONGEST_WAIT_S = 3.0


class Fault(NamedTuple):
    """``victim`` is killed at ``point``; at `ANY_TIME` after ``wait_s`` seconds."""

    victim: str
    point: str
    wait_s: float = 0.0


def draw(rounds: int, seed: int) -> list[Fault]:
    """The faults of a run, all of them before it begins."""
    chance = random.Random(seed)
    faults = []
    for _ in range(rounds):
        victim = chance.choice((WORKER, WORKER, DRIVER, JVM, BROKER))
        point = ANY_TIME if victim == BROKER else chance.choice((*NAMES, ANY_TIME))
        faults.append(Fault(victim, point, round(chance.uniform(0.0, LONGEST_WAIT_S), 2)))
    return faults


def matrix() -> list[Fault]:
    """Every process at every named point."""
    return [Fault(victim, point) for victim in (WORKER, DRIVER, JVM) for point in NAMES]


class Input(threading.Thread):
    """Bursts of records until it is stopped; a broker that is away is waited for by the
    producer."""

    def __init__(self, app: Application, tag: str) -> None:
        super().__init__(daemon=True)
        self._app, self._tag, self._stop_asked = app, tag, threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        number = 0
        try:
            while not self._stop_asked.wait(0.05):
                burst = range(number, number + BURST)
                self._app.produce([(f"k{at % KEYS}", f"{self._tag}-{at}") for at in burst])
                number += BURST
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()
        if self.failure is not None:
            raise self.failure


def run_round(app: Application, fault: Fault, tag: str) -> None:
    """One fault under load; afterwards the instance runs and has worked everything off."""
    if not app.running:
        app.start()
    if fault.point != ANY_TIME:
        app.arm(fault.point)
    load = Input(app, tag)
    load.start()
    try:
        if fault.point == ANY_TIME:
            threading.Event().wait(fault.wait_s)
            worker = next(
                (p.pid for p in app.family() if "python" in p.name() and not p.children()),
                app.driver,
            )
        else:
            worker = app.wait_reached(fault.point)
        strike(app, fault.victim, worker)
    finally:
        load.stop()
    app.drain()


def strike(app: Application, victim: str, worker: int) -> None:
    """Kill, and start again what does not come back by itself."""
    if victim == BROKER:
        app.broker.kill()
        app.broker.start()
        return
    app.family()
    if victim == DRIVER or (victim == WORKER and worker == app.driver):
        assert app.process is not None
        app.process.kill()
    else:
        kill(worker if victim == WORKER else app.jvm())
    if victim != WORKER:
        app.wait_end(60)
        app.start()


def account(app: Application, stores: dict[int, tuple[str, int]], report: ChaosReport) -> None:
    """Compare everything that was written with everything that was sent."""
    copies = Counter[Pair](
        (record.key, record.value) for record in app.read_all(copies_topic(app.name))
    )
    expected = Counter[Pair]((key.encode(), value.encode()) for key, value in app.sent)
    report.lost += (expected - copies).total()
    report.duplicated += (copies - expected).total()
    truth = Counter(key for key, _ in app.sent)
    updates: dict[str, list[int]] = {}
    for record in app.read_all(counts_topic(app.name)):
        updates.setdefault((record.key or b"").decode(), []).append(
            int.from_bytes(record.value or b"", "big")
        )
    for key, count in truth.items():
        seen = updates.get(key, [0])
        report.lost += max(0, count - seen[-1])
        report.duplicated += max(0, seen[-1] - count) + (len(seen) - len(set(seen)))
    for partition in range(PARTITIONS):
        content = app.store_content(partition)
        counts = {
            key.decode(): int.from_bytes(unpack_value(stored)[1], "big")
            for key, stored in content.items()
        }
        right = content == app.changelog_fold(partition) and all(
            truth[key] == count for key, count in counts.items()
        )
        report.stores_wrong += not right
        report.stores_wiped += app.store_paths()[partition] != stores[partition]


def run(faults: list[Fault], seed: int) -> ChaosReport:
    """All rounds on one application, one line each."""
    report = ChaosReport(len(faults), seed)
    with (
        tempfile.TemporaryDirectory(prefix="ef-chaos-") as folder,
        EmbeddedBroker(Path(folder) / "broker") as broker,
    ):
        app = Application("chaos", broker, Path(folder) / "chaos")
        try:
            app.start()
            app.produce([(f"k{at}", f"first-{at}") for at in range(KEYS)])
            app.drain()
            stores = app.store_paths()
            for number, fault in enumerate(faults):
                since = time.monotonic()
                run_round(app, fault, f"r{number}")
                report.faults[fault.victim] = report.faults.get(fault.victim, 0) + 1
                moment = fault.point if fault.point != ANY_TIME else f"after {fault.wait_s} s"
                took = f"{time.monotonic() - since:.0f} s"
                print(
                    (
                        f"round {number + 1}/{len(faults)}: {fault.victim}, {moment}: "
                        f"{len(app.sent)} "
                        f"records, {took}"
                    ),
                    flush=True,
                )
            account(app, stores, report)
        except BaseException:
            print("\n".join(app.history()), file=sys.stderr)
            raise
        finally:
            app.close()
    return report


def main(arguments: Sequence[str]) -> int:
    """0 if everything is clean."""
    parser = argparse.ArgumentParser(
        prog="./run chaos kills", description="kill -9 under load, then check the books"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument(
        "--matrix",
        action="store_true",
        help="every process at every named point, instead of random rounds",
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    report = run(matrix() if options.matrix else draw(options.rounds, seed), seed)
    tell(asdict(report), options.json)
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
