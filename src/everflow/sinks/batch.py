"""What a sink is given, and the decision whether it has it already (note 072). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import SinkError
from everflow.records import OffsetRange, Offsets, TaskId, TopicPartition
from everflow.serdes.arrow_types import type_text


class SinkAhead(Exception):
    """The sink has rows of a part of the batch: it is to end at these ``ends``, and is run again.
    Never shown to users."""

    def __init__(self, ends: Offsets) -> None:
        super().__init__(dict(ends))
        self.ends = dict(ends)


class RefusedRows(Exception):
    """Raised by a function of ``for_each_batch`` that can take all rows but some, and has written
    none: each becomes a bad record, and the function is called again without those that the
    production exception handler leaves out.

    Attributes: rows: the error of each, by the number of the row.
    """

    def __init__(self, rows: Mapping[int, BaseException]) -> None:
        super().__init__(len(rows))
        self.rows = dict(rows)


class RowRefused(Exception):
    """Why a sink's target does not take a row: names both, and the column where it is known. The
    text has no value of the row: it goes to logs."""

    def __init__(self, sink: str, target: str, why: str, column: str | None = None) -> None:
        at = "" if column is None else f", column {column!r}"
        super().__init__(f"Sink {sink}: {target} refuses the row{at}: {why}")
        self.sink, self.target, self.column = sink, target, column


@dataclass(frozen=True, kw_only=True)
class SinkBatch:
    """The rows that a task gives a sink in one micro-batch, and where they come from.

    Attributes:
        rows: an Arrow table in processing order, at least one row.
        application_id: of the application.
        sink: its name in the topology.
        task: its sub-topology and partition.
        offsets: of each input partition of the task the offset at which the batch begins, and the
            one behind it. Empty for rows that a clock alone has made: those have no offset, and are
            written at least once.
        keys: the columns of ``rows`` that are the record's key, if it is among them.
        timestamps: the record's time of each row, in ms.
        deletes: for each row whether the record's value is null; None: no row's is.
        topic_ids: of the input topics, as Kafka gave them when they were created; empty: not known.
    """

    rows: pa.Table
    application_id: str
    sink: str
    task: TaskId
    offsets: Mapping[TopicPartition, OffsetRange]
    keys: tuple[str, ...] = ()
    timestamps: pa.Array | None = field(default=None, repr=False)
    deletes: pa.Array | None = field(default=None, repr=False)
    topic_ids: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def id(self) -> str:
        """Names the batch by where it begins: a batch that is tried again after a crash has the
        same id, though it may end elsewhere. Empty for rows of a clock."""
        if not self.offsets:
            return ""
        begins = ",".join(f"{tp}@{one.start}" for tp, one in sorted(self.offsets.items()))
        return f"{self.application_id}/{self.sink}/{begins}"

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The offset behind the batch of each input partition: the position to store together with
        the rows."""
        return {tp: one.end for tp, one in self.offsets.items()}

    def to_write(self, position: Offsets) -> bool:
        """True if the rows have to be written, False if they are there.

        ``position``: the `ends` that were stored last for this application and sink, as far as
        there are any; read in the transaction that is to write the rows. Raises SinkAhead, which
        the function lets pass, if the position lies within the batch: the batch is run again and
        ends there.
        """
        found = {tp: position.get(tp, one.start) for tp, one in self.offsets.items()}
        if all(found[tp] <= one.start for tp, one in self.offsets.items()):
            return True
        if all(found[tp] >= one.end for tp, one in self.offsets.items()):
            return False
        raise SinkAhead({tp: max(found[tp], one.start) for tp, one in self.offsets.items()})

    def require_same_topics(self, kept: Mapping[TopicPartition, str], cure: str) -> None:
        """SinkError if an input topic has been created again since its position was kept: its
        offsets count from 0 anew, and say nothing of what the sink has. ``kept``: the ids that are
        known, beside the positions; ``cure``: how a position of the sink is deleted."""
        for tp, before in kept.items():
            now = self.topic_ids.get(tp.topic, "")
            if before and now and before != now:
                raise SinkError(
                    f"Sink {self.sink}: topic {tp.topic} was created again (id {before} before, "
                    f"{now} now) since the sink's position in it was kept, and rows below that "
                    f"position would be left out. If the sink is to have the rows of the new topic "
                    f"beside those that are there, {cure}, or name the sink anew "
                    f"(write_stream(..., name=...))."
                )


