"""What coordinators say of transactional ids, and what is done where one does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.kafka.admin import UNKNOWN_ID, TransactionState, transaction_states
from everflow.kafka.errors import LinkLostError

NOT_COORDINATOR = 16


class Link:
    """Two brokers: the odd ids are the second one's."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []
        self.lost: set[int] = set()
        self.asked: list[tuple[int, list[str]]] = []

    async def coordinator(self, kind: str, key: str) -> int:
        assert kind == "transaction"
        return int(key[-1]) % 2

    def forget_coordinator(self, kind: str, key: str) -> None:
        self.forgotten.append(key)

    async def send(self, node: int, request: Any, timeout_s: float) -> Any:
        if node in self.lost:
            raise LinkLostError("away", sent=True)
        self.asked.append((node, list(request.transactional_ids)))
        return SimpleNamespace(transaction_states=[told(one) for one in request.transactional_ids])


def asked(link: Any, ids: Iterable[str]) -> dict[str, TransactionState]:
    return asyncio.run(transaction_states(link, ids, 1.0))


STATES = {
    "app-0": (0, "Ongoing", 500),
    "app-1": (0, "CompleteCommit", 400),
    "app-2": (UNKNOWN_ID, "", -1),
    "app-3": (NOT_COORDINATOR, "", -1),
    "app-4": (0, "PrepareAbort", 300),
}


def told(name: str) -> Any:
    code, state, start = STATES[name]
    return SimpleNamespace(
        error_code=code,
        transactional_id=name,
        transaction_state=state,
        transaction_start_time_ms=start,
    )


def test_each_broker_is_asked_once_and_an_open_one_has_its_begin() -> None:
    link = Link()
    assert asked(link, STATES) == {
        "app-0": TransactionState("Ongoing", 500),
        "app-1": TransactionState("CompleteCommit"),
        "app-2": TransactionState(""),
        "app-4": TransactionState("PrepareAbort", 300),
    }
    assert link.asked == [(0, ["app-0", "app-2", "app-4"]), (1, ["app-1", "app-3"])]
    assert link.forgotten == ["app-3"], "the next time another broker is asked"


def test_a_broker_that_is_away_leaves_out_its_ids() -> None:
    link = Link()
    link.lost = {0}
    assert asked(link, ["app-0", "app-1"]) == {"app-1": TransactionState("CompleteCommit")}
    link.lost = {0, 1}
    with pytest.raises(LinkLostError):
        asked(link, ["app-0"])
