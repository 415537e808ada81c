"""Requests with headers of our own are the bytes that kafka-python makes; so are answers read."""

import uuid
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, FindCoordinatorRequest
from kafka.protocol.producer import (
    EndTxnRequest,
    EndTxnResponse,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

from everflow.kafka.quick_requests import QuickRequest, RequestKind

CLIENT, SENT = "everflow-ünï", 77
PRODUCE = {
    "transactional_id": "an id",
    "acks": -1,
    "timeout_ms": 3,
    "topic_data": [("topic", [(0, b"records"), (1, b"others")]), ("ü", [(5, None)])],
}
OFFSETS = {
    "transactional_id": "an id",
    "group_id": "group",
    "producer_id": 1 << 40,
    "producer_epoch": 7,
    "generation_id": 3,
    "member_id": "member",
    "group_instance_id": None,
    "topics": [("topic", [(0, 17, -1, "text\0")])],
}
END = {"transactional_id": "id", "producer_id": 5, "producer_epoch": 1, "committed": True}


def fetch() -> dict[str, Any]:
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition(
        partition=3,
        current_leader_epoch=2,
        fetch_offset=11,
        last_fetched_epoch=1,
        partition_max_bytes=99,
    )
    return {
        "max_wait_ms": 20,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 1,
        "session_id": 5,
        "session_epoch": 6,
        "topics": [topic(topic="topic", topic_id=uuid.UUID(int=9), partitions=[partition])],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


@pytest.mark.parametrize(
    ("request_type", "versions", "fields"),
    [
        (ProduceRequest, range(3, 13), PRODUCE),
        (TxnOffsetCommitRequest, range(3, 6), OFFSETS),
        (EndTxnRequest, range(6), END),
        (FetchRequest, range(7, 14), fetch()),
        (FindCoordinatorRequest, range(1, 4), {"key": "group", "key_type": 0}),
        (
            ApiVersionsRequest,
            [3, 4],
            {"client_software_name": "one", "client_software_version": "2"},
        ),
    ],
)
def test_a_request_has_the_bytes_that_kafka_python_makes(
    request_type: type, versions: range, fields: dict[str, Any]
) -> None:
    for version in versions:
        plain = request_type(version=version, **fields)
        plain.with_header(correlation_id=SENT, client_id=CLIENT)
        quick = QuickRequest(request_type(**fields), RequestKind.of(request_type, version))
        quick.with_header(SENT, CLIENT)
        assert quick.encode(framed=True, header=True) == plain.encode(framed=True, header=True)


def test_a_tagged_field_is_written() -> None:
    replica = FetchRequest.ReplicaState(replica_id=4, replica_epoch=2)
    plain = FetchRequest(version=15, replica_state=replica, **fetch())
    plain.with_header(correlation_id=SENT, client_id=CLIENT)
    quick = QuickRequest(
        FetchRequest(replica_state=replica, **fetch()), RequestKind.of(FetchRequest, 15)
    )
    quick.with_header(SENT, CLIENT)
    assert quick.encode(framed=True, header=True) == plain.encode(framed=True, header=True)


def test_a_tagged_field_of_a_record_in_a_request_is_written() -> None:
    fields = fetch()
    fields["topics"][0].partitions[0].replica_directory_id = uuid.UUID(int=3)
    plain = FetchRequest(version=17, **fields)
    plain.with_header(correlation_id=SENT, client_id=CLIENT)
    quick = QuickRequest(FetchRequest(**fields), RequestKind.of(FetchRequest, 17))
    quick.with_header(SENT, CLIENT)
    made = quick.encode(framed=True, header=True)
    assert made == plain.encode(framed=True, header=True)
    assert uuid.UUID(int=3).bytes in made


def received(answer: Any, correlation_id: int) -> KafkaBytes:
    answer.with_header(correlation_id=correlation_id)
    data = answer.encode(header=True)
    buffer = KafkaBytes(len(data))
    buffer.write(data)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(
    ("request_type", "answer"),
    [
        (EndTxnRequest, EndTxnResponse(version=5, error_code=0, producer_id=8, producer_epoch=2)),
        (EndTxnRequest, EndTxnResponse(version=2, error_code=51)),
        (
            FetchRequest,
            FetchResponse(version=13, throttle_time_ms=0, error_code=0, session_id=4, responses=[]),
        ),
        # Its header has no tagged fields in any version.
        (ApiVersionsRequest, ApiVersionsResponse(version=3, error_code=0, api_keys=[])),
    ],
)
def test_an_answer_is_read_as_kafka_python_reads_it(request_type: type, answer: Any) -> None:
    quick = QuickRequest(None, RequestKind.of(request_type, answer.version))
    quick.with_header(SENT, CLIENT)
    buffer = received(answer, SENT)
    assert quick.parse_header(buffer).correlation_id == SENT
    assert quick.decode(buffer).to_dict() == answer.to_dict()
    assert quick.parse_header(received(answer, SENT + 1)).correlation_id == SENT + 1


def test_an_answer_with_tagged_fields_in_its_header_is_read() -> None:
    answer = EndTxnResponse(version=5, error_code=0, producer_id=8, producer_epoch=2)
    plain = bytes(received(answer, SENT))
    tagged = plain[:4] + bytes([1, 9, 2]) + b"ab" + plain[5:]
    buffer = KafkaBytes(len(tagged))
    buffer.write(tagged)
    buffer.seek(0)
    quick = QuickRequest(None, RequestKind.of(EndTxnRequest, 5))
    quick.with_header(SENT, CLIENT)
    assert quick.parse_header(buffer).correlation_id == SENT
    assert quick.decode(buffer).producer_id == 8
