"""Waits for logs to grow, at next to no cost while they do not.

A fetch from where the logs ended is held back by the broker until one of them has more (KIP-227: in
a session an idle fetch costs some bytes, however many partitions it is about). Asking for the ends
again and again costs each time what all partitions cost: 1,000 of them took most of a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

import kafka.errors as client_errors
from kafka.protocol.consumer import FetchRequest, IsolationLevel

from everflow.errors import RetriableError
from everflow.kafka.broker_link import BrokerLink, LinkLostError, RefusedError
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.reading.taps import CONNECT_S
from everflow.records import TopicPartition

HELD_BACK_MS = 500
"""How long a broker holds a fetch back (Java's fetch.max.wait.ms)."""
_LATE_S = 5.0
"""An answer that comes so much later than that is none."""
_VERSIONS = (7, 12)  # from sessions on; from 13 on topics go by id
_SESSION_ERRORS = (70, 71)  # FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH
_LARGEST_EPOCH = 2**31 - 1


class Carrier(Protocol):
    """What is asked of `BrokerLink`."""

    def leader(self, tp: TopicPartition) -> int | None: ...
    def started(self, coroutine: Any) -> Any: ...
    def run(self, coroutine: Any) -> Any: ...
    def turn(self, wait_s: float) -> None: ...
    def push(self) -> None: ...
    def now(self) -> float: ...
    def close(self) -> None: ...
    async def send(self, node: int, request: Any, timeout_s: float | None = None) -> Any: ...
    async def pause(self, seconds: float) -> None: ...
    async def refresh(self, topic: str | None = None) -> None: ...


@dataclass
class _Session:
    """With one broker. ``known``: from where it looks, of each partition; ``epoch`` 0: there is
    none, all partitions are named."""

    id: int = 0
    epoch: int = 0
    known: dict[TopicPartition, int] = field(default_factory=dict)
    coming: Any = None

    def forget(self) -> None:
        self.id = self.epoch = 0
        self.known = {}

    def request(self, ends: dict[TopicPartition, int], isolation: IsolationLevel) -> Any:
        known = self.known
        changed = {tp: end for tp, end in ends.items() if known.get(tp) != end}
        gone = [] if known.keys() <= ends.keys() else [tp for tp in known if tp not in ends]
        self.known = ends
        return FetchRequest(
            max_wait_ms=HELD_BACK_MS,
            min_bytes=1,
            # One batch at the most: it is the ends that are wanted.
            max_bytes=1,
            isolation_level=isolation,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=_by_topic(changed),
            forgotten_topics_data=_forgotten(gone),
            rack_id="",
            min_version=_VERSIONS[0],
            max_version=_VERSIONS[1],
        )

    def take(self, answer: Any) -> None:
        """A broker with too many sessions gives none: all partitions are named each time."""
        self.id = answer.session_id
        self.epoch = 0 if self.id == 0 else self.epoch % _LARGEST_EPOCH + 1
        if self.id == 0:
            self.known = {}


class TailWatch:
    """Owned by one thread; a connection to each broker that leads one of the logs, until closed."""

    def __init__(self, link: Carrier, *, read_committed: bool) -> None:
        self._link = link
        self._isolation = (
            IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        )
        self._sessions: dict[int, _Session] = {}
        self._leaders: dict[int, list[TopicPartition]] = {}
        """Of the logs that were asked for last: looked up anew where those are others, and behind
        every failure. A log that has moved is one: its old leader says so."""
        self._watched: Set[TopicPartition] = frozenset()
        self._moved = False
        """The logs may have other leaders than those that are known."""

    @staticmethod
    def opens(config: Mapping[str, Any], *, read_committed: bool) -> Callable[[], TailWatch]:
        """What opens one, for librdkafka's settings. It raises RetriableError if no broker answers,
        FatalError if one refuses this client."""
        connection = connection_settings(config)
        connection.pop("client_rack", None)  # leaders know best where a log ends
        request_ms = HELD_BACK_MS + int(_LATE_S * 1000)

        def open_one() -> TailWatch:
            link = BrokerLink(connection, request_ms, CONNECT_S, "everflow-tail-watch")
            return TailWatch(link, read_committed=read_committed)

        return open_one

    def wait(
        self, ends: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Wait until one of the logs is longer than in ``ends``, for ``timeout_s`` seconds at most;
        the ends that brokers told meanwhile, last stable offsets where read committed, high
        watermarks otherwise. A fetch that is held back goes on behind it: in the next wait it may
        tell of logs that are no longer asked for.

        Raises RetriableError: a broker cannot be reached or does not lead its logs any more; the
        next wait begins anew.
        """
        try:
            if self._moved:
                self._link.run(self._link.refresh)
                self._moved = False
            if ends.keys() != self._watched:
                self._leaders, self._watched = self._by_leader(ends), frozenset(ends)
            for node, logs in self._leaders.items():
                session = self._sessions.setdefault(node, _Session())
                if session.coming is None:
                    request = session.request({tp: ends[tp] for tp in logs}, self._isolation)
                    session.coming = self._link.started(partial(self._ask, node, request))
            return self._awaited(self._link.now() + timeout_s)
        except (LinkLostError, RefusedError, client_errors.KafkaError) as failure:
            self._sessions, self._watched, self._moved = {}, frozenset(), True
            raise RetriableError(f"the ends of the logs are not told: {failure}") from failure

    def close(self) -> None:
        self._link.close()

    def _by_leader(self, logs: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        found: dict[int, list[TopicPartition]] = {}
        for tp in logs:
            node = self._link.leader(tp)
            if node is None:
                self._link.run(partial(self._link.refresh, tp.topic))
                node = self._link.leader(tp)
            if node is None:
                raise LinkLostError(f"{tp} has no leader", sent=False)
            found.setdefault(node, []).append(tp)
        return found

    async def _ask(self, node: int, request: Any) -> Any:
        return await self._link.send(node, request, HELD_BACK_MS / 1000 + _LATE_S)

    def _awaited(self, until_s: float) -> dict[TopicPartition, int]:
        """Until one broker has answered: it can be asked again then."""
        told: dict[TopicPartition, int] = {}
        done: list[_Session] = []
        while not done and (left_s := until_s - self._link.now()) > 0:
            self._link.turn(left_s)
            done = [one for one in self._sessions.values() if one.coming and one.coming.is_done]
        for session in done:
            coming, session.coming = session.coming, None
            if coming.exception is not None:
                raise coming.exception
            told |= self._taken(session, coming.value)
        return told

    def _taken(self, session: _Session, answer: Any) -> dict[TopicPartition, int]:
        if answer.error_code in _SESSION_ERRORS:
            session.forget()
            return {}
        if answer.error_code:
            raise RefusedError(answer.error_code)
        asked = session.known
        session.take(answer)
        committed = self._isolation == IsolationLevel.READ_COMMITTED
        told: dict[TopicPartition, int] = {}
        for topic in answer.responses or ():
            for one in topic.partitions:
                tp = TopicPartition(topic.topic, one.partition_index)
                if one.error_code:
                    raise RefusedError(one.error_code, f"{tp}: error code {one.error_code}")
                end = one.last_stable_offset if committed else one.high_watermark
                if end > asked.get(tp, end):
                    told[tp] = end
        return told


def _by_topic(ends: Mapping[TopicPartition, int]) -> list[Any]:
    topics = []
    for topic, partitions in groupby(sorted(ends), key=attrgetter("topic")):
        asked = [
            FetchRequest.FetchTopic.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=-1,
                fetch_offset=ends[tp],
                last_fetched_epoch=-1,
                partition_max_bytes=1,
            )
            for tp in partitions
        ]
        topics.append(FetchRequest.FetchTopic(topic=topic, partitions=asked))
    return topics


def _forgotten(partitions: Sequence[TopicPartition]) -> list[Any]:
    return [
        FetchRequest.ForgottenTopic(topic=topic, partitions=[tp.partition for tp in gone])
        for topic, gone in groupby(sorted(partitions), key=attrgetter("topic"))
    ]
