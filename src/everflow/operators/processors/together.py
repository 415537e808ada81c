"""Runs processors that share stores, record by record, over the tasks of a micro-batch (note 040).

One alone is the group of one. Their records, and the updates of the tables that they read, are
taken in the order of the task; of what one record has brought to several, in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from everflow.clock import believed_ms, instant
from everflow.operators.grouping import task_slices
from everflow.operators.processors.context import Place, Shown, Turn, shown
from everflow.operators.processors.ending_entries import EndingEntries, index_of
from everflow.operators.processors.processor import Record
from everflow.operators.processors.running import Origins, Running
from everflow.operators.processors.stores import Entries, StoreClock
from everflow.operators.processors.table_stores import (
    TableEntries,
    Updates,
    global_entries,
    table_entries,
)
from everflow.operators.processors.versioned_store import VersionEntries
from everflow.records import EdgeBatch, Int32, Int64, StoreChanges, TaskId, TasksResult
from everflow.state.store import StoreSpec, StoreView
from everflow.topology.graph import SharingProcessor, Surroundings

if TYPE_CHECKING:
    from everflow.operators.processors.process import ProcessSpec

_RECORDS = -1
"""In place of the number of a table: what comes are the processor's own records."""


def run_processors(
    members: Sequence[SharingProcessor], surroundings: Surroundings
) -> list[TasksResult]:
    """See `ProcessorOperator.run_together`. A failure of the user's code is the record's that was
    being processed: UserFunctionError."""
    origins = [Origins(_spec(one), members, number) for number, one in enumerate(members)]
    done = [
        TasksResult(one.batch, {}, dict(one.stream_times), {}, {}) for one in members
    ]  # the output follows
    rows = [_by_partition(one.batch) for one in members]
    updates = [[_by_partition(batch) for batch in one.updates] for one in members]
    for partition in sorted(members[0].stores):
        task = _Task(members, origins, partition, surroundings)
        mine = [of.get(partition, np.empty(0, np.int64)) for of in rows]
        changed = [
            [of.get(partition, np.empty(0, np.int64)) for of in listed] for listed in updates
        ]
        if any(map(len, mine)) or task.is_due:
            task.run(mine, changed)
        task.note(done)
    for result, of in zip(done, origins, strict=True):
        result.output = of.taken()
    return done


def _spec(member: SharingProcessor) -> ProcessSpec:
    return cast("ProcessSpec", member.operator)


def _by_partition(batch: EdgeBatch) -> dict[int, Int64]:
    """The rows of each task."""
    order = np.argsort(batch.partition, kind="stable")
    slices = task_slices(batch.partition[order])
    return {partition: order[part] for partition, part in slices}


