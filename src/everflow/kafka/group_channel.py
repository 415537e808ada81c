"""Joins, heartbeats, commits and leaves through kafka-python's coordinator. It never fetches.

Everything that reaches into kafka-python 3.0 is here. ``KafkaConsumer.poll`` is never called: it
fetches, and it may rejoin twice in one call, past a hold. Its coordinator is polled instead, at
most one rebalance a call. Heartbeats run on the client's own IO thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import kafka.errors as client_errors
from kafka import KafkaConsumer
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.coordinator.heartbeat import Heartbeat
from kafka.protocol.consumer import LeaveGroupRequest
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from kafka.structs import MemberState, OffsetAndMetadata
from kafka.structs import TopicPartition as ClientTopicPartition
from kafka.util import Timer

from everflow.errors import RetriableError, TaskMigratedError
from everflow.kafka.errors import classify_member
from everflow.records import MemberMetadata, TopicPartition, by_topic

log = logging.getLogger("everflow.kafka")

_GONE_ALREADY = {0, client_errors.UnknownMemberIdError.errno}
"""Answers to a LeaveGroup after which the group has this member no more."""


_WATCH_SHARE = 8
_CLOSEST_SHARE = 10


def watch_every(since_rebalance_ms: float, settled_ms: float) -> float:
    """The interval in ms from one check of the group to the next. Pure.

    What a rebalance revokes the next one hands over (KIP-429), and those tasks stand still until
    every member has noticed it. So a member checks again after an eighth of the time since the last
    rebalance ended: after ``settled_ms`` at the latest, a tenth of it at the earliest.
    """
    return min(settled_ms, max(settled_ms / _CLOSEST_SHARE, since_rebalance_ms / _WATCH_SHARE))


class MemberAssignment(NamedTuple):
    """The leader's answer to one member: input partitions, and bytes that only the assignor
    understands."""

    partitions: Sequence[TopicPartition]
    user_data: bytes


class GroupAssignor(Protocol):
    """The calls of the channel when the group is rebalanced, on the client's IO thread, so
    it must be quick."""

    name: str

    def user_data(self) -> bytes:
        """Bytes for this member's next join; different from the ones before (scenario 20)."""

    def assign(
        self,
        members: Mapping[str, bytes],
        partition_counts: Mapping[str, int],
        read: Mapping[str, Collection[str]],
    ) -> Mapping[str, MemberAssignment]:
        """On the leader: an answer per member id. A missing topic has the count 0. ``read``: the
        topics that each member reads."""


