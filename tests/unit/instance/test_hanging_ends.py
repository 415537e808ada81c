"""An end of which a part hangs: the group is left all the same, others take the tasks over, and
nobody commits behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from everflow.assignment.cluster_state import AssignmentRules
from everflow.instance.client_state import ClientState
from everflow.instance.commit_gate import GateBook
from everflow_simulation.instance import SimulatedPorts, _Loop
from everflow_simulation.pool import FiberPool
from everflow_simulation.scheduler import SimulatedClock
from everflow_simulation.settings import SimulatedSubTopology, SimulationSettings
from everflow_simulation.simulation import Simulation

NEVER_MS = 3_600_000.0
SMALL = SimulationSettings(
    subtopologies=(SimulatedSubTopology(4),), rules=AssignmentRules(num_standbys=0)
)


def for_ever(clock: SimulatedClock) -> Callable[..., None]:
    return lambda *_, **__: clock.park(NEVER_MS)


def ended_ms(group: Simulation, name: str) -> float:
    """How long its end takes, ten minutes at most."""
    began = group.now_ms
    # Nobody processes its tasks meanwhile: who takes them over has a larger batch once.
    group.checks.all_disturbed(120_000.0)
    group.close_instance(name, leave_group=True, drain_ms=None)
    while not group.instances[name].ended and group.now_ms - began < 600_000:
        group.run_for(1_000)
    return group.now_ms - began


def test_a_batch_of_which_no_worker_is_known_holds_no_end_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where others have all of Spark's places: its job waits, nobody has said hello, nobody can
    be killed."""
    with Simulation(SMALL, seed=21) as group:
        group.add(2)
        group.settle(60_000)
        monkeypatch.setattr(GateBook, "take_pids", lambda self, thread: ())
        group.stall_batch("i2", 0, NEVER_MS)
        group.backlog(1_000)
        group.run_for(1_000)
        book = group.instances["i2"].book
        held = [batch.batch_id for batch in book._open.values() if batch.thread == 0]
        assert held
        assert ended_ms(group, "i2") < 60_000
        assert "Stream threads 0 have not ended within 10 s" in caplog.text
        life = group.instances["i2"].lifecycle
        assert life.states.state is ClientState.NOT_RUNNING
        assert "Stream threads 0" in str(life.error)
        assert not book.hello(held[0], "t0-sink", 1), "a worker that comes later is sent away"
        group.settle(60_000)
        group.require_progress(10_000)


HANGING: dict[str, tuple[type, str]] = {
    "Finishing the events of its loop": (_Loop, "end"),
    "Waiting for restores and copies to stop": (FiberPool, "shutdown"),
    "Closing the stores": (SimulatedPorts, "checkpoint"),
}


@pytest.mark.parametrize("step", HANGING)
def test_a_step_that_hangs_holds_no_end_up(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner, name = HANGING[step]
    with Simulation(SMALL, seed=22) as group:
        group.add(2)
        group.settle(60_000)
        clock = cast("SimulatedPorts", group.instances["i2"].ports).clock
        monkeypatch.setattr(owner, name, for_ever(clock))
        assert ended_ms(group, "i2") < 60_000
        assert f"{step} has not ended within 30 s" in caplog.text
        monkeypatch.undo()
        group.settle(60_000)
        group.require_progress(10_000)
