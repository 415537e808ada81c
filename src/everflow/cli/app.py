"""Puts the commands together.

Heavy modules (Spark, Kafka clients) are imported by the command that needs them: ``everflow
--help`` answers at once.

Exit codes: 0 done, also when a signal ended in order what ran; 1 failed while running; 2 wrong
usage, configuration, program or set-up; 129, 130 and 143: SIGHUP, SIGINT or SIGTERM came before it
ran (docs/STOPPING.md).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from everflow import __version__, logs
from everflow.cli import dlq_commands, machine_setup, new_project, record_commands, simulate, topics
from everflow.cli.cluster_options import Debug, RunSettings, SettingsFolders, Target
from everflow.cli.option_names import BOOTSTRAP_VARIABLE, named_as_typed, typed_options
from everflow.cli.reset import command as reset_command
from everflow.cli.watching import fleet_commands, state_command, watch_commands
from everflow.console.terminal import error_text
from everflow.errors import ConfigError, EverflowError, SetupError, TopologyError
from everflow.stop_signals import EXIT_BASE, owned, write_nowhere

_UsageError: Any = typer.BadParameter.__bases__[0]
"""What Typer, and Click before it, raise for an unknown option or command, a missing argument, a
wrong value."""
EXIT_USAGE = 2


class Commands(TyperGroup):
    """The commands of ``everflow``."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            if type(error).show is _UsageError.show:
                wrong = misused(error)
                typer.echo(error_text(wrong, wrong.code), err=True)
            else:  # a group without a command shows its help
                error.show()
            code = EXIT_USAGE
        except typer.Abort:
            typer.echo("aborted", err=True)
            code = 1
        if standalone_mode:
            sys.exit(code)
        return code


def misused(error: Any) -> ConfigError:
    """What was wrong, and the command whose help says how it is written."""
    text = (
        str(error.format_message())
        .replace("Value error, ", "")
        .replace("Input should be", "it should be")
    )
    command = error.ctx.command_path if error.ctx is not None else "everflow"
    return ConfigError(f"{text}\n{command} --help shows how it is written", code="EF-USAGE")


EXIT_FAILED = 1

