"""What the brokers say of transactional ids: is a transaction open, since when (KIP-664).

librdkafka has no such request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeTransactionsRequest

from everflow.errors import RetriableError
from everflow.kafka.broker_link import BrokerLink, LinkLostError, RefusedError
from everflow.kafka.writing.writer_settings import writer_settings

UNKNOWN_ID = 105
"""TRANSACTIONAL_ID_NOT_FOUND: nobody has written under it yet, or not for a week."""
OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""Kafka's words for a transaction whose records readers of committed ones do not see yet."""
ANSWER_MS = 5_000


class TransactionState(NamedTuple):
    """``state``: Kafka's word; empty where the brokers do not know the id. ``since_ms``: of the
    broker's clock, since when its transaction is open; None: none is."""

    state: str
    since_ms: int | None = None


class TransactionStates:
    """Asks the coordinators of transactional ids. Owned by one thread; keeps its connections until
    `close`, and opens them anew where they are needed again."""

    def __init__(
        self, config: Mapping[str, Any], link: Callable[..., BrokerLink] = BrokerLink
    ) -> None:
        """``config``: the producer's, of librdkafka's keys. Raises ConfigError."""
        self._connection = writer_settings(config).connection
        self._open = link
        self._link: BrokerLink | None = None

    def of(self, ids: Collection[str]) -> dict[str, TransactionState]:
        """The states that the brokers told; who did not answer is missing. Raises RetriableError
        where none did."""
        if not ids:
            return {}
        if self._link is None:
            self._link = self._open(
                self._connection, ANSWER_MS, ANSWER_MS / 1000, "everflow-transactions"
            )
        found: dict[str, TransactionState] = {}
        try:
            self._link.run(partial(self._ask, self._link, sorted(ids), found))
        except (LinkLostError, RefusedError) as failure:
            self.close()
            if not found:
                raise RetriableError(f"asking for open transactions: {failure}") from failure
        return found

    def close(self) -> None:
        """The connections."""
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _ask(
        self, link: BrokerLink, ids: list[str], found: dict[str, TransactionState]
    ) -> None:
        of_node: dict[int, list[str]] = {}
        for one in ids:
            of_node.setdefault(await link.coordinator("transaction", one), []).append(one)
        for node, mine in of_node.items():
            request = DescribeTransactionsRequest(transactional_ids=mine)
            answer = await link.send(node, request, ANSWER_MS / 1000)
            for one in answer.transaction_states:
                state = _state(one)
                if state is None:  # it is another broker by now, or loads: the next time
                    link.forget_coordinator("transaction", one.transactional_id)
                else:
                    found[one.transactional_id] = state


def _state(told: Any) -> TransactionState | None:
    if told.error_code == UNKNOWN_ID:
        return TransactionState("")
    if told.error_code:
        return None
    state = str(told.transaction_state)
    return TransactionState(state, int(told.transaction_start_time_ms) if state in OPEN else None)
