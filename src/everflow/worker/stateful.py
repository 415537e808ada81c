"""Runs a stateful operator on the tasks of a micro-batch: its stores, its clocks, its failures.

The search for failing records (note 041) gives the operator a task's records in parts, on stores
that show what earlier parts have changed. A failing part ends before its record: nothing is undone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.errors import RetriableError
from everflow.handlers import PROCESSING, ErrorHandlerContext, Handlers, Response, is_outage
from everflow.operators.aggregates.aggregate import (
    AggregateSpec,
    PythonAggregateSpec,
    TableAggregateSpec,
)
from everflow.operators.joins.stream_table import StreamTableJoin
from everflow.operators.joins.table_table import TableTableJoin
from everflow.operators.processors.process import ProcessSpec
from everflow.operators.table import TableSpec, with_old
from everflow.operators.user_code import UserFunctionError
from everflow.protocol.messages import BadRecord, BatchFailure, BatchRequest
from everflow.records import (
    LAST_SEQ,
    LATE,
    ClockCall,
    EdgeBatch,
    Int64,
    TaskId,
    TasksResult,
    TopicPartition,
    partitions_in,
)
from everflow.serdes import SerdeError
from everflow.state.store import StoreView
from everflow.topology.batches import appended, empty_like, in_order
from everflow.topology.graph import Inputs, ProcessorOperator, SharingProcessor, Surroundings
from everflow.topology.plan import AskOp, StatefulOp
from everflow.topology.sources import sources_of_logs
from everflow.user_program import class_of, error_text
from everflow.worker.failures import (
    DescribedFailure,
    RecordFailure,
    Sources,
    innermost_line,
    raise_all,
    serde_outage,
    stack_of,
)
from everflow.worker.stores import CheckedAccess, PartStores, TaskStores, damage_in
from everflow.worker.times import Moved

# --- the search for failing records ---------------------------------------------------------------


_PARTS = 64
"""A part is so much of all records at most: of one that fails, the records before are taken
twice."""
MOST_FAILING = 1_000
"""Records that are searched for at once: each is a run of the operator."""
Run = Callable[[Sequence[EdgeBatch]], None]
"""Processes these records of its sides behind earlier ones; UserFunctionError: it keeps nothing."""


@dataclass
class _Places:
    """A task's records by their places (``seq``); ``records``: the numbers of their inputs."""

    sides: Sequence[EdgeBatch]
    seqs: Int64
    records: Int64
    _of: dict[tuple[int, int, int], int]

    @staticmethod
    def of(sides: Sequence[EdgeBatch]) -> _Places:
        seqs, first = np.unique(np.concatenate([one.seq for one in sides]), return_index=True)
        columns = [
            np.concatenate([getattr(one, name) for one in sides])[first].tolist()
            for name in ("source", "partition", "offset")
        ]
        of: dict[tuple[int, int, int], int] = {}
        records = [of.setdefault(place, len(of)) for place in zip(*columns, strict=True)]
        return _Places(sides, seqs, np.array(records, np.int64), of)

    def named(self, error: UserFunctionError) -> int:
        return self._of.get((error.source, error.partition, error.offset), -1)

    def taken(self, places: Int64) -> list[EdgeBatch]:
        seqs = self.seqs[places]
        found = []
        for one in self.sides:
            begin = int(np.searchsorted(one.seq, seqs[0]))
            end = int(np.searchsorted(one.seq, seqs[-1], "right"))
            rows = begin + np.flatnonzero(np.isin(one.seq[begin:end], seqs))
            found.append(one.take(rows))
        return found


