"""Runs record-by-record operators: functions, unnesting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import EverflowError
from everflow.handlers.response import DESERIALIZATION, PROCESSING
from everflow.operators.user_code import require_users
from everflow.records import EdgeBatch, Int64
from everflow.runtime.commit.batch import BadRecord, BatchFailure
from everflow.runtime.step.user_line import innermost_line
from everflow.serdes.fitting import MisfitError, column_of
from everflow.serdes.windowed import python_keys
from everflow.topology.physical_plan import FunctionOp, Source, TakeOp, UnnestOp
from everflow.user_texts import (
    COLUMN_IN_FUNCTION,
    MOST_TEXT,
    UNDECODED,
    class_of,
    error_text,
    shown,
)


class Located(Protocol):
    """An operator of a step: its node and the line of the user's program that made it."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str | None: ...


class RecordFailure(EverflowError):
    """A record that the user's code or serde cannot take; the error is chained. ``failure`` says
    which record (None: it fails with no record alone), where and why. ``others``: further records
    on which the same function fails, where somebody wanted to know."""

    code = "EF-RECORD"
    others: tuple[RecordFailure, ...] = ()

    def __init__(
        self,
        record: BadRecord | None,
        where: str | None,
        error: BaseException,
        hint: str = "",
        stage: str = PROCESSING,
    ) -> None:
        self.failure = BatchFailure(
            kind="other" if record is None else "record",
            error=error_text(error) + hint,
            code=None if record is None else self.code,
            record=record,
            line=innermost_line(error),
            where=() if where is None else (where,),
            stage=stage,
            exception=class_of(error),
        )
        super().__init__(self.failure.error)

    @staticmethod
    def at(
        op: Located,
        sources: Mapping[int, Source],
        batch: EdgeBatch,
        row: int,
        error: BaseException,
        stage: str = PROCESSING,
    ) -> RecordFailure:
        """The failure of the record in ``row``."""
        topic = sources[int(batch.source[row])].topic
        record = BadRecord(topic, int(batch.partition[row]), int(batch.offset[row]), op.name)
        undecoded = isinstance(error, TypeError | AttributeError) and pa.types.is_binary(
            batch.value.type
        )
        hint = (
            UNDECODED
            if undecoded
            else COLUMN_IN_FUNCTION
            if type(error).__module__.startswith("pyspark.errors")
            else ""
        )
        return RecordFailure(record, op.where, error, f"\n  {hint}" if hint else "", stage)


class UndecodableRecord(EverflowError):
    """A record whose bytes its source's serde does not read, and no dead letter topic to send it
    to."""

    code = "EF-RECORD"

    def __init__(self, letters: EdgeBatch, sources: Sequence[Source]) -> None:
        """Of several the first in merge order."""
        row = int(np.argmin(letters.seq))
        source = next(source for source in sources if source.index == int(letters.source[row]))
        record = BadRecord(
            source.topic, int(letters.partition[row]), int(letters.offset[row]), source.node
        )
        text = f"DeserializationError: {letters.value[row].as_py()['error']}"[:MOST_TEXT]
        self.failure = BatchFailure(
            kind="undecodable",
            error=text,
            code=self.code,
            record=record,
            stage=DESERIALIZATION,
        )
        super().__init__(text)


def run_function(
    op: FunctionOp, batch: EdgeBatch, sources: dict[int, Source], every_failure: bool = False
) -> EdgeBatch:
    """Call the user's function for every record, in order. Raises RecordFailure naming the record
    it failed on; ``every_failure``: all of them."""
    keys, values = python_keys(batch.key), batch.value.to_pylist()
    results: list[Any] = []
    fn, taken = op.fn, _TAKEN.get(op.op)
    first: BaseException | None = None
    try:
        if taken is None:
            for key, value in zip(keys, values, strict=True):
                results.append(fn(key, value))
        else:
            for key, value in zip(keys, values, strict=True):
                results.append(taken(fn(key, value)))
    except BaseException as error:
        require_users(error)
        first = error
    if first is None:
        return _SHAPES[op.op](op, batch, results, sources)
    failed = RecordFailure.at(op, sources, batch, len(results), first)
    if every_failure:  # behind the except: in it, each would have the first one as its context
        failed.others = _other_failures(op, batch, sources, len(results) + 1, keys, values)
    raise failed from first


def _other_failures(
    op: FunctionOp,
    batch: EdgeBatch,
    sources: dict[int, Source],
    start: int,
    keys: Sequence[Any],
    values: Sequence[Any],
) -> tuple[RecordFailure, ...]:
    """Of the records from row ``start`` on."""
    found, taken = [], _TAKEN.get(op.op, lambda result: result)
    for row in range(start, len(values)):
        try:
            taken(op.fn(keys[row], values[row]))
        except BaseException as error:
            require_users(error)
            failed = RecordFailure.at(op, sources, batch, row, error)
            failed.__cause__ = error
            found.append(failed)
    return tuple(found)


def _values(result: Any) -> list[Any]:
    return list(_several(result, "values"))


def _pairs(result: Any) -> list[tuple[Any, Any]]:
    return [_pair(item) for item in _several(result, "pairs of key and value")]


def _several(result: Any, of_what: str) -> Iterable[Any]:
    """None for nothing; TypeError for what can be iterated but is one value: the letters of a text,
    the names of a dict."""
    if isinstance(result, str | bytes | bytearray | Mapping):
        raise TypeError(
            f"expected a list of {of_what}, found {type(result).__name__} {shown(result)}"
        )
    return () if result is None else result


