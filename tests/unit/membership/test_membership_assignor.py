"""The glue between the group protocol and the pure assignor, and what errors of the client mean."""

from __future__ import annotations

import kafka.errors as client_errors
import pytest

from everflow.assignment.cluster_state import Assignment
from everflow.assignment.user_data import UserData, decode, encode
from everflow.errors import EverflowError, FatalError, RetriableError, TaskMigratedError
from everflow.kafka.group_channel import classify
from everflow.membership.assignor import TaskAssignor
from everflow.records import TaskId, TopicPartition


def test_each_join_sends_other_bytes_and_the_present_tasks() -> None:
    assignor = TaskAssignor("p-1", {0: ["a"]}, threads=2)
    held = {TaskId(0, 1)}
    assignor.bind(lambda: frozenset(held))
    assignor.completed(7)
    first, second = assignor.user_data(), assignor.user_data()
    assert first != second
    assert decode(first) == UserData("p-1", frozenset({TaskId(0, 1)}), 7, 2, 1)
    held.clear()
    assert decode(assignor.user_data()).owned == frozenset()


def test_a_task_s_partitions_go_to_one_member_and_moving_ones_to_none() -> None:
    assignor = TaskAssignor("p-1", {0: ["a", "b"]})
    members = {
        "m1": encode(UserData("x", frozenset({TaskId(0, 0), TaskId(0, 1)}), 3)),
        "m2": encode(UserData("y")),
    }
    assert assignor.assign(members, {"a": 2, "b": 2}) == {
        "m1": [TopicPartition("a", 0), TopicPartition("b", 0)],
        "m2": [],
    }


def test_a_decision_against_the_rules_is_not_sent() -> None:
    assignor = TaskAssignor("p", {0: ["a"]}, decide=lambda members, tasks: Assignment({m.member_id: frozenset() for m in members}))
    with pytest.raises(FatalError, match="0_0 is on nobody"):
        assignor.assign({"m1": encode(UserData("x"))}, {"a": 1})


@pytest.mark.parametrize(
    ("failure", "expected", "says"),
    [
        (client_errors.FencedInstanceIdError("node-1"), FatalError, "group.instance.id"),
        (client_errors.InconsistentGroupProtocolError(), FatalError, "application.id"),
        (client_errors.GroupAuthorizationFailedError("g"), FatalError, "joining"),
        (client_errors.UnknownMemberIdError(), TaskMigratedError, "evicted"),
        (client_errors.IllegalGenerationError(), TaskMigratedError, "evicted"),
        (client_errors.KafkaTimeoutError(), RetriableError, "joining"),
        (client_errors.NodeNotReadyError("1"), RetriableError, "joining"),
    ],
)
def test_client_errors_become_reactions(failure: Exception, expected: type[EverflowError], says: str) -> None:
    error = classify(failure, "joining")
    assert type(error) is expected
    assert says in str(error)
