"""Runs record-by-record operators: functions, unnesting, partitioners of sinks, printing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.columns.key_partitions import BY_HASH
from everflow.operators.user_code import require_users
from everflow.protocol.messages import Printed
from everflow.records import EdgeBatch, Int64
from everflow.serdes.arrow_types import UnfitError, column_of
from everflow.serdes.windowed import python_keys
from everflow.topology.batches import KnownResults, Made, joined
from everflow.topology.partitioners import OF_WINDOWS, partitions_of
from everflow.topology.plan import FunctionOp, PrintOp, SinkOp, TakeOp, UnnestOp
from everflow.user_program import one_line, shown
from everflow.worker.failures import RecordFailure, Sources, raise_all

# --- functions ------------------------------------------------------------------------------------


def run_function(
    op: FunctionOp,
    batch: EdgeBatch,
    sources: Sources,
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
    if len(made.rows) == len(batch) and op.op not in ("flat_map", "flat_map_values"):
        return batch.with_columns(made.key, made.value)
    nothing = pa.nulls(len(batch))
    return batch.with_columns(nothing, nothing).take(made.rows).with_columns(made.key, made.value)


def _called(
    op: FunctionOp, batch: EdgeBatch, sources: Sources, every_failure: bool
) -> tuple[Made, dict[int, RecordFailure]]:
    """The function's results in columns, without the records for which it fails, and those failures
    by row, each with the error as its cause. Without ``every_failure`` the first one is raised."""
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
                raise RecordFailure.of(op, sources, batch, len(results), error) from error
            errors[len(results)] = error
            results.append(None)
    good = _all(batch) if not errors else np.delete(_all(batch), list(errors))
    while True:
        fitting, taken_results = batch, results
        if len(good) < len(batch):
            fitting, taken_results = batch.take(good), [results[row] for row in good.tolist()]
        try:
            made = _made_of(op, fitting, taken_results)
            break
        except UnfitResultsError as mismatches:
            found = {int(good[row]): cause for row, cause in mismatches.causes.items()}
            if not every_failure:
                row, cause = min(found.items())
                raise RecordFailure.of(op, sources, batch, row, cause) from cause
            errors.update(found)
            good = good[~np.isin(good, list(found))]
    failures = {
        row: RecordFailure.of(op, sources, batch, row, error) for row, error in errors.items()
    }
    return made._replace(rows=good[made.rows]), failures


class UnfitResultsError(Exception):
    """Results that are not of the declared type; ``causes``: by row. Never shown to users."""

    def __init__(self, causes: Mapping[int, TypeError]) -> None:
        super().__init__(len(causes))
        self.causes = causes


def _values(result: Any) -> list[Any]:
    return list(_several(result, "values"))


def _pairs(result: Any) -> list[tuple[Any, Any]]:
    return [_pair(item) for item in _several(result, "pairs of key and value")]


def _several(result: Any, of_what: str) -> Iterable[Any]:
    """The values of a result; TypeError for one value that can be iterated, such as a text or a
    dict."""
    if isinstance(result, str | bytes | bytearray | Mapping):
        raise TypeError(
            f"expected a list of {of_what}, found {type(result).__name__} {shown(result)}"
        )
    return () if result is None else result


def _pair(result: Any) -> tuple[Any, Any]:
    """TypeError for what is no key and value, also for texts and dicts that have two elements."""
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


def _made_of(op: FunctionOp, batch: EdgeBatch, results: list[Any]) -> Made:
    """The results in columns. UnfitResultsError."""
    rows = _all(batch)
    match op.op:
        case "filter" | "filter_not":
            keep = np.array(results, bool)
            kept = np.flatnonzero(~keep if op.op == "filter_not" else keep)
            if len(kept) == len(batch):
                return Made(rows, batch.key, batch.value)
            taken = pa.array(kept, pa.int64())
            return Made(kept, batch.key.take(taken), batch.value.take(taken))
        case "branch" | "deduplicate":
            answer, value = op.type.value
            columns = [_column(results, answer.type, rows), batch.value]
            beside = pa.StructArray.from_arrays(columns, fields=[answer, value])
            return Made(rows, batch.key, beside)
        case "map":
            key = _column([key for key, _ in results], op.type.key, rows)
            return Made(rows, key, _column([value for _, value in results], op.type.value, rows))
        case "map_values":
            return Made(rows, batch.key, _column(results, op.type.value, rows))
        case "select_key":
            return Made(rows, _column(results, op.type.key, rows), batch.value)
        case "flat_map" | "flat_map_values":
            rows = np.repeat(rows, [len(result) for result in results])
            flat = [item for result in results for item in result]
            if op.op == "flat_map_values":
                keys = batch.key.take(pa.array(rows, pa.int64()))
                return Made(rows, keys, _column(flat, op.type.value, rows))
            key = _column([key for key, _ in flat], op.type.key, rows)
            return Made(rows, key, _column([value for _, value in flat], op.type.value, rows))
        case _:  # peek, for_each
            return Made(rows, batch.key, batch.value)


def _column(items: list[Any], kind: pa.DataType, rows: Int64) -> pa.Array:
    """Python results as the declared Arrow type. UnfitResultsError: the fault of records in
    ``rows``."""
    try:
        return column_of(items, kind)
    except UnfitError:
        causes: dict[int, TypeError] = {}
        for row, item in zip(rows.tolist(), items, strict=True):
            try:
                column_of([item], kind)
            except UnfitError as error:
                text = f"result {shown(item)} is not of the declared type: {error}"
                cause = TypeError(text)
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


# --- partitions of a sink (KIP-837) ---------------------------------------------------------------


BY_KEY = -1
"""In place of a partition: the key says it."""


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """Chooses the partitions of a sink's records. ``said``: a Column's result for each; None where
    a function or the bytes of the ``keys`` decide."""

    op: SinkOp
    sources: Sources
    batch: EdgeBatch
    said: pa.Array | None
    keys: pa.Array
    every_failure: bool = False

    def of(self, topic: str, rows: Int64 | None, count: int) -> tuple[Int64, Int64]:
        """Rows, and the partition of each, for the records in ``rows`` (None: all) that go to a
        topic of ``count`` partitions; a row is there once for each of its partitions. RecordFailure
        for a record without one; ``every_failure``: for all of them."""
        wanted = np.arange(len(self.batch), dtype=np.int64) if rows is None else rows
        by = self.op.partitioner
        if isinstance(by, str) and by in (*BY_HASH, OF_WINDOWS):
            keys = self.keys.take(pa.array(wanted))
            found_by_hash = partitions_of(by, topic, keys, self.op.key_serde, count)
            found_by_hash[keys.is_null().to_numpy(zero_copy_only=False)] = BY_KEY
            return wanted, found_by_hash
        if self.said is not None and pa.types.is_integer(self.said.type):
            numbers = self.said.fill_null(BY_KEY).to_numpy(zero_copy_only=False)[wanted]
            known = self.said.is_valid().to_numpy(zero_copy_only=False)[wanted]
            wrong = np.flatnonzero(known & ((numbers < 0) | (numbers >= count)))
            if len(wrong):
                named = wrong if self.every_failure else wrong[:1]
                rows_of = zip(wanted[named].tolist(), numbers[named].tolist(), strict=True)
                raise_all([self._wrong(row, number, topic, count) for row, number in rows_of])
            return wanted, numbers.astype(np.int64, copy=False)
        found_rows: list[int] = []
        found: list[int] = []
        failures: list[RecordFailure] = []
        for row, answer in self._answers(topic, wanted, count):
            if isinstance(answer, RecordFailure):
                failures.append(answer)
            else:
                try:
                    numbers_of = self._numbers(row, answer, topic, count)
                except RecordFailure as failure:
                    failures.append(failure)
                else:
                    found_rows += [row] * len(numbers_of)
                    found += numbers_of
            if failures and not self.every_failure:
                break
        if failures:
            raise_all(failures)
        return np.array(found_rows, np.int64), np.array(found, np.int64)

    def _answers(self, topic: str, rows: Int64, count: int) -> Iterable[tuple[int, Any]]:
        """Yields for each row its partition, several of them, or its failure."""
        if self.said is not None:
            yield from zip(rows.tolist(), self.said.take(pa.array(rows)).to_pylist(), strict=True)
            return
        fn = self.op.partitioner
        assert callable(fn)
        keys, values = python_keys(self.batch.key), self.batch.value.to_pylist()
        for row in rows.tolist():
            try:
                answer = fn(topic, keys[row], values[row], count)
            except BaseException as error:
                require_users(error)
                answer = RecordFailure.of(self.op, self.sources, self.batch, row, error)
            yield row, answer

    def _numbers(self, row: int, answer: Any, topic: str, count: int) -> list[int]:
        if answer is None:
            return [BY_KEY]
        several = isinstance(answer, list | tuple | set | frozenset)
        numbers = sorted(set(answer)) if several else [answer]
        for number in numbers:
            whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
            if not whole or not 0 <= number < count:
                raise self._wrong(row, number, topic, count)
        return [int(number) for number in numbers]

    def _wrong(self, row: int, number: Any, topic: str, count: int) -> RecordFailure:
        error = ValueError(
            f"partitioner= gave {shown(number)}; {topic} has the partitions 0 to {count - 1} "
            f"(none: an empty list; as the key says: None)"
        )
        return RecordFailure.of(self.op, self.sources, self.batch, row, error)


# --- print_table ----------------------------------------------------------------------------------


CELL_MOST = 60


def printed_of(op: PrintOp, batch: EdgeBatch) -> Printed:
    """The first rows of a batch, which is in order, and how many more it has."""
    shown = batch.take(np.arange(min(op.rows, len(batch)), dtype=np.int64))
    named = [
        ("time", [_time(ms) for ms in shown.timestamp.tolist()]),
        *_columns("key", shown.key, spread="key."),
        *_columns("value", shown.value, spread=""),
    ]
    rows = [list(row) for row in zip(*(column for _, column in named), strict=True)]
    names = [name for name, _ in named]
    return Printed(op.title, names, rows, op.rows, len(batch) - len(shown))


def _columns(name: str, column: pa.Array, spread: str) -> Iterator[tuple[str, list[str]]]:
    if not pa.types.is_struct(column.type) or not column.type.num_fields:
        yield name, [cell(value) for value in column.to_pylist()]
        return
    fields = [field.name for field in column.type]
    values = [value or {} for value in column.to_pylist()]
    for field in fields:
        yield f"{spread}{field}", [cell(value.get(field)) for value in values]


def _time(ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S}.{ms % 1000:03}"
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def cell(value: object) -> str:
    """A value as a text of one line, cut off where it is long."""
    text = "null" if value is None else str(value)
    text = one_line(text)
    return text if len(text) <= CELL_MOST else text[: CELL_MOST - 3] + "..."
