"""The command ``everflow`` itself, and what its commands share."""

from __future__ import annotations

import inspect
import json
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_type_hints

import typer
from typer.core import TyperGroup

from everflow import logs
from everflow.errors import (
    ApplicationMigratedError,
    ConfigError,
    EverflowError,
    SetupError,
    TopologyError,
)
from everflow.setting_checks import is_secret
from everflow.stop_signals import EXIT_BASE, StopRequestedError, owned, write_nowhere
from everflow.user_program import printable

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.records import CommittedOffset, TopicPartition

    Committed = Mapping[TopicPartition, CommittedOffset]
    from everflow.console.status import StatusLine
    from everflow.kafka.admin import ClusterAdmin

_UsageError: Any = typer.BadParameter.__bases__[0]
"""What Typer and Click raise for an unknown option or command, a missing or a wrong value."""
EXIT_FAILED, EXIT_USAGE = 1, 2
LOCAL_BROKER = "localhost:9092"
BOOTSTRAP_VARIABLE = "EVERFLOW_BOOTSTRAP_SERVERS"
F = TypeVar("F", bound=Callable[..., int | None])


_ORDER = (
    *(
        "version",
        "run",
        "describe",
        "check",
        "migrate",
        "broker",
        "demo",
        "new",
        "dlq",
        "topic",
        "fleet",
        "scale",
    ),
    *("produce", "consume", "reset", "state", "status", "tasks", "lag", "connect", "drain", "rack"),
    *("autoscale", "setup", "simulate"),
)


class Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)

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
            code = super().main(
                args,
                prog_name,
                complete_var,
                False,
                windows_expand_args,
                **extra,
            )
        except _UsageError as error:
            if type(error).show is _UsageError.show:
                wrong = _misused(error)
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


def error_text(error: BaseException, code: str, more: Sequence[str] = ()) -> str:
    """``error: [code] message``, other lines and ``more`` indented, without control characters."""
    first, *rest = printable(str(error)).splitlines() or [type(error).__name__]
    further = (*rest, *printable("\n".join(more)).splitlines())
    return "\n".join([f"error: [{code}] {first}", *(f"  {line.strip()}" for line in further)])


def _misused(error: Any) -> ConfigError:
    text = (
        str(error.format_message())
        .replace("Value error, ", "")
        .replace("Input should be", "it should be")
    )
    command = error.ctx.command_path if error.ctx is not None else "everflow"
    return ConfigError(f"{text}\n{command} --help shows how it is written", code="EF-USAGE")


