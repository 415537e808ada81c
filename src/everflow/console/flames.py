"""Asks an instance what one of its workers runs, and shows it: `everflow flame`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everflow.client.direct import asked, refused_with
from everflow.console.observed import nobody_at, table, url_of
from everflow.errors import ConfigError, RetriableError

LATE_S = 30.0
"""What an answer may take besides the seconds that are looked."""
MOST_BYTES = 16 << 20


def token_in(file: Path) -> str:
    """The first token of a ``query.token.file``. ConfigError where there is none."""
    try:
        lines = file.expanduser().read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {file} cannot be read ({error}).") from error
    if not lines:
        raise ConfigError(f"--token-file {file} holds no token.")
    return lines[0]


def flame_at(address: str, token: str, worker: str, seconds: float) -> dict[str, Any]:
    """What a worker (a slot; empty: the first one) of the instance watched at ``address`` runs for
    so long. RetriableError where nobody answers; ConfigError for what is refused, with its
    reason."""
    url = url_of(address)
    if not worker:
        offered = _asked(f"{url}/page/view", token, None, LATE_S)["flame"]
        if not offered["workers"]:
            raise ConfigError(f"nobody can be asked at {url}: {offered['why']}.")
        worker = str(offered["workers"][0]["worker"])
    wanted = {"worker": worker, "seconds": seconds}
    return _asked(f"{url}/page/flame", token, wanted, seconds + LATE_S)


def _asked(url: str, token: str, content: Any, timeout_s: float) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        return dict(json.loads(asked(request, timeout_s, most_bytes=MOST_BYTES)))
    except urllib.error.HTTPError as error:
        kind = RetriableError if error.code in (409, 503) else ConfigError
        raise kind(f"{url}: {refused_with(error)} ({error.code})") from None
    except (OSError, ValueError) as error:
        raise nobody_at(url, error) from None


def flame_lines(found: Mapping[str, Any]) -> list[str]:
    """The user's lines by their part of the time, for people."""
    whole = max(found["tree"]["ms"], 0.1)
    head = (
        f"{found['worker']}: {found['samples']} looks in {found['ms'] / 1000:.1f} s. Your lines, "
        f"by their part of the time:"
    )
    rows = [[f"{row['ms'] / whole:.1%}", row["line"]] for row in found["lines"]]
    return [head, *(table(rows) if rows else ["none of your lines ran"])]


def folded(found: Mapping[str, Any]) -> list[str]:
    """``caller;called ms``, a line for each stack, as viewers of flame graphs read it."""
    return [
        f"{';'.join(names)} {ms}"
        for child in found["tree"]["children"]
        for names, ms in _own(child)
    ]


def _own(box: Mapping[str, Any], callers: tuple[str, ...] = ()) -> Iterator[tuple[list[str], int]]:
    names = (*callers, box["name"].replace(";", ","))
    own_ms = round(box["ms"] - sum(child["ms"] for child in box["children"]))
    if own_ms > 0:
        yield list(names), own_ms
    for child in box["children"]:
        yield from _own(child, names)
