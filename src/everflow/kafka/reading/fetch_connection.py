"""Sends fetch requests over kafka-python's connections; record batches come back as bytes.

A client library makes an object per record, which costs more than everything else in reading. Here
kafka-python only keeps the connections (brokers, security, metadata). Everything that reaches into
kafka-python 3.0 for fetching is in this module.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import MethodType
from typing import Any, NamedTuple

import kafka.errors as client_errors
from kafka import KafkaConsumer
from kafka.protocol.consumer import FetchRequest, IsolationLevel
from kafka.structs import TopicPartition as ClientTopicPartition

from everflow.kafka.group_channel import classify
from everflow.records import TopicPartition

FETCH_BYTES = 8 << 20
_FETCH_VERSIONS = (4, 12)  # from read_committed on; from 13 on topics go by id
_WITH_EPOCHS = 12
_FETCH_WAIT_MS = 10  # the range ends within the log, so an answer that waits for more is rare
_IN_FLIGHT = 10_000
"""Each log has a request of its own. With kafka-python's five, the sixth log's fails, and is sent
again after 50 ms and new metadata: sixteen logs took a second."""
_REFRESH_MS = 1_000
_PAUSE_S = 0.05
_SOCKET_READ_BYTES = 1 << 20
_REPLICA_S = (
    300.0  # Java's metadata.max.age.ms: after it, the leader is asked again which replica is near
)


class Answer(NamedTuple):
    """Record batches as they came, and (producer id, first offset) of the aborted transactions
    among them."""

    records: bytes
    aborted: list[tuple[int, int]]


class DivergedError(Exception):
    """The log has other records by now: what was read is the same only before ``end_offset``."""

    def __init__(self, end_offset: int) -> None:
        super().__init__(f"other records from offset {end_offset} on")
        self.end_offset = end_offset


class FetchConnection:
    """kafka-python as a carrier: it knows the leaders and sends a request; what comes back is not
    touched by it.

    Owned by one thread; holds two connections and kafka-python's IO thread until closed. With a
    rack in the settings, it fetches from the replica that the leader names (KIP-392).
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        fetch_bytes: int,
        timeout_s: float,
        doing: str,
        *,
        read_committed: bool = True,
    ) -> None:
        """``settings``: from `connection_settings`. Raises RetriableError if no broker answers
        within ``timeout_s`` seconds."""
        self.fetch_bytes = fetch_bytes
        """Bytes of one fetch: may be changed between fetches."""
        self._isolation = (
            IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        )
        self._rack = str(settings.get("client_rack", ""))
        self._near: dict[Any, tuple[int, float]] = {}
        self._pause = threading.Event()
        servers = str(settings["bootstrap_servers"])
        try:
            self._consumer = KafkaConsumer(
                **{
                    "client_id": "everflow-log-reader",
                    **settings,
                    "bootstrap_servers": servers.split(","),
                    "bootstrap_timeout_ms": max(1, int(timeout_s * 1000)),
                    "reconnect_backoff_max_ms": 1_000,
                    "fetch_max_bytes": fetch_bytes,
                    "max_partition_fetch_bytes": fetch_bytes,
                    "receive_message_max_bytes": (1 << 31)
                    - 1,  # one batch may be larger than a fetch
                    "max_in_flight_requests_per_connection": _IN_FLIGHT,
                    "group_id": None,
                    "enable_auto_commit": False,
                    "allow_auto_create_topics": False,
                    "metrics_enabled": False,
                }
            )
        except client_errors.KafkaError as failure:
            raise classify(failure, f"{doing} at {servers}") from failure
        self._manager = self._consumer._manager
        self._cluster = self._manager.cluster

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1_000)

    def fetch(self, tp: TopicPartition, offset: int, epoch: int = -1) -> Any:
        """Send a fetch to the leader; the future of its answer. ``epoch``: that of the leader which
        wrote what lies before ``offset``, as far as it is known (-1: it is not)."""
        return self._manager.call_soon(
            self._fetch, ClientTopicPartition(tp.topic, tp.partition), offset, epoch
        )

    def answer(self, coming: Any, timeout_s: float) -> Answer | None:
        """The answer; None if it is not there within ``timeout_s`` seconds, and still under way.
        Raises kafka-python's error for a fault, or for the code in the answer."""
        if not coming.is_done and timeout_s > 0:
            with suppress(client_errors.KafkaError):  # too late, or the fault that is raised below
                self._consumer._net.run(self._manager.wait_for, coming, max(1.0, timeout_s * 1000))
        if not coming.is_done:
            return None
        if coming.exception is not None:
            raise coming.exception
        response = coming.value
        code = response.error_code or 0
        if not code and not response.responses:
            raise client_errors.ThrottlingQuotaExceededError("the broker holds back for its quota")
        partition = None if code else response.responses[0].partitions[0]
        if partition is not None:
            code = partition.error_code
        if code:
            raise client_errors.for_code(code)()
        assert partition is not None
        cut = getattr(partition, "diverging_epoch", None)
        if cut is not None and cut.end_offset >= 0:
            raise DivergedError(cut.end_offset)
        aborted = [
            (one.producer_id, one.first_offset) for one in partition.aborted_transactions or ()
        ]
        return Answer(partition.records or b"", aborted)

    def refresh(self, tp: TopicPartition, timeout_s: float) -> None:
        """Learn the leaders anew, and wait a moment in any case."""
        self.back_to_leader(tp)
        self._pause.wait(_PAUSE_S)
        try:
            wait_ms = max(1.0, min(_REFRESH_MS, timeout_s * 1000))
            asked = self._manager.call_soon(self._cluster.refresh_metadata)
            self._consumer._net.run(self._manager.wait_for, asked, wait_ms)
        except client_errors.KafkaError:
            pass  # the caller tries again until its own time is over

    def back_to_leader(self, tp: TopicPartition) -> bool:
        """Fetch from the leader again; whether it was another replica before."""
        return self._near.pop(ClientTopicPartition(tp.topic, tp.partition), None) is not None

    async def _fetch(self, tp: Any, offset: int, last_epoch: int) -> Any:
        node = self._near_replica(tp)
        if node is None:
            node = self._cluster.leader_for_partition(tp)
        if node is None:
            self._cluster.add_topic(tp.topic)
            # At once: its own loop would let 100 ms pass first.
            await self._cluster.refresh_metadata()
            node = self._cluster.leader_for_partition(tp)
        if node is None or node == -1:
            raise client_errors.LeaderNotAvailableError(f"{tp.topic}-{tp.partition}")
        connection = self._manager.get_connection(node)
        await connection
        _read_widely(connection.transport)
        epoch = self._cluster.leader_epoch_for_partition(tp)
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=tp.partition,
            current_leader_epoch=-1 if epoch is None else epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch if self._epochs_are_known() else -1,
            partition_max_bytes=self.fetch_bytes,
        )
        request = FetchRequest(
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=self.fetch_bytes,
            isolation_level=self._isolation,
            session_id=0,
            # no fetch session (KIP-227): one partition, and every request stands for itself
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=tp.topic, partitions=[partition])],
            forgotten_topics_data=[],
            rack_id=self._rack,
            min_version=_FETCH_VERSIONS[0],
            max_version=_FETCH_VERSIONS[1],
        )
        response = await self._manager.send(request, node_id=node)
        self._note_replica(tp, response)
        return response

    def _epochs_are_known(self) -> bool:
        """Whether the brokers compare epochs with their log (Kafka 2.7, KIP-595)."""
        known = self._manager.broker_version_data
        return bool(known.api_version(FetchRequest) >= _WITH_EPOCHS)

    def _near_replica(self, tp: Any) -> int | None:
        node, until = self._near.get(tp, (-1, 0.0))
        if node < 0 or time.monotonic() > until or self._cluster.broker_metadata(node) is None:
            return None
        return node

    def _note_replica(self, tp: Any, response: Any) -> None:
        for topic in response.responses or ():
            for partition in topic.partitions:
                named = getattr(partition, "preferred_read_replica", None)
                if named is not None and named >= 0:
                    self._near[tp] = (named, time.monotonic() + _REPLICA_S)


def _read_widely(transport: Any) -> None:
    """Let a plain connection take a megabyte at a time: at 4 KiB, the IO thread asks for the
    interpreter 2,000 times a fetch."""
    if type(transport).__name__ == "KafkaTCPTransport" and "_sock_recv" not in vars(transport):
        transport._sock_recv = MethodType(_receive, transport)


def _receive(transport: Any) -> tuple[bytes, Exception | None]:
    """`KafkaTCPTransport._sock_recv` with one read."""
    try:
        data: bytes = transport._sock.recv(_SOCKET_READ_BYTES)
    except (BlockingIOError, InterruptedError):
        return b"", None
    except OSError as failure:
        return b"", client_errors.KafkaConnectionError(failure)
    return data, None if data else client_errors.KafkaConnectionError("socket disconnected")
