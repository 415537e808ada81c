"""Members for tests against a real broker, of which every event is kept."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from everflow.assignment.cluster_state import AssignmentRules
from everflow.kafka.group_channel import GroupSettings
from everflow.membership.assignor import Identity, MemberAssignor
from everflow.membership.member import Failed, GroupMember, MemberEvent, Revoked
from everflow.records import TaskId, TopicPartition
from everflow.testing.waiting import wait_until


class Ports:
    """Nothing on disk, no ends of changelogs and no racks."""

    def offset_sums(self) -> Mapping[TaskId, int]:
        return {}

    def refresh(self) -> None:
        pass

    def latest(self) -> Mapping[TaskId, int]:
        return {}

    def racks(self) -> Mapping[TopicPartition, frozenset[str]]:
        return {}


Event = TypeVar("Event", bound=MemberEvent)


def assignor_of(identity: Identity, subtopologies: Mapping[int, Sequence[str]]) -> MemberAssignor:
    ports, rules = Ports(), AssignmentRules(acceptable_lag=10)
    return MemberAssignor(identity, subtopologies, {}, ports.offset_sums, ports, ports.racks, rules)


class Instance:
    """A member and what it was told; gives up revoked tasks at once unless ``keeps``."""

    def __init__(self, settings: GroupSettings, assignor: MemberAssignor) -> None:
        self.told: list[MemberEvent] = []
        self.keeps = False
        self.failed: Failed | None = None
        self.member = GroupMember(settings, assignor)
        self.member.start()

    def step(self) -> None:
        while not self.member.events.empty():
            event = self.member.events.get()
            self.told.append(event)
            if isinstance(event, Failed):
                self.failed = event
            if isinstance(event, Revoked) and not self.keeps:
                self.member.release()

    def hold(self) -> None:
        """As if revoked tasks' batches still ran: it joins nothing until ``member.release``."""
        self.member._revoking.set()

    @property
    def tasks(self) -> frozenset[TaskId]:
        return self.member.owned()

    def told_of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.told if isinstance(event, kind)]


def settled(instances: Sequence[Instance], count: int) -> bool:
    for instance in instances:
        instance.step()
        assert instance.failed is None, instance.failed
    owned = [task for instance in instances for task in instance.tasks]
    assert len(owned) == len(set(owned)), "a task is on two members (I1)"
    level = max(len(i.tasks) for i in instances) - min(len(i.tasks) for i in instances) <= 1
    return len(owned) == count and level and all(instance.member.stable for instance in instances)


def history(instances: Sequence[Instance]) -> list[str]:
    return [
        f"{place}: {event}" for place, instance in enumerate(instances) for event in instance.told
    ]


def await_settled(instances: Sequence[Instance], count: int) -> None:
    wait_until(
        lambda: settled(instances, count),
        30,
        f"{count} tasks on {len(instances)} members",
        lambda: history(instances),
    )


def await_told(
    instances: Sequence[Instance],
    condition: Callable[[], object],
    what: str,
    timeout_s: float = 20.0,
) -> None:
    def look() -> bool:
        for instance in instances:
            instance.step()
        return bool(condition())

    wait_until(look, timeout_s, what, lambda: history(instances))
