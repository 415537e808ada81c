"""Kafka Streams' sticky assignor as an own assignor (KIP-924): few moves, no warm-ups. Pure."""

from __future__ import annotations

from collections import Counter

from everflow.assignment.api import (
    ApplicationState,
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
    default_standby_assignment,
)
from everflow.records import TaskId


class StickyTaskAssignor:
    """A task stays with its owner while that one is under its quota, else goes to the nearest of
    its copies under quota, else to the least loaded. It never waits for state: a task may move to a
    cold instance, as in the original."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        """Actives by quota per thread, then everflow's standbys."""
        states = application_state.states
        takers = [one for one in states.values() if not one.draining] or list(states.values())
        threads = sum(one.threads for one in takers)
        quota = {
            one.process_id: -(-len(application_state.tasks) * one.threads // max(1, threads))
            for one in takers
        }
        load: Counter[str] = Counter()
        given: dict[TaskId, str] = {}
        waiting = sorted(set(application_state.tasks) - application_state.cluster.held_back)
        for previous in ("previous_active", "previous_standby"):
            holders: dict[TaskId, list[tuple[int, str]]] = {}
            for one in takers:
                for task in getattr(one, previous):
                    holders.setdefault(task, []).append((one.lag_for(task), one.process_id))
            for task in waiting:
                for _, process_id in sorted(holders.get(task, ())):
                    if task not in given and load[process_id] < quota[process_id]:
                        given[task] = process_id
                        load[process_id] += 1
        for task in waiting:
            if task not in given:
                least = min(
                    takers, key=lambda one: (load[one.process_id] / one.threads, one.process_id)
                ).process_id
                given[task] = least
                load[least] += 1
        active = {
            one: frozenset(task for task, owner in given.items() if owner == one) for one in states
        }
        answer = TaskAssignment(
            {one: KafkaStreamsAssignment(tasks) for one, tasks in active.items()}
        )
        return default_standby_assignment(application_state, answer)

    def on_assignment_computed(self, assignment: TaskAssignment, error: AssignmentError) -> None:
        """Nothing to keep."""
