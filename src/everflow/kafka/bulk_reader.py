"""Reads an exact range of one partition by fetch requests of its own, whole responses at once: restoring's fast way.

A client library makes an object per record, which costs more than everything else in restoring. Here kafka-python only keeps
the connections (brokers, security, metadata), and `record_batches` reads the answers in columns. The next fetch is under way
while the present one is parsed. Everything that reaches into kafka-python 3.0 is in `_Connection`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import kafka.errors as client_errors
import numpy as np
from kafka import KafkaConsumer
from kafka.protocol.consumer import FetchRequest, IsolationLevel
from kafka.structs import TopicPartition as ClientTopicPartition

from everflow.errors import RetriableError
from everflow.kafka import record_batches
from everflow.kafka.group_channel import classify
from everflow.kafka.log_chunk import LogChunk, LogStartMovedError
from everflow.kafka.record_batches import Columns
from everflow.records import Int64, TopicPartition

FETCH_BYTES = 8 << 20
_FETCH_VERSIONS = (4, 12)  # from read_committed on; from 13 on topics go by id
_FETCH_WAIT_MS = 10  # the range ends within the log, so an answer that waits for more is rare
_REFRESH_MS = 1_000
_PAUSE_S = 0.05
_SOCKET_READ_BYTES = 1 << 20

_KEYWORDS = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.cipher.suites": "ssl_ciphers",
}
"""librdkafka's keys as kafka-python's keywords."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_CHECK_NAME = "ssl.endpoint.identification.algorithm"
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")