class GroupListener(Protocol):
    """The outcome of a rebalance; called on the client's IO thread: mark and return (scenario
    24)."""

    def on_assignment(
        self, partitions: frozenset[TopicPartition], user_data: bytes, generation: int
    ) -> None:
        """Everything assigned to this member in ``generation``, also if nothing changed."""


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Group settings in ms, D7. ``client``: further kafka-python keywords (security and the
    like)."""

    bootstrap_servers: str
    group_id: str
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 500
    rebalance_timeout_ms: int = 30_000
    client_id: str = "everflow"
    client: Mapping[str, Any] = field(default_factory=dict)


class GroupChannel:
    """One member of a consumer group. ``poll`` and ``close`` belong to one thread, the rest is safe
    from any.

    The client's own book of what it owns is kept empty, so it asks for no rebalances. An eviction
    shows in ``metadata`` (generation -1) when a join asks for the user data, or before.
    RetriableError from the constructor when no broker answers within ``bootstrap_timeout_s``.
    """

    def __init__(
        self,
        settings: GroupSettings,
        topics: Iterable[str],
        assignor: GroupAssignor,
        listener: GroupListener,
        bootstrap_timeout_s: float = 30.0,
    ) -> None:
        self._settings = settings
        self._assignor = _Assignor(assignor, listener)
        try:
            self._consumer = KafkaConsumer(
                **_client_config(settings, self._assignor, bootstrap_timeout_s)
            )
        except client_errors.KafkaTimeoutError as failure:
            text = (
                f"no broker answered at {settings.bootstrap_servers} within "
                f"{bootstrap_timeout_s:g} s"
            )
            raise RetriableError(f"joining group {settings.group_id}: {text}") from failure
        except client_errors.KafkaError as failure:
            raise classify_member(
                failure, f"joining group {settings.group_id} at {settings.bootstrap_servers}"
            ) from failure
        self._coordinator = self._consumer._coordinator
        self._coordinator.heartbeat = _Heartbeat(**self._coordinator.config)
        self._committing = threading.Lock()
        self._assignor.subscription = self._coordinator._subscription
        self.subscribe(topics)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these from the next rebalance on; on the thread of ``poll``. FatalError and
        RetriableError as there."""
        wanted = sorted(set(topics))
        try:
            self._consumer.subscribe(wanted)
            # The leader deals what the metadata cache holds: an empty one costs another rebalance
            # (scenario 30).
            for topic in wanted:
                self._consumer.partitions_for_topic(topic)
        except client_errors.KafkaError as failure:
            doing = f"asking for the topics of group {self._settings.group_id}"
            raise classify_member(failure, doing) from failure

    def poll(self, timeout_s: float) -> None:
        """Join or rejoin if needed, for ``timeout_s`` seconds at most; listeners run on the IO
        thread.

        FatalError: this member cannot be in the group (fenced static id, no permission, other
        protocol). RetriableError: poll again.
        """
        if self._at_rest():
            self.keep_alive()  # all that the client's poll does then, but for its change of threads
            return
        self._stay(lambda: self._coordinator.poll(timeout_ms=int(timeout_s * 1000)))

    def _at_rest(self) -> bool:
        """True if nothing is to be done but to say that this member lives; only reads what the IO
        thread knows. Whatever is wrong, that one included, is left to the client's poll."""
        coordinator = self._coordinator
        node = coordinator.coordinator_id
        known = node is not None and coordinator._client.connected(node)
        return known and coordinator._net._exception is None and not coordinator.need_rejoin()

    def keep_alive(self) -> None:
        """Say that this member lives without rejoining: heartbeats go on, ``rebalance_timeout_ms``
        starts afresh."""
        self._stay(self._coordinator.poll_heartbeat)

    @property
    def joining(self) -> bool:
        """True from the first JoinGroup of a rebalance until its assignment has been taken; it must
        not be delayed then."""
        return bool(self._coordinator.rejoining)

    @property
    def stable(self) -> bool:
        """True while a member of a completed generation that knows of no rebalance."""
        return self._coordinator.state is MemberState.STABLE and not self._coordinator.need_rejoin()

    @property
    def heartbeats(self) -> int:
        """The number of confirmed heartbeats: this member was in its generation then."""
        return int(self._coordinator.heartbeat.confirmed)

    def request_rejoin(self) -> None:
        self._coordinator.request_rejoin()

    def metadata(self) -> MemberMetadata:
        """The identity at this moment, for the commit gate; generation -1 when there is none."""
        now = self._consumer.group_metadata()
        return MemberMetadata(now.generation_id, now.member_id, now.group_instance_id)

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        """Commit (next offset, metadata text) once, without retrying; False = the group is being
        rebalanced and nothing was committed: commit with the next batch (scenario 26).

        TaskMigratedError: evicted, the tasks are lost. RetriableError: passing. FatalError: refused
        for good.
        """
        # The NUL is for confluent-kafka, which reads metadata as a C string: without it, it reads
        # on into foreign memory. librdkafka writes one itself.
        asked = {
            ClientTopicPartition(tp.topic, tp.partition): OffsetAndMetadata(offset, text + "\0")
            for tp, (offset, text) in offsets.items()
        }
        doing = f"committing offsets of group {self._settings.group_id}"
        try:
            with self._committing:
                # The single attempt below KafkaConsumer.commit, which repeats passing errors until
                # a time-out.
                self._consumer._net.run(self._coordinator._send_offset_commit_request, asked)
        except client_errors.RebalanceInProgressError:
            return False
        except client_errors.CommitFailedError as failure:
            if failure.args and isinstance(failure.args[0], client_errors.RebalanceInProgressError):
                return False
            raise TaskMigratedError(
                f"{doing}: this member was evicted ({failure}); its tasks are lost"
            ) from failure
        except client_errors.KafkaError as failure:
            raise classify_member(failure, doing) from failure
        return True

    def close(self, timeout_s: float, leave_group: bool | None = None) -> bool:
        """End the membership, trying for about ``timeout_s`` seconds.

        False if the group should be notified and could not be. ``leave_group``: None: a dynamic
        member leaves, a static one stays until its session ends (KIP-345); True: both leave;
        False: both go silently.
        """
        leaves = self._settings.instance_id is None if leave_group is None else leave_group
        notified = True
        # LeaveGroup goes over another connection: a heartbeat that it overtakes is answered with
        # an unknown member, of which the client warns.
        self._coordinator._close_heartbeat()
        self._coordinator._handle_heartbeat_response = lambda *_: None
        if leaves and self.metadata().member_id:
            try:
                self._consumer._net.run(self._leave, int(timeout_s * 1000))
            except client_errors.KafkaError as failure:
                log.debug("leaving group %s: %r", self._settings.group_id, failure)
                notified = False
        # with one the client would leave once more, and a silent member would leave
        self._coordinator.reset_generation()
        self._consumer.close(autocommit=False, timeout_ms=int(timeout_s * 1000))
        return notified

    async def _leave(self, timeout_ms: int) -> None:
        """LeaveGroup over a connection of its own: a broker answers one connection's requests in
        turn, and a JoinGroup only once the group's slowest member has joined. So a member in a
        rebalance could not leave over the other one. On the client's IO thread. Raises
        KafkaError."""
        manager, timer = self._consumer._manager, Timer(timeout_ms)
        if not await self._coordinator.ensure_coordinator_ready_async(timeout_ms):
            raise client_errors.KafkaTimeoutError(f"no coordinator within {timeout_ms} ms")
        coordinator, now = self._coordinator.coordinator_id, self.metadata()
        member = LeaveGroupRequest.MemberIdentity(
            member_id=now.member_id,
            group_instance_id=now.instance_id,
            reason="the instance leaves on purpose",
        )
        request = LeaveGroupRequest(
            group_id=self._settings.group_id, member_id=now.member_id, members=[member]
        )
        busy = manager._conns.pop(coordinator, None)  # the manager makes another one
        try:
            answer = await manager.wait_for(manager.send(request, coordinator), timer.timeout_ms)
        finally:
            manager.close(coordinator)
            if busy is not None:
                busy.close()
        codes = {
            answer.error_code,
            *(found.error_code for found in answer.members or ()),
        } - _GONE_ALREADY
        if codes:
            raise client_errors.for_code(codes.pop())()

    def _stay(self, poll: Callable[[], object]) -> None:
        doing = f"being a member of group {self._settings.group_id}"
        try:
            poll()
        except client_errors.KafkaError as failure:
            raise classify_member(failure, doing) from failure
        # A fenced static id only stops the heartbeats: generation and state stay as they were.
        stopped = not self._coordinator._heartbeat_enabled
        if (
            stopped
            and self._coordinator.state is MemberState.STABLE
            and self._settings.instance_id is not None
        ):
            fenced = client_errors.FencedInstanceIdError(self._settings.instance_id)
            raise classify_member(fenced, doing)


