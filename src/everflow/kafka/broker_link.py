"""kafka-python's connections under our own requests: leaders, coordinators, requests and answers.

What reaches into kafka-python 3.0 for writing and for watching logs is here. There is no IO thread:
the event loop turns in the caller's thread whenever it waits, so nothing is handed from thread to
thread in a batch.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

import kafka.errors as client_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    CoordinatorType,
    FindCoordinatorRequest,
)
from kafka.structs import TopicPartition as ClientTopicPartition

from everflow.kafka.group_channel import classify
from everflow.records import TopicPartition

T = TypeVar("T")
CoordinatorKind = Literal["group", "transaction"]
_KINDS = {"group": CoordinatorType.GROUP, "transaction": CoordinatorType.TRANSACTION}
_TRANSACTION_FEATURE = "transaction.version"
_STEPS_TO_THE_WIRE = 8
"""Turns from a new task to its bytes in the socket, and one or two more."""
_NO_LEADER = (None, -1)


class LinkLostError(Exception):
    """No answer: the connection could not be made, or ended. Whether the broker did what it was
    asked is unknown, if ``sent``."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class RefusedError(Exception):
    """A broker's error code."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or f"error code {code}")
        self.code = code


class BrokerLink:
    """Owned by one thread; every method but the coroutines turns the loop in it. Opens one
    connection to each broker that it needs, until closed."""

    def __init__(
        self,
        connection: Mapping[str, Any],
        request_timeout_ms: int,
        timeout_s: float,
        client_id: str = "everflow-writer",
    ) -> None:
        """``connection``: of `connection_settings`; ``client_id`` where it says none. Raises
        RetriableError if no broker answers within ``timeout_s`` seconds, FatalError if one refuses
        this client."""
        servers = str(connection["bootstrap_servers"])
        settings = {
            "client_id": client_id,
            **connection,
            "bootstrap_servers": servers.split(","),
            "request_timeout_ms": request_timeout_ms,
            "reconnect_backoff_max_ms": 1_000,
        }
        # A step of the loop may encode some megabytes: nothing to warn of.
        self._net = NetworkSelector(client_id=settings["client_id"], slow_task_threshold_secs=0)
        self._manager = KafkaConnectionManager(self._net, **settings)
        self._cluster = self._manager.cluster
        try:
            self._manager.bootstrap(timeout_ms=max(1, int(timeout_s * 1000)))
        except client_errors.KafkaError as failure:
            self.close()
            raise classify(failure, f"connecting {client_id} to {servers}") from failure

    # --- the loop ---------------------------------------------------------------------------------

    def run(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        """Turn the loop until ``coroutine`` ends; it has its own deadline. Its outcome."""
        future = self._net.call_soon_with_future(coroutine)
        self._net.poll(future=future)
        if future.exception is not None:
            raise future.exception
        outcome: T = future.value
        return outcome

    def start(self, coroutine: Callable[[], Awaitable[None]]) -> None:
        """Let ``coroutine`` go on whenever the loop turns."""
        self._net.call_soon(coroutine)

    def turn(self, wait_s: float) -> None:
        """Do what can be done now; wait for something to do for at most ``wait_s`` seconds."""
        self._net.poll(timeout_ms=wait_s * 1000)

    def started(self, coroutine: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """As `start`; what it gives can be awaited."""
        future: Awaitable[T] = self._net.call_soon_with_future(coroutine)
        return future

    def push(self) -> None:
        """Do all that can be done now: what is asked of the brokers is on its way then."""
        for _ in range(_STEPS_TO_THE_WIRE):
            self._net.poll(timeout_ms=0)

    def now(self) -> float:
        """Seconds, of the clock of deadlines."""
        return time.monotonic()

    async def pause(self, seconds: float) -> None:
        """On the loop."""
        await self._net.sleep(seconds)

    def close(self) -> None:
        """Close the connections; what was not sent is gone."""
        with suppress(RuntimeError):
            self._manager.close()
            self._net.close()

    # --- coroutines -------------------------------------------------------------------------------

    async def send(self, node: int, request: Any, timeout_s: float | None = None) -> Any:
        """The answer; if it does not come within ``timeout_s`` (None: the setting) the connection
        is given up. Raises LinkLostError."""
        sent = False
        try:
            connection = self._manager.get_connection(node)
            await connection
            sent = True
            return await connection.send_request(
                request, None if timeout_s is None else timeout_s * 1000
            )
        except client_errors.IncompatibleBrokerVersion as failure:
            raise RefusedError(failure.errno or 35, str(failure)) from failure
        except client_errors.KafkaError as failure:
            raise LinkLostError(f"{failure}", sent=sent) from failure

    def leader(self, tp: TopicPartition) -> int | None:
        """The node that leads a partition, as far as is known; None if there is none."""
        client_tp = ClientTopicPartition(tp.topic, tp.partition)
        node = self._cluster.leader_for_partition(client_tp)
        return None if node in _NO_LEADER else node

    async def refresh(self, topic: str | None = None) -> None:
        """Ask a broker who leads the partitions of all topics of this writer, and of ``topic``.
        Raises LinkLostError."""
        if topic is not None:
            self._cluster.add_topic(topic)
        try:
            await self._cluster.refresh_metadata()
        except client_errors.KafkaError as failure:
            raise LinkLostError(f"{failure}", sent=False) from failure

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has, as far as is known; 0: unknown."""
        return len(self._cluster.partitions_for_topic(topic) or ())

    def forbidden(self, topic: str) -> bool:
        """Whether the brokers do not even show this topic to this client."""
        return topic in self._cluster.unauthorized_topics

    async def coordinator(self, kind: CoordinatorKind, key: str) -> int:
        """The node that coordinates a group or a transactional id. Raises LinkLostError and
        RefusedError."""
        known = self._cluster.get_coordinator(key, _KINDS[kind])
        if known is not None:
            node: int = known
            return node
        request = FindCoordinatorRequest(
            key=key, key_type=_KINDS[kind].value, min_version=1, max_version=3
        )
        answer = await self.send(self.any_node(), request)
        if answer.error_code:
            raise RefusedError(answer.error_code, answer.error_message or "")
        self._cluster.add_coordinator(answer, _KINDS[kind], key, synthesize_node_id=False)
        return int(answer.node_id)

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        """It was the wrong one, or is away: look for it again."""
        self._cluster._coordinators.pop((_KINDS[kind], key), None)

    async def transaction_version(self) -> int:
        """The cluster's ``transaction.version`` (KIP-890: 2 is the second part); 0 where a broker
        does not say. Raises LinkLostError."""
        answer = await self.send(
            self.any_node(),
            ApiVersionsRequest(
                client_software_name="everflow", client_software_version="0", min_version=3
            ),
        )
        for feature in answer.finalized_features or ():
            if feature.name == _TRANSACTION_FEATURE:
                return int(feature.max_version_level)
        return 0

    def any_node(self) -> int:
        """A node that is connected, if one is. Raises LinkLostError."""
        node = self._manager.least_loaded_node()
        if node is None:
            raise LinkLostError("no broker can be reached", sent=False)
        found: int = node
        return found
