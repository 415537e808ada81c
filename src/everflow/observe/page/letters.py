"""The dead letters of an instance's topic, by cause, with a sample of each, and their replay.

A sample is a record that somebody sent, and a replay writes: both need a token (note 056). Both
ask the brokers, so an open dashboard does not load them: a reader requests them, one
at a time, and an answer is shared for some seconds.

A browser sends what any site tells it to send, with the password that it knows for this address. So
a request that does something is a POST of JSON, which a foreign site's form cannot send, and says
that it comes from this very page. A program says nothing of that kind, and has a token.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

FRESH_S = 5.0
OF_RECORD, NOW = "record", "now"
"""The time that a replayed record gets, as of ``everflow dlq replay --timestamp``."""
NO_TOKEN = "records are shown and replayed for a token only: set query.token.file"
NO_TOPIC = "the application has no dead letter topic: set errors.dead.letter.queue.topic.name"


MOST_BODY_BYTES = 16 << 10
JSON = "application/json"
T = TypeVar("T")


class RefusedPost(Exception):
    """It is not done: the HTTP status, and why, for people."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def from_this_page(headers: Mapping[str, str]) -> bool:
    """True if a program has sent it, or a browser for a page of this very server."""
    site = headers.get("sec-fetch-site")
    if site is not None:  # of every browser, where the address is this host's or encrypted
        return site == "same-origin"
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


async def posted(request: Request) -> dict[str, Any]:
    """The JSON object of a request from our page. Raises RefusedPost."""
    if not from_this_page(request.headers):
        raise RefusedPost(403, "not for another site's page")
    if request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
        raise RefusedPost(415, f"the body is {JSON}")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise RefusedPost(413, f"at most {MOST_BODY_BYTES} bytes")
    try:
        content = json.loads(bytes(body))
    except ValueError as error:
        raise RefusedPost(400, f"the body is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise RefusedPost(400, "the body is a JSON object")
    return content


def text_in(content: Mapping[str, Any], name: str) -> str:
    """A text of a posted object. Raises RefusedPost."""
    found = content.get(name)
    if not isinstance(found, str):
        raise RefusedPost(400, f"{name} is a text")
    return found


class LetterCause(NamedTuple):
    """The error's class, the node, the source topic."""

    exception: str
    node: str
    topic: str


@dataclass(frozen=True, kw_only=True)
class CauseLetters:
    """``letters`` of a cause, of which ``open`` can be replayed; ``late`` of those are older than
    the newest record where they go (None: brokers before 3.0 do not tell that); ``sample``: the
    last one, whole but for what is large, for people."""

    cause: LetterCause
    letters: int
    open: int
    sample: str
    late: int | None = None


@dataclass(frozen=True, kw_only=True)
class LettersFound:
    """What is in the topic; ``earlier``: offsets before those that were looked at."""

    topic: str
    causes: Sequence[CauseLetters]
    earlier: int = 0


@dataclass(frozen=True, kw_only=True)
class LettersReplayed:
    """``replayed`` now, and ``left`` to replay of the cause; ``error``: what has ended it, for
    people. What is counted as replayed is."""

    replayed: int
    left: int
    error: str = ""


class DeadLetterService(Protocol):
    """Access to the topic. Both methods block for seconds and raise EverflowError."""

    @property
    def topic(self) -> str:
        """Its name."""

    def look(self) -> LettersFound:
        """Its letters, by cause."""

    def replay(self, cause: LetterCause, time_ms: int | None) -> LettersReplayed:
        """Write those of a cause again, each once for good: with the time of its record, or all
        with ``time_ms``."""


class LetterAnswers:
    """The answers of the dashboard's two paths; ``desk`` None: there is no topic; ``secured``: the
    client has shown a token. Its methods belong to one event loop."""

    def __init__(
        self,
        desk: DeadLetterService | None,
        secured: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk, self._secured, self._clock = desk, secured, clock
        self._busy = threading.Lock()
        self._seen: tuple[float, dict[str, Any]] | None = None

    def offer(self) -> dict[str, str]:
        """The topic that can be read, or why none can."""
        if self._desk is None or not self._secured:
            return {"topic": "", "why": NO_TOPIC if self._desk is None else NO_TOKEN}
        return {"topic": self._desk.topic, "why": ""}

    async def look(self, _: Request) -> dict[str, Any]:
        """For a GET. Raises RefusedPost, EverflowError."""
        desk = self._open()
        if self._seen is None or self._clock() - self._seen[0] >= FRESH_S:
            found = await self._alone(desk.look)
            self._seen = self._clock(), _plain(found)
        return self._seen[1]

    async def replay(self, request: Request) -> dict[str, Any]:
        """For a POST that names a cause. Raises RefusedPost, EverflowError."""
        desk = self._open()
        content = await posted(request)
        cause = LetterCause(*(text_in(content, name) for name in LetterCause._fields))
        timestamp = content.get("timestamp", OF_RECORD)
        if timestamp not in (OF_RECORD, NOW):
            raise RefusedPost(400, f"timestamp is {OF_RECORD} or {NOW}")
        time_ms = int(time.time() * 1000) if timestamp == NOW else None
        self._seen = None
        return asdict(await self._alone(lambda: desk.replay(cause, time_ms)))

    async def _alone(self, work: Callable[[], T]) -> T:
        """On a worker thread, once at a time, whoever asks: others are refused, not queued."""

        def alone() -> T:
            if not self._busy.acquire(blocking=False):
                text = "somebody looks at the dead letters, or replays them, already"
                raise RefusedPost(409, f"{text}: try again in a moment")
            try:
                return work()
            finally:
                self._busy.release()

        return await run_in_threadpool(alone)

    def _open(self) -> DeadLetterService:
        if self._desk is None or not self._secured:
            raise RefusedPost(403, self.offer()["why"])
        return self._desk


def _plain(found: LettersFound) -> dict[str, Any]:
    causes = [{**asdict(one), **one.cause._asdict()} for one in found.causes]
    for one in causes:
        del one["cause"]
    return {"topic": found.topic, "causes": causes, "earlier": found.earlier}
