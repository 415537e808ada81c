"""`ProcessSpec`, and how processors run: record by record over the tasks of a micro-batch.

Those that share stores run together (note 040), on records and table updates in the task's order;
what one record has brought to several comes in the order of arrival.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from everflow.clock import believed_ms, instant
from everflow.operators.grouping import rows_by_task
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.processors.processor import (
    AskedTransformer,
    BatchProcessor,
    Forwarded,
    Place,
    Processor,
    ProcessorContext,
    Punctuation,
    PunctuationType,
    Record,
    RecordMetadata,
    Shown,
    Turn,
    ValueTransformer,
    shown,
)
from everflow.operators.processors.stores import (
    EndingEntries,
    Entries,
    StoreClock,
    Updates,
    VersionEntries,
    global_entries,
    index_of,
)
from everflow.operators.user_code import NO_ROW, UserFunctionError, failure_at, require_users
from everflow.records import (
    HEADERS,
    LAST_SEQ,
    ClockCall,
    EdgeBatch,
    Int32,
    Int64,
    StoreChanges,
    TaskId,
    TasksResult,
    run_bounds,
)
from everflow.serdes import Serde
from everflow.serdes.arrow_types import UnfitError, column_of
from everflow.serdes.windowed import python_keys
from everflow.state.store import StoreSpec, StoreView
from everflow.topology.batches import appended
from everflow.topology.graph import EdgeType, ProcessorOperator, SharingProcessor, Surroundings
from everflow.user_program import error_text
from everflow.user_program import shown as shown_text

# --- what processors forward, as columns: each result beside the input record that it came from ---


def tagged(value: pa.DataType, children: Sequence[str]) -> pa.DataType:
    """The type of a processor's output, which says for which child it is where there are some."""
    if not children:
        return value
    return pa.struct([("child", pa.int32()), ("value", value)])


def placed(
    batch: EdgeBatch,
    rows: Int64,
    *,
    key: pa.Array,
    value: pa.Array,
    times: Int64,
    headers: pa.Array | None,
    partition: int,
) -> EdgeBatch:
    """Results of the input rows ``rows`` (`NO_ROW`: of a clock's call, behind all records)."""
    of_records = rows != NO_ROW

    def column(of_batch: Any, otherwise: int) -> Any:
        found = np.full(len(rows), otherwise, of_batch.dtype)
        found[of_records] = of_batch[rows[of_records]]
        return found

    return EdgeBatch(
        key=key,
        value=value,
        timestamp=times.astype(np.int64),
        seq=column(batch.seq, LAST_SEQ),
        source=column(batch.source, 0),
        partition=np.full(len(rows), partition, np.int32),
        offset=column(batch.offset, -1),
        headers=headers,
    )


def results_of_batch(
    out: EdgeType, made: pa.RecordBatch | pa.Table, batch: EdgeBatch, keeps_key: bool
) -> tuple[EdgeBatch, Int64]:
    """What a `BatchProcessor` has returned for records of a task, and of which of them each is.
    TypeError, ValueError for columns that are not what `BatchProcessor.process_batch` says."""
    if not isinstance(made, pa.RecordBatch | pa.Table):
        raise TypeError(f"process_batch returns an Arrow batch or table, found {shown_text(made)}")
    table = pa.Table.from_batches([made]) if isinstance(made, pa.RecordBatch) else made
    needed = ["value"] if keeps_key else ["key", "value"]
    known = {*needed, "timestamp", "headers", "row"}
    if not set(needed) <= set(table.column_names) or set(table.column_names) - known:
        raise ValueError(
            f"process_batch returns the columns {', '.join(needed)}, and maybe timestamp, headers "
            f"and row; found {', '.join(table.column_names) or 'none'}"
        )

    def column(name: str, kind: pa.DataType) -> pa.Array:
        return table.column(name).combine_chunks().cast(kind)

    if "row" in table.column_names:
        at = column("row", pa.int64()).to_numpy()
        if len(at) and (at.min() < 0 or at.max() >= len(batch)):
            raise ValueError(f"process_batch: row is from 0 to {len(batch) - 1}")
    elif len(table) == len(batch):
        at = np.arange(len(batch), dtype=np.int64)
    else:
        at = np.full(len(table), len(batch) - 1, np.int64)
    own = batch.take(at)
    times = own.timestamp
    if "timestamp" in table.column_names:
        times = column("timestamp", pa.int64()).to_numpy()
        if (times < 0).any():
            raise ValueError("process_batch: a time is in ms since 1970, found a negative one")
    key = own.key if keeps_key else column("key", out.key)
    results = replace(
        own.with_columns(key, column("value", out.value)),
        timestamp=times,
        put=None,
    )
    if "headers" in table.column_names:
        results.headers = column("headers", HEADERS)
    return results, at


