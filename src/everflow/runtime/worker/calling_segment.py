"""Runs projections whose Columns call Python functions in a resident step (note 014).

A function sees the records that reach its operator and no others, as behind a filter of a
DataFrame. It is called for a batch at once; where it fails, halves of the batch tell the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import RetriableError
from everflow.operators.user_code import failing_rows, require_users
from everflow.records import EdgeBatch
from everflow.runtime.commit.batch import BadRecord
from everflow.runtime.step.step_failure import SparkSays
from everflow.runtime.step.step_functions import RecordFailure, raise_all
from everflow.runtime.worker.column_client import ColumnsFailed
from everflow.runtime.worker.python_calls import results_of
from everflow.runtime.worker.resident_segments import ColumnComputer, seen
from everflow.topology.column_stages import Call, Compute, Stage
from everflow.topology.hops import HopInput, readable, spread
from everflow.topology.physical_plan import Source


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
class CallingSegment:
    """One projection from slot ``input`` to slot ``output``."""

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

    def run(self, hop: HopInput, columns: ColumnComputer) -> None:
        """Raises RecordFailure or SparkSays naming the record for which a function or a Column
        fails."""
        batch, rows = hop.batches[self.input], hop.rows[self.input]
        if self.predicate is not None and len(batch):
            (found,) = self._computed(self.predicate, batch, columns)
            keep = np.flatnonzero(pc.fill_null(found, False).to_numpy(zero_copy_only=False))
            if len(keep) < len(batch):
                batch, rows = batch.take(keep), rows[keep]
        hop.batches[self.output], hop.rows[self.output] = self._projected(batch, columns), rows

    def _projected(self, batch: EdgeBatch, columns: ColumnComputer) -> EdgeBatch:
        if self.made is None:
            return batch
        called, index = batch, None
        if self.skips_null and batch.value.null_count:
            index = np.flatnonzero(batch.value.is_valid().to_numpy(zero_copy_only=False))
            called = batch.take(index)
        key, value = pa.array([], self.key), pa.array([], self.value)
        if len(called):
            key, value = self._computed(self.made, called, columns)
        key, value = readable(key).cast(self.key), readable(value).cast(self.value)
        if index is None:
            return batch.with_columns(key, value)
        return batch.with_columns(value=spread(value, index, len(batch)))

    def _computed(
        self, selection: Selection, batch: EdgeBatch, columns: ColumnComputer
    ) -> list[pa.Array]:
        topics = {index: source.topic for index, source in self.sources.items()}
        given = seen(batch, selection.reads, topics)
        try:
            return computed(selection.stages, given, len(batch), columns)
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
    stages: Sequence[Stage], given: list[pa.Array], count: int, columns: ColumnComputer
) -> list[pa.Array]:
    """What the stages make of ``count`` rows. Raises ColumnsFailed and CallFailed."""
    for stage in stages:
        if isinstance(stage, Compute):
            rows = _batch(given, count)
            table = columns.run(stage.number, rows, stage.made).combine_chunks()
            given = [pa.concat_arrays(column.chunks) for column in table.columns]
        elif isinstance(stage, Call):
            made = _called(stage, _batch(given[stage.kept :], count), columns)
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


def _called(call: Call, rows: pa.RecordBatch, columns: ColumnComputer) -> list[pa.Array]:
    def failure(start: int, end: int) -> BaseException | None:
        try:
            results_of(call, rows.slice(start, end - start), columns)
        except (ColumnsFailed, RetriableError):
            raise
        except BaseException as error:
            require_users(error)
            return error
        return None

    try:
        return results_of(call, rows, columns)
    except (ColumnsFailed, RetriableError):
        raise
    except BaseException as error:
        require_users(error)
        raise CallFailed(failing_rows(rows.num_rows, failure)) from error
