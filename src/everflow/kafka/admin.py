"""Asks the cluster for topics and offsets, for the driver: waits are bounded, errors for people.

Measured against a local broker: ``end_offsets`` of four partitions 0.5-0.8 ms (one ListOffsets
request per leader), stable committed offsets 0.5 ms.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from everflow.errors import EverflowError, FatalError, RetriableError, TaskTimeoutError
from everflow.kafka.admin_answers import (
    ASKING,
    classified,
    code_of,
    metadata_of,
    of_partition,
    offset_answers,
    refusal,
    stale,
    unanswered,
)
from everflow.kafka.client_log import UNPOLLED
from everflow.kafka.coordinator_questions import client_ids_of, committed_of
from everflow.kafka.errors import OffsetsUnstableError
from everflow.records import CommittedOffset, TopicPartition

_KEPT = 20
_NO_TOKEN = "Failed to acquire"
"""In what librdkafka says of a token endpoint that does not answer: an outage."""
_CURES = {
    KafkaError._AUTHENTICATION: "Check sasl.mechanism, the user's name and password (or token).",
    KafkaError._SSL: "Check that ssl.ca.location holds the authority of the brokers' certificates.",
}
_UNREACHED = (KafkaError._RESOLVE, KafkaError._TRANSPORT)
_NUMBERED = re.compile(r"(\S+:\d+)/\d+: (?:Connect|Failed to resolve|Connection setup)")
"""How librdkafka calls a broker that it cannot connect to: host, port, number."""
_PASSES = 1
"""So often a refusal may be chance: a broker that starts."""


class ConnectionTrouble:
    """``heard`` is a client's ``error_cb``, called on the thread that polls it; `sentence` is for
    that thread, too."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._told: deque[KafkaError] = deque(maxlen=_KEPT)
        self._last = ""
        self._refusals: Counter[int] = Counter()
        self.advertised: set[str] = set()
        """Where a broker that answered says that brokers are, and where none was reached."""

    def heard(self, error: KafkaError) -> None:
        """Keep it until the next `sentence`."""
        self._told.append(error)
        # Brokers have a number only in what another one has said of them.
        if error.code() in _UNREACHED and (named := _NUMBERED.match(error.str())):
            self.advertised |= {named[1]} - set(self._servers.split(","))

    def expect(self) -> None:
        """Somebody waits for a broker from now on: refusals of before do not count."""
        self._refusals.clear()
        self.advertised.clear()

    def sentence(self) -> str:
        """What was heard last, or before as clients do not repeat themselves; "" for nothing.
        FatalError where a broker refused this client, or it the broker's certificate, more than
        once."""
        said = [error for error in self._told if error.code() != KafkaError._ALL_BROKERS_DOWN]
        self._told.clear()
        if not said:
            return self._last
        code, text = said[-1].code(), said[-1].str()
        self._refusals[code] += 1
        if code in _CURES and _NO_TOKEN not in text and self._refusals[code] > _PASSES:
            raise FatalError(
                f"the brokers at {self._servers} and this client do not come together: {text}. "
                f"{_CURES[code]}"
            )
        self._last = f" The client says: {text}"
        return self._last


Isolation = Literal["read_committed", "read_uncommitted"]
T = TypeVar("T")

_ISOLATION = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NEWEST: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_REQUEST_S = 10.0
_ATTEMPT_S = 1.0
_COMMITTED_ATTEMPT_S = 2.0
_LOOK_S = 0.1
_REACH_ATTEMPT_S = 3.0
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


