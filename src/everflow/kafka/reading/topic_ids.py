"""Asks the leaders of logs whether these are still logs of the topics with certain ids.

A topic that is deleted and created again keeps its name, and readers go by names: they go on at
their position in the new log. An id never comes back. So if a leader knows a topic by its id
*after* a range of its log was read, every record of the range is of that topic.
"""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import kafka.errors as client_errors
from kafka.protocol.consumer import FetchRequest, IsolationLevel

from everflow.errors import OtherTopicError, RetriableError
from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.errors import LinkLostError, RefusedError
from everflow.kafka.reading.fetch_connection import CONNECT_S, Carrier
from everflow.logs import some
from everflow.records import TopicPartition

_log = logging.getLogger(__name__)

_VERSION = 13  # from it on, topics go by id (Kafka 3.1, KIP-516)
_REQUEST_MS = 5_000
_PAUSE_S = 0.05
_NO_LOG_IS_SO_LONG = 2**63 - 1
"""A fetch from there has no records in its answer, and brokers compare the id first."""
_OUT_OF_RANGE = client_errors.OffsetOutOfRangeError.errno
_SAME = frozenset({0, _OUT_OF_RANGE})
_OTHER = frozenset(
    {
        client_errors.UnknownTopicIdError.errno,
        client_errors.InconsistentTopicIdError.errno,
        client_errors.UnknownTopicOrPartitionError.errno,
    }
)
_NAMED = 5
_UNSUPPORTED = client_errors.UnsupportedVersionError.errno


