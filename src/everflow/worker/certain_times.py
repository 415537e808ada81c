"""Which records of a batch are taken with ``stream.time=lowest``, in which order, and how far the
times of inputs, operators and sinks get by it (note 076). Pure.

A task takes the records of its inputs in order of time, up to the least time that is certain for
all of them. A log that several writers wrote is not in order of time: of its records in front of
`READ` exactly those up to `DONE` are done, and the committed offset is the first one that is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from everflow.kafka.reading.record_columns import LogColumns
from everflow.protocol.messages import BadRecord, BatchRequest, InputTime, TaskContext
from everflow.records import Int64, TaskId, TopicPartition, rises
from everflow.topology.batches import BatchInput
from everflow.topology.event_time import (
    DONE,
    IN,
    OUT,
    READ,
    SILENT,
    UNKNOWN,
    Teller,
    Told,
    of_reached,
    read_to,
)
from everflow.topology.plan import StatefulOp
from everflow.topology.sources import Source, sources_of_logs

_NOTHING = InputTime()
_MOST_NAMED = 20
_Flags = npt.NDArray[np.bool_]


class Cut(NamedTuple):
    """Records up to the time ``ms`` are taken; at that very time those of inputs with a number up
    to ``source``."""

    ms: int
    source: int

    def takes(self, times: Int64, source: int) -> _Flags:
        found: _Flags = times <= self.up_to(source)
        return found

    def up_to(self, source: int) -> int:
        return self.ms if source <= self.source else self.ms - 1


@dataclass(kw_only=True)
class _Input:
    """An input of a task in this batch. ``rows``: of the batch, in the order of the log; ``times``:
    where each stands in the task's order; ``new``: those that are not done yet; ``certain``: what
    is certain behind all that was read; ``end``: where the range ends, ``read``: up to where it
    was ever read; ``full``: there is no room to read on; ``short``: the range ends in front of what
    was read before, as the first one on another thread may, which has less room or other tasks."""

    source: Source
    log: TopicPartition
    rows: Int64
    times: Int64
    new: _Flags
    certain: Told
    end: int
    read: int = UNKNOWN
    done: int = UNKNOWN
    full: bool = False
    short: bool = False
    known: int = UNKNOWN
    """The time that was certain before."""
    ahead_ms: int = UNKNOWN
    """The least own time of what lies too far ahead (``until_ms``), if anything does."""

    @property
    def late(self) -> _Flags:
        """What is done includes all earlier times. The certain time may lie in front of that, where
        a writer was silent: a late record that is held back would be lost."""
        if not self.source.held:
            return np.zeros(len(self.rows), bool)
        found: _Flags = self.times <= self.done
        return found

    def on_time(self, cut: Cut | None) -> _Flags:
        """The new ones that are not late, up to a cut."""
        found = self.new & ~self.late
        return found if cut is None else found & cut.takes(self.times, self.source.index)

    @staticmethod
    def of(
        source: Source,
        log: TopicPartition,
        rows: Int64,
        batch: BatchInput,
        request: BatchRequest,
        before: Mapping[str, int],
        highest: bool,
    ) -> _Input:
        times, offsets = batch.timestamp[rows], batch.offset[rows]
        known, end = before.get(source.timed + IN, UNKNOWN), request.ranges[log].end
        assert request.times is not None
        said = request.times.get(log, _NOTHING)
        if source.kind != "repartition":
            place = np.maximum.accumulate(np.maximum(times, known))
            new, ahead_ms = np.ones(len(rows), bool), UNKNOWN
            if (until_ms := request.until_ms.get(log)) is not None:
                earliest = np.minimum.accumulate(times[::-1])[::-1]
                # For a time that the wall clock has not reached the others would not come soon.
                left = (earliest > until_ms) & (earliest <= request.wall_clock_ms)
                new = ~np.logical_or.accumulate(left)
                if not new.all():
                    ahead_ms = int(earliest[~new][0])
            # Nothing earlier than what is left comes any more, and those that wait for this source
            # must not wait for a record that waits for them.
            last = int(place[new][-1]) if new.any() else known
            last = max(last, ahead_ms - 1)
            task = source.task(log)
            if new.all() and end >= request.log_ends[log]:
                last = max(last, request.idle.get(task, {}).get(source.timed + IN, UNKNOWN))
            return _Input(
                source=source,
                log=log,
                rows=rows,
                times=place,
                new=new,
                ahead_ms=ahead_ms,
                certain=Told(last, said.silent),
                end=end,
            )
        ms = max(known, said.ms) if said.ms >= 0 and said.end <= end else known
        # What is silent has told its last time; before its end was read, it is as any other.
        certain = Told(ms, said.silent and said.end <= end)
        if not source.held:
            place = np.maximum.accumulate(times) if len(times) else times
            new = np.ones(len(rows), bool)
            return _Input(
                source=source,
                log=log,
                rows=rows,
                times=place,
                new=new,
                certain=certain,
                end=end,
                known=known,
            )
        read, done = read_to(before, source.timed), before.get(source.timed + DONE, UNKNOWN)
        new = (offsets >= read) | (times > done)
        short = end < read and not highest
        if short:  # what lies behind the range may be earlier, and nothing of it is done
            certain = Told(min(ms, done))
        room = batch.bytes < request.most_bytes
        return _Input(
            source=source,
            log=log,
            rows=rows,
            times=np.maximum(times, done),
            new=new,
            certain=certain,
            end=end,
            read=max(read, end),
            done=done,
            full=not room and (short or end < request.log_ends[log]),
            short=short,
        )

    def goes_on(self, request: BatchRequest) -> bool:
        """Whether the next batch is to read on at once, behind a range that was short."""
        return self.short and not self.full and self.log not in request.silent


class _Group(NamedTuple):
    """Inputs of a task whose records are taken in order of time, up to ``cut`` (None: all).
    ``limited``: more could be taken (``most_taken``)."""

    inputs: Sequence[_Input]
    cut: Cut | None
    limited: bool = False


@dataclass(kw_only=True)
class CertainTimes:
    """``inputs``: of each task, by the number of the source, up to where its records are done;
    ``names``: the times that are kept beside its offsets; ``order``, ``kept``, ``done``: of the
    batch's rows, of which ``kept`` are taken; ``consumed``: the first offset of each log that is
    not done; ``heads``: see `BatchResult`; ``full``: inputs of which a batch was too small;
    ``left``: the first rows that are left because of ``most_taken``, or since a range was short,
    and their log."""

    inputs: dict[TaskId, dict[int, Told]] = field(default_factory=dict)
    names: dict[TaskId, dict[str, int]] = field(default_factory=dict)
    rank: Int64
    offsets: Int64
    kept: _Flags
    done: _Flags
    consumed: dict[TopicPartition, int] = field(default_factory=dict)
    heads: dict[TopicPartition, int] = field(default_factory=dict)
    full: list[TopicPartition] = field(default_factory=list)
    left: tuple[TopicPartition, Int64] | None = None
    more: int | None = None
    """So many more may be taken (``most_taken``)."""

    @staticmethod
    def of(
        batch: BatchInput,
        sources: Sequence[Source],
        request: BatchRequest,
        *,
        highest: bool = False,
    ) -> CertainTimes:
        """``highest``: with that rule all that is not done is taken."""
        total = len(batch.source)
        found = CertainTimes(
            rank=np.arange(total, dtype=np.int64),
            offsets=batch.offset,
            kept=np.ones(total, bool),
            done=np.zeros(total, bool),
        )
        rows_of = _rows_of(batch)
        by_task: dict[TaskId, list[tuple[TopicPartition, Source]]] = {}
        for log, source in sources_of_logs(sources, request.ranges).items():
            by_task.setdefault(source.task(log), []).append((log, source))
        before = {one.task: one for one in request.tasks}
        none: Int64 = np.empty(0, np.int64)
        groups: dict[TaskId, list[_Group]] = {}
        for task, listed in by_task.items():
            context = before.get(task, TaskContext(task, "", ""))
            inputs = [
                _Input.of(
                    source,
                    log,
                    rows_of.get((source.index, task.partition), none),
                    batch,
                    request,
                    context.stream_times,
                    highest,
                )
                for log, source in listed
            ]
            together = [one for one in inputs if not one.source.fed_back]
            apart = [[one] for one in inputs if one.source.fed_back]
            groups[task] = [_Group(group, _cut(group)) for group in (together, *apart)]
        if request.most_taken is not None:
            groups, found.left, found.more = _limited(groups, request.most_taken)
        for task, of_task in groups.items():
            context = before.get(task, TaskContext(task, "", ""))
            found._take(task, of_task, context.stream_times)
        for one in (
            one for of_task in groups.values() for group in of_task for one in group.inputs
        ):
            if found.left is None and one.goes_on(request) and one.new.any():
                found.left = one.log, one.rows[one.new][:1]
        return found

    def _take(self, task: TaskId, groups: list[_Group], before: Mapping[str, int]) -> None:
        inputs = [one for group in groups for one in group.inputs]
        told, names = dict[int, Told](), dict[str, int]()
        for group, cut, limited in groups:
            for one in group:
                self._taken(one, cut)
                ms = one.certain.ms if cut is None else min(one.certain.ms, cut.ms)
                told[one.source.index] = Told(ms, one.certain.silent)
                names |= self._names(one, cut, limited=limited)
        self.inputs[task] = told
        self.names[task] = {name: max(ms, before.get(name, UNKNOWN)) for name, ms in names.items()}
        # Of one time the rows of the first source come first, each in the order of its log.
        inputs.sort(key=lambda one: one.source.index)
        rows = np.concatenate([one.rows for one in inputs])
        times = np.concatenate([one.times for one in inputs])
        order = rows if rises(times) else rows[np.argsort(times, kind="stable")]
        self.rank[order] = np.sort(rows)

    def _taken(self, one: _Input, cut: Cut | None) -> None:
        taken = one.new
        if cut is not None:
            taken = (one.new & one.late) | one.on_time(cut)
        if one.full and not taken.any():
            taken = self._of_full(one)
        self.kept[one.rows] = taken
        left = one.rows[one.new & ~taken if one.source.held else ~taken]
        self.consumed[one.log] = one.end if not len(left) else int(self.offsets[left[0]])
        if len(left) and one.source.kind == "repartition" and not one.source.held:
            one.certain = one.certain._replace(ms=one.known)  # what is left is in no order
        if one.source.held:
            self.done[one.rows] = ~one.new
        elif len(left):
            # One that waits for other inputs goes by its place: once these have come there.
            at = int(np.argmin(taken))
            self.heads[one.log] = int(one.times[at]) if one.new[at] else one.ahead_ms

    def _of_full(self, one: _Input) -> _Flags:
        """In the order of the log."""
        (rows,) = np.nonzero(one.new)
        most = len(rows) if self.more is None else min(self.more, len(rows))
        taken = np.zeros(len(one.rows), bool)
        taken[rows[:most]] = True
        if most:
            self.full.append(one.log)
        if len(rows) > most and self.left is None:
            self.left = one.log, one.rows[rows[most : most + 1]]
        if self.more is not None:
            self.more -= most
        return taken

    def _names(self, one: _Input, cut: Cut | None, *, limited: bool) -> dict[str, int]:
        timed = one.source.timed
        if one.source.kind != "repartition":
            # Nothing earlier than what is left comes any more. Other instances go by this time
            # (``max.event.time.lead``): by that of what was taken, each would wait for the other.
            head = self.heads.get(one.log)
            return {timed + IN: one.certain.ms if head is None else head - 1}
        ms = one.certain.ms
        if limited and cut is not None:
            # The next owner of the task sees by this that the certain time is higher.
            ms = min(ms, cut.up_to(one.source.index))
        found = {timed + IN: ms}
        if one.source.held:
            done = (
                cut.up_to(one.source.index)
                if cut is not None
                else int(one.times.max(initial=UNKNOWN))
            )
            if one.end < one.read:  # of what is held back behind the range nothing was done
                done = one.done
            found |= {timed + READ: one.read, timed + DONE: done}
        return found

    def of_operator(self, op: StatefulOp) -> dict[int, int]:
        """The time (ms) to which an operator goes behind the records, by the task's partition."""
        found = {}
        for task, inputs in self.inputs.items():
            if task.subtopology == op.subtopology:
                ms = of_reached(inputs, op.reached).ms
                if ms != UNKNOWN:
                    found[task.partition] = ms
        return found

    def kept_times(
        self, tellers: Sequence[Teller], request: BatchRequest
    ) -> dict[TaskId, dict[str, int]]:
        """What stands beside the offsets of the tasks: the times of their inputs, and what their
        commits say of their sinks."""
        if request.times is None:
            return self.names
        found = {task: dict(names) for task, names in self.names.items()}
        before = {one.task: one.stream_times for one in request.tasks}
        for teller in tellers:
            for task, inputs in self.inputs.items():
                if task.subtopology != teller.subtopology:
                    continue
                known, one = before.get(task, {}), of_reached(inputs, teller.reached)
                names = found.setdefault(task, {})
                out, silent = teller.name + OUT, teller.name + SILENT
                names[out] = max(one.ms, known.get(out, UNKNOWN))
                if one.silent or silent in known:
                    names[silent] = int(one.silent)
        return found

    def next(self, sources: Sequence[Source]) -> list[BadRecord]:
        """See `BatchResult`."""
        if self.left is None:
            return []
        log, rows = self.left
        node = sources_of_logs(sources, [log])[log].node
        offsets = self.offsets[rows[:_MOST_NAMED]].tolist()
        return [BadRecord(log.topic, log.partition, offset, node) for offset in offsets]

    def remarks(self) -> list[str]:
        return [
            f"{log}: what waits for other inputs fills a batch; it is taken in the order of the log"
            for log in self.full
        ]


