"""One member over the test's channel: what becomes an event, what is taken, what is asked for."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.assignment.cluster_state import AssignmentRules
from everflow.assignment.user_data import (
    UNREAD,
    AnswerError,
    AssignmentData,
    HostTasks,
    UserData,
    decode,
    digest,
    encode_assignment,
)
from everflow.errors import (
    AssignmentFailedError,
    FatalError,
    IncompatibleTopologyError,
    MissingSourceTopicError,
    ProcessIdClashError,
    RetriableError,
    ShutdownRequestedError,
    TaskMigratedError,
)
from everflow.kafka.group_channel import GroupAssignor, GroupListener, GroupSettings
from everflow.membership.assignor import Identity, MemberAssignor
from everflow.membership.member import (
    AGAIN_AT_MOST_MS,
    AGAIN_MS,
    AT_ONCE_GAP_MS,
    CLASH_MARGIN_MS,
    FINISHING_MS,
    GATHER_MS,
    METADATA_TIMEOUT_MS,
    SPREADS_MS,
    Assigned,
    Failed,
    FollowUps,
    GroupMember,
    Lost,
    MemberEvent,
    Revoked,
    Roles,
)
from everflow.records import MemberMetadata, TaskId, TopicPartition
from unit.manual_clock import ManualClock

T0, T1, T2 = (TaskId(0, partition) for partition in range(3))
LINES = ("sub-topology 0 reads topic a",)


class Channel:
    """Joins at the next poll when a join is wanted; the answer is the test's."""

    def __init__(self, assignor: GroupAssignor, listener: GroupListener) -> None:
        self.assignor, self.listener = assignor, listener
        self.identity = MemberMetadata(-1, "", None)
        self.wanted = True
        self.joining = False
        self.kept_alive = self.heartbeats = 0
        self.said: list[UserData] = []
        self.read: list[set[str]] = []
        self.also: set[TopicPartition] = set()
        self.next: tuple[set[TaskId], AssignmentData] | None = None
        self.closed: list[bool | None] = []

    @property
    def stable(self) -> bool:
        return not self.wanted and self.identity.generation >= 0

    def poll(self, timeout_s: float) -> None:
        if not self.wanted or self.next is None:
            return
        self.said.append(decode(self.assignor.user_data()))
        (tasks, data), self.next = self.next, None
        self.wanted = False
        self.identity = MemberMetadata(self.identity.generation + 1, "m-1", None)
        nonce = data.answers or self.said[-1].nonce
        active = frozenset(tasks) | {TaskId(0, tp.partition) for tp in self.also}
        data = replace(data, active=active, answers=nonce, topology=data.topology or digest(LINES))
        partitions = frozenset(TopicPartition("a", task.partition) for task in tasks) | self.also
        self.listener.on_assignment(partitions, encode_assignment(data), self.identity.generation)

    def subscribe(self, topics: Iterable[str]) -> None:
        self.read.append(set(topics))

    def keep_alive(self) -> None:
        self.kept_alive += 1

    def request_rejoin(self) -> None:
        self.wanted = True

    def metadata(self) -> MemberMetadata:
        return self.identity

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        return True

    def close(self, timeout_s: float, leave_group: bool | None = None) -> bool:
        self.closed.append(leave_group)
        return True


class Ports:
    def __init__(self) -> None:
        self.sums: dict[TaskId, int] = {}

    def offset_sums(self) -> Mapping[TaskId, int]:
        return self.sums

    def refresh(self) -> None: ...

    def latest(self) -> Mapping[TaskId, int] | None:
        return None

    def racks(self) -> Mapping[TopicPartition, frozenset[str]]:
        return {}


