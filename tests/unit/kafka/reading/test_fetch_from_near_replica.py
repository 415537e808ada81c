"""Fetches with a rack go to the near replica and back (KIP-392); one request per broker; by id."""

import base64
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from everflow.kafka.reading.fetch_connection import FetchConnection, FetchPlace
from everflow.records import TopicPartition

LEADER, NEAR = 1, 2
UUID = uuid.UUID(int=5)
ID = base64.urlsafe_b64encode(UUID.bytes).decode().rstrip("=")
FETCH_SESSION_TOPIC_ID_ERROR = 106
TP, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class Link:
    """The brokers as a client's metadata shows them, which answer at once; ``asked``: (node, rack)
    of each request."""

    def __init__(self) -> None:
        self.nodes = {LEADER, NEAR}
        self.asked: list[tuple[int, str]] = []
        self.logs: list[list[int]] = []
        self.seconds = 100.0
        self.silent = False
        self.newest = 12
        self.topics: list[list[Any]] = []
        self.codes: list[int] = []

    def leader(self, tp: TopicPartition) -> int | None:
        return LEADER

    def leader_epoch(self, tp: TopicPartition) -> int:
        return 5

    def knows(self, node: int) -> bool:
        return node in self.nodes

    def version(self, request: type) -> int:
        return self.newest

    def started(self, coroutine: Callable[[], Any]) -> Any:
        node, request = coroutine.args  # type: ignore[attr-defined]
        self.asked.append((node, request.rack_id))
        self.logs.append([one.partition for t in request.topics for one in t.partitions])
        by_id = request._min_version >= 13
        self.topics.append([t.topic_id if by_id else t.topic for t in request.topics])
        # Only a leader names a replica, and only to a client that says its rack.
        named = NEAR if node == LEADER and request.rack_id else -1
        partitions = [
            SimpleNamespace(
                partition_index=one,
                error_code=0,
                preferred_read_replica=named,
                last_stable_offset=9,
                aborted_transactions=[],
                records=b"",
            )
            for one in self.logs[-1]
        ]
        topics = [
            SimpleNamespace(topic=t.topic, topic_id=t.topic_id, partitions=partitions)
            for t in request.topics
        ]
        code = self.codes.pop(0) if self.codes else 0
        answer = SimpleNamespace(error_code=code, session_id=0, responses=topics)
        return SimpleNamespace(is_done=not self.silent, exception=None, value=answer)

    def turn(self, wait_s: float) -> None:
        self.seconds += wait_s

    def push(self) -> None: ...

    def now(self) -> float:
        return self.seconds

    def close(self) -> None: ...


def fetched(reader: FetchConnection, *logs: TopicPartition) -> set[TopicPartition]:
    reader.fetch({tp: FetchPlace(0) for tp in logs or (TP,)})
    return set(reader.answers(0.1))


def opened(link: Link, rack: str = "") -> FetchConnection:
    carrier: Any = link
    return FetchConnection(carrier, rack=rack)


def test_with_a_rack_the_named_replica_is_read() -> None:
    link = Link()
    reader = opened(link, "a")
    for _ in range(3):
        fetched(reader)
    assert link.asked == [(LEADER, "a"), (NEAR, "a"), (NEAR, "a")]


def test_without_a_rack_the_leader_is_read() -> None:
    link = Link()
    reader = opened(link)
    for _ in range(2):
        fetched(reader)
    assert link.asked == [(LEADER, ""), (LEADER, "")]


def test_after_an_error_the_leader_is_asked_again() -> None:
    link = Link()
    reader = opened(link, "a")
    fetched(reader)
    assert reader.forget(TP)
    fetched(reader)
    assert [node for node, _ in link.asked] == [LEADER, LEADER]


def test_a_replica_that_left_the_cluster_is_not_asked() -> None:
    link = Link()
    reader = opened(link, "a")
    fetched(reader)
    link.nodes.remove(NEAR)
    fetched(reader)
    assert [node for node, _ in link.asked] == [LEADER, LEADER]


def test_a_replica_is_only_near_for_a_while() -> None:
    link = Link()
    reader = opened(link, "a")
    fetched(reader)
    link.seconds += 299
    fetched(reader)
    link.seconds += 2
    fetched(reader)
    assert [node for node, _ in link.asked] == [LEADER, NEAR, LEADER]


def test_all_logs_of_a_broker_are_in_one_request_and_the_next_waits_for_its_answer() -> None:
    link = Link()
    reader = opened(link)
    assert fetched(reader, TP, TWO) == {TP, TWO}
    assert link.logs == [[0, 1]]
    link.silent = True
    assert fetched(reader, TP) == set()
    assert fetched(reader, TWO) == set()
    assert link.logs == [[0, 1], [0]]


def test_topics_go_by_id_where_the_broker_can_and_all_are_known() -> None:
    link = Link()
    link.newest = 18
    reader = opened(link)
    assert fetched(reader) == {TP}
    reader.use_ids({"t": ID})
    assert fetched(reader, TP, TWO) == {TP, TWO}
    assert fetched(reader, TP, TopicPartition("other", 0)) == {TP, TopicPartition("other", 0)}
    assert fetched(reader) == {TP}
    assert link.topics == [["t"], [UUID], ["other", "t"], [UUID]]


def test_a_broker_from_before_topic_ids_is_asked_by_name() -> None:
    link = Link()
    reader = opened(link)
    reader.use_ids({"t": ID})
    assert fetched(reader) == {TP}
    assert link.topics == [["t"]]


def test_a_session_that_mixes_names_and_ids_begins_anew() -> None:
    link = Link()
    link.newest, link.codes = 18, [FETCH_SESSION_TOPIC_ID_ERROR]
    reader = opened(link)
    reader.use_ids({"t": ID})
    assert fetched(reader) == set()
    assert fetched(reader) == {TP}