@dataclass(frozen=True, kw_only=True)
class ProcessSpec(ProcessorOperator):
    """A processor: what makes one, its stores, the types of what it forwards.

    ``children``: names of the streams behind it that can be chosen; where there are some, the
    output's value is ``struct<child: int32, value>`` (child null: all of them). ``keeps_key``: what
    it forwards has the key of the input record. ``key_serde``: of the records' keys; a
    store that has the same is asked for them at once. ``tables``: those it reads, in the order of
    the node's inputs; ``looks_up``: global ones. ``transforms``: it makes values of a table.
    """

    supplier: Callable[[], Processor]
    specs: tuple[StoreSpec, ...]
    out: EdgeType
    children: tuple[str, ...] = ()
    keeps_key: bool = False
    punctuations: tuple[Punctuation, ...] = ()
    key_serde: Serde | None = None
    tables: tuple[JoinedTable, ...] = ()
    looks_up: tuple[StoreSpec, ...] = ()
    transforms: bool = False

    @property
    def wall_clocks(self) -> Mapping[str, int]:
        found = (one for one in self.punctuations if one.clock is PunctuationType.WALL_CLOCK_TIME)
        return {one.method: one.every_ms for one in found}

    @property
    def asked(self) -> ProcessSpec | None:
        """Another one of its kind, if it transforms with no store and no clock (note 035)."""
        if not self.transforms or self.specs or self.tables or self.punctuations:
            return None
        return replace(self, supplier=partial(AskedTransformer, self.supplier))

    def run_together(
        self, members: Sequence[SharingProcessor], surroundings: Surroundings
    ) -> list[TasksResult]:
        return run_processors(members, surroundings)


Onward = Callable[["Running", Record, int | None], None]


