"""The paths of the dashboard: its files, its view as JSON, and the next views as events."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from everflow.errors import EverflowError
from everflow.observe.page.history import Facts
from everflow.observe.page.letters import DeadLetterService, LetterAnswers, RefusedPost
from everflow.observe.page.peers import Peer, Peers
from everflow.observe.page.view import page_view

log = logging.getLogger("everflow")

Answer = Callable[[Request], Awaitable[Response]]
MOST = 200
"""Readers at a time. Others are refused: a connection is left for probes, always."""


class Readers:
    """``make`` gives the text, without line ends, on a worker thread. Its methods belong to one
    event loop, but for `close`."""

    def __init__(self, make: Callable[[], str], every_s: float = 2.0, most: int = MOST) -> None:
        self._make, self._every_s, self._most = make, every_s, most
        self._waiting: set[asyncio.Event] = set()
        self._text = ""
        self._sender: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def full(self) -> bool:
        """No more can read."""
        return len(self._waiting) >= self._most

    async def read(self) -> AsyncIterator[str]:
        """The texts from now on, as events; the first at once. Ends with `close`."""
        self._loop = asyncio.get_running_loop()
        told = asyncio.Event()
        self._waiting.add(told)
        try:
            if self._sender is None:
                self._sender = self._loop.create_task(self._send())
            elif self._text:
                told.set()
            while True:
                await told.wait()
                if self._closed:
                    return
                told.clear()
                yield self._text
        finally:
            self._waiting.discard(told)

    def close(self) -> None:
        """From any thread: nobody reads any more. Returns at once."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell)

    async def _send(self) -> None:
        try:
            while self._waiting and not self._closed:
                self._text = event(await self._made())
                self._tell()
                await asyncio.sleep(self._every_s)
        finally:
            self._sender, self._text = None, ""

    async def _made(self) -> str:
        try:
            return await run_in_threadpool(self._make)
        except Exception as error:  # the next look may succeed
            log.debug("The dashboard's view failed", exc_info=True)
            return json.dumps({"error": f"{type(error).__name__}: the instance's log says more"})

    def _tell(self) -> None:
        for told in self._waiting:
            told.set()


def event(data: str) -> str:
    """An event in the form of text/event-stream."""
    return f"data: {data}\n\n"


ASKS = {"WWW-Authenticate": 'Basic realm="everflow: any name, and the token as the password"'}


def allowed(tokens: Sequence[bytes], header: str) -> bool:
    """``header``: the request's ``Authorization``: ``Bearer TOKEN`` of a program, or what a browser
    sends for a name and the token as the password. Without tokens everybody may."""
    if not tokens:
        return True
    kind, _, given = header.partition(" ")
    text = given.strip().encode()
    if kind.lower() == "basic":
        try:
            text = base64.b64decode(text, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
    elif kind.lower() != "bearer":
        return False
    found = [hmac.compare_digest(text, token) for token in tokens]
    return any(found)


FILES = Path(__file__).parent
DRAWING = "<!-- topology -->"
HEADERS = {
    # Nothing is loaded from elsewhere, and no script runs but the page's own file, whatever a topic
    # is called. The drawing has its styles in itself.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """``facts`` is called on a worker thread. ``drawing``: the topology as an SVG element.
    ``tokens``: one of them has to come with each request; none where it is empty. ``desk``: who
    looks at dead letters and replays them; ``peers``: who asks the other instances how they do;
    None: nobody."""

    facts: Callable[[], Facts]
    drawing: str
    tokens: Sequence[str] = ()
    every_s: float = 2.0
    desk: DeadLetterService | None = None
    peers: Peers | None = None
    readers: Readers = field(init=False)
    letters: LetterAnswers = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "readers", Readers(self._json, self.every_s))
        object.__setattr__(self, "letters", LetterAnswers(self.desk, bool(self.tokens)))

    def needs_token(self, path: str) -> bool:
        """True if it is one of the dashboard's paths, and they need a token."""
        return bool(self.tokens) and (path == "/page" or path.startswith("/page/"))

    def routes(self) -> list[Route]:
        document = (FILES / "page.html").read_text().replace(DRAWING, self.drawing)
        script, style = (FILES / "page.js").read_text(), (FILES / "page.css").read_text()

        async def view(_: Request) -> Response:
            text = await run_in_threadpool(self._json)
            return Response(text, headers=HEADERS, media_type="application/json")

        async def events(_: Request) -> Response:
            if self.readers.full:
                text = "as many as can have it open have it open already\n"
                return PlainTextResponse(text, 503, {**HEADERS, "Retry-After": "10"})
            stream = self.readers.read()
            return StreamingResponse(stream, headers=HEADERS, media_type="text/event-stream")

        return [
            Route("/page", self._guarded(_file(document, "text/html"))),
            Route("/page/page.js", self._guarded(_file(script, "text/javascript"))),
            Route("/page/page.css", self._guarded(_file(style, "text/css"))),
            Route("/page/view", self._guarded(view)),
            Route("/page/events", self._guarded(events)),
            Route("/page/letters", self._guarded(_asked(self.letters.look))),
            Route("/page/replay", self._guarded(_asked(self.letters.replay)), methods=["POST"]),
        ]

    def _guarded(self, answer: Answer) -> Answer:
        tokens = [token.encode() for token in self.tokens]

        async def guarded(request: Request) -> Response:
            authorization = request.headers.get("authorization", "")
            if not allowed(tokens, authorization):
                text = "the dashboard needs a token\n"
                if authorization:
                    text = "the dashboard does not know the token that was sent\n"
                return PlainTextResponse(text, 401, {**HEADERS, **ASKS})
            return await answer(request)

        return guarded

    def _json(self) -> str:
        facts, own = self.facts(), ""
        others: Sequence[Peer] = ()
        if self.peers is not None:
            own, others = self.peers.own, self.peers.look(facts.seen.hosts)
        view = {**page_view(facts, others, own), "desk": self.letters.offer()}
        return json.dumps(view, default=_plain, allow_nan=False)


def _file(content: str, media_type: str) -> Answer:
    async def answered(_: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=media_type)

    return answered


def _asked(work: Callable[[Request], Awaitable[dict[str, Any]]]) -> Answer:
    """The result of requested work, or why it was not done."""

    async def answered(request: Request) -> Response:
        try:
            text = json.dumps(await work(request))
        except RefusedPost as refused:
            return PlainTextResponse(f"{refused}\n", refused.status, HEADERS)
        except EverflowError as error:
            return PlainTextResponse(f"[{error.code}] {error}\n", 503, HEADERS)
        return Response(text, headers=HEADERS, media_type="application/json")

    return answered


def _plain(value: Any) -> Any:
    """Values that JSON does not have: numbers of other libraries."""
    return float(value)
