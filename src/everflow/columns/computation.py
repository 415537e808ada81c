"""`Computation`: some kernels over the columns of a batch, one after the other. Pure; picklable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from everflow.columns.kernels import KERNELS, Datum


class LeftToSpark(Exception):
    """Arrow has no result for these rows that is sure to be Spark's. The text says why."""


@dataclass(frozen=True)
class Operation:
    """A kernel of `KERNELS` (or ``literal``, ``struct``) over what stands in ``arguments``."""

    kernel: str
    arguments: tuple[int, ...]
    parameter: Any = None


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Place i < ``inputs`` is a column of the batch, each further place what an operation made.
    ``results`` are the places of what is asked for. ``done``: for each operation the places that
    nobody reads after it. ``sure``: none of the operations can fail."""

    inputs: int
    operations: tuple[Operation, ...]
    results: tuple[int, ...]
    types: tuple[pa.DataType, ...]
    done: tuple[tuple[int, ...], ...]
    sure: bool

    def run(self, columns: Sequence[pa.Array], count: int) -> list[pa.Array]:
        """The results, of ``types``, for a batch of ``count`` rows.

        Raises LeftToSpark.
        """
        places: list[Datum | None] = list(columns)
        try:
            for operation, done in zip(self.operations, self.done, strict=True):
                given = [places[at] for at in operation.arguments]
                places.append(run_operation(operation, given, count))
                for at in done:
                    places[at] = None
            made = [
                _column(places[at], kind, count)
                for at, kind in zip(self.results, self.types, strict=True)
            ]
        except Exception as error:  # whatever Arrow stumbles over, Spark computes
            raise LeftToSpark(f"{type(error).__name__}: {error}") from error
        if any(len(column) != count for column in made):
            raise LeftToSpark(f"Arrow made another number of rows than {count}")
        return made


def run_operation(operation: Operation, given: Sequence[Any], count: int) -> Datum:
    """What one operation makes of what it is given, for ``count`` rows. Raises as kernels do."""
    if operation.kernel == "literal":
        return operation.parameter
    if operation.kernel == "struct":
        return _struct(operation.parameter, given, count)
    kernel = KERNELS[operation.kernel]
    return kernel(*given) if operation.parameter is None else kernel(operation.parameter, *given)


def _struct(fields: tuple[pa.Field, ...], given: Sequence[Datum], count: int) -> pa.Array:
    """The fields, and behind them, if there is one more, where the struct is not null."""
    columns = [_column(each, f.type, count) for each, f in zip(given, fields, strict=False)]
    mask = None
    if len(given) > len(fields):
        mask = pa.compute.invert(_column(given[-1], pa.bool_(), count))
    return pa.StructArray.from_arrays(columns, fields=list(fields), mask=mask)


def _column(given: Datum | None, kind: pa.DataType, count: int) -> pa.Array:
    assert given is not None
    column = pa.repeat(given, count) if isinstance(given, pa.Scalar) else given
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type.equals(kind) else column.cast(kind)


@dataclass(frozen=True)
class Twin:
    """What a Column makes of the columns that it ``reads`` (their names and types, in order)."""

    reads: pa.Schema
    computation: Computation

    def run(self, columns: Sequence[pa.Array], count: int) -> pa.Array:
        """The column, for ``count`` rows of the columns that it reads. Raises LeftToSpark."""
        (made,) = self.computation.run(columns, count)
        return made
