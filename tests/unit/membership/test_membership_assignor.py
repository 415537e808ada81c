"""The leader's glue between the group protocol and the assignor, and its decision in words."""

import dataclasses
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everflow import StreamsConfig
from everflow.assignment import (
    ApplicationState,
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
)
from everflow.assignment import assignor as everflow_assignor
from everflow.assignment.cluster_state import (
    RUNNING,
    Assignment,
    AssignmentRules,
    ClusterState,
    Member,
    TaskInfo,
    holding,
)
from everflow.assignment.user_data import (
    LATEST_VERSION,
    UNREAD,
    AnswerError,
    AssignmentData,
    UserData,
    decode,
    decode_assignment,
    digest,
    encode,
)
from everflow.errors import ConfigError
from everflow.kafka.group_channel import MemberAssignment
from everflow.membership.assignor import (
    METADATA_RETRY_MS,
    Claims,
    Decide,
    Identity,
    MemberAssignor,
    decision_of,
    decision_text,
    known_of,
)
from everflow.membership.own_assignor import (
    OwnCode,
    OwnCodeError,
    check_assignor,
    decision,
    patience_s,
)
from everflow.rebalances import task_names
from everflow.records import TaskId, TopicPartition
from everflow.testing.waiting import wait_until
from unit.manual_clock import ManualClock

LINES = ("sub-topology 0 has key_value store s", "sub-topology 0 reads topic a")
PROGRAM = digest(LINES)
TASK_0, TASK_1, TASK_2 = (TaskId(0, partition) for partition in range(3))


class Ports:
    """Copies, ends and racks as the test says."""

    def __init__(
        self, sums: Mapping[TaskId, int] | None = None, ends: Mapping[TaskId, int] | None = None
    ) -> None:
        self.sums, self.ends, self.refreshed = dict(sums or {}), ends, 0

    def offset_sums(self) -> Mapping[TaskId, int]:
        return self.sums

    def refresh(self) -> None:
        self.refreshed += 1

    def latest(self) -> Mapping[TaskId, int] | None:
        return self.ends

    def racks(self) -> Mapping[TopicPartition, frozenset[str]]:
        return {TopicPartition("a", 0): frozenset({"r1"})}


def assignor(
    ports: Ports | None = None,
    decide: Decide | None = None,
    topics: tuple[str, ...] = ("a",),
    latest_version: int = LATEST_VERSION,
    identity: Identity | None = None,
    **more: Any,
) -> MemberAssignor:
    ports = ports or Ports(ends={TASK_0: 0, TASK_1: 0, TASK_2: 0})
    if decide is not None:
        more["decide"] = decide
    return MemberAssignor(
        identity or Identity(process_id="p-0", threads=2, topology=LINES),
        {0: topics},
        {0: ["log"]},
        ports.offset_sums,
        ports,
        ports.racks,
        AssignmentRules(acceptable_lag=10),
        first_nonce=6,
        latest_version=latest_version,
        **more,
    )


def member(process_id: str, *owned: TaskId, generation: int = -1, **more: object) -> UserData:
    nonce = sum(process_id.encode())
    return UserData(
        process_id=process_id,
        owned=frozenset(owned),
        generation=generation,
        topology=PROGRAM,
        nonce=nonce,
        **more,  # type: ignore[arg-type]
    )


def answers(given: Mapping[str, MemberAssignment]) -> dict[str, AssignmentData]:
    return {member_id: decode_assignment(answer.user_data) for member_id, answer in given.items()}


def decided(leader: MemberAssignor, count: int = 2, **said: UserData) -> dict[str, AssignmentData]:
    """What a leader answers to members that said this, of a topic of ``count`` partitions."""
    return answers(leader.assign({name: encode(one) for name, one in said.items()}, {"a": count}))


def test_a_task_whose_number_is_fixed_gets_each_of_its_partitions() -> None:
    """Topic ``a`` has twice as many partitions as the state (note 067)."""
    me = assignor(tasks={0: 2})
    said = {"m": encode(member("p-0"))}
    given = me.assign(said, {"a": 4})
    assert sorted(given["m"].partitions) == [TopicPartition("a", n) for n in range(4)]
    assert answers(given)["m"].active == {TASK_0, TASK_1}
    assert [me.task_of(TopicPartition("a", n)) for n in range(4)] == [TASK_0, TASK_1] * 2
    assert assignor().task_of(TopicPartition("a", 2)) == TASK_2


