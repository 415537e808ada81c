"""What two instances and their leader tell each other in rebalances of every kind, as bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from everflow.assignment.cluster_state import AssignmentRules
from everflow.assignment.user_data import UserData, decode, decode_assignment
from everflow.membership.assignor import Claims, Identity, MemberAssignor
from everflow.records import TaskId, TopicPartition
from unit.manual_clock import ManualClock

READS = {0: ("in",), 1: ("app-again-repartition",)}
LOGS = {0: ("app-counts-changelog",), 1: ("app-again-changelog",)}
PARTITIONS = 2
COUNTS = {topic: PARTITIONS for topics in READS.values() for topic in topics}
LINES = ("sub-topology 0 has key_value store counts", "sub-topology 0 reads topic in")
OTHER_LINES = (*LINES, "sub-topology 0 reads topic other")
TASKS = frozenset(TaskId(index, number) for index in READS for number in range(PARTITIONS))
END = 100_000
HOLDS = "held" in {one.name for one in dataclasses.fields(UserData)}
"""False: of a version before tasks could be held, and inputs grow."""


class Instance:
    """An assignor, and what it would know of its disk and of the changelogs."""

    def __init__(
        self, process_id: str, standbys: int, lines: tuple[str, ...] = LINES, **about: Any
    ) -> None:
        self.owned: frozenset[TaskId] = frozenset()
        self.generation = -1
        self.sums: dict[TaskId, int] = {}
        more: dict[str, Any] = {"tasks": dict.fromkeys(READS, PARTITIONS)} if HOLDS else {}
        self.assignor = MemberAssignor(
            Identity(process_id=process_id, topology=lines, **about),
            READS,
            LOGS,
            lambda: self.sums,
            self,
            lambda: {TopicPartition("in", 0): frozenset({"east"})},
            AssignmentRules(num_standbys=standbys),
            clock=ManualClock(),
            first_nonce=sum(process_id.encode()),
            **more,
        )
        self.assignor.bind(lambda: Claims(self.owned, self.generation))

    def refresh(self) -> None:
        pass

    def latest(self) -> Mapping[TaskId, int] | None:
        return dict.fromkeys(TASKS, END)


class Group:
    """Rebalances, one after the other: ``told`` has a row of each."""

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.told: list[dict[str, Any]] = []
        self.generation = 0

    def rebalance(
        self,
        situation: str,
        counts: Mapping[str, int] = COUNTS,
        more: Mapping[str, bytes] | None = None,
    ) -> None:
        """The first member leads."""
        said = {name: one.assignor.user_data() for name, one in self.instances.items()}
        said |= more or {}
        leader = next(iter(self.instances.values())).assignor
        answers = leader.assign(said, counts)
        self.generation += 1
        for name, one in self.instances.items():
            answer = one.assignor.answer(answers[name].user_data)
            if answer.error == 0:
                one.owned, one.generation = answer.active, self.generation
        self.told.append(
            {
                "situation": situation,
                "counts": dict(counts),
                "said": {name: blob.hex() for name, blob in said.items()},
                "answers": {name: one.user_data.hex() for name, one in answers.items()},
                "given": {
                    name: sorted(f"{tp.topic}-{tp.partition}" for tp in one.partitions)
                    for name, one in answers.items()
                },
                "read": {
                    name: plain(decode(blob)) for name, blob in said.items() if blob != STRANGE
                },
                "read_answers": {
                    name: plain(decode_assignment(one.user_data)) for name, one in answers.items()
                },
            }
        )


STRANGE = b"another program's"


def rebalances() -> list[dict[str, Any]]:
    """Of groups without and with a standby of each task."""
    return [row for standbys in (0, 1) for row in _through(standbys)]


def _through(standbys: int) -> list[dict[str, Any]]:
    """Of a group that begins, hands tasks over, grows, is held, drains, and ends."""
    group = Group()
    one = group.instances["m1"] = Instance(
        "one",
        standbys,
        threads=2,
        rack="east",
        tags={"zone": "a"},
        endpoint="one:1",
        instance_id="s1",
    )
    group.rebalance("the first joins")
    two = group.instances["m2"] = Instance("two", standbys, endpoint="two:1", rack="west")
    group.rebalance("another joins, and warms up")
    two.sums = dict.fromkeys(sorted(TASKS)[:2], END - 1)
    group.rebalance("copies are hot: tasks are handed over")
    group.rebalance("tasks are given on")
    one.sums = dict.fromkeys(TASKS - one.owned, END)
    two.sums = dict.fromkeys(TASKS - two.owned, END - 7)
    group.rebalance("nothing is left to move")
    group.rebalance("a topic is not there", {**COUNTS, "in": 0})
    if HOLDS:
        group.rebalance("an input has grown", {**COUNTS, "in": 2 * PARTITIONS})
        two.assignor.held = frozenset(sorted(TASKS)[:1])
        group.rebalance("a task is held")
        two.assignor.held = frozenset()
    others = {"m3": Instance("three", standbys, OTHER_LINES), "m4": Instance("two", standbys)}
    blobs = {name: other.assignor.user_data() for name, other in others.items()}
    group.rebalance(
        "another program, a copied folder, a strange member", COUNTS, {**blobs, "m5": STRANGE}
    )
    two.assignor.draining = True
    group.rebalance("one drains")
    one.assignor.shutting_down_all = True
    group.rebalance("all are asked to end")
    return group.told


def plain(value: Any) -> Any:
    """As JSON has it: of a record its fields by name, tasks by name and in order."""
    if dataclasses.is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in sorted(value.items(), key=str)}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
