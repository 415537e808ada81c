"""The cluster as an assignor sees it, its answer for each member, and the answer's validator. Pure.

The words (copy, hot, lag, offset sum, movement) are those of docs/design/005-elastic.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from everflow.config import AssignmentRules as AssignmentRules
from everflow.records import TaskId, TopicPartition

RUNNING = -2
"""As an offset sum: the task runs active here, nothing can be nearer to its end."""


@dataclass(frozen=True, kw_only=True)
class MemberFacts:
    """What an instance of the group says of itself.

    ``process_id`` is kept in its state folder. ``owned``: active tasks it claims, as of
    ``generation`` (the last completed, -1 = none). ``offset_sums``: its copies that do not run
    active. A task in both is not running yet, or came back without its disk: its lag counts, not
    the claim (scenario 22). ``rack`` and ``tags`` place copies apart (KIP-392, KIP-708).
    """

    process_id: str
    owned: frozenset[TaskId] = frozenset()
    generation: int = -1
    threads: int = 1
    offset_sums: Mapping[TaskId, int] = field(default_factory=dict)
    rack: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    endpoint: str = ""
    draining: bool = False
    instance_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Member(MemberFacts):
    """One instance of the group as the leader sees it."""

    member_id: str

    @property
    def order(self) -> tuple[str, str]:
        """Sort key: an instance keeps its place in the order over restarts, whatever member id it
        is given."""
        return (self.process_id, self.member_id)


@dataclass(frozen=True)
class TaskInfo:
    """What is known of a task."""

    task: TaskId
    inputs: tuple[TopicPartition, ...]
    changelogs: tuple[TopicPartition, ...] = ()
    stateful: bool = False


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """All that a decision depends on.

    ``end_sums``: log ends of a stateful task's changelogs, summed; None if they could not be read
    (X2). ``racks``: of a partition's replicas. ``held_back``: a lost member's tasks that nobody
    gets yet (``scheduled.rebalance.max.delay.ms``); ``back``: those of one that has come back, with
    its new member id.
    """

    members: tuple[Member, ...]
    tasks: Mapping[TaskId, TaskInfo]
    end_sums: Mapping[TaskId, int] | None = None
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)
    rules: AssignmentRules = field(default_factory=AssignmentRules)
    held_back: frozenset[TaskId] = frozenset()
    back: Mapping[TaskId, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The next step of the group, by member id: tasks to run, copies to follow.

    ``withheld`` are moving: their present owner gives them up now, and its follow-up rebalance
    (KIP-429) hands them over. ``target``: the ideal actives; ``movements``: roles that are not yet
    there. ``followup_ms``: until the next rebalance; None: none, 0: at once.
    """

    active: Mapping[str, frozenset[TaskId]]
    standby: Mapping[str, frozenset[TaskId]] = field(default_factory=dict)
    warmup: Mapping[str, frozenset[TaskId]] = field(default_factory=dict)
    withheld: frozenset[TaskId] = frozenset()
    target: Mapping[str, frozenset[TaskId]] = field(default_factory=dict)
    movements: int = 0
    followup_ms: int | None = None


def holding(
    assignment: Assignment, held: Collection[TaskId], tasks: Mapping[TaskId, TaskInfo]
) -> Assignment:
    """The assignment without ``held`` tasks (note 067): who would run one warms it up, if it has
    state, and so says again how far it is; its present owner gives it up. No rebalance follows but
    for other tasks on their way: it would move the generation on under the migrator, which may
    lead, and knows no lags."""
    if not held:
        return assignment
    active, warmup = dict(assignment.active), dict(assignment.warmup)
    for member_id, own in assignment.active.items():
        stopped = own.intersection(held)
        active[member_id] = own - stopped
        followed = frozenset(task for task in stopped if tasks[task].stateful)
        warmup[member_id] = warmup.get(member_id, frozenset()) | followed
    withheld = assignment.withheld.difference(held)
    return replace(
        assignment,
        active=active,
        warmup=warmup,
        withheld=withheld,
        followup_ms=assignment.followup_ms if withheld else None,
    )


def number_of_tasks(
    subtopology: int,
    topics: Iterable[str],
    partition_counts: Mapping[str, int],
    fixed: Mapping[int, int],
) -> int:
    """That of a sub-topology with state is ``fixed`` by it; any other has as many as its widest
    topic has partitions."""
    widest = max((partition_counts.get(topic, 0) for topic in topics), default=0)
    return min(widest, fixed.get(subtopology, widest))


def inputs_of(
    task: TaskId,
    topics: Iterable[str],
    partition_counts: Mapping[str, int],
    fixed: Mapping[int, int],
) -> tuple[TopicPartition, ...]:
    """Task p of n reads the partitions p, n + p, ... of each topic, as far as it has them."""
    counts = [(topic, partition_counts.get(topic, 0)) for topic in topics]
    every = fixed.get(task.subtopology) or max(1, *(count for _, count in counts))
    return tuple(
        TopicPartition(topic, partition)
        for topic, count in counts
        for partition in range(task.partition, count, every)
    )


