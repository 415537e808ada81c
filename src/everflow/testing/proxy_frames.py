"""What a proxy between Kafka's clients and brokers has to know of the protocol. Pure.

A broker's answers name brokers by address; a client that believed them would leave the proxy with
its second request. So these addresses are replaced, and nothing else of an answer. A refusal is an
answer of the same form as a broker's, made here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeClusterResponse
from kafka.protocol.consumer import FetchRequest, FetchResponse, HeartbeatResponse
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

API_KEYS = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "Heartbeat": 12,
    "LeaveGroup": 13,
    "SyncGroup": 14,
    "ApiVersions": 18,
    "CreateTopics": 19,
    "DeleteRecords": 21,
    "InitProducerId": 22,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
    "DescribeCluster": 60,
}
"""What faults may be set for, by Kafka's names."""
NAMES = {key: name for name, key in API_KEYS.items()}
_NODE_ENDPOINTS_SINCE = {0: 10, 1: 16}
"""KIP-951: from these versions on a refusal names the new leader's address."""

Redirect = Callable[[int, str, int], tuple[str, int]]
"""(node, host, port) of a broker -> where clients are to find it."""


class Header(NamedTuple):
    """Of a request, as far as all versions have it."""

    key: int
    version: int
    correlation: int
    client: str

    @property
    def name(self) -> str:
        """Kafka's name of the request; its number where no fault can be set for it."""
        return NAMES.get(self.key, str(self.key))


def header_of(frame: bytes) -> Header:
    """``frame``: a request without its length."""
    key, version, correlation, length = struct.unpack_from(">hhih", frame)
    client = frame[10 : 10 + length].decode(errors="replace") if length > 0 else ""
    return Header(key, version, correlation, client)


def correlation_of(frame: bytes) -> int:
    """Which request an answer is for."""
    return int(struct.unpack_from(">i", frame)[0])


# --- addresses ------------------------------------------------------------------------------------


def redirected(frame: bytes, asked: Header, redirect: Redirect) -> bytes:
    """An answer in which every broker has the address that ``redirect`` gives."""
    kind = _WITH_ADDRESSES.get(asked.key)
    if kind is None or asked.version < _NODE_ENDPOINTS_SINCE.get(asked.key, 0):
        return frame
    answer = kind.decode(frame, version=asked.version, header=True)
    changed = False
    for one in _addresses(answer, asked):
        if one.host:
            one.host, one.port = redirect(int(one.node_id), str(one.host), int(one.port))
            changed = True
    return bytes(answer.encode(header=True)) if changed else frame


_WITH_ADDRESSES: dict[int, Any] = {
    API_KEYS["Produce"]: ProduceResponse,
    API_KEYS["Fetch"]: FetchResponse,
    API_KEYS["Metadata"]: MetadataResponse,
    API_KEYS["FindCoordinator"]: FindCoordinatorResponse,
    API_KEYS["DescribeCluster"]: DescribeClusterResponse,
}


class _Node:
    """A broker of a DescribeCluster answer, whose id has another name there."""

    def __init__(self, broker: Any) -> None:
        object.__setattr__(self, "_broker", broker)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, "broker_id" if name == "node_id" else name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._broker, name, value)


def _addresses(answer: Any, asked: Header) -> Iterator[Any]:
    if asked.name == "Metadata":
        yield from answer.brokers
    elif asked.name == "DescribeCluster":
        yield from map(_Node, answer.brokers)
    elif asked.name == "FindCoordinator":
        yield from answer.coordinators if asked.version >= 4 else (answer,)
    else:
        yield from answer.node_endpoints or ()


# --- refusals -------------------------------------------------------------------------------------


def refusal(frame: bytes, asked: Header, code: int) -> bytes:
    """A broker's answer to this request with the error ``code``, for all that it asks for. Raises
    ValueError where no refusal of such a request can be made."""
    make = _REFUSALS.get(asked.name)
    if make is None:
        raise ValueError(f"{asked.name} cannot be refused here: one of {', '.join(_REFUSALS)} can")
    answer = make(frame, asked, code)
    answer.with_header(correlation_id=asked.correlation)
    return bytes(answer.encode(header=True))


def can_refuse(name: str) -> bool:
    """Whether `refusal` knows the form of such an answer."""
    return name in _REFUSALS


