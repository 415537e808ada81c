"""Which transactions of a broker are taken for stuck: those that stay decided, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.rounds import coordinator
from chaos.rounds.coordinator import (
    LOOK_EVERY_S,
    STUCK_S,
    CoordinatorStuckError,
    CoordinatorWatch,
    Decided,
    Stuck,
)

ONE = Decided("chaos-a-0", 1, 4, 1_000)
OTHER = Decided("chaos-b-0", 2, 0, 1_500)
NEXT = ONE._replace(epoch=5, began_ms=2_000)
"""The same id's next transaction."""


def test_a_transaction_that_is_decided_in_every_look_is_stuck() -> None:
    stuck = Stuck()
    assert stuck.seen([ONE], 0.0) == []
    assert stuck.seen([ONE, OTHER], STUCK_S - 1) == []
    assert stuck.seen([ONE, OTHER], STUCK_S) == [ONE]
    assert stuck.seen([OTHER], STUCK_S + 1) == [], "it was completed"
    assert stuck.seen([ONE], STUCK_S + 2) == [], "and begins anew"


def test_transactions_one_after_the_other_are_not() -> None:
    stuck = Stuck()
    stuck.seen([ONE], 0.0)
    assert stuck.seen([NEXT], STUCK_S) == []


def test_a_restart_that_does_not_help_is_another_fault() -> None:
    stuck = Stuck()
    stuck.seen([ONE, OTHER], 0.0)
    stuck.restarted([ONE])
    assert not stuck.helped([ONE])
    assert stuck.helped([OTHER])
    assert stuck.seen([ONE, OTHER], 100.0) == [], "its markers are on their way"
    with pytest.raises(CoordinatorStuckError, match="chaos-a-0"):
        stuck.seen([ONE], 100.0 + STUCK_S)


class Broker:
    """One whose coordinator is stuck until it is restarted."""

    running = True
    bootstrap_servers = "b:1"
    restarts = 0

    def restart(self) -> None:
        self.restarts += 1


def test_the_broker_is_restarted_once_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    broker: Any = Broker()
    looks: list[str] = []
    told: list[str] = []
    now_s = 0.0

    def decided(servers: str) -> list[Decided] | None:
        looks.append(servers)
        if 4.0 < now_s < 8.0:
            return None  # it does not answer
        return [ONE] if broker.restarts == 0 else []

    monkeypatch.setattr(coordinator, "decided_at", decided)
    watch = CoordinatorWatch(broker, told.append, lambda: now_s)
    while now_s < 2 * STUCK_S:
        watch.look()
        now_s += 0.2
    assert broker.restarts == 1
    assert told == [f"decided for {STUCK_S:.0f} s without markers: chaos-a-0"]
    assert len(looks) <= 2 * STUCK_S / LOOK_EVERY_S + 1
    assert watch.helped()
    broker.running, before = False, len(looks)
    now_s += 100.0
    watch.look()
    assert len(looks) == before, "a broker that is away is not asked"