def certain_times(
    batch: BatchInput, sources: Sequence[Source], request: BatchRequest
) -> CertainTimes | None:
    """None with ``stream.time=highest``, unless an input has records that are done behind others
    that are not, since it was ``lowest``: then all that is not done is taken."""
    if request.times is not None:
        return CertainTimes.of(batch, sources, request)
    if not _held_back([one for one in sources if one.held], request):
        return None
    all_ = dict.fromkeys(request.ranges, InputTime(silent=True))
    found = CertainTimes.of(batch, sources, replace(request, times=all_), highest=True)
    return replace(found, inputs={})


def not_done(
    read: Mapping[TopicPartition, LogColumns], sources: Sequence[Source], request: BatchRequest
) -> dict[TopicPartition, LogColumns]:
    """What was ``read`` without records that are done. Behind one that waits long, as one of a
    clock that is ahead does, they would come to fill each batch."""
    if request.times is None:
        return dict(read)
    found = dict(read)
    times = {one.task: one.stream_times for one in request.tasks}
    for log, source in sources_of_logs(sources, read).items():
        before = times.get(source.task(log), {})
        if not source.held or source.timed + DONE not in before:
            continue
        columns, done = read[log], before[source.timed + DONE]
        left = (columns.offsets >= read_to(before, source.timed)) | (columns.timestamps > done)
        if not left.all():
            found[log] = columns.only(np.flatnonzero(left))
    return found


