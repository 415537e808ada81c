"""``everflow produce`` and ``consume``: their options; `everflow.cli.records` does the work."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from everflow.cli.commands import Cluster, Form, Format, Output, WindowKind, command
from everflow.errors import ConfigError
from everflow.logs import counted
from everflow.user_program import printable

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="An existing topic.")]
KeyFormat = Annotated[Format, typer.Option("--key", help="Format of the keys.")]
ValueFormat = Annotated[
    Format, typer.Option("--value", help="Format of the values; json is checked.")
]


@command()
def produce(
    topic: Topic,
    cluster: Cluster,
    key: KeyFormat = Format.string,
    value: ValueFormat = Format.string,
    key_separator: Annotated[
        str, typer.Option(help="Separates key and value.", show_default="a tab")
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
) -> None:
    """Write each line of standard input to a topic, as value, or as key<TAB>value; empty lines
    are skipped."""
    from everflow.cli.records import lines, partitions_of, send

    if not key_separator:
        raise ConfigError("--key-separator must not be empty.")
    with cluster.connected() as (config, admin, status):
        partitions_of(admin, topic)
        if sys.stdin.isatty():
            typer.echo(f"one record a line for {topic}, Ctrl-D ends", err=True)
        sent = send(config, topic, lines(sys.stdin, key_separator, key, value, timed), status)
    typer.echo(f"{counted(sent, 'record')} written to {topic}", err=True)


@command()
def consume(
    topic: Topic,
    cluster: Cluster,
    key: KeyFormat = Format.string,
    value: ValueFormat = Format.string,
    window: Annotated[
        WindowKind | None,
        "Keys of windowed results: key@start of the window, key@start/end of a session.",
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning/--from-end", help="Where to start reading.")
    ] = True,
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many records. Default: at Ctrl-C.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help=("Stop when no record arrives for this many seconds; exit code 1 below --count."),
        ),
    ] = None,
    output: Form = Output.text,
) -> None:
    """Print the committed records of a topic, key<TAB>value a line (json: an object a line,
    with place, time and headers). Joins no group and commits nothing. On a terminal control
    characters are escaped; a file or a pipe gets texts as they are."""
    from everflow.cli.records import json_of, partitions_of, records, text_of

    with cluster.connected() as (config, admin, status):
        partitions = partitions_of(admin, topic)
        starts = admin.list_offsets(
            partitions, "earliest" if from_beginning else "latest", "read_committed"
        )
        as_json, people = output is Output.json, sys.stdout.isatty()
        seen, shown = 0, json_of if as_json else text_of
        for record in records(config, starts, count, timeout, status, headers=as_json):
            line = shown(record, key, value, window)
            if people:
                line = printable(line, keep="\t")
            typer.echo(line, color=True)  # else it takes colours out of what is piped
            seen += 1
    if count is not None and seen < count:
        typer.echo(
            (f"{seen:,} of {count:,} records of {topic}: no further one came for {timeout:g} s"),
            err=True,
        )
        raise typer.Exit(1)
