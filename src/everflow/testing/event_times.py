"""The driver's part of ``stream.time=lowest`` in the `TopologyTestDriver` (note 076): all tasks run
in each micro-batch, and know at once what the others have told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from everflow.protocol.messages import InputTime
from everflow.records import TaskId, TopicPartition
from everflow.testing.topics import RawRecord
from everflow.topology.event_time import IN, UNKNOWN, Told, Writer, least, told
from everflow.topology.sources import Source

Row = tuple[RawRecord, int]
"""A record and its offset."""


@dataclass(kw_only=True)
class DriverEventTimes:
    """``writers``: of repartition topics, by their full names; ``sources``: who reads what.
    ``stream_times``: of the tasks, as
    the driver has them. ``idle_ms``: ``stream.time.idle.ms``."""

    writers: Mapping[str, Sequence[Writer]]
    sources: Mapping[TopicPartition, Source]
    tasks: Collection[TaskId]
    stream_times: Mapping[TaskId, Mapping[str, int]]
    idle_ms: int
    began_ms: int
    held: dict[TopicPartition, list[Row]] = field(default_factory=dict)
    """Records that are held back, and those behind the first of them."""
    _last_ms: dict[TopicPartition, int] = field(default_factory=dict)
    """When a partition last had a record, by the driver's wall clock."""

    def forget(self) -> None:
        self.held.clear()
        self._last_ms.clear()

    def rows(self) -> list[Row]:
        return [row for rows in self.held.values() for row in rows]

    def ends(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Of the logs, without the records of the next batch."""
        held = {tp: rows[-1][1] + 1 for tp, rows in self.held.items() if rows}
        return {**offsets, **held}

    def of(
        self, ends: Mapping[TopicPartition, int], read: Collection[TopicPartition], now_ms: int
    ) -> dict[TopicPartition, InputTime]:
        """``ends``: of the logs, all of which is read now; ``read``: partitions that have new
        records."""
        timeless = {tp for tp in read if tp in self._last_ms and self._time(tp) == UNKNOWN}
        self._last_ms.update({tp: now_ms for tp in read if tp not in timeless})
        found = {}
        for tp, end in ends.items():
            if tp.topic not in self.writers:
                silent = now_ms - self._last_ms.get(tp, self.began_ms) >= self.idle_ms
                found[tp] = InputTime(silent=silent)
                continue
            said = self._told(tp.topic)
            found[tp] = InputTime(least(said), end, all(one.silent for one in said))
        return found

    def _time(self, tp: TopicPartition) -> int:
        source = self.sources.get(tp)
        if source is None:
            return UNKNOWN
        return self.stream_times.get(source.task(tp), {}).get(source.timed + IN, UNKNOWN)

    def _told(self, topic: str) -> list[Told]:
        return [
            told(self.stream_times.get(task, {}), writer.name)
            for writer in self.writers[topic]
            for task in self.tasks
            if task.subtopology == writer.subtopology
        ]

    def keep(self, rows: Sequence[Row], offsets: Mapping[TopicPartition, int]) -> None:
        """After a batch of ``rows``; ``offsets``: the first that is not done."""
        self.held = {}
        for record, offset in rows:
            tp = TopicPartition(record.topic, record.partition)
            if offset >= offsets[tp]:
                self.held.setdefault(tp, []).append((record, offset))