def test_the_word_of_a_held_copy_stands_until_it_has_moved_on() -> None:
    ports = Ports({TASK_1: 100, TASK_2: 100})
    one = assignor(ports)
    one.held = frozenset({TASK_1})
    assert not one.reported()
    one.user_data()
    assert one.reported() == {TASK_1}
    for moved, near in ((105, True), (106, False), (90, False)):
        ports.sums[TASK_1] = moved
        assert (one.reported() == {TASK_1}) is near, moved
    one.user_data()
    assert one.reported()
    one.held = frozenset()
    assert not one.reported()


def test_each_join_sends_other_bytes_and_what_holds_now() -> None:
    ports = Ports({TASK_2: 77})
    me = Identity(
        process_id="p-1",
        threads=2,
        rack="rack-1",
        tags={"zone": "z"},
        endpoint="host:1",
        instance_id="node-1",
        topology=LINES,
    )
    one = assignor(ports, identity=me)
    held = {TASK_1}
    one.bind(lambda: Claims(frozenset(held), 7))
    first, second = one.user_data(), one.user_data()
    assert first != second
    expected = UserData(
        process_id="p-1",
        owned=frozenset({TASK_1}),
        generation=7,
        threads=2,
        offset_sums={TASK_2: 77},
        rack="rack-1",
        tags={"zone": "z"},
        endpoint="host:1",
        draining=False,
        instance_id="node-1",
        topology=PROGRAM,
        nonce=7,
    )
    assert decode(first) == expected
    held.clear()
    one.draining = one.shutting_down_all = True
    again = decode(one.user_data())
    assert (again.owned, again.draining, again.error) == (
        frozenset(),
        True,
        AnswerError.SHUTDOWN_REQUESTED,
    )
    assert ports.refreshed == 3


def test_the_cluster_state_says_what_the_members_said() -> None:
    seen: list[ClusterState] = []

    def decide(cluster: ClusterState) -> Assignment:
        seen.append(cluster)
        return Assignment(
            active={"m1": frozenset({TASK_0}), "m2": frozenset({TASK_1})}, followup_ms=5
        )

    one = assignor(Ports(ends={TASK_0: 100}), decide, topics=("a", "b"))
    facts: dict[str, Any] = {
        "rack": "r",
        "tags": {"k": "v"},
        "endpoint": "h:1",
        "threads": 3,
        "instance_id": "i",
    }
    said = {
        "m1": member("x", TASK_0, generation=3, **facts),
        "m2": member("w", offset_sums={TASK_0: 60}, draining=True),
    }
    given = one.assign({name: encode(data) for name, data in said.items()}, {"a": 2, "b": 1})
    (cluster,) = seen
    assert cluster.members == (
        Member(member_id="m1", process_id="x", owned=frozenset({TASK_0}), generation=3, **facts),
        Member(member_id="m2", process_id="w", offset_sums={TASK_0: 60}, draining=True),
    )
    assert cluster.end_sums == {TASK_0: 100}
    assert cluster.racks == {TopicPartition("a", 0): frozenset({"r1"})}
    assert cluster.tasks[TASK_0].inputs == (TopicPartition("a", 0), TopicPartition("b", 0))
    assert cluster.tasks[TASK_1].changelogs == (TopicPartition("log", 1),)
    assert cluster.tasks[TASK_1].stateful
    # A task's partitions are those that exist; one member, which stays, is told of the follow-up;
    # each gets its nonce back.
    assert given["m1"].partitions == [TopicPartition("a", 0), TopicPartition("b", 0)]
    assert given["m2"].partitions == [TopicPartition("a", 1)]
    told = answers(given)
    assert {m: (data.followup_ms, data.answers) for m, data in told.items()} == {
        "m1": (5, said["m1"].nonce),
        "m2": (None, said["m2"].nonce),
    }
    assert told["m2"].hosts == told["m1"].hosts
    assert {end: one.active for end, one in (told["m1"].hosts or {}).items()} == {"h:1": {TASK_0}}


def test_a_topic_counts_from_when_every_member_reads_it() -> None:
    """Note 037: members find a topic of a pattern each at a moment of its own."""
    leader = assignor(topics=("a", "b"))
    said = {"m1": encode(member("x")), "m2": encode(member("w"))}
    counts = {"a": 1, "b": 2, "c": 9}
    both = {TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("b", 1)}
    for second, expected in (("a",), {TopicPartition("a", 0)}), (("a", "b", "c"), both):
        given = leader.assign(said, counts, {"m1": {"a", "b"}, "m2": set(second)})
        assert {tp for one in given.values() for tp in one.partitions} == expected
    slow = assignor(topics=("a",))
    given = slow.assign(said, counts, {"m1": {"a", "b"}, "m2": {"a"}})
    assert {tp for one in given.values() for tp in one.partitions} == {TopicPartition("a", 0)}
    slow.read_more({0: ("a", "b")}, {})
    assert slow.topics == {"a", "b"}
    given = slow.assign(said, counts, {"m1": {"a", "b"}, "m2": {"a", "b"}})
    assert {tp for one in given.values() for tp in one.partitions} == both


