"""A task's life cycle as a checked state machine, and how threads are dealt tasks. Pure."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everflow.errors import IllegalTransitionError, TaskTimeoutError
from everflow.protocol.messages import BatchResult, StorePlace, TaskContext
from everflow.records import TaskId, TopicPartition


#  active    CREATED ──► RESTORING ◄─────► RUNNING
#               │          │   ▲              │
#               │          │   └─► SUSPENDED ◄┘
#               ▼          ▼           │
#             CLOSED ◄─────┴───────────┘
#
#  standby   CREATED ──► RUNNING ◄──► SUSPENDED
#               │                         │
#               └────────► CLOSED ◄───────┘
class TaskState(enum.Enum):
    """Where a task is in its life cycle; the states are Kafka Streams'."""

    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    CLOSED = "CLOSED"


class TaskRole(enum.Enum):
    """A task's role on an instance. A warm-up is a standby that is to become active on its instance
    once it has caught up (KIP-441). Every instance has a global task for each partition of a global
    table's topic; these tasks are not assigned."""

    ACTIVE = "active"
    STANDBY = "standby"
    WARMUP = "warm-up"
    GLOBAL = "global"


TASK_TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RESTORING, TaskState.CLOSED}),
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.SUSPENDED, TaskState.CLOSED}),
    TaskState.RUNNING: frozenset({TaskState.RESTORING, TaskState.SUSPENDED}),
    TaskState.SUSPENDED: frozenset({TaskState.RESTORING, TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}
STANDBY_TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RUNNING, TaskState.CLOSED}),
    TaskState.RESTORING: frozenset(),
    TaskState.RUNNING: frozenset({TaskState.SUSPENDED}),
    TaskState.SUSPENDED: frozenset({TaskState.RUNNING, TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}
"""A standby does not restore first: following the changelog is what it does (reference 5.1)."""


@dataclass(frozen=True)
class TaskStore:
    """Where a store's environment lives, and its changelog (None: not logged)."""

    name: str
    path: Path
    changelog: TopicPartition | None


@dataclass
class StandbyTask:
    """Its stores follow changelogs. Owned by the state updater while RUNNING, else by the loop."""

    id: TaskId
    stores: tuple[TaskStore, ...] = ()
    role: TaskRole = TaskRole.STANDBY
    state: TaskState = TaskState.CREATED

    def to(self, state: TaskState) -> None:
        _check_step(self.id, self.role, self.state, state, STANDBY_TRANSITIONS)
        self.state = state

    def recycle(self, inputs: tuple[TopicPartition, ...]) -> ActiveTask:
        """Promotion: the active task over the same open stores. Only SUSPENDED."""
        _check_recycle(self.id, self.role, self.state)
        return ActiveTask(
            id=self.id,
            inputs=inputs,
            stores=self.stores,
            state=TaskState.SUSPENDED,
        )


@dataclass(kw_only=True)
class ActiveTask:
    """Owned by one thread at a time: the recovery's, then its stream thread's. ``positions``: next
    offset to read per input. ``incarnation`` and ``last_batch``: as noted in the stores (D5)."""

    id: TaskId
    inputs: tuple[TopicPartition, ...]
    stores: tuple[TaskStore, ...] = ()
    state: TaskState = TaskState.CREATED
    incarnation: str = ""
    last_batch: str = ""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    stream_times: dict[str, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """Ends of its inputs at its recovery: what its first batch may read."""
    epoch: int = -1
    """The ownership (`GateBook.epoch`) in which it was recovered."""

    def to(self, state: TaskState) -> None:
        _check_step(self.id, TaskRole.ACTIVE, self.state, state, TASK_TRANSITIONS)
        self.state = state

    def take(self, result: BatchResult, batch_id: str) -> int:
        """A batch was committed: where it is now. By how many offsets it got on."""
        after = {tp: result.consumed.get(tp, self.positions[tp]) for tp in self.inputs}
        moved = sum(after.values()) - sum(self.positions[tp] for tp in self.inputs)
        timed = self.times_move(result)
        self.positions.update(after)
        self.stream_times.update(result.stream_times.get(self.id, {}))
        if moved or timed or self.id in result.positions:
            self.last_batch = batch_id  # the sink applied the batch to all its stores
        return moved

    def times_move(self, result: BatchResult) -> bool:
        """Whether the batch brings other stream times, or marks, than the task has."""
        times = result.stream_times.get(self.id, {})
        return any(self.stream_times.get(name, -1) != ms for name, ms in times.items())

    def grow(self, inputs: tuple[TopicPartition, ...], begun: ActiveTask) -> None:
        """Add the inputs of ``begun``, with their positions (note 037). Between two batches."""
        self.inputs = inputs
        self.positions.update(begun.positions)
        self.ends.update(begun.ends)
        for node, time_ms in begun.stream_times.items():
            self.stream_times[node] = max(time_ms, self.stream_times.get(node, -1))

    def recycle(self, role: TaskRole) -> StandbyTask:
        """Demotion: the standby (or warm-up) over the same open stores. Only SUSPENDED."""
        _check_recycle(self.id, TaskRole.ACTIVE, self.state)
        return StandbyTask(self.id, self.stores, role, TaskState.SUSPENDED)

    def context(self) -> TaskContext:
        times, stores = dict(self.stream_times), _places(self.stores)
        return TaskContext(self.id, self.incarnation, self.last_batch, times, stores)


def fitted(
    task: ActiveTask, wanted: tuple[TopicPartition, ...], begun: MutableMapping[TaskId, ActiveTask]
) -> bool:
    """True if the task has the inputs ``wanted``, maybe by ``begun``; else it is recovered."""
    if task.inputs == wanted:
        return True
    found = begun.pop(task.id, None)
    if found is None or found.epoch != task.epoch or {*task.inputs, *found.inputs} != {*wanted}:
        return False
    task.grow(wanted, found)
    return True


def concerning(
    tasks: Iterable[ActiveTask], partitions: Collection[TopicPartition]
) -> list[ActiveTask]:
    return [
        task
        for task in tasks
        if any(tp in partitions for tp in task.inputs)
        or any(store.changelog in partitions for store in task.stores)
    ]


def positions_of(tasks: Iterable[ActiveTask]) -> dict[TopicPartition, int]:
    return {tp: offset for task in tasks for tp, offset in task.positions.items()}


def context_of(task: TaskId, stores: Iterable[TaskStore]) -> TaskContext:
    """A task whose stores a batch only reads, as its workers see it."""
    return TaskContext(task, "", "", {}, _places(stores))


def _places(stores: Iterable[TaskStore]) -> dict[str, StorePlace]:
    return {
        s.name: StorePlace(str(s.path), None if s.changelog is None else s.changelog.topic)
        for s in stores
    }


def _check_step(
    task: TaskId,
    role: TaskRole,
    old: TaskState,
    new: TaskState,
    transitions: Mapping[TaskState, frozenset[TaskState]],
) -> None:
    if new not in transitions[old]:
        raise IllegalTransitionError(
            f"Task {task} ({role.value}) cannot go from {old.name} to {new.name}."
        )


def _check_recycle(task: TaskId, role: TaskRole, state: TaskState) -> None:
    if state is not TaskState.SUSPENDED:
        raise IllegalTransitionError(
            f"Task {task} ({role.value}) is {state.name}; only a suspended task changes its role."
        )


def deal(
    tasks: Collection[TaskId],
    threads: Sequence[int],
    previous: Mapping[TaskId, int],
    running: Collection[TaskId] = (),
) -> dict[TaskId, int]:
    """Stream thread of every task: balanced (loads differ by at most one), stable, deterministic.
    ``running`` tasks stay on their thread as far as the balance allows; one that comes back
    displaces none. Sub-topologies are spread. ValueError without threads."""
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
        of_subtopology[thread, task.subtopology] = (
            of_subtopology.get((thread, task.subtopology), 0) + 1
        )

    full = 0  # threads that hold one task more than the others
    for task in sorted(ordered, key=lambda task: task not in running):
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
            put(
                task,
                min(load, key=lambda t: (load[t], of_subtopology.get((t, task.subtopology), 0), t)),
            )
    return dealt


Dropped = Callable[[Sequence[ActiveTask]], None]
Released = Callable[[Sequence[StandbyTask]], None]


class ThreadCommands:
    """Commands to take tasks over and to give them up. The stream thread carries them out between
    two batches; `take` and `refuse` are its own, any thread may call the others."""

    def __init__(self) -> None:
        self._waiting = deque[Sequence[ActiveTask] | tuple[frozenset[TaskId], Dropped]]()
        self._arriving: dict[TaskId, ActiveTask] = {}

    def add(self, tasks: Sequence[ActiveTask]) -> None:
        self._arriving.update({task.id: task for task in tasks})
        self._waiting.append(list(tasks))

    def drop(self, tasks: Collection[TaskId], done: Dropped) -> None:
        self._waiting.append((frozenset(tasks), done))

    def arriving(self) -> list[ActiveTask]:
        return list(self._arriving.values())

    def take(self, tasks: dict[TaskId, ActiveTask]) -> bool:
        changed = False
        while self._waiting:
            command = self._waiting.popleft()
            if isinstance(command, tuple):
                changed = _drop(command, tasks) or changed
                continue
            for task in command:
                tasks[task.id] = task
                self._arriving.pop(task.id, None)
            changed = changed or bool(command)
        return changed

    def refuse(self, known: dict[TaskId, ActiveTask]) -> None:
        """The thread ends: answer all callers that wait for tasks to be released."""
        while self._waiting:
            command = self._waiting.popleft()
            if isinstance(command, tuple):
                _drop(command, known)


def _drop(command: tuple[frozenset[TaskId], Dropped], tasks: dict[TaskId, ActiveTask]) -> bool:
    wanted, done = command
    dropped = [tasks.pop(task) for task in sorted(wanted) if task in tasks]
    done(dropped)
    return bool(dropped)


FIRST_REST_MS = 500.0
SHARE_OF_OTHERS = 3.0
"""Tasks that make progress get so much more time than attempts of one that does not."""
PART_OF_LIMIT = 0.25
"""No rest is longer than that, or there would be too few attempts in the time."""


@dataclass
class StalledTask:
    """``since_ms``: its first failure since the last progress; ``count``: failures since then."""

    since_ms: float
    count: int = 0
    cause: str = ""
    until_ms: float = 0.0
    alone: bool = False
    """It is not known whether this task or another of its batch fails: it is tried by itself."""


@dataclass
class TaskTimeouts:
    """Decides how long a task may go without progress (KIP-572), and when it is tried again. Pure;
    monotonic ms. Owned by one thread; any thread may call `stalled`. A stalled task rests the
    longer, the longer an attempt delayed the others. A first failure is never too late."""

    limit_ms: float
    _stalled: dict[TaskId, StalledTask] = field(default_factory=dict)
    _others_until_ms: float = 0.0

    def failed(self, tasks: Iterable[TaskId], cause: str, now_ms: float) -> None:
        """One more attempt of each task failed. TaskTimeoutError once a task's time is over."""
        for task in tasks:
            stalled = self._stalled.setdefault(task, StalledTask(now_ms))
            stalled.count += 1
            stalled.cause = cause
            self._require(task, now_ms)

    def waits(self, task: TaskId, cause: str, now_ms: float) -> None:
        """The task waits for a broker, without an attempt. TaskTimeoutError."""
        stalled = self._stalled.setdefault(task, StalledTask(now_ms))
        stalled.cause = stalled.cause or cause
        self._require(task, now_ms)

    def _require(self, task: TaskId, now_ms: float) -> None:
        stalled = self._stalled[task]
        if now_ms - stalled.since_ms > self.limit_ms:
            raise TaskTimeoutError(
                f"Task {task} made no progress for {(now_ms - stalled.since_ms) / 1000:.0f} s "
                f"(task.timeout.ms: {self.limit_ms / 1000:g} s); the last failure: {stalled.cause}",
                task,
            )

    def rest(self, tasks: Iterable[TaskId], now_ms: float, took_ms: float) -> None:
        """Failed tasks rest; ``took_ms``: for how long their last attempt delayed the others."""
        most_ms = self.limit_ms * PART_OF_LIMIT
        self._others_until_ms = now_ms + min(SHARE_OF_OTHERS * took_ms, most_ms)
        for task in tasks:
            stalled = self._stalled[task]
            growing_ms = FIRST_REST_MS * 2.0 ** min(stalled.count - 1, 16)
            wanted = max(growing_ms, SHARE_OF_OTHERS * took_ms)
            stalled.until_ms, stalled.alone = now_ms + min(wanted, most_ms), True

    def rest_until(self, tasks: Iterable[TaskId], until_ms: float) -> None:
        for task in tasks:
            self._stalled[task].until_ms = until_ms

    def set_apart(self, tasks: Iterable[TaskId]) -> None:
        """The tasks failed together and one of them may be the cause: try each by itself."""
        for task in tasks:
            self._stalled[task].alone = True

    def progressed(self, task: TaskId) -> None:
        """The task made progress, or has nothing to do: its time begins anew."""
        self._stalled.pop(task, None)

    def keep(self, tasks: Collection[TaskId]) -> None:
        for task in self._stalled.keys() - set(tasks):
            del self._stalled[task]

    def resting(self, now_ms: float) -> frozenset[TaskId]:
        return frozenset(
            task for task, stalled in self._stalled.items() if now_ms < stalled.until_ms
        )

    def chosen(self, tasks: Collection[TaskId], now_ms: float) -> Collection[TaskId]:
        """Of ``tasks``, none of which rests, those of the next batch."""
        alone = [task for task in tasks if task in self._stalled and self._stalled[task].alone]
        others = [task for task in tasks if task not in alone]
        if not alone or (others and now_ms < self._others_until_ms):
            return others
        return [min(alone, key=lambda task: (self._stalled[task].until_ms, task))]

    @property
    def any(self) -> bool:
        return bool(self._stalled)

    def stalled(self) -> dict[TaskId, StalledTask]:
        return dict(self._stalled)
