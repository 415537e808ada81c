"""A group around the real assignor: disks, restores that take ticks, leaders with old figures."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from everflow.assignment.assignor import assign, place
from everflow.assignment.cluster_state import (
    Assignment,
    AssignmentRules,
    ClusterState,
    Member,
    TaskInfo,
    owners_of,
)
from everflow.assignment.lags import Lags
from everflow.records import TaskId, TopicPartition

RACKS = ("r1", "r2", "r3")


@dataclass
class Instance:
    """A process: its claims, what runs already, what it follows, its disk (task -> position)."""

    process_id: str
    threads: int = 1
    rack: str = ""
    zone: str = ""
    disk: dict[TaskId, int] = field(default_factory=dict)
    active: frozenset[TaskId] = frozenset()
    running: set[TaskId] = field(default_factory=set)
    following: frozenset[TaskId] = frozenset()
    generation: int = -1
    draining: bool = False


def tasks_of_counts(
    stateful: Sequence[int], stateless: Sequence[int], rng: random.Random
) -> dict[TaskId, TaskInfo]:
    """Sub-topologies of so many tasks each, the stateful ones first."""
    tasks = {}
    for index, count in enumerate([*stateful, *stateless]):
        has_state = index < len(stateful)
        for partition in range(count):
            changelogs = (TopicPartition(f"changelog-{index}", partition),) if has_state else ()
            inputs = (TopicPartition(f"input-{index}", partition),)
            tasks[TaskId(index, partition)] = TaskInfo(
                TaskId(index, partition), inputs, changelogs, has_state
            )
    return tasks


class Group:
    """Members, log ends and decisions so far; each is checked against what is on the disks."""

    def __init__(
        self,
        tasks: Mapping[TaskId, TaskInfo],
        rules: AssignmentRules,
        rng: random.Random,
        records: int = 30_000,
    ) -> None:
        self.tasks = tasks
        self.rules = rules
        self.rng = rng
        self.ends = {
            task: rng.choice([records, records // 2, 50_000])
            for task, info in tasks.items()
            if info.stateful
        }
        self.seen_ends: dict[TaskId, int] | None = dict(self.ends)
        self.instances: dict[str, Instance] = {}
        self.gone: dict[str, Instance] = {}
        self.generation = 0
        self.history: list[str] = []
        partitions = [one for info in tasks.values() for one in (*info.inputs, *info.changelogs)]
        self.racks = {partition: frozenset(rng.sample(RACKS, 2)) for partition in partitions}
        self.last: Assignment | None = None

    # --- events -----------------------------------------------------------------------------------

    def join(self, process_id: str, threads: int = 1) -> None:
        """A new instance, or one that was gone with the disk it left."""
        rack = self.rng.choice(RACKS)
        instance = self.gone.pop(process_id, None) or Instance(process_id, threads, rack, rack)
        self.instances[process_id] = instance
        self.history.append(f"{process_id} joins, disk {_short(instance.disk)}")

    def leave(self, process_id: str) -> None:
        """Killed or gone: its disk stays, its claims do not."""
        instance = self.instances.pop(process_id)
        instance.active, instance.following, instance.generation, instance.draining = (
            frozenset(),
            frozenset(),
            -1,
            False,
        )
        instance.running.clear()
        self.gone[process_id] = instance
        self.history.append(f"{process_id} is gone")

    def restart(self, process_id: str, *, with_disk: bool) -> None:
        """A static member back within its session, with its assignment, whatever its disk has."""
        instance = self.instances[process_id]
        instance.running = {task for task in instance.active if not self.tasks[task].stateful}
        if not with_disk:
            instance.disk.clear()
        self.history.append(f"{process_id} restarts {'with' if with_disk else 'without'} its disk")

    def drain(self, process_id: str) -> None:
        self.instances[process_id].draining = True
        self.history.append(f"{process_id} drains")

    def tick(self, records: int = 2**40) -> None:
        """Copies restore so many records, running tasks write; the leader may read the ends."""
        for instance in self.instances.values():
            for task in instance.running & set(self.ends):
                self.ends[task] += self.rng.randint(0, 200)
        for instance in self.instances.values():
            for task in (instance.active | instance.following) & set(self.ends):
                reached = min(self.ends[task], instance.disk.get(task, 0) + records)
                instance.disk[task] = self.ends[task] if task in instance.running else reached
                if task in instance.active and instance.disk[task] == self.ends[task]:
                    instance.running.add(task)

    # --- one rebalance ----------------------------------------------------------------------------

    def cluster(self) -> ClusterState:
        members = []
        for name, one in self.instances.items():
            stateful = {t for t in (*one.disk, *one.active) if self.tasks[t].stateful} - one.running
            sums = {task: one.disk.get(task, 0) for task in stateful}
            tags = {"zone": one.zone}
            members.append(
                Member(
                    member_id=f"m-{name}",
                    process_id=name,
                    owned=one.active,
                    generation=one.generation,
                    threads=one.threads,
                    offset_sums=sums,
                    rack=one.rack,
                    tags=tags,
                    draining=one.draining,
                )
            )
        return ClusterState(
            members=tuple(members),
            tasks=self.tasks,
            end_sums=self.seen_ends,
            racks=self.racks,
            rules=self.rules,
        )

    def rebalance(self) -> Assignment:
        """One generation; raises AssertionError, with the history, where a rule is broken."""
        cluster = self.cluster()
        assignment = assign(cluster)
        self.history.append(_line(cluster, assignment))
        self._check(cluster, assignment)
        self.generation += 1
        for name, one in self.instances.items():
            given = assignment.active[f"m-{name}"]
            one.running -= one.active - given
            one.active, one.generation = given, self.generation
            one.following = assignment.standby[f"m-{name}"] | assignment.warmup[f"m-{name}"]
            one.running |= {
                task
                for task in given
                if not self.tasks[task].stateful or one.disk.get(task, 0) == self.ends[task]
            }
            one.disk.update({t: self.ends[t] for t in one.running if self.tasks[t].stateful})
        self.last = assignment
        return assignment

    def _check(self, cluster: ClusterState, assignment: Assignment) -> None:
        mixed = list(cluster.members)
        self.rng.shuffle(mixed)
        assert assign(replace(cluster, members=tuple(mixed))) == assignment, self.told(
            "I8: the order of members matters"
        )
        owners = owners_of(cluster.members)
        _, placement = place(Lags(cluster))
        for task in assignment.withheld:
            assert owners[task] != {placement.active[task]}, self.told(f"I4: {task} does not move")
        if self.last is not None and self.last.followup_ms == 0 and self._undisturbed(owners):
            assert not self.last.withheld & assignment.withheld, self.told("I4: withheld twice")
        active = {task: name for name in self.instances for task in assignment.active[f"m-{name}"]}
        count = sum(len(assignment.active[f"m-{name}"]) for name in self.instances)
        assert len(active) == count, self.told("I1: a task is active twice")
        assert set(active) | assignment.withheld == set(self.tasks), self.told("I1: a task is gone")
        if self.seen_ends == self.ends:
            for task in set(active) & set(self.ends):
                hot = {name for name in self.instances if self._hot(name, task)}
                assert not hot or active[task] in hot, self.told(
                    f"I5: {task} goes to {active[task]} though {hot} are hot"
                )

    def _undisturbed(self, owners: Mapping[TaskId, frozenset[str]]) -> bool:
        assert self.last is not None
        return all(
            owners.get(task, frozenset()) == {member}
            for member, tasks in self.last.active.items()
            for task in tasks
        )

    def _hot(self, name: str, task: TaskId) -> bool:
        one = self.instances[name]
        return (
            task in one.running
            or self.ends[task] - one.disk.get(task, 0) <= self.rules.acceptable_lag
        )

    # --- until nothing is left to do --------------------------------------------------------------

    def settle(self, limit: int) -> int:
        """Rebalances, with complete restores between them, until no follow-up is asked for; how
        many it took.

        The immediate second halves of hand-overs (KIP-429) are not counted. Without racks there is
        never a third; with them an exchange may open a cheaper one.
        """
        for rounds in range(1, limit + 1):
            self.seen_ends = dict(self.ends)
            assignment = self.rebalance()
            for _ in range(2 if self.rules.rack_strategy == "none" else 10):
                if assignment.followup_ms == 0:
                    assignment = self.rebalance()
            assert assignment.followup_ms != 0, self.told("hand-overs without an end")
            if assignment.followup_ms is None:
                return rounds
            self.tick()
        raise AssertionError(self.told(f"not settled after {limit} rounds"))

    def assert_balanced(self, slack: int = 1) -> None:
        """At rest: everything at its ideal place, per thread even, all standbys there, nothing on
        draining members."""
        assert self.last is not None
        last = self.last
        assert last.active == last.target, self.told("at rest but not at the ideal")
        assert not any(last.warmup.values()), self.told("at rest but somebody warms up")
        takers = [one for one in self.instances.values() if not one.draining] or list(
            self.instances.values()
        )
        for stateful_only in (False, True):
            counted = set(self.ends if stateful_only else self.tasks)
            loads = {one.process_id: (len(one.active & counted), one.threads) for one in takers}
            for number, threads in loads.values():
                for other, other_threads in loads.values():
                    assert (number - slack) / threads <= other / other_threads, self.told(
                        f"out of balance: {loads}"
                    )
        followers = [task for tasks in last.standby.values() for task in tasks]
        wanted = min(self.rules.num_standbys, len(takers) - 1)
        for task in self.ends:
            assert followers.count(task) == wanted, self.told(f"standbys of {task}")

    def told(self, problem: str) -> str:
        return "\n".join([problem, str(self.rules), *self.history])


def _short(tasks: object) -> str:
    return "{" + " ".join(map(str, sorted(tasks))) + "}"  # type: ignore[call-overload]


def _line(cluster: ClusterState, assignment: Assignment) -> str:
    parts = [
        (
            f"  moves {assignment.movements}, follow-up {assignment.followup_ms}, withheld "
            f"{_short(assignment.withheld)}"
        )
    ]
    for member in sorted(cluster.members, key=lambda member: member.order):
        one = member.member_id
        sums = {str(task): total for task, total in sorted(member.offset_sums.items())}
        after = f"active {_short(assignment.active[one])} standby {_short(assignment.standby[one])}"
        parts.append(
            f"    {one}: owned {_short(member.owned)} sums "
            f"{sums}{' drains' if member.draining else ''}"
        )
        parts.append(
            f"      -> {after} warm-up {_short(assignment.warmup[one])}, ideal "
            f"{_short(assignment.target[one])}"
        )
    return "\n".join(parts)
