"""Asks the cluster for topics, offsets, groups and transactions: waits are bounded, errors are for
people."""

from __future__ import annotations

import base64
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import kafka.errors as codes
from kafka.protocol import admin as admin_api
from kafka.protocol import consumer as consumer_api
from kafka.protocol.metadata import MetadataRequest

from everflow.errors import (
    EverflowError,
    FatalError,
    GenerationChanged,
    RetriableError,
    TaskTimeoutError,
)
from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.errors import (
    UNKNOWN_MEMBER,
    UNKNOWN_TOPIC,
    LinkLostError,
    RefusedError,
    classify,
    code_of,
)
from everflow.kafka.group_channel import GroupSettings
from everflow.records import NO_EPOCH, CommittedOffset, TopicPartition, by_topic
from everflow.retry import StoppedRequest

Isolation = Literal["read_committed", "read_uncommitted"]
T = TypeVar("T")

_AT = {"earliest": -2, "latest": -1}
_NEWEST = -3
"""In place of a time; KIP-734 has the last one."""
_NEWEST_VERSION, _EPOCHS_VERSION = 7, 4
"""Of the requests for offsets, from which they may ask for it."""
_TOPIC, _BROKER = 2, 4
_DESCRIBE_VERSION = 5
"""The next one calls a group that has no members an error."""
_OFFSETS_VERSION = 7
"""The next one asks for several groups at a time."""
_COMMIT_VERSIONS = {"min_version": 6, "max_version": 8}
"""The tenth has ids in the place of names."""
_LEAVE_VERSIONS = {"min_version": 3, "max_version": 5}
"""From the first one that takes static members out (KIP-345)."""
_LEAVE_REASON = "the application is reset"
_ONGOING = "Ongoing"
_OPEN = frozenset({_ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""Kafka's words for a transaction whose records readers of committed ones do not see yet."""
UNKNOWN_ID = 105
"""TRANSACTIONAL_ID_NOT_FOUND: nobody has written under it yet, or not for a week."""
_STATES_S = 5.0
_TOPIC_EXISTS = int(codes.TopicAlreadyExistsError.errno)
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_REQUEST_S = 10.0
_ATTEMPT_S = 1.0
"""An attempt to ask for offsets; the next one asks who leads the logs by then."""
_ANSWER_MS = 30_000
_GRACE_S = 1.0
"""So much longer than a broker may take for its answer an attempt is waited for."""
_REACH_ATTEMPT_S = 3.0
_PASSES = 1
"""So often a refusal may be chance: a broker that starts."""
_NO_TOKEN = "gave no token"
"""A token endpoint that does not answer is an outage."""
_NOT_LET_IN = (codes.SaslAuthenticationFailedError, codes.UnsupportedSaslMechanismError)
_CURES = {
    "sasl": "Check sasl.mechanism, the user's name and password (or token).",
    "ssl": "Check that ssl.ca.location holds the authority of the brokers' certificates.",
}
_ADVERTISED = (
    "Check advertised.listeners of the brokers: this machine must reach them under these names."
)
_CHECK = "bootstrap.servers, that the broker runs, and the security settings"


@dataclass(frozen=True)
class TopicDescription:
    """A topic as the broker has it. ``topic_id`` changes when a topic is deleted and created again
    (D5)."""

    name: str
    partitions: int
    topic_id: str


@dataclass(frozen=True)
class TopicShape:
    """Partitions of a topic, and the replicas of each (of the first where they differ)."""

    partitions: int
    replication_factor: int


@dataclass(frozen=True, kw_only=True)
class MemberDescription:
    """``subscription``, ``assignment``: the user data that it sent to its group and got of it."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    subscription: bytes = b""
    assignment: bytes = b""


class TransactionState(NamedTuple):
    """``state``: Kafka's word; empty where the brokers do not know the id. ``since_ms``: of the
    broker's clock, since when its transaction is open; None: none is."""

    state: str
    since_ms: int | None = None


class ClusterAdmin:
    """Requests about topics, offsets, groups and transactions.

    Safe from any thread; ``close`` when done. Passing faults (a topic just created, a leader that
    changes, a broker away) are retried until ``timeout_s``, then RetriableError with the last
    cause; others are raised at once.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        stop: threading.Event | None = None,
        connection: Mapping[str, Any] | None = None,
    ) -> None:
        """``config``: librdkafka keys; ``connection``: of `connection_settings`, in place of its.
        Connects at the first request. Once ``stop`` is set every request ends in RetriableError."""
        self._bootstrap = str(config["bootstrap.servers"])
        self._settings = connection_settings(config) if connection is None else connection
        self._link: BrokerLink | None = None
        self._addresses: Sequence[str] = ()
        self._closed = False
        self._lock = threading.Lock()
        self.stop = stop or threading.Event()

    @staticmethod
    def beside(config: Mapping[str, Any]) -> ClusterAdmin:
        """For the brokers of another client, whose ``config`` this is."""
        known = ("bootstrap.servers", "security.", "sasl.", "ssl.")
        return ClusterAdmin({key: value for key, value in config.items() if key.startswith(known)})

    def wait_until_reachable(
        self,
        timeout_s: float,
        on_retry: Callable[[str], None] = lambda _: None,
        *,
        limit: str = "",
        check: str = _CHECK,
    ) -> str:
        """Block until a broker answers; returns the cluster id.

        ``on_retry`` gets a line for people every 3 s or oftener. ``limit``: the setting that
        ``timeout_s`` is from; ``check``: what to check where nothing answers. TaskTimeoutError:
        nothing answered in time. FatalError: brokers answer, and twice refuse this client, or it
        their certificate.
        """
        deadline = time.monotonic() + timeout_s
        named = f" ({limit})" if limit else ""
        refusals: Counter[str] = Counter()
        # So that a short time-out says something too before it is over.
        attempt_s = min(_REACH_ATTEMPT_S, timeout_s / 3)
        while True:
            began, left = time.monotonic(), deadline - time.monotonic()
            try:
                return self.cluster_id(timeout_s=max(0.1, min(attempt_s, left)))
            except RetriableError as failure:
                if self.stop.is_set():
                    raise
                said = self._refusal(failure, refusals)
                # Where the brokers are as they say, if one answered and none can be reached there.
                elsewhere = ", ".join(sorted({*self._addresses} - {*self._bootstrap.split(",")}))
                if elsewhere:
                    what, cure = (
                        f"a Kafka broker answered at {self._bootstrap}, but none where it says "
                        f"that they are: {elsewhere}",
                        _ADVERTISED,
                    )
                else:
                    what = f"no Kafka broker answered at {self._bootstrap}"
                    cure = f"Check {check}."
                if deadline <= time.monotonic():
                    end = f"within {timeout_s:g} s{named}"
                    raise TaskTimeoutError(f"{what} {end}. {cure}{said}") from failure
                if not elsewhere:
                    what = f"no answer from Kafka at {self._bootstrap}"
                    cure = "Does a broker run there?"
                on_retry(f"{what} yet. {cure} Tried for {timeout_s:g} s in all{named}.{said}")
                time.sleep(max(0.0, min(attempt_s - (time.monotonic() - began), _LONGEST_PAUSE_S)))

    def _refusal(self, failure: RetriableError, refusals: Counter[str]) -> str:
        """What the last failed connection says; FatalError as `wait_until_reachable`."""
        text, kind = str(failure.__cause__ or failure), ""
        if isinstance(failure.__cause__, _NOT_LET_IN):
            kind = "sasl"
        elif re.search(r"Handshake failed|CERTIFICATE", text):
            kind = "ssl"
        refusals[kind] += 1
        if kind and _NO_TOKEN not in text and refusals[kind] > _PASSES:
            raise FatalError(
                f"the brokers at {self._bootstrap} and this client do not come together: {text}. "
                f"{_CURES[kind]}"
            )
        return f" The client says: {text}"

    def cluster_id(self, timeout_s: float = _REQUEST_S) -> str:
        """The cluster's id; another id under known state means another cluster (D5)."""

        async def once(link: BrokerLink, left: float) -> str:
            return str((await _metadata(link, [], left)).cluster_id)

        return self._retry(once, timeout_s, f"asking {self._bootstrap} for its cluster id")

    def describe_topics(
        self, names: Iterable[str], timeout_s: float = _REQUEST_S
    ) -> dict[str, TopicDescription]:
        """The topics among ``names`` that exist; the others are left out."""
        wanted = sorted(set(names))

        async def once(link: BrokerLink, left: float) -> dict[str, TopicDescription]:
            found = {}
            for topic in _existing(await _metadata(link, wanted, left)):
                # As librdkafka wrote it, of which stores have a note.
                topic_id = base64.b64encode(topic.topic_id.bytes).decode().rstrip("=")
                found[topic.name] = TopicDescription(topic.name, len(topic.partitions), topic_id)
            return found

        doing = f"describing topics {', '.join(wanted)}"
        return self._retry(once, timeout_s, doing) if wanted else {}

    def list_topics(self, timeout_s: float = _REQUEST_S) -> dict[str, TopicShape]:
        async def once(link: BrokerLink, left: float) -> dict[str, TopicShape]:
            found = {}
            for topic in (await _metadata(link, None, left)).topics:
                replicas = [len(one.replica_nodes) for one in topic.partitions]
                found[str(topic.name)] = TopicShape(len(replicas), replicas[0] if replicas else 0)
            return found

        return self._retry(once, timeout_s, "listing topics")

    def replica_racks(self, names: Iterable[str]) -> dict[TopicPartition, frozenset[str]]:
        """Racks of the brokers that hold a replica of each partition of the existing topics; those
        without a rack are left out."""
        wanted = sorted(set(names))

        async def once(link: BrokerLink, left: float) -> dict[TopicPartition, frozenset[str]]:
            answer = await _metadata(link, wanted, left)
            racks = {broker.node_id: broker.rack for broker in answer.brokers if broker.rack}
            return {
                TopicPartition(topic.name, one.partition_index): frozenset(
                    racks[node] for node in one.replica_nodes if node in racks
                )
                for topic in _existing(answer)
                for one in topic.partitions
            }

        doing = "asking for the racks of replicas"
        return self._retry(once, _REQUEST_S, doing) if wanted else {}

    def topic_configs(
        self, names: Iterable[str], timeout_s: float = _REQUEST_S
    ) -> dict[str, dict[str, str]]:
        """Effective configuration (defaults included) of existing topics."""
        wanted = sorted(set(names))

        async def once(link: BrokerLink, left: float) -> dict[str, dict[str, str]]:
            return await _configs(link, link.any_node(), _TOPIC, wanted, left)

        return self._retry(once, timeout_s, "reading topic configurations") if wanted else {}

    def creates_topics(self) -> bool | None:
        """True if naming a topic creates it; None where brokers do not say (no permission)."""

        async def once(link: BrokerLink, left: float) -> bool | None:
            node = link.any_node()
            entries = (await _configs(link, node, _BROKER, [str(node)], left))[str(node)]
            value = entries.get("auto.create.topics.enable")
            return None if value is None else value.lower() == "true"

        try:
            return self._retry(once, _REQUEST_S, "asking whether topics are created by themselves")
        except EverflowError:
            return None

    def create_topics(
        self,
        topics: Mapping[str, tuple[int, Mapping[str, str]]],
        replication_factor: int = -1,
        timeout_s: float = 30.0,
    ) -> set[str]:
        """Create ``{name: (partitions, config)}`` and wait until every partition answers; returns
        those that are new.

        A topic that exists is left as it is: validate it. ``replication_factor`` -1: the broker's.
        """
        if not topics:
            return set()
        created: set[str] = set()
        deadline = time.monotonic() + timeout_s

        async def once(link: BrokerLink, left: float) -> None:
            todo: list[tuple[Any, ...]] = [
                (name, partitions, replication_factor, [], list(config.items()))
                for name, (partitions, config) in topics.items()
                if name not in created
            ]
            if not todo:
                return
            request = admin_api.CreateTopicsRequest(
                topics=todo, timeout_ms=int(left * 1000), validate_only=False
            )
            refused: list[RefusedError] = []
            for one in (await _of_controller(link, request, left)).topics:
                if one.error_code == 0:
                    created.add(str(one.name))
                elif one.error_code != _TOPIC_EXISTS:
                    refused.append(RefusedError(one.error_code, one.error_message or ""))
            if refused:
                raise refused[0]

        self._retry(once, timeout_s, f"creating topics {', '.join(sorted(topics))}")
        partitions = [TopicPartition(name, p) for name in created for p in range(topics[name][0])]
        self.end_offsets(partitions, "read_uncommitted", max(1.0, deadline - time.monotonic()))
        return created

    def delete_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> None:
        """Delete topics; those that do not exist are no error."""
        wanted = sorted(set(names))

        async def once(link: BrokerLink, left: float) -> None:
            state = admin_api.DeleteTopicsRequest.DeleteTopicState
            request = admin_api.DeleteTopicsRequest(
                topics=[state(name=name) for name in wanted],
                topic_names=wanted,
                timeout_ms=int(left * 1000),
            )
            for one in (await _of_controller(link, request, left)).responses:
                if one.error_code not in (0, UNKNOWN_TOPIC):
                    raise RefusedError(one.error_code)

        if wanted:
            self._retry(once, timeout_s, f"deleting topics {', '.join(wanted)}")

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Drop the records below the offsets, which must not lie above the owner's stable commit
        (scenario 27)."""

        async def once(link: BrokerLink, left: float) -> None:
            def request(logs: Sequence[TopicPartition]) -> Any:
                topics = by_topic(logs, lambda tp: (tp.partition, before[tp]))
                return admin_api.DeleteRecordsRequest(topics=topics, timeout_ms=int(left * 1000))

            _, refused = await _of_leaders(link, before, request, lambda one: None, left)
            if refused:
                raise next(iter(refused.values()))

        if before:
            self._retry(once, _REQUEST_S, "purging records")

    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        which: Literal["earliest", "latest"] | int,
        isolation: Isolation,
        timeout_s: float = _REQUEST_S,
        *,
        whole: bool = True,
        value: Callable[[Any], int] = lambda one: int(one.offset),
    ) -> dict[TopicPartition, int]:
        """Start or end of each log (``latest`` under read_committed is the last stable offset), or
        its first offset at or after a time in ms: -1 where there is none (who asks takes the end).

        ``whole``: an answer for all of them, or none; False: of those whose leaders answer within a
        second, RetriableError where none does. ``value``: what is taken of an answer.
        """
        at = _AT[which] if isinstance(which, str) else which
        wanted = list(dict.fromkeys(partitions))

        def request(logs: Sequence[TopicPartition]) -> Any:
            return consumer_api.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=consumer_api.IsolationLevel[isolation.upper()].value,
                topics=by_topic(logs, lambda tp: (tp.partition, NO_EPOCH, at)),
                min_version=_NEWEST_VERSION if at == _NEWEST else _EPOCHS_VERSION,
            )

        async def once(link: BrokerLink, left: float) -> dict[TopicPartition, int]:
            answers, refused = await _of_leaders(
                link, wanted, request, value, min(left, _ATTEMPT_S)
            )
            fault = _unanswered(refused) if refused else None
            if fault is None or (answers and not whole and isinstance(fault, RetriableError)):
                return answers
            raise fault

        if not wanted:
            return {}
        more = f" (and {len(wanted) - 1} more)" if len(wanted) > 1 else ""
        return self._retry(once, timeout_s, f"asking for offsets of {wanted[0]}{more}")

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        isolation: Isolation,
        timeout_s: float = _REQUEST_S,
    ) -> dict[TopicPartition, int]:
        """Ends of the logs in one request per leader, about a millisecond: made to be polled from
        one thread."""
        return self.list_offsets(partitions, "latest", isolation, timeout_s)

    def newest_times(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The latest record time of each log that has one, in ms (KIP-734). FatalError where the
        brokers are older than 3.0."""
        found = self.list_offsets(
            partitions, _NEWEST, "read_uncommitted", value=lambda one: one.timestamp
        )
        return {tp: at for tp, at in found.items() if at >= 0}

    def committed(
        self,
        group: str,
        partitions: Sequence[TopicPartition] | None,
        timeout_s: float = _REQUEST_S,
        *,
        stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Committed offsets of a group (None: of all topics); partitions without one are left out.

        ``stable`` (KIP-447) waits for pending transactions; OffsetsUnstableError after
        ``timeout_s``: fence the owner. False: what was committed last.
        """
        if partitions is not None and not partitions:
            return {}
        request = consumer_api.OffsetFetchRequest(
            group_id=group,
            topics=None if partitions is None else by_topic(partitions),
            require_stable=stable,
            max_version=_OFFSETS_VERSION,
        )

        async def once(link: BrokerLink, left: float) -> dict[TopicPartition, CommittedOffset]:
            answer = await _of_coordinator(link, group, request, left)
            if answer.error_code:
                raise RefusedError(answer.error_code)
            found = {}
            for tp, one in _of_logs(answer):
                if one.error_code:
                    raise RefusedError(one.error_code, f"{tp}: {RefusedError(one.error_code)}")
                if one.committed_offset >= 0:
                    text = (one.metadata or "").split("\x00", 1)[0]
                    found[tp] = CommittedOffset(int(one.committed_offset), text)
            return found

        doing = f"reading the committed offsets of group {group}"
        return self._retry(once, timeout_s, doing, group)

    def all_committed(
        self,
        group: str,
        timeout_s: float = _REQUEST_S,
    ) -> dict[TopicPartition, int]:
        """Every offset that ``group`` has committed; what a transaction has open does not count
        yet."""
        found = self.committed(group, None, timeout_s, stable=False)
        return {tp: one.offset for tp, one in found.items()}

    def members(
        self, group: str, timeout_s: float = _REQUEST_S, *, settled: bool = False
    ) -> tuple[MemberDescription, ...]:
        """A group's members, none for a group that nobody is in. ``settled``: none while it is
        rebalanced."""
        request = admin_api.DescribeGroupsRequest(
            groups=[group], include_authorized_operations=False, max_version=_DESCRIBE_VERSION
        )

        async def once(link: BrokerLink, left: float) -> tuple[MemberDescription, ...]:
            (answer,) = (await _of_coordinator(link, group, request, left)).groups
            if answer.error_code:
                raise RefusedError(answer.error_code)
            stable = answer.group_state == "Stable"
            if settled and not stable:
                return ()
            return tuple(_member(one, stable) for one in answer.members)

        return self._retry(once, timeout_s, f"describing group {group}", group)

    def client_ids(self, group: str) -> frozenset[str]:
        return frozenset(member.client_id for member in self.members(group))

    def groups(self, timeout_s: float = _REQUEST_S) -> frozenset[str]:
        async def once(link: BrokerLink, left: float) -> frozenset[str]:
            answers = await _of_every_broker(link, admin_api.ListGroupsRequest(min_version=0), left)
            return frozenset(str(one.group_id) for answer in answers for one in answer.groups)

        return self._retry(once, timeout_s, "listing the groups")

    def remove_members(
        self, group: str, members: Collection[MemberDescription], timeout_s: float = _REQUEST_S
    ) -> None:
        """Take members out, static ones too (KIP-443); one that has left is no error."""
        leaving = [
            consumer_api.LeaveGroupRequest.MemberIdentity(
                member_id="" if one.instance_id else one.member_id,
                group_instance_id=one.instance_id,
                reason=_LEAVE_REASON,
            )
            for one in members
        ]
        request = consumer_api.LeaveGroupRequest(
            group_id=group, member_id="", members=leaving, **_LEAVE_VERSIONS
        )

        async def once(link: BrokerLink, left: float) -> None:
            answer = await _of_coordinator(link, group, request, left)
            found = {answer.error_code, *(one.error_code for one in answer.members or ())}
            if refused := found - {0, UNKNOWN_MEMBER}:
                raise RefusedError(min(refused))

        self._retry(once, timeout_s, f"taking members out of group {group}", group)

    def delete_group(self, group: str, timeout_s: float = _REQUEST_S) -> None:
        """Delete a group and its offsets; one that does not exist is no error. FatalError or
        RetriableError where somebody is in it."""
        request = admin_api.DeleteGroupsRequest(groups_names=[group], max_version=2)

        async def once(link: BrokerLink, left: float) -> None:
            (answer,) = (await _of_coordinator(link, group, request, left)).results
            if answer.error_code not in (0, int(codes.GroupIdNotFoundError.errno)):
                raise RefusedError(answer.error_code)

        self._retry(once, timeout_s, f"deleting group {group}", group)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str,
        timeout_s: float = _REQUEST_S,
    ) -> None:
        """Commit for a group without members, all in one request (KIP-171); ``metadata`` stands
        beside each. TaskMigratedError or GenerationChanged where somebody is in the group."""
        text = metadata + "\0"  # for clients that read a C string
        request = consumer_api.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=by_topic(
                sorted(offsets), lambda tp: (tp.partition, offsets[tp], NO_EPOCH, text)
            ),
            **_COMMIT_VERSIONS,
        )

        async def once(link: BrokerLink, left: float) -> None:
            answer = await _of_coordinator(link, group, request, left)
            if found := {one.error_code for _, one in _of_logs(answer)} - {0}:
                raise RefusedError(min(found))

        self._retry(once, timeout_s, f"committing offsets of the group {group}", group)

    def open_transactions(self) -> set[str]:
        """Transactional ids with an ongoing transaction, over all brokers (KIP-664)."""
        request = admin_api.ListTransactionsRequest(
            state_filters=[_ONGOING], producer_id_filters=[]
        )

        async def once(link: BrokerLink, left: float) -> set[str]:
            answers = await _of_every_broker(link, request, left)
            listed = [one for answer in answers for one in answer.transaction_states]
            return {str(one.transactional_id) for one in listed}

        return self._retry(once, _REQUEST_S, "listing open transactions")

    def transactions(self, ids: Collection[str]) -> dict[str, TransactionState]:
        """States by transactional id, of brokers that answer; RetriableError where none does."""
        return self._retry(
            lambda link, left: transaction_states(link, ids, left),
            _STATES_S,
            "asking for open transactions",
        )

    def close(self) -> None:
        """End the connections; later requests raise RetriableError."""
        with self._lock:
            self._closed = True
            if self._link is not None:
                self._link.close()
                self._link = None

    def _linked(self, left: float) -> BrokerLink:
        with self._lock:
            if self._closed:
                raise RetriableError(f"the connection to {self._bootstrap} is closed")
            if self._link is None:
                self._addresses = []
                self._link = BrokerLink(
                    self._settings, _ANSWER_MS, min(left, _REACH_ATTEMPT_S), "everflow-admin", True
                )
                self._addresses = self._link.addresses()
            return self._link

    def _drop(self, link: BrokerLink) -> None:
        """No broker has answered: the next request begins with ``bootstrap.servers`` again."""
        with self._lock:
            if self._link is link:
                self._link = None
                link.close()

    def _retry(
        self,
        once: Callable[[BrokerLink, float], Awaitable[T]],
        timeout_s: float,
        doing: str,
        group: str = "",
    ) -> T:
        """``once(link, seconds left)`` until it succeeds; ``group``: whose coordinator is asked."""
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        while True:
            if self.stop.is_set():
                raise StoppedRequest(f"stopped while {doing}")
            left = max(0.05, deadline - time.monotonic())
            link: BrokerLink | None = None
            try:
                link = self._linked(left)
                return link.outcome(partial(once, link, left), left + _GRACE_S, self.stop)
            except (RefusedError, LinkLostError, TimeoutError, codes.KafkaError) as failure:
                error: EverflowError = (
                    RetriableError(f"{doing}: no answer in time")
                    if isinstance(failure, TimeoutError)
                    else classify(failure, doing)
                )
                error.__cause__ = failure
            except RetriableError as failure:  # no connection, or logs without a leader for now
                error = failure if link is not None else RetriableError(f"{doing}: {failure}")
                error.__cause__ = failure.__cause__
            stays = not isinstance(error, RetriableError) or isinstance(error, GenerationChanged)
            if self._closed or stays:
                raise error
            if time.monotonic() + pause >= deadline:
                if link is not None and code_of(error.__cause__ or error) is None:
                    self._drop(link)
                raise error
            if link is not None and group:
                link.forget_coordinator("group", group)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def user_data_of_group(
    settings: GroupSettings, timeout_s: float = _REQUEST_S
) -> list[tuple[bytes, bytes]]:
    """(subscription, assignment) user data of all members; empty in a rebalance. Connects anew."""
    connection = {**settings.client, "bootstrap_servers": settings.bootstrap_servers}
    config = {"bootstrap.servers": settings.bootstrap_servers}
    with closing(ClusterAdmin(config, connection=connection)) as admin:
        members = admin.members(settings.group_id, timeout_s, settled=True)
    return [(member.subscription, member.assignment) for member in members]


def _of_logs(answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in answer.topics:
        for one in topic.partitions:
            yield TopicPartition(str(topic.name), int(one.partition_index)), one


def _member(one: Any, stable: bool) -> MemberDescription:
    sent = consumer_api.ConsumerProtocolSubscription.decode(one.member_metadata) if stable else None
    got = consumer_api.ConsumerProtocolAssignment.decode(one.member_assignment) if stable else None
    return MemberDescription(
        member_id=str(one.member_id),
        client_id=str(one.client_id),
        host=str(one.client_host),
        instance_id=one.group_instance_id,
        subscription=bytes(getattr(sent, "user_data", None) or b""),
        assignment=bytes(getattr(got, "user_data", None) or b""),
    )


async def _metadata(link: BrokerLink, topics: Sequence[str] | None, left: float) -> Any:
    """``topics``: None: all."""
    kind = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(
        topics=None if topics is None else [kind(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return await link.send(link.any_node(), request, left)


def _existing(answer: Any) -> list[Any]:
    for topic in answer.topics:
        if topic.error_code not in (0, UNKNOWN_TOPIC):
            raise RefusedError(topic.error_code, f"{topic.name}: {RefusedError(topic.error_code)}")
    return [topic for topic in answer.topics if not topic.error_code]


async def _configs(
    link: BrokerLink, node: int, kind: int, names: Sequence[str], left: float
) -> dict[str, dict[str, str]]:
    request = admin_api.DescribeConfigsRequest(
        resources=[(kind, name, None) for name in names],
        include_synonyms=False,
        include_documentation=False,
    )
    found = {}
    for one in (await link.send(node, request, left)).results:
        if one.error_code:
            raise RefusedError(one.error_code, one.error_message or "")
        found[str(one.resource_name)] = {
            str(entry.name): entry.value for entry in one.configs if entry.value is not None
        }
    return found


async def _of_controller(link: BrokerLink, request: Any, left: float) -> Any:
    node = (await _metadata(link, [], left)).controller_id
    return await link.send(node if node >= 0 else link.any_node(), request, left)


async def _of_every_broker(link: BrokerLink, request: Any, left: float) -> list[Any]:
    answers = [await link.send(node, request, left) for node in link.nodes()]
    for answer in answers:
        if answer.error_code:
            raise RefusedError(answer.error_code)
    return answers


async def _of_coordinator(link: BrokerLink, group: str, request: Any, left: float) -> Any:
    return await link.send(await link.coordinator("group", group), request, left)


async def transaction_states(
    link: BrokerLink, ids: Iterable[str], left: float
) -> dict[str, TransactionState]:
    """See `ClusterAdmin.transactions`. LinkLostError where no broker answers."""
    of_node: dict[int, list[str]] = {}
    for name in sorted(ids):
        of_node.setdefault(await link.coordinator("transaction", name), []).append(name)
    found: dict[str, TransactionState] = {}
    lost: LinkLostError | None = None
    for node, mine in of_node.items():
        request = admin_api.DescribeTransactionsRequest(transactional_ids=mine)
        try:
            states = (await link.send(node, request, left)).transaction_states
        except LinkLostError as failure:
            lost, states = failure, []
        for one in states:
            state, name = str(one.transaction_state), str(one.transactional_id)
            if one.error_code == UNKNOWN_ID:
                found[name] = TransactionState("")
            elif one.error_code:  # it is another broker by now, or loads: the next time
                link.forget_coordinator("transaction", name)
            else:
                since_ms = int(one.transaction_start_time_ms) if state in _OPEN else None
                found[name] = TransactionState(state, since_ms)
    if lost is not None and not found:
        raise lost
    return found


async def _of_leaders(
    link: BrokerLink,
    logs: Iterable[TopicPartition],
    request: Callable[[Sequence[TopicPartition]], Any],
    value: Callable[[Any], Any],
    left: float,
) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, Exception]]:
    """Ask all leaders of these logs at the same time; what they answered of each log, and for the
    other logs why not."""
    refused: dict[TopicPartition, Exception] = {}
    of_node: dict[int, list[TopicPartition]] = {}
    unknown = {tp.topic for tp in logs if link.leader(tp) is None}
    if unknown:
        await link.learn(unknown)
    for tp in logs:
        node = link.leader(tp)
        if node is None:
            forbidden = link.forbidden(tp.topic)
            kind = (
                codes.TopicAuthorizationFailedError if forbidden else codes.LeaderNotAvailableError
            )
            refused[tp] = RefusedError(int(kind.errno))
        else:
            of_node.setdefault(node, []).append(tp)
    found: dict[TopicPartition, Any] = {}
    asked = [
        (mine, link.started(partial(link.send, node, request(mine), left)))
        for node, mine in of_node.items()
    ]
    for mine, coming in asked:
        try:
            answer = await coming
        except (LinkLostError, RefusedError) as failure:
            refused |= dict.fromkeys(mine, failure)
            continue
        for tp, one in _of_logs(answer):
            if one.error_code:
                refused[tp] = RefusedError(one.error_code)
            else:
                found[tp] = value(one)
    if refused:  # for the next attempt
        link.started(lambda: link.learn({tp.topic for tp in refused}))
    return found, refused


def _unanswered(refused: Mapping[TopicPartition, Exception]) -> EverflowError:
    errors = [classify(why, f"asking for offsets of {tp}") for tp, why in sorted(refused.items())]
    for error in errors:
        if not isinstance(error, RetriableError):
            return error
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return RetriableError(f"{errors[0]}{more}", refused)
