"""What coordinators say of transactional ids, and what is done where one does not answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.errors import RetriableError
from everflow.kafka.errors import LinkLostError
from everflow.kafka.writing.transaction import (
    UNKNOWN_ID,
    TransactionState,
    TransactionStates,
)

CONFIG = {"bootstrap.servers": "somewhere:9092"}
NOT_COORDINATOR = 16


class Link:
    """Two brokers: the odd ids are the second one's."""

    made = 0

    def __init__(self, *_: Any) -> None:
        Link.made += 1
        self.forgotten: list[str] = []
        self.lost: set[int] = set()
        self.closed = False
        self.asked: list[tuple[int, list[str]]] = []

    def run(self, coroutine: Any) -> Any:
        return asyncio.run(coroutine())

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

    def close(self) -> None:
        self.closed = True


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


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    return Link()


def test_each_broker_is_asked_once_and_an_open_one_has_its_begin(link: Link) -> None:
    states = TransactionStates(CONFIG, lambda *_: link)  # type: ignore[arg-type]
    assert states.of(STATES) == {
        "app-0": TransactionState("Ongoing", 500),
        "app-1": TransactionState("CompleteCommit"),
        "app-2": TransactionState(""),
        "app-4": TransactionState("PrepareAbort", 300),
    }
    assert link.asked == [(0, ["app-0", "app-2", "app-4"]), (1, ["app-1", "app-3"])]
    assert link.forgotten == ["app-3"], "the next time another broker is asked"


def test_no_id_is_no_question_and_no_connection() -> None:
    Link.made = 0
    states = TransactionStates(CONFIG, Link)  # type: ignore[arg-type]
    assert states.of([]) == {}
    states.close()
    assert Link.made == 0


def test_a_broker_that_is_away_leaves_out_its_ids_and_the_connection_is_made_anew(
    link: Link,
) -> None:
    states = TransactionStates(CONFIG, lambda *_: link)  # type: ignore[arg-type]
    link.lost = {1}
    assert states.of(["app-0", "app-1"]) == {"app-0": TransactionState("Ongoing", 500)}
    assert link.closed
    link.lost = {0, 1}
    with pytest.raises(RetriableError, match="open transactions"):
        states.of(["app-0"])
