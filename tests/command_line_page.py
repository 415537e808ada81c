"""The tables of docs/guide/command-line.md, made of the commands; for `made_pages`."""

import inspect
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer

from everflow.cli.app import app

ROOT: Any = typer.main.get_command(app)
VALUES = {int: "NUMBER", float: "NUMBER", str: "TEXT"}


def commands(group: Any = ROOT, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command with its full name: ``topic create``."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*names, name))
        else:
            yield " ".join((*names, name)), command


def rows(command: Any) -> Iterator[tuple[str, str]]:
    """Argument or option as it is typed, and what it means: from the signature of the command's
    function."""
    function = inspect.unwrap(command.callback)
    options = {
        parameter.name: [*parameter.opts, *parameter.secondary_opts] for parameter in command.params
    }
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        for info in getattr(hints[name], "__metadata__", ()):
            type_ = _plain(get_args(hints[name])[0])
            yield _typed(options[name], type_, info), _meaning(type_, parameter.default, info)


def _plain(type_: Any) -> Any:
    """``X`` of ``X | None`` and of ``list[X]``."""
    if get_origin(type_) in (Union, UnionType):
        type_ = next(each for each in get_args(type_) if each is not type(None))
    return get_args(type_)[0] if get_origin(type_) is list else type_


def _typed(options: list[str], type_: Any, info: Any) -> str:
    if isinstance(info, typer.models.ArgumentInfo):
        return str(info.metavar)
    names = ", ".join(options)
    if type_ is bool:
        return names
    value = "CHOICE" if issubclass(type_, Enum) else VALUES.get(type_, "PATH")
    return f"{names} {info.metavar or value}"


def _meaning(type_: Any, default: Any, info: Any) -> str:
    said = [info.help]
    if issubclass(type_, Enum):
        said.append("One of " + ", ".join(f"`{choice.value}`" for choice in type_) + ".")
    if isinstance(info.show_default, str):
        said.append(f"Default: {info.show_default}.")
    elif isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        said.append(f"Default: `{getattr(default, 'value', default)}`.")
    if info.envvar:
        said.append(f"Environment: `{info.envvar}`.")
    return " ".join(said).replace("|", "\\|")


def tables() -> str:
    """A section for each command."""
    parts = []
    for name, command in commands():
        said = " ".join((inspect.getdoc(command.callback) or "").split()).replace("<", "\\<")
        parts.append(f"### everflow {name}\n\n{said}\n\n")
        listed = [f"| `{typed}` | {meaning} |\n" for typed, meaning in rows(command)]
        parts += (
            ["| argument or option | meaning |\n| --- | --- |\n", *listed, "\n"] if listed else []
        )
    return "".join(parts)
