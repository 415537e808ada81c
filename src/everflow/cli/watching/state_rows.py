"""What `everflow state` prints of a store's rows: a table, JSON, or where it wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from everflow.console.observed import table
from everflow.runtime.serving.answers import as_json
from everflow.snapshots.rows import Rows
from everflow.user_texts import one_line

TABLE_ROWS = 100
_CELL = 60

Say = Callable[[str], object]


def print_table(rows: Rows, most: int | None, say: Say) -> None:
    """Columns for people."""
    shown = most or TABLE_ROWS
    found = list(islice(_dicts(rows), shown + 1))
    head = tuple(rows.schema.names)
    for line in table([head, *(_cells(row) for row in found[:shown])]):
        say(line)
    if len(found) > shown:
        say(f"... and more: --limit {10 * shown} shows them, --format json or parquet all")


def print_lines(rows: Rows, most: int | None, say: Say) -> None:
    """A JSON object a line."""
    for row in islice(_dicts(rows), most):
        say(as_json(row).decode())


def print_document(about: Mapping[str, Any], rows: Rows, most: int | None, say: Say) -> None:
    """One JSON object: ``about``, the rows, and what has to be known of them; printed as they
    come."""
    say(f'{as_json(about).decode()[:-1]}, "rows": [')
    separator = " "
    for row in islice(_dicts(rows), most):
        say(f"{separator} {as_json(row).decode()}")
        separator = ","
    say(f'], "notes": {as_json(rows.notes).decode()}}}')


def _dicts(rows: Rows) -> Iterator[dict[str, Any]]:
    for batch in rows.batches():
        yield from batch.to_pylist()


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_cell(value) for value in row.values())


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        # As `everflow.clock.instant`; a program's own column may have microseconds.
        part = "milliseconds" if value.microsecond and not value.microsecond % 1000 else "auto"
        text = value.isoformat(timespec=part).replace("+00:00", "Z")
    elif isinstance(value, str):
        text = value
    else:
        text = as_json(value).decode()
        text = text[1:-1] if isinstance(value, bytes) else text
    text = one_line(text)
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."
