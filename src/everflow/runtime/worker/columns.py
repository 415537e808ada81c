"""Runs the Columns of a plan in a worker: on Arrow, by Spark's code, by Python functions.

`everflow.runtime.thread.columns` prepares them (notes 014 and 016).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.columns.computation import ArrowExpression, LeftToSpark
from everflow.errors import RetriableError
from everflow.operators.user_code import failing_rows, require_users
from everflow.records import EdgeBatch, no_headers
from everflow.runtime.commit.batch import BadRecord
from everflow.runtime.step.step_failure import SparkSays
from everflow.runtime.step.step_functions import RecordFailure, raise_all
from everflow.runtime.step.task_step import ColumnComputer, Records
from everflow.runtime.worker.column_client import ColumnsFailed, Ticket
from everflow.runtime.worker.python_calls import results_of
from everflow.topology.batches import ColumnRows, readable, spread
from everflow.topology.graph import ColumnExpr
from everflow.topology.plan import Call, Choice, Compute, Projection, Source, Stage


@dataclass(frozen=True, kw_only=True)
class ArrowProjection:
    """A projection from slot ``input`` to slot ``output`` whose Columns all have Arrow expressions
    (None: what is there already)."""

    input: int
    output: int
    topics: Mapping[int, str]
    predicate: ArrowExpression | None = None
    key: ArrowExpression | None = None
    value: ArrowExpression | None = None
    beside: ArrowExpression | None = None
    """What it says of each record: each value becomes ``struct<WHAT, value>``."""
    what: str = ""

    @staticmethod
    def of(found: Projection | Choice, topics: Mapping[int, str]) -> ArrowProjection:
        """Of a projection that Arrow computes (`plan.computed_by`)."""
        if isinstance(found, Choice):
            return ArrowProjection(
                input=found.input,
                output=found.output,
                topics=topics,
                beside=found.column.arrow,
                what=found.what,
            )
        node = found.node
        return ArrowProjection(
            input=found.input,
            output=found.output,
            topics=topics,
            predicate=_in_arrow(node.predicate),
            key=_in_arrow(node.key),
            value=_in_arrow(node.value),
        )

    @property
    def sure(self) -> bool:
        """Whether Arrow never leaves it to Spark."""
        given = (self.predicate, self.key, self.value, self.beside)
        return all(arrow is None or arrow.sure for arrow in given)

    def run(self, records: Records) -> None:
        """Raises LeftToSpark."""
        batch = records[self.input]
        if self.predicate is not None:
            kept = self._made(self.predicate, batch).fill_null(False)
            if kept.true_count < len(batch):
                batch = batch.take(np.flatnonzero(kept.to_numpy(zero_copy_only=False)))
        key = None if self.key is None else self._made(self.key, batch)
        value = None if self.value is None else self._made(self.value, batch)
        if self.beside is not None:
            said = self._made(self.beside, batch)
            value = pa.StructArray.from_arrays([said, batch.value], [self.what, "value"])
        records[self.output] = batch.with_columns(key, value)

    def _made(self, arrow: ArrowExpression, batch: EdgeBatch) -> pa.Array:
        return arrow.run(seen(batch, arrow.reads, self.topics), len(batch))


@dataclass(frozen=True)
class ArrowColumns:
    """Projections on Arrow alone. ``outputs``: the slots that somebody reads behind them.
    ``spark``: what has the truth where Arrow is not sure of it; None where it always is."""

    projections: tuple[ArrowProjection, ...]
    outputs: tuple[int, ...] = ()
    spark: SparkColumns | None = None

    def run(self, records: Records, computer: ColumnComputer) -> None:
        """See `PreparedColumns`; raises what ``spark`` raises."""
        given = set(records)
        try:
            for projection in self.projections:
                projection.run(records)
        except LeftToSpark:
            if self.spark is None:
                raise
            _forget_others(records, given)
            self.spark.run(records, computer)
        else:
            _forget_others(records, given.union(self.outputs))


def _forget_others(records: Records, kept: Collection[int]) -> None:
    for slot in [slot for slot in records if slot not in kept]:
        del records[slot]


@dataclass(frozen=True, kw_only=True)
class SparkColumns:
    """Projections that Spark's code computes, where they have this ``number``, or get one for a
    ticket."""

    number: int | Ticket
    rows: ColumnRows
    sources: tuple[Source, ...]
    where: tuple[str, ...]
    """Lines of the program whose Columns it runs."""

    def run(self, records: Records, computer: ColumnComputer) -> None:
        """Raises SparkSays naming the record for which a Column cannot be computed."""
        batch = records[self.rows.given.id]
        try:
            table = computer.run(self.number, self.rows.of(batch), self.rows.made_schema())
        except ColumnsFailed as failure:
            record = None if failure.row is None else self._record(batch, failure.row)
            raise SparkSays(failure.text, record, self.where) from failure
        records.update(self.rows.records(batch, table))

    def _record(self, batch: EdgeBatch, row: int) -> BadRecord:
        source = next(one for one in self.sources if one.index == int(batch.source[row]))
        return BadRecord(
            source.topic, int(batch.partition[row]), int(batch.offset[row]), source.node
        )


@dataclass(frozen=True)
class Selection:
    """Columns over some of those that a user sees (``reads``: names and types, in order)."""

    reads: pa.Schema
    stages: tuple[Stage, ...]


class CallFailed(Exception):
    """A function failed with the error chained. ``rows``: those of its batch in which it fails
    alone, and how; none where it fails in no row alone."""

    def __init__(self, rows: Mapping[int, BaseException]) -> None:
        super().__init__(len(rows))
        self.rows = rows


@dataclass(frozen=True, kw_only=True)
class FunctionColumns:
    """One projection from slot ``input`` to slot ``output`` whose Columns call Python functions. A
    function sees the records that reach its operator and no others, as behind a filter of a
    DataFrame. It is called for a batch at once; where it fails, halves of the batch tell the
    records."""

    name: str
    where: str | None
    input: int
    output: int
    key: pa.DataType
    value: pa.DataType
    """The types of the records that it makes."""
    predicate: Selection | None
    made: Selection | None
    """Gives key and value; None where both stay as they are."""
    skips_null: bool
    """Records with a null value keep it, and no function is called for them."""
    sources: Mapping[int, Source]

    def run(self, records: Records, computer: ColumnComputer) -> None:
        """Raises RecordFailure or SparkSays naming the record for which a function or a Column
        fails."""
        batch = records[self.input]
        if self.predicate is not None and len(batch):
            (found,) = self._computed(self.predicate, batch, computer)
            keep = np.flatnonzero(pc.fill_null(found, False).to_numpy(zero_copy_only=False))
            if len(keep) < len(batch):
                batch = batch.take(keep)
        records[self.output] = self._projected(batch, computer)

    def _projected(self, batch: EdgeBatch, computer: ColumnComputer) -> EdgeBatch:
        if self.made is None:
            return batch
        called, index = batch, None
        if self.skips_null and batch.value.null_count:
            index = np.flatnonzero(batch.value.is_valid().to_numpy(zero_copy_only=False))
            called = batch.take(index)
        key, value = pa.array([], self.key), pa.array([], self.value)
        if len(called):
            key, value = self._computed(self.made, called, computer)
        key, value = readable(key).cast(self.key), readable(value).cast(self.value)
        if index is None:
            return batch.with_columns(key, value)
        return batch.with_columns(value=spread(value, index, len(batch)))

    def _computed(
        self, selection: Selection, batch: EdgeBatch, computer: ColumnComputer
    ) -> list[pa.Array]:
        topics = {index: source.topic for index, source in self.sources.items()}
        given = seen(batch, selection.reads, topics)
        try:
            return computed(selection.stages, given, len(batch), computer)
        except ColumnsFailed as failure:
            where = () if self.where is None else (self.where,)
            record = None if failure.row is None else self._record(batch, failure.row)
            raise SparkSays(failure.text, record, where) from failure
        except CallFailed as failure:
            error = failure.__cause__
            assert error is not None
            if not failure.rows:
                raise RecordFailure(None, self.where, error) from error
            found = failure.rows.items()
            raise_all([RecordFailure.of(self, self.sources, batch, *one) for one in found])

    def _record(self, batch: EdgeBatch, row: int) -> BadRecord:
        source = self.sources[int(batch.source[row])]
        return BadRecord(source.topic, int(batch.partition[row]), int(batch.offset[row]), self.name)


def computed(
    stages: Sequence[Stage], given: list[pa.Array], count: int, computer: ColumnComputer
) -> list[pa.Array]:
    """What the stages make of ``count`` rows. Raises ColumnsFailed and CallFailed."""
    for stage in stages:
        if isinstance(stage, Compute):
            rows = _batch(given, count)
            table = computer.run(stage.number, rows, stage.made).combine_chunks()
            given = [pa.concat_arrays(column.chunks) for column in table.columns]
        elif isinstance(stage, Call):
            made = _called(stage, _batch(given[stage.kept :], count), computer)
            given = [*given[: stage.kept], *made]
        else:
            given = [_picked(given, path) for path in stage.paths]
    return given


def _batch(columns: list[pa.Array], count: int) -> pa.RecordBatch:
    """Without columns a batch would have no rows either."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, [f"_{i}" for i in range(len(columns))])


