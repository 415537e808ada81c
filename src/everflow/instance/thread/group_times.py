"""Asks the brokers what the tasks of other instances have told of event time, and where logs end
(``stream.time=lowest``, note 076): for all stream threads together, while one of them needs it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from everflow.clock import Clock, Spawn
from everflow.errors import EverflowError, RetriableError
from everflow.instance.thread.progress import (
    Committed,
    EventTimes,
    TimedProgram,
    committed_by_kafka_streams,
)
from everflow.protocol.messages import parse_metadata
from everflow.records import CommittedOffset, Offsets, TaskId, TopicPartition

log = logging.getLogger("everflow")

HERE_MS = 5.0
"""The shortest time between two questions; answers of tasks here are asked for at once."""
OTHERS_MS = 100.0
"""Between two questions about the tasks of others."""
QUIET_MS = 1_000.0
"""That time grows to this one while their answers tell nothing new."""
AGAIN_MS = 1_000.0
"""Behind a question that brokers did not answer."""


def times_of(
    program: TimedProgram,
    committed: Mapping[TopicPartition, CommittedOffset],
    named: Callable[[str], Mapping[str, int]],
) -> dict[TaskId, Committed]:
    """What each task has committed; nothing of one that has not. ``named(metadata)``:
    the stream times in it, by the names of this program."""
    found = {}
    for task, inputs in program.tasks.items():
        mine = {tp: committed[tp] for tp in inputs if tp in committed}
        times: dict[str, int] = {}
        sinks = program.sinks.get(task, frozenset())
        for one in mine.values():
            java = committed_by_kafka_streams(one.metadata, sinks)
            for name, ms in (java or named(one.metadata)).items():
                lower = java and name in times
                times[name] = min(ms, times[name]) if lower else max(ms, times.get(name, ms))
        if mine:
            found[task] = Committed({tp: one.offset for tp, one in mine.items()}, times)
    return found


def stream_times_in(metadata: str) -> Mapping[str, int]:
    return parse_metadata(metadata).stream_times


@dataclass
class GroupTimes:
    """Keeps `EventTimes` up to date, on a thread of its own. ``committed``: offsets of the group
    with their metadata, open transactions left out. ``ends``: of logs, open transactions included;
    its answer may lack some. Both raise EverflowError."""

    times: EventTimes
    committed: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, CommittedOffset]]
    ends: Callable[[Collection[TopicPartition]], Offsets]
    clock: Clock
    spawn: Spawn
    named: Callable[[str], Mapping[str, int]] = stream_times_in
    _stop: threading.Event = field(default_factory=threading.Event)
    _period_ms: float = OTHERS_MS
    _failing: bool = False

    def start(self) -> None:
        """Asks from a thread of its own until `close`, if there is something to ask."""
        if self.times.program.writers:
            self.spawn("everflow-event-times", self._run)

    def close(self) -> None:
        """Returns at once."""
        self._stop.set()
        self.times.due.set()

    def ask_once(self) -> bool:
        """True if there was something new."""
        question = self.times.question()
        if question is None:
            return False
        found = self.committed(question.committed) if question.committed else {}
        others = times_of(self.times.program, found, self.named)
        # The ends behind the times: what was written before a time was told lies in front of them.
        here = self.times.known()
        ends = self.ends(question.ends)
        return self.times.answered(here, others, ends, self.clock.monotonic_ms())

    def _run(self) -> None:
        while not self._stop.is_set():
            others = self.times.waits_for_others
            due = self.clock.wait(self.times.due, self._period_ms if others else QUIET_MS)
            self.times.due.clear()
            if not due and not others:
                continue
            pause_ms = HERE_MS
            try:
                news = self.ask_once()
                period_ms = OTHERS_MS if news else min(QUIET_MS, self._period_ms * 2)
                self._period_ms, self._failing = period_ms, False
            except EverflowError as error:
                if not self._failing and not self._stop.is_set():
                    level = logging.WARNING if isinstance(error, RetriableError) else logging.ERROR
                    log.log(level, "The times of event time cannot be read: %s", error)
                self._failing, pause_ms = True, AGAIN_MS
                self.times.due.set()
            self.clock.wait(self._stop, pause_ms)
