"""``everflow fleet`` and ``scale``: their options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from everflow.cli.cluster_options import (
    LOCAL_BROKER,
    Debug,
    ErrorsForPeople,
    Servers,
    SettingsAsForRun,
)
from everflow.cli.formats import Form, Output


def register(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    """Add the commands to the ``everflow`` command."""
    _add_fleet(app, errors_for_people)
    _add_scale(app, errors_for_people)


Target = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="As for run.")]
ApplicationId = Annotated[str, typer.Option(help="application.id.")]
Master = Annotated[
    str | None,
    typer.Option(help="The Spark cluster, e.g. spark://host:7077; default: spark-submit's."),
]
Instances = Annotated[int, typer.Option(min=1, help="How many; with --max: at least.")]
Most = Annotated[
    int | None,
    typer.Option(
        "--max", min=1, help="The fleet follows its load, up to so many; default: --instances."
    ),
]
Cores = Annotated[int, typer.Option(min=1, help="Cores of the executor of each instance.")]
Memory = Annotated[
    str,
    typer.Option(
        help="Memory of the executor itself (spark.executor.memory); the instance's processes come "
        "beside it."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="num.stream.threads of each instance; default: --cores."),
]
Folder = Annotated[
    str,
    typer.Option(
        help="On the hosts, for the instances' states and logs; variables of the executors' "
        "environment are filled in."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(help="A file or folder that the program needs beside its module; repeatable."),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where the hosts reach the driver; default: spark.driver.host, a free port.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; repeatable."),
]
SettingsFolders = Annotated[
    list[Path] | None, typer.Option(help="As for run, of this host; repeatable.")
]


def _add_fleet(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def fleet(
        target: Target,
        application_id: ApplicationId,
        servers: Servers = LOCAL_BROKER,
        master: Master = None,
        instances: Instances = 1,
        most: Most = None,
        cores: Cores = 1,
        memory: Memory = "512m",
        threads: Threads = None,
        folder: Folder = "~/.local/state/everflow-fleet",
        files: Files = None,
        listen: Listen = None,
        conf: Conf = None,
        settings: SettingsAsForRun = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """Run instances in the places of a Spark cluster, which finds another place where one is
        lost; Ctrl-C ends all in order, and they stay members for a restart."""
        with errors_for_people(debug):
            from everflow.cli.cluster import assignments
            from everflow.cli.watching.fleet_plan import given_settings, planned, ran

            ran(
                planned(
                    target,
                    given_settings(application_id, servers, settings, settings_folder),
                    least=instances,
                    most=most,
                    master=master,
                    cores=cores,
                    memory=memory,
                    threads=threads or cores,
                    folder=folder,
                    files=files or [],
                    listen=listen or "",
                    conf=assignments("--conf", conf),
                )
            )


def _add_scale(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    @app.command()
    def scale(
        address: Annotated[
            str, typer.Argument(metavar="HOST:PORT", help="What the fleet on this host said.")
        ],
        instances: Annotated[
            int | None,
            typer.Option(min=1, help="How many from now on; default: only show them."),
        ] = None,
        most: Most = None,
        output: Form = Output.text,
        debug: Debug = False,
    ) -> None:
        """Make a fleet larger or smaller, or show the places of its instances."""
        with errors_for_people(debug):
            from everflow.cli.watching.fleet_plan import asked_of, fleet_lines

            found = asked_of(address, instances, most)
        typer.echo(
            json.dumps(found, indent=2) if output is Output.json else "\n".join(fleet_lines(found))
        )
