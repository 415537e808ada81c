"""The options of the commands that watch instances.

``everflow status``, ``tasks``, ``lag``, ``drain``, ``rack`` and ``autoscale``.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from everflow.cli.cluster_options import (
    LOCAL_BROKER,
    ClientSettings,
    Debug,
    ErrorsForPeople,
    Servers,
    SettingsAsForRun,
    SettingsFolders,
)
from everflow.cli.formats import Form, Output, show
from everflow.errors import ConfigError
from everflow.logs import counted

Addresses = Annotated[
    list[str],
    typer.Argument(metavar="HOST:PORT...", help="Where instances are watched (http.listen)."),
]


RunSettingsFolders = Annotated[list[Path] | None, typer.Option(help="As for run; repeatable.")]


def register(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    """Add the commands to the ``everflow`` command."""
    for add in (_add_status, _add_tasks, _add_lag, _add_drain, _add_rack):
        add(app, errors_for_people)
    _add_autoscale(app, errors_for_people)


def _add_status(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def status(addresses: Addresses, output: Form = Output.text, debug: Debug = False) -> None:
        """Say how instances do: state, readiness, lag, tasks, how busy they are. Exit code 1 where
        one does not answer, is not ready, or has no answer from its brokers."""
        with errors_for_people(debug):
            from everflow.console.observed import ask, is_well, status_lines

            found = ask(addresses)
            show(output, found, status_lines(found))
            well = all(map(is_well, found))
        if not well:
            raise typer.Exit(1)


def _add_tasks(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def tasks(addresses: Addresses, output: Form = Output.text, debug: Debug = False) -> None:
        """List the tasks of instances: those in trouble first, then those furthest behind. Exit
        code 1 where an instance does not answer."""
        with errors_for_people(debug):
            from everflow.console.observed import answered, ask, task_rows, tasks_table, warnings

            found = ask(addresses)
            rows, silent = task_rows(found), [one for one in found if not answered(one)]
            show(output, [*rows, *silent], [*tasks_table(rows), *warnings(found)])
        if silent:
            raise typer.Exit(1)


def _add_lag(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def lag(
        application_id: Annotated[
            str, typer.Argument(metavar="APPLICATION_ID", help="application.id: the group.")
        ],
        servers: Servers = LOCAL_BROKER,
        output: Form = Output.text,
        settings: ClientSettings = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """List how far an application is behind, by partition, worst first. It asks the brokers, so
        no instance needs to run."""
        with errors_for_people(debug):
            from everflow.cli.cluster import client_config, connected, own_status
            from everflow.cli.watching.group_lag import lag_rows, lag_table

            config = client_config(servers, settings, settings_folder)
            with own_status() as status, connected(config, status) as admin:
                rows = lag_rows(config, admin, application_id)
            show(output, rows, lag_table(rows))


def _add_drain(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def drain(
        address: Annotated[
            str, typer.Argument(metavar="HOST:PORT", help="http.listen of one on this host.")
        ],
        stateful_set: Annotated[
            str | None,
            typer.Option(
                help="As the pre-stop hook of a pod of this StatefulSet: only where the pod does "
                "not come back."
            ),
        ] = None,
        timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for its end.")] = 120,
        debug: Debug = False,
    ) -> None:
        """Make an instance of this host hand its tasks over, leave its group, also as a static
        member, and end."""
        with errors_for_people(debug):
            from everflow.cli.cluster import own_status
            from everflow.cli.watching.drain import drain as ended
            from everflow.cli.watching.drain import returns

            if stateful_set is not None and returns(stateful_set):
                typer.echo("the pod comes back: its tasks wait for it")
                return
            with own_status() as status:
                left = ended(address, timeout, status.show)
            if left:
                typer.echo(
                    f"it has left; {counted(left, 'active task')} had not been handed over when it "
                    f"was seen last: its log says more"
                )
            else:
                typer.echo("it has handed its tasks over and left")


def _add_rack(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def rack(
        node: Annotated[str, typer.Option(help="The node of this pod.")],
        folder: Annotated[Path, typer.Option(help="Where to write client.rack and the like.")],
        label: Annotated[
            str, typer.Option(help="The node's label that says where it stands.")
        ] = "topology.kubernetes.io/zone",
        debug: Debug = False,
    ) -> None:
        """In a pod: write where its node stands as settings, for run --settings-folder."""
        with errors_for_people(debug):
            import os

            from everflow.cli.watching.kubernetes import write_rack

            typer.echo(f"{node} stands in {write_rack(node, label, folder, os.environ)}")


def _add_autoscale(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def autoscale(
        target: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="As for run.")],
        application_id: Annotated[str, typer.Option(help="application.id.")],
        servers: Servers = LOCAL_BROKER,
        least: Annotated[int, typer.Option("--min", min=1, help="Instances at least.")] = 1,
        most: Annotated[int, typer.Option("--max", min=1, help="Instances at most.")] = 4,
        threads: Annotated[
            int, typer.Option(min=1, help="num.stream.threads of each instance.")
        ] = 1,
        folder: Annotated[
            Path | None,
            typer.Option(
                help="For the instances' states and logs. Default: everflow-APPLICATION_ID here."
            ),
        ] = None,
        settings: SettingsAsForRun = None,
        settings_folder: RunSettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """Run as many instances on this machine as they say that there should be; Ctrl-C ends all
        in order."""
        with errors_for_people(debug):
            from everflow.autoscale.loop import Autoscaler
            from everflow.cli.cluster import assignments, settings_of
            from everflow.cli.watching.instance_checks import (
                OWN_OF_AUTOSCALE,
                checked,
                require_none_of,
            )
            from everflow.logs import time_of_day
            from everflow.stop_signals import owned

            if most < least:
                raise ConfigError(f"--max {most} is below --min {least}.")
            named = {**settings_of(settings_folder or []), **assignments("--set", settings)}
            require_none_of(OWN_OF_AUTOSCALE, named, "everflow autoscale")
            place = {"application.id": application_id, "bootstrap.servers": servers}
            checked(target, {**named, **place})
            given = [part for one in settings or [] for part in ("--set", one)]
            given += [f"--settings-folder={one.absolute()}" for one in settings_folder or []]
            scaler = Autoscaler(
                target=target,
                options=[
                    *("--application-id", application_id, "--bootstrap-servers", servers),
                    *("--threads", str(threads), "--leave", *given),
                ],
                folder=folder or Path(f"everflow-{application_id}"),
                least=least,
                most=most,
                say=lambda line: typer.echo(f"{time_of_day()} {line}"),
            )
            stop = threading.Event()
            with owned() as signals, signals.told_to(lambda *_: stop.set()):
                scaler.run(stop)
