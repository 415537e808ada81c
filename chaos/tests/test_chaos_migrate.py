"""The rounds of `./run chaos migrate`, and a slice of them."""

from pathlib import Path

import pytest

from chaos.migrate import MigrateRun
from chaos.migrate_plan import (
    AGAIN,
    BEFORE,
    EXACT,
    LEAST,
    MIGRATOR,
    NEW,
    OLD,
    POINTS,
    SURROUNDINGS,
    Round,
    Strike,
    deal,
)
from everflow.migration.migrator import COMPARED
from everflow.worker.crash_points import SWITCH_SEEN


@pytest.mark.parametrize("seed", range(20))
def test_every_victim_is_struck_once_at_every_point(seed: int) -> None:
    rounds = deal(seed)
    assert deal(seed) == rounds
    struck = [(one.point, one.victim) for each in rounds for one in each.strikes]
    pairs = {(point, victim) for point in POINTS for victim in (MIGRATOR, OLD, NEW)}
    assert len(struck) == len(set(struck))
    assert set(struck) == pairs | set(SURROUNDINGS)
    assert {one.guarantee for one in rounds} == {EXACT, LEAST}
    assert {one.instances for one in rounds} == {1, 2}


@pytest.mark.parametrize("seed", range(20))
def test_nothing_follows_a_migration_that_is_given_up(seed: int) -> None:
    for each in deal(seed):
        order = [POINTS.index(one.point) for one in each.strikes]
        assert order == sorted(set(order))
        for one in each.strikes[:-1]:
            assert one.then == AGAIN or one.point == "commit-sent" or one.point not in BEFORE


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_migrator_before_the_commit_and_a_new_instance_that_sees_it(tmp_path: Path) -> None:
    strikes = (Strike(COMPARED, MIGRATOR), Strike(SWITCH_SEEN, NEW, whole=False))
    report = MigrateRun(tmp_path, seed=1).run([Round(strikes)])
    assert report.clean, report.remarks
    assert report.switched == 1
    assert sum(report.strikes.values()) == len(strikes)
    assert report.codes == {}
