"""Opens the query service of an instance over HTTP, and describes its paths (design note 052)."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from everflow.config import StreamsConfig
from everflow.errors import ConfigError, EverflowError, RetriableError
from everflow.instance.query.queries import InteractiveQueries
from everflow.instance.serving.answers import (
    ENTRIES,
    MOST_BODY_BYTES,
    MOST_ENTRIES,
    MOST_PAGE_BYTES,
    Parameters,
    ServedStores,
    as_json,
    malformed,
    shortened,
)
from everflow.logs import rebalance_log
from everflow.observe.http_server import HttpServer
from everflow.observe.requests import ANY, OwnNames, RefusedRequest, allowed, body_of
from everflow.serdes import SerdeError
from everflow.snapshots.query_errors import (
    InvalidStateStoreError,
    StateElsewhereError,
    StoreKindError,
    StoreNotFoundError,
)

log = logging.getLogger("everflow")

_RETRY = {"Retry-After": "1"}
_TOO_LARGE = f"The body is larger than {MOST_BODY_BYTES} bytes: ask for fewer keys at once."
Answer = Callable[..., Any]


@dataclass(frozen=True)
class ServicePath:
    """A path, and the method that ``answer``s it; ``asks``: names of query parameters."""

    path: str
    answer: str
    words: str
    asks: Sequence[str] = ()
    method: str = "GET"


COPIES = ("stale", "max_lag", "partition")
PAGED = (*COPIES, "limit", "after")
KEYS = ("first", "last", "prefix", "reverse", *PAGED)
TIMES = ("from", "to", "reverse", *PAGED)
KEYS_AND_TIMES = ("first", "last", *TIMES)
ONE, AT = "/stores/{store}", "/stores/{store}/window/{start}"
PATHS: Sequence[ServicePath] = (
    ServicePath("/stores", "listed", "Every store, and which of its partitions can be read here."),
    ServicePath(ONE, "described", "One store, and about how many entries it has.", COPIES),
    ServicePath("/instances", "instances", "The hosts and their stores, as of the last rebalance."),
    ServicePath("/status", "status", "The instance's status, if it has http.listen."),
    ServicePath(f"{ONE}/owner/{{key:path}}", "owner", "The host of a key."),
    ServicePath(f"{ONE}/entries", "entries", "Entries here, in order of key bytes.", KEYS),
    ServicePath(f"{ONE}/entries", "entries_of", "The values of many keys.", COPIES, "POST"),
    ServicePath(
        f"{ONE}/entries/{{key:path}}",
        "entry",
        "The value of a key.",
        (*COPIES, "as_of"),
    ),
    ServicePath(
        f"{ONE}/versions/{{key:path}}", "versions", "A key's versions.", (*COPIES, "from", "to")
    ),
    ServicePath(
        f"{ONE}/windows", "windows", "Windows here that begin in an interval.", KEYS_AND_TIMES
    ),
    ServicePath(f"{AT}/{{key:path}}", "window", "The window of a key at a time.", COPIES),
    ServicePath(AT, "window_of", "The windows of many keys at a time.", COPIES, "POST"),
    ServicePath(
        f"{ONE}/windows/{{key:path}}",
        "windows",
        "A key's windows in an interval.",
        TIMES,
    ),
    ServicePath(
        f"{ONE}/sessions", "sessions", "Sessions here that touch an interval.", KEYS_AND_TIMES
    ),
    ServicePath(
        f"{ONE}/sessions/{{key:path}}", "sessions", "A key's sessions in an interval.", TIMES
    ),
)


def application(
    answers: ServedStores, tokens: Sequence[str], scheme: str, version: str
) -> Starlette:
    """``tokens``: each request needs one of them. ``scheme``: of other instances, too."""
    described = document(PATHS, version, secured=bool(tokens))
    guard = partial(allowed, tuple(token.encode() for token in tokens))

    async def openapi(_: Request) -> Response:
        return _json(described)

    routes = [
        Route(path.path, _endpoint(path, answers, guard, scheme), methods=[path.method])
        for path in PATHS
    ]
    return Starlette(
        routes=[Route("/", openapi), Route("/openapi.json", openapi), *routes],
        exception_handlers={HTTPException: _unknown},
    )


def _endpoint(
    path: ServicePath, answers: ServedStores, guard: Callable[[str], bool], scheme: str
) -> Callable[[Request], Any]:
    answer: Answer = getattr(answers, path.answer)
    keyless = path.answer in ("windows", "sessions") and "{key" not in path.path

    async def endpoint(request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        if not guard(authorization):
            asks = {"WWW-Authenticate": "Bearer"}
            return _json(_error("EF-QUERY-TOKEN", _token_refused(authorization)), 401, asks)
        try:
            _require_text(request)
            arguments: dict[str, Any] = dict(request.path_params)
            if keyless:
                arguments["key"] = None
            if path.method == "POST":
                arguments["body"] = await body_of(request, MOST_BODY_BYTES, _TOO_LARGE)
            asked = Parameters(request.query_params.multi_items(), path.asks)
            return _json(await run_in_threadpool(partial(answer, asked, **arguments)))
        except Exception as error:
            return _refusal(error, request, scheme)

    return endpoint


def _token_refused(authorization: str) -> str:
    kind, _, credentials = authorization.partition(" ")
    if kind.lower() == "bearer" and credentials.strip():
        return "The token that was sent is not one that this service knows (query.token.file)."
    return "This service asks for a token: send the header Authorization: Bearer TOKEN."


def _require_text(request: Request) -> None:
    """RefusedRequest for bytes that are no text: another key would be looked for."""
    sent = request.scope.get("raw_path") or b"", request.scope["query_string"]
    for part, words in zip(sent, ("path", "part behind the ?"), strict=True):
        try:
            unquote_to_bytes(part).decode()
        except UnicodeDecodeError as error:
            raise malformed(
                f"The {words} is not UTF-8 ({error}): quote a key's text as UTF-8; keys that are "
                f"bytes stand in base64."
            ) from error


def _refusal(error: Exception, request: Request, scheme: str) -> Response:
    if isinstance(error, RefusedRequest):
        return _json(_error(error.code, str(error)), error.status)
    if isinstance(error, StateElsewhereError) and error.host is not None:
        query = f"?{request.url.query}" if request.url.query else ""
        there = f"{scheme}://{error.host}{_raw_path(request)}{query}"
        return _json(
            {**_error(error.code, str(error)), "host": error.host}, 307, {"Location": there}
        )
    if isinstance(error, InvalidStateStoreError | RetriableError):
        return _json(_error(error.code, str(error)), 503, _RETRY)
    if isinstance(error, StoreNotFoundError):
        return _json(_error(error.code, str(error)), 404)
    if isinstance(error, StoreKindError | SerdeError):
        return _json(_error(error.code, str(error)), 400)
    log.exception("The query %s failed", request.url.path)
    code = error.code if isinstance(error, EverflowError) else "EF-ERROR"
    return _json(_error(code, f"{type(error).__name__}: see the instance's log."), 500)


def _raw_path(request: Request) -> str:
    """As it was sent: a key may hold what a path quotes."""
    raw = request.scope.get("raw_path")
    return raw.decode("ascii") if isinstance(raw, bytes) else request.url.path


async def _unknown(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        return _json(_error("EF-QUERY", f"{request.method} is not asked for here."), 405)
    text = f"There is no {shortened(request.url.path)}; / lists what can be asked."
    return _json(_error("EF-QUERY", text), status)


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


def _json(
    content: Any,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    return Response(as_json(content), status, headers, media_type="application/json")


# --- its description, as OpenAPI 3.1 --------------------------------------------------------------

PARAMETERS: Mapping[str, tuple[str, str]] = {
    "stale": ("boolean", "Also from a copy: a standby, or one that is being restored."),
    "max_lag": ("integer", "The maximal lag of such a copy, in offsets."),
    "partition": ("integer", "Only this partition of the store."),
    "limit": (
        "integer",
        f"The maximal number of entries, by default {ENTRIES}, at most {MOST_ENTRIES}; fewer if "
        f"they are larger than {MOST_PAGE_BYTES >> 20} MiB.",
    ),
    "after": ("string", "`next` of the page before; all other parameters have to be the same."),
    "first": ("string", "Keys from this one on, by key bytes."),
    "last": ("string", "Keys up to this one, included."),
    "prefix": ("string", "Keys whose bytes begin with those of this one."),
    "reverse": ("boolean", "In falling order."),
    "as_of": ("integer", "The version at this time, ms since the epoch."),
    "from": ("integer", "From this time on, ms since the epoch."),
    "to": ("integer", "Up to this time, included, ms since the epoch."),
    "store": ("string", "The store's name."),
    "key": ("string", "Text as it is, bytes in base64, everything else as JSON."),
    "start": ("integer", "Where the window begins, ms since the epoch."),
}
_STATUS: Mapping[str, str] = {
    "200": "The answer.",
    "307": "Another instance has it: ask there (Location).",
    "400": "The request is wrong: the message has the cure.",
    "401": "The token is missing or wrong.",
    "404": "No such store, or nothing under this key.",
    "413": "Too large.",
    "503": "The partition moves, is restored or lags too far, or no broker answers: ask again.",
}


def document(paths: Sequence[ServicePath], version: str, *, secured: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in paths:
        shown = re.sub(r"\{(\w+)(?::\w+)?\}", r"{\1}", path.path)
        found.setdefault(shown, {})[path.method.lower()] = _operation(path, shown)
    content: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Stores of an everflow application", "version": version},
        "paths": found,
    }
    if secured:
        content["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        content["security"] = [{"token": []}]
    return content


def _operation(path: ServicePath, shown: str) -> dict[str, Any]:
    inside = re.findall(r"\{(\w+)\}", shown)
    parameters = [
        {
            "name": name,
            "in": "path" if name in inside else "query",
            "required": name in inside,
            "description": PARAMETERS[name][1],
            "schema": {"type": PARAMETERS[name][0]},
        }
        for name in (*inside, *path.asks)
    ]
    operation: dict[str, Any] = {
        "summary": path.words,
        "parameters": parameters,
        "responses": {status: {"description": words} for status, words in _STATUS.items()},
    }
    if path.method == "POST":
        keys = {"type": "object", "properties": {"keys": {"type": "array"}}, "required": ["keys"]}
        operation["requestBody"] = {"content": {"application/json": {"schema": keys}}}
    return operation


NO_TOKEN = "none"
LEAST_TOKEN = 16
"""Characters."""


@contextmanager
def served(
    stores: InteractiveQueries,
    config: StreamsConfig,
    status: Callable[[], dict[str, Any]] | None = None,
) -> Iterator[str]:
    """Serve the stores over HTTP until the end of the block; gives its ``application.server``.
    ConfigError if it cannot listen, or has no guard."""
    tokens = tokens_of(config)
    files = _certificate(config)
    scheme = "http" if files is None else "https"
    answers = ServedStores(stores, status)
    app = application(answers, tokens, scheme, version("everflow"))
    # With a token any host name is allowed: no foreign site's page has a token.
    own = [ANY] if tokens else [config.application_server, *config.allowed_hosts]
    names = OwnNames(config.query_listen, own)
    server = HttpServer(config.query_listen, app, "query.listen", files, names=names)
    address = config.application_server or reached_at(server.address, socket.getfqdn())
    rebalance_log.info("Stores are served at %s://%s", scheme, address)
    try:
        yield address
    finally:
        server.close()


def tokens_of(config: StreamsConfig) -> list[str]:
    """The lines of ``query.token.file``: several, while a new token replaces an old one.
    ConfigError for a bad file or token, or none at an address that others reach."""
    name = config.query_token_file
    if name == NO_TOKEN:
        return []
    if not name:
        if _loopback(config.query_listen):
            return []
        raise ConfigError(
            f"query.listen = {config.query_listen!r} lets everybody who reaches this address read "
            f"the stores. Name a file that holds a token (query.token.file), or say that none is "
            f"wanted: query.token.file = {NO_TOKEN}."
        )
    try:
        lines = Path(name).expanduser().read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"query.token.file = {name!r} cannot be read ({reason}).") from error
    short = [len(line) for line in lines if len(line) < LEAST_TOKEN]
    if not lines or short:
        raise ConfigError(
            f"query.token.file = {name!r} holds {'no token' if not lines else 'a short token'}: "
            f"write at least {LEAST_TOKEN} characters, as `openssl rand -hex 32` makes them."
        )
    return lines


def reached_at(address: str, name: str) -> str:
    """``address`` as others reach it: for all addresses of the machine its ``name``."""
    host, _, port = address.rpartition(":")
    return f"{name}:{port}" if host in ("0.0.0.0", "[::]") else address


def _loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _certificate(config: StreamsConfig) -> tuple[str, str] | None:
    """Files of certificate and key; ConfigError where one is missing or they do not fit."""
    certificate, key = config.query_ssl_certificate_location, config.query_ssl_key_location
    if not certificate and not key:
        return None
    if not certificate or not key:
        raise ConfigError(
            "query.ssl.certificate.location and query.ssl.key.location go together: the first "
            "names the certificate (PEM, with its chain), the second its key."
        )
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"query.ssl.certificate.location = {certificate!r} and query.ssl.key.location = "
            f"{key!r} cannot be used ({error})."
        ) from error
    return certificate, key
