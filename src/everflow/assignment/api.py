"""What an assignor of one's own gets and answers, what is checked, and helpers (KIP-924). Pure.

A ``TaskAssignor`` replaces ``target`` and ``refine``; handing over in two steps (KIP-429) stays
everflow's. Nothing stops an own assignor from giving a task to a cold instance: see
``KafkaStreamsState.lag_for``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from everflow.assignment.assignor import cooperate
from everflow.assignment.cluster_state import (
    Assignment,
    AssignmentRules,
    ClusterState,
    Member,
    TaskInfo,
    validate_assignment,
)
from everflow.assignment.lags import Lags
from everflow.assignment.refine import prior_placement
from everflow.assignment.standbys import exchanged_standbys, place_standbys
from everflow.assignment.target import Placement, eligible, exchanged_actives
from everflow.errors import FatalError
from everflow.records import TaskId
from everflow.setting_checks import LONGEST_MS

log = logging.getLogger("everflow.assignment")

_KEPT = (
    "Everyone keeps what it has, and the assignor is asked again; correct it, or take "
    "task.assignor.class away."
)


class AssignmentError(Enum):
    """Faults of an assignor's result. Kafka Streams does not have the last two: a task is active on
    no process (it would not be processed), or a ``followup_ms`` is out of range."""

    NONE = "none"
    ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES = "an active task is assigned more than once"
    INVALID_STANDBY_TASK = (
        "a standby of a stateless task, or on the process that has the active task"
    )
    MISSING_PROCESS_ID = "a process is missing"
    UNKNOWN_PROCESS_ID = "a process is unknown"
    UNKNOWN_TASK_ID = "a task is unknown"
    ACTIVE_TASK_NOT_ASSIGNED = "a task is on no process"
    INVALID_FOLLOWUP = "followup_ms is not a whole number of ms, from 0 to ten years"


@dataclass(frozen=True, kw_only=True)
class KafkaStreamsState:
    """An instance as an assignor sees it. ``previous_standby``: the tasks that have a replica on
    the instance's disk but are not active there."""

    process_id: str
    threads: int
    previous_active: frozenset[TaskId]
    previous_standby: frozenset[TaskId]
    host: str
    tags: Mapping[str, str]
    rack: str
    draining: bool
    lag_for: Callable[[TaskId], int]
    """Records to restore before the instance could run the task: -2 if it runs the task, the whole
    changelog if it has no replica."""

    def previous_tasks_by_lag(self) -> list[TaskId]:
        """The tasks with a replica on this instance, the smallest lag first."""
        return sorted(
            self.previous_active | self.previous_standby,
            key=lambda task: (self.lag_for(task), task),
        )


@dataclass(frozen=True)
class ApplicationState:
    """Input of an assignor. ``lags_known`` is False if end offsets could not be read; then a lag of
    0 does not mean that a replica has caught up."""

    states: Mapping[str, KafkaStreamsState]
    tasks: Mapping[TaskId, TaskInfo]
    rules: AssignmentRules
    lags_known: bool
    cluster: ClusterState


@dataclass(frozen=True)
class KafkaStreamsAssignment:
    """Assignment of one process. ``followup_ms``: ms until the next rebalance is requested, None:
    none is. The smallest value of all processes counts."""

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    followup_ms: int | None = None


@dataclass(frozen=True)
class TaskAssignment:
    """The result of an assignor, by process id; it must contain every process."""

    assignments: Mapping[str, KafkaStreamsAssignment] = field(default_factory=dict)


class TaskAssignor(Protocol):
    """An assignor of your own. Both methods are called on the group leader only, on a thread of
    their own. Return quickly: the group waits.

    If the assignor raises an error, returns a refused assignment, or takes longer than a third of
    ``session.timeout.ms`` or of ``rebalance.timeout.ms``, every process keeps its tasks, everflow
    assigns the rest, the leader logs an error, and the assignor is called again after
    ``probing.rebalance.interval.ms`` at the latest. A later result is lost.
    """

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        """Return the assignment of all tasks; called once per rebalance."""

    def on_assignment_computed(
        self,
        assignment: TaskAssignment,
        error: AssignmentError,
    ) -> None:
        """Called with the returned assignment and its error; `AssignmentError.NONE`: the assignment
        is used."""


Run = Callable[[str, Callable[[], object]], object]
"""How the user's code is run: (who, the call). It raises what the call raises, and may refuse to
wait for it."""


