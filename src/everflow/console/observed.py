"""Asks instances what their `/status` says, and shows it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from everflow.client.direct import BrokenAnswerError, RefusedError, asked, no_answer
from everflow.errors import ConfigError, EverflowError, RetriableError
from everflow.logs import counted
from everflow.observe.page.verdict import brokers_away

ASK_S = 10.0
MOST_ASKED = 32
"""At a time."""


def url_of(address: str) -> str:
    """Where an instance is watched: a URL, no slash at its end. ConfigError for no address."""
    whole = address.startswith(("http://", "https://"))
    url = (address if whole else f"http://{address}").rstrip("/")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, half of the brackets around an IPv6 address
        raise _no_address(
            address, "its port is no number up to 65535, or its host is none"
        ) from None
    if not host:
        raise _no_address(address, "it names no host")
    if port is None and not whole:  # a URL has the port of its scheme
        raise _no_address(address, "it names no port")
    return url


def _no_address(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"{address!r} is no address of an instance: {why}. Write HOST:PORT, as http.listen has it, "
        f"such as 127.0.0.1:9464, or a URL."
    )


def nobody_at(url: str, error: OSError) -> RetriableError:
    """A hint for the case that no instance has answered."""
    if isinstance(error, TimeoutError):
        return RetriableError(
            f"no instance answered at {url} in time. Its process stands still or hangs, its host "
            f"is overloaded, or no network leads there."
        )
    return RetriableError(
        f"no instance answered at {url} ({no_answer(error)}). Does it run, with http.listen set to "
        f"this address? It says where it is watched when it starts."
    )


def status_at(address: str) -> dict[str, Any]:
    """The JSON of an instance. RetriableError where none answers, with what to check; ConfigError
    for what is no address, or not where an instance is watched."""
    url = url_of(address)
    try:
        found = json.loads(asked(f"{url}/status", ASK_S))
    except RefusedError as error:
        raise _not_watched(url, error) from None
    except (BrokenAnswerError, ValueError):
        found = None
    except OSError as error:
        raise nobody_at(url, error) from None
    if not isinstance(found, dict) or "state" not in found:
        raise RetriableError(f"what answered at {url} is no everflow instance.")
    return {"address": address, **found}


def _not_watched(url: str, error: RefusedError) -> EverflowError:
    code = error.status
    if code == 421:
        return ConfigError(f"{url}: {error}")
    if code == 401:
        return ConfigError(
            f"what answered at {url} asks for a token ({code}), which no instance does where it is "
            f"watched. Is it its query.listen? Name its http.listen: it says both when it starts."
        )
    return RetriableError(
        f"what answered at {url} does not say how an instance does: it answers {code}. Is this its "
        f"http.listen?"
    )


def ask(addresses: Iterable[str]) -> list[dict[str, Any]]:
    """What each says, in their order: its status, or ``address``, ``code`` and ``error`` of one
    that did not answer (`answered`). ConfigError for what is no address; where none answers, the
    first one's error."""
    every = list(addresses)
    for address in every:
        url_of(address)
    # Beside each other: one that hangs takes `ASK_S`, and so do ten.
    with ThreadPoolExecutor(MOST_ASKED) as asking:
        told = list(asking.map(_answer, every))
    errors = [error for _, error in told if error is not None]
    if errors and len(errors) == len(told):
        raise errors[0]
    return [found for found, _ in told]


def _answer(address: str) -> tuple[dict[str, Any], EverflowError | None]:
    try:
        return status_at(address), None
    except EverflowError as error:
        return {"address": address, "code": error.code, "error": str(error)}, error


def answered(status: Mapping[str, Any]) -> bool:
    """True if it is a status: see `ask`."""
    return "state" in status


def is_well(status: Mapping[str, Any]) -> bool:
    """True if it answered, is ready, and hears its brokers."""
    return answered(status) and status["ready"]["ok"] and not _brokers_away(status)


def _brokers_away(status: Mapping[str, Any]) -> str:
    said = brokers_away(status.get("silent_s", 0.0))
    return said[:1].lower() + said[1:]


def status_lines(statuses: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        _status_line(status) if answered(status) else _error_line(status) for status in statuses
    ]


def _error_line(status: Mapping[str, Any]) -> str:
    return f"{status['address']} · {status['error'].splitlines()[0]}"


def _status_line(status: Mapping[str, Any]) -> str:
    tasks = status["tasks"]
    roles: dict[str, int] = {}
    for task in tasks:
        roles[task["role"]] = roles.get(task["role"], 0) + 1
    busy = [thread["busy"] for thread in status["threads"]]
    # An older instance says neither which program it runs nor why it is in its state.
    reason = status.get("state_reason")
    unready = "not ready" if reason else f"not ready ({status['ready']['why']})"
    ready = "ready" if status["ready"]["ok"] else unready
    lag = "lag unknown" if status["lag"] is None else f"lag {status['lag']:,}"
    parts = [
        status["address"],
        status["application_id"],
        status["state"] + (f" ({reason})" if reason else ""),
        ready,
        *([away] if (away := _brokers_away(status)) else ()),
        lag,
        ", ".join(f"{count} {role}" for role, count in sorted(roles.items())) or "no tasks",
    ]
    if busy:
        parts.append(f"busy {sum(busy) / len(busy):.0%}")
    if status["members"] is not None:
        parts.append(f"{counted(status['members'], 'instance')} in the group")
    if status["desired_instances"] is not None:
        parts.append(f"{status['desired_instances']} desired")
    parts.append(f"everflow {status['version']}")
    parts += [f"topology {text}"] if (text := status.get("topology")) else []
    parts += [text] if (text := status.get("program")) else []
    if status["error"]:
        parts.append(status["error"].splitlines()[0])
    return " · ".join(parts)


def task_rows(statuses: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All tasks of the instances that answered: first those in trouble, then the largest lags."""
    rows = [
        {"address": status["address"], **task}
        for status in statuses
        if answered(status)
        for task in status["tasks"]
    ]
    return sorted(
        rows,
        key=lambda row: (not row["trouble"], row["state"] == "RUNNING", -(row["lag"] or 0)),
    )


def table(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    """Rows in columns, of which the ``numbers`` end below each other; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def tasks_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ("task", "role", "state", "lag", "rate", "left", "disk", "instance", "trouble")
    return table([head, *(_task_cells(row) for row in rows)])


def warnings(statuses: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines below the tasks: instances that did not answer, and those without brokers."""
    lines = []
    for status in statuses:
        if not answered(status):
            lines.append(_error_line(status))
        elif away := _brokers_away(status):
            lines.append(f"{status['address']} · {away}: lags are as they were then")
    return lines


def _task_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    size, rate = sum(store["bytes"] for store in row["stores"]), row["rate"]
    return (
        row["task"],
        row["role"],
        row["state"],
        "?" if row["lag"] is None else f"{row['lag']:,}",
        f"{rate:,.{int(rate < 10)}f}/s" if rate else "",
        f"{row['remaining_s']:.0f} s" if row["remaining_s"] else "",
        f"{size / (1 << 20):,.1f} MB" if size else "",
        row["address"],
        row["trouble"],
    )
