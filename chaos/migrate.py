"""Migrations under load that are struck at named points; then the books are checked.

Usage: ``./run chaos migrate [--rounds N] [--seed N] [--json FILE]``. Each round migrates the
version that runs to the next one (a store renamed, an operator inserted, at times more partitions),
and at one to four points of it somebody is killed with -9: the migrator, an instance of the old
version, or one of the new version; or the broker is restarted, or the migrator's connection breaks.
Every pair of point and victim comes once; ``--rounds`` ends it earlier. After its kill the migrator
is called again, or with ``--back``, or left alone: the seed says which. What a round leaves runs on
in the next one. Every fourth round is at least once, on an application of its own. Ends with 1 if
anything was lost, doubled or wrong, or if a look found one version switched and not the other.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A round needs the same looks into a cluster as the tests of whole instances.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chaos.migrate_books import Report, account  # noqa: E402
from chaos.migrate_plan import (  # noqa: E402
    AGAIN,
    BACK,
    BEHIND,
    BROKER,
    COMMIT_SENT,
    CONNECTION,
    EXACT,
    LEAST,
    MIGRATOR,
    NEW,
    NOTHING,
    OLD,
    Round,
    Strike,
    deal,
)
from chaos.migrate_stage import WAIT_S, Chain, Load  # noqa: E402
from chaos.report import tell  # noqa: E402
from everflow.migration.migrator import (  # noqa: E402
    COMPARED,
    DRAINED,
    HELD,
    INPUTS_HELD,
    MARKED,
    REST_COPIED,
    SWITCHED,
    SWITCHING,
)
from everflow.testing import wait_until  # noqa: E402
from everflow.testing.broker import EmbeddedBroker  # noqa: E402

MOST_PARTITIONS = 12
RATE = 300.0
STANDING = (INPUTS_HELD, DRAINED, HELD, REST_COPIED, COMPARED, SWITCHING)
"""The old version stands still: who comes back joins a group that holds."""


class MigrateRun:
    """Rounds on a broker of its own; `run` once."""

    def __init__(self, folder: Path, seed: int, rate: float = RATE) -> None:
        self.folder, self.seed, self.rate = folder, seed, rate
        self.report = Report(seed=seed)

    def run(self, rounds: Sequence[Round]) -> Report:
        with EmbeddedBroker(self.folder / "broker") as broker:
            for guarantee in (EXACT, LEAST):
                of_it = [one for one in rounds if one.guarantee == guarantee]
                if of_it:
                    chain = Chain(broker, self.folder, guarantee)
                    try:
                        self._rounds(chain, of_it, len(rounds))
                    finally:
                        self.report.records += len(chain.times)
                        for code, times in chain.codes.items():
                            self.report.codes[code] = self.report.codes.get(code, 0) + times
                        chain.close()
        return self.report

    def _rounds(self, chain: Chain, rounds: Sequence[Round], of: int) -> None:
        chain.start()
        for one in rounds:
            since, began_ms = time.monotonic(), int(time.time() * 1000)
            with self._load(chain):
                ended = self._round(chain, one)
            self._settle(chain, ended)
            account(chain, began_ms, self.report)
            self.report.rounds += 1
            struck = ", ".join(
                f"{strike.victim} at {strike.point}"
                + (f" ({strike.then})" if strike.victim == MIGRATOR else "")
                for strike in one.strikes
            )
            print(
                f"round {self.report.rounds}/{of}, {one.guarantee}: {struck}: {ended}; "
                f"{len(chain.times)} records, {time.monotonic() - since:.0f} s",
                flush=True,
            )
            if not self.report.clean:
                raise AssertionError("\n".join(self.report.remarks))

    @contextmanager
    def _load(self, chain: Chain) -> Iterator[None]:
        load = Load(chain.broker.bootstrap_servers, chain.source, chain.times, self.rate)
        load.start()
        try:
            yield
        finally:
            load.stop()

    # --- a round ---------------------------------------------------------------------------------

    def _round(self, chain: Chain, one: Round) -> str:
        """How it ended: "switched", `BACK` or `NOTHING`."""
        if chain.pending and one.strikes[0].point == MARKED:  # it was reached a round ago
            self._give_up(chain)
            chain.pending = False
        if one.grows and not chain.pending and chain.old.partitions < MOST_PARTITIONS:
            partitions = chain.old.partitions + 2
            chain.new = chain.next_version(chain.new.number, partitions)
        instances = len(chain.news) or one.instances
        chain.arm(one.strikes)
        chain.call(instances)
        for strike in one.strikes:
            if strike.point != MARKED:
                self._until_created(chain)
                chain.follow(instances)
            ended = self._strike(chain, strike, instances)
            key = f"{strike.victim} {strike.point}"
            self.report.strikes[key] = self.report.strikes.get(key, 0) + 1
            if ended is not None:
                return ended
        return self._finish(chain, instances)

    def _until_created(self, chain: Chain) -> None:
        """The new version may be started."""
        wanted = {chain.new.changelog(name) for name in (chain.new.counts, "windows")}

        def created() -> bool:
            ended = chain.process is not None and chain.process.poll() is not None
            there = chain.new.between in (topics := chain.cluster.topics()) and wanted <= set(
                topics
            )
            assert there or not ended, chain.said()
            return there

        wait_until(created, WAIT_S, "the internal topics of the new version", chain.said)

    def _strike(self, chain: Chain, strike: Strike, instances: int) -> str | None:
        point, held, lost = strike.point, None, False
        if point == COMMIT_SENT:
            chain.until_reached(SWITCHING)
            lost = strike.victim in (CONNECTION, BROKER)
            held = chain.proxy.lose_answer("EndTxn") if lost else chain.proxy.hold("EndTxn")
            chain.go(SWITCHING)
            held.wait(1, WAIT_S)
        else:
            chain.until_reached(point)

        def goes_on() -> None:
            if held is not None and not lost:
                held.release(WAIT_S)
            if point != SWITCHED:  # there the migrator waits until all are struck
                chain.go(point)

        if strike.victim == MIGRATOR:
            return self._migrator_killed(chain, strike, goes_on, instances)
        if strike.victim in (OLD, NEW):
            self._instance_killed(chain, strike, goes_on, instances)
        elif strike.victim == BROKER:
            chain.broker.stop()
            chain.broker.start()
            chain.may_double = chain.guarantee == LEAST
            goes_on()
        elif point != COMMIT_SENT:
            chain.proxy.cut()
            goes_on()
            threading.Event().wait(strike.seconds)
            chain.proxy.mend()
        return None

    def _instance_killed(
        self, chain: Chain, strike: Strike, goes_on: Callable[[], None], instances: int
    ) -> None:
        chain.may_double = chain.guarantee == LEAST
        if strike.victim == NEW:
            chain.follow(instances)
        one = (chain.olds if strike.victim == OLD else chain.news)[0]
        may_end = strike.victim == OLD and strike.point in BEHIND
        if strike.victim == NEW and strike.point == MARKED:
            chain.until_waiting(one)
        elif not (may_end and one.ended):
            chain.until_joined(one)
        if one.ended:
            assert may_end, one.history()
        else:
            one.kill(whole=strike.whole)
        if strike.late:
            goes_on()
        chain.begin(one)
        if not strike.late:
            if strike.victim == OLD and strike.point in STANDING:
                chain.require_joined(one)
            goes_on()

    def _migrator_killed(
        self, chain: Chain, strike: Strike, goes_on: Callable[[], None], instances: int
    ) -> str | None:
        chain.kill_migrator()
        goes_on()
        behind = strike.point in BEHIND
        switched = chain.switched()
        assert switched or not behind, f"not switched, and killed at {strike.point}"
        self.report.then[strike.then] = self.report.then.get(strike.then, 0) + 1
        if switched:
            if strike.then != NOTHING:
                chain.launch(*(["--back"] if strike.then == BACK else []))
                assert chain.until_ended() == 1, chain.said()
                code = "EF-MIGRATION-PLAN" if strike.then == BACK else "EF-MIGRATED"
                assert any(code in line for line in chain.said()), chain.said()
            return None
        if strike.then == AGAIN:
            for left in chain.points.glob("*.go"):
                left.unlink()
            chain.call(instances)
            return None
        if strike.then == BACK:
            self._give_up(chain)
            return BACK
        chain.follow(instances)
        return NOTHING

    def _give_up(self, chain: Chain) -> None:
        """By `--back`, which is refused while instances of the new version run."""
        if any(not one.ended for one in chain.news):
            for one in chain.news:
                chain.until_joined(one)
            chain.launch("--back")
            assert chain.until_ended() == 1, chain.said()
            assert any("EF-MIGRATION-MEMBERS" in line for line in chain.said()), chain.said()
        for one in chain.news:
            one.close()
        chain.until_gone(chain.new)
        chain.launch("--back")
        assert chain.until_ended() == 0, chain.said()
        kept = [name for name in chain.cluster.topics() if name.startswith(chain.new.id)]
        assert not kept, kept
        assert not chain.marks(chain.new)
        chain.news = []

    def _finish(self, chain: Chain, instances: int) -> str:
        """Until the command has switched."""
        chain.follow(instances)
        chain.go(SWITCHED)
        assert chain.process is not None
        killed = (chain.process.poll() or 0) < 0  # behind the switch
        while not killed and chain.until_ended() and not chain.switched():
            chain.call_again()
        assert chain.switched(), chain.said()
        return "switched"

    def _settle(self, chain: Chain, ended: str) -> None:
        """The version that is to run has processed all there is; the other one runs nothing."""
        chain.arm(())
        if ended == "switched":
            self.report.switched += 1
            for one in chain.news:
                chain.require_joined(one)
            chain.until_processed(chain.new, chain.news)
            for one in chain.olds:
                chain.until_ended_by_switch(one)
            chain.pending = False
            return
        self.report.went_back += ended == BACK
        self.report.left += ended == NOTHING
        chain.pending = ended == NOTHING
        chain.until_processed(chain.old, chain.olds)


def main(arguments: Sequence[str]) -> int:
    """0 if everything is clean."""
    parser = argparse.ArgumentParser(
        prog="./run chaos migrate",
        description="kill -9 at named points of migrations under load, then check the books",
    )
    parser.add_argument("--rounds", type=int, default=None, help="default: until all were struck")
    parser.add_argument("--first", type=int, default=1, help="the first round of these to be run")
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--rate", type=float, default=RATE, help="records/s")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    rounds = deal(seed)[options.first - 1 :][: options.rounds]
    print(f"seed {seed}, {len(rounds)} rounds", flush=True)
    with tempfile.TemporaryDirectory(prefix="ef-migrate-") as folder:
        run = MigrateRun(Path(folder), seed, options.rate)
        try:
            run.run(rounds)
        except BaseException as error:
            run.report.remarks.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            tell(asdict(run.report), options.json)
    return 0 if run.report.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
