"""Assignor: how long one decision takes, for groups of several sizes. No broker: the decision is a
pure function.

Each case is a group at rest into which a tenth more members come while a twentieth is gone, so that
there are tasks without an owner, surplus, cold newcomers and standbys to move: what a leader meets
when it matters.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.results import Measurement
from bench.systems import EVERFLOW
from everflow.assignment.assignor import assign
from everflow.assignment.cluster_state import AssignmentRules, ClusterState, Member, TaskInfo
from everflow.records import TaskId, TopicPartition

END = 100_000
RACKS = ("r1", "r2", "r3")


BOUND_S = 2.0
"""What the largest groups may take, whatever is to be minded."""


class SlowError(RuntimeError):
    """A decision took longer than its bound."""


@dataclass(frozen=True)
class Case:
    """A group: half of the tasks have state, ``standbys`` copies each.

    ``bound_s``: what the fastest decision may take, in CPU time: it never waits, and what else the
    machine does must not fail it.
    """

    name: str
    members: int
    tasks: int
    standbys: int = 1
    strategy: str = "none"
    tags: tuple[str, ...] = ()
    bound_s: float | None = None


ZONE_AND_HOST = ("zone", "host")
"""Hundreds of hosts, two members on each."""
CASES = (
    Case("10 members, 100 tasks", 10, 100),
    Case("100 members, 1000 tasks", 100, 1_000),
    Case("100 members, 1000 tasks, min_traffic", 100, 1_000, strategy="min_traffic"),
    Case(
        "100 members, 1000 tasks, balance_subtopology", 100, 1_000, strategy="balance_subtopology"
    ),
    Case("100 members, 1000 tasks, tags", 100, 1_000, tags=("zone",)),
    Case("1000 members, 10000 tasks", 1_000, 10_000, bound_s=BOUND_S),
    Case(
        "1000 members, 10000 tasks, no standbys, tags",
        1_000,
        10_000,
        0,
        tags=("zone",),
        bound_s=BOUND_S,
    ),
    Case(
        "1000 members, 10000 tasks, 2 standbys, tags",
        1_000,
        10_000,
        2,
        tags=("zone",),
        bound_s=BOUND_S,
    ),
    Case(
        "1000 members, 10000 tasks, min_traffic",
        1_000,
        10_000,
        strategy="min_traffic",
        bound_s=BOUND_S,
    ),
    Case(
        "1000 members, 10000 tasks, min_traffic, tags",
        1_000,
        10_000,
        1,
        "min_traffic",
        ("zone",),
        BOUND_S,
    ),
    Case(
        "1000 members, 10000 tasks, min_traffic, 2 standbys, tags",
        1_000,
        10_000,
        2,
        "min_traffic",
        ("zone",),
        BOUND_S,
    ),
    Case(
        "1000 members, 10000 tasks, min_traffic, 2 standbys, two tags",
        1_000,
        10_000,
        2,
        "min_traffic",
        ZONE_AND_HOST,
        BOUND_S,
    ),
    Case(
        "1000 members, 10000 tasks, balance_subtopology",
        1_000,
        10_000,
        strategy="balance_subtopology",
        bound_s=BOUND_S,
    ),
    Case(
        "1000 members, 10000 tasks, balance_subtopology, 2 standbys, tags",
        1_000,
        10_000,
        2,
        "balance_subtopology",
        ("zone",),
        BOUND_S,
    ),
)


@dataclass(frozen=True)
class AssignorPlan:
    """What to run: each case so often."""

    runs: int = 5
    cases: tuple[Case, ...] = CASES


def measure(plan: AssignorPlan) -> Iterator[Measurement]:
    """Seconds of each decision. SlowError after the last run of a case whose fastest decision is
    beyond its bound."""
    for case in plan.cases:
        cluster = disturbed(case)
        spent = []
        for _ in range(plan.runs):
            gc.collect()
            began, began_cpu = time.perf_counter(), time.process_time()
            assignment = assign(cluster)
            taken = time.perf_counter() - began
            spent.append(time.process_time() - began_cpu)
            note = f"{assignment.movements} movements, {len(assignment.withheld)} tasks handed over"
            yield Measurement("assignor", case.name, EVERFLOW, "", "decision", "s", taken, note)
        if case.bound_s is not None and min(spent) > case.bound_s:
            raise SlowError(f"{case.name}: {min(spent):.2f} s, the bound is {case.bound_s:g} s")


def disturbed(case: Case) -> ClusterState:
    """The group of a case after its members have changed."""
    tasks = {}
    for number in range(case.tasks):
        task = TaskId(*divmod(number, max(1, case.tasks // 10)))
        inputs = (TopicPartition(f"input-{task.subtopology}", task.partition),)
        stateful = task.subtopology % 2 == 0
        changelogs = (
            (TopicPartition(f"changelog-{task.subtopology}", task.partition),) if stateful else ()
        )
        tasks[task] = TaskInfo(task, inputs, changelogs, stateful)
    partitions = [
        partition for info in tasks.values() for partition in (*info.inputs, *info.changelogs)
    ]
    racks = {
        partition: frozenset({RACKS[number % 3], RACKS[number // 3 % 3]})
        for number, partition in enumerate(partitions)
    }
    rules = AssignmentRules(
        num_standbys=case.standbys, rack_strategy=case.strategy, rack_tags=case.tags, max_warmups=20
    )
    members = [_member(number) for number in range(case.members)]
    ends = {task: END for task, info in tasks.items() if info.stateful}
    fresh = ClusterState(
        members=tuple(members), tasks=tasks, end_sums=ends, racks=racks, rules=rules
    )
    settled = assign(fresh)
    at_rest = [
        replace(
            member,
            owned=settled.active[member.member_id],
            generation=1,
            offset_sums=dict.fromkeys(settled.standby[member.member_id], END),
        )
        for member in members
    ]
    gone = max(1, case.members // 20)
    newcomers = [_member(case.members + number) for number in range(max(1, case.members // 10))]
    return replace(fresh, members=(*at_rest[gone:], *newcomers))


def _member(number: int) -> Member:
    rack = RACKS[number % 3]
    tags = {"zone": rack, "host": f"{rack}-{number // 6}"}
    return Member(
        member_id=f"member-{number:05}",
        process_id=f"process-{number:05}",
        threads=2,
        rack=rack,
        tags=tags,
    )
