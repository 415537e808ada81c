"""A group whose coordinator tells old offsets for a while (note 064), in the simulated world."""

from __future__ import annotations

import pytest

from everflow.assignment.cluster_state import AssignmentRules
from everflow.instance.tasks.recovery import CommittedLowerBounds
from everflow.worker.crash_points import OFFSETS_SENT
from everflow_simulation.checks import InvariantError
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings
from everflow_simulation.simulation import Simulation

SETTINGS = SimulationSettings(
    subtopologies=(SimulatedSubTopology(8), SimulatedSubTopology(4, stateful=False)),
    rules=AssignmentRules(num_standbys=0),
)
FORGETS_MS = 40_000


def brokers_that_come_back_forgetful(seed: int) -> None:
    """All whose batch failed recover, and an instance that was killed comes back."""
    with Simulation(SETTINGS, seed=seed) as group:
        group.add(3)
        group.settle(60_000)
        group.backlog(200_000)
        group.run_for(10_000)
        group.settle(120_000)
        group.lose_brokers(3_000)
        group.forget_offsets(FORGETS_MS)
        group.crash_worker("i1", 0, OFFSETS_SENT)
        group.kill("i2")
        group.run_for(4_000)
        group.restart("i2")
        group.crash_worker("i3", 0, OFFSETS_SENT)
        group.run_for(FORGETS_MS)
        group.settle(200_000)
        group.require_progress(20_000)


@pytest.mark.parametrize("seed", range(5))
def test_offsets_that_a_coordinator_has_forgotten_are_not_believed(seed: int) -> None:
    brokers_that_come_back_forgetful(seed)


def test_who_believes_whatever_the_coordinator_tells_counts_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CommittedLowerBounds, "went_back", lambda *_: {})
    monkeypatch.setattr(CommittedLowerBounds, "others_went_back", lambda *_: {})
    with pytest.raises(InvariantError) as error:
        brokers_that_come_back_forgetful(0)
    assert error.value.name == "I3"