def _held_back(held: Sequence[Source], request: BatchRequest) -> bool:
    if not held:
        return False
    times = {one.task: one.stream_times for one in request.tasks}
    return any(
        source.reads(log) and read_to(times.get(source.task(log), {}), source.timed) > at.start
        for log, at in request.ranges.items()
        for source in held
    )


def _cut(group: Sequence[_Input]) -> Cut | None:
    """None: all is taken. A source that is alone is in its own order."""
    held = any(one.source.held for one in group)
    if len(group) < 2 and not held:
        return None
    going = [Cut(one.certain.ms, one.source.index) for one in group if not one.certain.silent]
    return min(going, default=None)


class _Limited(NamedTuple):
    """``left``: the first rows that are left, all of one time of a log; ``more``: so many more may
    be taken."""

    groups: dict[TaskId, list[_Group]]
    left: tuple[TopicPartition, Int64] | None
    more: int


def _limited(groups: dict[TaskId, list[_Group]], most: int) -> _Limited:
    """``groups`` that take ``most`` records at most, the earliest of all tasks. Those of one time
    of an input come together, since a position does not tell them apart: if they are the first,
    even if they are more."""
    inputs = [
        (task, number, one, one.on_time(group.cut))
        for task, of_task in groups.items()
        for number, group in enumerate(of_task)
        for one in group.inputs
    ]
    some = sum(int(taken.sum()) for *_, taken in inputs)
    if some <= most:
        return _Limited(groups, None, most - some)
    steps = [np.unique(one.times[taken], return_counts=True) for _, _, one, taken in inputs]
    sizes = [len(ms) for ms, _ in steps]
    ms = np.concatenate([one for one, _ in steps])
    of_input = np.repeat(np.arange(len(inputs)), sizes)
    of_source = np.repeat([one.source.index for _, _, one, _ in inputs], sizes)
    order = np.lexsort((of_input, of_source, ms))
    counts = np.cumsum(np.concatenate([one for _, one in steps])[order])
    count = int(np.searchsorted(counts, most, "right"))
    if most and not count:
        count = 1
    more = max(0, most - int(counts[count - 1])) if count else most
    if count == len(order):
        return _Limited(groups, None, more)
    cuts: dict[tuple[TaskId, int], Cut] = {}
    for at in order[count:].tolist():  # of these some are left: in front of all, at first
        cuts[inputs[of_input[at]][:2]] = Cut(UNKNOWN, UNKNOWN)
    for at in order[:count].tolist():
        if (group := inputs[of_input[at]][:2]) in cuts:
            cuts[group] = Cut(int(ms[at]), int(of_source[at]))
    _, _, one, taken = inputs[of_input[order[count]]]
    left = one.rows[taken & (one.times == ms[order[count]])]
    limited = {
        task: [
            group._replace(cut=cuts[task, number], limited=True)
            if (task, number) in cuts
            else group
            for number, group in enumerate(of_task)
        ]
        for task, of_task in groups.items()
    }
    return _Limited(limited, (one.log, left), 0)


def _rows_of(batch: BatchInput) -> dict[tuple[int, int], Int64]:
    """The rows of each source and partition, which stand together."""
    if not len(batch.source):
        return {}
    changes = (np.diff(batch.source) != 0) | (np.diff(batch.partition) != 0)
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1)).tolist()
    ends = [*starts[1:], len(batch.source)]
    return {
        (int(batch.source[start]), int(batch.partition[start])): np.arange(
            start, end, dtype=np.int64
        )
        for start, end in zip(starts, ends, strict=True)
    }
