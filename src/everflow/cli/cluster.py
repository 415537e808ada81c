"""The settings of a command line, and a cluster that answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import typer
from rich.console import Console

from everflow.cli import BOOTSTRAP_VARIABLE
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.errors import ConfigError, EverflowError
from everflow.kafka.admin import ClusterAdmin
from everflow.setting_checks import is_secret

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


def given_settings(
    settings: Sequence[str] | None, folders: Sequence[Path] | None
) -> dict[str, str]:
    """The settings of ``--settings-folder`` and ``--set``. Raises ConfigError."""
    return {**_settings_of(folders or []), **assignments("--set", settings)}


def merged_settings(
    settings: Sequence[str] | None,
    folders: Sequence[Path] | None,
    options: Mapping[str, object | None],
) -> dict[str, object]:
    """All settings of a command line that names a program. ConfigError if a required one is
    missing."""
    set_here = {key: value for key, value in options.items() if value is not None}
    merged = {**given_settings(settings, folders), **set_here}
    missing = [text for key, text in _NEEDED.items() if merged.get(key) in (None, "")]
    if missing:
        raise ConfigError("\n".join(missing))
    return merged


def assignments(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """The ``key=value`` arguments of ``option``, of equal keys the last one, with a warning for
    secrets: a command line is shown to all users of its host. ConfigError for one that is none."""
    found: dict[str, str] = {}
    for argument in given or []:
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
    """Files by name, without those that begin with a dot, as Kubernetes mounts a Secret.
    ConfigError for a folder that cannot be read."""
    found: dict[str, str] = {}
    for folder in folders:
        try:
            files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
            found |= {file.name: file.read_text().rstrip("\n") for file in files if file.is_file()}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--settings-folder {folder} cannot be read: {error}") from None
    return found


def typed_options(context: typer.Context, options: Mapping[str, object | None]) -> dict[str, str]:
    """Setting -> the option, or the variable of the environment, that set it."""
    typed = {key: OPTIONS[key] for key, value in options.items() if value is not None}
    source = context.get_parameter_source("bootstrap_servers")
    if source is not None and source.name == "ENVIRONMENT":
        typed["bootstrap.servers"] = BOOTSTRAP_VARIABLE
    return typed


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
    """An admin client of a cluster that answers. TaskTimeoutError if none does within ``REACH_S``
    seconds."""
    servers = config.bootstrap_servers
    with closing(ClusterAdmin(config.admin())) as admin:
        with status.waiting(
            f"waiting for Kafka at {servers} (for {REACH_S:g} s at most)", after_s=_SILENT_S
        ):
            admin.wait_until_reachable(REACH_S, check=_CHECK)
        yield admin


def own_status() -> StatusLine:
    """A line on stderr, beside the results."""
    return StatusLine(Console(stderr=True))
