"""``everflow topic create | list | delete``, ``produce``, ``consume``; the topics of a broker."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everflow.cli.commands import (
    Cluster,
    Form,
    Format,
    Output,
    WindowKind,
    Yes,
    app,
    assignments,
    command,
    require_yes,
    show,
    table,
)
from everflow.errors import ConfigError, EverflowError, FatalError
from everflow.logs import counted
from everflow.user_program import printable

if TYPE_CHECKING:
    from everflow.kafka.admin import ClusterAdmin, TopicShape

_OF_AN_APPLICATION = ("-changelog", "-repartition")
_OF_THE_BROKER = "__"
_MOST_PARTITIONS = 1_000
"""Enough for any program; a small node holds them all, each with files of its own."""

topic = typer.Typer(help="Create, list and delete topics.", no_args_is_help=True)
app.add_typer(topic, name="topic")


@command(topic)
def create(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME[:PARTITIONS]...", help="Topics, e.g. orders or orders:4."),
    ],
    cluster: Cluster,
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions of topics that are given without a number.")
    ] = 1,
    replication_factor: Annotated[
        int,
        typer.Option(
            min=-1, max=32_767, help="Replicas of each partition; -1: the broker's default."
        ),
    ] = -1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A topic's setting, e.g. cleanup.policy=compact; repeatable.",
        ),
    ] = None,
) -> None:
    """Create topics; nothing is created if one of them exists."""
    wanted = parse_topics(names, option="topic ", partitions=partitions)
    topic_settings = assignments("--config", config)
    with cluster.connected() as (_, admin, _):
        found = admin.list_topics()
        there = [
            f"{name} ({found[name].partitions} partitions)" for name in wanted if name in found
        ]
        if there:
            raise ConfigError(f"exists already: {', '.join(there)}. Nothing was created.")
        asked = {name: (count, topic_settings) for name, count in wanted.items()}
        try:
            created = admin.create_topics(asked, replication_factor)
        except FatalError as failure:
            raise _refused(failure, wanted) from failure
    if other := sorted(wanted.keys() - created):
        raise ConfigError(
            f"somebody else created {', '.join(other)} at the same moment; "
            f"`everflow topic list` shows them."
        )
    for name, count in wanted.items():
        typer.echo(f"created topic {name}, {counted(count, 'partition')}")


@command(topic, "list")
def list_topics(cluster: Cluster, output: Form = Output.text) -> None:
    """List all topics with partitions, replication factor and records (approximate: transaction
    markers and compacted records are counted)."""
    with cluster.connected() as (_, admin, _):
        topics = admin.list_topics()
        records = _records(admin, topics)
    rows = topic_rows(topics, records)
    show(output, rows, topic_lines(rows))


@command(topic)
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Topics.")],
    yes: Yes = False,
    *,
    cluster: Cluster,
) -> None:
    """Delete topics with all their records, after a confirmation. Nothing is deleted if one of
    them does not exist."""
    with cluster.connected() as (_, admin, _):
        topics = admin.list_topics()
        missing = [name for name in names if name not in topics]
        if missing:
            raise ConfigError(
                f"no such topic: {', '.join(missing)}. Nothing was deleted; `everflow topic list` "
                f"shows what there is."
            )
        counts = _records(admin, {name: topics[name] for name in names})
        what = ", ".join(
            f"{name} (about {counts[name]:,} records)" for name in dict.fromkeys(names)
        )
        question = f"Delete {what}? This cannot be undone."
        require_yes(yes, question, "nothing was deleted")
        admin.delete_topics(names)
    for name in dict.fromkeys(names):
        typer.echo(f"deleted topic {name}")


def topic_rows(
    topics: Mapping[str, TopicShape], records: Mapping[str, int]
) -> list[dict[str, Any]]:
    return [
        {
            "topic": name,
            "partitions": topics[name].partitions,
            "replication_factor": topics[name].replication_factor,
            "records": records[name],
            "kind": kind(name),
        }
        for name in sorted(topics)
    ]


def topic_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    order = {"": 0, "internal": 1, "the broker's own": 2}
    cells = [
        [f"{cell:,}" if isinstance(cell, int) else cell for cell in row.values()]
        for row in sorted(rows, key=lambda row: order[row["kind"]])
    ]
    head = ("TOPIC", "PARTITIONS", "REPLICATION", "RECORDS", "")
    return table([head, *cells], numbers=(1, 2, 3)) if rows else ["no topics"]


def kind(name: str) -> str:
    """ "internal", "the broker's own", or empty for a user's topic, by its name."""
    if name.startswith(_OF_THE_BROKER):
        return "the broker's own"
    return "internal" if name.endswith(_OF_AN_APPLICATION) else ""


def _records(admin: ClusterAdmin, topics: Mapping[str, TopicShape]) -> dict[str, int]:
    from everflow.records import TopicPartition

    partitions = [
        TopicPartition(name, n) for name, shape in topics.items() for n in range(shape.partitions)
    ]
    starts = admin.list_offsets(partitions, "earliest", "read_uncommitted")
    ends = admin.end_offsets(partitions, "read_uncommitted")
    counts = dict.fromkeys(topics, 0)
    for tp in partitions:
        counts[tp.topic] += ends[tp] - starts[tp]
    return counts


def _refused(failure: FatalError, wanted: Mapping[str, int]) -> EverflowError:
    from everflow.kafka.errors import RefusedError

    refusal = failure.__cause__
    if not isinstance(refusal, RefusedError):
        return failure
    said = f"{str(refusal).rstrip('.')} ({refusal.name})"
    return ConfigError(
        f"the broker refused to create {', '.join(wanted)}: {said}. See what there is with "
        f"`everflow topic list`."
    )


