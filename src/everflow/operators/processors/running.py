"""A processor at work in one task: what it is given, and what becomes of what it forwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from everflow.operators.processors.context import (
    NO_ROW,
    Forwarded,
    Place,
    ProcessorContext,
    Shown,
    Turn,
)
from everflow.operators.processors.forwarding import Results, placed, results_of_batch
from everflow.operators.processors.processor import (
    BatchProcessor,
    Processor,
    PunctuationType,
    Record,
    RecordMetadata,
    ValueTransformer,
)
from everflow.operators.processors.stores import Entries
from everflow.operators.processors.versioned_store import VersionEntries
from everflow.operators.user_code import UserFunctionError, require_users
from everflow.records import HEADERS, ClockCall, EdgeBatch, Int64
from everflow.serdes.fitting import column_of
from everflow.serdes.windowed import python_keys
from everflow.topology.graph import SharingProcessor
from everflow.user_texts import error_text

if TYPE_CHECKING:
    from everflow.operators.processors.process import ProcessSpec

Onward = Callable[["Running", Record, int | None], None]


@dataclass
class Origins:
    """Of one processor: what it has forwarded of the records of each of those that run together,
    by their numbers."""

    spec: ProcessSpec
    members: Sequence[SharingProcessor]
    own: int
    found: dict[int, Results] = field(default_factory=dict)

    def of(self, origin: int) -> Results:
        """The results of the records that came to the processor ``origin`` from outside."""
        if origin not in self.found:
            keeps_key = self.spec.keeps_key and origin == self.own
            batch = self.members[origin].batch
            self.found[origin] = Results(self.spec.out, self.spec.children, keeps_key, batch)
        return self.found[origin]

    def taken(self) -> EdgeBatch:
        """All of them, in the order of the records."""
        others = [results for origin, results in sorted(self.found.items()) if origin != self.own]
        return self.of(self.own).taken(others)


class Running:
    """One processor, made for one task and micro-batch."""

    def __init__(
        self,
        members: Sequence[SharingProcessor],
        origins: Origins,
        place: Place,
        turn: Turn,
        stores: tuple[Mapping[str, Entries | VersionEntries], Mapping[str, Shown]],
        onward: Onward | None,
    ) -> None:
        """``stores``: their entries and what is shown of them. ``onward``: to those that it hands
        records to."""
        self.member = members[origins.own]
        self.turn = turn
        self._members, self._origins, self._place = members, origins, place
        self._spec = origins.spec
        self._entries = stores[0]
        self._context = ProcessorContext(
            place,
            turn,
            stores[1],
            self._spec.children,
            keeps_key=self._spec.keeps_key,
            transforms=self._spec.transforms,
            onward=None if onward is None else self._handing(onward),
        )
        self._onward = onward
        self._by_stream_time = [
            one for one in self._spec.punctuations if one.clock is PunctuationType.STREAM_TIME
        ]
        self._handed_failure: UserFunctionError | None = None

    # --- its life ------------------------------------------------------------------------------

    def begin(self, rows: Int64) -> None:
        """Make the processor; ``rows``: those of its batch that it will be given."""
        self.turn.origin = self._origins.own
        self.turn.row = int(rows[0]) if len(rows) else NO_ROW
        self._load(rows)
        self._processor = self._users(self._made)
        self._process_one = self._processor.process
        if isinstance(self._processor, ValueTransformer):
            transform, forwarded = self._processor.transform, self._context.forwarded
            self._process_one = lambda record: forwarded.append(
                Forwarded(
                    self.turn.origin,
                    self.turn.row,
                    record.with_value(transform(record.key, record.value)),
                    None,
                )
            )

    def take(self, rows: Int64) -> None:
        """Its own records of these rows, one behind the other."""
        self.turn.origin = self._origins.own
        if isinstance(self._processor, BatchProcessor):
            batch = self.member.batch.take(rows)
            self._whole(self._processor, batch, rows, self.turn.origin)
            return
        for row, record, metadata in self._records(rows):
            self.turn.row, self.turn.metadata = row, metadata
            self._process(record)

    def handed(self, record: Record, giver: Turn) -> None:
        """A record that another processor has just forwarded. UserFunctionError."""
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
        turn.origin, turn.row, turn.stream_time = self._origins.own, NO_ROW, stream_time
        self._punctuate(before)

    def call(self, methods: Sequence[str]) -> None:
        """The methods that the wall clock calls, behind all records."""
        turn, now_ms = self.turn, self._place.wall_clock_ms
        for name in methods:
            turn.origin, turn.row = self._origins.own, NO_ROW
            self._called(name, now_ms)

    def end(self) -> None:
        """Close it; what it has forwarded becomes results."""
        turn = self.turn
        turn.origin, turn.row = self._origins.own, NO_ROW
        turn.metadata, turn.time = None, self._place.wall_clock_ms
        self._users(self._processor.close)
        self._hand_on()

    # --- records -------------------------------------------------------------------------------

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
        """The methods whose next multiple of stream time was reached."""
        turn = self.turn
        for one in self._by_stream_time:
            if turn.stream_time // one.every_ms == before // one.every_ms:
                continue
            self._called(one.method, turn.stream_time)

    def _called(self, name: str, time_ms: int) -> None:
        """A clock calls a method. UserFunctionError, which names the call and no record."""
        call = ClockCall(self.member.name, self._place.task.partition, name, time_ms)
        if call in self._place.skipped:
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
                error.call, error.function = call, _told(method)
                error.node = error.node or self.member.name
            raise

    def _require_fit(self, forwarded: Sequence[Forwarded]) -> None:
        """What a clock's call has forwarded fails in the call, not when it becomes results."""
        if self._onward is not None or not forwarded:
            return  # what is handed on was looked at then
        scratch = Results(
            self._spec.out,
            self._spec.children,
            self._spec.keeps_key,
            self._origins.of(forwarded[0].origin).batch,
        )
        scratch.add(self._place.task.partition, forwarded)

    def _whole(self, processor: BatchProcessor, batch: EdgeBatch, rows: Int64, origin: int) -> None:
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
            self._origins.of(origin).add_batch(found)
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
        """What `forward` calls: a failure there is not that of the caller, who may catch it."""

        def hand(record: Record, child: int | None) -> None:
            one = Forwarded(self.turn.origin, self.turn.row, record, child)
            try:
                onward(self, self._origins.of(one.origin).fitted(one), child)
            except UserFunctionError as error:
                self._handed_failure = self._handed_failure or error
                raise

        return hand

    def _hand_on(self) -> None:
        """What was forwarded becomes results."""
        partition, forwarded = self._place.task.partition, self._context.forwarded
        for origin in dict.fromkeys(one.origin for one in forwarded):
            mine = [one for one in forwarded if one.origin == origin]
            try:
                self._origins.of(origin).add(partition, mine)
            except UserFunctionError as error:
                error.node = self.member.name
                raise
        forwarded.clear()

    # --- what it reads -------------------------------------------------------------------------

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
        keys = self.member.batch.key.take(pa.array(rows)).drop_null()
        try:
            written = serde.encode_array(keys).unique().to_pylist()  # keys themselves may be nested
        except Exception:
            return  # whoever asks for such a key is told
        for entries in same:
            entries.load(written)

    def _records(self, rows: Int64) -> Iterator[tuple[int, Record, RecordMetadata]]:
        taken = self.member.batch.take(rows)
        partition, topics = self._place.task.partition, self._place.topics
        places = (rows.tolist(), taken.source.tolist(), taken.offset.tolist())
        for record, row, source, offset in zip(_python_records(taken), *places, strict=True):
            yield row, record, RecordMetadata(topics.get(source, ""), partition, offset)

    def _as_batch(self, record: Record, rows: Int64) -> EdgeBatch:
        """A record that was handed over, in columns; it has fitted the types of its giver."""
        giver = next(
            one
            for one in self._members
            if one.name in {link.processor for link in self.member.links}
        )
        out = giver.operator.out  # type: ignore[attr-defined]
        listed = [[{"key": k, "value": v} for k, v in record.headers]]
        return placed(
            self._members[self.turn.origin].batch,
            rows,
            key=column_of([record.key], out.key),
            value=column_of([record.value], out.value),
            times=np.array([record.timestamp], np.int64),
            headers=column_of(listed, HEADERS),
            partition=self._place.task.partition,
        )

    # --- failures ------------------------------------------------------------------------------

    def _users(self, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except BaseException as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> UserFunctionError:
        if isinstance(error, UserFunctionError):
            raise error
        if self._handed_failure is not None:
            raise self._handed_failure
        require_users(error)
        batch, row = self._members[self.turn.origin].batch, self.turn.row
        return UserFunctionError(
            f"the processor failed: {error_text(error)}",
            source=NO_ROW if row == NO_ROW else int(batch.source[row]),
            partition=self._place.task.partition,
            offset=-1 if row == NO_ROW else int(batch.offset[row]),
            node=self.member.name,
        )


def _told(method: Callable[..., Any]) -> str:
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
