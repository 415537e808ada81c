"""`Observation`: a snapshot of an instance in plain values, and `/status`, `/live`, `/ready`. Pure.

An instance that restores is alive: a restart would begin again. It is ready once its tasks run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from everflow import metrics as names
from everflow.metrics import Labels, Seen


@dataclass(frozen=True, kw_only=True)
class ObservedThread:
    """A stream thread. ``number`` counts from 0; ``busy``: share of the last 30 s in batches (0 to
    1); ``trouble``: why its tasks do not get on, for people; ``warm``: its job and workers run."""

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
    """As `describe.TaskStatus` has it; ``thread`` None: on none. Of a running active task ``rate``
    is what it processes, ``remaining_s`` until nothing waits (None: not known, or more waits than
    before), ``copied`` None; else of ``copied + lag`` offsets those that its copy has. ``paused``:
    a connector of it is."""

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
    paused: bool = False


@dataclass(frozen=True, kw_only=True)
class ObservedConnector:
    """A sink outside Kafka (note 074). ``paused``: by a user's wish, as this instance knows it;
    ``tasks``: task -> state, of those here; ``lag``: records that wait for them, None: not known;
    ``rows``: given to it since the start, and ``errors``: batches that failed in it, of which
    ``error`` is the last, at ``failed_ms`` (epoch)."""

    name: str
    kind: str
    what: str
    paused: bool = False
    tasks: Mapping[str, str] = field(default_factory=dict)
    lag: int | None = None
    rows: float = 0.0
    errors: float = 0.0
    error: str = ""
    failed_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class ObservedTime:
    """Of a sub-topology with ``stream.time=lowest``: the event time (epoch ms) that is certain for
    all of its inputs, None: it has none yet, and by how much the wall clock is ahead of it.
    ``held_by``: the source partition that is waited for, empty: none; ``behind_s`` the furthest
    one, and ``since_ms``: when it got on last (epoch), None: not known."""

    subtopology: int
    ms: int | None = None
    lag_s: float | None = None
    held_by: str = ""
    behind_s: float = 0.0
    since_ms: int | None = None


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
    were asked, 0 where none was. Both None: the brokers have not answered."""

    thread: int
    transactional_id: str
    state: str | None = None
    open_s: float | None = None


class StableLag(NamedTuple):
    """What readers of committed records do not see of a partition, as a transaction is open:
    ``records`` behind its last stable offset; ``blocked_s``: how long it has been ``stable``."""

    records: int
    stable: int
    blocked_s: float


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
        misplaced_keys: topic -> the report on its keys in other partitions than its source says.
        lags: (topic, partition) -> records that wait, of the running tasks.
        recent: of the last minute, with labels.
        execution_paths: how many nodes of the plan each path computes.
        members: instances in the group; None: not known yet.
        application_tasks: active tasks of the whole application.
        hosts: instances of the group that say where they are, this one included.
        silent_s: for how long the brokers have not reported the ends of the input; 0 when they do.
        writers: who writes in transactions here; nobody does at least once.
        stable_lags: (topic, partition) -> what an open transaction blocks of tasks' inputs.
        answer_age_s: how old the brokers' answer for both is; None: there is none yet.
        disk: the one of the state folder; None: not known.
        connectors: all of the program.
        times: of the sub-topologies with tasks here; none with ``stream.time=highest``.
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
    execution_paths: Mapping[str, int] = field(default_factory=dict)
    members: int | None = None
    application_tasks: int = 0
    desired_instances: int | None = None
    hosts: Sequence[ObservedHost] = ()
    silent_s: float = 0.0
    writers: Sequence[ObservedWriter] = ()
    stable_lags: Mapping[tuple[str, int], StableLag] = field(default_factory=dict)
    answer_age_s: float | None = None
    disk: DiskSpace | None = None
    connectors: Sequence[ObservedConnector] = ()
    times: Sequence[ObservedTime] = ()

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


DEAD = ("ERROR", "PENDING_ERROR", "NOT_RUNNING")
ENDING = ("PENDING_SHUTDOWN",)


class Health(NamedTuple):
    """Yes or no, and why, for people."""

    ok: bool
    why: str


