"""What the probes say in each state."""

from __future__ import annotations

import pytest

from everflow.observe.observation import ObservedThread
from everflow.observe.status import live, ready
from unit.observe.observations import ACTIVE, FULL, RESTORING, STANDBY, WHOLE, changed

DEAD_THREAD = [ObservedThread(number=1, alive=False, tasks=0)]


@pytest.mark.parametrize(
    ("state", "alive", "is_ready"),
    [
        ("CREATED", True, False),
        ("REBALANCING", True, True),
        ("RUNNING", True, True),
        ("PENDING_SHUTDOWN", True, False),
        ("NOT_RUNNING", False, False),
        ("PENDING_ERROR", False, False),
        ("ERROR", False, False),
    ],
)
def test_a_state_decides(state: str, alive: bool, is_ready: bool) -> None:
    seen = changed(state=state)
    assert live(seen).ok is alive
    assert ready(seen).ok is is_ready


def test_one_that_restores_is_alive_and_not_ready() -> None:
    verdict = ready(FULL)
    assert live(FULL).ok
    assert verdict == (False, "active tasks that do not run yet: 1_1")
    many = changed(tasks=[RESTORING] * 7)
    assert ready(many).why.endswith("1_1, 1_1, 1_1, 1_1, 1_1 and 2 more")


def test_a_stream_thread_that_ended_is_told() -> None:
    assert live(changed(threads=DEAD_THREAD)) == (False, "stream threads that ended: 1")
    assert live(changed(threads=DEAD_THREAD, state="REBALANCING")).ok, "it starts"


def test_what_stopped_it_is_told() -> None:
    assert live(changed(state="ERROR", error="[EF-X] broken")).why == "state ERROR: [EF-X] broken"


def test_one_with_standbys_only_is_ready_once_it_has_joined() -> None:
    assert ready(changed(tasks=[STANDBY])).ok
    assert not ready(changed(tasks=[], state="REBALANCING", members=None)).ok
    assert not ready(changed(threads=[], state="REBALANCING")).ok


def test_the_ready_one_says_how_many() -> None:
    assert ready(WHOLE).why == "1 active tasks run"
    assert ready(changed(tasks=[ACTIVE] * 2)).why == "2 active tasks run"
