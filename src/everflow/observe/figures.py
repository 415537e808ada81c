"""All figures of `/metrics`: name, kind, labels, meaning, and where each is read.

They are in ``figures.tsv``, one line a figure: names and groups are Kafka Streams', in the form in
which its JMX figures reach Prometheus; ``everflow_`` begins what Kafka Streams does not have.
"""

from __future__ import annotations

import math
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from everflow import metrics as names
from everflow.metrics import Labels
from everflow.observe.observation import Observation, ObservedTask, ready

COUNTER = "counter"
Values = Iterable[tuple[Labels, float]]
Read = Callable[[Observation], Values]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure. ``labels`` stand behind ``client_id``; ``read`` gives their values, and its."""

    name: str
    kind: str
    text: str
    read: Read
    labels: tuple[str, ...] = ()


def _one(value: Callable[[Observation], float | None]) -> Read:
    def read(seen: Observation) -> Values:
        found = value(seen)
        return [] if found is None else [((), found)]

    return read


def _tasks(value: Callable[[ObservedTask], float | None]) -> Read:
    return lambda seen: [
        ((task.task, task.role), found) for task in seen.tasks if (found := value(task)) is not None
    ]


def _count(role: str, state: str) -> Read:
    return _one(lambda seen: sum((task.role, task.state) == (role, state) for task in seen.tasks))


def _left(task: ObservedTask, role: bool) -> float | None:
    return float(task.lag) if role and task.lag is not None else None


_READ: Mapping[str, Read] = {
    "alive threads": _one(lambda seen: sum(thread.alive for thread in seen.threads)),
    "failing threads": _one(lambda seen: sum(bool(thread.trouble) for thread in seen.threads)),
    "program": lambda seen: [
        ((seen.application_id, seen.version, seen.topology, seen.program), 1.0)
    ],
    "ready": _one(lambda seen: float(ready(seen).ok)),
    "execution paths": lambda seen: [
        ((path,), count) for path, count in seen.execution_paths.items()
    ],
    "busy": lambda seen: [((str(thread.number),), thread.busy) for thread in seen.threads],
    "last commit": lambda seen: [
        (labels, ms / 1000) for labels, ms in seen.series.get(names.LAST_COMMIT, {}).items()
    ],
    "open transactions": lambda seen: [
        ((str(one.thread), one.transactional_id), one.open_s)
        for one in seen.writers
        if one.open_s is not None
    ],
    "records held back": lambda seen: [
        ((topic, str(partition)), one.records)
        for (topic, partition), one in seen.stable_lags.items()
    ],
    "seconds held back": lambda seen: [
        ((topic, str(partition)), one.blocked_s)
        for (topic, partition), one in seen.stable_lags.items()
    ],
    "task states": lambda seen: [((task.task, task.role, task.state), 1.0) for task in seen.tasks],
    "troubled": _tasks(lambda task: 1.0 if task.trouble else None),
    "restore left": _tasks(
        lambda task: _left(task, (task.role, task.state) == ("active", "RESTORING"))
    ),
    "copies left": _tasks(lambda task: _left(task, task.role in ("standby", "warm-up", "global"))),
    "restore seconds left": _tasks(
        lambda task: task.remaining_s if task.state == "RESTORING" else None
    ),
    "store bytes": lambda seen: [
        ((task.task, task.role, store.name), store.bytes)
        for task in seen.tasks
        for store in task.stores
    ],
    "disk bytes": _one(lambda seen: None if seen.disk is None else seen.disk.bytes),
    "disk free": _one(lambda seen: None if seen.disk is None else seen.disk.free),
    "active restoring": _count("active", "RESTORING"),
    "standby running": _count("standby", "RUNNING"),
    "warm-up running": _count("warm-up", "RUNNING"),
    "lags": lambda seen: [
        ((topic, str(partition)), lag) for (topic, partition), lag in seen.lags.items()
    ],
    "connectors paused": lambda seen: [((one.name,), float(one.paused)) for one in seen.connectors],
    "connector tasks": lambda seen: [
        ((one.name, state), count)
        for one in seen.connectors
        for state, count in Counter(one.tasks.values()).items()
    ],
    "connector lag": lambda seen: [
        ((one.name,), one.lag) for one in seen.connectors if one.lag is not None
    ],
    "stream times": lambda seen: [
        ((str(one.subtopology),), one.ms / 1000) for one in seen.times if one.ms is not None
    ],
    "stream time lags": lambda seen: [
        ((str(one.subtopology),), one.lag_s) for one in seen.times if one.lag_s is not None
    ],
    "lag": _one(lambda seen: seen.counters.get(names.LAG, math.nan)),
}
"""What is no total or series of `everflow.metrics` and no attribute of an observation."""


def _reader(spec: str) -> Read:
    """``attribute NAME`` of an observation; ``total``, ``series`` or ``recent`` with a name of
    `everflow.metrics`, of the last one also which property of `Seen`; else of `_READ`."""
    how, _, name = spec.partition(" ")
    if how == "attribute":
        return _one(lambda seen: getattr(seen, name))
    if how == "total":
        return _one(lambda seen: seen.counters.get(name, 0.0))
    if how == "series":
        return lambda seen: seen.series.get(name, {}).items()
    if how == "recent":
        metric, _, which = name.partition(" ")
        return lambda seen: [
            (labels, getattr(found, which)) for labels, found in seen.recent.get(metric, {}).items()
        ]
    return _READ[spec]


def _figures() -> Iterable[Figure]:
    data = pkgutil.get_data(__name__, "figures.tsv")
    assert data is not None  # the loader of an installed package reads its files
    for line in data.decode().splitlines()[1:]:
        name, kind, labels, spec, text = line.split("\t")
        yield Figure(
            name=name, kind=kind, labels=tuple(labels.split()), read=_reader(spec), text=text
        )


FIGURES: tuple[Figure, ...] = tuple(_figures())