def failing_records(
    sides: Sequence[EdgeBatch], run: Run, first: UserFunctionError | None, most: int = MOST_FAILING
) -> list[UserFunctionError]:
    """The records of a task on which an operator fails, in order, each as without those before;
    ``most`` of them. ``first``: the error of all. Each runs twice at most, in O(k log n) parts."""
    places = _Places.of(sides)
    left = np.arange(len(places.seqs), dtype=np.int64)
    largest = max(1, len(left) // _PARTS)
    found: list[UserFunctionError] = []
    begin, size, fails_before = 0, len(left), 0
    known = first
    while begin < len(left) and len(found) < most:
        end = min(begin + size, len(left))
        try:
            if known is not None:
                raise known
            run(places.taken(left[begin:end]))
        except UserFunctionError as error:
            known = None
            if error.together and end - begin > 1:
                fails_before, size = end, (end - begin) // 2
                continue
            mine = np.flatnonzero(places.records[left] == places.named(error))
            if not len(mine) or mine[0] >= end:
                break  # it fails in what is no record's, or in one that is left out
            if mine[0] < begin:
                found.append(error)
                break  # what has become of it before is there for the others
            if mine[0] > begin:
                size = int(mine[0]) - begin
                continue
            found.append(error)
            left, size, fails_before = np.delete(left, mine), 1, 0
        else:
            size, begin = min(2 * (end - begin), largest), end
            if begin < fails_before:
                size = max(1, (fails_before - begin) // 2)
    return found


# --- failures that do not depend on each other ----------------------------------------------------


_BY_KEY = (
    AggregateSpec,
    PythonAggregateSpec,
    StreamTableJoin,
    TableAggregateSpec,
    TableSpec,
    TableTableJoin,
)
"""Operators in which a record changes what comes of records with its key, and of no others, if no
record is too late."""
_Place = tuple[int, int, int]
"""Source, partition, offset."""


class RanOperator(NamedTuple):
    """An operator that has run in this run of the batch: its records, and whether one was late."""

    op: StatefulOp
    sides: Sequence[EdgeBatch]
    """Without values, whose memory is free again."""
    late: bool

    @staticmethod
    def of(op: StatefulOp, sides: Sequence[EdgeBatch], done: TasksResult) -> RanOperator:
        without_values = [one.with_columns(value=pa.nulls(len(one))) for one in sides]
        return RanOperator(op, without_values, LATE in done.dropped)

    @property
    def writes(self) -> bool:
        """True if a record may change the results of the records behind it."""
        return remembers(self.op) and any(map(len, self.sides))

    @property
    def links(self) -> bool:
        """True if its result for a record may depend on other records of the batch."""
        updates = any(map(len, self.sides[1:]))
        return self.writes or (updates and bool(self.op.reads))

    def linked(self) -> dict[str, set[_Place]]:
        """Its records by texts: those of one text may change what comes of each other."""
        by_key = type(self.op.operator) in _BY_KEY and not self.late
        found: dict[str, set[_Place]] = {}
        for side in self.sides:
            texts = map(str, side.key.to_pylist()) if by_key else repeat("", len(side))
            columns = (side.source, side.partition, side.offset)
            places = zip(*(column.tolist() for column in columns), strict=True)
            for text, place in zip(texts, places, strict=True):
                found.setdefault(text, set()).add(place)
        return found


def remembers(op: StatefulOp) -> bool:
    return bool(op.stores) or isinstance(op.operator, ProcessorOperator)


def sees_one_record(op: StatefulOp) -> bool:
    """True if it makes a value of each record alone, as a function does."""
    return op.operator.asked is not None


def independent(
    failures: Sequence[RecordFailure],
    ran: Sequence[RanOperator],
    sources: Sources,
    function: bool,
) -> tuple[RecordFailure, ...]:
    """The ``failures`` that happen without the others, too; ``function``: it sees one record."""
    records = [one.failure.record for one in failures if one.failure.record is not None]
    logs = [TopicPartition(one.topic, one.partition) for one in records]
    of = sources_of_logs(sources, logs)
    places = [
        (of[log].index, of[log].task(log).partition, one.offset)
        for one, log in zip(records, logs, strict=True)
    ]
    linking = [one for one in ran if one.links]
    kept = set[_Place]()
    # In which operators, by which texts, others are linked to it.
    links: dict[_Place, set[tuple[str, str]]] = {place: set() for place in places}
    for one in linking:
        for text, linked in one.linked().items():
            for place in linked & links.keys():
                if one.writes:
                    kept.add(place)
                if len(linked) > 1:
                    links[place].add((one.op.name, text))
    found: list[RecordFailure] = []
    changed = set[tuple[str, str]]()
    for failure, place in zip(failures, places, strict=True):
        # What comes of those linked to it may go on to any other one, in a second operator.
        apart = function and len(linking) == 1 and changed.isdisjoint(links[place])
        if not changed or apart:
            found.append(failure)
        if place in kept:
            changed |= links[place]
    return tuple(found)


# --- operators ------------------------------------------------------------------------------------


PUNCTUATION = "punctuation"
"""Why a node dropped what is no record: a clock's call that failed."""
RowMapper = Callable[[tuple[str, ...], EdgeBatch], EdgeBatch]
_Tasks = Mapping[int, TaskId]
_Views = Mapping[int, Mapping[str, StoreView]]
TimesOf = Callable[[StatefulOp], dict[int, int]]
"""To what the stream times of an operator's tasks move behind the records (ms), by partition."""


class UncheckedCallError(Exception):
    """A clock's call failed on stores that may have a damaged entry. Never shown to users."""


@dataclass(frozen=True)
class GroupRun:
    """An operator, or processors that share stores; ``left_out`` gets texts of clocks' calls."""

    group: Sequence[StatefulOp]
    sources: Sources
    request: BatchRequest
    stores: TaskStores
    handlers: Handlers
    left_out: list[str]
    through: RowMapper | None = None

    def run(
        self, sides: Sequence[Sequence[EdgeBatch]], times: TimesOf, every_failure: bool = False
    ) -> list[TasksResult]:
        """Run them on tasks that have records or a clock may call; then ``times`` move.
        RecordFailure, and what `_judge` raises; ``every_failure``: with all others (note 041)."""
        moved = [times(op) for op in self.group]
        tasks = self._tasks(sides, moved)
        try:
            if tasks:
                done = self._results(sides, tasks, moved)
            else:
                empty = [empty_like(op.type.key, op.type.value) for op in self.group]
                done = [TasksResult(one, {}, {}, {}) for one in empty]
            for result in done:
                _remember(tasks, result, self.stores)
            return [
                advanced(op, result, mine, to, self.stores)
                for op, result, mine, to in zip(self.group, done, sides, moved, strict=True)
            ]
        except UserFunctionError as error:
            if isinstance(error.__cause__, RetriableError) and error.source >= 0:
                log = self.sources[error.source].log(error.partition)
                raise RetriableError(str(error.__cause__), [log]) from error
            if error.source < 0:
                raise self._failure(error) from (error.__cause__ or error)
            searchable = (every_failure or error.together) and self._may_be_cut
            errors: Sequence[UserFunctionError] = (error, *error.others)
            checked = isinstance(self.stores.access, CheckedAccess)
            if searchable and checked and damage_in(error) is None:
                most = MOST_FAILING if every_failure else 1
                errors, searchable = self._all_failures(sides, tasks, error, most), False
            failures = [self._failure(one) for one in errors]
            failures[0].searchable = searchable
            raise_all(failures)

    def _tasks(
        self, sides: Sequence[Sequence[EdgeBatch]], moved: Sequence[Mapping[int, int]]
    ) -> _Tasks:
        subtopology = self.group[0].subtopology
        columns = [one.partition for mine in sides for one in mine]
        partitions = set(partitions_in(np.concatenate(columns)))
        if isinstance(self.group[0].operator, ProcessorOperator):
            partitions = partitions.union(*moved)
        tasks = {partition: TaskId(subtopology, partition) for partition in sorted(partitions)}
        if any(op.operator.wall_clock_interval_ms is not None for op in self.group):
            mine = (one.task for one in self.request.tasks if one.task.subtopology == subtopology)
            tasks |= {task.partition: task for task in mine}
        return tasks

    def _results(
        self,
        sides: Sequence[Sequence[EdgeBatch]],
        tasks: _Tasks,
        moved: Sequence[Mapping[int, int]],
    ) -> list[TasksResult]:
        """The results of each operator, without the clocks' calls that fail and are left out: a run
        writes nothing, so it is run again without the call. UserFunctionError."""
        if not isinstance(self.group[0].operator, ProcessorOperator):
            return [self._run(self.group[0], sides[0], tasks)]
        skipped: list[ClockCall] = []
        while True:
            try:
                done = self._run_processors(sides, tasks, moved, frozenset(skipped))
            except UserFunctionError as error:
                if error.call is None or error.call in skipped:
                    raise
                self._judge(error)
                skipped.append(error.call)
                continue
            for call in skipped:
                number = next(n for n, op in enumerate(self.group) if op.name == call.node)
                dropped = done[number].dropped
                dropped[PUNCTUATION] = dropped.get(PUNCTUATION, 0) + 1
            return done

    def _run(self, op: StatefulOp, sides: Sequence[EdgeBatch], tasks: _Tasks) -> TasksResult:
        stores, inputs = self.stores, self._inputs_of(op, sides, tasks)
        try:
            return op.operator.run(inputs)
        except (SerdeError, struct.error) as error:
            # Records fail elsewhere: these are a store's bytes, in a layout that is the operator's.
            read = (*op.stores, *op.reads)
            if read and isinstance(stores.access, CheckedAccess) and not is_outage(error):
                owners = [stores.tasks[task] for task in tasks.values()]
                raise stores.access.unread(owners, read, error) from error
            raise

    def _inputs_of(
        self,
        op: StatefulOp,
        sides: Sequence[EdgeBatch],
        tasks: _Tasks,
    ) -> Inputs:
        return Inputs(
            sides,
            _views(op, tasks, self.stores),
            _times(op, tasks, self.stores),
            _clocks(op, tasks, self.stores),
            self.request.wall_clock_ms,
            self.through,
        )

    def _run_processors(
        self,
        sides: Sequence[Sequence[EdgeBatch]],
        tasks: _Tasks,
        moved: Sequence[Mapping[int, int]],
        skipped: frozenset[ClockCall],
    ) -> list[TasksResult]:
        sharing = []
        for op, mine, idle in zip(self.group, sides, moved, strict=True):
            assert isinstance(op.operator, ProcessorOperator)
            sharing.append(
                SharingProcessor(
                    name=op.name,
                    operator=op.operator,
                    inputs=self._inputs_of(op, mine, tasks),
                    links=op.links,
                    idle=idle,
                )
            )
        around = _around(self.group[0].subtopology, self.sources, self.request, skipped)
        return sharing[0].operator.run_together(sharing, around)

    def _judge(self, error: UserFunctionError) -> None:
        """Judges a clock's call that failed, which has no record (note 023). Returns if it is left
        out. DescribedFailure if it stops the instance, RetriableError, DamagedEntryError."""
        call, cause = error.call, error.__cause__ or error
        assert call is not None
        if not isinstance(self.stores.access, CheckedAccess):  # else an entry says so by itself
            raise UncheckedCallError from error
        if (damage := damage_in(cause)) is not None:
            raise damage from damage.__cause__
        op = self._failed_in(error)
        task = TaskId(op.subtopology, call.partition)
        read = sources_of_logs(self.sources, self.request.ranges)
        inputs = [tp for tp, source in read.items() if source.task(tp) == task]
        if isinstance(cause, RetriableError):
            raise RetriableError(str(cause), inputs) from cause
        if (away := serde_outage(RecordFailure(None, op.where, cause))) is not None:
            raise RetriableError(str(away), inputs) from cause
        where = "" if op.name == call.node else f", in node {op.name}"
        text = (
            f"{error_text(cause)}\n  in the clock's call of {error.function} at {call.time_ms} ms, "
            f"node {call.node}, task {task}{where}"
        )
        context = ErrorHandlerContext(
            stage=PROCESSING,
            topic=None,
            partition=-1,
            offset=-1,
            timestamp=call.time_ms,
            headers=(),
            source_raw_key=None,
            source_raw_value=None,
            processor_node_id=op.name,
            task_id=str(task),
            attempt=self.request.attempt,
        )
        response = self.handlers.answer(context, cause)
        if response is Response.FAIL:
            raise DescribedFailure(
                BatchFailure(
                    kind="fatal",
                    error=text,
                    code=error.code,
                    line=innermost_line(cause),
                    where=() if op.where is None else (op.where,),
                    details=stack_of(cause),
                    exception=class_of(cause),
                    partitions=tuple(inputs),
                    judged=True,
                )
            ) from cause
        if response is Response.RETRY:
            raise RetriableError(f"{text} (its handler says RETRY)", inputs) from cause
        first, _, rest = text.rpartition("\n  ")
        self.left_out.append(f"{first.partition(chr(10))[0]:.300} {rest}")

    def _failed_in(self, error: UserFunctionError) -> StatefulOp:
        return next((one for one in self.group if one.name == error.node), self.group[0])

    def _failure(self, error: UserFunctionError) -> RecordFailure:
        return _failure(self._failed_in(error), self.sources, error)

    @property
    def _may_be_cut(self) -> bool:
        """True if these operators can take their records in parts. Joins with tables cannot:
        they call no function, and `written_bytes` names all records that they cannot write."""
        (op, *_) = self.group
        if op.operator.in_pieces:
            return False
        return isinstance(op.operator, ProcessorOperator) or not (op.reads or op.looks_up)

    def _all_failures(
        self,
        sides: Sequence[Sequence[EdgeBatch]],
        tasks: _Tasks,
        error: UserFunctionError,
        most: int,
    ) -> list[UserFunctionError]:
        """All records on which it fails, of each task ``most``; at least the one of ``error``."""
        counts = [len(mine) for mine in sides]
        found: list[tuple[int, UserFunctionError]] = []
        for partition, task in tasks.items():
            flat = [
                one.take(np.flatnonzero(one.partition == partition))
                for mine in sides
                for one in mine
            ]
            if not any(map(len, flat)):
                continue
            parts = PartStores(self.stores)

            def run(
                part: Sequence[EdgeBatch],
                task: TaskId = task,
                of: PartStores = parts,
            ) -> None:
                some = iter(part)
                inputs = [[next(some) for _ in range(count)] for count in counts]
                on_parts = replace(self, stores=of)
                try:
                    done = on_parts._results(inputs, {task.partition: task}, [{} for _ in counts])
                except UserFunctionError as failure:
                    if (damage := damage_in(failure)) is not None:
                        raise damage from damage.__cause__
                    raise
                for op, mine, result in zip(self.group, inputs, done, strict=True):
                    of.remember_part(task, op.name, result)
                    if isinstance(op.operator, ProcessSpec):
                        for read, updates in zip(op.operator.tables, mine[1:], strict=True):
                            of.remember_updates(task, read, updates)

            first = error if error.partition == partition else None
            for one in failing_records(flat, run, first, most):
                found.append((_seq_of(flat, one), one))
        found.sort(key=lambda one: one[0])
        return [one for _, one in found] or [error]


def _around(
    subtopology: int, sources: Sources, request: BatchRequest, skipped: frozenset[ClockCall]
) -> Surroundings:
    topics = {source.index: source.topic for source in sources}
    firsts = {source.index: source.first for source in sources if source.first}
    return Surroundings(
        request.application_id,
        subtopology,
        topics,
        request.wall_clock_ms,
        skipped,
        firsts,
    )


def _seq_of(sides: Sequence[EdgeBatch], error: UserFunctionError) -> int:
    return min(
        int(one.seq[row])
        for one in sides
        for row in np.flatnonzero((one.source == error.source) & (one.offset == error.offset))[:1]
    )


def _failure(
    op: StatefulOp | AskOp,
    sources: Sources,
    error: UserFunctionError,
) -> RecordFailure:
    """Of no record if it comes of `close`, which is called behind all records."""
    record = None
    if error.source >= 0:
        log = sources[error.source].log(error.partition)
        record = BadRecord(*log, error.offset, op.name)
    return RecordFailure(record, op.where, error.__cause__ or error)


def clock_name(node: str, method: str) -> str:
    """Under which a method's last call by the wall clock is kept beside the nodes' stream times."""
    return f"{node}/{method}"


def _remember(tasks: _Tasks, done: TasksResult, stores: TaskStores) -> None:
    for partition, listed in done.changes.items():
        for changes in listed:
            stores.remember(tasks[partition], changes)


def _views(op: StatefulOp, tasks: _Tasks, stores: TaskStores) -> _Views:
    whole = stores.whole(op.looks_up)
    return {
        partition: {**stores.views(task, op.stores), **stores.before(task, op.reads), **whole}
        for partition, task in tasks.items()
    }


def _times(op: StatefulOp, tasks: _Tasks, stores: TaskStores) -> Mapping[int, int]:
    return {partition: stores.stream_time(task, op.name) for partition, task in tasks.items()}


def _clocks(
    op: StatefulOp,
    tasks: _Tasks,
    stores: TaskStores,
) -> Mapping[int, Mapping[str, int]]:
    if isinstance(stores, PartStores):
        return {}  # the wall clock calls behind all records
    return {
        partition: {
            name: stores.stream_time(task, clock_name(op.name, name)) for name in op.operator.marks
        }
        for partition, task in tasks.items()
    }


def ask(op: AskOp, rows: EdgeBatch, sources: Sources, request: BatchRequest) -> EdgeBatch:
    """What a table's transformer makes of rows that are looked up. RecordFailure."""
    none: Mapping[int, Any] = {int(partition): {} for partition in np.unique(rows.partition)}
    asking = replace(rows, seq=np.arange(len(rows), dtype=np.int64))
    inputs = Inputs((asking,), none, dict.fromkeys(none, -1), none)
    one = SharingProcessor(name=op.name, operator=op.operator, inputs=inputs)
    around = _around(op.subtopology, sources, request, frozenset())
    try:
        (done,) = op.operator.run_together([one], around)
    except UserFunctionError as error:
        raise _failure(op, sources, error) from (error.__cause__ or error)
    return replace(in_order(done.output), seq=rows.seq)


# --- idle sources ---------------------------------------------------------------------------------


def times_of(op: StatefulOp, moved_tasks: Moved) -> dict[int, int]:
    found = {}
    for task, names in moved_tasks.items():
        mine = [names[name] for name in op.idle if name in names]
        if task.subtopology == op.subtopology and mine:
            found[task.partition] = max(mine)
    return found


def advanced(
    op: StatefulOp,
    done: TasksResult,
    sides: Sequence[EdgeBatch],
    times: Mapping[int, int],
    stores: TaskStores,
) -> TasksResult:
    """``done``, and what an operator that had records gives when its time moves to ``times``."""
    if isinstance(op.operator, ProcessorOperator):
        return done
    tasks = {partition: TaskId(op.subtopology, partition) for partition in times}
    before = {**_times(op, tasks, stores), **done.stream_times}
    tasks = {one: task for one, task in tasks.items() if 0 <= before[one] < times[one]}
    if not tasks:
        return done
    before = {partition: before[partition] for partition in tasks}
    ticks = _ticks(sides[0], {partition: times[partition] for partition in tasks})
    more = op.operator.advance(ticks, Inputs(sides, _views(op, tasks, stores), before))
    done.stream_times.update({partition: times[partition] for partition in tasks})
    if more is None:
        return done
    _remember(tasks, more, stores)
    for partition, listed in more.changes.items():
        done.changes.setdefault(partition, []).extend(listed)
    for reason, count in more.dropped.items():
        done.dropped[reason] = done.dropped.get(reason, 0) + count
    done.output = appended([done.output, more.output])
    return done


def _ticks(like: EdgeBatch, times: Mapping[int, int]) -> EdgeBatch:
    count = len(times)
    return EdgeBatch(
        key=pa.nulls(count, like.key.type),
        value=pa.nulls(count, like.value.type),
        timestamp=np.array(list(times.values()), np.int64),
        seq=np.full(count, LAST_SEQ),
        source=np.zeros(count, np.int32),
        partition=np.array(list(times), np.int32),
        offset=np.full(count, -1, np.int64),
    )


def with_old_values(op: StatefulOp, done: EdgeBatch, stores: TaskStores) -> EdgeBatch:
    """The results in order, with what the entries of each were before (`with_old`)."""
    tasks = {int(one): TaskId(op.subtopology, int(one)) for one in np.unique(done.partition)}
    views = {
        partition: stores.before(task, (*op.stores, *op.reads)) for partition, task in tasks.items()
    }
    return in_order(with_old(op, done, views))
