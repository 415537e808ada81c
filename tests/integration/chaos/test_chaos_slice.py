"""Slices of `./run chaos`: drawn faults against instances under load; the books are right, and
every fault happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.rounds.command import ChaosRun, Plan
from chaos.rounds.mutations import MUTATIONS
from chaos.rounds.orders import POISON
from chaos.rounds.schedule import Fault, FaultKind, Round
from chaos.rounds.surroundings import possible
from everflow.runtime.worker.crash_points import BEFORE_TRANSACTION, COMMITTED, OFFSETS_SENT

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1_500)]


@pytest.mark.slow
def test_two_rounds_with_a_worker_killed_and_bad_records(tmp_path: Path) -> None:
    bad = (Fault(FaultKind.POISON, records=1), Fault(FaultKind.OVERSIZED, records=1))
    struck = Fault(FaultKind.KILL_WORKER, instance=1, point=OFFSETS_SENT)
    kinds = frozenset({FaultKind.POISON, FaultKind.OVERSIZED, FaultKind.KILL_WORKER})
    run = ChaosRun(Plan(2, seed=1, kinds=kinds, instances=2), tmp_path)
    report = run.run([Round(bad), Round((struck,))])
    assert report.clean, report.told()
    assert report.faults == {"poison": 1, "oversized": 1, "kill-worker": 1}
    assert all(report.orders[kind.value] == 1 for kind in POISON)


@pytest.mark.slow
def test_rounds_of_everything(tmp_path: Path) -> None:
    report = ChaosRun(Plan(8, seed=48, kinds=possible(tmp_path)), tmp_path).run()
    assert report.clean, report.told()


STALLED = [
    Round((Fault(FaultKind.STALL, instance=1 + turn % 2, point=BEFORE_TRANSACTION),))
    for turn in range(3)
]
ORPHANED = [
    Round((Fault(FaultKind.ORPHAN, instance=1 + turn % 2, point=COMMITTED, away_s=3.0),))
    for turn in range(3)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "rounds"), [("commit-gate", STALLED), ("conditional-apply", ORPHANED)]
)
def test_without_its_guard_it_fails(mutation: str, rounds: list[Round], tmp_path: Path) -> None:
    """What it finds, it finds because it looks: the same rounds are clean with the guard."""
    assert mutation in MUTATIONS
    kinds = frozenset(fault.kind for one in rounds for fault in one.faults)
    intact = ChaosRun(Plan(len(rounds), seed=1, kinds=kinds), tmp_path / "intact").run(rounds)
    assert intact.clean, intact.told()
    plan = Plan(len(rounds), seed=1, kinds=kinds, mutation=mutation)
    broken = ChaosRun(plan, tmp_path / "broken").run(rounds)
    assert not broken.clean
