"""What leaders say of logs by their topics' ids, and what is made of it."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.errors import RetriableError
from everflow.kafka.errors import LinkLostError, RefusedError
from everflow.kafka.reading.topic_ids import TopicIds
from everflow.records import TopicPartition

LOGS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
UUIDS = {"a": uuid.UUID(int=5), "b": uuid.UUID(int=1 << 90)}
IDS = {
    name: base64.urlsafe_b64encode(one.bytes).decode().rstrip("=") for name, one in UUIDS.items()
}
NOT_LEADER, OUT_OF_RANGE, NO_TOPIC = 6, 1, 3
UNKNOWN_ID, OTHER_ID, UNSUPPORTED = 100, 103, 35


class Link:
    """Brokers that answer at once; logs lie on two of them. ``codes``: of each question one, the
    last one for all that follow: an error code for the log "a-1", or what is raised."""

    def __init__(self, *codes: int | Exception) -> None:
        self.codes = list(codes)
        self.refreshed = 0
        self.sent: list[tuple[int, list[tuple[uuid.UUID, int]]]] = []
        self.time_s = 0.0

    def leader(self, tp: TopicPartition) -> int | None:
        return tp.partition

    def started(self, coroutine: Callable[[], Any]) -> Any:
        node, request = coroutine.args  # type: ignore[attr-defined]
        asked = [(t.topic_id, p.partition) for t in request.topics for p in t.partitions]
        self.sent.append((node, asked))
        said: int | Exception = OUT_OF_RANGE
        if node == LOGS[1].partition:
            said = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        if isinstance(said, Exception):
            return SimpleNamespace(is_done=True, exception=said)
        topics = [
            SimpleNamespace(
                topic_id=topic_id,
                partitions=[SimpleNamespace(partition_index=number, error_code=said)],
            )
            for topic_id, number in asked
        ]
        answer = SimpleNamespace(error_code=0, responses=topics)
        return SimpleNamespace(is_done=True, exception=None, value=answer)

    def run(self, coroutine: Callable[[], Any]) -> None:
        self.refreshed += 1
        self.time_s += 1.0

    async def send(self, *_: Any) -> Any: ...
    async def refresh(self, topic: str | None = None) -> None: ...
    async def pause(self, seconds: float) -> None: ...

    def push(self) -> None: ...

    def turn(self, wait_s: float) -> None: ...

    def now(self) -> float:
        return self.time_s

    def close(self) -> None: ...


def asked(link: Link) -> TopicIds:
    given: Any = link
    ids = TopicIds(lambda: given)
    ids.ask(LOGS, IDS)
    return ids


def test_each_leader_is_asked_once_about_its_logs_by_id() -> None:
    link = Link(0)
    ids = asked(link)
    ids.require(10.0)
    ids.require(10.0)
    assert sorted(link.sent) == [(0, [(UUIDS["a"], 0), (UUIDS["b"], 0)]), (1, [(UUIDS["a"], 1)])]


@pytest.mark.parametrize("code", [UNKNOWN_ID, OTHER_ID, NO_TOPIC])
def test_a_log_of_another_topic_is_named(code: int) -> None:
    ids = asked(Link(code))
    with pytest.raises(RetriableError, match=IDS["a"]) as refused:
        ids.require(10.0)
    assert refused.value.partitions == {LOGS[1]}


@pytest.mark.parametrize("trouble", [NOT_LEADER, LinkLostError("lost", sent=True), RefusedError(7)])
def test_a_log_whose_leader_does_not_say_is_asked_about_again(trouble: int | Exception) -> None:
    link = Link(trouble, trouble, OUT_OF_RANGE)
    ids = asked(link)
    ids.require(100.0)
    assert [node for node, _ in link.sent] == [0, 1, 1, 1]
    assert link.refreshed > 0, "it may have another leader"


def test_a_leader_that_does_not_say_in_time_lets_nothing_pass() -> None:
    ids = asked(Link(NOT_LEADER))
    with pytest.raises(RetriableError) as late:
        ids.require(5.0)
    assert late.value.partitions == {LOGS[1]}
    assert "6" in str(late.value)


def test_brokers_that_know_no_ids_in_a_fetch_are_asked_no_more() -> None:
    link = Link(RefusedError(UNSUPPORTED))
    ids = asked(link)
    ids.require(10.0)
    link.sent.clear()
    ids.ask(LOGS, IDS)
    ids.require(10.0)
    assert link.sent == []
