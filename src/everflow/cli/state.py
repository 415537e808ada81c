"""``everflow state``: a store's rows as a table, JSON or Parquet; `everflow.snapshots` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everflow.cli.commands import (
    Cluster,
    Form,
    Output,
    command,
    connected,
    echo,
    own_status,
    table,
)
from everflow.errors import ConfigError
from everflow.logs import counted
from everflow.user_program import one_line

if TYPE_CHECKING:
    from everflow.snapshots.snapshot import Rows

TABLE_ROWS = 100
_CELL = 60


class RowsFormat(str, Enum):
    table = "table"
    json = "json"
    parquet = "parquet"


Target = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="As for run. Its serdes decode the store.")
]
At = Annotated[
    str,
    typer.Option(
        metavar="POINT",
        help="A snapshot position: end, a time (ISO 8601, or ms since 1970), or an offset per "
        "partition (0=120,1=98).",
    ),
]
Diff = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="POINT POINT", help="Show the differences between two points."),
]


@dataclass(frozen=True)
class RowsOutput:
    """How rows are shown, or where they are written."""

    form: Annotated[RowsFormat, typer.Option("--format", help="json: one object per line.")] = (
        RowsFormat.table
    )
    path: Annotated[Path | None, "With --format parquet: the new folder for the files."] = None
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of rows. Default: all; 100 in a table."),
    ] = None
    output: Form = Output.text

    def check(self) -> None:
        if (self.form is RowsFormat.parquet) != (self.path is not None):
            raise ConfigError("--format parquet and --path FOLDER go together.")
        if self.form is RowsFormat.json and self.output is Output.json:
            raise ConfigError(
                "--format json is an object a line, --output json one in all: take one."
            )
        if self.form is RowsFormat.parquet and self.limit is not None:
            raise ConfigError("--format parquet writes all rows: leave --limit out.")

    def show(self, rows: Rows, about: dict[str, str]) -> None:
        from everflow.snapshots.snapshot import write_parquet

        if self.path is not None:
            count = write_parquet(rows, self.path)
            if self.output is Output.json:
                written = {**about, "path": str(self.path), "count": count, "notes": rows.notes}
                typer.echo(json.dumps(written, indent=2))
                return
            typer.echo(f"{counted(count, 'row')} written to {self.path}", err=True)
        elif self.output is Output.json:
            print_document(about, rows, self.limit)
            return
        elif self.form is RowsFormat.json:
            print_lines(rows, self.limit)
        else:
            print_table(rows, self.limit)
        for note in rows.notes:
            echo(f"note: {note}", err=True)


@command()
def state(
    target: Target,
    store: Annotated[str, typer.Argument(metavar="STORE", help="The store's name in the program.")],
    application_id: Annotated[str, "application.id: names the changelog."],
    cluster: Cluster,
    at: At = "end",
    diff: Diff = None,
    *,
    shown: RowsOutput,
    folder: Annotated[
        Path | None, "For temporary files, as large as a changelog partition. Default: TMPDIR."
    ] = None,
) -> None:
    """Show the rows of a store, read from its changelog, now or at an earlier point; or compare two
    points. No instance needs to run."""
    from everflow.cli.program import loaded
    from everflow.snapshots.frames import changelog_of
    from everflow.snapshots.points import Point

    for point in diff or (at,):
        Point.of(point)
    if diff is not None and at != "end":
        raise ConfigError("--diff has its two points: leave --at out.")
    shown.check()
    config = cluster.config(f"application.id={application_id}")
    with (
        own_status() as status,
        loaded(target, status) as topology,
        changelog_of(topology, store, config, folder) as reader,
        connected(config, status),
    ):
        rows = reader.rows(at) if diff is None else reader.difference(*diff)
        about = {"store": store, "topic": reader.store.topic}
        about |= {"at": at} if diff is None else {"from": diff[0], "to": diff[1]}
        shown.show(rows, about)


def print_table(rows: Rows, most: int | None) -> None:
    shown = most or TABLE_ROWS
    found = list(islice(_dicts(rows), shown + 1))
    head = tuple(rows.schema.names)
    for line in table([head, *([_cell(value) for value in row.values()] for row in found[:shown])]):
        echo(line)
    if len(found) > shown:
        echo(f"... and more: --limit {10 * shown} shows them, --format json or parquet all")


def print_lines(rows: Rows, most: int | None) -> None:
    for row in islice(_dicts(rows), most):
        echo(_json(row))


def print_document(about: Mapping[str, Any], rows: Rows, most: int | None) -> None:
    echo(f'{_json(about)[:-1]}, "rows": [')
    separator = " "
    for row in islice(_dicts(rows), most):
        echo(f"{separator} {_json(row)}")
        separator = ","
    echo(f'], "notes": {_json(rows.notes)}}}')


def _dicts(rows: Rows) -> Iterator[dict[str, Any]]:
    for batch in rows.batches():
        yield from batch.to_pylist()


def _json(value: Any) -> str:
    from everflow.instance.serving.answers import as_json

    return as_json(value).decode()


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        # As `everflow.clock.instant`; a program's own column may have microseconds.
        part = "milliseconds" if value.microsecond and not value.microsecond % 1000 else "auto"
        text = value.isoformat(timespec=part).replace("+00:00", "Z")
    elif isinstance(value, str):
        text = value
    else:
        text = _json(value)
        text = text[1:-1] if isinstance(value, bytes) else text
    text = one_line(text)
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."
