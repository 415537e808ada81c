"""``everflow check``: what a change of a program needs, before it runs (note 067)."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from everflow.cli.commands import EXIT_FAILED, Form, Output, command, echo, own_status
from everflow.errors import ConfigError, TopologyError

if TYPE_CHECKING:
    from everflow.topology.compatibility import ProgramFacts

_READ = "from everflow.cli.check import print_facts; print_facts()"
_BEGIN = "everflow program "
"""Begins the line with a program's facts: a program may print while it is imported."""

Programs = Annotated[
    list[str],
    typer.Argument(
        metavar="OLD NEW",
        help="Two programs, each as for run: MODULE:NAME or FILE.py:NAME.",
    ),
]


@command()
def check(programs: Programs, output: Form = Output.text) -> int:
    """Compare two programs before an upgrade: same, safe by a rolling bounce, needs a migration, or
    needs a reset, with the reason for each store, topic and node. Exit code 1 for the last two.
    Reads no broker; each program is loaded in a process of its own.
    """
    from everflow.topology.compatibility import Effect, changes, effect_of, report, report_json

    if len(programs) != 2:
        raise ConfigError(
            "everflow check takes two programs, OLD and NEW, e.g. released/app.py:builder "
            "app.py:builder",
            code="EF-USAGE",
        )
    with own_status() as status, status.waiting(f"loading {' and '.join(programs)}", after_s=2.0):
        old, new = _loaded(programs)
    found = changes(old, new)
    echo((report_json if output is Output.json else report)(found).rstrip())
    return EXIT_FAILED if effect_of(found) >= Effect.MIGRATION else 0


def _loaded(targets: list[str]) -> list[ProgramFacts]:
    """The facts of programs, each loaded in its own process: two versions have modules of one name.
    TopologyError with what the process says where one cannot be loaded."""
    from everflow.topology.compatibility import from_json

    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _READ, target],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for target in targets
    ]
    answers = [process.communicate() for process in processes]
    found = []
    for target, process, (out, err) in zip(targets, processes, answers, strict=True):
        lines = [line for line in out.splitlines() if line.startswith(_BEGIN)]
        if process.returncode or not lines:
            raise TopologyError(
                f"{target} cannot be loaded (exit code {process.returncode}):\n{err.strip()}",
                code="EF-PROGRAM",
            )
        found.append(from_json(lines[-1].removeprefix(_BEGIN)))
    return found


def print_facts() -> None:
    """The process of one program: prints its facts."""
    from everflow.cli.commands import errors_for_people
    from everflow.cli.program import load_topology
    from everflow.spark.session import get_context
    from everflow.topology.compatibility import facts_of, to_json
    from everflow.topology.subtopologies import cut

    try:
        with errors_for_people(False):
            topology = load_topology(sys.argv[1], start_spark=get_context)
            facts = to_json(facts_of(cut(topology)))
    except typer.Exit as failed:
        sys.exit(failed.exit_code)
    print(f"{_BEGIN}{facts}", flush=True)
