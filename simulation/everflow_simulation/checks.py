"""Checks the invariants while the simulation runs; a violation is noted and stops the run.

The truth is what the simulated world knows (disks, log, who lives), not what the code under test
believes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everflow.assignment.cluster_state import Assignment, ClusterState
from everflow.instance.tasks.task import TaskState
from everflow.membership.member import Assigned, Failed, Lost, MemberEvent, Revoked
from everflow.protocol.messages import BatchRequest
from everflow.records import CommittedOffset, TaskId, TopicPartition
from everflow.retry import FIRST_PAUSE_MS
from everflow_simulation.group_coordinator import GroupCoordinator
from everflow_simulation.history import History
from everflow_simulation.instance import KILL_WORKERS_MS, SimulatedInstance
from everflow_simulation.log import Fold, SimulatedLog, Transaction, fold_of
from everflow_simulation.recovery import FENCE_PAUSE_MS
from everflow_simulation.settings import SimulationSettings

PAUSE_SLACK_MS = 30.0
"""Beyond what can be derived, I4 allows for what is read from another thread's poll or wakes up
with the next turn of a loop."""
RECOVERY_REQUESTS = 3
"""Of one recovery: committed offsets, ends, stable ends."""


class InvariantError(AssertionError):
    """An invariant does not hold. ``name`` is its name in the design (I1, I3, ...), or
    ``liveness``."""

    def __init__(self, name: str, what: str, seed: int, at_ms: float, history: str) -> None:
        super().__init__(
            f"{name} violated at {at_ms / 1000:.3f} s with seed {seed}: {what}\n{history}"
        )
        self.name, self.what, self.seed = name, what, seed


@dataclass
class TaskPause:
    """The longest time that one task that stayed went without a commit, while it had input."""

    task: TaskId
    ms: float
    allowed_ms: float
    at_ms: float


@dataclass
class _Flow:
    """Commits of one task by one owner (instance, life, ownership), without a break."""

    owner: str
    committed_ms: float
    longest_batch_ms: float
    disturbed: bool = False
    refused_ms: float = 0.0
    """What has to be waited for after an attempt since then that was refused."""


@dataclass(kw_only=True)
class Checks:
    """See the module. ``violations`` are (name, what); the simulation raises the first.
    ``restore_slowdown``: the world's."""

    settings: SimulationSettings
    history: History
    coordinator: GroupCoordinator
    log: SimulatedLog
    restore_slowdown: Sequence[float] = (1.0,)
    violations: list[tuple[str, str]] = field(default_factory=list)
    claims: dict[TaskId, dict[str, SimulatedInstance]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    batches: int = 0
    commits: int = 0
    worst_pause: TaskPause | None = None
    records: int = 0
    _flows: dict[TaskId, _Flow] = field(default_factory=dict)
    _disturbed_until_ms: float = -1.0

    # --- I1 ---------------------------------------------------------------------------------------

    def claimed(self, instance: SimulatedInstance, event: MemberEvent) -> None:
        """I1: within one generation a task is claimed by one living member at most."""
        name = instance.name
        if isinstance(event, Assigned):
            for task in event.tasks:
                for other in list(self.claims[task].values()):
                    there = other.member.metadata().generation
                    # Who was replaced (KIP-345) is no member any more.
                    member_id = other.member.metadata().member_id
                    if (
                        other is not instance
                        and there == event.generation
                        and member_id in self.coordinator.members
                    ):
                        self._violated(
                            "I1",
                            (
                                f"{task} is assigned to {name} while {other.name} has it in "
                                f"generation "
                                f"{there}"
                            ),
                        )
                self.claims[task][name] = instance
        elif isinstance(event, Revoked | Lost):
            for task in event.tasks:
                self.claims[task].pop(name, None)
        elif isinstance(event, Failed):
            for holders in self.claims.values():
                holders.pop(name, None)

    # --- I5 ---------------------------------------------------------------------------------------

    def decided(self, cluster: ClusterState, assignment: Assignment) -> None:
        """I1 and I5 on the assignment log: one owner each, and none that is cold while another
        member's copy is hot."""
        seen: dict[TaskId, str] = {}
        for member_id, tasks in assignment.active.items():
            for task in tasks:
                if task in seen:
                    self._violated("I1", f"{task} is given to {seen[task]} and to {member_id}")
                seen[task] = member_id
        if cluster.end_sums is None:
            return
        acceptable = cluster.rules.acceptable_lag
        hot: dict[TaskId, set[str]] = defaultdict(set)
        newest: dict[TaskId, int] = {}
        for member in cluster.members:
            for task in member.owned:
                newest[task] = max(member.generation, newest.get(task, -1))
        for member in cluster.members:
            for task in member.owned:
                if task not in member.offset_sums and member.generation == newest[task]:
                    hot[task].add(member.member_id)
            for task, position in member.offset_sums.items():
                end = cluster.end_sums.get(task, 0)
                if (
                    position <= end + acceptable
                    and end - position <= acceptable
                    and (position > 0 or end == 0)
                ):
                    hot[task].add(member.member_id)
        for task, member_id in seen.items():
            end = cluster.end_sums.get(task, 0)
            if (
                cluster.tasks[task].stateful
                and end > acceptable
                and hot[task]
                and member_id not in hot[task]
            ):
                self._violated(
                    "I5",
                    (
                        f"{task} is given to {member_id}, which is cold, while "
                        f"{', '.join(sorted(hot[task]))} is hot"
                    ),
                )

    # --- I3 ---------------------------------------------------------------------------------------

    def committed(
        self,
        before: Mapping[TopicPartition, CommittedOffset],
        after: Mapping[TopicPartition, CommittedOffset],
        transaction: Transaction,
    ) -> None:
        """I3: each commit goes on where the last one ended, names all inputs of each task, moved or
        not, and the store it leaves is the fold of all of the input."""
        self.commits += 1
        missing = {
            tp for inputs in self.settings.tasks.values() if after.keys() & inputs for tp in inputs
        } - after.keys()
        if missing:
            self._violated(
                "I3", f"{transaction.name} of {transaction.who} says nothing of {sorted(missing)}"
            )
        for tp, offset in after.items():
            start, end = transaction.ranges[tp]
            stood = before[tp].offset if tp in before else 0
            if start != stood:
                lost = "lost" if start > stood else "counted twice"
                who = f"{transaction.name} of {transaction.who}"
                self._violated(
                    "I3", f"{tp}: {who} commits [{start}, {end}) but {stood} was committed: {lost}"
                )
            if offset.offset != end:
                self._violated(
                    "I3",
                    (
                        f"{tp}: {transaction.name} commits offset {offset.offset} for the range "
                        f"[{start}, {end})"
                    ),
                )
            self.records += end - start
        for changelog, written in transaction.changes.items():
            for tp, content in written.content.items():
                want = fold_of(
                    0, after[tp].offset if tp in after else before[tp].offset if tp in before else 0
                )
                if content != want:
                    self._violated(
                        "I3",
                        (
                            f"{changelog}: {transaction.who} writes {content}, the fold of {tp} is "
                            f"{want}"
                        ),
                    )

    def stores(self, instances: list[SimulatedInstance]) -> None:
        """I2: in a group at rest the store of every task is the fold of its committed input."""
        for instance in instances:
            for thread in instance.threads:
                if thread.batch_since_ms is not None:
                    continue
                for task in thread.tasks.values():
                    if task.state is not TaskState.RUNNING:
                        continue
                    for place in task.stores:
                        self._store(
                            instance, place.path.parts[0], instance.disk.store(place.path).content
                        )

    def _store(
        self, instance: SimulatedInstance, task: str, content: Mapping[TopicPartition, Fold]
    ) -> None:
        for tp in self.settings.tasks[TaskId.parse(task)]:
            offset = self.log.decided[tp].offset if tp in self.log.decided else 0
            if content.get(tp, Fold()) != fold_of(0, offset):
                found = f"store of {task} on {instance.name} holds {content.get(tp)}"
                self._violated("I2", f"{found}, not the fold of {tp} up to {offset}")

    # --- I4 ---------------------------------------------------------------------------------------

    def batch(
        self,
        instance: SimulatedInstance,
        request: BatchRequest,
        duration_ms: float,
        committed: bool,
    ) -> None:
        """I4: a task that stays is never longer without a commit than two of its micro-batches,
        whatever the group does.

        From one commit to the next: nothing may have arrived (``idle_ms``); one batch that does not
        commit it, because a new generation refused it, or because the task is dealt to another
        thread of the instance, whose batch in flight ends first; what a refused one leaves behind
        (`_after_refusal_ms`); the batch that commits. To wait for the markers of the transaction
        before is part of a batch: its own transaction cannot begin earlier.
        """
        self.batches += 1
        now = self.history.now()
        for context in request.tasks:
            task = context.task
            flow = self._flows.get(task)
            owner = f"{instance.name}/{instance.life}/{instance.book.epoch(task)}"
            if flow is None or flow.owner != owner:
                if committed:
                    self._flows[task] = _Flow(owner, now, duration_ms)
                continue
            flow.longest_batch_ms = max(flow.longest_batch_ms, duration_ms)
            if not committed:  # the second refusal in a row is allowed no more than the first
                flow.refused_ms = max(flow.refused_ms, self._after_refusal_ms(request))
                continue
            gap = now - flow.committed_ms
            allowed = (
                2 * flow.longest_batch_ms + self.settings.idle_ms + flow.refused_ms + PAUSE_SLACK_MS
            )
            if not flow.disturbed and flow.committed_ms > self._disturbed_until_ms:
                if (
                    self.worst_pause is None
                    or gap - allowed > self.worst_pause.ms - self.worst_pause.allowed_ms
                ):
                    self.worst_pause = TaskPause(task, gap, allowed, now)
                if gap > allowed and self.settings.input_rate > 0:
                    self._violated(
                        "I4",
                        (
                            f"{task} stayed on {instance.name} and paused for {gap:.0f} ms, "
                            f"allowed "
                            f"{allowed:.0f} ms"
                        ),
                    )
            self._flows[task] = _Flow(owner, now, duration_ms)

    def _after_refusal_ms(self, request: BatchRequest) -> float:
        """What D6 waits for before a refused batch may run again.

        It aborts its transaction, and a transactional id is free again only when the last marker of
        that has landed: the fence asks until then. Then it replays what it had written (its stores
        stand where the batch before left them), and pauses. Its own markers have landed, and nobody
        else writes for tasks that stay: nothing else is pending.
        """
        timings = self.settings.timings
        written = sum(end - start for start, end in request.ranges.values())
        replay = written / timings.restore_rate * 1000 * self.restore_slowdown[0]
        requests = RECOVERY_REQUESTS * 2 * timings.network_ms[1]
        return (
            KILL_WORKERS_MS
            + timings.marker_ms[1]
            + FENCE_PAUSE_MS
            + requests
            + replay
            + FIRST_PAUSE_MS
        )

    def disturbed(self, tasks: frozenset[TaskId]) -> None:
        """A fault of another kind hits these tasks: their present gap says nothing about
        rebalances."""
        for task in tasks:
            if task in self._flows:
                self._flows[task].disturbed = True

    def all_disturbed(self, ms: float) -> None:
        """Nobody can commit for so long from now on."""
        self._disturbed_until_ms = max(self._disturbed_until_ms, self.history.now() + ms)

    def _violated(self, name: str, what: str) -> None:
        self.history.add("check", f"{name} VIOLATED: {what}")
        self.violations.append((name, what))
