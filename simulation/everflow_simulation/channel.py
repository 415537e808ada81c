"""`MemberChannel` over the simulated coordinator: kafka-python's behaviour on virtual time.

Modelled on what its source does: a join under way goes on in the background while ``poll`` returns;
the generation changes with the answer to JoinGroup, the assignment is taken with the next ``poll``
after SyncGroup's; heartbeats stop while a rebalance is joined and are close together after it;
UNKNOWN_MEMBER_ID forgets the member id, ILLEGAL_GENERATION only the generation.
"""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import kafka.errors as client_errors

from everflow.errors import RetriableError, TaskMigratedError
from everflow.kafka.errors import classify_member
from everflow.kafka.group_channel import (
    GroupAssignor,
    GroupListener,
    GroupSettings,
    MemberAssignment,
    watch_every,
)
from everflow.records import MemberMetadata, TopicPartition
from everflow_simulation.group_coordinator import (
    Code,
    GroupCoordinator,
    JoinReply,
    JoinRequest,
    SyncReply,
)
from everflow_simulation.network import Network
from everflow_simulation.scheduler import Process

RETRY_BACKOFF_MS = 100.0


class _State(enum.Enum):
    UNJOINED = 0
    REBALANCING = 1
    STABLE = 2


@dataclass(frozen=True, kw_only=True)
class ChannelServices:
    """What a channel needs of its world: ``partition_counts`` is the leader's metadata; ``changed``
    wakes the membership."""

    network: Network
    coordinator: GroupCoordinator
    process: Process
    partition_counts: Callable[[], Mapping[str, int]]
    changed: Callable[[], None]
    client: str
    commit: Callable[[Mapping[TopicPartition, tuple[int, str]], MemberMetadata], Code]
    """OffsetCommit, blocking; on a fiber."""