def test_with_the_real_assignor_a_newcomer_warms_up_and_the_owner_goes_on() -> None:
    ends = {TASK_0: 1000, TASK_1: 1000}
    owner = member("x", TASK_0, TASK_1, generation=3)
    told = decided(assignor(Ports(ends=ends)), m1=owner, m2=member("y"))
    assert told["m1"].active == {TASK_0, TASK_1}
    assert (told["m2"].active, len(told["m2"].warmup)) == (frozenset(), 1)
    assert RUNNING not in ends.values()


def test_a_decision_against_the_rules_or_an_exception_is_told_to_everyone() -> None:
    def nobody(cluster: ClusterState) -> Assignment:
        return Assignment(active={m.member_id: frozenset() for m in cluster.members})

    def broken(cluster: ClusterState) -> Assignment:
        raise KeyError("theirs")

    for decide, says in ((nobody, "0_0 is on nobody"), (broken, "KeyError('theirs')")):
        told = decided(assignor(decide=decide), 1, m1=member("x"), m2=member("y"))
        assert {data.error for data in told.values()} == {AnswerError.ASSIGNMENT_FAILED}
        assert all(says in data.message for data in told.values())


def test_an_incompatible_program_is_refused_with_the_lines_and_the_others_go_on() -> None:
    other = replace(member("a"), topology="other")
    told = decided(assignor(), m1=member("x", TASK_0, generation=4), m2=other)
    assert (told["m2"].error, told["m2"].reference, told["m2"].active) == (
        AnswerError.INCOMPATIBLE_TOPOLOGY,
        LINES,
        frozenset(),
    )
    assert (told["m1"].error, told["m1"].active) == (AnswerError.NONE, {TASK_0, TASK_1})
    assert told["m1"].reference == ()


def test_the_group_s_program_is_that_of_the_newest_owners_not_of_the_leader() -> None:
    """The leader itself is refused when it is the odd one; alone, any program may start."""
    others = {
        "m1": encode(replace(member("x", TASK_0, generation=4), topology="old")),
        "m2": encode(replace(member("y", TASK_1, generation=3), topology="older")),
        "leader": encode(member("z")),
    }
    told = answers(assignor().assign(others, {"a": 2}))
    assert {m: data.error.name for m, data in told.items()} == {
        "m1": "NONE",
        "m2": "INCOMPATIBLE_TOPOLOGY",
        "leader": "INCOMPATIBLE_TOPOLOGY",
    }
    assert told["leader"].reference == ()
    assert answers(assignor().assign({"leader": others["leader"]}, {"a": 2}))["leader"].active == {
        TASK_0,
        TASK_1,
    }


def test_a_cloned_process_id_is_named_and_the_newer_member_refused() -> None:
    """Scenario 31."""
    running = member("p", TASK_0, generation=2)
    told = decided(assignor(), a=member("p"), b=running, c=member("q"))
    assert {m: data.error.name for m, data in told.items()} == {
        "a": "PROCESS_ID_CLASH",
        "b": "NONE",
        "c": "NONE",
    }
    assert "process id p" in told["a"].message
    assert "b and a" in told["a"].message


def test_a_member_of_a_future_version_is_answered_and_keeps_what_it_may_run() -> None:
    future = assignor(
        latest_version=LATEST_VERSION + 1, identity=Identity(process_id="new", topology=LINES)
    )
    future.bind(lambda: Claims(frozenset({TASK_1}), 4))
    old = assignor()
    members = {"m1": encode(member("x", TASK_0, generation=4)), "m2": future.user_data()}
    told = answers(old.assign(members, {"a": 2}))
    assert told["m2"].error is AnswerError.UNSUPPORTED_VERSION
    assert told["m2"].latest_version == LATEST_VERSION
    assert told["m1"].active == {TASK_0}, "0_1 may run on the member that cannot be read"
    future.answer(old.assign(members, {"a": 2})["m2"].user_data)
    members["m2"] = future.user_data()
    assert decode(members["m2"]).latest_version == LATEST_VERSION + 1
    told = answers(old.assign(members, {"a": 2}))
    assert {m: (data.error, data.active) for m, data in told.items()} == {
        "m1": (AnswerError.NONE, {TASK_0}),
        "m2": (AnswerError.NONE, {TASK_1}),
    }


