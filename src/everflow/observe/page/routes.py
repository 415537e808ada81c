"""The paths of the dashboard: its files, its view as JSON, and its dead letters."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from everflow.errors import EverflowError
from everflow.observe.host_names import allowed
from everflow.observe.page.history import Facts
from everflow.observe.page.letters import DeadLetterService, LetterAnswers, RefusedPost
from everflow.observe.page.peers import Peer, Peers
from everflow.observe.page.view import page_view

log = logging.getLogger("everflow")

Answer = Callable[[Request], Awaitable[Response]]
ASKS = {"WWW-Authenticate": 'Basic realm="everflow: any name, and the token as the password"'}


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


@dataclass(kw_only=True)
class Page:
    """``facts`` is called on a worker thread, at most every ``every_s`` seconds, and only while
    somebody reads. ``drawing``: the topology as an SVG element. ``tokens``: one of them has to come
    with each request; none where it is empty. ``desk``: who looks at dead letters and replays them;
    ``peers``: who asks the other instances how they do; None: nobody."""

    facts: Callable[[], Facts]
    drawing: str
    tokens: Sequence[str] = ()
    every_s: float = 2.0
    desk: DeadLetterService | None = None
    peers: Peers | None = None
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _made: tuple[float, str] | None = None

    def __post_init__(self) -> None:
        self._letters = LetterAnswers(self.desk, bool(self.tokens))

    def needs_token(self, path: str) -> bool:
        """True if it is one of the dashboard's paths, and they need a token."""
        return bool(self.tokens) and (path == "/page" or path.startswith("/page/"))

    def routes(self) -> list[Route]:
        document = (FILES / "page.html").read_text().replace(DRAWING, self.drawing)
        script, style = (FILES / "page.js").read_text(), (FILES / "page.css").read_text()

        async def view(_: Request) -> Response:
            text = await run_in_threadpool(self._view)
            return Response(text, headers=HEADERS, media_type="application/json")

        return [
            Route("/page", self._guarded(_file(document, "text/html"))),
            Route("/page/page.js", self._guarded(_file(script, "text/javascript"))),
            Route("/page/page.css", self._guarded(_file(style, "text/css"))),
            Route("/page/view", self._guarded(view)),
            Route("/page/letters", self._guarded(_asked(self._letters.look))),
            Route("/page/replay", self._guarded(_asked(self._letters.replay)), methods=["POST"]),
        ]

    def _guarded(self, answer: Answer) -> Answer:
        tokens = [token.encode() for token in self.tokens]

        async def guarded(request: Request) -> Response:
            authorization = request.headers.get("authorization", "")
            if not allowed(tokens, authorization, passwords=True):
                text = "the dashboard needs a token\n"
                if authorization:
                    text = "the dashboard does not know the token that was sent\n"
                return PlainTextResponse(text, 401, {**HEADERS, **ASKS})
            return await answer(request)

        return guarded

    def _view(self) -> str:
        """One for all readers of the same seconds."""
        with self._lock:
            if self._made is None or self.clock() - self._made[0] >= self.every_s:
                try:
                    text = self._json()
                except Exception as error:  # the next look may succeed
                    log.debug("The dashboard's view failed", exc_info=True)
                    kind = type(error).__name__
                    text = json.dumps({"error": f"{kind}: the instance's log says more"})
                self._made = self.clock(), text
            return self._made[1]

    def _json(self) -> str:
        facts, own = self.facts(), ""
        others: Sequence[Peer] = ()
        if self.peers is not None:
            own, others = self.peers.own, self.peers.look(facts.seen.hosts)
        view = {**page_view(facts, others, own), "desk": self._letters.offer()}
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