class Driven:
    """A member that the test steps."""

    def __init__(self) -> None:
        self.ports, self.clock = Ports(), ManualClock(1_000)
        three = (self.ports.offset_sums, self.ports, self.ports.racks)
        me = Identity(process_id="p", topology=LINES)
        assignor = MemberAssignor(
            me, {0: ["a"]}, {0: ["log"]}, *three, AssignmentRules(), first_nonce=9
        )
        self.assignor = assignor
        opened: list[Channel] = []

        def open_channel(
            settings: GroupSettings,
            topics: Iterable[str],
            assignor: GroupAssignor,
            listener: GroupListener,
            timeout_s: float,
        ) -> Channel:
            assert set(topics) == {"a"}
            opened.append(Channel(assignor, listener))
            return opened[0]

        self.finishing = False
        self.member = GroupMember(
            GroupSettings(bootstrap_servers="b:1", group_id="app"),
            assignor,
            clock=self.clock,
            open_channel=open_channel,
            finishing=lambda: self.finishing,
        )
        self.member.open()
        (self.channel,) = opened
        self.alive = True

    def given(self, *tasks: TaskId, **data: object) -> list[MemberEvent]:
        """The next join's answer; the events it makes."""
        self.channel.next = (set(tasks), AssignmentData(**data))  # type: ignore[arg-type]
        return self.step()

    def step(self) -> list[MemberEvent]:
        self.alive = self.member.step() is not None
        return [self.member.events.get() for _ in range(self.member.events.qsize())]


@pytest.fixture
def driven() -> Driven:
    return Driven()


def at(*tasks: TaskId) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("a", task.partition) for task in tasks)


def test_every_completed_rebalance_ends_with_roles_changed_or_not(driven: Driven) -> None:
    hosts = {"h:1": HostTasks(frozenset({T0}))}
    told = driven.given(T0, standby=frozenset({T1}), warmup=frozenset({T2}), hosts=hosts)
    assert told == [
        Assigned(frozenset({T0}), at(T0), 0),
        Roles(0, frozenset({T1}), frozenset({T2}), hosts, False),
    ]
    driven.member.request_rejoin()
    assert driven.given(T0) == [Roles(1, frozenset(), frozenset(), {}, False)]
    assert driven.member._owned == {TopicPartition("a", 0): 1}, "owned without a break"
    driven.member.request_rejoin()
    assert [type(event) for event in driven.given(T1)] == [Revoked, Assigned, Roles]


def test_roles_say_since_when_it_joined_and_what_it_asked_for(driven: Driven) -> None:
    driven.given(T0)
    driven.member.request_rejoin("this member drains")
    driven.step()  # asks; the answer is not there yet
    driven.clock.advance(70)
    asked = driven.given(T0)[-1]
    driven.clock.advance(5)
    driven.channel.request_rejoin()
    of_others = driven.given(
        T0, standby=frozenset({T1}), hosts={"h:1": HostTasks(frozenset({T0}))}
    )[-1]
    assert isinstance(asked, Roles)
    assert isinstance(of_others, Roles)
    assert asked.join is not None
    assert of_others.join is not None
    assert (asked.join.asked, asked.join.began_ms) == ("this member drains", 1_070.0)
    assert (of_others.join.asked, of_others.join.began_ms) == ("", 1_075.0)
    assert (asked.join.generation, asked.join.member, asked.join.decision) == (1, "m-1", None)
    assert (of_others.join.standby, of_others.join.hosts) == ({T1}, {"h:1": ["0_0"]})


def test_nothing_is_joined_until_the_revoked_tasks_are_closed(driven: Driven) -> None:
    driven.given(T0, T1)
    driven.member.request_rejoin()
    assert driven.given(T0)[0] == Revoked(frozenset({T1}), at(T1))
    driven.member.request_rejoin("meanwhile")
    assert driven.given(T0) == []
    assert driven.channel.kept_alive == 1
    assert not driven.member.stable
    driven.member.release()
    assert not driven.member.stable, "the hand-over is still to be asked for"
    assert [type(event) for event in driven.step()] == [Roles]
    assert [said.owned for said in driven.channel.said] == [frozenset(), {T0, T1}, {T0}]
    assert driven.member.stable


def test_the_next_generation_waits_for_a_refused_batch_but_not_for_ever(driven: Driven) -> None:
    driven.given(T0)
    driven.finishing, driven.channel.wanted = True, True
    assert driven.given(T0, warmup=frozenset({T1})) == []
    driven.clock.advance(FINISHING_MS / 2)
    assert driven.step() == []
    driven.finishing = False
    assert [type(event) for event in driven.step()] == [Roles]
    driven.finishing, driven.channel.wanted = True, True
    assert driven.given(T0) == [], "the next one has its own time"
    driven.clock.advance(FINISHING_MS)
    assert [type(event) for event in driven.step()] == [Roles]


def test_a_join_under_way_is_not_left_for_a_batch(driven: Driven) -> None:
    driven.given(T0)
    driven.finishing, driven.channel.wanted, driven.channel.joining = True, True, True
    assert [type(event) for event in driven.given(T0, warmup=frozenset({T1}))] == [Roles]


