"""Sends fetch requests: one under way per broker, for all logs that are wanted of it.

Brokers answer one connection's requests in turn: of a request for each log, one with records waited
for those without (27 ms with four). In a session (KIP-227) only what has changed is named.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import kafka.errors as client_errors
from kafka.protocol.consumer import FetchRequest, IsolationLevel

from everflow.errors import RetriableError
from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.errors import LinkLostError, RefusedError
from everflow.records import TopicPartition, by_topic

CONNECT_S = 30.0
FETCH_BYTES = 8 << 20
"""The bytes of one log in one answer."""
ANSWER_BYTES = 16 << 20
"""The bytes of all logs of a broker in one answer; a single batch may be larger."""
_VERSIONS = (7, 12)  # from sessions on
_BY_ID = 13
"""In it, and from it on, topics go by id (Kafka 3.1, KIP-516)."""
_WITH_EPOCHS = 12
"""From it on brokers compare epochs with their log (Kafka 2.7, KIP-595)."""
_SESSION_ERRORS = (70, 71, 106)
"""FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR"""
_LARGEST_EPOCH = 2**31 - 1
_LATE_S = 30.0
"""An answer that comes so much later than a broker may hold it back is none; a large one may take
long on a slow line."""
_REPLICA_S = 300.0
"""Java's metadata.max.age.ms: after it, the leader is asked again which replica is near."""


class FetchPlace(NamedTuple):
    """The place of a fetch. ``epoch``: of the leader that wrote what lies before it, as far as
    it is known (-1: it is not)."""

    offset: int
    epoch: int = -1


class Answer(NamedTuple):
    """Record batches as they came for the asked ``offset``, and (producer id, first offset) of the
    aborted transactions among them; or why there are none. ``end``: the last stable offset where
    read committed, the high watermark otherwise."""

    offset: int
    end: int = -1
    records: bytes = b""
    aborted: Sequence[tuple[int, int]] = ()
    failure: Exception | None = None


class DivergedError(Exception):
    """The log has other records by now: what was read is the same only before ``end_offset``."""

    def __init__(self, end_offset: int) -> None:
        super().__init__(f"other records from offset {end_offset} on")
        self.end_offset = end_offset


@dataclass
class _Session:
    """``known``: what was asked of each log; ``epoch`` 0: no session, all logs are named."""

    id: int = 0
    by_id: bool = False
    epoch: int = 0
    known: dict[TopicPartition, tuple[FetchPlace, int, int]] = field(default_factory=dict)
    coming: Any = None

    def forget(self) -> None:
        self.id = self.epoch = 0
        self.known = {}

    def take(self, answer: Any) -> None:
        """A broker with too many sessions gives none: all logs are named each time."""
        self.id = answer.session_id
        self.epoch = 0 if self.id == 0 else self.epoch % _LARGEST_EPOCH + 1
        if self.id == 0:
            self.known = {}


