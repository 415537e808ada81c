"""Asks a host over HTTP past any proxy: an instance, a fleet's driver, a pod's API server.

A proxy of the environment (``HTTP_PROXY``) knows neither 127.0.0.1 of this host nor a cluster's
pods, and Python's ``NO_PROXY`` has no ranges of addresses.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from urllib.parse import urlsplit

MOST_BYTES = 64 << 20


class BrokenAnswerError(ConnectionError):
    """The answer is no HTTP, ended before its end, or is too large."""


class RefusedError(OSError):
    """An answer whose ``status`` is no success; its text is the reason, in a line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def asked(
    url: str,
    timeout_s: float,
    *,
    post: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """The body of the answer to a GET, or with ``post`` to a POST of it; ``timeout_s``: from the
    connection to the last byte. A redirection is not followed: what is in the headers is for this
    host alone. OSError where no answer came: TimeoutError, RefusedError, BrokenAnswerError."""
    late = threading.Event()
    try:
        parts = urlsplit(url)
        with closing(
            connection_to(
                parts.scheme,
                parts.netloc,
                timeout_s,
                tls,
            )
        ) as connection:
            connection.connect()
            sock = connection.sock

            def hang_up() -> None:  # the socket's own time-out begins anew with each byte
                late.set()
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

            timer = threading.Timer(timeout_s, hang_up)
            timer.daemon = True
            timer.start()
            try:
                method = "GET" if post is None else "POST"
                connection.request(method, parts.path or "/", post, dict(headers or {}))
                answer = connection.getresponse()
                body = answer.read(most_bytes + 1)
            finally:
                timer.cancel()
    except (OSError, http.client.HTTPException) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise TimeoutError(f"its answer took more than {timeout_s:g} s") from error
        if isinstance(error, OSError):
            raise
        raise BrokenAnswerError(f"{type(error).__name__}: {error}") from error
    if late.is_set():
        raise TimeoutError(f"its answer took more than {timeout_s:g} s")
    if len(body) > most_bytes:
        raise BrokenAnswerError(f"its answer has more than {most_bytes:,} bytes")
    if not 200 <= answer.status < 300:
        raise RefusedError(answer.status, _reason(body) or answer.reason)
    return body


def connection_to(
    scheme: str, place: str, timeout_s: float, tls: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(place, timeout=timeout_s, context=tls)
    return http.client.HTTPConnection(place, timeout=timeout_s)


def _reason(body: bytes) -> str:
    text = body[:2_000].decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):  # the form of the servers' own refusals
        text = str(json.loads(text)["error"]["message"])
    return " ".join(text.split())


def no_answer(error: OSError) -> str:
    return str(error.strerror or error)
