"""The paths of the dashboard: its files, its view as JSON, and its dead letters.

Dead letters and their replay need a token (note 056). Both ask the brokers, so an open dashboard
does not load them: a reader requests them, one at a time, and an answer is shared for some seconds.

A browser sends what any site tells it to. So a request that does something is a POST of JSON, as no
foreign form sends, and says that it comes from this very page; a program has a token instead.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from everflow.errors import EverflowError
from everflow.observe.page.history import Facts
from everflow.observe.page.other_instances import OtherInstance, OtherInstances
from everflow.observe.page.view import page_view
from everflow.observe.requests import RefusedRequest, allowed, body_of

log = logging.getLogger("everflow")

FRESH_S = 5.0
OF_RECORD, NOW = "record", "now"
"""The time that a replayed record gets, as of ``everflow dlq replay --timestamp``."""
NO_TOKEN = "records are shown and replayed for a token only: set query.token.file"
NO_TOPIC = "the application has no dead letter topic: set errors.dead.letter.queue.topic.name"


MOST_BODY_BYTES = 16 << 10
JSON = "application/json"
T = TypeVar("T")


def from_this_page(headers: Mapping[str, str]) -> bool:
    """True if a program has sent it, or a browser for a page of this very server."""
    site = headers.get("sec-fetch-site")
    if site is not None:  # of every browser, where the address is this host's or encrypted
        return site == "same-origin"
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


async def posted(request: Request) -> dict[str, Any]:
    """The JSON object of a request from our page. Raises RefusedRequest."""
    if not from_this_page(request.headers):
        raise RefusedRequest(403, "not for another site's page")
    if request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
        raise RefusedRequest(415, f"the body is {JSON}")
    body = await body_of(request, MOST_BODY_BYTES, f"at most {MOST_BODY_BYTES} bytes")
    try:
        content = json.loads(body)
    except ValueError as error:
        raise RefusedRequest(400, f"the body is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise RefusedRequest(400, "the body is a JSON object")
    return content


def text_in(content: Mapping[str, Any], name: str) -> str:
    found = content.get(name)
    if not isinstance(found, str):
        raise RefusedRequest(400, f"{name} is a text")
    return found


class LetterCause(NamedTuple):
    """The error's class, the node, the source topic."""

    exception: str
    node: str
    topic: str


@dataclass(frozen=True, kw_only=True)
class CauseLetters:
    """``letters`` of a cause, of which ``open`` can be replayed; ``late`` of those are older than
    the newest record where they go (None: brokers before 3.0); ``sample``: the last one, cut."""

    cause: LetterCause
    letters: int
    open: int
    sample: str
    late: int | None = None


@dataclass(frozen=True, kw_only=True)
class LettersFound:
    """What is in the topic; ``earlier``: offsets before those that were read."""

    topic: str
    causes: Sequence[CauseLetters]
    earlier: int = 0


@dataclass(frozen=True, kw_only=True)
class LettersReplayed:
    """``replayed`` now for good, and ``left`` of the cause; ``error``: why it ended, for people."""

    replayed: int
    left: int
    error: str = ""


class DeadLetterService(Protocol):
    """Access to the topic. Both methods block for seconds and raise EverflowError."""

    @property
    def topic(self) -> str:
        """Its name."""

    def by_cause(self) -> LettersFound:
        """Its letters, by cause."""

    def replay(self, cause: LetterCause, time_ms: int | None) -> LettersReplayed:
        """Write those of a cause again, each once for good, at its record's time or ``time_ms``."""


