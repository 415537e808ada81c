"""Slices of `./run chaos`: drawn faults against instances under load; the books are right, and
every fault happened."""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.rounds.command import ChaosRun, Plan
from chaos.rounds.mutations import MUTATIONS
from chaos.rounds.orders import POISON
from chaos.rounds.schedule import LOGS, OFFSETS, Fault, FaultKind, Round
from chaos.rounds.surroundings import possible
from everflow.worker.crash_points import BEFORE_TRANSACTION, COMMITTED, OFFSETS_SENT

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1_500)]


def test_two_rounds_with_workers_held_and_killed_and_bad_records(tmp_path: Path) -> None:
    bad = (Fault(FaultKind.POISON, records=1), Fault(FaultKind.OVERSIZED, records=1))
    held = Fault(FaultKind.HOLD_WORKER, instance=3, point=COMMITTED, away_s=1.0)
    struck = Fault(FaultKind.KILL_WORKER, instance=1, point=OFFSETS_SENT)
    rounds = [Round((*bad, held)), Round((struck,))]
    kinds = frozenset(fault.kind for one in rounds for fault in one.faults)
    run = ChaosRun(Plan(2, seed=1, kinds=kinds, rate=200.0), tmp_path)
    report = run.run(rounds)
    assert report.clean, report.told()
    assert report.faults == {"poison": 1, "oversized": 1, "hold-worker": 1, "kill-worker": 1}
    assert all(report.orders[kind.value] == 1 for kind in POISON)


@pytest.mark.slow
def test_rounds_of_everything(tmp_path: Path) -> None:
    report = ChaosRun(Plan(8, seed=48, kinds=possible(tmp_path)), tmp_path).run()
    assert report.clean, report.told()


def at(kind: FaultKind, point: str, away_s: float = 0.0) -> list[Round]:
    """Three rounds in which an instance after the other meets it."""
    return [
        Round((Fault(kind, instance=1 + turn, point=point, away_s=away_s),)) for turn in range(3)
    ]


def late(where: str) -> list[Round]:
    """Three rounds in which an instance after the other leaves while markers are late there."""
    return [
        Round((Fault(FaultKind.LATE_MARKERS, instance=1 + turn, late=where),)) for turn in range(3)
    ]


FOUND_BY = {
    "commit-gate": at(FaultKind.STALL, BEFORE_TRANSACTION),
    # One instance: its tasks come back to the disk that the orphan writes to, and all of them are
    # in its batch. What it overwrites there is read again, or stays.
    "conditional-apply": at(FaultKind.ORPHAN, COMMITTED, away_s=3.0)[:1] * 3,
    # The dead worker's transaction holds its tasks up, where no other instance can take them, until
    # a task of its thread that was not in it gets records: the new worker ends it.
    "fencing-order": at(FaultKind.KILL_WORKER, OFFSETS_SENT)[:1] * 3,
    "stable-offsets": late(OFFSETS),
    "stable-ends": late(LOGS),
}
MUTATED_SETTLE_S = 120.0
"""What comes at all comes within seconds, and what hangs is given up after 300."""
UNFENCED_SETTLE_S = 12.0
"""An open transaction that is not fenced ends by a later batch, 13 to 40 s later."""


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_without_its_guard_it_fails(mutation: str, tmp_path: Path) -> None:
    """What it finds, it finds because it looks: the same rounds are clean with the guard."""
    rounds = FOUND_BY[mutation]
    kinds = frozenset(fault.kind for one in rounds for fault in one.faults)
    instances = len({fault.instance for one in rounds for fault in one.faults})
    plan = Plan(len(rounds), seed=1, kinds=kinds, instances=instances)
    intact = ChaosRun(plan, tmp_path / "intact").run(rounds)
    assert intact.clean, intact.told()
    settle_s = UNFENCED_SETTLE_S if mutation == "fencing-order" else MUTATED_SETTLE_S
    broken = replace(plan, mutation=mutation, settle_s=settle_s)
    assert fails(ChaosRun(broken, tmp_path / "broken"), rounds)


def fails(run: ChaosRun, rounds: list[Round]) -> bool:
    """Whether the books are wrong, or an instance ends or hangs that should not. A fault that did
    not happen shows nothing."""
    report = run.run(rounds)
    assert not report.not_done, report.told()
    return not report.clean
