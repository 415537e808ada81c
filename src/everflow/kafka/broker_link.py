"""kafka-python's connections under our own requests: leaders, coordinators, requests and answers.

What reaches into kafka-python 3.0 for writing and watching logs is here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

import kafka.errors as client_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.metadata import ApiVersionsRequest, CoordinatorType, FindCoordinatorRequest

from everflow.kafka.errors import LinkLostError, RefusedError, classify_member
from everflow.kafka.quick_loop import QuickLoop, quicker
from everflow.kafka.quick_requests import QuickRequest, RequestKind
from everflow.records import TopicPartition

T = TypeVar("T")
CoordinatorKind = Literal["group", "transaction"]
_KINDS = {"group": CoordinatorType.GROUP, "transaction": CoordinatorType.TRANSACTION}
_TRANSACTION_FEATURE = "transaction.version"
_NO_LEADER = (None, -1)
_STOP_CHECK_S = 0.1
_STOP_MS = 1_000
_REASON_MS = 1_000


class BrokerLink:
    """Owned by one thread, in which every method but the coroutines turns the loop."""

    def __init__(
        self,
        connection: Mapping[str, Any],
        request_timeout_ms: int,
        timeout_s: float,
        client_id: str = "everflow-writer",
        threaded: bool = False,
    ) -> None:
        """``connection``: of `connection_settings`; ``threaded``: the loop turns in a thread of its
        own, and any thread may ask for an `outcome`. RetriableError if no broker answers in
        ``timeout_s`` seconds, FatalError if one refuses this client."""
        servers = str(connection["bootstrap_servers"])
        settings = {
            "client_id": client_id,
            "reconnect_backoff_max_ms": 1_000,
            **connection,
            "bootstrap_servers": servers.split(","),
            "request_timeout_ms": request_timeout_ms,
            "receive_message_max_bytes": (1 << 31) - 1,  # one batch may be larger than a fetch
        }
        self._net = QuickLoop(client_id=settings["client_id"])
        self._manager = KafkaConnectionManager(self._net, **settings)
        self._manager._build_transport = quicker(self._manager._build_transport)
        self._cluster = self._manager.cluster
        self._kinds: dict[tuple[Any, ...], tuple[Any, RequestKind]] = {}
        self._threaded = threaded
        if threaded:
            self._net.start()
        try:
            self._manager.bootstrap(timeout_ms=max(1, int(timeout_s * 1000)))
        except client_errors.KafkaError as failure:
            reason = self._net.run(self._reason) or failure
            self.close()
            raise classify_member(reason, f"connecting {client_id} to {servers}") from reason

    def run(self, coroutine: Callable[[], Awaitable[T]]) -> T:
        """Turn the loop until ``coroutine`` ends; it has its own deadline. Its outcome."""
        future = self._net.started(coroutine)
        self._net.poll(future=future)
        if future.exception is not None:
            raise future.exception
        outcome: T = future.value
        return outcome

    def outcome(
        self, coroutine: Callable[[], Awaitable[T]], timeout_s: float, stop: threading.Event
    ) -> T:
        """As `run`, from any thread where the loop has one of its own. TimeoutError if that takes
        longer, or once ``stop`` is set."""
        found: list[T] = []
        failures: list[BaseException] = []
        done = threading.Event()

        async def run() -> None:
            try:
                found.append(await coroutine())
            except BaseException as failure:
                failures.append(failure)
            finally:
                done.set()

        try:
            self._net.call_soon_threadsafe(run)
        except RuntimeError as failure:  # closed meanwhile
            raise LinkLostError(f"{failure}", sent=False) from failure
        until_s = self.now() + timeout_s
        while not done.wait(max(0.0, min(until_s - self.now(), _STOP_CHECK_S))):
            if stop.is_set() or self.now() >= until_s:
                raise TimeoutError
        if failures:
            raise failures[0]
        return found[0]

    def start(self, coroutine: Callable[[], Awaitable[None]]) -> None:
        """Let ``coroutine`` begin now, and go on whenever the loop turns."""
        self._net.started(coroutine)

    def turn(self, wait_s: float) -> None:
        """Do what can be done now; wait for something to do for at most ``wait_s`` seconds."""
        self._net.poll(timeout_ms=wait_s * 1000)

    def started(self, coroutine: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """The outcome of ``coroutine``, which begins now and goes on whenever the loop turns."""
        future: Awaitable[T] = self._net.started(coroutine)
        return future

    def push(self) -> None:
        """Do all that can be done now: what is asked of the brokers is on its way then."""
        self._net.poll(timeout_ms=0)

    def now(self) -> float:
        """Seconds, of the clock of deadlines."""
        return time.monotonic()

    async def pause(self, seconds: float) -> None:
        """On the loop."""
        await self._net.sleep(seconds)

    def close(self) -> None:
        with suppress(RuntimeError):
            if self._threaded:
                self._net.run(self._manager.close)
                self._net.stop(_STOP_MS)
            else:
                self._manager.close()
            self._net.close()

    async def send(self, node: int, request: Any, timeout_s: float | None = None) -> Any:
        """The answer; LinkLostError where none comes within ``timeout_s`` (None: the setting): the
        connection is given up."""
        sent = False
        try:
            connection = self._manager.get_connection(node)
            if not connection.connected:
                await connection
            sent = True
            return await connection.send_request(
                QuickRequest(request, self._kind(connection.broker_version_data, request)),
                None if timeout_s is None else timeout_s * 1000,
            )
        except client_errors.IncompatibleBrokerVersion as failure:
            raise RefusedError(failure.errno or 35, str(failure)) from failure
        except client_errors.KafkaError as failure:
            raise LinkLostError(f"{failure}", sent=sent) from failure

    def _kind(self, broker: Any, request: Any) -> RequestKind:
        """``broker``: its versions, which may differ between brokers while they are upgraded.
        Raises IncompatibleBrokerVersion."""
        key = type(request), request._min_version, request._max_version
        known = self._kinds.get(key)
        if known is None or known[0] is not broker:
            kind = RequestKind.of(type(request), broker.api_version(request))
            self._kinds[key] = known = broker, kind
        return known[1]

    def leader(self, tp: TopicPartition) -> int | None:
        node = self._cluster.leader_for_partition(tp)
        return None if node in _NO_LEADER else node

    def leader_epoch(self, tp: TopicPartition) -> int:
        epoch = self._cluster.leader_epoch_for_partition(tp)
        return -1 if epoch is None else int(epoch)

    def knows(self, node: int) -> bool:
        return self._cluster.broker_metadata(node) is not None

    def version(self, request: type) -> int:
        return int(self._manager.broker_version_data.api_version(request))

    async def connect(self, node: int) -> None:
        """Connect to a broker. Raises LinkLostError."""
        try:
            await self._manager.get_connection(node)
        except client_errors.KafkaError as failure:
            raise LinkLostError(f"{failure}", sent=False) from failure

    async def refresh(self, topic: str | None = None) -> None:
        """Ask a broker who leads the partitions of all topics of this writer, and of ``topic``.
        Raises LinkLostError."""
        if topic is not None:
            self._cluster.add_topic(topic)
        try:
            await self._cluster.refresh_metadata()
        except client_errors.KafkaError as failure:
            raise LinkLostError(f"{failure}", sent=False) from failure

    async def learn(self, topics: Collection[str]) -> None:
        """As `refresh`, of several topics; a broker that does not answer is no error."""
        for topic in topics:
            self._cluster.add_topic(topic)
        with suppress(LinkLostError):
            await self.refresh()

    def nodes(self) -> list[int]:
        return [int(broker.node_id) for broker in self._cluster.brokers()]

    def addresses(self) -> list[str]:
        """Where the brokers say that they are."""
        return [f"{broker.host}:{broker.port}" for broker in self._cluster.brokers()]

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic, as far as is known; 0: unknown."""
        return len(self._cluster.partitions_for_topic(topic) or ())

    def forbidden(self, topic: str) -> bool:
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
        self._cluster._coordinators.pop((_KINDS[kind], key), None)

    async def transaction_version(self) -> int:
        """The cluster's ``transaction.version`` (KIP-890); 0: not said. Raises LinkLostError."""
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

    async def _reason(self) -> Exception | None:
        """Why a broker cannot be connected to: what kafka-python says of it is a line of its
        log."""
        node = self._cluster.bootstrap_brokers()[0].node_id
        self._manager.reset_backoff(node)
        try:
            await self._manager.get_connection(node, timeout_ms=_REASON_MS)
        except client_errors.KafkaError as failure:
            reason: Exception = failure
            return reason
        return None

    def any_node(self) -> int:
        """A node that is connected, if one is. Raises LinkLostError."""
        node = self._manager.least_loaded_node()
        if node is None:
            raise LinkLostError("no broker can be reached", sent=False)
        found: int = node
        return found