app = typer.Typer(
    cls=Commands,
    help="everflow: Kafka Streams for PySpark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers", envvar=BOOTSTRAP_VARIABLE, help="host:port of one or more brokers."
    ),
]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A client's setting, e.g. security.protocol=SASL_SSL; repeatable.",
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:NAME",
        help="A StreamsBuilder, a Topology, or a function that returns one of them, in a module "
        "or a file: FILE.py:NAME.",
    ),
]
TargetAsForRun = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="As for run.")]
SettingsFolders = Annotated[
    list[Path] | None,
    "A folder with a file for each setting: the file's name is the key, its text the "
    "value (a mounted Secret); repeatable. --set overrides it, a later folder an earlier one.",
]
Debug = Annotated[
    bool,
    typer.Option(
        "--debug", help="Show tracebacks, everflow's log from level INFO, and Spark's output."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


REACH_S = 20.0
_SILENT_S = 1.0
_INSTEAD = {
    "--set": "Write the value into a file that is called as the setting, which only you can read, "
    "and give its folder: --settings-folder FOLDER.",
    "--conf": "Write it into conf/spark-defaults.conf of Spark, which only you can read.",
}
_CHECK = (
    "--bootstrap-servers (or EVERFLOW_BOOTSTRAP_SERVERS), that the broker runs, and security "
    "settings (--set, --settings-folder). For development `everflow broker` starts one"
)
OPTIONS = {
    "application.id": "--application-id",
    "bootstrap.servers": "--bootstrap-servers",
    "processing.guarantee": "--guarantee",
    "num.stream.threads": "--threads",
    "max.memory.bytes": "--memory",
    "state.dir": "--state-dir",
    "create.new.topics": "--create-new-topics",
}
_NEEDED = {
    "application.id": (
        "--application-id is missing: it names the group and the internal topics, "
        "e.g. --application-id delays"
    ),
    "bootstrap.servers": (
        f"--bootstrap-servers is missing: host:port of a broker, or set {BOOTSTRAP_VARIABLE}"
    ),
}


def option_settings(
    settings: Sequence[str] | None, folders: Sequence[Path] | None
) -> dict[str, str]:
    """The settings of ``--settings-folder`` and ``--set``. Raises ConfigError."""
    return {**_settings_of(folders or []), **assignments("--set", settings)}


def merged_settings(
    settings: Sequence[str] | None,
    folders: Sequence[Path] | None,
    options: Mapping[str, object | None],
) -> dict[str, object]:
    """All settings of a command line that names a program. ConfigError without a required one."""
    set_here = {key: value for key, value in options.items() if value is not None}
    merged = {**option_settings(settings, folders), **set_here}
    missing = [text for key, text in _NEEDED.items() if merged.get(key) in (None, "")]
    if missing:
        raise ConfigError("\n".join(missing))
    return merged


def assignments(option: str, arguments: Sequence[str] | None) -> dict[str, str]:
    """The ``key=value`` arguments of ``option``, of equal keys the last one, with a warning for
    secrets: a command line is shown to all users of its host. ConfigError for one that is none."""
    found: dict[str, str] = {}
    for argument in arguments or []:
        key, separator, value = argument.partition("=")
        if not separator or not key.strip():
            raise ConfigError(
                f"{option} {argument!r}: write it as key=value, e.g. commit.interval.ms=50"
            )
        found[key.strip()] = value.strip()
    for key in filter(is_secret, found):
        typer.echo(
            f"warning: {option} {key} is on the command line, which every user of this host can "
            f"read (ps, /proc). {_INSTEAD.get(option, '')}",
            err=True,
        )
    return found


def _settings_of(folders: Sequence[Path]) -> dict[str, str]:
    """Files by name, but those that begin with a dot (Kubernetes' own in a Secret). ConfigError."""
    found: dict[str, str] = {}
    for folder in folders:
        try:
            files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
            found |= {file.name: file.read_text().rstrip("\n") for file in files if file.is_file()}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--settings-folder {folder} cannot be read: {error}") from None
    return found


@contextmanager
def named_as_typed(typed: Mapping[str, str]) -> Iterator[None]:
    """Errors of the block name the keys of ``typed`` as they were typed: ``--threads``."""
    try:
        yield
    except EverflowError as error:
        error.args = tuple(
            renamed(each, typed) if isinstance(each, str) else each for each in error.args
        )
        raise


def renamed(text: str, typed: Mapping[str, str]) -> str:
    """``text`` with keys replaced; a key that is part of a longer one stays."""
    for key, name in typed.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(key)}(?![\w-]|\.\w)", name, text)
    return text


@contextmanager
def connected(config: StreamsConfig, status: StatusLine) -> Iterator[ClusterAdmin]:
    """An admin client of a cluster that answers. TaskTimeoutError where none does in `REACH_S`."""
    from everflow.kafka.admin import ClusterAdmin

    servers = config.bootstrap_servers
    with closing(ClusterAdmin(config.admin())) as admin:
        with status.waiting(
            f"waiting for Kafka at {servers} (for {REACH_S:g} s at most)", after_s=_SILENT_S
        ):
            admin.wait_until_reachable(REACH_S, check=_CHECK)
        yield admin


def own_status() -> StatusLine:
    from rich.console import Console

    from everflow.console.status import StatusLine

    return StatusLine(Console(stderr=True))


@dataclass(frozen=True)
class Cluster:
    """The brokers that a command asks."""

    servers: Servers = LOCAL_BROKER
    settings: ClientSettings = None
    settings_folder: SettingsFolders = None

    def config(self, *more: str) -> StreamsConfig:
        """Settings of the clients; ``more`` as ``KEY=VALUE``. Raises ConfigError."""
        from everflow.config import StreamsConfig

        settings = option_settings([*(self.settings or []), *more], self.settings_folder)
        own = {"application.id": "everflow-command", "bootstrap.servers": self.servers}
        with named_as_typed({"bootstrap.servers": "--bootstrap-servers"}):
            return StreamsConfig(**{**own, **settings})

    @contextmanager
    def connected(self) -> Iterator[tuple[StreamsConfig, ClusterAdmin, StatusLine]]:
        config = self.config()
        with own_status() as status, connected(config, status) as admin:
            yield config, admin, status


@dataclass(frozen=True)
class ProgramSettings:
    """The settings of a program that this command runs or resets."""

    application_id: Annotated[
        str | None, "application.id: names the group and the internal topics."
    ] = None
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(envvar=BOOTSTRAP_VARIABLE, help="host:port of one or more brokers."),
    ] = None
    state_dir: Annotated[Path | None, "state.dir: the folder of the stores on this host."] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; repeatable."),
    ] = None
    settings_folder: SettingsFolders = None

    @contextmanager
    def merged(self, context: typer.Context, **more: object) -> Iterator[dict[str, object]]:
        """All settings by key, with ``more``. Errors of the block name a setting as typed."""
        options = {
            "application.id": self.application_id,
            "bootstrap.servers": self.bootstrap_servers,
            "state.dir": str(self.state_dir) if self.state_dir else None,
            **more,
        }
        merged = merged_settings(self.settings, self.settings_folder, options)
        typed = {key: OPTIONS[key] for key, value in options.items() if value is not None}
        source = context.get_parameter_source("bootstrap_servers")
        if source is not None and source.name == "ENVIRONMENT":
            typed["bootstrap.servers"] = BOOTSTRAP_VARIABLE
        with named_as_typed(typed):
            yield merged


