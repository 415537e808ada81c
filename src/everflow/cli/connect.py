"""What ``everflow connect`` does (note 074). It reads and writes the application's connector topic;
no instance is asked by itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everflow.cli.commands import require_not_gone, table
from everflow.cli.connect_action import Action
from everflow.clock import instant
from everflow.errors import ConfigError, FatalError
from everflow.kafka.admin import ClusterAdmin
from everflow.logs import counted, some
from everflow.records import Offsets, TaskId, TopicPartition
from everflow.topology.connectors import (
    FAILED,
    PAUSED,
    RESTARTING,
    RESTORING,
    RUNNING,
    UNASSIGNED,
    ConnectorBook,
    ConnectorFacts,
    Record,
    Restart,
    TaskReport,
    connector_topic,
    pause_record,
    restart_record,
    resume_record,
)

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.kafka.reading.log_reader import WrittenRecords

READ_S = 20.0
POLL_S = 0.2
REPORT_S = 5.0
"""For so long list and status wait for tasks that an instance may have, and has not reported yet:
it reports twice a second (`ConnectorWatch`)."""
PAUSING, RESUMING = "PAUSING", "RESUMING"
"""It is to be paused, and a task runs still; it is to run, and a task was paused when its instance
last reported it."""
_WORST = (FAILED, UNASSIGNED, RESTARTING, RESTORING, RESUMING, PAUSED, RUNNING)
_WIDTH = 120


def record_of(action: Action, wanted: Restart) -> Record:
    if action is Action.pause:
        return pause_record(wanted.connector, int(time.time() * 1000))
    return resume_record(wanted.connector) if action is Action.resume else restart_record(wanted)


@dataclass
class Desk:
    """What the topic, the group and the brokers say of an application's connectors now."""

    application_id: str
    admin: ClusterAdmin
    log: TopicPartition
    written: WrittenRecords
    write_record: Callable[[Record], int]
    book: ConnectorBook = field(default_factory=ConnectorBook)
    members: frozenset[str] = frozenset()
    asked: int = 0
    """The offset behind this command's own record."""

    def refresh(self) -> None:
        """RetriableError: the brokers do not answer."""
        end = self.admin.end_offsets([self.log], "read_committed")[self.log]
        self.written.read_to({self.log: end}, READ_S)
        rows = self.written.records[self.log]
        self.book.take((row.offset, row.key, row.value) for row in rows)
        rows.clear()
        self.members = self.admin.client_ids(self.application_id)

    def chosen(self, name: str | None) -> list[str]:
        known = sorted(self.book.facts)
        if name is not None and name not in known:
            raise ConfigError(
                f"{self.application_id} has no connector {name!r}: it has {some(known, 12)}."
            )
        return known if name is None else [name]

    def write(self, record: Record) -> None:
        self.asked = self.write_record(record)

    def await_done(self, name: str, action: Action, until_s: float) -> list[TaskId]:
        """The tasks that have not done it until then (monotonic); none without an instance."""
        while True:
            self.refresh()
            late = [
                task
                for task in self.book.facts[name].all_tasks
                if not self._has_done(name, task, action)
            ]
            if not late or not self.members or time.monotonic() >= until_s:
                return late if self.members else []
            time.sleep(POLL_S)

    def _has_done(self, name: str, task: TaskId, action: Action) -> bool:
        report = self.report(name, task)
        if report is None or report.seen < self.asked:
            return False
        if action is Action.pause:
            return report.state == PAUSED
        return self._state(name, task) not in (RESTARTING, RESUMING)

    def await_reports(self, names: Sequence[str], until_s: float) -> None:
        """Return when an instance of the group has reported each task, there is none, or then
        (monotonic)."""
        while self.members and time.monotonic() < until_s:
            places = [(name, task) for name in names for task in self.book.facts[name].all_tasks]
            if all(self.report(*place) is not None for place in places):
                return
            time.sleep(POLL_S)
            self.refresh()

    def report(self, name: str, task: TaskId) -> TaskReport | None:
        """None where the instance that told it is no member any more."""
        found = self.book.reports.get((name, task))
        return found if found is not None and found.instance in self.members else None

    def _state(self, name: str, task: TaskId) -> str:
        report = self.report(name, task)
        if report is None:
            return UNASSIGNED
        paused = (self.book.facts.get(one) for one in self.book.paused)
        # Connectors of one sub-topology have the same tasks.
        is_wanted = all(one is None or task.subtopology not in one.tasks for one in paused)
        return RESUMING if report.state == PAUSED and is_wanted else report.state

    def rows(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """A row for each connector, with its tasks."""
        lags = self._lags([self.book.facts[name] for name in names])
        return [self._row(name, self.book.facts[name], lags) for name in names]

    def _row(
        self, name: str, facts: ConnectorFacts, lags: Mapping[str, Sequence[tuple[int, int]]]
    ) -> dict[str, Any]:
        tasks = []
        for task in facts.all_tasks:
            report = self.report(name, task)
            last = self.book.reports.get((name, task))  # its error outlives the instance
            waits = [
                lag
                for topic in facts.inputs[task.subtopology]
                for partition, lag in lags.get(topic, ())
                if facts.reads(task, TopicPartition(topic, partition))
            ]
            tasks.append(
                {
                    "task": str(task),
                    "state": self._state(name, task),
                    "lag": sum(waits),
                    "instance": "" if report is None else report.instance,
                    "error": "" if last is None else last.error,
                    "failed_ms": None if last is None else last.failed_ms,
                }
            )
        since_ms = self.book.paused.get(name)
        return {
            "connector": name,
            "kind": facts.kind,
            "what": facts.what,
            "where": facts.where,
            "state": state_of(since_ms is not None, [str(one["state"]) for one in tasks]),
            "paused_since_ms": since_ms,
            "lag": sum(one["lag"] for one in tasks),
            "shares": list(facts.shares),
            "tasks": tasks,
        }

    def _lags(self, found: Sequence[ConnectorFacts]) -> dict[str, list[tuple[int, int]]]:
        """By topic, of each partition; what was never committed waits from the log's begin on."""
        topics = {topic for one in found for read in one.inputs.values() for topic in read}
        shapes = self.admin.describe_topics(topics)
        logs = [TopicPartition(t, p) for t, one in shapes.items() for p in range(one.partitions)]
        ends = self.admin.list_offsets(logs, "latest", "read_committed")
        starts: Offsets = self.admin.list_offsets(logs, "earliest", "read_uncommitted")
        committed = self.admin.committed(self.application_id, logs, stable=False)
        begun = {tp: one.offset for tp, one in committed.items()}
        lags: dict[str, list[tuple[int, int]]] = {}
        for tp in logs:
            waits = max(0, ends[tp] - max(begun.get(tp, 0), starts[tp]))
            lags.setdefault(tp.topic, []).append((tp.partition, waits))
        return lags


@contextmanager
def desk_of(config: StreamsConfig, admin: ClusterAdmin, application_id: str) -> Iterator[Desk]:
    """FatalError: the application has no connector topic. ApplicationMigratedError."""
    from everflow.kafka.reading.log_reader import WrittenRecords
    from everflow.kafka.writing.record_writer import RecordWriter

    committed = admin.committed(application_id, None, READ_S, stable=False)
    require_not_gone(application_id, committed, "everflow connect {} list")
    log = TopicPartition(connector_topic(application_id), 0)
    if not admin.describe_topics([log.topic]):
        raise FatalError(
            f"no connector of {application_id} is known at {config.bootstrap_servers}: there is no "
            f"topic {log.topic}, which an instance makes at its start if the program has sinks "
            f"outside Kafka. Is this its application.id, and has an instance of this release run?"
        )
    start = admin.list_offsets([log], "earliest", "read_uncommitted")[log]

    def write(record: Record) -> int:
        key, value = record
        with closing(RecordWriter(config.producer(), None)) as writer:
            writer.begin()
            writer.write(log.topic, [key], [value], [int(time.time() * 1000)], 0)
            writer.flush(READ_S)
            return writer.positions()[log]

    with closing(WrittenRecords(config.consumer(), {log: start})) as written:
        yield Desk(application_id, admin, log, written, write)


def state_of(paused: bool, tasks: Sequence[str]) -> str:
    """The connector's, of its tasks' states. Pure."""
    if paused:
        running = [state for state in tasks if state not in (PAUSED, UNASSIGNED)]
        return PAUSING if running else PAUSED
    return next((state for state in _WORST if state in tasks), UNASSIGNED)


def is_bad(row: Mapping[str, Any]) -> bool:
    return row["state"] in (FAILED, UNASSIGNED)


def said(
    action: Action, name: str, facts: ConnectorFacts, late: Sequence[TaskId], running: bool
) -> list[str]:
    """What became of a command, for people. Pure."""
    lines = []
    if not running:
        lines.append(
            "No instance of the group runs: there is nothing to restart."
            if action is Action.restart
            else f"No instance of the group runs: the next one begins with {name} "
            f"{'paused' if action is Action.pause else 'running'}."
        )
    elif late:
        lines.append(
            f"{counted(len(late), 'task')} of {name} did not do it in time: {some(late, 12)}. It "
            f"holds, and they do it as soon as their instance sees it and their batch is over."
        )
    if action is Action.pause and facts.shares:
        lines.append(
            f"It has the same tasks as: {some(facts.shares, 12)}. They stand still, too. "
            f".repartition(name=...) in front of the sink gives it tasks of its own."
        )
    return lines


def list_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("connector", "is", "state", "tasks", "lag", "last error")
    return table([head, *(_list_cells(row) for row in rows)], numbers=(4,))


def _list_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    states = Counter(one["state"] for one in row["tasks"])
    last = max(row["tasks"], key=lambda one: one["failed_ms"] or 0, default=None)
    since_ms = row["paused_since_ms"]
    return (
        row["connector"],
        f"{row['kind']}, {row['what']}",
        row["state"] + ("" if since_ms is None else f" since {instant(since_ms)}"),
        ", ".join(f"{count} {state}" for state, count in sorted(states.items())),
        f"{row['lag']:,}",
        "" if last is None else _error(last),
    )


def status_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("connector", "task", "state", "lag", "instance", "last error")
    cells = [
        (
            row["connector"],
            one["task"],
            one["state"],
            f"{one['lag']:,}",
            one["instance"],
            _error(one),
        )
        for row in rows
        for one in row["tasks"]
    ]
    return table([head, *cells], numbers=(3,))


def _error(task: Mapping[str, Any]) -> str:
    text = str(task["error"])
    if not text:
        return ""
    cut = text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
    return f"{instant(task['failed_ms'])} {cut}"
