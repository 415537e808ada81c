"""A group coordinator of the classic protocol (KIP-62, 345, 394, 429, 447), on virtual time.

Requests are methods; an answer comes through ``reply``, at once or when the group is ready. Only
what has been acknowledged to a completed generation survives a fail-over, as in the broker's log of
the group.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from everflow_simulation.history import History
from everflow_simulation.scheduler import Scheduler, Timer


class Code(enum.Enum):
    """Error codes of the protocol."""

    NONE = "NONE"
    NOT_COORDINATOR = "NOT_COORDINATOR"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
    ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
    REBALANCE_IN_PROGRESS = "REBALANCE_IN_PROGRESS"
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    MEMBER_ID_REQUIRED = "MEMBER_ID_REQUIRED"


class GroupState(enum.Enum):
    """States of a classic group."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """JoinGroup; ``member_id`` is "" at first. Times in ms."""

    member_id: str
    instance_id: str | None
    session_timeout_ms: float
    rebalance_timeout_ms: float
    metadata: bytes
    client: str = "member"
    """What the member id begins with."""
    client_id: str = ""


@dataclass(frozen=True)
class JoinReply:
    """``members`` (member id -> metadata) only for the leader."""

    code: Code
    generation: int = -1
    member_id: str = ""
    leader: str = ""
    members: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class SyncReply:
    """The member's assignment bytes."""

    code: Code
    assignment: bytes = b""


JoinAnswer = Callable[[JoinReply], None]
SyncAnswer = Callable[[SyncReply], None]


@dataclass(kw_only=True)
class GroupMemberState:
    """A member as the coordinator knows it."""

    member_id: str
    instance_id: str | None
    session_timeout_ms: float
    rebalance_timeout_ms: float
    metadata: bytes
    assignment: bytes = b""
    awaiting_join: JoinAnswer | None = None
    awaiting_sync: SyncAnswer | None = None
    session: Timer | None = None
    session_ends_ms: float = 0.0
    client_id: str = ""