def test_the_claims_are_as_of_the_last_completed_generation(driven: Driven) -> None:
    driven.given(T0)
    driven.member.request_rejoin()
    driven.given(T0)
    assert [said.generation for said in driven.channel.said] == [-1, 0]


def test_an_eviction_is_noticed_before_a_claim_goes_out(driven: Driven) -> None:
    """Scenarios 7, 8: without a generation tasks are lost, though the next one has them."""
    driven.given(T0, T1)
    driven.member.request_rejoin()
    driven.given(T0)
    driven.channel.identity, driven.channel.wanted = MemberMetadata(-1, "m-1", None), True
    with pytest.raises(TaskMigratedError):
        driven.member.commit({})
    told = driven.given(T0)
    assert told[:2] == [Lost(frozenset({T0}), at(T0)), Assigned(frozenset({T0}), at(T0), 0)]
    assert driven.channel.said[-1].owned == frozenset()
    assert driven.member._owned == {TopicPartition("a", 0): 2}


def test_an_eviction_inside_a_join_is_noticed_by_its_next_attempt(driven: Driven) -> None:
    driven.given(T0)
    driven.channel.identity = MemberMetadata(-1, "", None)
    assert decode(driven.channel.assignor.user_data()).owned == frozenset()
    assert driven.member.events.get() == Lost(frozenset({T0}), at(T0))


def test_a_topic_that_came_is_asked_for_and_its_task_stays_what_it_is(driven: Driven) -> None:
    """Note 037: the task gets a partition more, or one less, and nobody gives it up."""
    driven.given(T0)
    driven.member.read_more({0: ["a", "b"]}, {})
    driven.channel.also = {TopicPartition("b", 0), TopicPartition("b", 1)}
    told = driven.given(T0)
    assert driven.channel.read == [{"a", "b"}]
    assert [(type(event), getattr(event, "tasks", None)) for event in told] == [
        (Assigned, frozenset({T1})),
        (Roles, None),
    ]
    assert driven.member.owned() == {T0, T1}
    driven.channel.also = set()
    driven.member.request_rejoin()
    told = driven.given(T0, T1)
    assert [type(event) for event in told] == [Roles], "a member joined that does not know it yet"
    assert driven.channel.read == [{"a", "b"}]


def test_a_topic_that_this_member_does_not_read_yet_is_no_part_of_its_tasks(driven: Driven) -> None:
    driven.channel.also = {TopicPartition("b", 0), TopicPartition("b", 7)}
    assert driven.given(T0)[0] == Assigned(frozenset({T0}), at(T0), 0)


def test_hot_warm_ups_are_gathered_and_asked_for_once(driven: Driven) -> None:
    driven.given(T0, warmup=frozenset({T1, T2}))
    driven.member.became_hot(T1)
    driven.clock.advance(GATHER_MS - 1)
    driven.member.became_hot(T2)
    driven.step()
    assert not driven.channel.wanted
    driven.clock.advance(1)
    driven.step()
    assert driven.channel.wanted


def test_only_a_migrator_hears_at_once_that_copies_do_not_follow(driven: Driven) -> None:
    driven.given(warmup=frozenset({T1}))
    driven.member.lost_copies()
    driven.step()
    assert not driven.channel.wanted, "a full disk costs no rebalances"
    driven.assignor.held = frozenset({T1})
    driven.member.lost_copies()
    driven.step()
    assert driven.channel.wanted


def test_a_drain_is_said_at_once_and_over_when_nothing_is_left(driven: Driven) -> None:
    driven.given(T0, T1)
    driven.member.drain()
    driven.given(T0)
    assert driven.channel.said[-1].draining
    assert not driven.member.await_drained(0)
    driven.member.release()
    driven.given(T0)
    driven.member.request_rejoin()
    driven.given()
    assert not driven.member.await_drained(0), "its last task is still open"
    driven.member.release()
    assert driven.member.await_drained(0)


