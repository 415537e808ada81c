"""The host map: sent by the leader, or read from the group once per generation."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from everflow.assignment.user_data import (
    AssignmentData,
    HostTasks,
    UserData,
    encode,
    encode_assignment,
)
from everflow.clock import ManualClock
from everflow.errors import RetriableError
from everflow.instance.query.queries import RETRY_MS, HostMap
from everflow.kafka.group_channel import GroupSettings
from everflow.records import TaskId

HOSTS = {
    "a:1": HostTasks(frozenset({TaskId(0, 0)}), frozenset({TaskId(0, 1)})),
    "b:1": HostTasks(frozenset({TaskId(0, 1)})),
}


GROUP = GroupSettings(bootstrap_servers="broker:1", group_id="app")


class Group:
    """The members of a group as the coordinator describes them."""

    def __init__(self) -> None:
        self.hosts = HOSTS
        self.asked = 0
        self.error: RetriableError | None = None

    def describe(self, settings: GroupSettings) -> Iterable[tuple[bytes, bytes]]:
        assert settings is GROUP
        self.asked += 1
        if self.error is not None:
            raise self.error
        return [
            (
                encode(UserData(process_id=host, endpoint=host)),
                encode_assignment(AssignmentData(active=tasks.active, standby=tasks.standby)),
            )
            for host, tasks in self.hosts.items()
        ]


def host_map(
    describe: Callable[[GroupSettings], Iterable[tuple[bytes, bytes]]],
    clock: ManualClock | None = None,
) -> HostMap:
    made = HostMap(clock or ManualClock(), describe)
    made.group = GROUP
    return made


@pytest.fixture
def group() -> Group:
    return Group()


def test_a_map_that_was_sent_is_not_read(group: Group) -> None:
    hosts = host_map(group.describe)
    assert hosts.hosts() is None
    hosts.replace(1, HOSTS)
    assert hosts.hosts() == HOSTS
    hosts.replace(2, {})
    assert hosts.hosts() == {}
    assert group.asked == 0


def test_a_map_that_was_left_out_is_read_once_per_generation(group: Group) -> None:
    hosts = host_map(group.describe)
    for generation in (1, 2):
        hosts.replace(generation, None)
        assert hosts.hosts() == hosts.hosts() == HOSTS
        assert group.asked == generation


def test_a_failure_is_not_known_for_a_moment(group: Group) -> None:
    clock = ManualClock()
    hosts = host_map(group.describe, clock)
    hosts.replace(1, None)
    group.error = RetriableError("no answer")
    assert hosts.hosts() is hosts.hosts() is None
    assert group.asked == 1
    group.error = None
    clock.advance(RETRY_MS)
    assert hosts.hosts() == HOSTS


def test_a_rebalance_during_the_reading_wins(group: Group) -> None:
    hosts: HostMap

    def overtaken(settings: GroupSettings) -> Iterable[tuple[bytes, bytes]]:
        described = group.describe(settings)
        hosts.replace(2, {"new:1": HostTasks()})
        return described

    hosts = host_map(overtaken)
    hosts.replace(1, None)
    assert hosts.hosts() == {"new:1": HostTasks()}