class _Task:
    """All processors of one task, and the stores that they share."""

    def __init__(
        self,
        members: Sequence[SharingProcessor],
        origins: Sequence[Origins],
        partition: int,
        surroundings: Surroundings,
    ) -> None:
        self._members, self._partition = members, partition
        self._now_ms = surroundings.wall_clock_ms
        self._origins = origins
        self._place = Place(
            TaskId(surroundings.subtopology, partition),
            surroundings.application_id,
            surroundings.wall_clock_ms,
            surroundings.topics,
            surroundings.skipped,
        )
        times = [one.stream_times[partition] for one in members]
        self._turns = [Turn(stream_time=time, time=max(0, time)) for time in times]
        self._entries: dict[str, Entries | VersionEntries] = {}
        self._ahead: list[dict[str, int]] = [{} for _ in members]
        """Times of `_last` that are ahead of the present clock, and are not believed."""
        self._last = [self._last_of(*both) for both in zip(members, self._ahead, strict=True)]
        self._due = [self._due_of(*both) for both in zip(members, self._last, strict=True)]
        self._idle = [one.idle.get(partition, 0) for one in members]
        self.is_due = any(self._idle) or any(any(due.values()) for due in self._due)

    def run(self, rows: Sequence[Int64], changed: Sequence[Sequence[Int64]]) -> None:
        """``rows``: of each processor's records; ``changed``: of the updates of each of its
        tables."""
        running, tables = [], []
        for number, member in enumerate(self._members):
            entries, read = self._stores(number, changed[number])
            tables.append(read)
            running.append(
                Running(
                    self._members,
                    self._origins[number],
                    self._place,
                    self._turns[number],
                    (entries, self._shown(number, entries)),
                    self._hand if self._reads(member.name) else None,
                )
            )
        self._running = running
        for one, mine in zip(running, rows, strict=True):
            one.begin(mine)
        for number, table, begin, end in _in_turns(self._members, rows, changed):
            if table == _RECORDS:
                running[number].take(rows[number][begin:end])
            else:
                tables[number][table].put(begin, end)
        for one, idle_ms in zip(running, self._idle, strict=True):
            one.passed(idle_ms)
        for one, due in zip(running, self._due, strict=True):
            one.call([name for name, times in due.items() if times])
        for one in running:
            one.end()

    def note(self, done: Sequence[TasksResult]) -> None:
        """What the task has come to."""
        left: dict[str, StoreChanges] = {}
        for ending in self._entries.values():
            if isinstance(ending, EndingEntries):
                ending.take_out_ended()
        for name, entries in self._entries.items():
            changes = entries.changes(max(0, self._stream_time(name)))
            if len(changes):
                left[name] = changes
        for number, (member, result) in enumerate(zip(self._members, done, strict=True)):
            result.stream_times[self._partition] = self._turns[number].stream_time
            mine = [left.pop(one.name) for one in _spec(member).specs if one.name in left]
            if mine:
                result.changes[self._partition] = mine
            result.clocks[self._partition] = {
                name: last + self._due[number][name] * member.operator.wall_clocks[name]
                for name, last in self._last[number].items()
            }
            result.remarks += [
                f"task {self._place.task}: {member.name}.{name} was last due at "
                f"{instant(kept)}, which is ahead of this host's clock ({instant(self._now_ms)}). "
                f"It is due again in {member.operator.wall_clocks[name]} ms. Check the clocks of "
                f"the hosts that ran the task"
                for name, kept in self._ahead[number].items()
            ]

    def _last_of(self, member: SharingProcessor, ahead: dict[str, int]) -> dict[str, int]:
        """When each method was last due: now where it never was, and where a clock that was wrong
        has said so."""
        last = {}
        for name, kept in member.clocks.get(self._partition, {}).items():
            every_ms = member.operator.wall_clocks[name]
            last[name] = self._now_ms if kept < 0 else believed_ms(kept, self._now_ms, every_ms)
            if last[name] < kept:
                ahead[name] = kept
        return last

    def _due_of(self, member: SharingProcessor, last: Mapping[str, int]) -> dict[str, int]:
        """How many times each method has become due since it last was."""
        return {
            name: max(0, (self._now_ms - last.get(name, self._now_ms)) // every_ms)
            for name, every_ms in member.operator.wall_clocks.items()
        }

    def _reads(self, name: str) -> bool:
        """Whether a processor is read by another one directly."""
        return any(link.processor == name for one in self._members for link in one.links)

    def _hand(self, giver: Running, record: Record, child: int | None) -> None:
        for one in self._running:
            for link in one.member.links:
                if link.processor == giver.member.name and (
                    link.child is None or child is None or link.child == child
                ):
                    one.handed(record, giver.turn)

    def _stores(
        self, number: int, changed: Sequence[Int64]
    ) -> tuple[dict[str, Entries | VersionEntries], list[Updates]]:
        """A processor's stores: its own, which others may share, and those of tables."""
        member = self._members[number]
        spec, views = _spec(member), member.stores[self._partition]
        found: dict[str, Entries | VersionEntries] = {}
        for one in spec.specs:
            if one.name not in self._entries:
                self._entries[one.name] = self._made(one, views)
            found[one.name] = self._entries[one.name]
        for one in spec.specs:
            index = index_of(one)
            if index is not None:
                found.pop(index.name)  # nobody's to read
        updates = []
        for read, batch, rows in zip(spec.tables, member.updates, changed, strict=True):
            entries = table_entries(read.table, views[read.table.spec.name])
            updates.append(Updates(read.table, batch.take(rows), entries))
            found[read.table.spec.name] = entries
        found |= {one.name: global_entries(one, views[one.name]) for one in spec.looks_up}
        return found, updates

    def _made(self, spec: StoreSpec, views: Mapping[str, StoreView]) -> Entries | VersionEntries:
        view, index = views[spec.name], index_of(spec)
        if spec.versioned:
            return VersionEntries(spec, view)
        if index is None:
            return Entries(spec, view)
        indexed = self._entries[index.name] = Entries(index, views[index.name])
        return EndingEntries(spec, view, indexed, partial(self._stream_time, spec.name))

    def _shown(
        self, number: int, entries: Mapping[str, Entries | VersionEntries]
    ) -> dict[str, Shown]:
        turn = self._turns[number]
        return {
            name: shown(
                one,
                StoreClock(
                    lambda: turn.time,
                    _newest(one)
                    if isinstance(one, TableEntries)
                    else partial(self._stream_time, name),
                ),
            )
            for name, one in entries.items()
        }

    def _stream_time(self, store: str) -> int:
        """The latest of those that share a store."""
        return max(
            turn.stream_time
            for turn, member in zip(self._turns, self._members, strict=True)
            if any(one.name == store for one in _spec(member).specs)
        )


def _newest(entries: TableEntries) -> Any:
    return lambda: entries.newest_ms


def _in_turns(
    members: Sequence[SharingProcessor], rows: Sequence[Int64], changed: Sequence[Sequence[Int64]]
) -> list[tuple[int, int, int, int]]:
    """What comes one after the other: of which processor, records or updates of which table, from
    which to which."""
    streams: list[tuple[int, int]] = []
    seqs: list[Int64] = []
    for number, member in enumerate(members):
        tables = [(read.first, table) for table, read in enumerate(_spec(member).tables)]
        before = [table for first, table in tables if first]
        behind = [table for first, table in tables if not first]
        for table in (*before, _RECORDS, *behind):
            batch = member.batch if table == _RECORDS else member.updates[table]
            mine = rows[number] if table == _RECORDS else changed[number][table]
            streams.append((number, table))
            seqs.append(batch.seq[mine])
    if len(streams) == 1:
        return [(*streams[0], 0, len(seqs[0]))]
    numbers: Int32 = np.repeat(np.arange(len(streams), dtype=np.int32), [len(s) for s in seqs])
    order = np.lexsort((numbers, np.concatenate(seqs)))
    turns = numbers[order]
    begins = np.flatnonzero(np.diff(turns, prepend=-1)).tolist()
    done = [0] * len(streams)
    found = []
    for begin, end in zip(begins, [*begins, len(turns)][1:], strict=True):
        stream = int(turns[begin])
        first = done[stream]
        done[stream] = first + end - begin
        found.append((*streams[stream], first, done[stream]))
    return found
