"""``everflow connect``: lists, pauses, resumes and restarts connectors (note 074)."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from everflow.cli.commands import EXIT_FAILED, Cluster, Form, Output, command, show
from everflow.cli.connect_action import Action
from everflow.errors import ConfigError
from everflow.logs import some


@command()
def connect(
    application_id: Annotated[
        str, typer.Argument(metavar="APPLICATION_ID", help="application.id: the group.")
    ],
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    connector: Annotated[
        str | None, typer.Argument(metavar="[CONNECTOR]", help="Its name in the program.")
    ] = None,
    *,
    cluster: Cluster,
    task: Annotated[
        int | None, typer.Option(min=0, help="With restart: the task of this partition alone.")
    ] = None,
    only_failed: Annotated[bool, "With restart: tasks that fail, or rest after failures."] = False,
    timeout: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait until all tasks have done it.")
    ] = 60.0,
    output: Form = Output.text,
) -> int:
    """List the sinks outside Kafka of an application (list), or their tasks (status), with state,
    lag and last error; or pause, resume or restart one. A pause lasts until resume, also over
    restarts of all instances. Exit code 1 if a task fails or runs nowhere, or has not done it in
    time."""
    from everflow.cli.connect import (
        REPORT_S,
        desk_of,
        is_bad,
        list_table,
        record_of,
        said,
        status_table,
    )
    from everflow.topology.connectors import Restart

    changes = action in (Action.pause, Action.resume, Action.restart)
    if changes and connector is None:
        raise ConfigError(f"everflow connect ... {action.value} CONNECTOR: name one of them.")
    if action is not Action.restart and (task is not None or only_failed):
        raise ConfigError("--task and --only-failed go with restart.")
    with (
        cluster.connected() as (config, admin, status),
        desk_of(config, admin, application_id) as desk,
    ):
        desk.refresh()
        names = desk.chosen(connector)
        if not changes or connector is None:
            with status.waiting("waiting for the instances' reports", after_s=1.0):
                desk.await_reports(names, time.monotonic() + REPORT_S)
            rows = desk.rows(names)
            lines = status_table(rows) if action is Action.status else list_table(rows)
            show(output, rows, lines)
            return EXIT_FAILED if any(is_bad(row) for row in rows) else 0
        facts = desk.book.facts[connector]
        if task is not None and not any(one.partition == task for one in facts.all_tasks):
            raise ConfigError(
                f"--task {task}: connector {connector} of {application_id} has the tasks "
                f"{some(facts.all_tasks, 12)}."
            )
        wanted = Restart(connector=connector, task=task, only_failed=only_failed)
        desk.write(record_of(action, wanted))
        with status.waiting(f"waiting until the tasks of {connector} have done it", after_s=1.0):
            late = desk.await_done(connector, action, time.monotonic() + timeout)
        rows = desk.rows([connector])
        lines = [*said(action, connector, facts, late, bool(desk.members)), *status_table(rows)]
        show(output, [{**row, "late": list(map(str, late))} for row in rows], lines)
        undone = action is Action.restart and not desk.members
        return EXIT_FAILED if late or undone else 0