@dataclass(eq=False)
class FetchConnection:
    """Owned by one thread, in which its loop turns; a connection to each broker that leads one of
    the logs, until closed. With a rack, it fetches from the replica that the leader names
    (KIP-392)."""

    link: BrokerLink
    _: KW_ONLY
    read_committed: bool = True
    wait_ms: int = 20
    """How long a broker holds an answer back that would be empty."""
    log_bytes: int = FETCH_BYTES
    """The bytes of one log in one answer; may be changed between fetches."""
    answer_bytes: int = ANSWER_BYTES
    rack: str = ""
    late_s: float = _LATE_S
    """An answer that comes so much later is none."""
    _known_ids: dict[str, str] = field(default_factory=dict, init=False)
    _ids: dict[str, uuid.UUID] = field(default_factory=dict, init=False)
    _sessions: dict[int, _Session] = field(default_factory=dict, init=False)
    _nodes: dict[TopicPartition, int] = field(default_factory=dict, init=False)
    """Whom to ask for each log; looked up anew after a failure."""
    _near: set[TopicPartition] = field(default_factory=set, init=False)
    _nodes_until_s: float = field(default=0.0, init=False)
    _stale: bool = field(default=False, init=False)
    _learning: Any = field(default=None, init=False)
    _learned: Any = field(default=None, init=False)

    @staticmethod
    def opened(
        settings: Mapping[str, Any], client_id: str, timeout_s: float, wait_ms: int, **values: Any
    ) -> FetchConnection:
        """``settings``: from `connection_settings`. Raises as `BrokerLink`."""
        link_settings = dict(settings)
        rack = str(link_settings.pop("client_rack", ""))
        link = BrokerLink(link_settings, wait_ms + int(_LATE_S * 1000), timeout_s, client_id)
        return FetchConnection(link, wait_ms=wait_ms, rack=rack, **values)

    def close(self) -> None:
        self.link.close()

    def use_ids(self, ids: Mapping[str, str]) -> None:
        """Fetch these topics by id, of a broker that can and if all that is wanted of it has one:
        a topic that is deleted and created again keeps its name, and an id never comes back."""
        for topic, topic_id in ids.items():
            if self._known_ids.get(topic) != topic_id:
                self._known_ids[topic] = topic_id
                self._ids[topic] = _uuid(topic_id)
                for session in self._sessions.values():
                    session.forget()

    def connect(self, topics: Iterable[str], timeout_s: float) -> None:
        """Connect to the leaders now, not at the first fetch, for ``timeout_s`` seconds at most; no
        error if one does not answer."""

        async def connect() -> None:
            for topic in topics:
                await self.link.refresh(topic)
                partition = 0
                while (node := self.link.leader(TopicPartition(topic, partition))) is not None:
                    await self.link.connect(node)
                    partition += 1

        connecting: Any = self.link.started(connect)
        until_s = self.link.now() + timeout_s
        while not connecting.is_done and (left_s := until_s - self.link.now()) > 0:
            self.link.turn(left_s)

    def fetch(self, wanted: Mapping[TopicPartition, FetchPlace]) -> dict[TopicPartition, Exception]:
        """Ask every broker that has no request under way for the logs that it leads; a log whose
        broker has one is asked for with a later call. Logs that have no leader, and why."""
        if self.link.now() > self._nodes_until_s:
            self._nodes, self._near = {}, set()
            self._nodes_until_s = self.link.now() + _REPLICA_S
        of_node: dict[int, dict[TopicPartition, FetchPlace]] = {}
        unknown: list[TopicPartition] = []
        for tp, place in wanted.items():
            node = self._node(tp)
            if node is None:
                unknown.append(tp)
            else:
                of_node.setdefault(node, {})[tp] = place
        for node, places in of_node.items():
            session = self._sessions.setdefault(node, _Session())
            if session.coming is None:
                request = self._request(session, places)
                session.coming = self.link.started(partial(self._ask, node, request))
        learned, self._learned = self._learned, None
        if learned is not None and unknown:
            failure = learned.exception
            return {
                tp: failure or client_errors.LeaderNotAvailableError(f"{tp} has no leader")
                for tp in unknown
            }
        if self._learning is None and (unknown or self._stale):
            self._stale = False
            self._learning = self.link.started(partial(self._learn, {tp.topic for tp in unknown}))
        return {}

    def answers(self, timeout_s: float) -> dict[TopicPartition, Answer]:
        """Answers of brokers, waiting up to ``timeout_s`` seconds for the first. A log without news
        is not in it; an answer may be for an offset that is no longer wanted."""
        until_s = self.link.now() + timeout_s
        if timeout_s <= 0:
            self.link.push()
        while True:
            done = [one for one in self._sessions.values() if one.coming and one.coming.is_done]
            if self._learning is not None and self._learning.is_done:
                self._learned, self._learning = self._learning, None
                break
            left_s = until_s - self.link.now()
            if done or left_s <= 0:
                break
            self.link.turn(left_s)
        found: dict[TopicPartition, Answer] = {}
        for session in done:
            coming, session.coming = session.coming, None
            found |= self._taken(session, coming)
        return found

    def push(self) -> None:
        self.link.push()

    def forget(self, tp: TopicPartition) -> bool:
        """Look up anew whom to ask for this log; True if it was read from another replica than the
        leader before."""
        was_near = tp in self._near
        self._near.discard(tp)
        self._nodes.pop(tp, None)
        if not was_near:
            self._stale = True
        return was_near

    def _node(self, tp: TopicPartition) -> int | None:
        node = self._nodes.get(tp)
        if node is not None and tp in self._near and not self.link.knows(node):
            self._near.discard(tp)
            node = None
        if node is None:
            node = self.link.leader(tp)
            if node is not None:
                self._nodes[tp] = node
        return node

    async def _learn(self, topics: Iterable[str]) -> None:
        for topic in topics or (None,):
            await self.link.refresh(topic)

    async def _ask(self, node: int, request: Any) -> Any:
        return await self.link.send(node, request, self.wait_ms / 1000 + self.late_s)

    def _request(
        self,
        session: _Session,
        places: Mapping[TopicPartition, FetchPlace],
    ) -> Any:
        version = self.link.version(FetchRequest)
        with_epochs = version >= _WITH_EPOCHS
        ids = self._ids
        by_id = version >= _BY_ID and all(tp.topic in ids for tp in places)
        if by_id != session.by_id:
            session.forget()
            session.by_id = by_id
        wanted = {
            tp: (
                place if with_epochs else FetchPlace(place.offset),
                self.link.leader_epoch(tp),
                self.log_bytes,
            )
            for tp, place in places.items()
        }
        known = session.known
        changed = {tp: one for tp, one in wanted.items() if known.get(tp) != one}
        gone = [] if known.keys() <= wanted.keys() else [tp for tp in known if tp not in wanted]
        session.known = wanted
        return FetchRequest(
            max_wait_ms=self.wait_ms,
            min_bytes=1,
            max_bytes=self.answer_bytes,
            isolation_level=IsolationLevel(int(self.read_committed)),
            session_id=session.id,
            session_epoch=session.epoch,
            topics=_asked(changed, ids),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(
                    topic=topic,
                    topic_id=ids.get(topic),
                    partitions=found,
                )
                for topic, found in by_topic(sorted(gone))
            ],
            rack_id=self.rack,
            min_version=_BY_ID if by_id else _VERSIONS[0],
            max_version=_BY_ID if by_id else _VERSIONS[1],
        )

    def _taken(self, session: _Session, coming: Any) -> dict[TopicPartition, Answer]:
        asked = session.known
        failure, answer = coming.exception, coming.value
        code = 0 if failure is not None else answer.error_code
        if code in _SESSION_ERRORS:
            session.forget()
            return {}
        if code:
            failure = client_errors.for_code(code)()
        if failure is not None:
            if not isinstance(failure, LinkLostError | RefusedError | client_errors.KafkaError):
                raise failure
            session.forget()
            return {tp: Answer(one[0].offset, failure=failure) for tp, one in asked.items()}
        session.take(answer)
        found: dict[TopicPartition, Answer] = {}
        names = {self._ids[tp.topic]: tp.topic for tp in asked} if session.by_id else {}
        for topic in answer.responses or ():
            name = names.get(topic.topic_id, "") if session.by_id else topic.topic
            for one in topic.partitions:
                tp = TopicPartition(name, one.partition_index)
                if tp in asked:
                    found[tp] = self._answer(tp, asked[tp][0].offset, one)
        return found

    def _answer(self, tp: TopicPartition, offset: int, one: Any) -> Answer:
        if one.error_code:
            return Answer(offset, failure=client_errors.for_code(one.error_code)(str(tp)))
        cut = getattr(one, "diverging_epoch", None)
        if cut is not None and cut.end_offset >= 0:
            return Answer(offset, failure=DivergedError(cut.end_offset))
        near = getattr(one, "preferred_read_replica", None)
        if near is not None and near >= 0:
            self._nodes[tp] = near
            self._near.add(tp)
        end = one.last_stable_offset if self.read_committed else one.high_watermark
        aborted = [(each.producer_id, each.first_offset) for each in one.aborted_transactions or ()]
        return Answer(offset, end, one.records or b"", aborted)


