"""The connectors of a program, and what an application's connector topic says of them (note 074):
which are paused, which tasks were to be restarted, and how each task is. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from everflow.records import TaskId, TopicPartition
from everflow.topology.graph import SinkNode, SourceNode, StatefulNode, WriteNode
from everflow.topology.subtopologies import SubTopologies
from everflow.user_program import place

T = TypeVar("T")

TOPIC_CONFIG = {"cleanup.policy": "compact"}
SINK, SOURCE = "sink", "source"
RUNNING, PAUSED, FAILED, RESTORING, RESTARTING = (
    "RUNNING",
    "PAUSED",
    "FAILED",
    "RESTORING",
    "RESTARTING",
)
"""States of a connector's task. FAILED: its batches fail and are tried again, or it rests."""
UNASSIGNED = "UNASSIGNED"
"""Of a task that no instance of the group has reported."""
_ABOUT, _PAUSE, _RESTART, _TASK = "connector", "pause", "restart", "task"


def connector_topic(application_id: str) -> str:
    """Named as an internal topic, so that its tools know it (`everflow reset`, ACLs by prefix)."""
    return f"{application_id}-everflow-connectors-changelog"


@dataclass(frozen=True, kw_only=True)
class Connector:
    """A named sink or source outside Kafka. ``what``: its format or class; ``subtopologies``: whose
    tasks are its tasks; ``where``: its line in the program."""

    name: str
    kind: str
    what: str
    subtopologies: frozenset[int]
    where: str | None = None

    def has(self, task: TaskId) -> bool:
        return task.subtopology in self.subtopologies


def connectors(subs: SubTopologies) -> dict[str, Connector]:
    """All of the program, by name."""
    found: dict[str, Connector] = {}
    of_source: dict[str, set[int]] = {}
    for node in subs.topology.nodes:
        match node:
            case WriteNode(name=name, sink=sink):
                found[name] = Connector(
                    name=name,
                    kind=SINK,
                    what=_what(sink),
                    subtopologies=frozenset({subs.index_of[name]}),
                    where=node.where,
                )
            case StatefulNode(connector=name, operator=operator) if name:
                of_source.setdefault(name, set()).add(subs.index_of[node.name])
                if operator.in_pieces:
                    found[name] = Connector(
                        name=name,
                        kind=SOURCE,
                        what=_what(getattr(operator, "source", None)),
                        subtopologies=frozenset(),
                        where=node.where,
                    )
    for name, parts in of_source.items():
        found[name] = replace(found[name], subtopologies=frozenset(parts))
    return found


def of_parts(found: Mapping[str, Connector]) -> dict[int, list[Connector]]:
    """By sub-topology: there may be a thousand connectors, and as many tasks."""
    parts: dict[int, list[Connector]] = {}
    for one in found.values():
        for part in one.subtopologies:
            parts.setdefault(part, []).append(one)
    return parts


def _what(sink: object) -> str:
    """The class: a data source's own, where the sink is one of PySpark's."""
    return str(getattr(sink, "source", type(sink)).__name__)


def sharing(name: str, found: Mapping[str, Connector], subs: SubTopologies) -> list[str]:
    """What else stands still while connector ``name`` is paused, as it has the same tasks: other
    connectors, output topics (also internal ones that lead elsewhere), stores; for people."""
    parts = found[name].subtopologies
    others = [one for one in found.values() if one.name != name]
    shared = [f"{one.kind} {one.name}" for one in others if parts & one.subtopologies]
    stopped = [sub for sub in subs.subtopologies if sub.index in parts]
    nodes = [node for sub in stopped for node in sub.nodes]
    of_source = nodes if found[name].kind == SOURCE else []
    read = {topic for node in of_source if isinstance(node, SourceNode) for topic in node.topics}
    own = set[str]()
    for node in nodes:
        match node:
            case SinkNode(topic=str(topic)) if topic not in read:
                shared.append(f"topic {topic}")
            case SinkNode() if not isinstance(node.topic, str):
                shared.append(f"output {node.name}")
            case StatefulNode(connector=connector) if connector == name:
                own |= {spec.name for spec in node.stores}
    stores = [spec.name for sub in stopped for spec in sub.stores]
    shared += [f"store {store}" for store in stores if store not in own]
    return list(dict.fromkeys(shared))


@dataclass(frozen=True, kw_only=True)
class ConnectorFacts:
    """A connector as instances describe it to people. ``tasks``: how many each sub-topology has;
    ``inputs``: what those read, full names; ``shares``: `sharing`."""

    kind: str
    what: str
    where: str
    tasks: Mapping[int, int]
    inputs: Mapping[int, tuple[str, ...]]
    shares: tuple[str, ...] = ()

    @property
    def all_tasks(self) -> list[TaskId]:
        return [TaskId(sub, p) for sub, count in sorted(self.tasks.items()) for p in range(count)]

    def reads(self, task: TaskId, log: TopicPartition) -> bool:
        """Whether ``log`` is one of the task's, which may have several of a topic that grew."""
        count = self.tasks[task.subtopology]
        read = log.topic in self.inputs[task.subtopology]
        return read and log.partition % count == task.partition


