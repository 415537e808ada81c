"""Names settings as they were typed: ``--threads``, or ``num.stream.threads`` of ``--set``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import typer

from everflow.errors import ConfigError, EverflowError

BOOTSTRAP_VARIABLE = "EVERFLOW_BOOTSTRAP_SERVERS"
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


def typed_options(context: typer.Context, options: Mapping[str, object | None]) -> dict[str, str]:
    """What stands for each of the settings that an option or the environment gave."""
    typed = {key: OPTIONS[key] for key, value in options.items() if value is not None}
    source = context.get_parameter_source("bootstrap_servers")
    if source is not None and source.name == "ENVIRONMENT":
        typed["bootstrap.servers"] = BOOTSTRAP_VARIABLE
    return typed


@contextmanager
def named_as_typed(typed: Mapping[str, str]) -> Iterator[None]:
    """What the block raises names the keys of ``typed`` as they were typed."""
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


def require_given(settings: Mapping[str, object]) -> None:
    """ConfigError, naming options and environment variables, where a setting without a default is
    missing."""
    missing = [text for key, text in _NEEDED.items() if settings.get(key) in (None, "")]
    if missing:
        raise ConfigError("\n".join(missing))
