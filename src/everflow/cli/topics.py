"""``everflow topic create | list | keys | delete``."""

from __future__ import annotations

from collections.abc import Mapping
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
from everflow.cli.formats import Form, Output, show
from everflow.cli.topic_keys import add_keys
from everflow.errors import ConfigError, EverflowError, FatalError

if TYPE_CHECKING:
    from everflow.kafka.admin import ClusterAdmin, TopicShape

_OF_AN_APPLICATION = ("-changelog", "-repartition")
_OF_THE_BROKER = "__"

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Topics.")]


def register(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    """Add the group of commands to the ``everflow`` command."""
    topic = typer.Typer(
        help="Create, list and delete topics, and find hot keys.", no_args_is_help=True
    )
    app.add_typer(topic, name="topic")
    for add in (_add_create, _add_list, add_keys, _add_delete):
        add(topic, errors_for_people)


def _add_create(topic: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @topic.command()
    def create(
        names: Annotated[
            list[str],
            typer.Argument(metavar="NAME[:PARTITIONS]...", help="Topics, e.g. orders or orders:4."),
        ],
        servers: Servers = LOCAL_BROKER,
        partitions: Annotated[
            int, typer.Option(min=1, help="Of the topics given without a number.")
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
        settings: ClientSettings = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """Create topics; nothing is created if one of them exists."""
        with errors_for_people(debug):
            from everflow.cli.broker_topics import parse_topics
            from everflow.cli.cluster import assignments, client_config, connected, own_status

            wanted = parse_topics(names, option="topic ", partitions=partitions)
            topic_settings = assignments("--config", config)
            with (
                own_status() as status,
                connected(client_config(servers, settings, settings_folder), status) as admin,
            ):
                _refuse_existing(admin, wanted)
                asked = {name: (count, topic_settings) for name, count in wanted.items()}
                try:
                    created = admin.create_topics(asked, replication_factor)
                except FatalError as failure:
                    raise _refused(failure, wanted) from failure
            if other := sorted(wanted.keys() - created):
                raise ConfigError(
                    f"somebody else created {', '.join(other)} at the same moment; look with "
                    f"`everflow topic list`."
                )
            for name, count in wanted.items():
                typer.echo(f"created topic {name}, {count} partition{'s' * (count != 1)}")


def _add_list(topic: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @topic.command(name="list")
    def list_(
        servers: Servers = LOCAL_BROKER,
        output: Form = Output.text,
        settings: ClientSettings = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """List all topics with partitions, replication factor and records (roughly: markers of
        transactions and what compaction removed are counted)."""
        with errors_for_people(debug):
            from everflow.cli.cluster import client_config, connected, own_status

            with (
                own_status() as status,
                connected(client_config(servers, settings, settings_folder), status) as admin,
            ):
                topics = admin.list_topics()
                records = _records(admin, topics)
            show(output, _rows(topics, records), table(topics, records))


def _add_delete(topic: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @topic.command()
    def delete(
        names: Names,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
        servers: Servers = LOCAL_BROKER,
        settings: ClientSettings = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """Delete topics with all their records, after a question; nothing is deleted if one of them
        does not exist."""
        with errors_for_people(debug):
            from everflow.cli.cluster import client_config, connected, own_status

            with (
                own_status() as status,
                connected(client_config(servers, settings, settings_folder), status) as admin,
            ):
                topics = admin.list_topics()
                _require_existing(names, topics)
                held = _records(admin, {name: topics[name] for name in names})
                what = ", ".join(
                    f"{name} (about {held[name]:,} records)" for name in dict.fromkeys(names)
                )
                if not yes and not typer.confirm(
                    f"Delete {what}? This cannot be undone.", err=True
                ):
                    typer.echo("nothing was deleted", err=True)
                    raise typer.Exit(1)
                admin.delete_topics(names)
            for name in dict.fromkeys(names):
                typer.echo(f"deleted topic {name}")


def table(topics: Mapping[str, TopicShape], records: Mapping[str, int]) -> list[str]:
    """Lines of ``everflow topic list``: users' topics first, then those of applications, then the
    broker's own."""
    if not topics:
        return ["no topics"]
    rows = [("TOPIC", "PARTITIONS", "REPLICATION", "RECORDS", "")]
    order = {"": 0, "internal": 1, "the broker's own": 2}
    for name in sorted(topics, key=lambda each: (order[kind(each)], each)):
        shape = topics[name]
        rows.append(
            (
                name,
                f"{shape.partitions:,}",
                str(shape.replication_factor),
                f"{records[name]:,}",
                kind(name),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"{row[0]:<{widths[0]}}  "
        + "  ".join(f"{row[n]:>{widths[n]}}" for n in (1, 2, 3))
        + f"  {row[4]}".rstrip()
        for row in rows
    ]


def _rows(topics: Mapping[str, TopicShape], records: Mapping[str, int]) -> list[dict[str, object]]:
    """The same for programs, by name."""
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


def kind(name: str) -> str:
    """What a topic is to its user, by its name: empty for one of theirs."""
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
    held = dict.fromkeys(topics, 0)
    for tp in partitions:
        held[tp.topic] += ends[tp] - starts[tp]
    return held


def _refused(failure: FatalError, wanted: Mapping[str, int]) -> EverflowError:
    """What the broker says of topics that it does not want to create."""
    from everflow.kafka.errors import RefusedError

    refusal = failure.__cause__
    if not isinstance(refusal, RefusedError):
        return failure
    said = f"{str(refusal).rstrip('.')} ({refusal.name})"
    return ConfigError(
        f"the broker refused to create {', '.join(wanted)}: {said}. See what there is with "
        f"`everflow topic list`."
    )


def _refuse_existing(admin: ClusterAdmin, wanted: Mapping[str, int]) -> None:
    found = admin.list_topics()
    there = [f"{name} ({found[name].partitions} partitions)" for name in wanted if name in found]
    if there:
        raise ConfigError(f"exists already: {', '.join(there)}. Nothing was created.")


def _require_existing(names: list[str], topics: Mapping[str, TopicShape]) -> None:
    missing = [name for name in names if name not in topics]
    if missing:
        raise ConfigError(
            f"no such topic: {', '.join(missing)}. Nothing was deleted; `everflow topic list` "
            f"shows what there is."
        )
