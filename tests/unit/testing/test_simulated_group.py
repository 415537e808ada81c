"""The simulated coordinator behaves as the broker does, request by request."""

import pytest

from everflow_simulation.group_coordinator import (
    Code,
    GroupCoordinator,
    GroupState,
    JoinReply,
    JoinRequest,
    SyncReply,
)
from everflow_simulation.history import History
from everflow_simulation.scheduler import Scheduler

SESSION, REBALANCE = 10_000.0, 30_000.0


class Group:
    """A coordinator and the answers it gave."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.coordinator = GroupCoordinator(
            scheduler=self.scheduler, history=History(lambda: self.scheduler.now_ms)
        )
        self.joined: dict[str, list[JoinReply]] = {}
        self.synced: dict[str, list[SyncReply]] = {}

    def join(
        self, who: str, member_id: str = "", static: bool = False, metadata: bytes = b"1"
    ) -> str:
        request = JoinRequest(
            member_id=member_id,
            instance_id=who if static else None,
            session_timeout_ms=SESSION,
            rebalance_timeout_ms=REBALANCE,
            metadata=metadata,
            client=who,
        )
        answers = self.joined.setdefault(who, [])
        self.coordinator.join(request, answers.append)
        if answers and answers[-1].code is Code.MEMBER_ID_REQUIRED and member_id == "":
            return self.join(who, answers[-1].member_id, static, metadata)
        return answers[-1].member_id if answers else member_id

    def last(self, who: str) -> JoinReply:
        return self.joined[who][-1]

    def sync(self, who: str, given: dict[str, bytes] | None = None, static: bool = False) -> None:
        reply = self.last(who)
        instance_id = who if static else None
        listed = self.synced.setdefault(who, [])
        self.coordinator.sync(
            reply.member_id, instance_id, reply.generation, given or {}, listed.append
        )

    def beat(self, who: str, static: bool = False) -> Code:
        reply = self.last(who)
        return self.coordinator.heartbeat(
            reply.member_id, who if static else None, reply.generation
        )

    def stable(self, *who: str, static: bool = False) -> None:
        """These new members in one generation, each with its own name as assignment."""
        for one in who:
            self.join(one, static=static)
        first = who[0]
        if len(who) > 1:  # the first is alone in generation 1 and has to come again
            self.join(first, self.last(first).member_id, static, metadata=b"again")
        assert {self.last(one).generation for one in who} == {self.coordinator.generation}
        leaders = {one for one in who if self.last(one).member_id == self.coordinator.leader}
        for one in [*(one for one in who if one not in leaders), *leaders]:
            self.sync(one, {self.last(other).member_id: other.encode() for other in who}, static)
        assert self.coordinator.state is GroupState.STABLE


@pytest.fixture
def group() -> Group:
    return Group()


def test_a_new_member_is_given_an_id_and_then_waits_for_the_others(group: Group) -> None:
    group.join("a")
    assert [reply.code for reply in group.joined["a"]] == [Code.MEMBER_ID_REQUIRED, Code.NONE]
    group.sync("a", {group.last("a").member_id: b"all"})
    group.join("b")
    assert group.coordinator.state is GroupState.PREPARING
    assert group.beat("a") is Code.REBALANCE_IN_PROGRESS
    group.join("a", group.last("a").member_id, metadata=b"2")
    assert group.last("a").generation == group.last("b").generation == 2
    assert len(group.last("a").members) == 2
    assert group.last("b").members == {}


def test_everyone_gets_the_leaders_assignment(group: Group) -> None:
    group.stable("a", "b")
    assert group.synced["a"][-1] == SyncReply(Code.NONE, b"a")
    assert group.synced["b"][-1] == SyncReply(Code.NONE, b"b")


def test_a_follower_that_rejoins_unchanged_changes_nothing(group: Group) -> None:
    group.stable("a", "b")
    follower = next(who for who in "ab" if group.last(who).member_id != group.coordinator.leader)
    before = group.coordinator.generation
    metadata = group.coordinator.members[group.last(follower).member_id].metadata
    group.join(follower, group.last(follower).member_id, metadata=metadata)
    assert group.last(follower).generation == before
    assert group.coordinator.state is GroupState.STABLE
    group.join(follower, group.last(follower).member_id, metadata=b"something new")
    assert group.coordinator.state is GroupState.PREPARING


def test_a_member_that_does_not_rejoin_in_time_is_out(group: Group) -> None:
    group.stable("a", "b")
    gone = group.last("a").member_id
    group.join("c")
    group.join("b", group.last("b").member_id, metadata=b"2")

    def beat() -> None:  # it lives, but does not join
        group.beat("a")

    for second in range(1, 31):
        group.scheduler.at(second * 1000.0, beat)
    group.scheduler.run_until(REBALANCE + 1)
    assert gone not in group.coordinator.members
    assert group.beat("a") is Code.UNKNOWN_MEMBER_ID
    assert group.last("b").generation == group.last("c").generation


def test_a_silent_member_leaves_with_its_session(group: Group) -> None:
    group.stable("a", "b")

    def beat() -> None:
        group.beat("a")

    for second in range(1, 10):
        group.scheduler.at(second * 1000.0, beat)
    group.scheduler.run_until(SESSION - 1)
    assert len(group.coordinator.members) == 2
    group.scheduler.run_until(SESSION + 1)
    assert set(group.coordinator.members) == {group.last("a").member_id}
    assert group.coordinator.state is GroupState.PREPARING


def test_a_static_member_comes_back_and_its_former_life_is_fenced(group: Group) -> None:
    group.stable("a", "b", static=True)
    before, old_id = group.coordinator.generation, group.last("a").member_id
    group.join("a", static=True, metadata=b"other bytes")
    assert group.last("a").generation == before
    assert group.last("a").member_id != old_id
    assert group.last("a").leader != group.last("a").member_id, "who comes back never assigns"
    group.sync("a", static=True)
    assert group.synced["a"][-1] == SyncReply(Code.NONE, b"a")
    assert group.coordinator.heartbeat(old_id, "a", before) is Code.FENCED_INSTANCE_ID
    assert (
        group.coordinator.offset_commit(old_id, "a", before, transactional=True)
        is Code.FENCED_INSTANCE_ID
    )
    assert group.coordinator.rebalances == 1


def test_offsets_are_fenced_by_generation_and_member_but_not_without_them(group: Group) -> None:
    group.stable("a", "b")
    me, now = group.last("a").member_id, group.coordinator.generation
    commit = group.coordinator.offset_commit
    assert commit(me, None, now, transactional=True) is Code.NONE
    assert commit(me, None, now - 1, transactional=True) is Code.ILLEGAL_GENERATION
    assert commit("nobody", None, now, transactional=True) is Code.UNKNOWN_MEMBER_ID
    assert commit("", None, -1, transactional=True) is Code.NONE, "scenario 7: why there is a gate"
    assert commit("", None, -1, transactional=False) is Code.UNKNOWN_MEMBER_ID
    group.join("a", me, metadata=b"2")
    assert commit(me, None, now, transactional=True) is Code.NONE, (
        "while the group prepares, the old generation commits"
    )
    group.join("b", group.last("b").member_id, metadata=b"2")
    assert group.coordinator.state is GroupState.COMPLETING
    assert commit(me, None, now, transactional=True) is Code.ILLEGAL_GENERATION
    assert commit(me, None, now + 1, transactional=True) is Code.NONE
    assert commit(me, None, now + 1, transactional=False) is Code.REBALANCE_IN_PROGRESS


def test_a_fail_over_forgets_what_no_completed_generation_holds(group: Group) -> None:
    group.stable("a", "b")
    now = group.coordinator.generation
    group.join("a", group.last("a").member_id, metadata=b"2")
    waiting = len(group.joined["a"])
    group.coordinator.fail_over(500.0)
    assert group.joined["a"][waiting].code is Code.NOT_COORDINATOR
    assert group.beat("b") is Code.NOT_COORDINATOR
    group.scheduler.run_until(501.0)
    assert group.coordinator.state is GroupState.STABLE
    assert group.coordinator.generation == now
    assert group.beat("b") is Code.NONE
