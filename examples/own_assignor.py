"""An own assignor (KIP-924): a task stays where it runs; one that nobody runs goes to the instance
that is nearest to its state.

    everflow run stock_trades:builder --application-id stock-averages --bootstrap-servers
    127.0.0.1:9092 \\
        --set num.standby.replicas=1 --set task.assignor.class=own_assignor:StayingAssignor

(in this folder, the same on every instance). A new instance gets standbys and takes over what
others leave. An instance that drains gets no active task, so its `close` need not wait; with a
standby elsewhere nothing starts cold.
"""

from __future__ import annotations

from collections import Counter

from everflow import TaskId
from everflow.assignment import (
    ApplicationState,
    AssignmentError,
    KafkaStreamsAssignment,
    KafkaStreamsState,
    TaskAssignment,
    default_standby_assignment,
)


class StayingAssignor:
    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        states = application_state.states
        takers = [one for one in states.values() if not one.draining] or list(states.values())
        owner = {task: one.process_id for one in takers for task in one.previous_active}
        load = Counter(owner.values())

        def distance(one: KafkaStreamsState, task: TaskId) -> tuple[int, float, str]:
            return one.lag_for(task), load[one.process_id] / one.threads, one.process_id

        for task in sorted(
            application_state.tasks.keys() - owner.keys() - application_state.cluster.held_back
        ):
            owner[task] = min(distance(one, task) for one in takers)[-1]
            load[owner[task]] += 1
        active = {
            process: frozenset(task for task in owner if owner[task] == process)
            for process in states
        }
        answer = TaskAssignment(
            {process: KafkaStreamsAssignment(tasks) for process, tasks in active.items()}
        )
        return default_standby_assignment(application_state, answer)

    def on_assignment_computed(self, assignment: TaskAssignment, error: AssignmentError) -> None:
        """Nothing to keep."""