def live(seen: Observation) -> Health:
    """Alive, if a restart would not help: also while it starts, restores, or ends in order."""
    if seen.state in DEAD:
        return Health(False, f"state {seen.state}" + (f": {seen.error}" if seen.error else ""))
    dead = [str(thread.number) for thread in seen.threads if not thread.alive]
    if dead and seen.state == "RUNNING":
        return Health(False, f"stream threads that ended: {', '.join(dead)}")
    return Health(True, f"state {seen.state}")


def state_reason(seen: Observation) -> str:
    """Why it is REBALANCING (all between start and running), for people; else empty."""
    if seen.state != "REBALANCING":
        return ""
    processes = ready(seen)
    why = "its group rebalances" if processes.ok else processes.why
    return f"{why}, {seen.state_s:.0f} s"


def ready(seen: Observation) -> Health:
    """Ready, if it processes all of its tasks, also of none: instances may be more than tasks."""
    alive = live(seen)
    if not alive.ok:
        return alive
    if seen.state in (*ENDING, "CREATED"):
        return Health(False, f"state {seen.state}")
    if not seen.threads:
        return Health(False, "it starts")
    if seen.state != "RUNNING" and seen.preparing:
        return Health(False, f"it {seen.preparing}")
    if seen.restoring:
        ids = ", ".join(task.task for task in seen.restoring[:5])
        more = f" and {len(seen.restoring) - 5} more" if len(seen.restoring) > 5 else ""
        return Health(False, f"active tasks that do not run yet: {ids}{more}")
    if seen.state != "RUNNING" and not seen.active and seen.members is None:
        return Health(False, "it has not joined its group yet")
    return Health(True, f"{len(seen.active)} active tasks run")


ABORTED, FENCED = "aborted", "migrated"
"""Kinds of failed batches: the first is reported by its causes, the second by itself."""


def transactions(seen: Observation) -> dict[str, Any]:
    """By stream thread; and what open transactions block, the worst first. None: not known."""
    return {
        "threads": [_thread(seen, thread.number) for thread in seen.threads],
        "ended_of_others": seen.counters.get(names.WRITERS_FENCED, 0.0),
        "held_back": blocked_partitions(seen),
        "told_s": seen.answer_age_s,
    }


def blocked_partitions(seen: Observation) -> list[dict[str, Any]]:
    """Partitions whose end readers of committed records do not see, the longest blocked first."""
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "records": one.records,
            "stable": one.stable,
            "held_s": one.blocked_s,
        }
        for (topic, partition), one in seen.stable_lags.items()
        if one.records
    ]
    return sorted(
        rows, key=lambda row: (-row["held_s"], -row["records"], row["topic"], row["partition"])
    )


def _thread(seen: Observation, number: int) -> dict[str, Any]:
    thread = str(number)
    writer = next((one for one in seen.writers if one.thread == number), None)
    failed, refused = (
        {what: count for (of, what), count in seen.series.get(name, {}).items() if of == thread}
        for name in (names.FAILED_BATCHES, names.REFUSED_COMMITS)
    )
    others = {kind: count for kind, count in failed.items() if kind not in (ABORTED, FENCED)}
    return {
        "thread": number,
        "transactional_id": "" if writer is None else writer.transactional_id,
        "state": None if writer is None else writer.state,
        "open_s": None if writer is None else writer.open_s,
        "committed_ms": seen.series.get(names.LAST_COMMIT, {}).get((thread,)),
        "aborted": {**refused, **others},
        "fenced": failed.get(FENCED, 0.0),
        "renewed": seen.series.get(names.RENEWED_PRODUCERS, {}).get((thread,), 0.0),
    }


LONGEST = 2_000
"""Characters of a text that another instance says."""
_TASK = ("task", "role", "state", "lag", "rate", "remaining_s", "copied", "trouble", "paused")
_TIME = ("subtopology", "ms", "lag_s", "held_by", "behind_s", "since_ms")
_CONNECTOR = ("name", "kind", "what", "paused", "lag", "rows", "errors", "error", "failed_ms")
_THREAD = ("number", "alive", "tasks", "busy", "trouble", "warm")


def lag_of(seen: Observation) -> int | None:
    lag = seen.counters.get(names.LAG, math.nan)
    return None if math.isnan(lag) else int(lag)


