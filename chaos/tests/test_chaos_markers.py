"""The door before a broker brings the coordinator's markers in two parts, and one answer back."""

import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from chaos.rounds import markers
from chaos.rounds.markers import MarkerDoor, broker_with_door, joined, parts
from chaos.rounds.schedule import LOGS, OFFSETS
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition as Place
from everflow.testing.waiting import wait_until

VERSION = 1


def request(*written: dict[str, list[int]]) -> bytes:
    """Markers of the producers 0, 1, ... on these partitions."""
    marker: Any = WriteTxnMarkersRequest.WritableTxnMarker
    made: Any = WriteTxnMarkersRequest(
        version=VERSION,
        markers=[
            marker(
                version=VERSION,
                producer_id=producer,
                producer_epoch=3,
                transaction_result=True,
                topics=[
                    marker.WritableTxnMarkerTopic(
                        version=VERSION, name=name, partition_indexes=numbers
                    )
                    for name, numbers in topics.items()
                ],
                coordinator_epoch=7,
            )
            for producer, topics in enumerate(written)
        ],
    )
    made.with_header(correlation_id=9, client_id="sender")
    return bytes(made.encode(header=True))


def answer(frame: bytes) -> bytes:
    """A broker's, to such a request: the partition's number in the place of an error."""
    asked: Any = WriteTxnMarkersRequest.decode(frame, version=VERSION, header=True)
    marker: Any = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic = marker.WritableTxnMarkerTopicResult
    made: Any = WriteTxnMarkersResponse(
        version=VERSION,
        markers=[
            marker(
                version=VERSION,
                producer_id=one.producer_id,
                topics=[
                    topic(
                        version=VERSION,
                        name=written.name,
                        partitions=[
                            topic.WritableTxnMarkerPartitionResult(
                                version=VERSION, partition_index=number, error_code=number
                            )
                            for number in written.partition_indexes
                        ],
                    )
                    for written in one.topics
                ],
            )
            for one in asked.markers
        ],
    )
    made.with_header(correlation_id=9)
    return bytes(made.encode(header=True))


def asked_for(frame: bytes) -> dict[int, dict[str, list[int]]]:
    found: Any = WriteTxnMarkersRequest.decode(frame, version=VERSION, header=True)
    return {
        one.producer_id: {topic.name: list(topic.partition_indexes) for topic in one.topics}
        for one in found.markers
    }


def told(frame: bytes) -> dict[int, dict[tuple[str, int], int]]:
    found: Any = WriteTxnMarkersResponse.decode(frame, version=VERSION, header=True)
    assert len({one.producer_id for one in found.markers}) == len(found.markers)
    return {
        one.producer_id: {
            (topic.name, partition.partition_index): partition.error_code
            for topic in one.topics
            for partition in topic.partitions
        }
        for one in found.markers
    }


BOTH = request({"__consumer_offsets": [1], "a-changelog": [0, 2]}, {"b": [4]})


@pytest.mark.parametrize(
    ("late", "first", "second"),
    [
        (LOGS, {0: {"__consumer_offsets": [1]}}, {0: {"a-changelog": [0, 2]}, 1: {"b": [4]}}),
        (OFFSETS, {0: {"a-changelog": [0, 2]}, 1: {"b": [4]}}, {0: {"__consumer_offsets": [1]}}),
    ],
)
def test_late_is_the_second_part(late: str, first: dict[int, Any], second: dict[int, Any]) -> None:
    assert [asked_for(part) for part in parts(BOTH, late)] == [first, second]


def test_a_request_of_one_kind_is_brought_as_it_is() -> None:
    for frame in (request({"b": [4]}), request({"__consumer_offsets": [1]})):
        for late in (LOGS, OFFSETS):
            assert parts(frame, late) == [frame]


def test_the_answers_are_one_answer() -> None:
    for late in (LOGS, OFFSETS):
        one = joined([answer(part) for part in parts(BOTH, late)], VERSION)
        assert told(one) == told(answer(BOTH))


def _ask(line: socket.socket, frame: bytes) -> bytes:
    line.sendall(struct.pack(">i", len(frame)) + frame)
    found = markers._frame(line)
    assert found is not None
    return found


def test_through_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "LATE_S", 0.05)
    seen: list[bytes] = []
    broker = socket.create_server(("127.0.0.1", 0))

    def serve(line: socket.socket) -> None:
        with line:
            while (frame := markers._frame(line)) is not None:
                seen.append(frame)
                back = answer(frame) if frame[:2] == b"\0\x1b" else frame
                line.sendall(struct.pack(">i", len(back)) + back)

    def accept() -> None:
        for _ in range(2):
            threading.Thread(target=serve, args=(broker.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    door = MarkerDoor()
    door.upstream = ("127.0.0.1", broker.getsockname()[1])
    try:
        versions = struct.pack(">hhih", 18, 0, 1, -1)
        with socket.create_connection(("127.0.0.1", door.port), timeout=60) as line:
            assert _ask(line, versions) == versions
            seen.clear()
            assert told(_ask(line, BOTH)) == told(answer(BOTH))
            assert (seen, door.held) == ([BOTH], 0)
            door.hold(LOGS)
            assert told(_ask(line, BOTH)) == told(answer(BOTH))
            assert seen[1:] == parts(BOTH, LOGS)
            door.hold("")
            _ask(line, BOTH)
            assert len(seen) == 4
        assert door.held == 1
        other = struct.pack(">hhih", 24, 0, 1, -1)
        with socket.create_connection(("127.0.0.1", door.port), timeout=60) as line:
            assert _ask(line, other) == other
            assert _ask(line, other) == other
    finally:
        door.close()
        broker.close()


LONG_S = 10.0
"""Below the time in which a coordinator gives a request up."""


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("late", [LOGS, OFFSETS])
def test_one_log_shows_it_first(late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "LATE_S", LONG_S)
    door = MarkerDoor()
    with broker_with_door(tmp_path / "broker", "127.0.0.1", "512m", door) as broker:
        servers = broker.bootstrap_servers
        broker.create_topic("log")
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "group"})
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "id"})
        producer.init_transactions(60)
        admin = ClusterAdmin({"bootstrap.servers": servers})

        def write(offset: int) -> None:
            producer.begin_transaction()
            producer.produce("log", b"v")
            offsets = [TopicPartition("log", 0, offset)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60)

        place = Place("log", 0)
        write(1)
        wait_until(
            lambda: admin.end_offsets([place], "read_committed")[place] == 2, 60, "it to show"
        )
        door.hold(late)
        writing = threading.Thread(target=write, args=(2,))
        writing.start()

        def shown() -> tuple[bool, bool]:
            """In the log, and in the committed offsets."""
            ends = admin.end_offsets([place], "read_committed")
            found = admin.committed("group", [place], 10.0, stable=False)
            return ends[place] == 4, found[place].offset == 2

        wait_until(lambda: any(shown()), 60, "half of it to show")
        assert shown() == ((False, True) if late == LOGS else (True, False))
        wait_until(lambda: all(shown()), 60, "all of it to show")
        assert door.held == 1
        writing.join()
        consumer.close()
        admin.close()
    door.close()
