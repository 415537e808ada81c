"""Puts the commands together; has those that are a few lines around a part of the package.

Exit codes: docs/STOPPING.md.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from everflow import __version__
from everflow.cli import (
    check,
    connect_commands,
    dlq_commands,
    migrate,
    new_project,
    state,
    topics,
    watch,
)
from everflow.cli.commands import (
    EXIT_FAILED,
    Form,
    Output,
    ProgramSettings,
    Target,
    Yes,
    app,
    command,
    connected,
    echo,
    own_status,
    require_yes,
    show,
)
from everflow.errors import ConfigError, SetupError
from everflow.stop_signals import owned

__all__ = ["app"]

_ADDED = (check, connect_commands, dlq_commands, migrate, new_project, state, topics, watch)
"""Modules that added their commands when they were imported."""


class Guarantee(str, Enum):
    at_least_once = "at_least_once"
    exactly_once_v2 = "exactly_once_v2"


class DescribeFormat(str, Enum):
    text = "text"
    json = "json"
    mermaid = "mermaid"


Threads = Annotated[
    int | None, typer.Option(min=1, help="num.stream.threads; default: one per core.")
]


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def bytes_of(text: str) -> int:
    """``1500m`` -> bytes. ConfigError for what is no such size."""
    found = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if found is None:
        raise ConfigError(
            f"--memory {text!r}: write it as 1g, 1500m or a number of bytes", code="EF-USAGE"
        )
    number, unit = found.groups()
    return int(number) * _UNITS[unit]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def everflow(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """everflow: Kafka Streams for PySpark."""


@command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@command()
def run(
    context: typer.Context,
    target: Target,
    settings: ProgramSettings,
    guarantee: Annotated[Guarantee | None, "processing.guarantee."] = None,
    threads: Threads = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="max.memory.bytes, as 1g, 1500m or a number of bytes: the memory of all processes "
            "of the instance together."
        ),
    ] = None,
    create_new_topics: Annotated[
        bool | None,
        typer.Option(
            "--create-new-topics",
            help="create.new.topics: create internal topics that are new in this program.",
            show_default=False,
        ),
    ] = None,
    leave: Annotated[
        bool | None,
        typer.Option(
            "--leave/--stay",
            help="When stopped: leave the group, and other instances take over the tasks; or stay "
            "a member, and the tasks wait for the restart. Default: leave; stay with "
            "group.instance.id.",
            show_default=False,
        ),
    ] = None,
    *,
    debug: bool,
    more: list[str],
) -> int:
    """Run a topology until Ctrl-C, SIGTERM or SIGHUP. Then the instance commits the work in
    progress and ends; --leave and --stay decide what happens to its tasks.

    The program is read once, at the start. A change of its file takes effect at the next start.
    """
    from everflow.memory import budget_of
    from everflow.spark.session import launch_ahead, plan_heap

    options = {
        "processing.guarantee": guarantee.value if guarantee else None,
        "num.stream.threads": threads,
        "max.memory.bytes": None if memory is None else bytes_of(memory),
        "create.new.topics": create_new_topics,
    }
    with settings.merged(context, **options) as merged:
        plan_heap(budget_of(merged.get("max.memory.bytes"), merged.get("num.stream.threads")).heap)
        launch_ahead()  # Spark's JVM starts beside the imports, which take a second
        from everflow.cli.run import run_program

        return run_program(
            target, merged, console=Console(), debug=debug, leave_group=leave, failed=more.append
        )


@command()
def describe(
    target: Target,
    form: Annotated[
        DescribeFormat, typer.Option("--format", help="How to print it.")
    ] = DescribeFormat.text,
    physical: Annotated[bool, "Print where each node is computed, and why."] = False,
) -> None:
    """Print a topology, by default in Kafka Streams' own text format. Starts Spark only if the
    program has Columns."""
    from everflow.cli.program import loaded
    from everflow.instance.thread.columns import physical_description
    from everflow.topology import describe as described

    forms = {
        DescribeFormat.text: described.as_text,
        DescribeFormat.json: described.as_json,
        DescribeFormat.mermaid: described.as_mermaid,
    }
    physical_forms = {
        DescribeFormat.text: described.physical_text,
        DescribeFormat.json: described.physical_json,
    }
    if physical and form not in physical_forms:
        raise ConfigError(f"--physical is shown as text or json, not as {form.value}.")
    with own_status() as status, loaded(target, status) as topology:
        shown = (
            physical_description(topology, physical_forms[form])
            if physical
            else forms[form](topology)
        )
    typer.echo(shown.rstrip())


@command()
def broker(
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Default: a free one.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        "Folder that keeps topics between runs. Default: a temporary one, deleted at the end.",
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:PARTITIONS", help="Create a topic, e.g. orders:4; repeatable."),
    ] = None,
    security: Annotated[
        bool,
        "Accept clients over TLS with a password only. The settings that they need are "
        "written to a file, whose path is printed.",
    ] = False,
) -> None:
    """Run a single-node Kafka broker for development; Ctrl-C stops it."""
    from everflow.cli.topics import create_topics, parse_topics
    from everflow.retry import shown_by
    from everflow.testing.broker import EmbeddedBroker
    from everflow.testing.broker_security import BrokerSecurity, write_client_settings

    wanted = parse_topics(topic or [])
    doors = BrokerSecurity() if security else None
    ended = threading.Event()
    with ExitStack() as stack:
        with shown_by(own_status().waiting):
            server = stack.enter_context(
                EmbeddedBroker(data_dir, port=port, security=doors, progress=typer.echo)
            )
        signals = stack.enter_context(owned())
        create_topics(server.inside_servers, wanted, typer.echo)
        typer.echo(f"broker is up, bootstrap servers: {server.bootstrap_servers}")
        if doors is not None:
            file = write_client_settings(doors, server.security_folder)
            typer.echo(f"clients need the settings of {file}")
        typer.echo(
            f"data: {server.data_folder}{'' if data_dir else ' (deleted at the end)'}; Ctrl-C "
            f"stops it"
        )
        with signals.reported_to(lambda *_: ended.set()):
            while not ended.wait(0.5):
                if not server.running:
                    raise SetupError(
                        f"the broker ended by itself; see {server.log_path}", code="EF-BROKER"
                    )
            typer.echo("stopping: the broker ends")
    typer.echo("broker stopped")


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

    Stop all instances first. If the reset is interrupted, run it again, and start no instance
    before it has ended.
    """
    from everflow.cli.cluster_reset import ClusterReset, parse_position
    from everflow.cli.program import loaded
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
        folder = reset.locked_folder(plan)
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


