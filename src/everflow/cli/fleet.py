"""``everflow fleet`` and ``scale``: their options, and what is checked before Spark starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everflow.cli.commands import (
    Form,
    InstanceSettings,
    Output,
    TargetAsForRun,
    command,
    show,
)
from everflow.cli.watch import checked
from everflow.client.direct import RefusedError, asked
from everflow.console.observed import table
from everflow.errors import ConfigError, RetriableError
from everflow.logs import time_of_day
from everflow.retry import shown_by
from everflow.stop_signals import owned

if TYPE_CHECKING:
    from everflow.fleet.command import Fleet

ASK_S = 10.0

Most = Annotated[
    int | None,
    typer.Option(
        "--max", min=1, help="Scale with the load, up to this number. Default: --instances."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Options as `everflow.fleet.command.Fleet` has them."""

    master: Annotated[
        str | None, "The Spark cluster, e.g. spark://host:7077; default: spark-submit's."
    ] = None
    cores: Annotated[int, typer.Option(min=1, help="Cores of the executor of each instance.")] = 1
    memory: Annotated[
        str,
        "Memory of the executor (spark.executor.memory). The instance's processes take "
        "more beside it.",
    ] = "512m"
    folder: Annotated[
        str,
        "Folder on the hosts for state and logs. Variables of the executors' environment "
        "are expanded.",
    ] = "~/.local/state/everflow-fleet"


@command()
def fleet(
    target: TargetAsForRun,
    settings: InstanceSettings,
    places: Places,
    instances: Annotated[
        int, typer.Option(min=1, help="Number of instances; with --max the minimum.")
    ] = 1,
    most: Most = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="num.stream.threads of each instance; default: --cores."),
    ] = None,
    files: Annotated[
        list[Path] | None, "Another file or folder that the program needs; repeatable."
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the driver for the hosts. Default: spark.driver.host, a free port.",
            show_default=False,
        ),
    ] = "",
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; repeatable."),
    ] = None,
) -> None:
    """Run instances in executor slots of a Spark cluster, which replaces a slot that is lost.
    Ctrl-C stops all instances; they stay members of the group for a restart."""
    from everflow.cli.cluster import assignments, own_status
    from everflow.fleet.command import run_fleet

    made = planned(
        target,
        settings.merged(),
        least=instances,
        most=most,
        threads=threads or places.cores,
        files=files or [],
        listen=listen,
        conf=assignments("--conf", conf),
        **vars(places),
    )
    with shown_by(own_status().waiting), owned() as signals:
        run_fleet(made, lambda line: typer.echo(f"{time_of_day()} {line}"), signals)


@command()
def scale(
    address: Annotated[
        str,
        typer.Argument(metavar="HOST:PORT", help="Address that the fleet on this host printed."),
    ],
    instances: Annotated[
        int | None,
        typer.Option(min=1, help="New number of instances. Default: only show them."),
    ] = None,
    most: Most = None,
    output: Form = Output.text,
) -> None:
    """Resize a fleet, or show its instances."""
    found = asked_of(address, instances, most)
    show(output, found, fleet_lines(found))


def planned(
    target: str, settings: Mapping[str, object], *, least: int, most: int | None, **more: Any
) -> Fleet:
    """The fleet that is asked for. ConfigError, TopologyError: what no instance could run with."""
    from everflow.cli.program import module_and_name
    from everflow.fleet.command import Fleet
    from everflow.fleet.decision import require_not_own

    if most is not None and most < least:
        raise ConfigError(f"--max {most} is below --instances {least}.")
    require_not_own(settings)
    config = checked(target, settings)
    return Fleet(
        target=":".join(module_and_name(target)),  # on the hosts the file lies in the first folder
        application_id=config.application_id,
        settings=settings,
        least=least,
        most=least if most is None else most,
        **more,
    )


def asked_of(address: str, instances: int | None, most: int | None) -> dict[str, Any]:
    """Ask a fleet for its status; with ``instances`` resize it first.

    RetriableError where none answers, ConfigError for what it refuses.
    """
    if instances is None and most is not None:
        raise ConfigError("--max needs --instances")
    sizes = None if instances is None else {"instances": instances, "max": most}
    data = None if sizes is None else json.dumps(sizes).encode()
    path = "fleet" if data is None else "scale"
    try:
        found: dict[str, Any] = json.loads(asked(f"http://{address}/{path}", ASK_S, post=data))
        return found
    except RefusedError as error:
        raise ConfigError(f"the fleet at {address} refused: {error}") from None
    except (OSError, ValueError) as error:
        raise RetriableError(
            f"no fleet answered at {address} ({error}). Does it run on this host? It says its "
            f"address when it starts."
        ) from None


def fleet_lines(found: Mapping[str, Any]) -> list[str]:
    bounds = str(found["instances"])
    if found["max"] != found["instances"]:
        bounds += f" to {found['max']}"
    head = ["instance", "host", "state", "lag", "log"]
    rows = [[str(one["slot"]), *_cells(one)] for one in found["slots"]]
    return [f"{found['application_id']}: {bounds} instances", *table([head, *rows])]


def _cells(slot: Mapping[str, Any]) -> list[str]:
    if slot["without_place_s"] or "host" not in slot:
        return ["-", f"no executor for {slot['without_place_s']:g} s", "-", "-"]
    state = slot["state"] or "starts"
    if slot["state"] == "RUNNING" and not slot["ready"]:
        state += ", not ready"
    lag = "-" if slot["lag"] is None else f"{slot['lag']:,}"
    return [slot["host"], state, lag, slot["log"]]