def tasks_of(
    subtopologies: Mapping[int, Sequence[str]],
    partition_counts: Mapping[str, int],
    fixed: Mapping[int, int] = MappingProxyType({}),
) -> dict[TaskId, tuple[TopicPartition, ...]]:
    """Every task and its input partitions; topics without a known partition count are left out."""
    tasks: dict[TaskId, tuple[TopicPartition, ...]] = {}
    for index in sorted(subtopologies):
        topics = sorted(subtopologies[index])
        for partition in range(number_of_tasks(index, topics, partition_counts, fixed)):
            task = TaskId(index, partition)
            tasks[task] = inputs_of(task, topics, partition_counts, fixed)
    return tasks


def owners_of(members: Iterable[Member]) -> dict[TaskId, frozenset[str]]:
    """The owners of each task: the claim of the highest generation; equal claims all count, and
    then nobody keeps it."""
    claims: dict[TaskId, list[Member]] = defaultdict(list)
    for member in members:
        for task in member.owned:
            claims[task].append(member)
    owners: dict[TaskId, frozenset[str]] = {}
    for task, claimants in claims.items():
        newest = max(member.generation for member in claimants)
        owners[task] = frozenset(
            member.member_id for member in claimants if member.generation == newest
        )
    return owners


def validate_assignment(
    assignment: Assignment,
    members: Iterable[Member],
    tasks: Iterable[TaskId],
    held_back: Collection[TaskId] = frozenset(),
) -> list[str]:
    """What is wrong with a decision, one phrase each; empty if nothing is: every member is there
    and no other; every task is on one member, withheld or held back (I1), and on nobody but its
    live owner; a withheld one has an owner to revoke it; nobody has two roles of a task."""
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
    for task in sorted(all_tasks - set(owners) - assignment.withheld - set(held_back)):
        problems.append(f"task {task} is on nobody")
    present_owners = owners_of(known.values())
    for task in sorted(assignment.withheld):
        if task in owners:
            problems.append(f"task {task} is withheld and on {owners[task]}")
        if task not in present_owners:
            problems.append(f"task {task} is withheld but nobody owns it, so no rebalance follows")
    for task, holders in sorted(present_owners.items()):
        if task in owners and holders != {owners[task]}:
            problems.append(
                f"task {task} is given to {owners[task]} while {', '.join(sorted(holders))} still "
                f"own it"
            )
    return problems + _role_problems(assignment, all_tasks)


def _role_problems(assignment: Assignment, all_tasks: set[TaskId]) -> list[str]:
    problems = []
    for member_id in sorted({*assignment.standby, *assignment.warmup}):
        active = assignment.active.get(member_id, frozenset())
        standby = assignment.standby.get(member_id, frozenset())
        warmup = assignment.warmup.get(member_id, frozenset())
        if member_id not in assignment.active and (standby or warmup):
            problems.append(f"{member_id} is given copies but is no member")
        for task in sorted((active & standby) | (active & warmup) | (standby & warmup)):
            problems.append(f"task {task} has two roles on {member_id}")
        for task in sorted((standby | warmup) - all_tasks):
            problems.append(f"copy of task {task}, which does not exist, on {member_id}")
    return problems


TRAFFIC_COST = 10
NON_OVERLAP_COST = 1
STATELESS_TRAFFIC_COST = 1
STATELESS_NON_OVERLAP_COST = 0


@dataclass(frozen=True)
class RackCosts:
    """What it costs to read a task's partitions from each rack, in the order of ``racks``;
    ``rack_of``: place of a member's rack. Partitions of unknown racks cost nothing."""

    racks: tuple[str, ...]
    rack_of: Mapping[str, int]
    replicas: Mapping[TopicPartition, frozenset[str]]

    @staticmethod
    def of(cluster: ClusterState, members: Sequence[Member]) -> RackCosts | None:
        """None where racks are not to count, or nothing is known about them."""
        racks = tuple(sorted({member.rack for member in members}))
        if cluster.rules.rack_strategy == "none" or len(racks) < 2 or not cluster.racks:
            return None
        return RackCosts(
            racks, {member.member_id: racks.index(member.rack) for member in members}, cluster.racks
        )

    @staticmethod
    def none(members: Sequence[Member]) -> RackCosts:
        """As if all members stood in one rack, where every partition is."""
        return RackCosts(("",), {member.member_id: 0 for member in members}, {})

    def remote(self, partitions: Sequence[TopicPartition]) -> tuple[int, ...]:
        """The number of partitions without a replica in a rack, for each rack."""
        if not self.replicas:
            return (0,) * len(self.racks)
        known = [
            self.replicas[partition] for partition in partitions if self.replicas.get(partition)
        ]
        return tuple(sum(rack not in replicas for replicas in known) for rack in self.racks)


def costs_of(cluster: ClusterState, *, stateful: bool = True) -> tuple[int, int]:
    """Traffic and non-overlap cost for stateful tasks and standbys, as configured or Kafka Streams'
    defaults."""
    if not stateful:
        return STATELESS_TRAFFIC_COST, STATELESS_NON_OVERLAP_COST
    traffic, non_overlap = cluster.rules.traffic_cost, cluster.rules.non_overlap_cost
    return (
        TRAFFIC_COST if traffic is None else traffic,
        NON_OVERLAP_COST if non_overlap is None else non_overlap,
    )
