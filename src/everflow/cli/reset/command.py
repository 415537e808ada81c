"""``everflow reset``: an application begins anew (KIP-171, KIP-443)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everflow.cli.cluster_options import (
    Debug,
    ErrorsForPeople,
    RunSettings,
    SettingsFolders,
    Target,
)
from everflow.cli.formats import Form, Output, echo, show
from everflow.cli.option_names import BOOTSTRAP_VARIABLE, named_as_typed, typed_options

if TYPE_CHECKING:
    from everflow.cli.reset.plan import Plan
    from everflow.config import StreamsConfig
    from everflow.console.status import StatusLine
    from everflow.topology.program import Topology

_EXIT_DECLINED = 1


Application = Annotated[
    str | None, typer.Option(help="application.id: whose group, topics and state.")
]
Brokers = Annotated[
    str | None, typer.Option(envvar=BOOTSTRAP_VARIABLE, help="host:port of one or more brokers.")
]
To = Annotated[
    str,
    typer.Option(
        help="Where inputs begin: earliest, latest, a time as 2026-11-26T08:00:00Z (UTC where it "
        "names no zone), or how long ago, as PT12H or P1DT6H.",
    ),
]
InputTopics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC,...",
        help="Only these inputs begin anew, the others go on where they are, with state that is "
        "empty; repeatable. Default: all.",
    ),
]
StateDir = Annotated[
    Path | None, typer.Option(help="state.dir: where the stores of this host lie.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Take members out of the group first, static ones too (KIP-443)."),
]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """How the command was called."""

    to: str
    inputs: list[str]
    dry_run: bool
    yes: bool
    force: bool
    output: Output


def register(app: typer.Typer, errors_for_people: ErrorsForPeople) -> None:
    """Add the command to the ``everflow`` command."""

    @app.command()
    def reset(
        context: typer.Context,
        target: Target,
        application_id: Application = None,
        bootstrap_servers: Brokers = None,
        to: To = "earliest",
        input_topics: InputTopics = None,
        state_dir: StateDir = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        force: Force = False,
        output: Form = Output.text,
        settings: RunSettings = None,
        settings_folder: SettingsFolders = None,
        debug: Debug = False,
    ) -> None:
        """Let a stopped application begin anew: its internal topics and its state folder on this
        host are deleted, its inputs begin where --to says. Nothing of it can be brought back.

        Stop all instances before. May be called again where it was cut off; a start is refused
        until then.
        """
        with errors_for_people(debug):
            from everflow.cli.cluster import merged_settings, own_status
            from everflow.config import StreamsConfig

            options: dict[str, object | None] = {
                "application.id": application_id,
                "bootstrap.servers": bootstrap_servers,
                "state.dir": str(state_dir) if state_dir else None,
            }
            merged = merged_settings(settings, settings_folder, options)
            with named_as_typed(typed_options(context, options)), own_status() as status:
                asked = _Asked(
                    to=to,
                    inputs=input_topics or [],
                    dry_run=dry_run,
                    yes=yes,
                    force=force,
                    output=output,
                )
                _reset(target, StreamsConfig(**merged), status, asked)


def _reset(target: str, config: StreamsConfig, status: StatusLine, asked: _Asked) -> None:
    from everflow.cli.cluster import connected
    from everflow.cli.reset.cluster_reset import ClusterReset
    from everflow.cli.reset.plan import parse_position
    from everflow.clock import SystemClock
    from everflow.kafka.client_settings import check_clients
    from everflow.operators.optimization import optimized

    clock = SystemClock()
    position = parse_position(asked.to, clock.now_ms())
    check_clients(config)
    topology = _loaded(target, status)
    with connected(config, status) as admin, ExitStack() as held:
        reused = optimized(topology, config.optimization)
        reset = ClusterReset(topology=reused, config=config, admin=admin, status=status)
        with status.waiting("looking at topics, offsets and members", after_s=1.0):
            plan = reset.look(position, asked.inputs)
        if plan.untouched:
            told = plan.plain(dry_run=asked.dry_run, done=False)
            show(asked.output, told, [_untouched(plan, config)])
            return
        if asked.dry_run:
            show(asked.output, plan.plain(dry_run=True, done=False), plan.lines())
            return
        if not asked.force:
            reset.require_alone(plan.members)
        folder = reset.held_folder(plan)
        if folder is not None:
            held.callback(folder.close)
        for line in plan.lines():
            echo(line, err=asked.output is Output.json)
        if not asked.yes and not typer.confirm("Do it? This cannot be undone.", err=True):
            typer.echo("nothing was changed", err=True)
            raise typer.Exit(_EXIT_DECLINED)
        try:
            reset.carry_out(plan, folder, force=asked.force)
        except BaseException:
            typer.echo("the reset was cut off: call it again, it begins from the start", err=True)
            raise
        if asked.output is Output.json:
            show(asked.output, plan.plain(dry_run=False, done=True), [])
        typer.echo(_what_is_left(plan, config), err=True)


def _loaded(target: str, status: StatusLine) -> Topology:
    from everflow.cli.program import LOAD_SILENT_S, load_topology
    from everflow.retry import shown_by
    from everflow.spark.session import get_context

    with (
        shown_by(status.waiting),
        status.waiting(f"loading {target}", after_s=LOAD_SILENT_S),
    ):
        return load_topology(target, start_spark=get_context)


def _untouched(plan: Plan, config: StreamsConfig) -> str:
    return (
        f"nothing to reset: {plan.application_id} has no committed offsets, no internal topics and "
        f"no state in {config.state_dir}. A first start begins where auto.offset.reset says "
        f"({config.auto_offset_reset})."
    )


def _what_is_left(plan: Plan, config: StreamsConfig) -> str:
    return (
        f"{plan.application_id} was reset. On other hosts delete {plan.application_id} in their "
        f"state.dir ({config.state_dir} here) before they start; output topics were left as they "
        f"are."
    )