def bulk_settings(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """kafka-python's keywords for librdkafka's settings; None where the security settings cannot be said in them.

    Settings that only tune librdkafka are left out.
    """
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if key in _KEYWORDS:
            settings[_KEYWORDS[key]] = value
        elif key == _CHECK_NAME:
            settings["ssl_check_hostname"] = str(value).lower() != "none"
        elif key.startswith(_SECURITY):
            return None
    if not Path(settings.get("ssl_cafile") or __file__).is_file():
        return None  # librdkafka takes a folder as well, and "probe"
    if "security_protocol" in settings:
        settings["security_protocol"] = str(settings["security_protocol"]).upper()
    if str(settings.get("security_protocol", "")).startswith("SASL") and settings.get("sasl_mechanism") not in _MECHANISMS:
        return None
    return settings


class _Answer(NamedTuple):
    records: bytes
    aborted: list[tuple[int, int]]


class BulkReader:
    """One range at a time; owned by one thread. Holds two connections and kafka-python's IO thread until closed."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        fetch_bytes: int = FETCH_BYTES,
        latest: bool = False,
    ) -> None:
        """``settings``: from `bulk_settings`; ``clock`` and ``latest``: see `LogReader`; ``fetch_bytes``: size of one fetch."""
        self._latest = latest
        self._settings = settings
        self._clock = clock
        self._fetch_bytes = fetch_bytes
        self._connection: _Connection | None = None

    def close(self) -> None:
        """Release the connections."""
        if self._connection is not None:
            self._connection.close()

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        chunk_bytes: int = 8 << 20,
        stall_timeout_s: float = 30.0,
    ) -> Iterator[LogChunk]:
        """See `LogReader.read`. Raises UnsupportedBatchError besides: what was not handed out yet is for another reader."""
        if start >= end:
            return
        doing = f"reading {tp} from {start} to {end}"
        if self._connection is None:
            self._connection = _Connection(self._settings, self._fetch_bytes, stall_timeout_s, doing)
        fetches = _Fetches(self._connection, tp, start, end, doing)
        gathered = _Gathered(chunk_bytes, self._latest)
        while fetches.position < end:
            records, wanted = fetches.next_batches(self._clock, stall_timeout_s)
            for portion in record_batches.portions(wanted, FETCH_BYTES):
                yield from gathered.full(record_batches.columns(records, portion).between(start, end), end)
        yield gathered.rest(end)


class _Fetches:
    """The fetches of one range, one ahead of what was handed out."""

    def __init__(self, connection: _Connection, tp: TopicPartition, start: int, end: int, doing: str) -> None:
        self._connection = connection
        self._tp = tp
        self._end = end
        self._doing = doing
        self._coming: Any = None
        self.position = start

    def next_batches(self, clock: Callable[[], float], stall_timeout_s: float) -> tuple[bytes, list[record_batches.Batch]]:
        """The next bytes and those of their batches that count; moves the position and sends the fetch behind it."""
        deadline = clock() + stall_timeout_s
        while True:
            answer = self._answer(deadline - clock())
            if answer is not None:
                found = record_batches.batches(answer.records)
                behind = found[-1].next_offset if found else self.position
                if behind > self.position:
                    begun, self.position = self.position, behind
                    if behind < self._end:
                        self._coming = self._connection.fetch(self._tp, behind)
                    seen = record_batches.committed(answer.records, found, answer.aborted)
                    wanted = [batch for batch in seen if batch.next_offset > begun and batch.base_offset < self._end]
                    return answer.records, wanted
            if clock() > deadline:
                raise RetriableError(
                    f"{self._doing}: nothing came behind {self.position} for {stall_timeout_s:g} s. "
                    "Either the broker is away or a transaction is still open below the end."
                )

    def _answer(self, timeout_s: float) -> _Answer | None:
        """The answer to the fetch at the position; None if it failed for a passing reason, which was attended to."""
        coming = self._coming if self._coming is not None else self._connection.fetch(self._tp, self.position)
        self._coming = None
        try:
            return self._connection.answer(coming, timeout_s)
        except client_errors.OffsetOutOfRangeError as failure:
            raise LogStartMovedError(f"{self._tp}: offset {self.position} is outside the log") from failure
        except client_errors.KafkaError as failure:
            problem = classify(failure, f"{self._doing}, at {self.position}")
            if not isinstance(problem, RetriableError) or isinstance(failure, client_errors.SaslAuthenticationFailedError):
                raise problem from failure
            self._connection.refresh(self._tp, timeout_s)
            return None


class _Gathered:
    """Columns on their way into chunks of about ``chunk_bytes``."""

    def __init__(self, chunk_bytes: int, latest: bool) -> None:
        self._chunk_bytes = max(1, chunk_bytes)
        self._latest = latest
        self._clear()

    def _clear(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[Int64] = []
        self._records = 0
        self._held = 0

    def full(self, columns: Columns, end: int) -> Iterator[LogChunk]:
        """Take the columns; gives the chunks that are full now and not the range's last."""
        while len(columns.offsets):
            room = max(self._chunk_bytes - self._held, self._chunk_bytes // 2, 1)  # many small parts would hide what is replaced
            fitting = int(np.searchsorted(np.cumsum(columns.sizes), room)) + 1
            part, columns = columns.of(slice(0, fitting)), columns.of(slice(fitting, None))
            position = int(part.offsets[-1]) + 1
            self._records += len(part.offsets)
            # Within a part only: a chunk is the fold of the log up to its position, so its end must not hide behind another's.
            self._add(part.latest() if self._latest else part)
            if self._held >= self._chunk_bytes and position < end:
                yield self.rest(position)

    def rest(self, position: int) -> LogChunk:
        """Everything held, as a chunk that ends before ``position``."""
        times = np.concatenate(self._timestamps) if self._timestamps else np.empty(0, np.int64)
        chunk = LogChunk(self._keys, self._values, times, position, self._records)
        self._clear()
        return chunk

    def _add(self, columns: Columns) -> None:
        self._keys += columns.keys()
        self._values += columns.values()
        self._timestamps.append(columns.timestamps)
        self._held += int(columns.sizes.sum())


class _Connection:
    """kafka-python as a carrier: it knows the leaders and sends a request; what comes back is not touched by it."""

    def __init__(self, settings: Mapping[str, Any], fetch_bytes: int, timeout_s: float, doing: str) -> None:
        self._fetch_bytes = fetch_bytes
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
                    "receive_message_max_bytes": (1 << 31) - 1,  # one batch may be larger than a fetch
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

    def fetch(self, tp: TopicPartition, offset: int) -> Any:
        """Send a fetch to the leader; the future of its answer."""
        return self._manager.call_soon(self._fetch, ClientTopicPartition(tp.topic, tp.partition), offset)

    def answer(self, coming: Any, timeout_s: float) -> _Answer:
        """Wait for an answer. Raises kafka-python's error for the code in it, or KafkaTimeoutError."""
        response = self._consumer._net.run(self._manager.wait_for, coming, max(1.0, timeout_s * 1000))
        code = response.error_code or 0
        if not code and not response.responses:
            raise client_errors.ThrottlingQuotaExceededError("the broker holds back for its quota")
        partition = None if code else response.responses[0].partitions[0]
        if partition is not None:
            code = partition.error_code
        if code:
            raise client_errors.for_code(code)()
        assert partition is not None
        aborted = [(one.producer_id, one.first_offset) for one in partition.aborted_transactions or ()]
        return _Answer(partition.records or b"", aborted)

    def refresh(self, tp: TopicPartition, timeout_s: float) -> None:
        """Learn the leaders anew, and wait a moment in any case."""
        self._pause.wait(_PAUSE_S)
        try:
            wait_ms = max(1.0, min(_REFRESH_MS, timeout_s * 1000))
            asked = self._manager.call_soon(self._cluster.refresh_metadata)
            self._consumer._net.run(self._manager.wait_for, asked, wait_ms)
        except client_errors.KafkaError:
            pass  # the caller tries again until its own time is over

    async def _fetch(self, tp: Any, offset: int) -> Any:
        node = self._cluster.leader_for_partition(tp)
        if node is None:
            self._cluster.add_topic(tp.topic)
            await self._cluster.refresh_metadata()  # at once: its own loop would let 100 ms pass first
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
            last_fetched_epoch=-1,
            partition_max_bytes=self._fetch_bytes,
        )
        request = FetchRequest(
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=IsolationLevel.READ_COMMITTED,
            session_id=0,
            session_epoch=-1,  # no fetch session (KIP-227): one partition, and every request stands for itself
            topics=[FetchRequest.FetchTopic(topic=tp.topic, partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
            min_version=_FETCH_VERSIONS[0],
            max_version=_FETCH_VERSIONS[1],
        )
        return await self._manager.send(request, node_id=node)


def _read_widely(transport: Any) -> None:
    """Let a plain connection take a megabyte at a time: at 4 KiB, the IO thread asks for the interpreter 2,000 times a fetch."""
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