def decide_with(
    assignor: TaskAssignor, run: Run = lambda _, call: call()
) -> Callable[[ClusterState], Assignment]:
    """``assignor`` in the place of ``assignor.assign``. Where it fails: see `TaskAssignor`.

    The returned function raises FatalError where two members have one process id, or if the
    fallback breaks a rule: a bug. A KeyboardInterrupt goes on to the caller.
    """
    name = type(assignor).__name__

    def decide(cluster: ClusterState) -> Assignment:
        state = application_state(cluster)
        answers: list[tuple[TaskAssignment, AssignmentError, str]] = []

        def ask() -> None:
            answer = assignor.assign(state)
            answers.append((answer, *validate(state, answer)))
            _tell(assignor, *answers[-1][:2])

        try:
            _run_all(run, name, ask, answers)
            answer, error, detail = answers[0]
            if error is AssignmentError.NONE:
                return _assignment(cluster, answer)
            log.error(
                "%s gave an assignment that cannot be used: %s (%s). %s",
                name,
                error.value,
                detail,
                _KEPT,
            )
        except KeyboardInterrupt:
            raise
        except BaseException as failure:  # it may raise or answer anything, SystemExit too
            log.error("%s failed: %r. %s", name, failure, _KEPT, exc_info=True)
        return kept(cluster)

    return decide


def _run_all(
    run: Run,
    name: str,
    ask: Callable[[], None],
    answers: Sequence[object],
) -> None:
    """Logs an error of the callback: the answer stays as it is."""
    try:
        run(name, ask)
    except Exception as failure:
        if not answers:
            raise
        log.error("%s: %s; its answer counts all the same", name, failure)


def kept(cluster: ClusterState) -> Assignment:
    """Everyone keeps what it has, a task that nobody has goes to its nearest copy or the least
    loaded; a follow-up is asked for."""
    lags = Lags(cluster)
    prior = prior_placement(lags)
    handed = cooperate(lags, prior, prior)
    return _checked(cluster, handed)