def _produce(frame: bytes, asked: Header, code: int) -> Any:
    request = ProduceRequest.decode(frame, version=asked.version, header=True)
    topics, partition = ProduceResponse.TopicProduceResponse, "PartitionProduceResponse"
    kind = getattr(topics, partition)
    return ProduceResponse(
        version=asked.version,
        throttle_time_ms=0,
        responses=[
            topics(
                version=asked.version,
                **_named(topic, asked, 13, "name"),
                partition_responses=[
                    kind(
                        version=asked.version,
                        index=one.index,
                        error_code=code,
                        base_offset=-1,
                        log_append_time_ms=-1,
                        log_start_offset=-1,
                        record_errors=[],
                        error_message=None,
                    )
                    for one in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ],
    )


def _fetch(frame: bytes, asked: Header, code: int) -> Any:
    request = FetchRequest.decode(frame, version=asked.version, header=True)
    topics = FetchResponse.FetchableTopicResponse
    return FetchResponse(
        version=asked.version,
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[
            topics(
                version=asked.version,
                **_named(topic, asked, 13, "topic"),
                partitions=[
                    topics.PartitionData(
                        version=asked.version,
                        partition_index=one.partition,
                        error_code=code,
                        high_watermark=-1,
                        last_stable_offset=-1,
                        log_start_offset=-1,
                        aborted_transactions=[],
                        preferred_read_replica=-1,
                        records=b"",
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _named(topic: Any, asked: Header, ids_since: int, field: str) -> dict[str, Any]:
    if asked.version >= ids_since:
        return {"topic_id": topic.topic_id}
    return {field: getattr(topic, field)}


def _coordinator(frame: bytes, asked: Header, code: int) -> Any:
    request = FindCoordinatorRequest.decode(frame, version=asked.version, header=True)
    none = {
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": code,
        "error_message": "refused by a proxy",
    }
    if asked.version < 4:
        return FindCoordinatorResponse(version=asked.version, throttle_time_ms=0, **none)
    return FindCoordinatorResponse(
        version=asked.version,
        throttle_time_ms=0,
        coordinators=[
            FindCoordinatorResponse.Coordinator(version=asked.version, key=key, **none)
            for key in request.coordinator_keys
        ],
    )


def _partitions_added(frame: bytes, asked: Header, code: int) -> Any:
    request = AddPartitionsToTxnRequest.decode(frame, version=asked.version, header=True)
    topics = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    partitions = topics.AddPartitionsToTxnPartitionResult
    if asked.version > 3:
        return AddPartitionsToTxnResponse(
            version=asked.version, throttle_time_ms=0, error_code=code, results_by_transaction=[]
        )
    return AddPartitionsToTxnResponse(
        version=asked.version,
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[
            topics(
                version=asked.version,
                name=topic.name,
                results_by_partition=[
                    partitions(
                        version=asked.version, partition_index=number, partition_error_code=code
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ],
    )


def _offsets(frame: bytes, asked: Header, code: int) -> Any:
    request = TxnOffsetCommitRequest.decode(frame, version=asked.version, header=True)
    topics = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    return TxnOffsetCommitResponse(
        version=asked.version,
        throttle_time_ms=0,
        topics=[
            topics(
                version=asked.version,
                name=topic.name,
                partitions=[
                    topics.TxnOffsetCommitResponsePartition(
                        version=asked.version,
                        partition_index=one.partition_index,
                        error_code=code,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _code_alone(kind: Any) -> Callable[[bytes, Header, int], Any]:
    """Of a request that is done or not as a whole."""

    def make(_: bytes, asked: Header, code: int) -> Any:
        answer = kind(version=asked.version, error_code=code)
        for field in ("producer_id", "producer_epoch"):
            if hasattr(answer, field):
                setattr(answer, field, -1)
        return answer

    return make


_REFUSALS: dict[str, Callable[[bytes, Header, int], Any]] = {
    "Produce": _produce,
    "Fetch": _fetch,
    "FindCoordinator": _coordinator,
    "AddPartitionsToTxn": _partitions_added,
    "TxnOffsetCommit": _offsets,
    "AddOffsetsToTxn": _code_alone(AddOffsetsToTxnResponse),
    "EndTxn": _code_alone(EndTxnResponse),
    "InitProducerId": _code_alone(InitProducerIdResponse),
    "Heartbeat": _code_alone(HeartbeatResponse),
}