def _pair(result: Any) -> tuple[Any, Any]:
    """A key and a value. TypeError for anything else, also for texts and dicts that happen to have
    two elements."""
    cause = None
    if not isinstance(result, str | bytes | bytearray | Mapping | Set):
        try:
            key, value = result
        except (TypeError, ValueError) as error:
            cause = error
        else:
            return key, value
    raise TypeError(
        f"expected a pair of key and value, found {type(result).__name__} {shown(result)}"
    ) from cause


_TAKEN: dict[str, Callable[[Any], Any]] = {
    "flat_map_values": _values,
    "flat_map": _pairs,
    "map": _pair,
    "filter": bool,
    "filter_not": bool,
    "branch": bool,
}
"""What is made of a result at once, so that an error of it belongs to its record: generators are
drained here."""


def _shape_filter(
    op: FunctionOp, batch: EdgeBatch, results: list[Any], sources: dict[int, Source]
) -> EdgeBatch:
    keep = np.array(results, bool)
    if op.op == "filter_not":
        keep = ~keep
    return batch if keep.all() else batch.take(np.flatnonzero(keep))


def _shape_beside(
    op: FunctionOp, batch: EdgeBatch, results: list[Any], sources: dict[int, Source]
) -> EdgeBatch:
    answer, value = op.type.value
    rows = np.arange(len(batch), dtype=np.int64)
    column = _column(op, results, answer.type, batch, rows, sources)
    return batch.with_columns(
        value=pa.StructArray.from_arrays([column, batch.value], fields=[answer, value])
    )


def _shape_peek(
    op: FunctionOp, batch: EdgeBatch, results: list[Any], sources: dict[int, Source]
) -> EdgeBatch:
    return batch


def _shape_map(
    op: FunctionOp, batch: EdgeBatch, results: list[Any], sources: dict[int, Source]
) -> EdgeBatch:
    rows = np.arange(len(batch), dtype=np.int64)
    key = _column(op, [key for key, _ in results], op.type.key, batch, rows, sources)
    value = _column(op, [value for _, value in results], op.type.value, batch, rows, sources)
    return batch.with_columns(key, value)


def _shape_map_values(
    op: FunctionOp, batch: EdgeBatch, results: list[Any], sources: dict[int, Source]
) -> EdgeBatch:
    rows = np.arange(len(batch), dtype=np.int64)
    return batch.with_columns(value=_column(op, results, op.type.value, batch, rows, sources))


def _shape_select_key(
    op: FunctionOp, batch: EdgeBatch, results: list[Any], sources: dict[int, Source]
) -> EdgeBatch:
    rows = np.arange(len(batch), dtype=np.int64)
    return batch.with_columns(key=_column(op, results, op.type.key, batch, rows, sources))


def _shape_flat_map(
    op: FunctionOp, batch: EdgeBatch, results: list[Any], sources: dict[int, Source]
) -> EdgeBatch:
    rows = np.repeat(np.arange(len(batch), dtype=np.int64), [len(result) for result in results])
    flat = [item for result in results for item in result]
    out = batch.take(rows)
    if op.op == "flat_map_values":
        return out.with_columns(value=_column(op, flat, op.type.value, batch, rows, sources))
    key = _column(op, [key for key, _ in flat], op.type.key, batch, rows, sources)
    return out.with_columns(
        key, _column(op, [value for _, value in flat], op.type.value, batch, rows, sources)
    )


_SHAPES: dict[str, Callable[[FunctionOp, EdgeBatch, list[Any], dict[int, Source]], EdgeBatch]] = {
    "filter": _shape_filter,
    "filter_not": _shape_filter,
    "branch": _shape_beside,
    "deduplicate": _shape_beside,
    "peek": _shape_peek,
    "for_each": _shape_peek,
    "map": _shape_map,
    "map_values": _shape_map_values,
    "select_key": _shape_select_key,
    "flat_map": _shape_flat_map,
    "flat_map_values": _shape_flat_map,
}


def _column(
    op: FunctionOp,
    items: list[Any],
    kind: pa.DataType,
    batch: EdgeBatch,
    rows: Int64,
    sources: dict[int, Source],
) -> pa.Array:
    """Python results as the declared Arrow type; a result of another type is the fault of its
    record."""
    try:
        return column_of(items, kind)
    except MisfitError as error:
        cause = TypeError(
            f"result {shown(items[error.index])} is not of the declared type: {error}"
        )
        raise RecordFailure.at(op, sources, batch, int(rows[error.index]), cause) from error


def take(op: TakeOp, batch: EdgeBatch) -> EdgeBatch:
    """The records whose answer is the operator's, in order, with the value that stood beside it."""
    answer = pc.fill_null(pc.struct_field(batch.value, [0]), False)
    keep = answer.to_numpy(zero_copy_only=False) == op.taken
    taken = batch if keep.all() else batch.take(np.flatnonzero(keep))
    return taken.with_columns(value=pc.struct_field(taken.value, [1]))


def unnest(op: UnnestOp, batch: EdgeBatch) -> EdgeBatch:
    """One record per element of the list in the value; null and empty lists emit nothing."""
    lengths = (
        pc.fill_null(pc.list_value_length(batch.value), 0)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )
    out = batch.take(np.repeat(np.arange(len(batch), dtype=np.int64), lengths))
    items = pc.list_flatten(batch.value)
    if not op.keyed:
        return out.with_columns(value=items.cast(op.type.value))
    key, value = pc.struct_field(items, [0]), pc.struct_field(items, [1])
    return out.with_columns(key.cast(op.type.key), value.cast(op.type.value))
