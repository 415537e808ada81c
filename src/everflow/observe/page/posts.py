"""Requests that change something: a browser may send them for the dashboard, no other site may.

A browser sends what any site tells it to send, with the password that it knows for this address. So
a request that does something is a POST of JSON, which a foreign site's form cannot send, and says
that it comes from this very page. A program says nothing of that kind, and has a token.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

T = TypeVar("T")

MOST_BODY_BYTES = 16 << 10
JSON = "application/json"


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


class OneAtATime:
    """Expensive work runs once at a time, whoever asks: other requests are refused, not queued."""

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """On a worker thread. Raises RefusedPost."""
        return await run_in_threadpool(self._alone, work)

    def _alone(self, work: Callable[[], T]) -> T:
        if not self._lock.acquire(blocking=False):
            raise RefusedPost(409, f"{self._what} already: try again in a moment")
        try:
            return work()
        finally:
            self._lock.release()