def test_a_new_partition_that_the_leader_takes_for_a_task_is_left() -> None:
    """A leader that counts tasks by the partitions of an input that grew gives partition 2 as task
    0_2. Here it belongs to task 0_0, which another member may run."""
    one = assignor(tasks={0: 2})
    first, grown = TopicPartition("a", 0), TopicPartition("a", 2)
    assert one.known({first, grown}, {TASK_0, TASK_2}) == {first, grown}
    assert one.known({grown}, {TASK_2}) == frozenset()


def test_bytes_that_cannot_be_read_cost_only_their_member_its_tasks() -> None:
    told = answers(
        assignor().assign({"m1": encode(member("x")), "m2": b"ef\x02\x00bad", "m3": b""}, {"a": 2})
    )
    assert {m: data.error.name for m, data in told.items()} == {
        "m1": "NONE",
        "m2": "ASSIGNMENT_FAILED",
        "m3": "ASSIGNMENT_FAILED",
    }
    assert told["m2"].answers == told["m3"].answers == UNREAD
    assert "damaged" in told["m2"].message
    assert "another program" in told["m3"].message
    assert told["m1"].active == {TASK_0, TASK_1}


def test_a_missing_topic_is_told_to_everyone_and_one_asks_again() -> None:
    told = decided(assignor(topics=("a", "gone")), m1=member("x"), m2=member("y"))
    assert {data.error for data in told.values()} == {AnswerError.INCOMPLETE_SOURCE_METADATA}
    assert all("topic gone" in data.message for data in told.values())
    assert sorted(str(one.followup_ms) for one in told.values()) == [str(METADATA_RETRY_MS), "None"]


def test_one_member_can_end_the_whole_application() -> None:
    asking = replace(member("y"), error=AnswerError.SHUTDOWN_REQUESTED)
    leader = assignor()
    told = decided(leader, m1=member("x", TASK_0, generation=1), m2=asking)
    assert {data.error for data in told.values()} == {AnswerError.SHUTDOWN_REQUESTED}
    assert all("m2" in data.message for data in told.values())
    assert not leader.all_asked
    leader.assign({"m2": encode(asking)}, {"a": 2})
    assert leader.all_asked


@pytest.mark.parametrize("others", [False, True])
def test_draining_is_done_only_where_nobody_else_could_take_anything(others: bool) -> None:
    said = {"m1": encode(member("x", TASK_0, generation=1, draining=True))}
    if others:
        said["m2"] = encode(member("y"))
    told = answers(assignor().assign(said, {"a": 1}))
    assert told["m1"].draining_done is not others
    assert TASK_0 in told["m1"].active or others


def test_a_lost_member_s_tasks_wait_for_it_as_long_as_the_same_leader_remembers() -> None:
    """``scheduled.rebalance.max.delay.ms``; tests/unit/assignment has the decision itself."""
    clock = ManualClock(0)
    leader = assignor(Ports(ends={TASK_0: 1000, TASK_1: 1000}), max_delay_ms=5_000, clock=clock)
    both = {
        "m1": encode(member("x", TASK_0, generation=3)),
        "m2": encode(member("y", TASK_1, generation=3)),
    }
    leader.answer(leader.assign(both, {"a": 2})["m1"].user_data)
    told = answers(leader.assign({"m1": both["m1"]}, {"a": 2}))
    assert (told["m1"].active, told["m1"].followup_ms) == ({TASK_0}, 5_000)
    clock.advance(5_000)
    given = leader.assign({"m1": both["m1"]}, {"a": 2})
    assert answers(given)["m1"].active == {TASK_0, TASK_1}
    # Another member led in between: what was remembered before is forgotten.
    leader.answer(leader.assign(both, {"a": 2})["m1"].user_data)
    leader.answer(given["m1"].user_data)
    assert answers(leader.assign({"m1": both["m1"]}, {"a": 2}))["m1"].active == {TASK_0, TASK_1}


