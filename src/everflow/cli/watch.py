"""Commands that watch and scale instances (docs/guide/metrics.md, kubernetes.md).

``everflow status``, ``tasks``, ``lag``, ``drain``, ``rack`` and ``autoscale``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everflow.cli.commands import (
    LOCAL_BROKER,
    Cluster,
    Form,
    Output,
    Servers,
    SettingsAsForRun,
    TargetAsForRun,
    command,
    show,
)
from everflow.errors import ConfigError, FatalError
from everflow.logs import counted, time_of_day
from everflow.stop_signals import owned

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.kafka.admin import ClusterAdmin

ASK_S = 20.0
_NUMBERS = ("committed", "end", "lag")
_OWN_OF_AUTOSCALE = {
    "group.instance.id": "instances come and go, and no two may have the same",
    "state.dir": "--folder says where each has its own",
    "http.listen": "each has an address of its own, which is said when it starts",
}

Addresses = Annotated[
    list[str],
    typer.Argument(metavar="HOST:PORT...", help="http.listen of the instances."),
]
RunSettingsFolders = Annotated[list[Path] | None, typer.Option(help="As for run; repeatable.")]


@command()
def status(addresses: Addresses, output: Form = Output.text) -> None:
    """Show state, readiness, lag, tasks and load of instances. Exit code 1 if one does not answer,
    is not ready, or has no answer from its brokers."""
    from everflow.console.observed import ask, is_well, status_lines

    found = ask(addresses)
    show(output, found, status_lines(found))
    well = all(map(is_well, found))

    if not well:
        raise typer.Exit(1)


@command()
def tasks(addresses: Addresses, output: Form = Output.text) -> None:
    """List the tasks of instances: failing tasks first, then those with the largest lag. Exit code
    1 if an instance does not answer."""
    from everflow.console.observed import answered, ask, task_rows, tasks_table, warnings

    found = ask(addresses)
    rows, silent = task_rows(found), [one for one in found if not answered(one)]
    show(output, [*rows, *silent], [*tasks_table(rows), *warnings(found)])
    if silent:
        raise typer.Exit(1)


@command()
def lag(
    application_id: Annotated[
        str, typer.Argument(metavar="APPLICATION_ID", help="application.id: the group.")
    ],
    cluster: Cluster,
    output: Form = Output.text,
) -> None:
    """List the lag of an application by partition, largest first. It asks the brokers, so no
    instance needs to run."""
    with cluster.connected() as (config, admin, _):
        rows = lag_rows(config, admin, application_id)
    show(output, rows, lag_table(rows))


@command()
def drain(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="http.listen of an instance on this host.")
    ],
    stateful_set: Annotated[
        str | None,
        typer.Option(
            help="For the pre-stop hook of a pod of this StatefulSet: drain only if the pod will "
            "not come back."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the end.")] = 120,
) -> None:
    """Stop an instance on this host: it migrates its tasks to other instances, leaves the group
    (also as a static member) and ends."""
    from everflow.cli.cluster import own_status
    from everflow.cli.drain import drain as ended
    from everflow.cli.drain import returns

    if stateful_set is not None and returns(stateful_set):
        typer.echo("the pod comes back, so its tasks wait for it")
        return
    with own_status() as status:
        left = ended(address, timeout, status.show)
    if left:
        typer.echo(
            f"the instance has left; {counted(left, 'active task')} had not been migrated at the "
            f"last status; its log says more"
        )
    else:
        typer.echo("the instance has migrated its tasks and left")


@command()
def rack(
    node: Annotated[str, typer.Option(help="The node of this pod.")],
    folder: Annotated[Path, typer.Option(help="Folder for client.rack and client.tag.zone.")],
    label: Annotated[
        str, typer.Option(help="The node label with the rack or zone.")
    ] = "topology.kubernetes.io/zone",
) -> None:
    """In a pod: write the node's rack or zone as settings, for run --settings-folder."""
    from everflow.cli.drain import write_rack

    typer.echo(f"{node} is in {write_rack(node, label, folder, os.environ)}")


