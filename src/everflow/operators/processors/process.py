"""Runs a processor over the tasks of a micro-batch: one object for each task (design note 023)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.operators.grouping import task_slices
from everflow.operators.processors.context import (
    NO_ROW,
    Place,
    ProcessorContext,
    Turn,
)
from everflow.operators.processors.forwarding import Results, results_of_batch
from everflow.operators.processors.processor import (
    BatchProcessor,
    Processor,
    Punctuation,
    PunctuationType,
    Record,
    RecordMetadata,
)
from everflow.operators.user_code import UserFunctionError, require_users
from everflow.records import EdgeBatch, Int64, StoreChanges, TaskId, TasksResult
from everflow.serdes import Serde
from everflow.serdes.windowed import python_keys
from everflow.state.store import StoreSpec, StoreView
from everflow.topology.graph import EdgeType, Surroundings
from everflow.user_texts import error_text


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """A processor: what makes one, its stores, the types of what it forwards.

    ``children``: names of the streams behind it that can be chosen; where there are some, the
    output's value is ``struct<child: int32, value>`` (child null: all of them). ``keeps_key``: what
    it forwards has the key of the record that it was given. ``key_serde``: of the records' keys; a
    store that has the same is asked for them at once.
    """

    supplier: Callable[[], Processor]
    specs: tuple[StoreSpec, ...]
    out: EdgeType
    children: tuple[str, ...] = ()
    keeps_key: bool = False
    punctuations: tuple[Punctuation, ...] = ()
    key_serde: Serde | None = None

    @property
    def wall_clocks(self) -> Mapping[str, int]:
        """See `ProcessorOperator`."""
        found = (one for one in self.punctuations if one.clock is PunctuationType.WALL_CLOCK_TIME)
        return {one.method: one.every_ms for one in found}

    def run_tasks(
        self,
        batch: EdgeBatch,
        stores: Mapping[int, Mapping[str, StoreView]],
        stream_times: Mapping[int, int],
        clocks: Mapping[int, Mapping[str, int]],
        surroundings: Surroundings,
    ) -> TasksResult:
        """See `ProcessorOperator`. A failure of the user's code is the record's that was being
        processed: UserFunctionError."""
        order = np.argsort(batch.partition, kind="stable")
        rows_of = {
            partition: order[part] for partition, part in task_slices(batch.partition[order])
        }
        results = Results(self.out, self.children, self.keeps_key, batch)
        changes: dict[int, list[StoreChanges]] = {}
        after, called = dict(stream_times), dict[int, dict[str, int]]()
        for partition in sorted(stores):
            rows = rows_of.get(partition, np.empty(0, np.int64))
            place = Place(
                TaskId(surroundings.subtopology, partition),
                surroundings.application_id,
                surroundings.wall_clock_ms,
                surroundings.topics,
            )
            due = self._due(clocks.get(partition, {}), surroundings.wall_clock_ms)
            if not len(rows) and not any(due.values()):
                called[partition] = _begun(clocks.get(partition, {}), surroundings.wall_clock_ms)
                continue
            task = _Task(
                self, batch, rows, stores[partition], place, stream_times[partition], results
            )
            task.run([name for name, times in due.items() if times])
            after[partition] = task.turn.stream_time
            changes[partition] = task.changes()
            called[partition] = {
                name: ms + due[name] * self.wall_clocks[name]
                for name, ms in _begun(
                    clocks.get(partition, {}), surroundings.wall_clock_ms
                ).items()
            }
        return TasksResult(results.taken(), changes, after, {}, called)

    def _due(self, clocks: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """How many times each method has become due since it last was."""
        return {
            name: max(0, (now_ms - clocks[name]) // every_ms) if clocks[name] >= 0 else 0
            for name, every_ms in self.wall_clocks.items()
        }


def _begun(clocks: Mapping[str, int], now_ms: int) -> dict[str, int]:
    """The clocks, those that have not begun beginning now."""
    return {name: now_ms if ms < 0 else ms for name, ms in clocks.items()}


class _Task:
    """One task's part of the batch, and the processor that is made for it."""

    def __init__(
        self,
        spec: ProcessSpec,
        batch: EdgeBatch,
        rows: Int64,
        views: Mapping[str, StoreView],
        place: Place,
        stream_time: int,
        results: Results,
    ) -> None:
        self._spec, self._batch, self._rows = spec, batch, rows
        self._place, self._results = place, results
        self.turn = Turn(stream_time=stream_time, time=max(0, stream_time))
        self._context = ProcessorContext(
            place, self.turn, spec.specs, views, spec.children, keeps_key=spec.keeps_key
        )
        self._by_stream_time = [
            one for one in spec.punctuations if one.clock is PunctuationType.STREAM_TIME
        ]

    def run(self, due: Sequence[str]) -> None:
        """All records, and the methods that are ``due`` by the wall clock behind them."""
        first = int(self._rows[0]) if len(self._rows) else NO_ROW
        processor = self._users(first, self._made)
        if isinstance(processor, BatchProcessor):
            self._whole(processor)
        else:
            self._one_by_one(processor)
        now_ms = self._place.wall_clock_ms
        self.turn.row, self.turn.metadata, self.turn.time = NO_ROW, None, now_ms
        for name in due:
            self._users(NO_ROW, getattr(processor, name), now_ms)
        self._users(NO_ROW, processor.close)
        self._hand_on()

    def changes(self) -> list[StoreChanges]:
        """Of all stores that have changed."""
        made = [
            entries.changes(max(0, self.turn.stream_time))
            for entries in self._context.entries.values()
        ]
        return [one for one in made if len(one)]

    def _made(self) -> Processor:
        processor = self._spec.supplier()
        processor.context = self._context
        processor.init(self._context)
        return processor

    def _one_by_one(self, processor: Processor) -> None:
        self._load()
        turn, process = self.turn, processor.process
        for row, record, metadata in self._records():
            turn.row, turn.time, turn.key = row, record.timestamp, record.key
            turn.metadata = metadata
            before = turn.stream_time
            turn.stream_time = max(before, record.timestamp)
            try:
                process(record)
            except BaseException as error:
                raise self._failure(row, error) from error
            if turn.stream_time > before:
                self._punctuate(processor, row, before)
        self._hand_on()

    def _punctuate(self, processor: Processor, row: int, before: int) -> None:
        """The methods whose next multiple of stream time was reached."""
        turn = self.turn
        for one in self._by_stream_time:
            if turn.stream_time // one.every_ms == before // one.every_ms:
                continue
            turn.metadata, turn.time = None, turn.stream_time
            self._users(row, getattr(processor, one.method), turn.stream_time)

    def _whole(self, processor: BatchProcessor) -> None:
        if not len(self._rows):
            return
        batch, before = self._batch.take(self._rows), self.turn.stream_time
        last = int(self._rows[-1])
        self.turn.stream_time = max(before, int(batch.timestamp.max()))
        self.turn.row, self.turn.time = last, self.turn.stream_time
        columns = {"key": batch.key, "value": batch.value, "timestamp": pa.array(batch.timestamp)}
        if batch.headers is not None:
            columns["headers"] = batch.headers
        given = pa.RecordBatch.from_pydict(columns)
        made = self._users(last, processor.process_batch, given)
        if made is not None:
            out, keeps_key = self._spec.out, self._spec.keeps_key
            found = self._users(last, results_of_batch, out, made, batch, keeps_key)
            self._results.add_batch(found)
        if self.turn.stream_time > before:
            self._punctuate(processor, last, before)
        self._hand_on()

    def _hand_on(self) -> None:
        """What was forwarded becomes results."""
        self._results.add(self._place.task.partition, self._context.forwarded)
        self._context.forwarded.clear()

    def _load(self) -> None:
        """The entries of the records' own keys, by one call for each store."""
        spec = self._spec
        stores = [one.name for one in spec.specs if one.kind == "key_value"]
        same = [
            name for name in stores if self._context.entries[name].spec.key_serde == spec.key_serde
        ]
        if not same or spec.key_serde is None:
            return
        keys = self._batch.key.take(pa.array(self._rows)).drop_null().unique()
        try:
            written = spec.key_serde.encode_array(keys).to_pylist()
        except Exception:
            return  # whoever asks for such a key is told
        for name in same:
            self._context.entries[name].load(written)

    def _records(self) -> Iterator[tuple[int, Record, RecordMetadata]]:
        batch, rows = self._batch, self._rows
        taken = batch.take(rows)
        headers: Sequence[Any] = [()] * len(rows)
        if taken.headers is not None and taken.headers.null_count < len(rows):
            headers = [
                [(one["key"], one["value"]) for one in listed] if listed else ()
                for listed in taken.headers.to_pylist()
            ]
        columns = (
            rows.tolist(),
            python_keys(taken.key),
            taken.value.to_pylist(),
            taken.timestamp.tolist(),
            headers,
            taken.source.tolist(),
            taken.offset.tolist(),
        )
        partition, topics = self._place.task.partition, self._place.topics
        for row, key, value, time, listed, source, offset in zip(*columns, strict=True):
            metadata = RecordMetadata(topics.get(source, ""), partition, offset)
            yield row, Record(key, value, time, listed), metadata

    def _users(self, row: int, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except BaseException as error:
            raise self._failure(row, error) from error

    def _failure(self, row: int, error: BaseException) -> UserFunctionError:
        require_users(error)
        return UserFunctionError(
            f"the processor failed: {error_text(error)}",
            source=NO_ROW if row == NO_ROW else int(self._batch.source[row]),
            partition=self._place.task.partition,
            offset=-1 if row == NO_ROW else int(self._batch.offset[row]),
        )