def test_the_tasks_of_a_lost_leader_wait_too_and_the_next_one_waits_no_longer_than_it_would() -> (
    None
):
    clock = ManualClock(0)
    ends = dict.fromkeys((TASK_0, TASK_1, TASK_2), 1000)
    first, second, third = (
        assignor(
            Ports(ends=ends),
            max_delay_ms=5_000,
            clock=clock,
            identity=Identity(process_id=process, topology=LINES),
        )
        for process in ("x", "y", "z")
    )
    three = {
        name: encode(member(process, task, generation=3))
        for name, process, task in (("m1", "x", TASK_0), ("m2", "y", TASK_1), ("m3", "z", TASK_2))
    }
    second.answer(first.assign(three, {"a": 3})["m2"].user_data)
    two = {name: three[name] for name in ("m2", "m3")}
    given = second.assign(two, {"a": 3})
    told = answers(given)["m2"]
    assert (told.active, told.followup_ms) == ({TASK_1}, 5_000)
    third.answer(given["m3"].user_data)
    clock.advance(2_000)
    alone = {"m3": three["m3"]}
    told = answers(third.assign(alone, {"a": 3}))["m3"]
    assert (told.active, told.followup_ms) == ({TASK_2}, 3_000)
    clock.advance(3_000)
    told = answers(third.assign(alone, {"a": 3}))["m3"]
    assert told.active == {TASK_0, TASK_1, TASK_2}


def test_a_leader_knows_its_decision_until_another_leads() -> None:
    leader, both = assignor(), {"m1": encode(member("p1")), "m2": encode(member("p2"))}
    given = leader.assign(both, {"a": 2})
    leader.answer(given["m1"].user_data)
    assert leader.decision is not None
    assert (leader.decision.tasks, leader.decision.members) == (2, ["m1", "m2"])
    assert leader.decision.before is None
    moved = [task for one in leader.decision.moved for task in one.tasks]
    assert sorted(moved) == ["0_0", "0_1"]
    leader.answer(given["m1"].user_data)  # a generation that another member led
    assert leader.decision is None


def test_what_is_cold_here() -> None:
    one = assignor(Ports({TASK_0: 5}))
    assert one.cold({TASK_0, TASK_1}) == {TASK_1}


def test_a_decision_that_ends_with_system_exit_is_told_to_the_group() -> None:
    def exits(cluster: ClusterState) -> Assignment:
        raise SystemExit(1)

    (told,) = answers(assignor(decide=exits).assign({"m": encode(member("p"))}, {"a": 1})).values()
    assert told.error is AnswerError.ASSIGNMENT_FAILED
    assert "SystemExit" in told.message


TASKS = [TaskId(0, partition) for partition in range(8)]
FIRST, REST = frozenset(TASKS[:4]), frozenset(TASKS[4:])
ONE = Member(
    member_id="one-3ad7a161-4510-4366-9fcf-9ea9b616b279", process_id="p1", owned=FIRST, generation=3
)
TWO = Member(
    member_id="two-a309ccc1-197c-4c9b-b8a4-0ddd6950e3f6",
    process_id="p2",
    owned=REST,
    generation=3,
    endpoint="host-2:80",
)


def cluster(*members: Member) -> ClusterState:
    return ClusterState(
        members=members,
        tasks={task: TaskInfo(task, (TopicPartition("in", task.partition),)) for task in TASKS},
        end_sums={},
        racks={},
        rules=AssignmentRules(),
    )


BOTH = Assignment(active={ONE.member_id: FIRST, TWO.member_id: REST})


def test_who_vanished_and_who_has_its_tasks_now() -> None:
    before = known_of(cluster(ONE, TWO), BOTH)
    text = decision_text(
        decision_of(before, cluster(ONE), Assignment(active={ONE.member_id: FIRST | REST}))
    )
    assert text.split("; ")[:3] == [
        "8 tasks on 1 instance",
        "gone: two-a309ccc1 (host-2:80) (had 0_4, 0_5, 0_6, 0_7)",
        "moves now: 0_4, 0_5, 0_6, 0_7 from two-a309ccc1 (host-2:80) to one-3ad7a161",
    ]
    assert "; nothing left" in text


def test_a_new_leader_knows_only_that_they_had_no_owner() -> None:
    text = decision_text(
        decision_of({}, cluster(ONE), Assignment(active={ONE.member_id: FIRST | REST}))
    )
    moves = r"moves now: 0_4, 0_5, 0_6, 0_7 from nobody \(.*\) to one-3ad7a161"
    assert re.match(f"8 tasks on 1 instance; {moves}; nothing left", text)