@pytest.mark.parametrize("leave_group", [None, True])
def test_a_drained_member_leaves_and_asks_nothing(driven: Driven, leave_group: bool | None) -> None:
    """Leaving starts the rebalance that deals what was released last: one before costs time."""
    driven.given(T0)
    driven.member.drain(leave_group)
    assert [type(event) for event in driven.given(followup_ms=0)] == [Revoked, Roles]
    driven.clock.advance(5_000)
    assert driven.step() == []
    assert driven.alive, "its last task is still open"
    driven.member.release()
    joins = len(driven.channel.said)
    assert driven.step() == []
    assert not driven.alive
    driven.member.close()
    assert driven.channel.closed == [leave_group]
    assert len(driven.channel.said) == joins


def test_a_member_whose_tasks_nobody_could_take_stays_until_told_to_leave(driven: Driven) -> None:
    driven.given(T0)
    driven.member.drain()
    driven.given(T0, draining_done=True)
    driven.step()
    assert driven.alive


def test_a_draining_member_that_was_evicted_is_not_taken_for_a_drained_one(driven: Driven) -> None:
    driven.given(T0)
    driven.member.drain()
    driven.channel.identity, driven.channel.wanted = MemberMetadata(-1, "m-1", None), True
    assert [type(event) for event in driven.step()] == [Lost]
    assert driven.alive
    assert not driven.member.await_drained(0)


def test_the_group_is_watched_closely_after_a_rebalance(driven: Driven) -> None:
    driven.given(T0)
    assert driven.member.step() == pytest.approx(0.005)
    driven.clock.advance(10_000)
    assert driven.member.step() == pytest.approx(0.05)


def test_a_drain_is_over_where_nobody_could_take_anything(driven: Driven) -> None:
    driven.given(T0)
    driven.member.drain()
    assert driven.given(T0, draining_done=True)[-1] == Roles(1, frozenset(), frozenset(), {}, True)
    assert driven.member.await_drained(0)


def test_a_bounced_static_member_takes_its_old_answer_as_it_is(driven: Driven) -> None:
    driven.ports.sums = {T0: 7}
    told = driven.given(T0, answers=77)
    assert [type(event) for event in told] == [Assigned, Roles]
    driven.step()
    assert not driven.channel.wanted


def test_a_static_member_with_an_empty_disk_takes_nothing_cold_and_asks(driven: Driven) -> None:
    """Scenario 22: the leader decides anew, and knows then that the state is gone."""
    driven.ports.sums = {T0: 7}
    told = driven.given(T0, T1, answers=77)
    assert told[0] == Assigned(frozenset({T0}), at(T0), 0)
    driven.step()
    assert driven.channel.wanted
    driven.given(T0, T1)
    assert driven.channel.said[-1].owned == {T0}
    assert driven.member.owned() == {T0, T1}, "an answer to what it said is taken, cold or not"


def test_a_static_member_with_another_program_takes_nothing(driven: Driven) -> None:
    driven.ports.sums = {T0: 7}
    assert [type(event) for event in driven.given(T0, answers=77, topology="older")] == [Roles]
    driven.step()
    assert driven.channel.wanted
    assert driven.member.owned() == frozenset()


def test_a_refusal_of_a_former_life_does_not_count(driven: Driven) -> None:
    assert driven.given(error=AnswerError.INCOMPATIBLE_TOPOLOGY, answers=77) == []
    driven.step()
    assert driven.channel.wanted
    assert driven.alive


def test_a_refusal_because_of_unreadable_bytes_always_counts(driven: Driven) -> None:
    """Such an answer repeats no nonce: as an old one it would be asked for again and again."""
    (told,) = driven.given(error=AnswerError.ASSIGNMENT_FAILED, answers=UNREAD)
    assert isinstance(told, Failed)


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (
            AnswerError.INCOMPATIBLE_TOPOLOGY,
            IncompatibleTopologyError,
            "input topic a: ",
        ),
        (AnswerError.PROCESS_ID_CLASH, ProcessIdClashError, "state.dir"),
        (AnswerError.ASSIGNMENT_FAILED, AssignmentFailedError, "as told"),
        (AnswerError.SHUTDOWN_REQUESTED, ShutdownRequestedError, "as told"),
    ],
)
def test_a_refused_member_fails_with_what_to_do_and_leaves(
    driven: Driven, error: AnswerError, expected: type[FatalError], says: str
) -> None:
    driven.given(T0)
    driven.member.request_rejoin()
    told = driven.given(error=error, message="as told", reference=("sub-topology 0 reads topic b",))
    assert [type(event) for event in told] == [Lost, Failed]
    failure = told[1].error  # type: ignore[union-attr]
    assert type(failure) is expected
    assert says in str(failure)
    assert not driven.alive
    driven.member.close()
    assert driven.channel.closed == [True]


