"""Tells a command line that cannot be read as all errors are told, in place of Typer's box."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from everflow.console.terminal import error_text
from everflow.errors import ConfigError

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