Answer = Callable[[Request], Awaitable[Response]]
ASKS = {"WWW-Authenticate": 'Basic realm="everflow: any name, and the token as the password"'}
FILES = Path(__file__).parent
MERMAID = "mermaid-12.0.0.js"
"""What draws the topology: packed beside this file, with where it comes from in mermaid.NOTICE."""
HEADERS = {
    # No script runs but the page's own files. Mermaid puts a style element into each drawing, so
    # styles may stand in the page; they can load nothing.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
KEPT = {"Content-Encoding": "gzip", "Cache-Control": "private, max-age=31536000, immutable"}
"""Of a file whose name has its version: 2.9 MB, 0.8 of them packed."""


@dataclass(kw_only=True)
class Page:
    """``facts`` is called on a worker thread, at most every ``every_s`` seconds, while somebody
    reads. ``drawing``: the topology for Mermaid, as `drawing_json` gives it. ``tokens``: each
    request needs one, if there are any. ``desk``: for dead letters; ``other_instances``: asks
    them; None: nobody."""

    facts: Callable[[], Facts]
    drawing: str
    tokens: Sequence[str] = ()
    every_s: float = 2.0
    desk: DeadLetterService | None = None
    other_instances: OtherInstances | None = None
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _made: tuple[float, str] | None = None
    _busy: threading.Lock = field(default_factory=threading.Lock)
    _seen: tuple[float, dict[str, Any]] | None = None

    def needs_token(self, path: str) -> bool:
        return bool(self.tokens) and (path == "/page" or path.startswith("/page/"))

    def routes(self) -> list[Route]:
        document, script, style = (
            (FILES / name).read_text() for name in ("page.html", "page.js", "page.css")
        )

        async def view(_: Request) -> Response:
            text = await run_in_threadpool(self._view)
            return Response(text, headers=HEADERS, media_type="application/json")

        async def mermaid(_: Request) -> Response:
            headers = {**HEADERS, **KEPT}
            return FileResponse(FILES / f"{MERMAID}.gz", 200, headers, "text/javascript")

        return [
            Route("/page", self._guarded(_file(document, "text/html"))),
            Route("/page/page.js", self._guarded(_file(script, "text/javascript"))),
            Route("/page/page.css", self._guarded(_file(style, "text/css"))),
            Route("/page/drawing", self._guarded(_file(self.drawing, JSON))),
            Route(f"/page/{MERMAID}", self._guarded(mermaid)),
            Route("/page/view", self._guarded(view)),
            Route("/page/letters", self._guarded(_asked(self._letters))),
            Route("/page/replay", self._guarded(_asked(self._replay)), methods=["POST"]),
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
                except Exception as error:  # the next reading may succeed
                    log.debug("The dashboard's view failed", exc_info=True)
                    kind = type(error).__name__
                    text = json.dumps({"error": f"{kind}: the instance's log says more"})
                self._made = self.clock(), text
            return self._made[1]

    def _json(self) -> str:
        facts, own = self.facts(), ""
        others: Sequence[OtherInstance] = ()
        if self.other_instances is not None:
            own, others = self.other_instances.own(), self.other_instances.states(facts.seen.hosts)
        view = {**page_view(facts, others, own), "desk": self._offer()}
        return json.dumps(view, default=float, allow_nan=False)

    # --- dead letters, for who has shown a token; on one event loop -------------------------------

    def _offer(self) -> dict[str, str]:
        if self.desk is None or not self.tokens:
            return {"topic": "", "why": NO_TOPIC if self.desk is None else NO_TOKEN}
        return {"topic": self.desk.topic, "why": ""}

    async def _letters(self, _: Request) -> dict[str, Any]:
        """For a GET. Raises RefusedRequest, EverflowError."""
        desk = self._open()
        if self._seen is None or self.clock() - self._seen[0] >= FRESH_S:
            found = await self._alone(desk.by_cause)
            causes = [{**asdict(one), **one.cause._asdict()} for one in found.causes]
            for one in causes:
                del one["cause"]
            plain = {"topic": found.topic, "causes": causes, "earlier": found.earlier}
            self._seen = self.clock(), plain
        return self._seen[1]

    async def _replay(self, request: Request) -> dict[str, Any]:
        """For a POST that names a cause. Raises RefusedRequest, EverflowError."""
        desk = self._open()
        content = await posted(request)
        cause = LetterCause(*(text_in(content, name) for name in LetterCause._fields))
        timestamp = content.get("timestamp", OF_RECORD)
        if timestamp not in (OF_RECORD, NOW):
            raise RefusedRequest(400, f"timestamp is {OF_RECORD} or {NOW}")
        time_ms = int(time.time() * 1000) if timestamp == NOW else None
        self._seen = None
        return asdict(await self._alone(lambda: desk.replay(cause, time_ms)))

    async def _alone(self, work: Callable[[], T]) -> T:
        """On a worker thread, one request at a time: others are refused, not queued."""

        def alone() -> T:
            if not self._busy.acquire(blocking=False):
                text = "somebody looks at the dead letters, or replays them, already"
                raise RefusedRequest(409, f"{text}: try again in a moment")
            try:
                return work()
            finally:
                self._busy.release()

        return await run_in_threadpool(alone)

    def _open(self) -> DeadLetterService:
        if self.desk is None or not self.tokens:
            raise RefusedRequest(403, self._offer()["why"])
        return self.desk


def _file(content: str, media_type: str) -> Answer:
    async def answered(_: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=media_type)

    return answered


def _asked(work: Callable[[Request], Awaitable[dict[str, Any]]]) -> Answer:

    async def answered(request: Request) -> Response:
        try:
            text = json.dumps(await work(request))
        except RefusedRequest as refused:
            return PlainTextResponse(f"{refused}\n", refused.status, HEADERS)
        except EverflowError as error:
            return PlainTextResponse(f"[{error.code}] {error}\n", 503, HEADERS)
        return Response(text, headers=HEADERS, media_type="application/json")

    return answered