def test_what_waits_for_its_owner_is_not_called_finished() -> None:
    before = known_of(cluster(ONE, TWO), BOTH)
    handing = Assignment(
        active={ONE.member_id: FIRST, TWO.member_id: frozenset()},
        withheld=REST,
        movements=0,
        followup_ms=0,
    )
    text = decision_text(decision_of(before, cluster(ONE, TWO), handing))
    assert text.startswith("8 tasks on 2 instances; being handed over: 0_4, 0_5, 0_6, 0_7 (")
    assert "nothing left" not in text


def test_a_lost_instance_s_tasks_count_while_they_are_held_back() -> None:
    held = dataclasses.replace(cluster(ONE), held_back=REST)
    text = decision_text(decision_of({}, held, Assignment(active={ONE.member_id: FIRST})))
    assert re.fullmatch("8 tasks on 1 instance; held back .*: 0_4, 0_5, 0_6, 0_7", text)


def test_tasks_that_a_migration_holds_are_not_those_of_a_lost_instance() -> None:
    both = dataclasses.replace(cluster(ONE), held_back=FIRST | REST)
    found = decision_of({}, both, Assignment(active={ONE.member_id: frozenset()}), REST)
    assert (found.held, found.held_back) == (task_names(REST), task_names(FIRST | REST))
    text = decision_text(found)
    assert re.fullmatch(
        "8 tasks on 1 instance; held for .*: 0_4, 0_5, 0_6, 0_7; held back .*: 0_0, 0_1, 0_2, 0_3",
        text,
    )


def test_a_task_that_was_handed_over_comes_from_who_had_it() -> None:
    handing = Assignment(active={ONE.member_id: FIRST, TWO.member_id: frozenset()}, withheld=REST)
    done = Member(member_id=TWO.member_id, process_id="p2", generation=4, endpoint="host-2:80")
    handed = Assignment(active={ONE.member_id: FIRST | REST, TWO.member_id: frozenset()})
    text = decision_text(
        decision_of(known_of(cluster(ONE, TWO), handing), cluster(ONE, done), handed)
    )
    assert "moves now: 0_4, 0_5, 0_6, 0_7 from two-a309ccc1 (host-2:80) to one-3ad7a161;" in text


def test_a_newcomer_s_warm_ups_and_what_comes_later() -> None:
    alone = Member(member_id=ONE.member_id, process_id="p1", owned=FIRST | REST, generation=3)
    new = Member(member_id=TWO.member_id, process_id="p2")
    before = known_of(cluster(alone), Assignment(active={ONE.member_id: FIRST | REST}))
    warming = Assignment(
        active={ONE.member_id: FIRST | REST, TWO.member_id: frozenset()},
        warmup={TWO.member_id: frozenset(TASKS[4:6])},
        movements=4,
    )
    assert decision_text(decision_of(before, cluster(alone, new), warming)) == (
        "8 tasks on 2 instances; new: two-a309ccc1; warm-ups: 0_4 on two-a309ccc1, 0_5 on "
        "two-a309ccc1; still to move: 4"
    )


# ``task.assignor.class``, the example's too, and other code of users.