def facts_of(
    found: Mapping[str, Connector],
    subs: SubTopologies,
    application_id: str,
    tasks: Callable[[int], int],
) -> dict[str, ConnectorFacts]:
    """``tasks``: how many a sub-topology has."""
    inputs = {sub.index: sub.inputs(application_id) for sub in subs.subtopologies}
    return {
        name: ConnectorFacts(
            kind=one.kind,
            what=one.what,
            where="" if one.where is None else place(one.where),
            tasks={index: tasks(index) for index in sorted(one.subtopologies)},
            inputs={index: inputs[index] for index in sorted(one.subtopologies)},
            shares=tuple(sharing(name, found, subs)),
        )
        for name, one in found.items()
    }


def paused_parts(found: Mapping[str, Connector], paused: Collection[str]) -> frozenset[int]:
    """The sub-topologies whose tasks do not run. Names that the program does not have pause
    nothing."""
    return frozenset().union(*(found[name].subtopologies for name in paused if name in found))


# --- the topic ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Restart:
    """``task``: the partition of the one task, None: all; ``only_failed``: of those that fail."""

    connector: str
    task: int | None = None
    only_failed: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """How an instance says a connector's task is. ``seen``: the offset behind the last command that
    the instance had taken; ``error``: of its last failure, for people, at ``failed_ms`` (epoch)."""

    state: str
    instance: str
    seen: int = 0
    error: str = ""
    failed_ms: int | None = None


Place = tuple[str, TaskId]
"""A connector's task."""
Row = tuple[int, bytes | None, bytes | None]
"""Offset, key and value of a record of the topic."""


@dataclass
class ConnectorBook:
    """A fold of the topic. ``facts``: of all connectors that instances have told of; ``paused``:
    name -> since when (epoch ms); ``position``: the next offset to read; ``commanded``: behind the
    last command."""

    facts: dict[str, ConnectorFacts] = field(default_factory=dict)
    paused: dict[str, int] = field(default_factory=dict)
    reports: dict[Place, TaskReport] = field(default_factory=dict)
    position: int = 0
    commanded: int = 0

    def take(self, rows: Iterable[Row]) -> list[Restart]:
        """The restarts among them. What cannot be read is another release's, and left out."""
        restarts = []
        for offset, key, value in rows:
            self.position = offset + 1
            try:
                kind, name, *rest = (key or b"").decode().split("/")
                content = None if value is None else json.loads(value)
                if kind == _ABOUT:
                    _put(self.facts, name, None if content is None else _facts(content))
                elif kind == _PAUSE:
                    since = None if content is None else int(content["since_ms"])
                    _put(self.paused, name, since)
                elif kind == _RESTART and content is not None:
                    restarts.append(Restart(connector=name, **content))
                elif kind == _TASK and content is not None:
                    self.reports[name, TaskId.parse(rest[0])] = TaskReport(**content)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError):
                continue
            if kind in (_PAUSE, _RESTART):
                self.commanded = offset + 1
        return restarts


def _put(entries: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        entries.pop(name, None)
    else:
        entries[name] = value


def _facts(content: Mapping[str, Any]) -> ConnectorFacts:
    return ConnectorFacts(
        **{
            **content,
            "tasks": {int(sub): int(count) for sub, count in content["tasks"].items()},
            "inputs": {int(sub): tuple(topics) for sub, topics in content["inputs"].items()},
            "shares": tuple(content["shares"]),
        }
    )


Record = tuple[bytes, bytes | None]


def facts_record(name: str, facts: ConnectorFacts | None) -> Record:
    """None: the program does not have it any more."""
    value = None if facts is None else json.dumps(asdict(facts)).encode()
    return f"{_ABOUT}/{name}".encode(), value


def pause_record(name: str, now_ms: int) -> Record:
    return f"{_PAUSE}/{name}".encode(), json.dumps({"since_ms": now_ms}).encode()


def resume_record(name: str) -> Record:
    return f"{_PAUSE}/{name}".encode(), None


def restart_record(one: Restart) -> Record:
    content = {"task": one.task, "only_failed": one.only_failed}
    return f"{_RESTART}/{one.connector}".encode(), json.dumps(content).encode()


def report_record(place: Place, report: TaskReport) -> Record:
    name, task = place
    return f"{_TASK}/{name}/{task}".encode(), json.dumps(asdict(report)).encode()
