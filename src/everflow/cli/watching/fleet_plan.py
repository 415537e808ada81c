"""What ``everflow fleet`` checks before Spark starts; how ``everflow scale`` asks a fleet."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from everflow.cli.cluster import assignments, own_status, settings_of
from everflow.cli.program_source import module_and_name
from everflow.cli.watching.instance_checks import checked
from everflow.client.direct import asked, refused_with
from everflow.console.observed import table
from everflow.errors import ConfigError, RetriableError
from everflow.fleet.command import Fleet, run_fleet
from everflow.fleet.decision import require_not_own
from everflow.logs import time_of_day
from everflow.retry import shown_by
from everflow.stop_signals import owned

ASK_S = 10.0


def planned(
    target: str, settings: Mapping[str, object], *, least: int, most: int | None, **more: Any
) -> Fleet:
    """The fleet that is asked for. ConfigError, TopologyError: what no instance could run with."""
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


def given_settings(
    application_id: str,
    servers: str,
    settings: Sequence[str] | None,
    folders: Sequence[Path] | None,
) -> dict[str, str]:
    """Those of each instance, by dotted keys. ConfigError for what cannot be read."""
    given = {**settings_of(folders or []), **assignments("--set", settings)}
    return {**given, "application.id": application_id, "bootstrap.servers": servers}


def ran(fleet: Fleet) -> None:
    """Run it until a signal stops it; what happens goes to standard output."""
    with shown_by(own_status().waiting), owned() as signals:
        run_fleet(fleet, lambda line: typer.echo(f"{time_of_day()} {line}"), signals)


def asked_of(address: str, instances: int | None, most: int | None) -> dict[str, Any]:
    """What a fleet says of itself, after it was resized where ``instances`` is given.

    RetriableError where none answers, ConfigError for what it refuses.
    """
    if instances is None and most is not None:
        raise ConfigError("--max needs --instances")
    url = f"http://{address}/fleet"
    data = None
    if instances is not None:
        url = f"http://{address}/scale"
        data = json.dumps({"instances": instances, "max": most}).encode()
    try:
        found: dict[str, Any] = json.loads(asked(urllib.request.Request(url, data), ASK_S))
        return found
    except urllib.error.HTTPError as error:
        raise ConfigError(f"the fleet at {address} refused: {refused_with(error)}") from None
    except (OSError, ValueError) as error:
        raise RetriableError(
            f"no fleet answered at {address} ({error}). Does it run on this host? It says its "
            f"address when it starts."
        ) from None


def fleet_lines(found: Mapping[str, Any]) -> list[str]:
    """For people."""
    bounds = str(found["instances"])
    if found["max"] != found["instances"]:
        bounds += f" to {found['max']}"
    head = ["instance", "host", "state", "lag", "log"]
    rows = [[str(one["slot"]), *_cells(one)] for one in found["slots"]]
    return [f"{found['application_id']}: {bounds} instances", *table([head, *rows])]


def _cells(slot: Mapping[str, Any]) -> list[str]:
    if slot["without_place_s"] or "host" not in slot:
        return ["-", f"no place for {slot['without_place_s']:g} s", "-", "-"]
    state = slot["state"] or "starts"
    if slot["state"] == "RUNNING" and not slot["ready"]:
        state += ", not ready"
    lag = "-" if slot["lag"] is None else f"{slot['lag']:,}"
    return [slot["host"], state, lag, slot["log"]]
