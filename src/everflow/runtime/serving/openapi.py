"""The query service described as OpenAPI 3.1, and as a page without anything from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

from everflow.runtime.serving.parameters import ENTRIES, MOST_ENTRIES, MOST_PAGE_BYTES

PARAMETERS: Mapping[str, tuple[str, str]] = {
    "stale": ("boolean", "Also from a copy: a standby, or one that is being restored."),
    "max_lag": ("integer", "How many offsets such a copy may be behind at the most."),
    "partition": ("integer", "Only this partition of the store."),
    "limit": (
        "integer",
        f"How many entries at the most, {ENTRIES} by default, {MOST_ENTRIES} at most; fewer where "
        f"they are more than {MOST_PAGE_BYTES >> 20} MiB.",
    ),
    "after": ("string", "`next` of the page before; everything else has to be asked as then."),
    "first": ("string", "Keys from this one on, by key bytes."),
    "last": ("string", "Keys up to this one, included."),
    "prefix": ("string", "Keys whose bytes begin with those of this one."),
    "reverse": ("boolean", "In falling order."),
    "as_of": ("integer", "What it was at this time, ms since the epoch."),
    "from": ("integer", "From this time on, ms since the epoch."),
    "to": ("integer", "Up to this time, included, ms since the epoch."),
    "store": ("string", "The store's name."),
    "key": ("string", "Text as it is, bytes in base64, everything else as JSON."),
    "start": ("integer", "Where the window begins, ms since the epoch."),
}
_STATUS: Mapping[str, str] = {
    "200": "The answer.",
    "307": "Another instance has it: ask there (Location).",
    "400": "The request is not understood: the message says what to mend.",
    "401": "The token is missing or wrong.",
    "404": "No such store, or nothing under this key.",
    "413": "Too large.",
    "503": "It moves, is restored, lags too far, or the brokers do not answer: ask again.",
}


class Described(Protocol):
    """What is told of a path (`routes.Path`)."""

    @property
    def path(self) -> str: ...
    @property
    def words(self) -> str: ...
    @property
    def asks(self) -> Sequence[str]: ...
    @property
    def method(self) -> str: ...


def document(paths: Sequence[Described], version: str, *, secured: bool) -> dict[str, Any]:
    """The OpenAPI document."""
    found: dict[str, Any] = {}
    for path in paths:
        shown = re.sub(r"\{(\w+)(?::\w+)?\}", r"{\1}", path.path)
        found.setdefault(shown, {})[path.method.lower()] = _operation(path, shown)
    content: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Stores of an everflow application", "version": version},
        "paths": found,
    }
    if secured:
        content["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        content["security"] = [{"token": []}]
    return content


def _operation(path: Described, shown: str) -> dict[str, Any]:
    inside = re.findall(r"\{(\w+)\}", shown)
    parameters = [
        {
            "name": name,
            "in": "path" if name in inside else "query",
            "required": name in inside,
            "description": PARAMETERS[name][1],
            "schema": {"type": PARAMETERS[name][0]},
        }
        for name in (*inside, *path.asks)
    ]
    operation: dict[str, Any] = {
        "summary": path.words,
        "parameters": parameters,
        "responses": {status: {"description": words} for status, words in _STATUS.items()},
    }
    if path.method == "POST":
        keys = {"type": "object", "properties": {"keys": {"type": "array"}}, "required": ["keys"]}
        operation["requestBody"] = {"content": {"application/json": {"schema": keys}}}
    return operation


def page(described: Mapping[str, Any]) -> str:
    """A table of the paths."""
    rows = [
        f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(operation['summary'])}</td><td>"
        + "<br>".join(
            f"<code>{escape(one['name'])}</code>: {escape(one['description'])}"
            for one in operation["parameters"]
        )
        + "</td></tr>"
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    ]
    title = escape(described["info"]["title"])
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        "<style>body{font:15px/1.5 system-ui;margin:2rem;max-width:80rem}table{border-collapse:"
        "collapse}td{border-top:1px solid #ccc;padding:.4rem .8rem;vertical-align:top}</style>"
        f"<h1>{title}</h1><p>As <a href=openapi.json>OpenAPI</a>.</p>"
        f"<table>{''.join(rows)}</table></html>"
    )