class _Heartbeat(Heartbeat):  # type: ignore[misc]
    """Heartbeats come closer together after a rebalance (`watch_every`): they tell of the next one.
    The client resets it when one ends, on its IO thread."""

    confirmed = 0

    def received_heartbeat(self) -> None:
        """The coordinator has answered that the member is in its generation (whether or not a
        rebalance has begun)."""
        super().received_heartbeat()
        self.confirmed += 1

    def time_to_next_heartbeat(self) -> float:
        """Seconds from now."""
        if self.heartbeat_failed:
            return float(super().time_to_next_heartbeat())
        latest = max(self.last_send, self.last_reset)
        pause_ms = watch_every(
            (latest - self.last_reset) * 1000, self.config["heartbeat_interval_ms"]
        )
        return max(0.0, float(latest) + pause_ms / 1000 - time.monotonic())


class _Assignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """kafka-python's idea of an assignor around ours; KIP-429 cooperative protocol."""

    def __init__(self, assignor: GroupAssignor, listener: GroupListener) -> None:
        self._assignor, self._listener = assignor, listener
        self.subscription: Any = None
        """The client's, which is there before the first join."""

    @property
    def name(self) -> str:
        return self._assignor.name

    def supported_protocols(self) -> list[Any]:
        return [RebalanceProtocol.COOPERATIVE]

    def metadata(self, topics: Iterable[str]) -> Any:
        # Version 0 on purpose: what a member owns is in the user data, which the task manager
        # answers for.
        return ConsumerProtocolSubscription(
            version=0, topics=sorted(topics), user_data=self._assignor.user_data()
        )

    def assign(self, cluster: Any, members: Iterable[Any]) -> dict[str, Any]:
        members = list(members)
        read = {member.member_id: frozenset(member.metadata.topics) for member in members}
        topics = frozenset[str]().union(*read.values())
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        decided = self._assignor.assign(
            {m.member_id: bytes(m.metadata.user_data or b"") for m in members}, counts, read
        )
        return {
            member_id: ConsumerProtocolAssignment(
                0, by_topic(sorted(answer.partitions)), answer.user_data
            )
            for member_id, answer in decided.items()
        }

    def on_assignment(self, assignment: Any, generation: int) -> None:
        self.subscription.assign_from_subscribed([])
        partitions = frozenset(
            TopicPartition(tp.topic, tp.partition) for tp in assignment.partitions()
        )
        self._listener.on_assignment(partitions, bytes(assignment.user_data or b""), generation)


def _client_config(
    settings: GroupSettings, assignor: _Assignor, bootstrap_timeout_s: float
) -> dict[str, Any]:
    return {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "client_id": settings.client_id,
        "bootstrap_timeout_ms": int(bootstrap_timeout_s * 1000),
        # the client's 30 s would eat the session after a broker's restart
        "reconnect_backoff_max_ms": 1_000,
        **settings.client,
        "group_id": settings.group_id,
        "group_instance_id": settings.instance_id,
        "partition_assignment_strategy": (assignor,),
        "session_timeout_ms": settings.session_timeout_ms,
        "heartbeat_interval_ms": settings.heartbeat_interval_ms,
        "max_poll_interval_ms": settings.rebalance_timeout_ms,
        # only then are offsets fetched with require_stable (scenario 12)
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
        "allow_auto_create_topics": False,
        "auto_offset_reset": "none",
        "metrics_enabled": False,
    }
