"""``everflow state``: its options; `everflow.snapshots` reads, `state_rows` prints."""

from __future__ import annotations

import json
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everflow.cli.cluster_options import (
    LOCAL_BROKER,
    ClientSettings,
    Debug,
    ErrorsForPeople,
    Servers,
    SettingsFolders,
)
from everflow.cli.formats import Form, Output, echo
from everflow.errors import ConfigError

if TYPE_CHECKING:
    from everflow.snapshots.rows import Rows


class RowsFormat(str, Enum):
    """Forms of rows."""

    table = "table"
    json = "json"
    parquet = "parquet"


Target = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="As for run: its serdes read the bytes.")
]
At = Annotated[
    str,
    typer.Option(
        metavar="POINT",
        help="end; a time (ISO 8601, or ms since 1970); offsets by partition: 0=120,1=98.",
    ),
]
Diff = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="POINT POINT", help="What is different at the second point, and how."),
]
RowsForm = Annotated[RowsFormat, typer.Option("--format", help="json: an object a line.")]


def register(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    """Add the command to the ``everflow`` command."""

    @app.command()
    def state(
        target: Target,
        store: Annotated[str, typer.Argument(metavar="STORE", help="As in the topology.")],
        application_id: Annotated[str, typer.Option(help="application.id: names the changelog.")],
        servers: Servers = LOCAL_BROKER,
        at: At = "end",
        diff: Diff = None,
        form: RowsForm = RowsFormat.table,
        path: Annotated[
            Path | None, typer.Option(help="With --format parquet: a folder that is made for it.")
        ] = None,
        limit: Annotated[
            int | None,
            typer.Option(min=1, help="At most so many rows. Default: all; of a table 100."),
        ] = None,
        output: Form = Output.text,
        folder: Annotated[
            Path | None,
            typer.Option(help="For temporary files: the largest partition. Default: TMPDIR."),
        ] = None,
        settings: ClientSettings = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """Show a store as its changelog says that it is, or was; or what is different at two
        points. No instance needs to run."""
        with errors_for_people(debug):
            from everflow.cli.cluster import client_config, connected, own_status
            from everflow.cli.program import LOAD_SILENT_S, load_topology
            from everflow.retry import shown_by
            from everflow.snapshots.frames import changelog_of
            from everflow.spark.session import get_context

            _check(form, path, at, diff, output, limit)
            config = client_config(
                servers, [*(settings or []), f"application.id={application_id}"], settings_folder
            )
            with (
                own_status() as status,
                shown_by(partial(status.waiting, after_s=LOAD_SILENT_S)),
            ):
                with status.waiting(f"loading {target}", after_s=LOAD_SILENT_S):
                    topology = load_topology(target, start_spark=get_context)
                with (
                    changelog_of(topology, store, config, folder) as reader,
                    connected(config, status),
                ):
                    rows = reader.rows(at) if diff is None else reader.difference(*diff)
                    about = {"store": store, "topic": reader.store.topic}
                    about |= {"at": at} if diff is None else {"from": diff[0], "to": diff[1]}
                    _show(rows, about, form, path, limit, output)


def _check(
    form: RowsFormat,
    path: Path | None,
    at: str,
    diff: tuple[str, str] | None,
    output: Output,
    limit: int | None,
) -> None:
    """ConfigError for options that do not go together, StatePointError for what is no point."""
    from everflow.snapshots.points import Point

    for point in diff or (at,):
        Point.of(point)
    if diff is not None and at != "end":
        raise ConfigError("--diff has its two points: leave --at out.")
    if (form is RowsFormat.parquet) != (path is not None):
        raise ConfigError("--format parquet and --path FOLDER go together.")
    if form is RowsFormat.json and output is Output.json:
        raise ConfigError("--format json is an object a line, --output json one in all: take one.")
    if form is RowsFormat.parquet and limit is not None:
        raise ConfigError("--format parquet writes all rows: leave --limit out.")


def _show(
    rows: Rows,
    about: dict[str, str],
    form: RowsFormat,
    path: Path | None,
    limit: int | None,
    output: Output,
) -> None:
    from everflow.cli.watching import state_rows
    from everflow.snapshots.rows import write_parquet

    if path is not None:
        count = write_parquet(rows, path)
        if output is Output.json:
            written = {**about, "path": str(path), "count": count, "notes": rows.notes}
            typer.echo(json.dumps(written, indent=2))
            return
        typer.echo(f"{count:,} row{'s' * (count != 1)} written to {path}", err=True)
    elif output is Output.json:
        state_rows.print_document(about, rows, limit, echo)
        return
    elif form is RowsFormat.json:
        state_rows.print_lines(rows, limit, echo)
    else:
        state_rows.print_table(rows, limit, echo)
    for note in rows.notes:
        echo(f"note: {note}", err=True)