class SimulatedChannel:
    """See the module. Everything runs on the scheduler; nothing blocks."""

    def __init__(
        self,
        services: ChannelServices,
        settings: GroupSettings,
        topics: Iterable[str],
        assignor: GroupAssignor,
        listener: GroupListener,
    ) -> None:
        self._services = services
        self._settings = settings
        self._topics = sorted(topics)
        self._assignor, self._listener = assignor, listener
        self._state = _State.UNJOINED
        self._generation, self._member_id = -1, ""
        self._rejoin_needed = True
        self._rejoining = False
        self._in_flight = False
        self._attempt = 0
        self._ready: tuple[frozenset[TopicPartition], bytes] | None = None
        self._error: Exception | None = None
        self._fenced = False
        self._closed = False
        self._not_before_ms = 0.0
        self._last_poll_ms = self._now()
        self._completed_ms = self._now()
        self._beats = 0
        """Counts the rebalances: the beats of an earlier one end."""

    # --- MemberChannel ----------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """See `GroupChannel.subscribe`."""
        self._topics[:] = sorted(topics)

    def poll(self, timeout_s: float) -> None:
        """See `GroupChannel.poll`; returns at once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise classify_member(
                error, f"being a member of group {self._settings.group_id}"
            ) from error
        if self._rejoin_needed:
            if self._ready is not None:
                self._complete()
            elif not self._in_flight and self._now() >= self._not_before_ms:
                self._rejoining = True
                self._send_join()
        self.keep_alive()

    def keep_alive(self) -> None:
        """See `GroupChannel.keep_alive`."""
        self._last_poll_ms = self._now()
        if self._fenced:
            raise classify_member(
                client_errors.FencedInstanceIdError(self._settings.instance_id), "being a member"
            )

    @property
    def joining(self) -> bool:
        return self._rejoining

    @property
    def stable(self) -> bool:
        return self._state is _State.STABLE and not self._rejoin_needed

    @property
    def heartbeats(self) -> int:
        return 0  # nobody counts them here

    def request_rejoin(self) -> None:
        self._rejoin_needed = True

    def metadata(self) -> MemberMetadata:
        return MemberMetadata(self._generation, self._member_id, self._settings.instance_id)

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        """See `GroupChannel.commit`."""
        member = self.metadata()
        code = self._services.commit(offsets, member)
        if code is Code.REBALANCE_IN_PROGRESS:
            return False
        if code in (Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
            raise TaskMigratedError(
                f"committing as {member.member_id} of generation {member.generation}: {code.value}"
            )
        if code is not Code.NONE:
            raise RetriableError(f"committing offsets: {code.value}")
        return True

    def close(self, timeout_s: float, leave_group: bool | None = None) -> bool:
        """See `GroupChannel.close`."""
        self._closed = True
        leaves = leave_group if leave_group is not None else self._settings.instance_id is None
        if leaves and self._member_id:
            member_id = self._member_id
            self._services.network.send(lambda: self._services.coordinator.leave(member_id))
        self._reset("")
        return True

    # --- joining ----------------------------------------------------------------------------------

    def _send_join(self) -> None:
        self._in_flight = True
        self._attempt += 1
        attempt = self._attempt
        request = JoinRequest(
            member_id=self._member_id,
            instance_id=self._settings.instance_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.rebalance_timeout_ms,
            metadata=self._assignor.user_data(),
            client=self._services.client,
            client_id=self._settings.client_id,
        )
        # The user data may show an eviction (claims are taken now); the state changes after that.
        self._state = _State.REBALANCING
        services = self._services
        services.network.call(
            JoinReply,
            lambda reply: services.coordinator.join(request, reply),
            lambda answer: self._joined(answer, attempt),
            services.process,
        )

    def _joined(self, reply: JoinReply, attempt: int) -> None:
        if self._closed or attempt != self._attempt:
            return None
        if reply.code is Code.NONE:
            if self._state is not _State.REBALANCING:
                return self._again(RETRY_BACKOFF_MS)
            self._generation, self._member_id = reply.generation, reply.member_id
            assignments: dict[str, bytes] = {}
            if reply.leader == reply.member_id:
                counts = self._services.partition_counts()
                answers = self._assignor.assign(
                    reply.members, {topic: counts.get(topic, 0) for topic in self._topics}, {}
                )
                assignments = {member_id: _pack(one) for member_id, one in answers.items()}
            return self._send_sync(assignments, attempt)
        if reply.code is Code.MEMBER_ID_REQUIRED:
            self._reset(reply.member_id)
            return self._again(0.0)
        if reply.code is Code.UNKNOWN_MEMBER_ID:
            self._reset("")
            return self._again(0.0)
        return self._failed(reply.code)

    def _send_sync(self, assignments: Mapping[str, bytes], attempt: int) -> None:
        services, generation, member_id = self._services, self._generation, self._member_id
        instance_id = self._settings.instance_id
        services.network.call(
            SyncReply,
            lambda reply: services.coordinator.sync(
                member_id, instance_id, generation, assignments, reply
            ),
            lambda answer: self._synced(answer, attempt),
            services.process,
        )

    def _synced(self, reply: SyncReply, attempt: int) -> None:
        if self._closed or attempt != self._attempt:
            return None
        if reply.code is Code.NONE:
            self._in_flight = False
            self._ready = _unpack(reply.assignment)
            return self._services.changed()
        self._rejoin_needed = True
        if reply.code is Code.ILLEGAL_GENERATION:
            self._reset(self._member_id)
        elif reply.code is Code.UNKNOWN_MEMBER_ID:
            self._reset("")
        elif reply.code is not Code.REBALANCE_IN_PROGRESS:
            return self._failed(reply.code)
        return self._again(0.0)

    def _failed(self, code: Code) -> None:
        if code is Code.FENCED_INSTANCE_ID:
            self._in_flight = False
            self._error = client_errors.FencedInstanceIdError(self._settings.instance_id)
            return self._services.changed()
        return self._again(RETRY_BACKOFF_MS)  # the coordinator is gone: look for it and try again

    def _again(self, delay_ms: float) -> None:
        """The next attempt; the membership's poll makes it."""
        self._in_flight = False
        self._not_before_ms = self._now() + delay_ms
        self._services.network.scheduler.after(
            delay_ms, self._services.changed, self._services.process
        )

    def _complete(self) -> None:
        assert self._ready is not None
        (partitions, user_data), self._ready = self._ready, None
        self._rejoining = False
        self._rejoin_needed = False
        self._state = _State.STABLE
        self._completed_ms = self._last_poll_ms = self._now()
        self._beats += 1
        self._next_beat(self._beats)
        self._listener.on_assignment(partitions, user_data, self._generation)

    # --- heartbeats -------------------------------------------------------------------------------

    def _next_beat(self, beats: int) -> None:
        pause_ms = watch_every(
            self._now() - self._completed_ms, self._settings.heartbeat_interval_ms
        )
        self._services.network.scheduler.after(
            pause_ms, lambda: self._beat(beats), self._services.process
        )

    def _beat(self, beats: int) -> None:
        if self._closed or self._state is not _State.STABLE or self._fenced or beats != self._beats:
            return
        if self._now() - self._last_poll_ms > self._settings.rebalance_timeout_ms:
            if self._settings.instance_id is None:
                member_id = self._member_id
                self._services.network.send(lambda: self._services.coordinator.leave(member_id))
            self._reset("")
            return
        services, generation, member_id = self._services, self._generation, self._member_id
        instance_id = self._settings.instance_id
        if not self._rejoining:
            services.network.call(
                Code,
                lambda reply: reply(
                    services.coordinator.heartbeat(member_id, instance_id, generation)
                ),
                lambda code: self._beaten(code, generation, member_id),
                services.process,
            )
        self._next_beat(beats)

    def _beaten(self, code: Code, generation: int, member_id: str) -> None:
        if (
            self._closed
            or (generation, member_id) != (self._generation, self._member_id)
            or self._rejoining
        ):
            return
        if code is Code.NONE or code is Code.NOT_COORDINATOR:
            return
        if code is Code.REBALANCE_IN_PROGRESS:
            self._rejoin_needed = True
        elif code is Code.ILLEGAL_GENERATION:
            self._reset(self._member_id)
        elif code is Code.UNKNOWN_MEMBER_ID:
            self._reset("")
        elif code is Code.FENCED_INSTANCE_ID:
            self._fenced = True
        self._services.changed()

    def _reset(self, member_id: str) -> None:
        self._generation, self._member_id = -1, member_id
        self._rejoin_needed = True
        self._state = _State.UNJOINED

    def _now(self) -> float:
        return self._services.network.scheduler.now_ms


def _pack(answer: MemberAssignment) -> bytes:
    return pickle.dumps((frozenset(answer.partitions), answer.user_data))


def _unpack(blob: bytes) -> tuple[frozenset[TopicPartition], bytes]:
    partitions, user_data = pickle.loads(blob) if blob else (frozenset(), b"")
    return partitions, user_data
