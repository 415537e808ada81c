"""What a server asks of a request: the name by which it calls it (Host), its token, its size.

A browser does what any site tells it to, and lets that site read the answer where the site's own
name points to this host (DNS rebinding): only Host says on whose behalf it asks. So what needs no
token is answered only where Host is a name that nobody else can have.
"""

from __future__ import annotations

import base64
import functools
import hmac
import ipaddress
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from starlette.requests import Request

ANY = "*"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{0,5})?", re.ASCII)
_ABSOLUTE = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class OwnNames:
    """The names of a server. Ports are not compared: a forwarded port has another number.

    These are: ``localhost`` and loopback addresses; the address that is listened at, where it is
    all addresses of the machine every address in numbers, as no name has to be looked up for it;
    where others reach it, the machine's own names; and ``names``.
    """

    def __init__(self, listen: str, names: Iterable[str] = ()) -> None:
        """``listen``: host:port; ``names``: host or host:port, each; ``*`` is any."""
        allowed_names = [name.strip().lower() for name in names]
        self.any = ANY in allowed_names
        host = _bare(listen.lower()) or ""
        address = _address(host)
        self._everywhere = address is not None and address.is_unspecified
        here = {"localhost", host, *(_bare(name) or name for name in allowed_names)}
        if not self.any and host != "localhost" and not (address and address.is_loopback):
            here.update(_machine_names())
        self._names = here - {""}
        self._addresses = {found for name in self._names if (found := _address(name)) is not None}

    def named(self, header: str) -> bool:
        if self.any:
            return True
        host = _bare(header.lower())
        if host is None:
            return False
        address = _address(host)
        if address is None:
            return host in self._names
        return self._everywhere or address.is_loopback or address in self._addresses


def _bare(header: str) -> str | None:
    """The host without its port, its brackets and the dot behind it; None for what is none."""
    found = _HOST.fullmatch(header)
    return None if found is None else found[1].strip("[]").removesuffix(".")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


@functools.cache
def _machine_names() -> frozenset[str]:
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


def own_host_only(
    app: Application,
    names: OwnNames,
    free: Callable[[str], bool],
) -> Application:
    """The application, for requests whose Host is one of ``names``, or whose path is ``free``: that
    tells nothing, or needs a token. An absolute target names its own host (RFC 9112, 3.2.2)."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        absolute = _ABSOLUTE.fullmatch(scope["raw_path"])
        if absolute is not None:
            host, raw = absolute[1], absolute[2] or b"/"
            scope = {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii"))}
        header = host.decode("latin-1").strip()
        if names.named(header) or free(scope["path"]):
            await app(scope, receive, send)
        else:
            text = f"This service is not called {header[:200]!r}: ask by an address of its own, or "
            text += "name this host in http.allowed.hosts where it is one of yours."
            await answer(send, 421, "EF-HOST", text)

    return answered


def allowed(tokens: Sequence[bytes], authorization: str, *, passwords: bool = False) -> bool:
    """True if the header has one of the tokens, or there is no token: ``Bearer TOKEN``; with
    ``passwords`` also what a browser sends for a name and the token as the password."""
    if not tokens:
        return True
    kind, _, credentials = authorization.partition(" ")
    text = credentials.strip().encode()
    if passwords and kind.lower() == "basic":
        try:
            text = base64.b64decode(text, validate=True).partition(b":")[2]
        except ValueError:
            return False
    elif kind.lower() != "bearer":
        return False
    found = [hmac.compare_digest(text, token) for token in tokens]
    return any(found)


class RefusedRequest(Exception):
    """A refusal of a request: the HTTP status, what to mend, and the code of the error."""

    def __init__(self, status: int, why: str, code: str = "EF-QUERY") -> None:
        super().__init__(why)
        self.status, self.code = status, code


async def body_of(request: Request, most: int, too_large: str) -> bytes:
    """The body; RefusedRequest with the text ``too_large`` for more bytes than ``most``."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise RefusedRequest(413, too_large)
    return bytes(body)


async def answer(send: Send, status: int, code: str, message: str) -> None:
    """An error in the query service's form; the connection ends with it."""
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
