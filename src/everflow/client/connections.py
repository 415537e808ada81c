"""Requests to the query service: kept connections, redirections to owners, patience."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from everflow.errors import EverflowError

MOST_REDIRECTIONS = 4
MOST_ANSWER_BYTES = 256 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class QueryRefusedError(EverflowError):
    """The service does not answer this: no such store, a key of another type, a wrong token.

    Attributes: status, of HTTP.
    """

    code = "EF-QUERY"

    def __init__(self, message: str, *, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code or self.code


class QueryUnavailableError(EverflowError):
    """Nobody had an answer within the time that the client has patience for: the last reason is in
    the text. Ask again, allow a copy (``stale=True``), or look at the application."""

    code = "EF-QUERY-UNAVAILABLE"


@dataclass(frozen=True)
class Reply:
    """``status`` and content of an answer; ``location``: who has it instead."""

    status: int
    content: Any
    location: str | None = None


class Connections:
    """Kept open, one to each instance. Owned by one thread at a time."""

    def __init__(
        self,
        servers: Sequence[str],
        token: str | None,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """``servers``: host:port each, asked in turn. ``timeout_s``: of one answer;
        ``patience_s``: how long what moves, or is away, is asked for again."""
        self._servers = list(servers)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._tls = tls
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._clock, self._pause = clock, pause
        self._open: dict[str, http.client.HTTPConnection] = {}

    def ask(self, path: str, body: bytes | None = None, at: str | None = None) -> Any:
        """The answer's content, from whoever has it; ``body``: JSON; ``at`` is asked first. Raises
        QueryRefusedError, QueryUnavailableError."""
        until_s, pause_s = self._clock() + self._patience_s, FIRST_PAUSE_S
        while True:
            reason = ""
            for server in dict.fromkeys([*([] if at is None else [at]), *self._servers]):
                found, told = self._followed(server, path, body)
                if found is not None:
                    return found
                self._servers.sort(key=server.__eq__)  # last from now on
                reason = f"{server}: {told}"
            if self._clock() + pause_s > until_s:
                raise QueryUnavailableError(f"{path}: no answer ({reason})")
            self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        """Drop the connections; asking makes new ones."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def _followed(self, server: str, path: str, body: bytes | None) -> tuple[Any, str]:
        """The content, or None and why there is none for now."""
        for _ in range(MOST_REDIRECTIONS):
            try:
                reply = self._sent(server, path, body)
            except (OSError, http.client.HTTPException, ValueError) as failure:
                self._drop(server)
                return None, f"{type(failure).__name__}: {failure}"
            if reply.status == 200:
                return reply.content, ""
            if reply.status == 307 and reply.location is not None:
                server = urlsplit(reply.location).netloc
                continue
            error = reply.content.get("error") if isinstance(reply.content, dict) else None
            if not isinstance(error, dict):
                if reply.status >= 500:  # of a proxy, for example
                    return None, f"status {reply.status}"
                raise _stranger(server, reply.status)
            message = str(error.get("message", f"status {reply.status}"))
            if reply.status >= 500:
                return None, message
            raise QueryRefusedError(message, status=reply.status, code=str(error.get("code", "")))
        return None, "each instance names another one"

    def _sent(self, server: str, path: str, body: bytes | None) -> Reply:
        kept = server in self._open
        connection = self._connection(server)
        try:
            connection.request("GET" if body is None else "POST", path, body, self._headers)
            answer = connection.getresponse()
        except (ConnectionError, http.client.RemoteDisconnected):
            if not kept:
                raise
            self._drop(server)  # it was closed while nobody asked
            return self._sent(server, path, body)
        content = answer.read(MOST_ANSWER_BYTES + 1)
        if len(content) > MOST_ANSWER_BYTES:
            self._drop(server)
            raise QueryRefusedError(
                f"The answer of {server} to {path} is larger than {MOST_ANSWER_BYTES:,} bytes: ask "
                f"for fewer entries at once (limit), or for fewer keys.",
                status=answer.status,
            )
        try:
            found = json.loads(content) if content else None
        except ValueError as error:
            if answer.status < 500:
                raise _stranger(server, answer.status) from error
            found = None
        return Reply(answer.status, found, answer.getheader("Location"))

    def _connection(self, server: str) -> http.client.HTTPConnection:
        if server not in self._open:
            if self._tls is None:
                self._open[server] = http.client.HTTPConnection(server, timeout=self._timeout_s)
            else:
                self._open[server] = http.client.HTTPSConnection(
                    server, timeout=self._timeout_s, context=self._tls
                )
        return self._open[server]

    def _drop(self, server: str) -> None:
        connection = self._open.pop(server, None)
        if connection is not None:
            connection.close()


def _stranger(server: str, status: int) -> QueryRefusedError:
    return QueryRefusedError(
        f"What answered at {server} (status {status}) is no query service: give the address of "
        f"query.listen, which is not that of http.listen.",
        status=status,
    )