@dataclass
class Results:
    """What one processor, the member ``own`` of those that run together, has forwarded in all tasks
    of a batch; of the records of each member, its origin."""

    spec: ProcessSpec
    members: Sequence[SharingProcessor]
    own: int
    _parts: list[tuple[int, EdgeBatch]] = field(default_factory=list)

    def fitted(self, one: Forwarded) -> Record:
        """A record as those get it who read it as a result. UserFunctionError as `add`."""
        key = one.record.key
        if not self._keeps_key(one.origin):
            key = python_keys(self._column("key", [key], self.spec.out.key, [one]))[0]
        value = self._column(
            "value",
            [one.record.value],
            self.spec.out.value,
            [one],
        )[0].as_py()
        return one.record._replace(key=key, value=value)

    def made(self, partition: int, forwarded: Sequence[Forwarded]) -> EdgeBatch:
        """The results of a task's records, of one origin. UserFunctionError for a key or value that
        is not of its type, of the record it came from."""
        origin = forwarded[0].origin
        batch, out = self.members[origin].batch, self.spec.out
        rows = np.array([one.row for one in forwarded], np.int64)
        records = [one.record for one in forwarded]
        value = self._column("value", [one.value for one in records], out.value, forwarded)
        key = (
            batch.key.take(rows)
            if self._keeps_key(origin)
            else self._column("key", [one.key for one in records], out.key, forwarded)
        )
        times = [one.timestamp for one in records]
        headers = None
        if any(one.headers for one in records):
            listed = [[{"key": k, "value": v} for k, v in one.headers] for one in records]
            headers = self._column("headers", listed, HEADERS, forwarded)
        children = pa.array([one.child for one in forwarded], pa.int32())
        return placed(
            batch,
            rows,
            key=key,
            value=self._tagged(value, children),
            times=self._column("timestamp", times, pa.int64(), forwarded).to_numpy(),
            headers=headers,
            partition=partition,
        )

    def add(self, partition: int, forwarded: Sequence[Forwarded]) -> None:
        self._parts.append((forwarded[0].origin, self.made(partition, forwarded)))

    def add_batch(self, origin: int, made: EdgeBatch) -> None:
        none = pa.nulls(len(made), pa.int32())
        self._parts.append((origin, made.with_columns(value=self._tagged(made.value, none))))

    def taken(self) -> EdgeBatch:
        """All of them, in the order of the records; those of its own records first."""
        ordered = sorted(self._parts, key=lambda one: (one[0] != self.own, one[0]))
        parts = [part for _, part in ordered if len(part)]
        if not parts:
            nothing = pa.nulls(0, tagged(self.spec.out.value, self.spec.children))
            empty = self.members[self.own].batch.take(np.empty(0, np.int64))
            return empty.with_columns(pa.nulls(0, self.spec.out.key), nothing)
        whole = appended(parts)
        return whole.take(np.argsort(whole.seq, kind="stable"))

    def _keeps_key(self, origin: int) -> bool:
        return self.spec.keeps_key and origin == self.own

    def _tagged(self, value: pa.Array, children: pa.Array) -> pa.Array:
        if not self.spec.children:
            return value
        kind = tagged(self.spec.out.value, self.spec.children)
        return pa.StructArray.from_arrays([children, value], fields=list(kind))

    def _column(
        self, what: str, items: list[Any], kind: pa.DataType, of: Sequence[Forwarded]
    ) -> pa.Array:
        try:
            return column_of(items, kind)
        except UnfitError as error:
            text = (
                f"forward found the {what} {shown_text(items[error.index])}, which is not of the "
                f"declared type: {error}"
            )
            one = of[error.index]
            batch = self.members[one.origin].batch
            raise failure_at(text, batch, one.row) from TypeError(text)