class TopicIds:
    """One question at a time; owned by one thread. Holds a connection to each broker that leads one
    of the logs, until closed."""

    def __init__(self, open_link: Callable[[], Carrier]) -> None:
        """``open_link`` raises what `BrokerLink` raises."""
        self._open_link = open_link
        self._link: Carrier | None = None
        self._ids: Mapping[str, str] = {}
        self._asked: frozenset[TopicPartition] = frozenset()
        """Logs of which nothing is known yet."""
        self._coming: list[tuple[list[TopicPartition], Any]] = []
        self._supported = True

    @staticmethod
    def over(config: Mapping[str, Any]) -> TopicIds:
        """For librdkafka's settings."""

        def open_link() -> Carrier:
            connection = connection_settings(config)
            connection.pop("client_rack", None)  # it is the leader that is asked
            return BrokerLink(connection, _REQUEST_MS, CONNECT_S, "everflow-topic-ids")

        return TopicIds(open_link)

    def warm_up(self, topics: Iterable[str]) -> None:
        """Connect now instead of at the first question. Raises what `BrokerLink` raises."""
        self._learn_leaders(topics)

    def ask(self, logs: Iterable[TopicPartition], ids: Mapping[str, str]) -> None:
        """Begin to ask about these logs; `require` takes the answers. A log whose topic has no id
        in ``ids`` is not asked about. Raises what `BrokerLink` raises where it has to connect
        first."""
        self._ids = ids
        self._coming = []
        self._asked = (
            frozenset(tp for tp in logs if tp.topic in ids) if self._supported else frozenset()
        )
        if self._asked:
            self._send()

    def require(self, timeout_s: float) -> None:
        """Wait until all that was asked is answered. Raises OtherTopicError with the logs that are
        of another topic by now, as a leader says, RetriableError with those about which none
        answers for ``timeout_s`` seconds."""
        if not self._asked:
            return
        link = self._opened()
        until_s = link.now() + timeout_s
        while self._asked:
            troubles = self._answers(until_s)
            if not self._asked:
                return
            if link.now() >= until_s:
                asked, self._asked = self._asked, frozenset()
                raise RetriableError(
                    f"For {timeout_s:g} s no leader has confirmed the topic ids of "
                    f"{_named(asked)}{''.join(f' ({trouble})' for trouble in troubles[:1])}. "
                    f"Records that were read of them are not committed before that.",
                    asked,
                )
            self._learn_leaders()
            self._send()

    def close(self) -> None:
        """Drop the connections; another `ask` makes new ones."""
        self._asked, self._coming = frozenset(), []
        if self._link is not None:
            self._link.close()
            self._link = None

    def _opened(self) -> Carrier:
        if self._link is None:
            self._link = self._open_link()
        return self._link

    def _send(self) -> None:
        link = self._opened()
        of_leader: dict[int, list[TopicPartition]] = {}
        for tp in sorted(self._asked):
            node = link.leader(tp)
            if node is None:
                self._learn_leaders([tp.topic])
                node = link.leader(tp)
            if node is not None:
                of_leader.setdefault(node, []).append(tp)
        for node, logs in of_leader.items():
            coming = link.started(partial(link.send, node, self._request(logs)))
            self._coming.append((logs, coming))
        link.push()

    def _request(self, logs: list[TopicPartition]) -> Any:
        topics = [
            FetchRequest.FetchTopic(
                topic_id=_uuid(self._ids[topic]),
                partitions=[
                    FetchRequest.FetchTopic.FetchPartition(
                        partition=tp.partition,
                        current_leader_epoch=-1,
                        fetch_offset=_NO_LOG_IS_SO_LONG,
                        last_fetched_epoch=-1,
                        partition_max_bytes=1,
                    )
                    for tp in of_topic
                ],
            )
            for topic, of_topic in groupby(logs, key=attrgetter("topic"))
        ]
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=topics,
            forgotten_topics_data=[],
            rack_id="",
            min_version=_VERSION,
            max_version=_VERSION,
        )

    def _answers(self, until_s: float) -> list[str]:
        """Take what comes until ``until_s``; what hindered the logs that are still asked about."""
        link, troubles = self._opened(), []
        for logs, coming in self._coming:
            while not coming.is_done and (left_s := until_s - link.now()) > 0:
                link.turn(left_s)
            if not coming.is_done:
                continue
            failure = coming.exception
            if isinstance(failure, RefusedError) and failure.code == _UNSUPPORTED:
                _log.info("The brokers know no fetch by topic id (Kafka 3.1): %s", failure)
                self._supported, self._asked = False, frozenset()
                return []
            if isinstance(failure, LinkLostError | RefusedError | client_errors.KafkaError):
                troubles.append(f"{failure}")
            elif failure is not None:
                raise failure
            else:
                troubles += self._take(logs, coming.value)
        self._coming = []
        return troubles

    def _take(self, logs: list[TopicPartition], answer: Any) -> list[str]:
        if answer.error_code:
            return [f"error code {answer.error_code}"]
        names = {_uuid(self._ids[tp.topic]): tp.topic for tp in logs}
        codes = {
            TopicPartition(names[topic.topic_id], one.partition_index): one.error_code
            for topic in answer.responses or ()
            if topic.topic_id in names
            for one in topic.partitions
        }
        other = [tp for tp in logs if codes.get(tp) in _OTHER]
        if other:
            self._asked = frozenset()
            code = client_errors.for_code(codes[other[0]]).message
            raise OtherTopicError(
                f"{_named(other)}: the leader answers {code}: the log is not of the topic with id "
                f"{self._ids[other[0].topic]}, which the application started with. Records that "
                f"were read of it are not committed. The instance ends once the brokers confirm "
                f"that the topic was deleted, or deleted and created again.",
                other,
            )
        same = [tp for tp in logs if codes.get(tp) in _SAME]
        self._asked -= frozenset(same)
        return [f"{tp}: error code {codes.get(tp)}" for tp in logs if tp in self._asked]

    def _learn_leaders(self, topics: Iterable[str] | None = None) -> None:
        link = self._opened()
        if topics is None:
            topics = {tp.topic for tp in self._asked}
            link.run(partial(link.pause, _PAUSE_S))
        for topic in topics:
            try:
                link.run(partial(link.refresh, topic))
            except LinkLostError as failure:
                _log.debug("The leaders of %s are not known now: %s", topic, failure)


def _uuid(topic_id: str) -> uuid.UUID:
    """A topic id as Kafka prints it."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(f"{topic_id}=="))


def _named(logs: Iterable[TopicPartition]) -> str:
    return some(sorted(logs), _NAMED)