def identity_of(seen: Observation) -> dict[str, Any]:
    return {
        "application_id": seen.application_id,
        "client_id": seen.client_id,
        "version": seen.version,
        "topology": seen.topology,
        "program": seen.program,
        "started_ms": seen.started_ms,
        "state": seen.state,
        "state_reason": state_reason(seen),
        "ready": ready(seen)._asdict(),
        "lag": lag_of(seen),
        "members": seen.members,
    }


def status_of(seen: Observation) -> dict[str, Any]:
    """The instance's state, both checks, threads and tasks. A number is null if not known."""
    return {
        **identity_of(seen),
        "state_s": seen.state_s,
        "error": seen.error,
        "live": live(seen)._asdict(),
        "lags": [
            {"topic": topic, "partition": partition, "lag": waits}
            for (topic, partition), waits in sorted(seen.lags.items())
        ],
        "misplaced_keys": keys_elsewhere(seen),
        "consumed": seen.counters.get(names.RECORDS_CONSUMED, 0.0),
        "silent_s": seen.silent_s,
        "desired_instances": seen.desired_instances,
        "threads": [asdict(thread) for thread in seen.threads],
        "transactions": transactions(seen),
        "disk": None if seen.disk is None else seen.disk._asdict(),
        "tasks": [asdict(task) for task in seen.tasks],
        "connectors": [asdict(one) for one in seen.connectors],
        "times": [asdict(one) for one in seen.times],
    }


def keys_elsewhere(seen: Observation) -> list[dict[str, Any]]:
    """Topics with keys in other partitions than their sources say: of how many, and the cure."""
    misplaced, checked = (
        seen.series.get(name, {}) for name in (names.KEYS_MISPLACED, names.KEYS_CHECKED)
    )
    return [
        {
            "topic": topic,
            "misplaced": int(misplaced.get((topic,), 0)),
            "checked": int(checked.get((topic,), 0)),
            "cure": cure,
        }
        for topic, cure in sorted(seen.misplaced_keys.items())
    ]


def observation_in(status: Any) -> Observation:
    """What another instance says of itself, over the network. ValueError: it is no status."""
    try:
        lag = status["lag"]
        counters = {
            names.LAG: math.nan if lag is None else _finite(lag),
            names.RECORDS_CONSUMED: _finite(status.get("consumed", 0.0)),
        }
        return Observation(
            application_id=str(status["application_id"]),
            client_id=str(status["client_id"]),
            version=str(status["version"]),
            state=str(status["state"]),
            state_number=-1,
            state_s=_finite(status.get("state_s", 0.0)),
            topology=str(status.get("topology", ""))[:LONGEST],
            program=str(status.get("program", ""))[:LONGEST],
            error=str(status["error"])[:LONGEST],
            threads=[
                ObservedThread(**_part({"warm": True, **one}, ObservedThread, _THREAD))
                for one in status["threads"]
            ],
            tasks=[
                ObservedTask(**_part({"paused": False, **one}, ObservedTask, _TASK))
                for one in status["tasks"]
            ],
            connectors=[
                ObservedConnector(
                    **_part(one, ObservedConnector, _CONNECTOR),
                    tasks={str(task): str(state) for task, state in one["tasks"].items()},
                )
                for one in status.get("connectors", ())
            ],
            times=[
                ObservedTime(**_part(one, ObservedTime, _TIME)) for one in status.get("times", ())
            ],
            counters=counters,
            lags={
                (str(one["topic"]), int(one["partition"])): int(one["lag"])
                for one in status.get("lags", ())
            },
            members=None if status["members"] is None else int(status["members"]),
            silent_s=_finite(status.get("silent_s", 0.0)),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is no status of an everflow instance ({error!r})") from error


_types = cache(get_type_hints)


def _part(status: Mapping[str, Any], kind: type, wanted: tuple[str, ...]) -> dict[str, Any]:
    found = {name: status[name] for name in wanted}
    types = _types(kind)
    for name, value in found.items():
        numbers = (int,) if float in (types[name], *get_args(types[name])) else ()
        if not isinstance(value, (types[name], *numbers)):
            raise TypeError(f"{name} is {value!r}")
        if isinstance(value, float):
            _finite(value)
        if isinstance(value, str):
            found[name] = value[:LONGEST]
    return found


def _finite(value: Any) -> float:
    """A number that JSON has a text for: a page is made of it."""
    number = float(value)
    if not math.isfinite(number):
        raise TypeError(f"{number} is no number")
    return number