class Demo(str, Enum):
    flights = "flights"
    enrichment = "enrichment"


@command()
def demo(
    shows: Annotated[
        Demo,
        typer.Argument(
            metavar="[flights|enrichment]",
            help="flights: counted and averaged. enrichment: joined with airlines, weather and "
            "planes.",
        ),
    ] = Demo.flights,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Also write the results as JSON.",
        ),
    ] = None,
    guarantee: Annotated[Guarantee, "processing.guarantee."] = Guarantee.exactly_once_v2,
    threads: Threads = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Number of flights; default: all 336,776."),
    ] = None,
    instances: Annotated[
        int,
        typer.Option(
            min=1,
            max=2,
            help="2 (flights only): a second instance joins, works and leaves.",
        ),
    ] = 1,
    debug: bool = False,
) -> int:
    """Stream real flights through an embedded broker, and compare the results with those of a batch
    computation over the same flights."""
    options: dict[str, Any] = {
        "guarantee": guarantee.value,
        "threads": threads,
        "limit": limit,
        "json_file": json_file,
        "console": Console(),
        "debug": debug,
    }
    if shows is Demo.flights:
        from everflow_demo.run import run_demo

        matches = run_demo(**options, instances=instances).matches_batch
    elif instances > 1:
        raise ConfigError("the enrichment demo has one instance: leave out --instances")
    else:
        from everflow_demo.enrichment.run import run_enrichment

        matches = run_enrichment(**options).matches_batch
    return 0 if matches else EXIT_FAILED


@command()
def setup(
    broker: Annotated[bool, "Also prepare the embedded broker."] = False,
) -> None:
    """Prepare a machine or an image: create a class archive (100 MB), with which Spark's JVM starts
    in about half the time; with --broker also download the broker's jars and create its archive.

    The files go to everflow's cache ($XDG_CACHE_HOME/everflow, by default ~/.cache/everflow). Files
    that exist are kept.
    """
    from everflow.jvm import find_java, make_archive, resolve_jars

    typer.echo(f"Java: {find_java()}")
    with own_status() as status:
        if broker:
            with status.waiting("fetching the jars of broker"):
                resolve_jars("broker")
        for conf in ("spark", "broker") if broker else ("spark",):
            began = time.monotonic()
            with status.waiting(f"making the class archive of {conf}"):
                problem = make_archive(conf)
            done = f"ready ({time.monotonic() - began:.0f} s)"
            if problem is not None:
                done = f"not created, so {conf} starts without it:\n{problem}"
            typer.echo(f"{conf}: class archive {done}")


@dataclass(frozen=True, kw_only=True)
class ScalingStep:
    """Options as `everflow_simulation.Step` has them."""

    members: Annotated[int, "Instances that run before the change."] = 3
    add: Annotated[int, "Instances that join, with empty disks."] = 0
    remove: Annotated[int, "Instances that stop cleanly (they drain first)."] = 0
    crash: Annotated[int, "Instances that are killed."] = 0
    tasks: Annotated[int, "Stateful tasks: partitions of the stateful sub-topologies."] = 24
    stateless_tasks: Annotated[int, "Tasks without state."] = 0
    state_records: Annotated[int, "Records in one task's changelog."] = 1_000_000
    input_rate: Annotated[float, "Records a second that arrive at each task."] = 100.0
    threads: Annotated[int, "num.stream.threads of every instance."] = 2
    standbys: Annotated[int, "num.standby.replicas."] = 0
    warmups: Annotated[int, "max.warmup.replicas."] = 2
    acceptable_lag: Annotated[int, "acceptable.recovery.lag, in records."] = 10_000
    session_timeout_s: Annotated[
        float, typer.Option("--session-timeout", help="session.timeout.ms, in seconds.")
    ] = 45.0
    static: Annotated[bool, "Instances have a group.instance.id."] = False
    seed: Annotated[int, "The same seed gives the same result."] = 1


@command()
def simulate(
    step: ScalingStep,
    restore_rate: Annotated[
        float | None,
        "Records a second that one thread restores for an active task; default: 400,000.",
    ] = None,
    follow_rate: Annotated[
        float | None,
        "Records a second at which one instance warms tasks up; default: the restore rate.",
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take both rates from the JSON file of `./run bench restore --json`.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Also write the result as JSON.",
        ),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a log of all simulated events.")
    ] = None,
    debug: bool = False,
) -> None:
    """Predict a scaling step: migrated tasks, warm-ups, rebalances, pauses, time until balanced.
    Needs no broker."""
    if not debug:
        logging.getLogger("everflow").setLevel(logging.ERROR)
    from everflow_simulation import Step
    from everflow_simulation import command as simulation

    rates = simulation.rates(restore_rate, follow_rate, measured)
    planned = Step(**vars(step), restore_rate=rates.restore, follow_rate=rates.follow)
    simulation.run(planned, simulation.Files(json_file, history), Console())
