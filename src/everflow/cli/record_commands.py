"""``everflow produce`` and ``consume``: their options; `everflow.cli.records` does the work."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from everflow.cli.cluster_options import (
    LOCAL_BROKER,
    ClientSettings,
    Debug,
    ErrorsForPeople,
    Servers,
    SettingsFolders,
)
from everflow.cli.formats import Form, Format, Output, WindowKind
from everflow.errors import ConfigError
from everflow.user_program import printable

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="An existing topic.")]
KeyFormat = Annotated[Format, typer.Option("--key", help="What keys are.")]
ValueFormat = Annotated[Format, typer.Option("--value", help="What values are; json is checked.")]


def register(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    """Add both commands to the ``everflow`` command."""
    _add_produce(app, errors_for_people)
    _add_consume(app, errors_for_people)


def _add_produce(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def produce(
        topic: Topic,
        servers: Servers = LOCAL_BROKER,
        key: KeyFormat = Format.string,
        value: ValueFormat = Format.string,
        key_separator: Annotated[
            str, typer.Option(help="Stands between key and value.", show_default="a tab")
        ] = "\t",
        timed: Annotated[
            bool,
            typer.Option(
                "--with-time",
                help=(
                    "Each line begins with the record's time (ISO 8601 or ms since 1970), then "
                    "the separator."
                ),
            ),
        ] = False,
        settings: ClientSettings = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """Write each line of standard input to a topic, as value, or as key<TAB>value; empty lines
        are skipped."""
        with errors_for_people(debug):
            from everflow.cli.cluster import client_config, connected, own_status
            from everflow.cli.records import lines, partitions_of, send

            if not key_separator:
                raise ConfigError("--key-separator must not be empty.")
            config = client_config(servers, settings, settings_folder)
            with own_status() as status, connected(config, status) as admin:
                partitions_of(admin, topic)
                if sys.stdin.isatty():
                    typer.echo(f"one record a line for {topic}, Ctrl-D ends", err=True)
                sent = send(
                    config, topic, lines(sys.stdin, key_separator, key, value, timed), status
                )
            typer.echo(f"{sent:,} record{'s' * (sent != 1)} written to {topic}", err=True)


def _add_consume(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def consume(
        topic: Topic,
        servers: Servers = LOCAL_BROKER,
        key: KeyFormat = Format.string,
        value: ValueFormat = Format.string,
        window: Annotated[
            WindowKind | None,
            typer.Option(
                help=(
                    "Keys of windowed results: key@start of the window, key@start/end of a session."
                )
            ),
        ] = None,
        from_beginning: Annotated[
            bool, typer.Option("--from-beginning/--from-end", help="Where to begin.")
        ] = True,
        count: Annotated[
            int | None, typer.Option(min=1, help="End after so many records; without: Ctrl-C ends.")
        ] = None,
        timeout: Annotated[
            float | None,
            typer.Option(
                min=0.0,
                help=(
                    "End when no record has come for so many seconds; exit code 1 if --count is "
                    "missed."
                ),
            ),
        ] = None,
        output: Form = Output.text,
        settings: ClientSettings = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """Print the committed records of a topic, key<TAB>value a line (json: an object a line,
        with place, time and headers). Joins no group and commits nothing. On a terminal control
        characters are escaped; a file or a pipe gets texts as they are."""
        with errors_for_people(debug):
            from everflow.cli.cluster import client_config, connected, own_status
            from everflow.cli.records import json_of, partitions_of, records, text_of

            config = client_config(servers, settings, settings_folder)
            with own_status() as status, connected(config, status) as admin:
                partitions = partitions_of(admin, topic)
                starts = admin.list_offsets(
                    partitions, "earliest" if from_beginning else "latest", "read_committed"
                )
                told, people = output is Output.json, sys.stdout.isatty()
                seen, shown = 0, json_of if told else text_of
                for record in records(config, starts, count, timeout, status, headers=told):
                    line = shown(record, key, value, window)
                    if people:
                        line = printable(line, keep="\t")
                    typer.echo(line, color=True)  # else it takes colours out of what is piped
                    seen += 1
            if count is not None and seen < count:
                typer.echo(
                    (
                        f"{seen:,} of {count:,} records of {topic}: no further one came for "
                        f"{timeout:g} s"
                    ),
                    err=True,
                )
                raise typer.Exit(1)
