"""What commands that speak to a broker share: address, settings, what they say while it is away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import typer
from rich.console import Console

from everflow.cli.option_names import named_as_typed, require_given
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.console.terminal import merge_settings, parse_settings
from everflow.errors import ConfigError
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


def client_config(
    servers: str, settings: Sequence[str] | None, folders: Sequence[Path] | None = None
) -> StreamsConfig:
    """Clients' settings from ``--bootstrap-servers``, ``--set`` and ``--settings-folder``;
    ConfigError for what `StreamsConfig` refuses."""
    given = {**settings_of(folders or []), **assignments("--set", settings)}
    with named_as_typed({"bootstrap.servers": "--bootstrap-servers"}):
        return StreamsConfig(
            **{"application.id": "everflow-command", "bootstrap.servers": servers, **given}
        )


def merged_settings(
    settings: Sequence[str] | None,
    folders: Sequence[Path] | None,
    options: Mapping[str, object | None],
) -> dict[str, object]:
    """All settings of a command line that names a program; ConfigError where one that must be is
    not given."""
    given = {**settings_of(folders or []), **assignments("--set", settings)}
    merged = merge_settings(given, options)
    require_given(merged)
    return merged


def assignments(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """The ``key=value`` arguments of ``option``, with a warning for secrets: a command line is
    shown to all users of its host. ConfigError for one that is none."""
    try:
        found = parse_settings(given or [])
    except ValueError as error:
        raise ConfigError(f"{option} {error}") from None
    for key in filter(is_secret, found):
        typer.echo(
            f"warning: {option} {key} is on the command line, which every user of this host can "
            f"read (ps, /proc). {_INSTEAD.get(option, '')}",
            err=True,
        )
    return found


def settings_of(folders: Sequence[Path]) -> dict[str, str]:
    """The settings of ``--settings-folder``: files by name, without those that begin with a dot, as
    Kubernetes mounts a Secret. ConfigError for a folder that cannot be read."""
    found: dict[str, str] = {}
    for folder in folders:
        try:
            files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
            found |= {file.name: file.read_text().rstrip("\n") for file in files if file.is_file()}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--settings-folder {folder} cannot be read: {error}") from None
    return found


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
    """What a command says beside its results: on stderr."""
    return StatusLine(Console(stderr=True))