def asked_to_end(driven: Driven) -> None:
    driven.given(T0)
    driven.member.shut_down_application()
    assert not driven.member.stable
    assert driven.given(error=AnswerError.SHUTDOWN_REQUESTED, message="as told") == []
    assert driven.channel.said[-1].error is AnswerError.SHUTDOWN_REQUESTED
    assert driven.alive, "a member that missed the answer has to be told again"


def test_who_ends_the_application_stays_until_all_that_are_left_ask_for_it(driven: Driven) -> None:
    asked_to_end(driven)
    driven.channel.assignor.assign({"m-1": driven.channel.assignor.user_data()}, {"a": 3}, {})
    driven.member.request_rejoin()  # the group does, once the others have left
    told = driven.given(error=AnswerError.SHUTDOWN_REQUESTED, message="as told")
    assert [type(event) for event in told] == [Lost, Failed]
    assert isinstance(told[1].error, ShutdownRequestedError)  # type: ignore[union-attr]
    driven.member.close()
    assert driven.channel.closed == [True]


def test_who_ends_the_application_waits_for_no_silent_member_for_ever(driven: Driven) -> None:
    asked_to_end(driven)
    driven.member.request_rejoin()
    driven.given(T0)  # by a leader that had joined before it was asked
    driven.clock.advance(SPREADS_MS - 1)
    assert driven.step() == []
    driven.clock.advance(1)
    told = driven.step()
    assert [type(event) for event in told] == [Lost, Failed]
    assert "still run" in str(told[1].error)  # type: ignore[union-attr]


def test_who_ends_the_application_does_not_wait_for_brokers_that_are_away(driven: Driven) -> None:
    asked_to_end(driven)

    def away(timeout_s: float) -> None:
        raise RetriableError("no broker answers")

    driven.channel.poll = away  # type: ignore[method-assign]
    assert driven.step() == []
    driven.clock.advance(SPREADS_MS)
    assert [type(event) for event in driven.step()] == [Lost, Failed]


def test_a_newcomer_that_meets_its_former_life_waits_for_its_session_s_end(driven: Driven) -> None:
    """Killed while it joined, started again at once: the group still counts the dead one."""
    assert driven.given(error=AnswerError.PROCESS_ID_CLASH, message="taken") == []
    assert not driven.member.stable, "an instance without tasks that waits is not RUNNING"
    driven.clock.advance(GroupSettings(bootstrap_servers="b", group_id="g").session_timeout_ms)
    driven.member.request_rejoin()  # the group does, once the dead one is out of it
    assert [type(event) for event in driven.given(T0)] == [Assigned, Roles]
    driven.clock.advance(10 * CLASH_MARGIN_MS)
    assert driven.step() == []
    assert driven.alive


def test_a_clone_of_a_running_instance_gives_up_after_one_session(driven: Driven) -> None:
    assert driven.given(error=AnswerError.PROCESS_ID_CLASH, message="taken") == []
    driven.clock.advance(
        GroupSettings(bootstrap_servers="b", group_id="g").session_timeout_ms + CLASH_MARGIN_MS
    )
    (told,) = driven.step()
    assert isinstance(told, Failed)
    assert isinstance(told.error, ProcessIdClashError)
    driven.member.close()
    assert driven.channel.closed == [True]


@pytest.mark.parametrize("leave_group", [None, False])
def test_a_refused_member_closed_meanwhile_leaves(driven: Driven, leave_group: bool | None) -> None:
    """It stayed, and the others' next rebalance waited for it until ``rebalance.timeout.ms``."""
    driven.given(error=AnswerError.PROCESS_ID_CLASH, message="taken")
    driven.member.leave(leave_group=leave_group)
    driven.member.close()
    assert driven.channel.closed == [True]


def test_without_the_running_program_s_lines_the_refusal_says_what_to_do(driven: Driven) -> None:
    (told,) = driven.given(error=AnswerError.INCOMPATIBLE_TOPOLOGY, topology="abc")
    assert isinstance(told, Failed)
    assert "fingerprint abc" in str(told.error)


