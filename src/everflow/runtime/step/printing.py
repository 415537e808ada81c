"""Takes the rows of ``print_table`` out of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa

from everflow.records import EdgeBatch
from everflow.runtime.commit.batch import Printed
from everflow.topology.plan import PrintOp
from everflow.user_program import one_line

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
    """A column as texts; a struct's fields as one each."""
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
