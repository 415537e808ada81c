"""``everflow reset``: an application begins anew (KIP-171, KIP-443).

Here are its options and what it shows; `reset_plan` decides, `cluster_reset` does it (note 057).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everflow.cli.commands import (
    Form,
    OptionalServers,
    Output,
    RunSettings,
    SettingsFolders,
    Target,
    Yes,
    command,
    echo,
    require_yes,
    show,
)

if TYPE_CHECKING:
    from everflow.cli.reset_plan import Plan
    from everflow.config import StreamsConfig
    from everflow.console.status import StatusLine


Application = Annotated[
    str | None, typer.Option(help="application.id of the group, topics and state.")
]
To = Annotated[
    str,
    typer.Option(
        help="New position of the inputs: earliest, latest, a time such as 2026-11-26T08:00:00Z "
        "(UTC without a zone), or a duration before now, such as PT12H or P1DT6H.",
    ),
]
InputTopics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC,...",
        help="Reset only these inputs; the others keep their offsets, with empty state; "
        "repeatable. Default: all.",
    ),
]
StateDir = Annotated[Path | None, typer.Option(help="state.dir of this host.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="First remove all members from the group, also static ones (KIP-443)."
    ),
]


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Options of the command."""

    to: str
    inputs: list[str]
    dry_run: bool
    yes: bool
    force: bool
    output: Output


@command()
def reset(
    context: typer.Context,
    target: Target,
    application_id: Application = None,
    bootstrap_servers: OptionalServers = None,
    to: To = "earliest",
    input_topics: InputTopics = None,
    state_dir: StateDir = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    force: Force = False,
    output: Form = Output.text,
    settings: RunSettings = None,
    settings_folder: SettingsFolders = None,
) -> None:
    """Reset a stopped application: delete its internal topics and its state folder on this host,
    and set its input offsets to --to. This cannot be undone.

    Stop all instances first. If the reset is interrupted, call it again; until then a start is
    refused.
    """
    from everflow.cli.cluster import (
        merged_settings,
        named_as_typed,
        own_status,
        typed_options,
    )
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
    from everflow.cli.cluster_reset import ClusterReset
    from everflow.cli.program import loaded
    from everflow.cli.reset_plan import parse_position
    from everflow.clock import SystemClock
    from everflow.kafka.client_settings import check_clients
    from everflow.operators.optimization import optimized

    clock = SystemClock()
    position = parse_position(asked.to, clock.now_ms())
    check_clients(config)
    with (
        loaded(target, status) as topology,
        connected(config, status) as admin,
        ExitStack() as stack,
    ):
        reused = optimized(topology, config.optimization)
        reset = ClusterReset(topology=reused, config=config, admin=admin, status=status)
        with status.waiting("looking at topics, offsets and members", after_s=1.0):
            plan = reset.plan(position, asked.inputs)
        if plan.untouched:
            result = plan.plain(dry_run=asked.dry_run, done=False)
            show(asked.output, result, [_untouched(plan, config)])
            return
        if asked.dry_run:
            show(asked.output, plan.plain(dry_run=True, done=False), plan.lines())
            return
        if not asked.force:
            reset.require_alone(plan.members)
        folder = reset.held_folder(plan)
        if folder is not None:
            stack.callback(folder.close)
        for line in plan.lines():
            echo(line, err=asked.output is Output.json)
        require_yes(asked.yes, "Do it? This cannot be undone.", "nothing was changed")
        try:
            reset.carry_out(plan, folder, force=asked.force)
        except BaseException:
            typer.echo("the reset was cut off: call it again, it begins from the start", err=True)
            raise
        if asked.output is Output.json:
            show(asked.output, plan.plain(dry_run=False, done=True), [])
        typer.echo(_what_is_left(plan, config), err=True)


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
