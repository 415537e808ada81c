"""What an assignor decides from and decides: members and tasks in, one assignment per member out. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from everflow.records import TaskId, TopicPartition


@dataclass(frozen=True)
class Member:
    """One instance of the group as the leader sees it.

    ``owned`` are the tasks it says it holds, as of ``generation`` (the last generation it has completed, -1 = none).
    """

    member_id: str
    process_id: str
    owned: frozenset[TaskId] = frozenset()
    generation: int = -1

    @property
    def order(self) -> tuple[str, str]:
        """Sort key: an instance keeps its place in the order over restarts, whatever member id it is given."""
        return (self.process_id, self.member_id)


@dataclass(frozen=True)
class Assignment:
    """The next step of the group: tasks per member, and the tasks nobody gets in this generation.

    ``withheld`` are moving: their present owner gives them up now, and its follow-up rebalance (KIP-429) hands
    them to the member of ``target``.
    """

    active: Mapping[str, frozenset[TaskId]]
    withheld: frozenset[TaskId] = frozenset()
    target: Mapping[str, frozenset[TaskId]] = field(default_factory=dict)


def tasks_of(
    subtopologies: Mapping[int, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[TaskId, tuple[TopicPartition, ...]]:
    """Every task and its input partitions: sub-topology index x partition over its source topics.

    Topics whose partition count is unknown are left out: the rebalance that follows their creation adds them.
    """
    tasks: dict[TaskId, tuple[TopicPartition, ...]] = {}
    for index in sorted(subtopologies):
        counts = {topic: partition_counts.get(topic, 0) for topic in sorted(subtopologies[index])}
        for partition in range(max(counts.values(), default=0)):
            tasks[TaskId(index, partition)] = tuple(
                TopicPartition(topic, partition) for topic, count in counts.items() if partition < count
            )
    return tasks


def owners_of(members: Iterable[Member]) -> dict[TaskId, frozenset[str]]:
    """Who holds each task: the claim of the highest generation; equal claims all count, and then nobody keeps it."""
    claims: dict[TaskId, list[Member]] = defaultdict(list)
    for member in members:
        for task in member.owned:
            claims[task].append(member)
    owners: dict[TaskId, frozenset[str]] = {}
    for task, claimants in claims.items():
        newest = max(member.generation for member in claimants)
        owners[task] = frozenset(member.member_id for member in claimants if member.generation == newest)
    return owners


def validate_assignment(assignment: Assignment, members: Iterable[Member], tasks: Iterable[TaskId]) -> list[str]:
    """What is wrong with a decision, one phrase each; empty if nothing is.

    Checked: every member is there and no other; every task is on exactly one member or withheld (I1); a task that
    another live member still owns is on nobody else; a withheld task has an owner whose revocation brings the
    follow-up rebalance.
    """
    known = {member.member_id: member for member in members}
    all_tasks = set(tasks)
    problems = []
    if set(assignment.active) != set(known):
        problems.append(f"members {sorted(set(assignment.active) ^ set(known))} differ")
    owners: dict[TaskId, str] = {}
    for member_id, active in assignment.active.items():
        for task in sorted(active):
            if task in owners:
                problems.append(f"task {task} is on {owners[task]} and on {member_id}")
            owners[task] = member_id
    for task in sorted(set(owners) - all_tasks):
        problems.append(f"task {task} does not exist")
    for task in sorted(all_tasks - set(owners) - assignment.withheld):
        problems.append(f"task {task} is on nobody")
    held = owners_of(known.values())
    for task in sorted(assignment.withheld):
        if task in owners:
            problems.append(f"task {task} is withheld and on {owners[task]}")
        if task not in held:
            problems.append(f"task {task} is withheld but nobody owns it, so no rebalance follows")
    for task, holders in sorted(held.items()):
        if task in owners and holders != {owners[task]}:
            problems.append(f"task {task} is given to {owners[task]} while {', '.join(sorted(holders))} still own it")
    return problems
