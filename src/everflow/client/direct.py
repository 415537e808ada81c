"""Asks a host over HTTP past any proxy: an instance, a fleet's driver, a pod's API server.

What the environment names as a proxy (``HTTP_PROXY``) is the way out of a network. It knows neither
127.0.0.1 of this host nor the pods of a cluster, and Python's ``NO_PROXY`` has no ranges of
addresses.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from contextlib import suppress

MOST_BYTES = 64 << 20


class BrokenAnswerError(ConnectionError):
    """The answer is no HTTP, or ended before its end."""


def asked(
    request: str | urllib.request.Request,
    timeout_s: float,
    *,
    tls: ssl.SSLContext | None = None,
) -> bytes:
    """The body of the answer, or its first 64 MiB; ``timeout_s``: without a byte of it.
    OSError where none came: HTTPError, which is one, for a refusal; BrokenAnswerError."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=tls))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            return bytes(answer.read(MOST_BYTES))
    except OSError:  # a connection that was closed before an answer is of both kinds
        raise
    except http.client.HTTPException as error:
        raise BrokenAnswerError(f"{type(error).__name__}: {error}") from error


def no_answer(error: Exception) -> str:
    """Why nobody has answered, in the system's words: without what urllib puts around them."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(getattr(reason, "strerror", None) or reason)


def timed_out(error: Exception) -> bool:
    """True if nobody refused, and nothing came."""
    return isinstance(getattr(error, "reason", error), TimeoutError)


def refused_with(error: urllib.error.HTTPError) -> str:
    """The reason of a refusal, in a line."""
    try:
        text = error.read(2_000).decode(errors="replace")
        with suppress(ValueError, KeyError, TypeError):  # the form of the servers' own refusals
            text = str(json.loads(text)["error"]["message"])
        said = text.split()
    except (OSError, http.client.HTTPException):
        said = []
    return " ".join(said) or str(error.reason)
