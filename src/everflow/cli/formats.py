"""How commands write and read keys and values, and show results."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any

import typer

from everflow.user_program import printable


class Format(str, Enum):
    """How bytes and text stand for one another on the command line."""

    string = "string"
    json = "json"
    boolean = "boolean"
    short = "short"
    int_ = "int"
    long = "long"
    float_ = "float"
    double = "double"
    bytes = "bytes"


class WindowKind(str, Enum):
    """What stands behind the key of a windowed result."""

    time = "time"
    session = "session"


class Output(str, Enum):
    """Forms of a result."""

    text = "text"
    json = "json"


Form = Annotated[Output, typer.Option("--output", help="text for people, json for programs.")]


def show(form: Output, data: Any, lines: list[str]) -> None:
    """Print a result: ``data`` for programs, ``lines`` for people."""
    echo(json.dumps(data, indent=2) if form is Output.json else "\n".join(lines))


def echo(text: str, *, err: bool = False) -> None:
    """Print lines for people, some of whose words are others': without control characters."""
    typer.echo(printable(text), err=err)
