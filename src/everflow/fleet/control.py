"""The door of a fleet's driver: keepers report, operators look and resize."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from everflow.fleet.messages import TOKEN_HEADER, Report, Wanted

MOST_INSTANCES = 1_000
MOST_BODY_BYTES = 8 << 20
"""Above the lines of a report, of which each character may take 6 bytes."""


@dataclass(frozen=True)
class Doors:
    """What the routes call, on threads of the server: ``reported`` for a keeper, ``shown`` and
    ``resize(least, most)`` for an operator. ``own_hosts``: addresses of the driver's host, from
    which operators are heard."""

    token: str
    own_hosts: frozenset[str]
    reported: Callable[[Report], Wanted]
    shown: Callable[[], dict[str, Any]]
    resize: Callable[[int, int], None]


def application(doors: Doors) -> Starlette:
    """The routes."""

    async def report(request: Request) -> Response:
        shown = request.headers.get(TOKEN_HEADER, "").encode()  # a text must be ASCII there
        if not secrets.compare_digest(shown, doors.token.encode()):
            return PlainTextResponse("this is no keeper of this fleet\n", status_code=403)
        try:
            told = Report.from_json(json.loads(await _body(request)))
        except (TypeError, ValueError) as error:
            return PlainTextResponse(f"no report: {error}\n", status_code=400)
        wanted = await run_in_threadpool(lambda: doors.reported(told))
        return JSONResponse({"wanted": wanted.value})

    async def fleet(request: Request) -> Response:
        return _only_from_here(request, doors) or JSONResponse(doors.shown())

    async def scale(request: Request) -> Response:
        refused = _only_from_here(request, doors)
        if refused is not None:
            return refused
        try:
            least, most = sizes(json.loads(await _body(request)))
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        doors.resize(least, most)
        return JSONResponse(doors.shown())

    return Starlette(
        routes=[
            Route("/report", report, methods=["POST"]),
            Route("/fleet", fleet),
            Route("/scale", scale, methods=["POST"]),
        ]
    )


async def _body(request: Request) -> bytes:
    """ValueError for a larger one than anybody has to send."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY_BYTES:
            raise ValueError(f"it is larger than {MOST_BODY_BYTES:,} bytes")
    return body


def sizes(asked: Any) -> tuple[int, int]:
    """How many instances at least and at most; ValueError for what asks for neither."""
    if not isinstance(asked, dict):
        raise ValueError(f"{json.dumps(asked)} does not say how many instances")
    least = asked.get("instances")
    most = asked.get("max") or least
    if type(least) is not int or type(most) is not int or not 1 <= least <= most <= MOST_INSTANCES:
        raise ValueError(
            f"instances={least}, max={most}: a fleet has 1 to {MOST_INSTANCES:,} instances, and "
            f"max is no smaller"
        )
    return least, most


def _only_from_here(request: Request, doors: Doors) -> Response | None:
    # Whoever works on that host may have a browser there, in which any site's page could send this.
    if "origin" in request.headers:
        return PlainTextResponse("not from a browser\n", status_code=403)
    host = request.client.host if request.client is not None else ""
    if host in doors.own_hosts:
        return None
    return PlainTextResponse("only from the host of the fleet's driver\n", status_code=403)
