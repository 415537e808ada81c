"""Options of commands that load a program or speak to a broker.

Light: `everflow.cli.cluster` has what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from everflow.cli.option_names import BOOTSTRAP_VARIABLE

LOCAL_BROKER = "localhost:9092"

ErrorsForPeople = Callable[[bool], AbstractContextManager[None]]

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
RunSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; repeatable."),
]
SettingsAsForRun = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for run; repeatable.")
]
SettingsFolders = Annotated[
    list[Path] | None,
    typer.Option(
        help="A folder of settings, a file each: its name the key, its text the value (a "
        "mounted Secret); repeatable. Of a key that is given twice --set wins, then the later "
        "folder.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and everflow's own log.")]