def _tell(assignor: TaskAssignor, answer: TaskAssignment, error: AssignmentError) -> None:
    try:
        assignor.on_assignment_computed(answer, error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # what it does with the news changes nothing about the answer
        log.exception(
            "%s failed in on_assignment_computed; its answer counts all the same",
            type(assignor).__name__,
        )


def application_state(cluster: ClusterState) -> ApplicationState:
    """The cluster as an own assignor sees it. FatalError if two members have one process id."""
    lags = Lags(cluster)

    def state(member: Member) -> KafkaStreamsState:
        active = frozenset(
            task
            for task in member.owned
            if lags.owner(task) == member.member_id and task in cluster.tasks
        )
        return KafkaStreamsState(
            process_id=member.process_id,
            threads=member.threads,
            previous_active=active,
            previous_standby=frozenset(task for task in member.offset_sums if task in cluster.tasks)
            - active,
            host=member.endpoint,
            tags=member.tags,
            rack=member.rack,
            draining=member.draining,
            lag_for=lambda task: lags.lag(member.member_id, task),
        )

    states = {
        member.process_id: state(member)
        for member in sorted(cluster.members, key=lambda member: member.order)
    }
    if len(states) < len(cluster.members):
        raise FatalError("two members of the group have one process id: was a state folder copied?")
    return ApplicationState(states, cluster.tasks, cluster.rules, lags.known, cluster)


def validate(state: ApplicationState, answer: TaskAssignment) -> tuple[AssignmentError, str]:
    """The first rule that an answer breaks, and where; ``NONE`` and an empty text if none."""
    missing = sorted(set(state.states) - set(answer.assignments))
    if missing:
        return AssignmentError.MISSING_PROCESS_ID, ", ".join(missing)
    unknown = sorted(set(answer.assignments) - set(state.states))
    if unknown:
        return AssignmentError.UNKNOWN_PROCESS_ID, ", ".join(unknown)
    owners: dict[TaskId, str] = {}
    for process_id, assigned in sorted(answer.assignments.items()):
        for task in sorted(assigned.active | assigned.standby):
            if task not in state.tasks:
                return AssignmentError.UNKNOWN_TASK_ID, f"{task} on {process_id}"
            if task in assigned.standby and (
                task in assigned.active or not state.tasks[task].stateful
            ):
                return AssignmentError.INVALID_STANDBY_TASK, f"{task} on {process_id}"
            if task in assigned.active and task in owners:
                return (
                    AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES,
                    f"{task} on {owners[task]} and {process_id}",
                )
            if task in assigned.active:
                owners[task] = process_id
    for process_id, assigned in sorted(answer.assignments.items()):
        after = assigned.followup_ms
        if after is not None and (type(after) is not int or not 0 <= after <= LONGEST_MS):
            return AssignmentError.INVALID_FOLLOWUP, f"{after!r} for {process_id}"
    for task in sorted(set(state.tasks) - set(owners) - state.cluster.held_back):
        return AssignmentError.ACTIVE_TASK_NOT_ASSIGNED, str(task)
    return AssignmentError.NONE, ""


def identity_assignment(state: ApplicationState) -> TaskAssignment:
    """The previous assignment, replicas included; tasks that no process had stay unassigned."""
    return TaskAssignment(
        {
            one: KafkaStreamsAssignment(had.previous_active, _stateful(state, had.previous_standby))
            for one, had in state.states.items()
        }
    )


def default_standby_assignment(
    state: ApplicationState, assignment: TaskAssignment
) -> TaskAssignment:
    """``assignment`` with the standbys that everflow would place for its active tasks, by tags
    where configured (KIP-708)."""
    cluster = state.cluster
    active = _by_task(cluster, assignment)
    followed = sorted(_stateful(state, cluster.tasks))
    standby = place_standbys(Lags(cluster), eligible(cluster), followed, active)
    return _with_standbys(cluster, assignment, standby)


def optimize_rack_aware_active_tasks(
    state: ApplicationState, assignment: TaskAssignment, tasks: Iterable[TaskId]
) -> TaskAssignment:
    """``assignment`` with the active tasks in ``tasks`` exchanged between processes for less
    traffic between racks (KIP-925); each process keeps its number of active tasks."""
    cluster = state.cluster
    owners = _by_task(cluster, assignment)
    active = {
        **owners,
        **exchanged_actives(
            cluster, {task: owners[task] for task in sorted(set(tasks)) if task in owners}
        ),
    }
    by_process = {
        member.process_id: {t for t, one in active.items() if one == member.member_id}
        for member in cluster.members
    }
    return TaskAssignment(
        {
            one: replace(
                had,
                active=frozenset(by_process.get(one, ())),
                standby=had.standby - by_process.get(one, set()),
            )
            for one, had in assignment.assignments.items()
        }
    )


def optimize_rack_aware_standby_tasks(
    state: ApplicationState, assignment: TaskAssignment
) -> TaskAssignment:
    """``assignment`` with standbys exchanged between processes for less traffic between racks,
    without losing a tag; each process keeps its number of standbys."""
    cluster = state.cluster
    standby = exchanged_standbys(
        cluster, _by_task(cluster, assignment), _followers(cluster, assignment)
    )
    return _with_standbys(cluster, assignment, standby)


def _stateful(state: ApplicationState, tasks: Iterable[TaskId]) -> frozenset[TaskId]:
    return frozenset(task for task in tasks if state.tasks[task].stateful)


def _members(cluster: ClusterState) -> dict[str, str]:
    return {member.process_id: member.member_id for member in cluster.members}


def _by_task(cluster: ClusterState, assignment: TaskAssignment) -> dict[TaskId, str]:
    members = _members(cluster)
    return {
        task: members[one]
        for one, assigned in sorted(assignment.assignments.items())
        for task in sorted(assigned.active)
    }


def _followers(cluster: ClusterState, assignment: TaskAssignment) -> dict[TaskId, frozenset[str]]:
    members = _members(cluster)
    followers: dict[TaskId, set[str]] = {}
    for one, assigned in assignment.assignments.items():
        for task in assigned.standby:
            followers.setdefault(task, set()).add(members[one])
    return {task: frozenset(followers[task]) for task in sorted(followers)}


def _with_standbys(
    cluster: ClusterState, assignment: TaskAssignment, standby: Mapping[TaskId, frozenset[str]]
) -> TaskAssignment:
    members = _members(cluster)
    return TaskAssignment(
        {
            one: replace(
                had,
                standby=frozenset(
                    task for task, followers in standby.items() if members[one] in followers
                ),
            )
            for one, had in assignment.assignments.items()
        }
    )


def _assignment(cluster: ClusterState, answer: TaskAssignment) -> Assignment:
    wanted = Placement(_by_task(cluster, answer), _followers(cluster, answer))
    handed = cooperate(Lags(cluster), wanted, wanted)
    asked = [
        assigned.followup_ms
        for assigned in answer.assignments.values()
        if assigned.followup_ms is not None
    ]
    handed = _checked(cluster, handed)
    if handed.followup_ms is None and asked:
        return replace(handed, followup_ms=min(asked))
    return handed


def _checked(cluster: ClusterState, handed: Assignment) -> Assignment:
    problems = validate_assignment(handed, cluster.members, cluster.tasks, cluster.held_back)
    if problems:
        raise FatalError(f"handing over broke a rule, nothing was assigned: {'; '.join(problems)}")
    return handed