@command()
def autoscale(
    target: TargetAsForRun,
    application_id: Annotated[str, typer.Option(help="application.id.")],
    servers: Servers = LOCAL_BROKER,
    least: Annotated[int, typer.Option("--min", min=1, help="Instances at least.")] = 1,
    most: Annotated[int, typer.Option("--max", min=1, help="Instances at most.")] = 4,
    threads: Annotated[int, typer.Option(min=1, help="num.stream.threads of each instance.")] = 1,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for state and logs. Default: ./everflow-APPLICATION_ID."),
    ] = None,
    settings: SettingsAsForRun = None,
    settings_folder: RunSettingsFolders = None,
) -> None:
    """Run as many instances on this machine as their load requires. Ctrl-C stops all of them."""
    from everflow.autoscale import Autoscaler
    from everflow.cli.cluster import given_settings

    if most < least:
        raise ConfigError(f"--max {most} is below --min {least}.")
    named = given_settings(settings, settings_folder)
    for key in _OWN_OF_AUTOSCALE.keys() & named.keys():
        why = _OWN_OF_AUTOSCALE[key]
        raise ConfigError(f"{key} cannot be set for everflow autoscale: {why}.")
    place = {"application.id": application_id, "bootstrap.servers": servers}
    checked(target, {**named, **place})
    options = [part for one in settings or [] for part in ("--set", one)]
    options += [f"--settings-folder={one.absolute()}" for one in settings_folder or []]
    scaler = Autoscaler(
        target=target,
        options=[
            *("--application-id", application_id, "--bootstrap-servers", servers),
            *("--threads", str(threads), "--leave", *options),
        ],
        folder=folder or Path(f"everflow-{application_id}"),
        least=least,
        most=most,
        say=lambda line: typer.echo(f"{time_of_day()} {line}"),
    )
    stop = threading.Event()
    with owned() as signals, signals.told_to(lambda *_: stop.set()):
        scaler.run(stop)


def lag_rows(
    config: StreamsConfig, admin: ClusterAdmin, application_id: str
) -> list[dict[str, Any]]:
    """Topic, partition, committed, end and lag, worst first. FatalError where the group has
    committed nothing; RetriableError without an answer."""
    committed = admin.all_committed(application_id, ASK_S)
    if not committed:
        raise FatalError(
            f"group {application_id} has committed nothing at {config.bootstrap_servers}. Is this "
            f"its application.id, and has it processed a record?"
        )
    ends = admin.list_offsets(list(committed), "latest", "read_committed")
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "committed": offset,
            "end": ends[tp],
            "lag": max(0, ends[tp] - offset),
        }
        for tp, offset in committed.items()
    ]
    return sorted(rows, key=lambda row: (-row["lag"], row["topic"], row["partition"]))


def lag_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of `lag_rows`, and their sum."""
    from everflow.console.observed import table

    cells = [
        (row["topic"], str(row["partition"]), *(f"{row[name]:,}" for name in _NUMBERS))
        for row in rows
    ]
    total = sum(row["lag"] for row in rows)
    head = ("topic", "partition", *_NUMBERS)
    return [*table([head, *cells]), f"together {total:,} records behind"]


def checked(target: str, settings: Mapping[str, object]) -> StreamsConfig:
    """The configuration of instances that are started elsewhere, as processes or on other hosts.

    ConfigError, TopologyError: what no instance could run with. Each of them would say the same,
    some seconds later and again and again.
    """
    from everflow.cli.program import module_and_name, put_current_folder_on_path, require_name
    from everflow.config import StreamsConfig
    from everflow.kafka.client_settings import check_clients

    put_current_folder_on_path()
    require_name(*module_and_name(target))
    config = StreamsConfig(**settings)
    check_clients(config)
    return config
