"""Runs record-by-record operators: functions, unnesting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NoReturn, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import EverflowError
from everflow.handlers import DESERIALIZATION, PROCESSING
from everflow.operators.user_code import require_users
from everflow.records import EdgeBatch, Int64
from everflow.runtime.commit.batch import BadRecord, BatchFailure
from everflow.runtime.step.user_line import innermost_line
from everflow.serdes.arrow_types import UnfitError, column_of
from everflow.serdes.windowed import python_keys
from everflow.topology.batches import KnownResults, Made, joined
from everflow.topology.plan import FunctionOp, Source, TakeOp, UnnestOp
from everflow.user_program import (
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
    before_state = False
    """Whether no operator had read a store before in the batch."""
    searchable = False
    """Whether the operator that failed may fail on other records, too, or on another one: on stores
    that are checked, those are looked for."""

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

    @staticmethod
    def of(
        op: Located,
        sources: Mapping[int, Source],
        batch: EdgeBatch,
        row: int,
        error: BaseException,
        stage: str = PROCESSING,
    ) -> RecordFailure:
        """As `at`, with the error as its cause: for who raises it later."""
        failed = RecordFailure.at(op, sources, batch, row, error, stage)
        failed.__cause__ = error
        return failed


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
    op: FunctionOp,
    batch: EdgeBatch,
    sources: dict[int, Source],
    every_failure: bool = False,
    known: KnownResults | None = None,
) -> EdgeBatch:
    """Call the user's function for every record, in order; not for those whose results are
    ``known``, which gets those of the others. Raises RecordFailure naming the record it failed on;
    ``every_failure``: all of them, and all others are called before."""
    rows, before = (None, None) if known is None else known.of(op.output, batch)
    if rows is None or before is None or not len(rows):
        made, failures = _called(op, batch, sources, every_failure)
    elif len(rows) == len(batch):
        return _with_results(op, batch, before)
    else:
        fresh = np.delete(_all(batch), rows)
        made, failed = _called(op, batch.take(fresh), sources, every_failure)
        made = joined([before, made._replace(rows=fresh[made.rows])])
        failures = {int(fresh[row]): failure for row, failure in failed.items()}
    if not failures:
        if known is not None:
            known.keep(op.output, batch, made)
    else:
        if known is not None:
            good = np.delete(_all(batch), list(failures))
            rows = np.searchsorted(good, made.rows)
            known.keep(op.output, batch.take(good), made._replace(rows=rows))
        raise_all([failures[row] for row in sorted(failures)])
    return _with_results(op, batch, made)


def _with_results(op: FunctionOp, batch: EdgeBatch, made: Made) -> EdgeBatch:
    """The records with their results in columns."""
    if len(made.rows) == len(batch) and op.op not in ("flat_map", "flat_map_values"):
        return batch.with_columns(made.key, made.value)
    nothing = pa.nulls(len(batch))
    return batch.with_columns(nothing, nothing).take(made.rows).with_columns(made.key, made.value)


def _called(
    op: FunctionOp, batch: EdgeBatch, sources: dict[int, Source], every_failure: bool
) -> tuple[Made, dict[int, RecordFailure]]:
    """What the function gives, in columns, without the records for which it fails, and those
    failures by their rows, each with the error as its cause. Without ``every_failure`` the first
    one is raised."""
    keys, values = python_keys(batch.key), batch.value.to_pylist()
    results: list[Any] = []
    errors: dict[int, BaseException] = {}
    fn, taken = op.fn, _TAKEN.get(op.op)
    pairs = zip(keys, values, strict=True)
    while len(results) < len(values):
        try:
            if taken is None:
                for key, value in pairs:
                    results.append(fn(key, value))
            else:
                for key, value in pairs:
                    results.append(taken(fn(key, value)))
        except BaseException as error:
            require_users(error)
            if not every_failure:
                raise RecordFailure.at(op, sources, batch, len(results), error) from error
            errors[len(results)] = error
            results.append(None)
    good = _all(batch) if not errors else np.delete(_all(batch), list(errors))
    while True:
        fitting, taken_results = batch, results
        if len(good) < len(batch):
            fitting, taken_results = batch.take(good), [results[row] for row in good.tolist()]
        try:
            made = _SHAPES[op.op](op, fitting, taken_results)
            break
        except UnfitResultsError as mismatches:
            found = {int(good[row]): cause for row, cause in mismatches.causes.items()}
            if not every_failure:
                row, cause = min(found.items())
                raise RecordFailure.at(op, sources, batch, row, cause) from cause
            errors.update(found)
            good = good[~np.isin(good, list(found))]
    failures = {
        row: RecordFailure.of(op, sources, batch, row, error) for row, error in errors.items()
    }
    return made._replace(rows=good[made.rows]), failures


def raise_all(failures: Sequence[RecordFailure]) -> NoReturn:
    """Raise the first, with all the others."""
    failures[0].others = tuple(failures[1:])
    raise failures[0] from failures[0].__cause__


class UnfitResultsError(Exception):
    """Results that are not of the declared type; ``causes``: by the row of the record. Never shown
    to users."""

    def __init__(self, causes: Mapping[int, TypeError]) -> None:
        super().__init__(len(causes))
        self.causes = causes


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


def _all(batch: EdgeBatch) -> Int64:
    return np.arange(len(batch), dtype=np.int64)


def _shape_filter(op: FunctionOp, batch: EdgeBatch, results: list[Any]) -> Made:
    keep = np.array(results, bool)
    if op.op == "filter_not":
        keep = ~keep
    if keep.all():
        return Made(_all(batch), batch.key, batch.value)
    kept = np.flatnonzero(keep)
    rows = pa.array(kept, pa.int64())
    return Made(kept, batch.key.take(rows), batch.value.take(rows))


def _shape_beside(op: FunctionOp, batch: EdgeBatch, results: list[Any]) -> Made:
    answer, value = op.type.value
    column = _column(results, answer.type, _all(batch))
    beside = pa.StructArray.from_arrays([column, batch.value], fields=[answer, value])
    return Made(_all(batch), batch.key, beside)


def _shape_peek(op: FunctionOp, batch: EdgeBatch, results: list[Any]) -> Made:
    return Made(_all(batch), batch.key, batch.value)


def _shape_map(op: FunctionOp, batch: EdgeBatch, results: list[Any]) -> Made:
    rows = _all(batch)
    key = _column([key for key, _ in results], op.type.key, rows)
    return Made(rows, key, _column([value for _, value in results], op.type.value, rows))


def _shape_map_values(op: FunctionOp, batch: EdgeBatch, results: list[Any]) -> Made:
    return Made(_all(batch), batch.key, _column(results, op.type.value, _all(batch)))


def _shape_select_key(op: FunctionOp, batch: EdgeBatch, results: list[Any]) -> Made:
    return Made(_all(batch), _column(results, op.type.key, _all(batch)), batch.value)


def _shape_flat_map(op: FunctionOp, batch: EdgeBatch, results: list[Any]) -> Made:
    rows = np.repeat(_all(batch), [len(result) for result in results])
    flat = [item for result in results for item in result]
    if op.op == "flat_map_values":
        keys = batch.key.take(pa.array(rows, pa.int64()))
        return Made(rows, keys, _column(flat, op.type.value, rows))
    key = _column([key for key, _ in flat], op.type.key, rows)
    return Made(rows, key, _column([value for _, value in flat], op.type.value, rows))


_SHAPES: dict[str, Callable[[FunctionOp, EdgeBatch, list[Any]], Made]] = {
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


def _column(items: list[Any], kind: pa.DataType, rows: Int64) -> pa.Array:
    """Python results as the declared Arrow type; UnfitResultsError for those of another type, which
    are the fault of their records, those in ``rows``."""
    try:
        return column_of(items, kind)
    except UnfitError:
        causes: dict[int, TypeError] = {}
        for row, item in zip(rows.tolist(), items, strict=True):
            try:
                column_of([item], kind)
            except UnfitError as error:
                told = f"result {shown(item)} is not of the declared type: {error}"
                cause = TypeError(told)
                cause.__cause__ = error
                causes.setdefault(row, cause)  # the first of a record's
        raise UnfitResultsError(causes) from None


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