def test_a_version_the_leader_cannot_read_costs_one_more_join_and_no_task(driven: Driven) -> None:
    driven.given(T0)
    driven.member.request_rejoin()
    assert driven.given(error=AnswerError.UNSUPPORTED_VERSION) == []
    assert driven.member.owned() == {T0}
    driven.step()
    assert driven.channel.wanted


def test_a_missing_topic_is_waited_for_then_named(driven: Driven) -> None:
    driven.given(T0)
    missing = {
        "error": AnswerError.INCOMPLETE_SOURCE_METADATA,
        "message": "topic a is gone",
        "followup_ms": 1_000,
    }
    driven.member.request_rejoin()
    assert driven.given(**missing) == []
    assert driven.member.owned() == {T0}
    driven.clock.advance(1_000)
    driven.step()
    assert driven.channel.wanted, "the one that was told asks again"
    driven.clock.advance(METADATA_TIMEOUT_MS)
    told = driven.given(**missing)
    assert isinstance(told[-1], Failed)
    assert isinstance(told[-1].error, MissingSourceTopicError)
    assert "topic a is gone" in str(told[-1].error)


def test_bytes_nobody_can_read_end_the_membership(driven: Driven) -> None:
    driven.channel.listener.on_assignment(frozenset(), b"\x00", 3)
    (told,) = driven.step()
    assert isinstance(told, Failed)
    assert "not everflow's" in str(told.error)


@pytest.mark.parametrize("leave_group", [None, True, False])
def test_leaving_says_how_and_nothing_follows(driven: Driven, leave_group: bool | None) -> None:
    driven.given(T0)
    driven.member.leave(leave_group=leave_group)
    driven.member.close()
    assert driven.channel.closed == [leave_group]
    assert driven.member.owned() == frozenset()
    assert driven.member.events.empty()


# When a member asks for a rebalance.


A, B = TaskId(0, 0), TaskId(0, 1)


@pytest.fixture
def follow_ups() -> FollowUps:
    return FollowUps()


def test_without_a_reason_nothing_is_asked(follow_ups: FollowUps) -> None:
    follow_ups.completed({A}, {B}, None, 0.0)
    assert follow_ups.due(10.0**9, False) is None
    assert not follow_ups.pending


def test_hot_warm_ups_are_gathered_from_the_first(follow_ups: FollowUps) -> None:
    follow_ups.became_hot(A, 100.0)
    follow_ups.became_hot(B, 900.0)
    assert follow_ups.due(99.0 + GATHER_MS, False) is None
    assert follow_ups.due(100.0 + GATHER_MS, False) == "2 warm-ups caught up (0_0, 0_1)"
    assert follow_ups.pending
    assert follow_ups.due(101.0 + GATHER_MS, False) is None, "once per join"


def test_a_rebalance_asks_nothing_and_forgets_what_it_settled(follow_ups: FollowUps) -> None:
    follow_ups.joining()
    follow_ups.became_hot(A, 0.0)
    follow_ups.became_hot(B, 0.0)
    assert follow_ups.due(5_000.0, rebalancing=True) is None
    follow_ups.completed((), {B}, None, 5_000.0)  # A became active here, or went elsewhere
    assert follow_ups.due(5_000.0, False) == "1 warm-up caught up (0_1)"


def test_what_the_join_said_is_asked_again_if_the_leader_left_it(follow_ups: FollowUps) -> None:
    follow_ups.became_hot(A, 0.0)
    follow_ups.became_hot(B, 0.0)
    follow_ups.joining()
    assert follow_ups.due(10_000.0, False) is None
    follow_ups.completed(
        (), {A}, None, 10_000.0
    )  # its end sums were not at hand: A is a warm-up still
    follow_ups.became_hot(A, 10_001.0)
    assert follow_ups.due(9_999.0 + AGAIN_MS, False) is None
    assert follow_ups.due(10_000.0 + AGAIN_MS, False) == "1 warm-up caught up (0_0)"
    follow_ups.joining()
    follow_ups.completed((), {A}, None, 20_000.0)
    assert follow_ups.due(19_999.0 + 2 * AGAIN_MS, False) is None
    assert follow_ups.due(20_000.0 + 2 * AGAIN_MS, False)


