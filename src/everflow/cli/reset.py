"""``everflow reset``: an application begins anew (KIP-171, KIP-443).

Here are its options and what it shows; `reset_plan` decides, `cluster_reset` does it (note 057).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from everflow.cli.commands import (
    Form,
    Output,
    ProgramSettings,
    Target,
    Yes,
    command,
    echo,
    require_yes,
    show,
)


@command()
def reset(
    context: typer.Context,
    target: Target,
    settings: ProgramSettings,
    to: Annotated[
        str,
        "New position of the inputs: earliest, latest, a time such as "
        "2026-11-26T08:00:00Z (UTC without a zone), or a duration before now, such as PT12H or "
        "P1DT6H.",
    ] = "earliest",
    input_topics: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC,...",
            help="Reset only these inputs; the others keep their offsets, with empty state; "
            "repeatable. Default: all.",
        ),
    ] = None,
    dry_run: Annotated[bool, "Only show the plan."] = False,
    yes: Yes = False,
    force: Annotated[
        bool, "First remove all members from the group, also static ones (KIP-443)."
    ] = False,
    output: Form = Output.text,
) -> None:
    """Reset a stopped application: delete its internal topics and its state folder on this host,
    and set its input offsets to --to. This cannot be undone.

    Stop all instances first. If the reset is interrupted, call it again; until then a start is
    refused.
    """
    from everflow.cli.cluster import connected, own_status
    from everflow.cli.cluster_reset import ClusterReset
    from everflow.cli.program import loaded
    from everflow.cli.reset_plan import parse_position
    from everflow.clock import SystemClock
    from everflow.config import StreamsConfig
    from everflow.kafka.client_settings import check_clients
    from everflow.operators.optimization import optimized

    with settings.merged(context) as merged, own_status() as status, ExitStack() as stack:
        config = StreamsConfig(**merged)
        position = parse_position(to, SystemClock().now_ms())
        check_clients(config)
        topology = optimized(stack.enter_context(loaded(target, status)), config.optimization)
        admin = stack.enter_context(connected(config, status))
        reset = ClusterReset(topology=topology, config=config, admin=admin, status=status)
        with status.waiting("looking at topics, offsets and members", after_s=1.0):
            plan = reset.plan(position, input_topics or [])
        if plan.untouched:
            text = (
                f"nothing to reset: {plan.application_id} has no committed offsets, no internal "
                f"topics and no state in {config.state_dir}. A first start begins where "
                f"auto.offset.reset says ({config.auto_offset_reset})."
            )
            show(output, plan.plain(dry_run=dry_run, done=False), [text])
            return
        if dry_run:
            show(output, plan.plain(dry_run=True, done=False), plan.lines())
            return
        if not force:
            reset.require_alone(plan.members)
        folder = reset.held_folder(plan)
        if folder is not None:
            stack.callback(folder.close)
        for line in plan.lines():
            echo(line, err=output is Output.json)
        require_yes(yes, "Do it? This cannot be undone.", "nothing was changed")
        try:
            reset.carry_out(plan, folder, force=force)
        except BaseException:
            typer.echo("the reset was cut off: call it again, it begins from the start", err=True)
            raise
        if output is Output.json:
            show(output, plan.plain(dry_run=False, done=True), [])
        typer.echo(
            f"{plan.application_id} was reset. On other hosts delete {plan.application_id} in "
            f"their state.dir ({config.state_dir} here) before they start; output topics were left "
            f"as they are.",
            err=True,
        )