class ClusterAdmin:
    """Requests about topics, offsets and groups. Safe from any thread; ``close`` when done.

    Every method retries passing faults (a topic just created, a leader moving, the broker away)
    until ``timeout_s`` and then raises RetriableError with the last cause; what retrying cannot
    cure is raised at once.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        stop: threading.Event | None = None,
    ) -> None:
        """``config``: librdkafka keys, ``bootstrap.servers`` at least. No request is sent yet. Once
        ``stop`` is set every request, also one that is waited for, ends in a RetriableError
        soon."""
        self._bootstrap = str(config["bootstrap.servers"])
        self._config = {"socket.connection.setup.timeout.ms": 5000, **config}
        self._trouble = ConnectionTrouble(self._bootstrap)
        self._client: AdminClient | None = self._new_client()
        self._readers: dict[tuple[str, bool], Consumer] = {}
        self._clients_lock = threading.Lock()
        self._clock = clock
        self._pause = pause
        self.stop = stop or threading.Event()

    @staticmethod
    def beside(config: Mapping[str, Any]) -> ClusterAdmin:
        """For the brokers of another client, whose ``config`` this is."""
        known = ("bootstrap.servers", "security.", "sasl.", "ssl.")
        return ClusterAdmin({key: value for key, value in config.items() if key.startswith(known)})

    # --- cluster ----------------------------------------------------------------------------------

    def wait_until_reachable(
        self,
        timeout_s: float,
        on_retry: Callable[[str], None] = lambda _: None,
        *,
        limit: str = "",
        check: str = _CHECK,
    ) -> str:
        """Block until a broker answers; returns the cluster id.

        Args:
            timeout_s: seconds.
            on_retry: called with a line for people while no broker answers, about every 3 s,
            oftener if ``timeout_s`` is short.
            limit: the setting that ``timeout_s`` is from, if it is one.
            check: what a person looks at where nothing answers, as the caller names it.

        Raises:
            TaskTimeoutError: nothing answered in time; the message says what to check.
            FatalError: brokers answer, and twice refuse this client, or it their certificate.
        """
        deadline = self._clock() + timeout_s
        named = f" ({limit})" if limit else ""
        self._trouble.expect()
        # So that a short time-out says something too before it is over.
        attempt_s = min(_REACH_ATTEMPT_S, timeout_s / 3)
        while True:
            left = deadline - self._clock()
            try:
                return self.cluster_id(timeout_s=max(0.1, min(attempt_s, left)))
            except RetriableError as failure:
                if self.stop.is_set():
                    raise
                self._admin.poll(0)
                said = self._trouble.sentence()
                end = f"within {timeout_s:g} s{named}"
                elsewhere = ", ".join(sorted(self._trouble.advertised))
                over = deadline <= self._clock()
                if elsewhere:
                    answered = (
                        f"a Kafka broker answered at {self._bootstrap}, but none where it says "
                        f"that they are: {elsewhere}"
                    )
                    if over:
                        raise TaskTimeoutError(
                            f"{answered} {end}. {_ADVERTISED}{said}"
                        ) from failure
                    on_retry(f"{answered}, yet. {_ADVERTISED} Tried for {timeout_s:g} s.{said}")
                elif over:
                    raise TaskTimeoutError(
                        f"no Kafka broker answered at {self._bootstrap} {end}. Check {check}.{said}"
                    ) from failure
                else:
                    on_retry(
                        f"no answer from Kafka at {self._bootstrap} yet: does a broker run there? "
                        f"Tried for {timeout_s:g} s in all{named}.{said}"
                    )

    def cluster_id(self, timeout_s: float = _REQUEST_S) -> str:
        """The cluster's id; another id under known state means another cluster (D5)."""
        return self._retry(
            lambda left: str(
                self._answer(
                    self._admin.describe_cluster(request_timeout=left), left + 1
                ).cluster_id
            ),
            timeout_s,
            f"asking {self._bootstrap} for its cluster id",
        )

    # --- topics -----------------------------------------------------------------------------------

    def describe_topics(
        self, names: Iterable[str], timeout_s: float = _REQUEST_S
    ) -> dict[str, TopicDescription]:
        """The topics among ``names`` that exist; the others are left out."""
        wanted = sorted(set(names))
        if not wanted:
            return {}

        def once(left: float) -> dict[str, TopicDescription]:
            found = {}
            for name, future in self._admin.describe_topics(
                TopicCollection(wanted), request_timeout=left
            ).items():
                try:
                    topic = self._answer(future, left + 1)
                except KafkaException as failure:
                    if code_of(failure) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        continue
                    raise
                found[name] = TopicDescription(name, len(topic.partitions), str(topic.topic_id))
            return found

        return self._retry(once, timeout_s, f"describing topics {', '.join(wanted)}")

    def list_topics(self, timeout_s: float = _REQUEST_S) -> dict[str, TopicShape]:
        """Every topic that may be seen, the broker's own included, by name."""

        def once(left: float) -> dict[str, TopicShape]:
            found = {}
            for name, topic in self._admin.list_topics(timeout=left).topics.items():
                replicas = [len(partition.replicas) for partition in topic.partitions.values()]
                found[str(name)] = TopicShape(len(replicas), replicas[0] if replicas else 0)
            return found

        return self._retry(once, timeout_s, "listing topics")

    def client_ids(self, group: str, timeout_s: float = _REQUEST_S) -> frozenset[str]:
        """Client ids of a group's members, whatever state the group is in."""
        return self._of_group(client_ids_of, group, timeout_s)

    def all_committed(self, group: str, timeout_s: float = _REQUEST_S) -> dict[TopicPartition, int]:
        """Every offset that ``group`` has committed, of whichever topics."""
        return self._of_group(committed_of, group, timeout_s)

    def _of_group(
        self, ask: Callable[[Mapping[str, Any], str, float], T], group: str, timeout_s: float
    ) -> T:
        doing = f"asking the coordinator of group {group}"
        return self._retry(lambda left: ask(self._config, group, left), timeout_s, doing)

    def replica_racks(
        self, names: Iterable[str], timeout_s: float = _REQUEST_S
    ) -> dict[TopicPartition, frozenset[str]]:
        """Racks of the brokers that hold a replica of each partition of the existing topics; those
        without a rack are left out."""
        wanted = sorted(set(names))
        if not wanted:
            return {}

        def once(left: float) -> dict[TopicPartition, frozenset[str]]:
            found = {}
            for name, future in self._admin.describe_topics(
                TopicCollection(wanted), request_timeout=left
            ).items():
                for partition in self._answer(future, left + 1).partitions:
                    racks = frozenset(str(node.rack) for node in partition.replicas if node.rack)
                    found[TopicPartition(name, int(partition.id))] = racks
            return found

        return self._retry(once, timeout_s, "asking for the racks of replicas")

    def topic_configs(
        self, names: Iterable[str], timeout_s: float = _REQUEST_S
    ) -> dict[str, dict[str, str]]:
        """Effective configuration (defaults included) of existing topics."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(set(names))]
        if not resources:
            return {}

        def once(left: float) -> dict[str, dict[str, str]]:
            answers = self._admin.describe_configs(resources, request_timeout=left)
            return {
                resource.name: {
                    entry.name: entry.value for entry in self._answer(future, left + 1).values()
                }
                for resource, future in answers.items()
            }

        return self._retry(once, timeout_s, "reading topic configurations")

    def creates_topics(self, timeout_s: float = _REQUEST_S) -> bool | None:
        """Whether the brokers create a topic when a producer first names it
        (``auto.create.topics.enable``); None where they do not tell (no permission, a service that
        hides it)."""

        def once(left: float) -> bool | None:
            node = self._answer(self._admin.describe_cluster(request_timeout=left), left + 1).nodes[
                0
            ]
            broker = ConfigResource(ResourceType.BROKER, str(node.id))
            entries = self._answer(
                self._admin.describe_configs([broker], request_timeout=left)[broker], left + 1
            )
            entry = entries.get("auto.create.topics.enable")
            return (
                None if entry is None or entry.value is None else str(entry.value).lower() == "true"
            )

        try:
            return self._retry(once, timeout_s, "asking whether topics are created by themselves")
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

        A topic that exists already is left as it is (another instance may have been quicker):
        validate it. ``replication_factor`` -1 takes the broker's default.
        """
        if not topics:
            return set()
        created: set[str] = set()
        deadline = self._clock() + timeout_s

        def once(left: float) -> None:
            todo = [
                NewTopic(name, partitions, replication_factor, config=dict(config))
                for name, (partitions, config) in topics.items()
                if name not in created
            ]
            if not todo:
                return
            for name, future in self._admin.create_topics(todo, request_timeout=left).items():
                try:
                    self._answer(future, left + 1)
                    created.add(name)
                except KafkaException as failure:
                    if code_of(failure) != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise

        names = ", ".join(sorted(topics))
        self._retry(once, timeout_s, f"creating topics {names}")
        self._renew_client()  # the present one may have seen that they did not exist: see _list
        partitions = [TopicPartition(name, p) for name in created for p in range(topics[name][0])]
        self.end_offsets(partitions, "read_uncommitted", max(1.0, deadline - self._clock()))
        return created

    def delete_topics(self, names: Iterable[str], timeout_s: float = 30.0) -> None:
        """Delete topics; those that do not exist are no error."""
        wanted = sorted(set(names))
        if not wanted:
            return

        def once(left: float) -> None:
            for future in self._admin.delete_topics(wanted, request_timeout=left).values():
                try:
                    self._answer(future, left + 1)
                except KafkaException as failure:
                    if code_of(failure) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise

        self._retry(once, timeout_s, f"deleting topics {', '.join(wanted)}")

    def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_s: float = _REQUEST_S
    ) -> None:
        """Drop the records below the given offsets (purge of repartition topics).

        Only ever below a stable committed offset of the present owner (scenario 27).
        """
        if not before:
            return
        asked = [
            ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in before.items()
        ]

        def once(left: float) -> None:
            for future in self._admin.delete_records(asked, request_timeout=left).values():
                self._answer(future, left + 1)

        self._retry(once, timeout_s, "purging records")

    # --- offsets ----------------------------------------------------------------------------------

    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        which: Literal["earliest", "latest"],
        isolation: Isolation,
        timeout_s: float = _REQUEST_S,
    ) -> dict[TopicPartition, int]:
        """Start or end of each log; ``latest`` under read_committed is the last stable offset."""
        spec = _EARLIEST if which == "earliest" else _LATEST
        return self._list(dict.fromkeys(partitions, spec), isolation, timeout_s)

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        isolation: Isolation,
        timeout_s: float = _REQUEST_S,
    ) -> dict[TopicPartition, int]:
        """Ends of the logs in one request per leader, under a millisecond: made to be polled from
        one thread."""
        return self._list(dict.fromkeys(partitions, _LATEST), isolation, timeout_s)

    def known_ends(
        self, partitions: Iterable[TopicPartition], isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Ends of the logs whose leaders answer within a second; as `end_offsets` where none
        does."""
        asked = dict.fromkeys(partitions, _LATEST)
        return self._list(asked, isolation, _REQUEST_S, whole=False)

    def known_starts(
        self, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Starts of the logs whose leaders answer; RetriableError where none does."""
        asked = dict.fromkeys(partitions, _EARLIEST)
        return self._list(asked, "read_uncommitted", timeout_s, whole=False)

    def newest_times(
        self, partitions: Iterable[TopicPartition], timeout_s: float = _REQUEST_S
    ) -> dict[TopicPartition, int]:
        """The latest record time of each log that has one, in ms (KIP-734). Raises what brokers
        before 3.0 say of a question that they do not know."""
        asked = {ClientTopicPartition(*tp): _NEWEST for tp in partitions}

        def once(left: float) -> dict[TopicPartition, int]:
            futures = self._admin.list_offsets(asked, request_timeout=min(left, _ATTEMPT_S))
            found = {
                TopicPartition(at.topic, at.partition): self._answer(future, left + 1).timestamp
                for at, future in futures.items()
            }
            return {tp: int(time) for tp, time in found.items() if time >= 0}

        return self._retry(once, timeout_s, ASKING) if asked else {}

    def offsets_for_time(
        self,
        partitions: Iterable[TopicPartition],
        time_ms: int,
        isolation: Isolation,
        timeout_s: float = _REQUEST_S,
    ) -> dict[TopicPartition, int]:
        """First offset at or after ``time_ms`` per partition; -1 where there is none (the caller
        takes the end)."""
        return self._list(
            {tp: OffsetSpec.for_timestamp(time_ms) for tp in partitions}, isolation, timeout_s
        )

    def committed(
        self,
        group: str,
        partitions: Sequence[TopicPartition],
        timeout_s: float = _REQUEST_S,
        *,
        stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Committed offsets of a group; partitions without one are left out. ``stable`` (KIP-447):
        waits while a transaction is pending on any of them; False: what was committed last.

        Raises OffsetsUnstableError if one stayed open for ``timeout_s``: fence its owner.
        """
        if not partitions:
            return {}
        asked = [ClientTopicPartition(tp.topic, tp.partition) for tp in partitions]
        reader = self._offset_reader(group, stable)

        def once(left: float) -> dict[TopicPartition, CommittedOffset]:
            found = {}
            try:
                answers = reader.committed(asked, timeout=min(left, _COMMITTED_ATTEMPT_S))
            except KafkaException as failure:
                if code_of(failure) == KafkaError._TIMED_OUT:
                    # librdkafka repeats the question where the group is forbidden, too.
                    refused = refusal(reader)
                    if refused is not None:
                        with self._clients_lock:  # this one says it once
                            self._readers.pop((group, stable), None)
                        raise refused from failure
                raise
            for answer in answers:
                if answer.error is not None:
                    raise of_partition(answer)
                if answer.offset >= 0:
                    text = metadata_of(answer)
                    found[TopicPartition(answer.topic, answer.partition)] = CommittedOffset(
                        answer.offset, text
                    )
            return found

        doing = f"reading the committed offsets of group {group}"
        try:
            return self._retry(once, timeout_s, doing)
        except RetriableError as failure:
            cause = failure.__cause__
            if isinstance(cause, KafkaException) and code_of(cause) == KafkaError._TIMED_OUT:
                # librdkafka repeats the request while offsets are unstable, so the time-out is all
                # that is seen of it.
                raise OffsetsUnstableError(
                    f"{doing}: no stable answer within {timeout_s:g} s; a transaction may be open"
                ) from cause
            raise

    def close(self) -> None:
        """End the connections, each once no request of another thread uses it; later requests raise
        RetriableError."""
        with self._clients_lock:
            self._client = None  # a client ends with its last reference
            while self._readers:
                self._readers.popitem()[1].close()

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _admin(self) -> AdminClient:
        client = self._client
        if client is None:
            raise RetriableError(f"the connection to {self._bootstrap} is closed")
        return client

    def _new_client(self) -> AdminClient:
        settings: dict[str, Any] = {**UNPOLLED, **self._config, "error_cb": self._trouble.heard}
        return AdminClient(settings)

    def _renew_client(self) -> None:
        with self._clients_lock:
            if self._client is not None:
                self._client = self._new_client()

    def _offset_reader(self, group: str, stable: bool) -> Consumer:
        """A consumer that only reads committed offsets of ``group``: it never subscribes, so it
        never joins.

        Not the admin client's ListConsumerGroupOffsets: where the coordinator is still loading or
        has moved, librdkafka 2.16 crashes in its answer (a null group handle, SIGSEGV), for
        instance on a broker that has just started, and see `coordinator_questions`. read_committed
        makes it ask for stable offsets.
        """
        with self._clients_lock:
            if (group, stable) not in self._readers:
                settings = {
                    "group.id": group,
                    "isolation.level": "read_committed" if stable else "read_uncommitted",
                    "enable.auto.commit": False,
                }
                both = {**UNPOLLED, **self._config, **settings}
                self._readers[group, stable] = Consumer(both)
            return self._readers[group, stable]

    def _list(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        isolation: Isolation,
        timeout_s: float,
        *,
        whole: bool = True,
    ) -> dict[TopicPartition, int]:
        """``whole``: an answer for all of them, or none."""
        if not specs:
            return {}

        def once(left: float) -> dict[TopicPartition, int]:
            told, refused = self._asked(specs, isolation, left)
            fault = unanswered(refused) if refused else None
            if fault is None or (told and not whole and isinstance(fault, RetriableError)):
                return told
            raise fault

        return self._retry(once, timeout_s, ASKING)

    def _asked(
        self, specs: Mapping[TopicPartition, OffsetSpec], isolation: Isolation, left: float
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Exception]]:
        """One attempt of `offset_answers`. A client that has once asked for a topic that did not
        exist never finds its leaders after it was created, and waits out the request's time-out
        each time (librdkafka 2.16): short attempts, and then a new client."""
        left, admin = min(left, _ATTEMPT_S), self._admin
        level = _ISOLATION[isolation]
        told, refused = offset_answers(
            lambda asked: admin.list_offsets(asked, isolation_level=level, request_timeout=left),
            specs,
            lambda future: self._answer(future, left + 1),
        )
        if stale(refused.values()):
            self._renew_client()
        return told, refused

    def _retry(self, once: Callable[[float], T], timeout_s: float, doing: str) -> T:
        """``once(seconds left)`` until it succeeds; pauses 20 ms, doubling up to 1 s."""
        deadline = self._clock() + timeout_s
        pause = _FIRST_PAUSE_S
        while True:
            if self.stop.is_set():
                raise RetriableError(f"stopped while {doing}")
            try:
                return once(max(0.05, deadline - self._clock()))
            except (
                KafkaException,
                TimeoutError,
                FutureTimeoutError,  # two classes until Python 3.11
            ) as failure:
                error = classified(failure, doing)
                if not isinstance(error, RetriableError) or self._clock() + pause >= deadline:
                    raise error from failure
            except RetriableError as failure:  # of logs whose leaders may answer the next time
                if not failure.partitions or self._clock() + pause >= deadline:
                    raise
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _answer(self, future: Future[Any], timeout_s: float) -> Any:
        """What `Future.result` gives, waited for in slices: it may be asked to stop. Raises
        TimeoutError then, too."""
        deadline = self._clock() + timeout_s
        while True:
            left = deadline - self._clock()
            try:
                return future.result(max(0.0, min(left, _LOOK_S)))
            except FutureTimeoutError:
                if left <= _LOOK_S or self.stop.is_set():
                    raise