class GivesAll:
    """To the first process."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        first, *others = sorted(application_state.states)
        nothing = dict.fromkeys(others, KafkaStreamsAssignment())
        everything = KafkaStreamsAssignment(frozenset(application_state.tasks))
        return TaskAssignment({first: everything, **nothing})

    def on_assignment_computed(self, assignment: TaskAssignment, error: AssignmentError) -> None:
        assert error is AssignmentError.NONE


class NotAnAssignor:
    """Lacks everything."""


class NeedsMore:
    def __init__(self, more: int) -> None:
        self.more = more


def test_without_one_everflow_decides() -> None:
    assert (
        decision(StreamsConfig(application_id="a", bootstrap_servers="b:1").task_assignor_class)
        is everflow_assignor.assign
    )


@pytest.mark.parametrize("path", [f"{__name__}:GivesAll", f"{__name__}.GivesAll"])
def test_a_named_one_decides(path: str) -> None:
    task = TaskId(0, 0)
    own_cluster = ClusterState(
        members=(Member(member_id="m", process_id="p"),),
        tasks={task: TaskInfo(task, (TopicPartition("in", 0),))},
        end_sums={},
        racks={},
        rules=AssignmentRules(),
    )
    assert decision(path)(own_cluster).active == {"m": frozenset({task})}


def test_a_class_itself_is_taken() -> None:
    config = StreamsConfig(
        **{"application.id": "a", "bootstrap.servers": "b:1", "task.assignor.class": GivesAll}
    )
    assert config.task_assignor_class == f"{__name__}:GivesAll"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere.at.all:Class", "No module named"),
        (f"{__name__}:Missing", "has no attribute"),
        ("Class", r"loaded.*module:Class"),
        (f"{__name__}:NotAnAssignor", r"assign.*on_assignment_computed"),
        (f"{__name__}:NeedsMore", "without arguments"),
    ],
)
def test_a_wrong_one_is_refused_with_the_reason(path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        decision(path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere.at.all:Class", "No module named"),
        ("Class", "Write module:Class"),
        (f"{__name__}:NotAnAssignor", "has no assign"),
    ],
)
def test_the_check_before_spark_s_start_refuses_it_too(path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_assignor(path)


def test_the_check_makes_nothing() -> None:
    check_assignor("")
    check_assignor(f"{__name__}:GivesAll")


class Exits:
    def assign(self, application_state: object) -> object:
        raise SystemExit(1)

    def on_assignment_computed(self, assignment: object, error: object) -> None:
        raise AssertionError("there is no assignment")


class Hangs(Exits):
    def assign(self, application_state: object) -> object:
        threading.Event().wait(60)
        raise AssertionError("it came back")


@pytest.mark.parametrize(
    ("name", "says"), [("Exits", "raised SystemExit"), ("Hangs", "answered within 0.05 s")]
)
def test_exit_or_hang_moves_nobody(name: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    task = TaskId(0, 0)
    tasks = {task: TaskInfo(task, (TopicPartition("in", 0),))}
    own_cluster = ClusterState(
        members=(
            Member(member_id="m", process_id="p", owned=frozenset({task}), generation=1),
            Member(member_id="n", process_id="q"),
        ),
        tasks=tasks,
        end_sums={},
        racks={},
        rules=AssignmentRules(),
    )
    assert decision(f"{__name__}:{name}", 0.05)(own_cluster).active == {
        "m": {task},
        "n": frozenset(),
    }
    assert says in caplog.text


def test_it_runs_on_a_daemon_thread_of_its_own_and_what_it_raises_is_raised() -> None:
    seen: list[threading.Thread] = []
    code = OwnCode(10.0)
    code.run("Plug", lambda: seen.append(threading.current_thread()))
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon
    with pytest.raises(KeyError, match="a bug"):
        code.run("Plug", lambda: {}["a bug"])  # type: ignore[index]


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_would_end_its_thread_in_silence_is_an_error(failure: BaseException) -> None:
    def ends() -> None:
        raise failure

    with pytest.raises(OwnCodeError, match=f"Plug raised {type(failure).__name__}"):
        OwnCode(10.0).run("Plug", ends)


def test_one_that_hangs_is_not_entered_before_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    code, go_on, entered = OwnCode(0.05), threading.Event(), []

    def hangs() -> None:
        entered.append(1)
        go_on.wait(60)

    with pytest.raises(OwnCodeError, match=r"answered.*0\.05"):
        code.run("Plug", hangs)
    with pytest.raises(OwnCodeError, match="asked"):
        code.run("Plug", hangs)
    assert entered == [1]
    go_on.set()
    wait_until(lambda: "came back after" in caplog.text, 10, "the late answer is logged")
    code.run("Plug", lambda: entered.append(2))
    assert entered == [1, 2]


def test_whoever_waits_is_told_so_after_a_second(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    def said() -> None:
        wait_until(
            lambda: (
                "Plug has not answered for 1 s, and the whole group waits for it" in caplog.text
            ),
            10,
            "it is said",
        )
        go_on.set()

    waiter = threading.Thread(target=said)
    waiter.start()
    OwnCode(30.0).run("Plug", lambda: go_on.wait(20))
    waiter.join(20)
    assert go_on.is_set()


def test_a_member_that_waits_for_it_is_not_thrown_out() -> None:
    assert patience_s(45_000, 30_000) == 10
    assert patience_s(6_000, 300_000) == 2


EXAMPLES = Path(__file__).parents[3] / "examples"
OWN_TASKS = [TaskId(0, partition) for partition in range(4)]
INFOS = {
    task: TaskInfo(task, (), (TopicPartition("log", task.partition),), True) for task in OWN_TASKS
}
ENDS = dict.fromkeys(OWN_TASKS, 1_000_000)
OWN_FIRST, SECOND = Member(member_id="m1", process_id="p1"), Member(member_id="m2", process_id="p2")

OwnDecide = Callable[[ClusterState], Assignment]


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> OwnDecide:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return decision("own_assignor:StayingAssignor")


def own_cluster(*members: Member) -> ClusterState:
    return ClusterState(
        members=members, tasks=INFOS, end_sums=ENDS, rules=AssignmentRules(num_standbys=1)
    )


def test_tasks_of_nobody_are_dealt_evenly_by_threads(decide: OwnDecide) -> None:
    found = decide(own_cluster(OWN_FIRST, replace(SECOND, threads=3)))
    assert {one: len(tasks) for one, tasks in found.active.items()} == {"m1": 1, "m2": 3}
    assert {one: len(tasks) for one, tasks in found.standby.items()} == {"m1": 3, "m2": 1}


def test_what_runs_stays_and_a_newcomer_gets_copies(decide: OwnDecide) -> None:
    found = decide(
        own_cluster(replace(OWN_FIRST, owned=frozenset(OWN_TASKS), generation=1), SECOND)
    )
    assert found.active == {"m1": frozenset(OWN_TASKS), "m2": frozenset()}
    assert found.standby["m2"] == frozenset(OWN_TASKS)
    assert not found.withheld


def test_a_draining_instance_gives_each_task_to_the_nearest_copy(decide: OwnDecide) -> None:
    leaving = replace(OWN_FIRST, owned=frozenset(OWN_TASKS[:2]), generation=1, draining=True)
    near, far = (
        replace(SECOND, offset_sums={OWN_TASKS[0]: 999_000, OWN_TASKS[1]: 10}),
        Member(member_id="m3", process_id="p3", offset_sums={OWN_TASKS[1]: 999_000}),
    )
    busy = replace(far, owned=frozenset(OWN_TASKS[2:]), generation=1)
    taken = decide(own_cluster(leaving, near, busy))
    assert taken.withheld == frozenset(OWN_TASKS[:2]), "first the present owner lets go"
    assert not taken.active["m1"]
    given = decide(own_cluster(replace(leaving, owned=frozenset()), near, busy))
    assert given.active == {
        "m1": frozenset(),
        "m2": frozenset(OWN_TASKS[:1]),
        "m3": frozenset(OWN_TASKS[1:]),
    }


def test_where_everybody_drains_somebody_still_works(decide: OwnDecide) -> None:
    found = decide(own_cluster(replace(OWN_FIRST, draining=True), replace(SECOND, draining=True)))
    assert frozenset().union(*found.active.values()) == frozenset(OWN_TASKS)


# --- tasks that are held for a migration (note 067) -----------------------------------------------


def test_held_tasks_are_given_to_nobody_and_warmed_up_where_they_would_run() -> None:
    leader = assignor(Ports(ends={TASK_0: 50, TASK_1: 50}))
    runs = member("x", TASK_0, TASK_1, generation=3)
    assert decided(leader, m1=runs)["m1"].active == {TASK_0, TASK_1}
    asks = member("z", draining=True, held=frozenset({TASK_0}))
    given = decided(leader, m1=runs, migrator=asks)
    assert given["m1"].active == {TASK_1}
    assert given["m1"].warmup == {TASK_0}, "a warm-up says again how far it is, a standby once"
    assert not given["migrator"].active
    assert leader.decision is not None
    assert str(TASK_0) in " ".join(leader.decision.held_back)
    let_go = replace(runs, owned=frozenset({TASK_1}), generation=4, offset_sums={TASK_0: 50})
    assert decided(leader, m1=let_go, migrator=asks)["m1"].warmup == {TASK_0}
    back = decided(leader, m1=let_go)
    assert back["m1"].active == {TASK_0, TASK_1}, "without the one who asked they run again"


def test_a_member_asks_to_hold_tasks_from_its_next_join_on() -> None:
    one = assignor()
    assert decode(one.user_data()).held == frozenset()
    one.held = frozenset({TASK_0, TASK_2})
    assert decode(one.user_data()).held == {TASK_0, TASK_2}


def test_while_tasks_are_held_no_rebalance_follows_but_for_others_on_their_way() -> None:
    tasks = {task: TaskInfo(task, (), stateful=True) for task in (TASK_0, TASK_1)}
    moving = Assignment(
        active={"x": frozenset({TASK_0})},
        withheld=frozenset({TASK_1}),
        movements=1,
        followup_ms=0,
    )
    assert holding(moving, {TASK_0}, tasks).followup_ms == 0
    assert holding(moving, {TASK_0, TASK_1}, tasks).followup_ms is None
    later = Assignment(active={"x": frozenset({TASK_0})}, movements=1, followup_ms=5_000)
    assert holding(later, {TASK_0}, tasks).followup_ms is None
    assert holding(later, (), tasks) is later