def parse_topics(
    arguments: Sequence[str], *, option: str = "--topic ", partitions: int | None = None
) -> dict[str, int]:
    """Partitions by topic, in the order given. ``partitions``: of an argument that names none;
    without it each must. ConfigError names the argument behind ``option``: wrong or twice."""
    from everflow.records import names_a_topic

    topics: dict[str, int] = {}
    for argument in arguments:
        name, separator, count = argument.rpartition(":")
        if not separator and partitions is not None:
            name, count = argument, str(partitions)
        elif not separator or not re.fullmatch(r"[0-9]+", count):
            raise ConfigError(f"{option}{argument!r}: write it as name:partitions, e.g. orders:4.")
        if not names_a_topic(name):
            raise ConfigError(
                f"{option}{argument!r}: a topic's name is 1 to 249 letters, digits, '.', '_' or "
                f"'-'; not {name!r}."
            )
        if not 1 <= int(count) <= _MOST_PARTITIONS:
            raise ConfigError(
                f"{option}{argument!r}: a topic has 1 to {_MOST_PARTITIONS:,} partitions here."
            )
        if name in topics:
            raise ConfigError(f"{option}{argument!r}: topic {name} is given twice.")
        topics[name] = int(count)
    return topics


def create_topics(
    bootstrap_servers: str, topics: Mapping[str, int], say: Callable[[str], None]
) -> None:
    """Create those that are missing, and say a line of each. ConfigError, before any is created, if
    one that exists has another number of partitions; RetriableError."""
    from everflow.kafka.admin import ClusterAdmin

    with closing(ClusterAdmin({"bootstrap.servers": bootstrap_servers})) as admin:
        found = admin.describe_topics(topics)
        for name, topic in found.items():
            if topic.partitions != topics[name]:
                raise ConfigError(
                    f"--topic {name}:{topics[name]}: the topic exists in the data folder with "
                    f"{counted(topic.partitions, 'partition')}. "
                    f"Write {name}:{topic.partitions}, or take another --data-dir."
                )
        admin.create_topics(
            {name: (partitions, {}) for name, partitions in topics.items() if name not in found}
        )
    for name, partitions in topics.items():
        there = " (was there already)" if name in found else ""
        say(f"topic {name}, {counted(partitions, 'partition')}{there}")


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
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The schema registry: values are JSON, and written by the latest schema of "
            "TOPIC-value. Needs everflow[schemas].",
        ),
    ] = None,
) -> None:
    """Write each line of standard input to a topic: a line with a tab as key<TAB>value, any other
    as a value without key. Empty lines are skipped."""
    from everflow.cli.records import Subject, lines, partitions_of, registry_of, send

    if schema is not None and value is Format.string:
        value = Format.schema
    registry = registry_of(schema, value)
    subject = None if registry is None else Subject(f"{topic}-value", registry)
    if not key_separator:
        raise ConfigError("--key-separator must not be empty.")
    with cluster.connected() as (config, admin, status):
        partitions_of(admin, topic)
        if sys.stdin.isatty():
            typer.echo(f"one record a line for {topic}, Ctrl-D ends", err=True)
        sent = send(
            config,
            topic,
            lines(sys.stdin, key_separator, key, value, timed, subject),
            status,
        )
    typer.echo(f"{counted(sent, 'record')} written to {topic}", err=True)


@command()
def consume(
    topic: Topic,
    cluster: Cluster,
    key: KeyFormat = Format.string,
    value: ValueFormat = Format.string,
    window: Annotated[
        WindowKind | None,
        "Decode the keys of windowed results: `time` prints key@start, `session` prints "
        "key@start/end.",
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning/--from-end", help="Default: --from-beginning.")
    ] = True,
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many records. Default: no limit.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Stop when no record arrives for this many seconds, as kafka-console-consumer's "
            "--timeout-ms: where records go on arriving, never. Exit code 1 if fewer than --count "
            "records arrived.",
        ),
    ] = None,
    to_end: Annotated[
        bool,
        typer.Option(
            "--to-end",
            help="Stop at the end that the topic has now, as kcat's -e; later records are left.",
        ),
    ] = False,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The schema registry: values, and keys with `--key schema`, are decoded by the "
            "schemas they were written with, and printed as JSON. Needs everflow[schemas].",
        ),
    ] = None,
    output: Form = Output.text,
) -> None:
    """Print the committed records of a topic, one per line as key<TAB>value (json: an object with
    partition, offset, time and headers). Joins no group and commits nothing. On a terminal control
    characters are escaped; to a file or a pipe texts are written unchanged."""
    from everflow.cli.records import Shown, partitions_of, records, registry_of

    if schema is not None and value is Format.string:
        value = Format.schema
    registry = registry_of(schema, key, value)
    with cluster.connected() as (config, admin, status):
        partitions = partitions_of(admin, topic)
        starts = admin.list_offsets(
            partitions, "earliest" if from_beginning else "latest", "read_committed"
        )
        ends = admin.list_offsets(partitions, "latest", "read_committed") if to_end else None
        people = sys.stdout.isatty()
        shown = Shown(key, value, window, registry, output is Output.json)
        seen, hinted = 0, False
        for tp, found in records(config, starts, count, timeout, status, shown.headers, ends):
            if not hinted and (hint := shown.hint(tp, found)) is not None:
                typer.echo(hint, err=True)
                hinted = True
            for line in shown.lines(tp, found):
                text = printable(line, keep="\t") if people else line
                typer.echo(text, color=True)  # else it takes colours out of what is piped
                seen += 1
    if count is not None and seen < count:
        why = "that is its end" if to_end else f"no further one came for {timeout:g} s"
        typer.echo(f"{seen:,} of {count:,} records of {topic}: {why}", err=True)
        raise typer.Exit(1)
