"""Life cycle of a task as a checked state machine, and how tasks are dealt to stream threads (pure)."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everflow.errors import EverflowError
from everflow.records import TaskId, TopicPartition
from everflow.runtime.batch import TaskContext


class TaskState(enum.Enum):
    """States of Kafka Streams' tasks (reference 5.1)."""

    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    CLOSED = "CLOSED"


TASK_TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RESTORING, TaskState.CLOSED}),
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.SUSPENDED, TaskState.CLOSED}),
    TaskState.RUNNING: frozenset({TaskState.RESTORING, TaskState.SUSPENDED}),
    TaskState.SUSPENDED: frozenset({TaskState.RESTORING, TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}


class IllegalTransitionError(EverflowError):
    """A state machine was asked for a step that it does not have: a defect of everflow."""

    code = "EF-ILLEGAL-TRANSITION"


@dataclass(frozen=True)
class TaskStore:
    """A store of a task: where its environment lives and its changelog partition (None: not logged)."""

    name: str
    path: Path
    changelog: TopicPartition | None


@dataclass
class ActiveTask:
    """One active task of this instance; owned by one thread at a time (first the recovery's, then its stream
    thread's).

    ``positions``: next offset to read per input partition. ``incarnation`` and ``last_batch``: what the
    stores carry (D5).
    """

    id: TaskId
    inputs: tuple[TopicPartition, ...]
    stores: tuple[TaskStore, ...] = ()
    state: TaskState = TaskState.CREATED
    incarnation: str = ""
    last_batch: str = ""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    stream_times: dict[str, int] = field(default_factory=dict)
    epoch: int = -1
    """The ownership (`GateBook.epoch`) in which it was recovered."""

    def to(self, state: TaskState) -> None:
        """Change the state; IllegalTransitionError for a step the life cycle does not have."""
        if state not in TASK_TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"Task {self.id} cannot go from {self.state.name} to {state.name}.")
        self.state = state

    def context(self) -> TaskContext:
        """The task as a batch's workers see it."""
        return TaskContext(
            task=str(self.id),
            incarnation=self.incarnation,
            last_batch=self.last_batch,
            stream_times=dict(self.stream_times),
            stores={
                s.name: {"path": str(s.path), "changelog": None if s.changelog is None else s.changelog.topic}
                for s in self.stores
            },
        )


def deal(tasks: Collection[TaskId], threads: Sequence[int], previous: Mapping[TaskId, int]) -> dict[TaskId, int]:
    """Stream thread of every task: balanced (loads differ by at most one) and stable.

    A task stays on its thread as long as that thread's load allows. Sub-topologies are spread too, because
    tasks of one sub-topology cost about the same. The same input gives the same result. ValueError without
    threads.
    """
    if not threads:
        raise ValueError("no stream threads to deal tasks to")
    ordered = sorted(set(tasks))
    low, extra = divmod(len(ordered), len(threads))
    dealt: dict[TaskId, int] = {}
    load = dict.fromkeys(sorted(threads), 0)
    of_subtopology: dict[tuple[int, int], int] = {}

    def put(task: TaskId, thread: int) -> None:
        dealt[task] = thread
        load[thread] += 1
        of_subtopology[thread, task.subtopology] = of_subtopology.get((thread, task.subtopology), 0) + 1

    full = 0  # threads that hold one task more than the others
    for task in ordered:
        thread = previous.get(task)
        if thread not in load:
            continue
        if load[thread] < low:
            put(task, thread)
        elif load[thread] == low and full < extra:
            put(task, thread)
            full += 1
    for task in ordered:
        if task not in dealt:
            put(task, min(load, key=lambda t: (load[t], of_subtopology.get((t, task.subtopology), 0), t)))
    return dealt