def _uuid(topic_id: str) -> uuid.UUID:
    """A topic id as Kafka prints it."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(f"{topic_id}=="))


def _asked(
    wanted: Mapping[TopicPartition, tuple[FetchPlace, int, int]], ids: Mapping[str, uuid.UUID]
) -> list[Any]:
    """As a request names the logs; of name and id of a topic its version says which is sent."""
    topic_type = FetchRequest.FetchTopic

    def partition(tp: TopicPartition) -> Any:
        place, leader_epoch, most_bytes = wanted[tp]
        return topic_type.FetchPartition(
            partition=tp.partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=place.offset,
            last_fetched_epoch=place.epoch,
            partition_max_bytes=most_bytes,
        )

    return [
        topic_type(topic=topic, topic_id=ids.get(topic), partitions=partitions)
        for topic, partitions in by_topic(sorted(wanted), partition)
    ]


FETCH_MAX_WAIT_MS = 500
"""How long a broker delays the answer to a fetch (Java's fetch.max.wait.ms)."""
_LATE_END_S = 5.0


@dataclass(eq=False)
class TailWatch:
    """Owned by one thread; a connection to each broker that leads one of the logs, until closed."""

    connection: FetchConnection
    clock: Callable[[], float] = time.monotonic

    @staticmethod
    def opens(config: Mapping[str, Any], *, read_committed: bool) -> Callable[[], TailWatch]:
        """A function that opens one, of librdkafka's settings; it raises as `BrokerLink`."""
        settings = connection_settings(config)
        settings.pop("client_rack", None)  # leaders know best where a log ends

        return lambda: TailWatch(
            FetchConnection.opened(
                settings,
                "everflow-tail-watch",
                CONNECT_S,
                FETCH_MAX_WAIT_MS,
                read_committed=read_committed,
                # One batch at the most: it is the ends that are wanted.
                log_bytes=1,
                answer_bytes=1,
                late_s=_LATE_END_S,
            )
        )

    def wait(
        self, ends: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Wait until one of the logs is longer than in ``ends``, for ``timeout_s`` seconds at most;
        the ends that brokers reported: last stable offsets if read committed, else high watermarks.
        A later wait may report logs that are no longer asked for.

        RetriableError: a broker cannot be reached, or does not lead its logs any more; the next
        wait begins anew.
        """
        until_s = self.clock() + timeout_s
        places = {tp: FetchPlace(end) for tp, end in ends.items()}
        grown: dict[TopicPartition, int] = {}
        left_s = timeout_s
        while not grown and left_s > 0:
            failures = dict(self.connection.fetch(places))
            for tp, answer in self.connection.answers(left_s).items():
                if answer.failure is not None:
                    failures[tp] = answer.failure
                elif answer.end > answer.offset:
                    grown[tp] = answer.end
            for tp in failures:
                self.connection.forget(tp)
            if failures:
                tp, failure = next(iter(failures.items()))
                raise RetriableError(f"the ends of the logs are not known: {tp}: {failure}")
            left_s = until_s - self.clock()
        return grown

    def close(self) -> None:
        self.connection.close()