@dataclass(kw_only=True)
class GroupCoordinator:
    """The one group of a simulation. ``on_generation(generation, member ids)`` is called for
    each completed generation."""

    scheduler: Scheduler
    history: History
    initial_delay_ms: float = 0.0
    on_stable: Callable[[int, Mapping[str, bytes]], None] = lambda generation, assignments: None
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    leader: str = ""
    members: dict[str, GroupMemberState] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """Instance id -> member id."""
    available: bool = True
    rebalances: int = 0
    """Generations completed so far, since the simulation began."""
    durations_ms: list[float] = field(default_factory=list)
    """Of each of them, from the first JoinGroup to the leader's SyncGroup."""
    _prepared_ms: float = 0.0
    _delayed: bool = False
    _pending: dict[str, Timer] = field(default_factory=dict)
    _serial: int = 0
    _join_timer: Timer | None = None
    _sync_timer: Timer | None = None
    _durable: tuple[int, str, GroupState, dict[str, GroupMemberState]] = (
        0,
        "",
        GroupState.EMPTY,
        {},
    )

    # --- requests ---------------------------------------------------------------------------------

    def join(self, request: JoinRequest, reply: JoinAnswer) -> None:
        """JoinGroup."""
        if not self.available:
            return reply(JoinReply(Code.NOT_COORDINATOR))
        if request.member_id == "":
            return self._join_unknown(request, reply)
        if request.member_id in self._pending:
            self._pending.pop(request.member_id).cancel()
            self._add(request.member_id, request, reply)
            return None
        code = self._known(request.member_id, request.instance_id)
        if code is not Code.NONE:
            return reply(JoinReply(code, member_id=request.member_id))
        return self._rejoin(self.members[request.member_id], request, reply)

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Mapping[str, bytes],
        reply: SyncAnswer,
    ) -> None:
        """SyncGroup; ``assignments`` from the leader only."""
        code = self._check(member_id, instance_id, generation)
        if code is Code.NONE and self.state is GroupState.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code is not Code.NONE:
            return reply(SyncReply(code))
        member = self.members[member_id]
        self._touch(member)
        if self.state is GroupState.STABLE:
            return reply(SyncReply(Code.NONE, member.assignment))
        member.awaiting_sync = reply
        if member_id == self.leader:
            for other in self.members.values():
                other.assignment = assignments.get(other.member_id, b"")
            self._become_stable()
        return None

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> Code:
        """Heartbeat; keeps the session alive."""
        code = self._check(member_id, instance_id, generation)
        if code is not Code.NONE:
            return code
        self._touch(self.members[member_id])
        return Code.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else Code.NONE

    def leave(self, member_id: str) -> Code:
        """LeaveGroup by member id."""
        if not self.available:
            return Code.NOT_COORDINATOR
        if member_id in self._pending:
            self._pending.pop(member_id).cancel()
            return Code.NONE
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        self._remove(member_id, "left")
        return Code.NONE

    def offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, transactional: bool
    ) -> Code:
        """Whether the group takes offsets of this member now (OffsetCommit, TxnOffsetCommit)."""
        if not self.available:
            return Code.NOT_COORDINATOR
        if generation < 0 and member_id == "" and instance_id is None:
            # What scenario 7 is about: a transactional commit without membership is taken,
            # unfenced.
            return (
                Code.NONE
                if transactional or self.state is GroupState.EMPTY
                else Code.UNKNOWN_MEMBER_ID
            )
        code = self._check(member_id, instance_id, generation)
        if code is Code.NONE and self.state is GroupState.COMPLETING and not transactional:
            return Code.REBALANCE_IN_PROGRESS
        if code is Code.NONE:
            self._touch(self.members[member_id])
        return code

    # --- fail-over --------------------------------------------------------------------------------

    def fail_over(self, outage_ms: float) -> None:
        """The broker with the group dies; after the outage another one has loaded what was written
        down."""
        self.history.add(
            "coordinator", f"fails over, away for {outage_ms:.0f} ms (state {self.state.value})"
        )
        self.available = False
        waiting = [m.awaiting_join for m in self.members.values() if m.awaiting_join]
        syncing = [m.awaiting_sync for m in self.members.values() if m.awaiting_sync]
        for timer in (
            self._join_timer,
            self._sync_timer,
            *(m.session for m in self.members.values()),
            *self._pending.values(),
        ):
            if timer is not None:
                timer.cancel()
        self._pending.clear()
        self._delayed = False
        self._join_timer = self._sync_timer = None
        for joined in waiting:
            joined(JoinReply(Code.NOT_COORDINATOR))
        for synced in syncing:
            synced(SyncReply(Code.NOT_COORDINATOR))
        self.scheduler.after(outage_ms, self._load)

    def _load(self) -> None:
        self.generation, self.leader, self.state, kept = self._durable
        self.members = {m.member_id: _copy(m) for m in kept.values()}
        self.static = {
            m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None
        }
        self.available = True
        for member in self.members.values():
            self._touch(member)
        self.history.add(
            "coordinator",
            (
                f"is back: generation {self.generation}, {self.state.value}, {len(self.members)} "
                f"members"
            ),
        )

    def _write(self) -> None:
        self._durable = (
            self.generation,
            self.leader,
            self.state,
            {m.member_id: _copy(m) for m in self.members.values()},
        )

    # --- joining ----------------------------------------------------------------------------------

    def _join_unknown(self, request: JoinRequest, reply: JoinAnswer) -> None:
        self._serial += 1
        member_id = f"{request.client}-{self._serial}"
        if request.instance_id is None:
            self._pending[member_id] = self.scheduler.after(
                request.session_timeout_ms, lambda: self._expire_pending(member_id)
            )
            return reply(JoinReply(Code.MEMBER_ID_REQUIRED, member_id=member_id))
        old_id = self.static.get(request.instance_id)
        if old_id is None:
            return self._add(member_id, request, reply)
        return self._replace_static(old_id, member_id, request, reply)

    def _replace_static(
        self, old_id: str, member_id: str, request: JoinRequest, reply: JoinAnswer
    ) -> None:
        """KIP-345: a static member that returns takes its predecessor's place; the predecessor is
        fenced."""
        old = self.members.pop(old_id)
        if old.session is not None:
            old.session.cancel()
        if old.awaiting_join is not None:
            old.awaiting_join(JoinReply(Code.FENCED_INSTANCE_ID, member_id=old_id))
        if old.awaiting_sync is not None:
            old.awaiting_sync(SyncReply(Code.FENCED_INSTANCE_ID))
        old_leader = self.leader
        member = _member(member_id, request)
        member.assignment = old.assignment
        self.members[member_id] = member
        assert request.instance_id is not None
        self.static[request.instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id
        self.history.add(
            "coordinator", f"static member {request.instance_id} is back as {member_id}"
        )
        if self.state is GroupState.STABLE:
            # No rebalance. The answer names the old leader, so that the returning one does not
            # assign.
            self._touch(member)
            self._write()
            return reply(JoinReply(Code.NONE, self.generation, member_id, old_leader))
        member.awaiting_join = reply
        if self.state is GroupState.COMPLETING:
            self._prepare(
                f"static member {request.instance_id} came back while the group was completing"
            )
        else:
            self._maybe_complete()
        return None

    def _add(self, member_id: str, request: JoinRequest, reply: JoinAnswer) -> None:
        member = _member(member_id, request)
        member.awaiting_join = reply
        self.members[member_id] = member
        if request.instance_id is not None:
            self.static[request.instance_id] = member_id
        self._prepare(f"{member_id} joins")

    def _rejoin(self, member: GroupMemberState, request: JoinRequest, reply: JoinAnswer) -> None:
        changed = member.metadata != request.metadata
        member.metadata = request.metadata
        member.session_timeout_ms, member.rebalance_timeout_ms = (
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
        )
        if self.state is GroupState.PREPARING:
            member.awaiting_join = reply
            return self._maybe_complete()
        leads = member.member_id == self.leader
        if not changed and (self.state is GroupState.COMPLETING or not leads):
            members = self._metadata() if leads else {}
            return reply(
                JoinReply(Code.NONE, self.generation, member.member_id, self.leader, members)
            )
        member.awaiting_join = reply
        return self._prepare(f"{member.member_id} joins again")

    def _prepare(self, why: str) -> None:
        if self.state is GroupState.PREPARING:
            return self._maybe_complete()
        was_empty = self.state is GroupState.EMPTY
        for member in self.members.values():
            waiting, member.awaiting_sync = member.awaiting_sync, None
            if waiting is not None:
                waiting(SyncReply(Code.REBALANCE_IN_PROGRESS))
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        self.state = GroupState.PREPARING
        self._prepared_ms = self.scheduler.now_ms
        self.history.add("coordinator", f"prepares generation {self.generation + 1}: {why}")
        longest = max((m.rebalance_timeout_ms for m in self.members.values()), default=0.0)
        # group.initial.rebalance.delay.ms: an empty group waits for more members, whoever has
        # joined.
        self._delayed = was_empty and self.initial_delay_ms > 0
        self._join_timer = self.scheduler.after(
            self.initial_delay_ms if self._delayed else longest, self._complete
        )
        return self._maybe_complete()

    def _maybe_complete(self) -> None:
        if (
            not self._delayed
            and all(member.awaiting_join is not None for member in self.members.values())
            and not self._pending
        ):
            self._complete()

    def _complete(self) -> None:
        """All joined, or the rebalance time-out passed: who did not come is out (static members
        stay until their session ends)."""
        self._delayed = False
        if self._join_timer is not None:
            self._join_timer.cancel()
        for member in [
            m for m in self.members.values() if m.awaiting_join is None and m.instance_id is None
        ]:
            self._drop(member, "did not join in time")
        joined = sorted(m.member_id for m in self.members.values() if m.awaiting_join is not None)
        if not self.members:
            self.generation += 1
            self.state = GroupState.EMPTY
            self.leader = ""
            self._write()
            return
        if not joined:
            longest = max(m.rebalance_timeout_ms for m in self.members.values())
            self._join_timer = self.scheduler.after(longest, self._complete)
            return
        if self.leader not in joined:
            self.leader = joined[0]
        self.generation += 1
        self.state = GroupState.COMPLETING
        self.history.add(
            "coordinator",
            f"generation {self.generation}: {len(self.members)} members, leader {self.leader}",
        )
        everyone = self._metadata()
        longest = max(m.rebalance_timeout_ms for m in self.members.values())
        self._sync_timer = self.scheduler.after(longest, self._expire_sync)
        for member in list(self.members.values()):
            reply, member.awaiting_join = member.awaiting_join, None
            self._touch(member)
            if reply is not None:
                members = everyone if member.member_id == self.leader else {}
                reply(JoinReply(Code.NONE, self.generation, member.member_id, self.leader, members))

    def _become_stable(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        self.state = GroupState.STABLE
        self.rebalances += 1
        self.durations_ms.append(self.scheduler.now_ms - self._prepared_ms)
        self._write()
        self.on_stable(self.generation, {m.member_id: m.assignment for m in self.members.values()})
        for member in self.members.values():
            waiting, member.awaiting_sync = member.awaiting_sync, None
            if waiting is not None:
                waiting(SyncReply(Code.NONE, member.assignment))

    # --- who is there -----------------------------------------------------------------------------

    def _metadata(self) -> dict[str, bytes]:
        return {member_id: self.members[member_id].metadata for member_id in sorted(self.members)}

    def _known(self, member_id: str, instance_id: str | None) -> Code:
        if instance_id is not None and self.static.get(instance_id, member_id) != member_id:
            return Code.FENCED_INSTANCE_ID
        return Code.NONE if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    def _check(self, member_id: str, instance_id: str | None, generation: int) -> Code:
        if not self.available:
            return Code.NOT_COORDINATOR
        code = self._known(member_id, instance_id)
        if code is Code.NONE and generation != self.generation:
            return Code.ILLEGAL_GENERATION
        return code

    def _touch(self, member: GroupMemberState) -> None:
        member.session_ends_ms = self.scheduler.now_ms + member.session_timeout_ms
        if member.session is None or member.session.cancelled:
            self._watch(member)

    def _watch(self, member: GroupMemberState) -> None:
        """One timer a member, set again when it fires early: heartbeats are many."""
        member.session = self.scheduler.at(member.session_ends_ms, lambda: self._expire(member))

    def _expire(self, member: GroupMemberState) -> None:
        if self.members.get(member.member_id) is not member:
            return
        if member.awaiting_join is not None or member.awaiting_sync is not None:
            # Its request hangs here: it lives.
            member.session_ends_ms = self.scheduler.now_ms + member.session_timeout_ms
        if member.session_ends_ms > self.scheduler.now_ms:
            self._watch(member)
        else:
            self._remove(member.member_id, "its session ended")

    def _expire_pending(self, member_id: str) -> None:
        if self._pending.pop(member_id, None) is not None and self.state is GroupState.PREPARING:
            self._maybe_complete()

    def _expire_sync(self) -> None:
        silent = [m for m in self.members.values() if m.awaiting_sync is None]
        for member in silent:
            self._drop(member, "did not sync in time")
        self._prepare(f"{len(silent)} members did not sync in time")

    def _remove(self, member_id: str, why: str) -> None:
        self._drop(self.members[member_id], why)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare(f"{member_id}: {why}")
        elif self.state is GroupState.PREPARING:
            self._maybe_complete()

    def _drop(self, member: GroupMemberState, why: str) -> None:
        self.history.add("coordinator", f"drops {member.member_id}: {why}")
        del self.members[member.member_id]
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        if member.session is not None:
            member.session.cancel()
        if member.awaiting_join is not None:
            member.awaiting_join(JoinReply(Code.UNKNOWN_MEMBER_ID, member_id=member.member_id))
            member.awaiting_join = None
        if member.awaiting_sync is not None:
            member.awaiting_sync(SyncReply(Code.UNKNOWN_MEMBER_ID))
            member.awaiting_sync = None


def _member(member_id: str, request: JoinRequest) -> GroupMemberState:
    return GroupMemberState(
        member_id=member_id,
        instance_id=request.instance_id,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        metadata=request.metadata,
        client_id=request.client_id,
    )


def _copy(member: GroupMemberState) -> GroupMemberState:
    return GroupMemberState(
        member_id=member.member_id,
        instance_id=member.instance_id,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        metadata=member.metadata,
        assignment=member.assignment,
        client_id=member.client_id,
    )
