"""Runs a program as a group of instances would: tasks take turns in any order, each reads any part
of what there is, and each is told of the others' times late. In memory, on the test driver's step.

It has the driver's half of note 076 in its simplest form: what tasks have told, then the log's end.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everflow import StreamsBuilder
from everflow.protocol.messages import BatchRequest, InputTime, TaskContext
from everflow.records import OffsetRange, Ranges, TaskId, TopicPartition
from everflow.testing import TopologyTestDriver
from everflow.testing.topics import RawRecord
from everflow.topology.event_time import IN, UNKNOWN, Timeline, least, read_to, told, writers
from everflow.topology.sources import sources_of_logs

DAY_MS = 86_400_000
LATER_MS = 2_000_000_000_000
"""The wall clock: all records are of the past."""


@dataclass(kw_only=True)
class Cluster:
    """``lead_ms``: `max.event.time.lead`; ``lowest``: the rule of `stream.time`. ``chance`` decides
    who runs, and how much it reads."""

    engine: TopologyTestDriver
    builder: StreamsBuilder
    logs: dict[TopicPartition, list[RawRecord]]
    chance: random.Random
    lead_ms: int | None
    lowest: bool = True
    written: list[RawRecord] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    times: dict[TaskId, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine.reset()
        self.inputs = self.engine._topics.inputs
        listed = [tp for task in self.inputs.values() for tp in task]
        self.positions = dict.fromkeys(listed, 0)
        self.logs = {tp: self.logs.get(tp, []) for tp in listed}
        plan = self.engine._plan
        self.sources = sources_of_logs(plan.sources, listed)
        self.writers = writers(self.builder.build(), plan.application_id)
        self.learnt = {tp: Timeline() for tp in listed if tp.topic in self.writers}
        self.quiet = False

    def run(self) -> None:
        tasks = sorted(self.inputs)
        slow = self.chance.choice([None, *tasks])
        while any(self._unread(tp) for tp in self.positions if tp.topic not in self.writers):
            some = [one for one in tasks if self.chance.random() < (0.1 if one == slow else 0.5)]
            self._batch(some)
        self.quiet = True
        while self._round(tasks):
            pass

    def _round(self, tasks: list[TaskId]) -> bool:
        before = {task: dict(times) for task, times in self.times.items()}
        places = dict(self.positions)
        for task in self.chance.sample(tasks, len(tasks)):
            self._batch([task])
        return before != self.times or places != self.positions

    def _unread(self, tp: TopicPartition) -> int:
        return len(self.logs[tp]) - self.positions[tp]

    def _batch(self, tasks: Sequence[TaskId]) -> None:
        if not tasks:
            return
        ranges = {tp: self._range(tp, task) for task in tasks for tp in self.inputs[task]}
        ends = {tp: len(self.logs[tp]) for tp in ranges}
        request = BatchRequest(
            batch_id="test.0.0",
            thread=0,
            attempt=0,
            guarantee="exactly_once_v2",
            transactional_id="",
            wall_clock_ms=LATER_MS,
            gate="",
            ranges=ranges,
            log_ends=ends,
            tasks=[TaskContext(task, "test", "", self.times.get(task, {})) for task in tasks],
            application_id=self.engine._plan.application_id,
            times=self._times(ranges),
            until_ms=self._until(),
            most_taken=self.chance.choice([None, None, 5]) if self.lowest else None,
        )
        rows = [
            (self.logs[tp][offset], offset)
            for tp, at in ranges.items()
            for offset in range(at.start, at.end)
        ]
        result = self.engine._step_result(request, rows)
        for task, listed in result.changes.items():
            for changes in listed:
                self.engine._stores.part(changes.store, task.partition).apply(changes)
        self.positions.update(result.consumed)
        for task, times in result.stream_times.items():
            self.times.setdefault(task, {}).update(times)
        for reasons in result.dropped.values():
            self.dropped.update(reasons)
        for record in self.engine._written:
            self.written.append(record)
            if record.topic in self.writers:
                self.logs[TopicPartition(record.topic, record.partition)].append(record)

    def _range(self, tp: TopicPartition, task: TaskId) -> OffsetRange:
        start, end = self.positions[tp], len(self.logs[tp])
        read = max(start, read_to(self.times.get(task, {}), self.sources[tp].timed))
        most = end - read if self.quiet else self.chance.choice([0, 1, 3, 10, 100, end - read])
        return OffsetRange(start, min(end, read + most))

    def _times(self, ranges: Ranges) -> dict[TopicPartition, InputTime] | None:
        if not self.lowest:
            return None
        return {tp: one for tp, at in ranges.items() if (one := self._time(tp, at.end))}

    def _time(self, tp: TopicPartition, end: int) -> InputTime | None:
        if tp.topic not in self.writers:
            # Of a log that is read whole nothing more comes; that is noticed a while later.
            over = not self._unread(tp) and (self.quiet or self.chance.random() < 0.3)
            return InputTime(silent=True) if over else None
        listed = [
            told(self.times.get(task, {}), writer.name)
            for writer in self.writers[tp.topic]
            for task in self.inputs
            if task.subtopology == writer.subtopology
        ]
        if not self.quiet:
            listed = [one._replace(silent=False) for one in listed]
        if self.quiet or self.chance.random() < 0.7:
            self.learnt[tp].add(len(self.logs[tp]), least(listed))
        if self.quiet and all(one.silent for one in listed):
            return InputTime(least(listed), len(self.logs[tp]), silent=True)
        at, ms = self.learnt[tp].before(end)
        return None if ms == UNKNOWN else InputTime(ms, at)

    def _until(self) -> dict[TopicPartition, int]:
        if self.lead_ms is None or not self.lowest or not self.writers:
            return {}
        heads = []
        for tp, source in self.sources.items():
            if tp.topic not in self.writers and self._unread(tp):
                known = self.times.get(source.task(tp), {}).get(source.timed + IN, UNKNOWN)
                heads.append(max(known, self.logs[tp][self.positions[tp]].timestamp))
        return dict.fromkeys(self.positions, min(heads) + self.lead_ms) if heads else {}


@dataclass(frozen=True)
class Program:
    """``build`` makes it; ``topics``: what it reads; ``disorder_ms``: how late the records of a
    partition may be; ``last_of_key``: only the last result of each key counts; ``closes``: behind
    all come records that close what is open; ``varies``: with the highest time results depend on
    who reads what first; ``alone``: each partition is read alone, in the order of its log."""

    build: Callable[[StreamsBuilder], None]
    topics: Mapping[str, Any]
    disorder_ms: int = 0
    last_of_key: bool = False
    closes: bool = True
    varies: bool = True
    alone: bool = False


def outcome(written: Sequence[RawRecord], program: Program, before_ms: int) -> Any:
    """The final results in ``out``, without what comes of the records that close all."""
    out = [one for one in written if one.topic == "out" and one.timestamp < before_ms]
    if program.last_of_key:
        last = {one.key: one.value for one in out}
        return {key: value for key, value in last.items() if value is not None}
    return Counter((one.key, one.value, one.timestamp) for one in out)
