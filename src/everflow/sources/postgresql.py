"""A table of PostgreSQL in ranges of a numeric column, as Spark's JDBC reader splits it; by COPY.

Rows come as CSV, which Arrow reads in columns. Each range is one statement: it sees what was
committed when it began.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import csv

from everflow.errors import RetriableError, TopologyError
from everflow.sinks.postgresql import DEFAULTS, is_away, quoted, said_of
from everflow.sources.splits import Kept, Split, SplitError, fitted

BLOCK = 1 << 20
"""Bytes that are parsed at once."""
_PLANNED = "planned"


@dataclass(eq=False, kw_only=True)
class PostgresRanges:
    """A `Source`. ``query``: in place of a ``table``."""

    OWN: ClassVar[tuple[str, ...]] = ("columns",)
    PACKAGE, EXTRA = "psycopg", "postgresql"

    dsn: str = field(repr=False)
    """As libpq reads it; passwords belong to ``PGPASSWORD`` or ``~/.pgpass``."""
    partition_column: str
    lower_bound: int
    upper_bound: int
    num_partitions: int
    table: str | None = None
    query: str | None = None
    columns: pa.Schema

    def __post_init__(self) -> None:
        """TopologyError for what cannot be read."""
        if (self.table is None) == (self.query is None):
            raise TopologyError("read('postgresql') takes table= or query=, one of them")
        for number in (self.lower_bound, self.upper_bound, self.num_partitions):
            if not isinstance(number, int) or isinstance(number, bool):
                raise TopologyError(
                    f"read('postgresql'): lower_bound, upper_bound and num_partitions are whole "
                    f"numbers, found {number!r}"
                )
        for column in self.columns:
            if pa.types.is_nested(column.type):
                raise TopologyError(
                    f"read('postgresql'): column {column.name!r} is declared {column.type}; "
                    f"declare a string, which gets its text"
                )

    def plan(self, kept: Kept) -> Iterable[Split]:
        """See `Source`."""
        if kept.get(_PLANNED) is not None:
            return
        for where in ranges(
            quoted(self.partition_column), self.lower_bound, self.upper_bound, self.num_partitions
        ):
            yield Split(where, json.dumps(where).encode())
        kept.put(_PLANNED, "yes")

    def read(self, data: bytes) -> Iterator[pa.RecordBatch]:
        """See `Source`. Rows are in the order of the column. RetriableError if the server is away,
        SplitError if it refuses the query, or a value is not of its type."""
        import psycopg

        rows = self.table if self.query is None else f"({self.query}) AS everflow_rows"
        selected = ", ".join(map(_selected, self.columns))
        order = quoted(self.partition_column)
        sql = f"SELECT {selected} FROM {rows} WHERE {json.loads(data)} ORDER BY {order}"
        failed: Exception
        try:
            given = psycopg.conninfo.conninfo_to_dict(self.dsn)
            settings: dict[str, Any] = {**DEFAULTS, **given}
            with closing(psycopg.connect(**settings, autocommit=True)) as connection:
                connection.execute("SET timezone = 'UTC'; SET datestyle = 'ISO'")
                with connection.cursor().copy(f"COPY ({sql}) TO STDOUT (FORMAT csv)") as copy:
                    yield from self._batches(copy)
            return
        except psycopg.Error as error:
            text = said_of(error)
            if is_away(error):
                failed = RetriableError(f"PostgreSQL does not answer: {text}")
            else:
                failed = SplitError(f"PostgreSQL refuses {sql}: {text}")
        raise failed  # here, so that the driver's error, with values, is not in it

    def _batches(self, copy: Any) -> Iterator[pa.RecordBatch]:
        read = _Blocks(iter(copy))
        first = read.peek()
        if not first:
            return
        texts = [pa.types.is_binary(one.type) for one in self.columns]
        types = {
            one.name: pa.string() if text else one.type
            for one, text in zip(self.columns, texts, strict=True)
        }
        try:
            for batch in csv.open_csv(
                pa.PythonFile(read, mode="r"),
                csv.ReadOptions(
                    use_threads=False, block_size=BLOCK, column_names=self.columns.names
                ),
                csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
                csv.ConvertOptions(
                    column_types=types,
                    null_values=[""],
                    true_values=["t"],
                    false_values=["f"],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            ):
                yield self._typed(batch)
        except pa.ArrowInvalid as error:
            raise SplitError(f"a value is not of its column's type: {error}") from error

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for column, wanted in zip(batch.columns, self.columns, strict=True):
            if pa.types.is_binary(wanted.type):
                column = pa.array(
                    [None if one is None else bytes.fromhex(one) for one in column.to_pylist()],
                    wanted.type,
                )
            arrays.append(column)
        return fitted(pa.RecordBatch.from_arrays(arrays, self.columns.names), self.columns)


def ranges(column: str, lower: int, upper: int, count: int) -> list[str]:
    """The conditions of ``count`` ranges, as Spark makes them: the first one has nulls and all
    that is smaller, the last one all that is larger."""
    count = max(1, min(count, upper - lower))
    if count == 1:
        return ["true"]
    bounds = [lower + (upper - lower) * at // count for at in range(1, count)]
    first = f"({column} < {bounds[0]} OR {column} IS NULL)"
    between = [f"{column} >= {low} AND {column} < {high}" for low, high in pairwise(bounds)]
    return [first, *between, f"{column} >= {bounds[-1]}"]


def _selected(column: pa.Field) -> str:
    name = quoted(column.name)
    if pa.types.is_binary(column.type):
        return f"encode({name}, 'hex') AS {name}"
    return name


class _Blocks(io.RawIOBase):
    """What COPY sends, as a file."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        super().__init__()
        self._blocks, self._left = blocks, b""

    def readable(self) -> bool:
        return True

    def peek(self) -> bytes:
        """What comes next; empty at the end."""
        if not self._left:
            self._left = bytes(next(self._blocks, b""))
        return self._left

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, fewer at the end alone."""
        found: list[bytes] = []
        while (size < 0 or size > 0) and (block := self.peek()):
            part = block if size < 0 else block[:size]
            self._left = block[len(part) :]
            size -= len(part) if size > 0 else 0
            found.append(part)
        return b"".join(found)