class Sink(Protocol):
    """Where rows go. Picklable; a worker process has its own copy, which it calls on one thread and
    which connects at the first call."""

    def write(self, batch: SinkBatch) -> None:
        """Write the rows, all or none, unless it has them (`SinkBatch.to_write`).

        SinkAhead; RefusedRows for rows that it cannot take; RetriableError for what may pass;
        SinkError for what will not.
        """


def require_columns(sink: str, target: str, rows: pa.Schema, found: pa.Schema) -> None:
    """SinkError unless each column of ``rows`` is one of the target's, of a type that fits."""
    known = {one.name: one.type for one in found}
    for column in rows:
        if column.name not in known:
            raise SinkError(
                f"Sink {sink}: {target} has no column {column.name!r}, which the rows have "
                f"({type_text(column.type)}); it has {', '.join(known)}. Choose columns with "
                f"map_values, or add it to the table."
            )
        if family(column.type) != family(known[column.name]):
            raise misfit(sink, target, column, type_text(known[column.name]))


def fitting(batch: SinkBatch, target: str, found: pa.Schema) -> pa.Table:
    """The rows in the target's columns, null where they have none. SinkError for a column that it
    does not have or has in another kind of type; RefusedRows for values that do not fit."""
    require_columns(batch.sink, target, batch.rows.schema, found)
    refused: dict[int, BaseException] = {}
    columns, names = [], set(batch.rows.column_names)
    for one in found:
        missing = one.name not in names
        column = pa.chunked_array([pa.nulls(len(batch.rows), one.type)])
        column = column if missing else batch.rows.column(one.name)
        if missing and not one.nullable:
            raise SinkError(
                f"Sink {batch.sink}: {target} needs a column {one.name!r} "
                f"({type_text(one.type)}), which the rows do not have: add it with map_values"
            )
        try:
            columns.append(column.cast(one.type))
        except pa.ArrowInvalid:
            refused |= _unfit(batch.sink, target, column, one)
        if not one.nullable and column.null_count:
            rows = np.flatnonzero(column.is_null().to_numpy())
            null = RowRefused(batch.sink, target, "it takes no null", one.name)
            refused |= dict.fromkeys(rows.tolist(), null)
    if refused:
        raise RefusedRows(refused)
    return pa.table(columns, found)


def _unfit(
    sink: str, target: str, column: pa.ChunkedArray, wanted: pa.Field
) -> dict[int, BaseException]:
    why = f"a value of {type_text(column.type)} does not fit {type_text(wanted.type)}"
    found: dict[int, BaseException] = {}
    for row in range(len(column)):
        try:
            column.slice(row, 1).cast(wanted.type)
        except pa.ArrowInvalid:  # whose text has the value
            found[row] = RowRefused(sink, target, why, wanted.name)
    return found


def misfit(sink: str, target: str, column: pa.Field, wanted: str) -> SinkError:
    return SinkError(
        f"Sink {sink}: column {column.name!r} of {target} is {wanted}, the rows have "
        f"{type_text(column.type)}. Cast it with map_values, or alter the table."
    )


def family(kind: pa.DataType) -> str:
    """Types of one family are converted where no value changes."""
    kinds = pa.types
    named = {
        "whole number": kinds.is_integer,
        "number": kinds.is_floating,
        "decimal": kinds.is_decimal,
        "text": lambda one: kinds.is_string(one) or kinds.is_large_string(one),
        "bytes": lambda one: kinds.is_binary(one) or kinds.is_large_binary(one),
        "time": lambda one: kinds.is_timestamp(one) and one.tz is not None,
        "local time": kinds.is_timestamp,
        "date": kinds.is_date,
        "boolean": kinds.is_boolean,
        "struct": kinds.is_struct,
        "map": kinds.is_map,
        "list": lambda one: kinds.is_list(one) or kinds.is_large_list(one),
    }
    return next((name for name, is_one in named.items() if is_one(kind)), str(kind))


def last_of_each(rows: pa.Table, keys: tuple[str, ...]) -> pa.Array:
    """The row numbers, in order, of the last row of each key."""
    numbered = rows.select(keys).append_column("\0row", pa.array(range(len(rows)), pa.int64()))
    found = numbered.group_by(list(keys)).aggregate([("\0row", "max")])
    column = found.column("\0row_max").combine_chunks()
    return column.take(pc.array_sort_indices(column))
