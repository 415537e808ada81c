"""Follows the connector topic of the application, and reports there (note 074)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from everflow.clock import Clock, Running, on_thread
from everflow.errors import EverflowError
from everflow.logs import rebalance_log, some
from everflow.records import TaskId
from everflow.retry import StoppedRequest
from everflow.topology.connectors import (
    FAILED,
    Connector,
    ConnectorBook,
    ConnectorFacts,
    Place,
    Record,
    Restart,
    Row,
    TaskReport,
    facts_record,
    of_parts,
    paused_parts,
    report_record,
)

log = logging.getLogger("everflow")

PERIOD_MS = 500.0
"""So long after a command an instance has taken it, at most."""
SAME_STATE_MS = 10_000.0
"""A task whose error alone is another one is reported so often."""
LAST_WORD_S = 5.0
"""So long a close waits for the last errors to be written."""


@dataclass(frozen=True)
class TaskNow:
    """``state``: of `everflow.topology.connectors`."""

    state: str
    error: str = ""
    failed_ms: int | None = None


@dataclass(kw_only=True)
class ConnectorWatch:
    """Belongs to one thread, but for ``paused``: that of the start, then its own (`start`).

    ``read(position)``: the topic's records from there on, all that are there; of a topic that was
    created again, all. ``write``: gives records to the topic. ``restart``: returns once the tasks
    are on their way. ``tasks``: the active ones here. ``last_error``: a connector's, with its time
    (epoch ms), if it had one. ``pause(names, parts)``: these, and their sub-topologies, stand
    still from now on, no others. ``instance``: its client id. `begin` and `turn` raise
    EverflowError.
    """

    connectors: Mapping[str, Connector]
    facts: Mapping[str, ConnectorFacts]
    read: Callable[[int], Sequence[Row]]
    write: Callable[[Sequence[Record]], None]
    restart: Callable[[Callable[[TaskId], bool], bool], None]
    tasks: Callable[[], Mapping[TaskId, TaskNow]]
    last_error: Callable[[str], tuple[str, int] | None]
    pause: Callable[[frozenset[str], frozenset[int]], None]
    clock: Clock
    instance: str
    book: ConnectorBook = field(default_factory=ConnectorBook)
    _stop: threading.Event = field(default_factory=threading.Event)
    _said: dict[Place, tuple[TaskReport, float]] = field(default_factory=dict)
    _runs: Running | None = None

    @property
    def paused(self) -> frozenset[str]:
        """Connectors of the program; from any thread."""
        return frozenset(self.book.paused).intersection(self.connectors)

    def begin(self) -> None:
        """Before the first batch: take what is wanted, tell of the program's connectors. Earlier
        restarts are over."""
        self._take()
        known = self.book.facts
        told = [facts_record(*one) for one in self.facts.items() if known.get(one[0]) != one[1]]
        told += [facts_record(name, None) for name in sorted(known.keys() - self.facts.keys())]
        if told:
            self.write(told)

    def start(self) -> None:
        self._runs = on_thread("everflow-connectors", self._run)

    def close(self) -> None:
        """Returns once the last errors stand in the topic, or cannot be written."""
        self._stop.set()
        if self._runs is not None:
            self._runs.join(LAST_WORD_S)

    def turn(self) -> None:
        for one in self._take():
            connector = self.connectors.get(one.connector)
            if connector is not None:
                self.restart(_chosen(connector, one), one.only_failed)
        self._report()

    def _take(self) -> list[Restart]:
        before = self.paused
        restarts = self.book.take(self.read(self.book.position))
        now = self.paused
        if now != before:
            self.pause(now, paused_parts(self.connectors, now))
        for names, what in ((now - before, "Paused"), (before - now, "Resumed")):
            if names:
                rebalance_log.info("%s connectors, by request: %s", what, some(sorted(names)))
        return restarts

    def _report(self) -> None:
        now_ms, found = self.clock.monotonic_ms(), self._reports()
        fresh = {place: one for place, one in found.items() if self._is_due(place, one, now_ms)}
        if fresh:
            self.write([report_record(place, one) for place, one in sorted(fresh.items())])
        # Of tasks that left, another instance tells; one that comes back is told of anew.
        self._said = {place: told for place, told in self._said.items() if place in found}
        self._said |= {place: (one, now_ms) for place, one in fresh.items()}

    def _reports(self) -> dict[Place, TaskReport]:
        found, parts = {}, of_parts(self.connectors)
        for task, now in self.tasks().items():
            for connector in parts.get(task.subtopology, ()):
                own = (now.error, now.failed_ms) if now.error else None
                error, at_ms = own or self._last_error((connector.name, task))
                found[connector.name, task] = TaskReport(
                    state=now.state,
                    instance=self.instance,
                    seen=self.book.commanded,
                    error=error,
                    failed_ms=at_ms,
                )
        return found

    def _last_error(self, place: Place) -> tuple[str, int | None]:
        """Of this instance, or of an earlier one: an error outlives the instance that had it."""
        known = self.book.reports.get(place)
        return self.last_error(place[0]) or (
            ("", None) if known is None else (known.error, known.failed_ms)
        )

    def last_word(self) -> None:
        """At the end: the errors that stand in no report yet, as one that ends the instance at once
        has none."""
        told = {place: one for place, (one, _) in self._said.items()} | self._reports()
        fresh = []
        for place, one in sorted(told.items()):
            last, known = self.last_error(place[0]), self._said.get(place)
            if last is not None and (known is None or known[0].failed_ms != last[1]):
                ended = replace(one, state=FAILED, error=last[0], failed_ms=last[1])
                fresh.append(report_record(place, ended))
        if fresh:
            self.write(fresh)

    def _is_due(self, place: Place, report: TaskReport, now_ms: float) -> bool:
        told = self._said.get(place)
        if told is None:
            return True
        last, at_ms = told
        if (last.state, last.seen) != (report.state, report.seen):
            return True
        return last != report and now_ms - at_ms >= SAME_STATE_MS

    def _run(self) -> None:
        self._follow()
        try:
            self.last_word()
        except EverflowError as error:
            log.warning("The last errors of connectors cannot be written: %s", error)

    def _follow(self) -> None:
        away = False
        while not self.clock.wait(self._stop, PERIOD_MS):
            try:
                self.turn()
                away = False
            except StoppedRequest:
                return
            except EverflowError as error:
                if not away and not self._stop.is_set():  # what is paused stays so
                    log.warning("The connector topic cannot be read or written now: %s", error)
                away = True
            except Exception:  # a defect is no reason to stop what runs
                log.exception("Following the connector topic failed")


def _chosen(connector: Connector, one: Restart) -> Callable[[TaskId], bool]:
    return lambda task: connector.has(task) and one.task in (None, task.partition)