app = typer.Typer(
    cls=Commands,
    help="everflow: Kafka Streams for PySpark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Guarantee(str, Enum):
    """Values of ``processing.guarantee``."""

    at_least_once = "at_least_once"
    exactly_once_v2 = "exactly_once_v2"


class DescribeFormat(str, Enum):
    """Forms of a described topology."""

    text = "text"
    json = "json"
    mermaid = "mermaid"


Threads = Annotated[
    int | None, typer.Option(min=1, help="num.stream.threads; default: one per core.")
]


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


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command()
def run(
    context: typer.Context,
    target: Target,
    application_id: Annotated[
        str | None, typer.Option(help="application.id: names the group and the internal topics.")
    ] = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(envvar=BOOTSTRAP_VARIABLE, help="host:port of one or more brokers."),
    ] = None,
    guarantee: Annotated[Guarantee | None, typer.Option(help="processing.guarantee.")] = None,
    threads: Threads = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="state.dir: where the stores live.")
    ] = None,
    create_new_topics: Annotated[
        bool | None,
        typer.Option(
            "--create-new-topics",
            help="create.new.topics: the application has run, and the program now has stores or "
            "repartition topics that it never had.",
            show_default=False,
        ),
    ] = None,
    settings: RunSettings = None,
    settings_folder: SettingsFolders = None,
    leave: Annotated[
        bool | None,
        typer.Option(
            "--leave/--stay",
            help="When stopped: hand the tasks over and leave the group, or stay in it silently, "
            "the tasks waiting for this "
            "instance's return. Default: leave; with group.instance.id stay.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Run a topology until it is stopped (Ctrl-C, SIGTERM, SIGHUP commit; --leave/--stay says what
    becomes of the tasks).

    The program is read once, at the start, from the file that is named then: a change of it takes
    effect at the next start.
    """
    with _errors_for_people(debug) as more:
        _launch_spark_ahead()
        from everflow.cli.cluster import merged_settings
        from everflow.cli.run import run_program

        options: dict[str, object | None] = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap_servers,
            "processing.guarantee": guarantee.value if guarantee else None,
            "num.stream.threads": threads,
            "state.dir": str(state_dir) if state_dir else None,
            "create.new.topics": create_new_topics,
        }
        merged = merged_settings(settings, settings_folder, options)
        with named_as_typed(typed_options(context, options)):
            code = run_program(
                target,
                merged,
                console=Console(),
                debug=debug,
                leave_group=leave,
                failed=more.append,
            )
    raise typer.Exit(code)


def _launch_spark_ahead() -> None:
    """Spark's JVM starts beside the imports, which take a second."""
    from everflow.spark.session import launch_ahead

    launch_ahead()


@app.command()
def describe(
    target: Target,
    form: Annotated[
        DescribeFormat, typer.Option("--format", help="How to print it.")
    ] = DescribeFormat.text,
    physical: Annotated[
        bool, typer.Option("--physical", help="Where each node is computed instead, and why.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Print a topology (text: Kafka Streams' own format). Starts Spark only if the program has
    Columns."""
    with _errors_for_people(debug):
        from everflow.cli.cluster import own_status
        from everflow.cli.program import LOAD_SILENT_S, load_topology
        from everflow.retry import shown_by
        from everflow.runtime.thread.columns import physical_description
        from everflow.spark.session import get_context
        from everflow.topology import describe as described
        from everflow.topology import describe_physical as computed

        forms = {
            DescribeFormat.text: described.as_text,
            DescribeFormat.json: described.as_json,
            DescribeFormat.mermaid: described.as_mermaid,
        }
        roads = {DescribeFormat.text: computed.as_text, DescribeFormat.json: computed.as_json}
        if physical and form not in roads:
            raise ConfigError(f"--physical is shown as text or json, not as {form.value}.")
        with (
            own_status() as status,
            shown_by(status.waiting),
            status.waiting(f"loading {target}", after_s=LOAD_SILENT_S),
        ):
            topology = load_topology(target, start_spark=get_context)
            shown = (
                physical_description(topology, roads[form]) if physical else forms[form](topology)
            )
        typer.echo(shown.rstrip())


@app.command()
def broker(
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: a free one.")] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keeps topics between runs. Default: a temporary folder, deleted at the end."
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:PARTITIONS", help="Create a topic, e.g. orders:4; repeatable."),
    ] = None,
    security: Annotated[
        bool,
        typer.Option(
            "--security",
            help="Clients come in over TLS with a password only; the settings that they need are "
            "written to a file, which is named.",
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Run a single-node Kafka broker for development; Ctrl-C stops it."""
    with _errors_for_people(debug):
        from everflow.cli.broker_topics import create_topics, parse_topics
        from everflow.cli.cluster import own_status
        from everflow.retry import shown_by
        from everflow.testing.broker import EmbeddedBroker
        from everflow.testing.broker_security import BrokerSecurity, write_client_settings

        topics = parse_topics(topic or [])
        doors = BrokerSecurity() if security else None
        ended = threading.Event()
        with ExitStack() as stack:
            with shown_by(own_status().waiting):
                server = stack.enter_context(
                    EmbeddedBroker(data_dir, port=port, security=doors, progress=typer.echo)
                )
            signals = stack.enter_context(owned())
            create_topics(server.inside_servers, topics, typer.echo)
            typer.echo(f"broker is up, bootstrap servers: {server.bootstrap_servers}")
            if doors is not None:
                file = write_client_settings(doors, server.security_folder)
                typer.echo(f"clients need the settings of {file}")
            typer.echo(
                f"data: {server.data_folder}{'' if data_dir else ' (deleted at the end)'}; Ctrl-C "
                f"stops it"
            )
            with signals.told_to(lambda *_: ended.set()):
                while not ended.wait(0.5):
                    if not server.running:
                        raise SetupError(
                            f"the broker ended by itself; see {server.log_path}", code="EF-BROKER"
                        )
                typer.echo("stopping: the broker is told to end")
        typer.echo("broker stopped")


class Demo(str, Enum):
    """What the demo shows."""

    flights = "flights"
    enrichment = "enrichment"


@app.command()
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
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the results as JSON.")
    ] = None,
    guarantee: Annotated[
        Guarantee, typer.Option(help="processing.guarantee.")
    ] = Guarantee.exactly_once_v2,
    threads: Threads = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first so many flights; default: all 336,776."),
    ] = None,
    instances: Annotated[
        int,
        typer.Option(
            min=1,
            max=2,
            help="2: the flights come at a pace; a second instance joins, works, and leaves again.",
        ),
    ] = 1,
    debug: Debug = False,
) -> None:
    """Stream real flights through an embedded broker and compare every result with a plain
    batch."""
    with _errors_for_people(debug):
        given: dict[str, Any] = {
            "guarantee": guarantee.value,
            "threads": threads,
            "limit": limit,
            "json_file": json_file,
            "console": Console(),
            "debug": debug,
        }
        if shows is Demo.flights:
            from everflow_demo.run import run_demo

            matches = run_demo(**given, instances=instances).matches_batch
        elif instances > 1:
            raise ConfigError("the enrichment demo has one instance: leave out --instances")
        else:
            from everflow_demo.enrichment.run import run_enrichment

            matches = run_enrichment(**given).matches_batch
    raise typer.Exit(0 if matches else EXIT_FAILED)


@contextmanager
def _on_stderr() -> Iterator[None]:
    """All that everflow and Spark say."""
    with logs.lines_to(
        lambda line: typer.echo(f"{logs.time_of_day()} {line}", err=True), verbose=True
    ):
        yield


@contextmanager
def _errors_for_people(debug: bool) -> Iterator[list[str]]:
    """Turn errors into one text on stderr and an exit code; with ``debug`` let the traceback
    through. The lines that the block adds to what it is given end the text."""
    more: list[str] = []
    logs.install()
    try:
        with owned() as signals, _on_stderr() if debug else nullcontext():
            try:
                yield more
            except Exception:
                if (
                    signals.interrupted
                ):  # what it interrupted, a client's C code for one, may surface as any error
                    signals.check()
                raise
    except EverflowError as error:
        if debug:
            raise
        typer.echo(error_text(error, error.code, more), err=True)
        usage = isinstance(error, ConfigError | TopologyError | SetupError)
        raise typer.Exit(EXIT_USAGE if usage else EXIT_FAILED) from None
    except KeyboardInterrupt as interrupt:
        number = getattr(interrupt, "number", signal.SIGINT)
        typer.echo(
            f"stopping: nothing runs yet that has to end in order ({signal.Signals(number).name})",
            err=True,
        )
        raise typer.Exit(EXIT_BASE + number) from None
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:  # who reads the output has had enough: `everflow consume ... | head -3`
        write_nowhere(sys.stdout.fileno())  # Python flushes it at its end
        raise typer.Exit(EXIT_BASE + signal.SIGPIPE) from None
    except Exception as error:
        if debug:
            raise
        text = f"{type(error).__name__}: {error}\nThis should not happen; --debug shows where."
        typer.echo(error_text(RuntimeError(text), "EF-INTERNAL", more), err=True)
        raise typer.Exit(EXIT_FAILED) from None


_GROUPS = (
    new_project,
    topics,
    record_commands,
    dlq_commands,
    simulate,
    machine_setup,
    watch_commands,
    state_command,
    reset_command,
    fleet_commands,
)
for group in _GROUPS:
    group.register(app, _errors_for_people)
