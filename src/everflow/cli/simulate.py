"""``everflow simulate``: forecasts a scaling step with the real assignor and membership."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from everflow.cli.cluster_options import Debug, ErrorsForPeople

# Options whose line would be too long below.
Remove = Annotated[int, typer.Option(help="Instances that stop cleanly (they drain first).")]
Tasks = Annotated[
    int, typer.Option(help="Stateful tasks: partitions of the stateful sub-topologies.")
]
StateRecords = Annotated[int, typer.Option(help="Records in one task's changelog.")]
RestoreRate = Annotated[
    float | None,
    typer.Option(
        help="Records a second that one thread restores for an active task; default: 400,000."
    ),
]
FollowRate = Annotated[
    float | None,
    typer.Option(
        help="Records a second at which one instance warms tasks up; default: the restore rate."
    ),
]
Measured = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Take both rates from the JSON file of `./run bench restore --json`."
    ),
]
InputRate = Annotated[float, typer.Option(help="Records a second that arrive at each task.")]
AcceptableLag = Annotated[int, typer.Option(help="acceptable.recovery.lag, in records.")]
SessionTimeout = Annotated[float, typer.Option(help="session.timeout.ms, in seconds.")]
Static = Annotated[bool, typer.Option("--static", help="Instances have a group.instance.id.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write the result as JSON.")
]
HistoryFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write everything that happened.")
]


def register(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    """Add the command to the ``everflow`` command."""

    @app.command()
    def simulate(
        members: Annotated[int, typer.Option(help="Instances that run before the change.")] = 3,
        add: Annotated[int, typer.Option(help="Instances that join, with empty disks.")] = 0,
        remove: Remove = 0,
        crash: Annotated[int, typer.Option(help="Instances that are killed.")] = 0,
        tasks: Tasks = 24,
        stateless_tasks: Annotated[int, typer.Option(help="Tasks without state.")] = 0,
        state_records: StateRecords = 1_000_000,
        restore_rate: RestoreRate = None,
        follow_rate: FollowRate = None,
        measured: Measured = None,
        input_rate: InputRate = 100.0,
        threads: Annotated[int, typer.Option(help="num.stream.threads of every instance.")] = 2,
        standbys: Annotated[int, typer.Option(help="num.standby.replicas.")] = 0,
        warmups: Annotated[int, typer.Option(help="max.warmup.replicas.")] = 2,
        acceptable_lag: AcceptableLag = 10_000,
        session_timeout: SessionTimeout = 45.0,
        static: Static = False,
        seed: Annotated[int, typer.Option(help="Same seed, same history.")] = 1,
        json_file: JsonFile = None,
        history: HistoryFile = None,
        debug: Debug = False,
    ) -> None:
        """Show what a scaling step would do: moves, warm-ups, rebalances, pauses, time until
        balanced. Needs no broker."""
        with errors_for_people(debug):
            if not debug:
                logging.getLogger("everflow").setLevel(logging.ERROR)
            from everflow_simulation import command
            from everflow_simulation.forecast import Step

            rates = command.rates(restore_rate, follow_rate, measured)
            step = Step(
                members=members,
                add=add,
                remove=remove,
                crash=crash,
                tasks=tasks,
                stateless_tasks=stateless_tasks,
                state_records=state_records,
                restore_rate=rates.restore,
                follow_rate=rates.follow,
                input_rate=input_rate,
                threads=threads,
                standbys=standbys,
                warmups=warmups,
                acceptable_lag=acceptable_lag,
                session_timeout_s=session_timeout,
                static=static,
                seed=seed,
            )
            command.run(step, command.Files(json_file, history), Console())