def _picked(given: list[pa.Array], path: tuple[int, ...]) -> pa.Array:
    column = given[path[0]]
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def _called(call: Call, rows: pa.RecordBatch, computer: ColumnComputer) -> list[pa.Array]:
    def failure(start: int, end: int) -> BaseException | None:
        try:
            results_of(call, rows.slice(start, end - start), computer)
        except (ColumnsFailed, RetriableError):
            raise
        except BaseException as error:
            require_users(error)
            return error
        return None

    try:
        return results_of(call, rows, computer)
    except (ColumnsFailed, RetriableError):
        raise
    except BaseException as error:
        require_users(error)
        raise CallFailed(failing_rows(rows.num_rows, failure)) from error


def _in_arrow(given: ColumnExpr | None) -> ArrowExpression | None:
    return None if given is None else given.arrow


def seen(batch: EdgeBatch, reads: pa.Schema, topics: Mapping[int, str]) -> list[pa.Array]:
    """What a user sees of the records, in columns."""
    made: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: batch.key,
        "value": lambda: batch.value,
        "timestamp": lambda: pa.array(batch.timestamp, pa.int64()),
        "topic": lambda: pa.array([topics[index] for index in batch.source.tolist()], pa.string()),
        "partition": lambda: pa.array(batch.partition, pa.int32()),
        "offset": lambda: pa.array(batch.offset, pa.int64()),
        "headers": lambda: no_headers(len(batch)) if batch.headers is None else batch.headers,
        "left": lambda: pc.struct_field(batch.value, "left"),
        "right": lambda: pc.struct_field(batch.value, "right"),
    }
    return [made[field.name]().cast(field.type) for field in reads]