@dataclass(frozen=True)
class InstanceSettings:
    """The settings of instances that this command starts elsewhere."""

    application_id: Annotated[str, "application.id."]
    servers: Servers = LOCAL_BROKER
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As for run; repeatable."),
    ] = None
    settings_folder: Annotated[list[Path] | None, "As for run; on this host; repeatable."] = None

    def merged(self) -> dict[str, object]:
        """All settings by their keys. Raises ConfigError."""
        return {
            **option_settings(self.settings, self.settings_folder),
            "application.id": self.application_id,
            "bootstrap.servers": self.servers,
        }


def _options(of: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Parameters or fields as options. A bare text is an option's help; a flag has no opposite."""
    hints = get_type_hints(of, include_extras=True)
    for one in inspect.signature(of).parameters.values():
        kind = hints[one.name]
        if is_dataclass(hints[one.name]):
            yield from _options(kind)
        elif one.name not in ("debug", "more"):
            about = getattr(kind, "__metadata__", ("",))[0]
            if isinstance(about, str) and about:
                flag = [f"--{one.name.replace('_', '-')}"] if kind.__origin__ is bool else []
                kind = Annotated[kind.__origin__, typer.Option(*flag, help=about)]
            yield one.replace(kind=one.KEYWORD_ONLY, annotation=kind)


def command(group: typer.Typer = app, name: str | None = None) -> Callable[[F], F]:
    """Add a function to ``group`` as a command; what it returns is the exit code, None is 0.

    A parameter whose type is a dataclass becomes an option for each of its fields. ``--debug`` goes
    to a parameter ``debug``; ``more`` gets the list of `errors_for_people`. Errors become a text on
    stderr and an exit code.
    """

    def add(function: F) -> F:
        hints = get_type_hints(function)
        debug_option = inspect.Parameter(
            "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug
        )
        options = [*_options(function), debug_option]

        def run(**values: Any) -> None:
            debug = values.pop("debug")
            for name, kind in hints.items():
                if is_dataclass(kind):
                    parts = {field.name: values.pop(field.name) for field in fields(kind)}
                    values[name] = cast(type, kind)(**parts)
            with errors_for_people(debug) as more:
                asked = {"debug": debug, "more": more}
                code = function(**values, **{one: asked[one] for one in asked if one in hints})
            if code:
                raise typer.Exit(code)

        made: Any = run
        made.__doc__, made.__signature__ = function.__doc__, inspect.Signature(options)
        made.__annotations__ = {one.name: one.annotation for one in options}
        group.command(name or function.__name__)(made)
        return function

    return add


@contextmanager
def errors_for_people(debug: bool) -> Iterator[list[str]]:
    """Errors become one text on stderr, ended by the lines of the list, and an exit code; with
    ``debug`` they pass."""
    more: list[str] = []
    logs.install()
    try:
        said = logs.lines_to(
            lambda line: typer.echo(f"{logs.time_of_day()} {line}", err=True), verbose=True
        )
        with owned() as signals, said if debug else nullcontext():
            try:
                yield more
            except Exception:
                # What it interrupted, a client's C code for one, may surface as any error.
                if signals.interrupted:
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
        meaning = getattr(interrupt, "said", StopRequestedError.said)
        typer.echo(
            f"stopping: {meaning} ({signal.Signals(number).name})",
            err=True,
        )
        raise typer.Exit(EXIT_BASE + number) from None
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:  # the reader of the output has ended: `everflow consume ... | head -3`
        write_nowhere(sys.stdout.fileno())  # Python flushes it at its end
        raise typer.Exit(EXIT_BASE + signal.SIGPIPE) from None
    except Exception as error:
        if debug:
            raise
        text = f"{type(error).__name__}: {error}\nThis should not happen; --debug shows where."
        typer.echo(error_text(RuntimeError(text), "EF-INTERNAL", more), err=True)
        raise typer.Exit(EXIT_FAILED) from None


class Format(str, Enum):
    string = "string"
    json = "json"
    boolean = "boolean"
    short = "short"
    int_ = "int"
    long = "long"
    float_ = "float"
    double = "double"
    bytes = "bytes"
    schema = "schema"


class WindowKind(str, Enum):
    """Kinds of windows, whose bounds follow the key of a result."""

    time = "time"
    session = "session"


class Output(str, Enum):
    text = "text"
    json = "json"


Form = Annotated[Output, typer.Option("--output", help="text for people, json for programs.")]


def show(form: Output, data: Any, lines: list[str]) -> None:
    """Print a result: ``data`` for programs, ``lines`` for people."""
    echo(json.dumps(data, indent=2) if form is Output.json else "\n".join(lines))


def table(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    """Rows in columns, of which the ``numbers`` end below each other; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def echo(text: str, *, err: bool = False) -> None:
    """Print lines that contain texts of others, without control characters."""
    typer.echo(printable(text), err=err)


def require_not_gone(application_id: str, committed: Committed, instead: str) -> None:
    """ApplicationMigratedError of a group whose state went to another application; ``instead``: the
    command that asks that one, with ``{}`` for its id."""
    from everflow.protocol.messages import gone_to

    if to := gone_to(one.metadata for one in committed.values()):
        raise ApplicationMigratedError(
            f"Application {application_id} was migrated to {to}, which goes on in its place: "
            f"`{instead.format(to)}`",
            to=to,
        )


def require_yes(yes: bool, question: str, declined: str) -> None:
    """Ask ``question`` unless ``yes``; exit code 1, with the text ``declined``, for a no."""
    if not yes and not typer.confirm(question, err=True):
        echo(declined, err=True)
        raise typer.Exit(EXIT_FAILED)
