"""Opens the query service of an instance: address, tokens, certificate."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.logs import moves
from everflow.runtime.query.queries import InteractiveQueries, StoreQueries

NO_TOKEN = "none"
LEAST_TOKEN = 16
"""Characters."""


@contextmanager
def served(
    stores: InteractiveQueries,
    queries: Callable[[], StoreQueries],
    config: StreamsConfig,
    status: Callable[[], dict[str, Any]] | None = None,
) -> Iterator[str]:
    """The stores over HTTP until the end of the block; the address at which other instances and
    clients reach it (``application.server``). ``status``: how the instance does, where it is
    watched. ConfigError where it cannot listen, or nobody could be kept out."""
    from everflow.observe.host_names import ANY, OwnNames
    from everflow.observe.http_server import HttpServer  # a third of a second
    from everflow.runtime.serving.answers import ServedStores
    from everflow.runtime.serving.routes import application

    tokens = tokens_of(config)
    files = _certificate(config)
    scheme = "http" if files is None else "https"
    answers = ServedStores(stores, queries, status)
    app = application(answers, tokens, scheme, version("everflow"))
    # Who has shown a token may call it what he likes: no foreign site's page has one.
    own = [ANY] if tokens else [config.application_server, *config.allowed_hosts]
    names = OwnNames(config.query_listen, own)
    server = HttpServer(config.query_listen, app, "query.listen", files, names=names)
    address = config.application_server or reached_at(server.address, socket.getfqdn())
    moves.info("Stores are served at %s://%s", scheme, address)
    try:
        yield address
    finally:
        server.close()


def tokens_of(config: StreamsConfig) -> list[str]:
    """The lines of ``query.token.file``; with several of them a new token can be given out before
    the old one goes. ConfigError for a file that cannot be read, a token that is guessed easily, or
    none at an address that others reach."""
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
    """``address`` as others can reach it: where it stands for all addresses of the machine, the
    machine's ``name``."""
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
