"""Asks instances what their `/status` says, and shows it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everflow.errors import RetriableError

ASK_S = 10.0
MOST_BYTES = 64 << 20


def url_of(address: str) -> str:
    """Where an instance is watched, as a URL without a slash at its end."""
    url = address if address.startswith(("http://", "https://")) else f"http://{address}"
    return url.rstrip("/")


def nobody_at(url: str, error: Exception) -> RetriableError:
    """What to check where no instance has answered."""
    return RetriableError(
        f"no instance answered at {url} ({error}). Does it run, with http.listen set to this "
        f"address? It says where it is watched when it starts."
    )


def status_at(address: str) -> dict[str, Any]:
    """The JSON of an instance. RetriableError where none answers, with what to check."""
    url = url_of(address)
    try:
        with urllib.request.urlopen(f"{url}/status", timeout=ASK_S) as answer:
            found = json.loads(answer.read(MOST_BYTES))
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise nobody_at(url, error) from None
    if not isinstance(found, dict) or "state" not in found:
        raise RetriableError(f"what answered at {url} is no everflow instance.")
    return {"address": address, **found}


def status_lines(statuses: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each instance."""
    return [_status_line(status) for status in statuses]


def _status_line(status: Mapping[str, Any]) -> str:
    tasks = status["tasks"]
    roles: dict[str, int] = {}
    for task in tasks:
        roles[task["role"]] = roles.get(task["role"], 0) + 1
    busy = [thread["busy"] for thread in status["threads"]]
    ready = "ready" if status["ready"]["ok"] else f"not ready ({status['ready']['why']})"
    lag = "lag unknown" if status["lag"] is None else f"lag {status['lag']:,}"
    parts = [
        status["address"],
        status["application_id"],
        status["state"],
        ready,
        lag,
        ", ".join(f"{count} {role}" for role, count in sorted(roles.items())) or "no tasks",
    ]
    if busy:
        parts.append(f"busy {sum(busy) / len(busy):.0%}")
    if status["members"] is not None:
        parts.append(f"{status['members']} instances in the group")
    if status["desired_instances"] is not None:
        parts.append(f"{status['desired_instances']} desired")
    if status["error"]:
        parts.append(status["error"].splitlines()[0])
    return " · ".join(parts)


def task_rows(statuses: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All tasks of these instances, those that do not get on first, then by how far behind."""
    rows = [
        {"address": status["address"], **task} for status in statuses for task in status["tasks"]
    ]
    return sorted(
        rows,
        key=lambda row: (not row["trouble"], row["state"] == "RUNNING", -(row["lag"] or 0)),
    )


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns; the first one is the head."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def tasks_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """See `task_rows`."""
    head = ("task", "role", "state", "lag", "rate", "left", "disk", "instance", "trouble")
    return table([head, *(_task_cells(row) for row in rows)])


def _task_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    size = sum(store["bytes"] for store in row["stores"])
    return (
        row["task"],
        row["role"],
        row["state"],
        "?" if row["lag"] is None else f"{row['lag']:,}",
        f"{row['rate']:,.0f}/s" if row["rate"] else "",
        f"{row['remaining_s']:.0f} s" if row["remaining_s"] else "",
        f"{size / (1 << 20):,.1f} MB" if size else "",
        row["address"],
        row["trouble"],
    )