class Running:
    """One processor, made for one task and micro-batch."""

    def __init__(
        self, task: _Task, number: int, entries: Mapping[str, Entries | VersionEntries]
    ) -> None:
        self.member, self.turn = task.members[number], task.turns[number]
        self._results, self._place, self._entries = task.results[number], task.place, entries
        self._spec = self._results.spec
        self._onward = task.hand if task.reads(self.member.name) else None
        self._context = ProcessorContext(
            task.place,
            self.turn,
            task.shown(self.turn, entries),
            self._spec.children,
            keeps_key=self._spec.keeps_key,
            transforms=self._spec.transforms,
            onward=None if self._onward is None else self._handing(self._onward),
        )
        self._by_stream_time = [
            one for one in self._spec.punctuations if one.clock is PunctuationType.STREAM_TIME
        ]
        self._handed_failure: UserFunctionError | None = None

    def begin(self, rows: Int64) -> None:
        self.turn.origin = self._results.own
        self.turn.row = int(rows[0]) if len(rows) else NO_ROW
        self._load(rows)
        self._processor = self._users(self._made)
        self._process_one = self._processor.process
        if isinstance(self._processor, ValueTransformer):
            transform, forwarded = self._processor.transform, self._context.forwarded
            turn = self.turn

            def transformed(record: Record) -> None:
                made = record.with_value(transform(record.key, record.value))
                forwarded.append(Forwarded(turn.origin, turn.row, made, None))

            self._process_one = transformed

    def take(self, rows: Int64) -> None:
        self.turn.origin = self._results.own
        if isinstance(self._processor, BatchProcessor):
            batch = self.member.batch.take(rows)
            self._whole(self._processor, batch, rows, self.turn.origin)
            return
        for row, record, metadata in self._records(rows):
            self.turn.row, self.turn.metadata = row, metadata
            self._process(record)

    def handed(self, record: Record, giver: Turn) -> None:
        turn = self.turn
        turn.origin, turn.row, turn.metadata = giver.origin, giver.row, giver.metadata
        if isinstance(self._processor, BatchProcessor):
            rows = np.array([giver.row], np.int64)
            self._whole(self._processor, self._as_batch(record, rows), rows, giver.origin)
        else:
            self._process(record)

    def passed(self, stream_time: int) -> None:
        """Stream time has gone on behind all records, by the wall clock."""
        turn, before = self.turn, self.turn.stream_time
        if not 0 <= before < stream_time:
            return
        turn.origin, turn.row, turn.stream_time = self._results.own, NO_ROW, stream_time
        self._punctuate(before)

    def call(self, methods: Sequence[str]) -> None:
        turn, now_ms = self.turn, self._place.around.wall_clock_ms
        for name in methods:
            turn.origin, turn.row = self._results.own, NO_ROW
            self._called(name, now_ms)

    def end(self) -> None:
        turn = self.turn
        turn.origin, turn.row = self._results.own, NO_ROW
        turn.metadata, turn.time = None, self._place.around.wall_clock_ms
        self._users(self._processor.close)
        self._hand_on()

    def _made(self) -> Processor:
        processor = self._spec.supplier()
        processor.context = self._context
        processor.init(self._context)
        return processor

    def _process(self, record: Record) -> None:
        turn = self.turn
        turn.time, turn.key = record.timestamp, record.key
        before = turn.stream_time
        turn.stream_time = max(before, record.timestamp)
        try:
            self._process_one(record)
        except BaseException as error:
            raise self._failure(error) from error
        if self._handed_failure is not None:
            raise self._handed_failure
        if turn.stream_time > before:
            self._punctuate(before)

    def _punctuate(self, before: int) -> None:
        turn = self.turn
        for one in self._by_stream_time:
            if turn.stream_time // one.every_ms == before // one.every_ms:
                continue
            self._called(one.method, turn.stream_time)

    def _called(self, name: str, time_ms: int) -> None:
        """A clock calls a method. UserFunctionError, which names the call and no record."""
        call = ClockCall(self.member.name, self._place.task.partition, name, time_ms)
        if call in self._place.around.skipped:
            return
        self.turn.metadata, self.turn.time = None, time_ms
        method, forwarded = getattr(self._processor, name), self._context.forwarded
        before = len(forwarded)
        try:
            self._users(method, time_ms)
            if self._handed_failure is not None:
                raise self._handed_failure
            self._require_fit(forwarded[before:])
        except UserFunctionError as error:
            if error.call is None:  # else what it has handed on has reached another's time
                error.call, error.function = call, _described(method)
                error.node = error.node or self.member.name
            raise

    def _require_fit(self, forwarded: Sequence[Forwarded]) -> None:
        """A forwarded value that does not fit fails in the clock's call, not later."""
        if forwarded and self._onward is None:  # what is handed on was looked at then
            self._results.made(self._place.task.partition, forwarded)

    def _whole(
        self,
        processor: BatchProcessor,
        batch: EdgeBatch,
        rows: Int64,
        origin: int,
    ) -> None:
        """Records in columns: ``rows`` of the batch of the processor ``origin``."""
        if not len(rows):
            return
        turn, before = self.turn, self.turn.stream_time
        turn.row = int(rows[-1])
        turn.stream_time = max(before, int(batch.timestamp.max()))
        turn.time = turn.stream_time
        columns = {"key": batch.key, "value": batch.value, "timestamp": pa.array(batch.timestamp)}
        if batch.headers is not None:
            columns["headers"] = batch.headers
        try:
            made = self._users(processor.process_batch, pa.RecordBatch.from_pydict(columns))
            if made is not None:
                out, keeps_key = self._spec.out, self._spec.keeps_key
                found, at = self._users(results_of_batch, out, made, batch, keeps_key)
        except UserFunctionError as error:
            error.together = len(rows) > 1
            raise
        if made is not None:
            self._hand_on()
            self._results.add_batch(origin, found)
            if self._onward is not None:
                for row, record in zip(rows[at].tolist(), _python_records(found), strict=True):
                    turn.row = row
                    self._users(self._onward, self, record, None)
        if self._handed_failure is not None:
            raise self._handed_failure
        turn.row = int(rows[-1])
        if turn.stream_time > before:
            self._punctuate(before)

    def _handing(self, onward: Onward) -> Callable[[Record, int | None], None]:
        """`forward` calls it: a failure there is not the caller's, who may catch it."""

        def hand(record: Record, child: int | None) -> None:
            one = Forwarded(self.turn.origin, self.turn.row, record, child)
            try:
                onward(self, self._results.fitted(one), child)
            except UserFunctionError as error:
                self._handed_failure = self._handed_failure or error
                raise

        return hand

    def _hand_on(self) -> None:
        partition, forwarded = self._place.task.partition, self._context.forwarded
        for origin in dict.fromkeys(one.origin for one in forwarded):
            mine = [one for one in forwarded if one.origin == origin]
            try:
                self._results.add(partition, mine)
            except UserFunctionError as error:
                error.node = self.member.name
                raise
        forwarded.clear()

    def _load(self, rows: Int64) -> None:
        """The entries of the records' own keys, by one call for each store."""
        serde = self._spec.key_serde
        same = [
            entries
            for entries in self._entries.values()
            if isinstance(entries, Entries)
            and entries.spec.kind == "key_value"
            and entries.spec.key_serde == serde
        ]
        if not same or serde is None or not len(rows):
            return
        keys = self.member.batch.key.take(rows).drop_null()
        try:
            written = serde.encode_array(keys).unique().to_pylist()  # keys themselves may be nested
        except Exception:
            return  # a read of such a key raises the error
        for entries in same:
            entries.load(written)

    def _records(self, rows: Int64) -> Iterator[tuple[int, Record, RecordMetadata]]:
        taken = self.member.batch.take(rows)
        own, around = self._place.task.partition, self._place.around
        places = (rows.tolist(), taken.source.tolist(), taken.offset.tolist())
        for record, row, source, offset in zip(_python_records(taken), *places, strict=True):
            partition = own + around.firsts.get(source, 0)
            yield row, record, RecordMetadata(around.topics.get(source, ""), partition, offset)

    def _as_batch(self, record: Record, rows: Int64) -> EdgeBatch:
        """A record that was handed over, in columns; it has fitted the types of its giver."""
        givers = {link.processor for link in self.member.links}
        giver = next(one for one in self._results.members if one.name in givers)
        out = giver.operator.out  # type: ignore[attr-defined]
        listed = [[{"key": k, "value": v} for k, v in record.headers]]
        return placed(
            self._results.members[self.turn.origin].batch,
            rows,
            key=column_of([record.key], out.key),
            value=column_of([record.value], out.value),
            times=np.array([record.timestamp], np.int64),
            headers=column_of(listed, HEADERS),
            partition=self._place.task.partition,
        )

    def _users(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except BaseException as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> UserFunctionError:
        if isinstance(error, UserFunctionError):
            raise error
        if self._handed_failure is not None:
            raise self._handed_failure
        require_users(error)
        return failure_at(
            f"the processor failed: {error_text(error)}",
            self._results.members[self.turn.origin].batch,
            self.turn.row,
            self._place.task.partition,
            self.member.name,
        )


def _described(method: Callable[..., Any]) -> str:
    """A method and where it is: ``Daily.close_day (program.py:12)``."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    name, code = (
        getattr(function, "__qualname__", repr(function)),
        getattr(function, "__code__", None),
    )
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _python_records(batch: EdgeBatch) -> Iterator[Record]:
    headers: Sequence[Any] = [()] * len(batch)
    if batch.headers is not None and batch.headers.null_count < len(batch):
        headers = [
            [(one["key"], one["value"]) for one in listed] if listed else ()
            for listed in batch.headers.to_pylist()
        ]
    columns = python_keys(batch.key), batch.value.to_pylist(), batch.timestamp.tolist(), headers
    return (Record(*one) for one in zip(*columns, strict=True))


def run_processors(
    members: Sequence[SharingProcessor], surroundings: Surroundings
) -> list[TasksResult]:
    """See `ProcessorOperator.run_together`. UserFunctionError of the record in hand."""
    results = [Results(_spec(one), members, number) for number, one in enumerate(members)]
    done = [
        TasksResult(one.batch, {}, dict(one.inputs.stream_times), {}, {}) for one in members
    ]  # the output follows
    rows = [[dict(rows_by_task(side.partition)) for side in one.inputs.sides] for one in members]
    none = np.empty(0, np.int64)
    for partition in sorted(members[0].inputs.stores):
        task = _Task(members, results, partition, surroundings)
        mine = [[of.get(partition, none) for of in sides] for sides in rows]
        if any(len(sides[0]) for sides in mine) or task.is_due:
            task.run(mine)
        task.note(done)
    for result, of in zip(done, results, strict=True):
        result.output = of.taken()
    return done


def _spec(member: SharingProcessor) -> ProcessSpec:
    return cast(ProcessSpec, member.operator)


class _Task:
    """All processors of one task, and the stores that they share."""

    def __init__(
        self,
        members: Sequence[SharingProcessor],
        results: Sequence[Results],
        partition: int,
        surroundings: Surroundings,
    ) -> None:
        self.members, self._partition = members, partition
        self._now_ms = surroundings.wall_clock_ms
        self.results = results
        self.place = Place(TaskId(surroundings.subtopology, partition), surroundings)
        times = [one.inputs.stream_times[partition] for one in members]
        self.turns = [Turn(stream_time=time, time=max(0, time)) for time in times]
        self._entries: dict[str, Entries | VersionEntries] = {}
        self._ahead: list[dict[str, int]] = [{} for _ in members]
        """Times of `_last` that are ahead of the present clock, and are not believed."""
        self._last = [self._last_of(*both) for both in zip(members, self._ahead, strict=True)]
        self._due = [self._due_of(*both) for both in zip(members, self._last, strict=True)]
        self._idle = [one.idle.get(partition, 0) for one in members]
        self.is_due = any(self._idle) or any(any(due.values()) for due in self._due)

    def run(self, rows: Sequence[Sequence[Int64]]) -> None:
        """``rows``: of each processor's sides, its records and the updates of its tables."""
        running, tables = [], []
        for number, mine in enumerate(rows):
            entries, read = self._stores(number, mine[1:])
            tables.append(read)
            running.append(Running(self, number, entries))
        self._running = running
        for one, mine in zip(running, rows, strict=True):
            one.begin(mine[0])
        for number, side, begin, end in _in_turns(self.members, rows):
            if side:
                tables[number][side - 1].put(begin, end)
            else:
                running[number].take(rows[number][0][begin:end])
        for one, idle_ms in zip(running, self._idle, strict=True):
            one.passed(idle_ms)
        for one, due in zip(running, self._due, strict=True):
            one.call([name for name, times in due.items() if times])
        for one in running:
            one.end()

    def note(self, done: Sequence[TasksResult]) -> None:
        left: dict[str, StoreChanges] = {}
        for ending in self._entries.values():
            if isinstance(ending, EndingEntries):
                ending.take_out_ended()
        for name, entries in self._entries.items():
            changes = entries.changes(max(0, self._stream_time(name)))
            if len(changes):
                left[name] = changes
        for number, (member, result) in enumerate(zip(self.members, done, strict=True)):
            result.stream_times[self._partition] = self.turns[number].stream_time
            mine = [left.pop(one.name) for one in _spec(member).specs if one.name in left]
            if mine:
                result.changes[self._partition] = mine
            result.clocks[self._partition] = {
                name: last + self._due[number][name] * member.operator.wall_clocks[name]
                for name, last in self._last[number].items()
            }
            result.remarks += [
                f"task {self.place.task}: {member.name}.{name} was last due at "
                f"{instant(kept)}, which is ahead of this host's clock ({instant(self._now_ms)}). "
                f"It is due again in {member.operator.wall_clocks[name]} ms. Check the clocks of "
                f"the hosts that ran the task"
                for name, kept in self._ahead[number].items()
            ]

    def _last_of(self, member: SharingProcessor, ahead: dict[str, int]) -> dict[str, int]:
        """When each method was last due: now if never, or if a wrong clock has said so."""
        last = {}
        for name, kept in member.inputs.clocks.get(self._partition, {}).items():
            every_ms = member.operator.wall_clocks[name]
            last[name] = self._now_ms if kept < 0 else believed_ms(kept, self._now_ms, every_ms)
            if last[name] < kept:
                ahead[name] = kept
        return last

    def _due_of(self, member: SharingProcessor, last: Mapping[str, int]) -> dict[str, int]:
        return {
            name: max(0, (self._now_ms - last.get(name, self._now_ms)) // every_ms)
            for name, every_ms in member.operator.wall_clocks.items()
        }

    def reads(self, name: str) -> bool:
        return any(link.processor == name for one in self.members for link in one.links)

    def hand(self, giver: Running, record: Record, child: int | None) -> None:
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
        member = self.members[number]
        spec, views = _spec(member), member.inputs.stores[self._partition]
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
        for read, batch, rows in zip(
            spec.tables,
            member.inputs.sides[1:],
            changed,
            strict=True,
        ):
            updates.append(Updates(read, batch.take(rows), views[read.spec.name]))
            found[read.spec.name] = updates[-1].entries
        found |= {one.name: global_entries(one, views[one.name]) for one in spec.looks_up}
        return found, updates

    def _made(
        self,
        spec: StoreSpec,
        views: Mapping[str, StoreView],
    ) -> Entries | VersionEntries:
        view, index = views[spec.name], index_of(spec)
        if spec.versioned:
            return VersionEntries(spec, view)
        if index is None:
            return Entries(spec, view)
        indexed = self._entries[index.name] = Entries(index, views[index.name])
        return EndingEntries(spec, view, indexed, partial(self._stream_time, spec.name))

    def shown(
        self, turn: Turn, entries: Mapping[str, Entries | VersionEntries]
    ) -> dict[str, Shown]:
        return {
            name: shown(one, StoreClock(lambda: turn.time, partial(self._store_time, one)))
            for name, one in entries.items()
        }

    def _store_time(self, entries: Entries | VersionEntries) -> int:
        own = entries.newest_ms
        return self._stream_time(entries.spec.name) if own is None else own

    def _stream_time(self, store: str) -> int:
        return max(
            turn.stream_time
            for turn, member in zip(self.turns, self.members, strict=True)
            if any(one.name == store for one in _spec(member).specs)
        )


def _in_turns(
    members: Sequence[SharingProcessor], rows: Sequence[Sequence[Int64]]
) -> list[tuple[int, int, int, int]]:
    """What comes one after the other: processor, side, from and to."""
    streams: list[tuple[int, int]] = []
    seqs: list[Int64] = []
    for number, member in enumerate(members):
        tables = list(enumerate(_spec(member).tables, 1))
        before = [side for side, read in tables if read.first]
        behind = [side for side, read in tables if not read.first]
        for side in (*before, 0, *behind):
            streams.append((number, side))
            seqs.append(member.inputs.sides[side].seq[rows[number][side]])
    if len(streams) == 1:
        return [(*streams[0], 0, len(seqs[0]))]
    numbers: Int32 = np.repeat(np.arange(len(streams), dtype=np.int32), [len(s) for s in seqs])
    order = np.lexsort((numbers, np.concatenate(seqs)))
    turns = numbers[order]
    done = [0] * len(streams)
    found = []
    for begin, end in pairwise(run_bounds(turns)):
        stream = int(turns[begin])
        first = done[stream]
        done[stream] = first + end - begin
        found.append((*streams[stream], first, done[stream]))
    return found