def test_a_held_copy_is_named_again_once_its_word_is_old_or_after_a_minute() -> None:
    """While `everflow migrate` waited the new version was rebalanced after 2, 4, 8, ... seconds."""
    follow_ups = FollowUps()
    for told, again_ms in (({A}, AGAIN_AT_MOST_MS), (set[TaskId](), 2 * AGAIN_MS)):
        follow_ups.became_hot(A, 0.0)
        follow_ups.joining()
        follow_ups.completed((), {A}, None, 0.0)
        times = range(0, 2 * AGAIN_AT_MOST_MS, 500)
        assert [at for at in times if follow_ups.due(at, False, told)] == [again_ms]


def test_standbys_that_fell_behind_in_a_bounce_cost_no_rebalance(follow_ups: FollowUps) -> None:
    """Under load each bounce of a static member with lagging standbys made a generation."""
    follow_ups.joining()
    follow_ups.completed({A}, {B}, None, 0.0, stale=True)
    follow_ups.became_hot(A, 10.0)
    assert follow_ups.due(10.0**9, False) is None
    follow_ups.became_hot(B, 10.0)
    assert follow_ups.due(10.0 + GATHER_MS, False) == "1 warm-up caught up (0_1)", (
        "a warm-up is waited for, bounce or not"
    )
    follow_ups.joining()
    follow_ups.completed({A}, (), None, 5_000.0)
    follow_ups.became_hot(A, 5_000.0)
    assert follow_ups.due(5_000.0 + GATHER_MS, False), "the leader may wait"


def test_standbys_are_not_called_warm_ups(follow_ups: FollowUps) -> None:
    follow_ups.joining()
    follow_ups.completed({A}, {B}, None, 0.0)
    follow_ups.became_hot(A, 0.0)
    assert follow_ups.due(GATHER_MS, False) == "1 standby caught up (0_0)"
    follow_ups.joining()
    follow_ups.completed({A}, {B}, None, 10_000.0)
    follow_ups.became_hot(A, 10_000.0)
    follow_ups.became_hot(B, 10_000.0)
    assert (
        follow_ups.due(10_000.0 + GATHER_MS, False)
        == "1 warm-up caught up (0_1); 1 standby caught up (0_0)"
    )


def test_what_is_asked_at_once_waits_for_the_end_of_a_rebalance_only(follow_ups: FollowUps) -> None:
    follow_ups.joining()
    follow_ups.ask("this member drains")
    assert follow_ups.due(0.0, rebalancing=True) is None
    follow_ups.completed((), (), None, 0.0)
    assert follow_ups.due(0.0, False) == "this member drains"
    follow_ups.joining()
    assert not follow_ups.pending


def test_a_told_follow_up_comes_unless_a_rebalance_was_before(follow_ups: FollowUps) -> None:
    follow_ups.completed((), (), 600_000, 50.0)
    assert follow_ups.due(600_049.0, False) is None
    assert "leader" in (follow_ups.due(600_050.0, False) or "")
    follow_ups.joining()
    follow_ups.completed((), (), None, 600_060.0)
    assert follow_ups.due(2_000_000.0, False) is None


def test_follow_ups_at_once_do_not_spin(follow_ups: FollowUps) -> None:
    follow_ups.completed((), (), 0, 100.0)
    assert follow_ups.due(100.0, False)
    follow_ups.joining()
    follow_ups.completed((), (), 0, 101.0)
    assert follow_ups.due(99.0 + AT_ONCE_GAP_MS, False) is None
    assert follow_ups.due(100.0 + AT_ONCE_GAP_MS, False)


def test_a_lost_membership_forgets_its_copies(follow_ups: FollowUps) -> None:
    follow_ups.became_hot(A, 0.0)
    follow_ups.completed((), {A}, 1, 0.0)
    follow_ups.lost()
    assert follow_ups.due(10.0**9, False) is None


@given(st.lists(st.tuples(st.sampled_from("hjca"), st.floats(0, 3_000)), max_size=60))
def test_asked_once_per_join_and_every_hot_warm_up_is_told(steps: list[tuple[str, float]]) -> None:
    follow_ups, now, asked, hot = FollowUps(), 0.0, 0, False
    for what, wait in steps:
        now += wait
        if what == "h":
            follow_ups.became_hot(A, now)
            hot = True
        elif what == "j":
            follow_ups.joining()
            asked, hot = 0, False
            follow_ups.completed((), (), None, now)
        elif what == "a":
            follow_ups.ask("why")
            asked = 0
        asked += follow_ups.due(now, False) is not None
        assert asked <= 1
    if hot:
        assert asked or follow_ups.due(now + GATHER_MS, False)
