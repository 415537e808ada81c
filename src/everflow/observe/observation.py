"""`Observation`: one look at an instance, in plain values. Whoever shows it needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from everflow.metrics import Labels, Seen


@dataclass(frozen=True, kw_only=True)
class ObservedThread:
    """A stream thread. ``number`` counts from 0; ``busy``: share of the last 30 s in which it ran
    a batch (0 to 1); ``trouble``: what keeps its tasks from getting on, for people; ``warm``: its
    Spark job and its workers are there."""

    number: int
    alive: bool
    tasks: int
    busy: float = 0.0
    trouble: str = ""
    warm: bool = True


@dataclass(frozen=True, kw_only=True)
class ObservedStore:
    """A store of a task: its folder's size on disk."""

    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ObservedTask:
    """As `everflow.instance.describe.TaskStatus` has it; ``thread`` None: on none. ``rate``: of a
    running active task what it processes, ``remaining_s`` then until nothing waits (None: not
    known, or more waits than before). ``copied``: of ``copied + lag`` changelog offsets, those that
    its copy has; None for a running active task."""

    task: str
    role: str
    state: str
    lag: int | None
    rate: float = 0.0
    remaining_s: float | None = None
    copied: int | None = None
    thread: int | None = None
    trouble: str = ""
    stores: Sequence[ObservedStore] = ()


class DiskSpace(NamedTuple):
    """Bytes of a disk: all, and those that may still be written."""

    bytes: int
    free: int


@dataclass(frozen=True, kw_only=True)
class ObservedHost:
    """The tasks (ids) behind one ``application.server``, as of the last rebalance."""

    host: str
    active: Sequence[str] = ()
    standby: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ObservedWriter:
    """Who writes in transactions: a stream thread's producer. ``state``: Kafka's word for its
    transaction, empty before its first one; ``open_s``: for how long it was open when the brokers
    were asked, 0 where none was. Both None: the brokers have not told."""

    thread: int
    transactional_id: str
    state: str | None = None
    open_s: float | None = None


class StableLag(NamedTuple):
    """What readers of committed records do not see of a partition, as somebody's transaction is
    open: ``records`` from the last stable offset to the log's end, and for how many seconds at
    least that offset, ``stable``, has stood where it stands."""

    records: int
    stable: int
    held_s: float


@dataclass(frozen=True, kw_only=True)
class Observation:
    """See the module.

    Attributes:
        state: of the instance, a name of `ClientState`; ``error``: what stopped it, for people;
            ``state_s``: for how long it has been so.
        topology: 16 digits that stand for the program, as the group compares it; empty until it is
            known. ``program``: file:line of its first source; ``started_ms``: epoch.
        counters: totals since the start, by the names in `everflow.metrics`.
        series: the same with labels.
        samples: of `everflow.metrics.LEFT_OUT`, the last record of each cause, for people.
        misplaced_keys: topic -> what is told of its keys that lie in other partitions than their
            source says, with the cure; the numbers are in ``series``.
        lags: (topic, partition) -> records that wait, of the running tasks.
        recent: of the last minute, with labels.
        roads: how many nodes of the plan each road computes.
        members: instances in the group; None: not known yet.
        application_tasks: active tasks of the whole application.
        hosts: instances of the group that say where they are, this one included.
        silent_s: for how long the brokers have not told the ends of the input; 0 when they do.
        writers: who writes in transactions here; nobody does at least once.
        held_back: (topic, partition) -> what an open transaction holds back there, of the running
            tasks' inputs; only where committed records are read.
        told_s: how old is what the brokers told for both; None: they have told nothing yet.
        disk: the one of the state folder; None: not known.
    """

    application_id: str
    client_id: str
    version: str
    state: str
    state_number: int
    threads: Sequence[ObservedThread]
    tasks: Sequence[ObservedTask]
    error: str = ""
    state_s: float = 0.0
    topology: str = ""
    program: str = ""
    started_ms: int = 0
    counters: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    samples: Mapping[Labels, str] = field(default_factory=dict)
    misplaced_keys: Mapping[str, str] = field(default_factory=dict)
    lags: Mapping[tuple[str, int], int] = field(default_factory=dict)
    recent: Mapping[str, Mapping[Labels, Seen]] = field(default_factory=dict)
    roads: Mapping[str, int] = field(default_factory=dict)
    members: int | None = None
    application_tasks: int = 0
    desired_instances: int | None = None
    hosts: Sequence[ObservedHost] = ()
    silent_s: float = 0.0
    writers: Sequence[ObservedWriter] = ()
    held_back: Mapping[tuple[str, int], StableLag] = field(default_factory=dict)
    told_s: float | None = None
    disk: DiskSpace | None = None

    @property
    def preparing(self) -> str:
        """What its stream threads wait for before they can have tasks; empty: nothing."""
        cold = sum(thread.alive and not thread.warm for thread in self.threads)
        if not cold:
            return ""
        return (
            f"prepares the Spark jobs and Python workers of {cold} stream thread{'s' * (cold > 1)}"
        )

    @property
    def active(self) -> list[ObservedTask]:
        return [task for task in self.tasks if task.role == "active"]

    @property
    def restoring(self) -> list[ObservedTask]:
        """Active tasks that do not run yet: they are restored, or wait for their thread."""
        return [task for task in self.active if task.state in ("CREATED", "RESTORING")]
