"""How this instance asks the others how they do: with its token and their scheme (note 060)."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from everflow.clock import Clock, SystemClock
from everflow.config import StreamsConfig
from everflow.errors import ConfigError

if TYPE_CHECKING:
    from everflow.observe.page.peers import Peers


def peers_of(
    config: StreamsConfig,
    tokens: Sequence[str],
    own: Callable[[], str],
    clock: Clock | None = None,
) -> Peers:
    """``tokens``: of ``query.token.file``, of which all instances know the first; ``own``: this
    instance's address. ConfigError for an authority's file that cannot be used."""
    from everflow.observe.page.peers import (
        Peers,
        StatusClient,
    )  # as the server: a third of a second

    client = StatusClient(
        application_id=config.application_id,
        token=tokens[0] if tokens else "",
        tls=_trust(config),
    )
    return Peers(client, own, clock or SystemClock())


def _trust(config: StreamsConfig) -> ssl.SSLContext | None:
    """None: the instances' query services speak http, as this one's does."""
    authority = config.query_ssl_ca_location
    if not config.query_ssl_certificate_location:
        return None
    try:
        return ssl.create_default_context(cafile=authority or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"query.ssl.ca.location = {authority!r} cannot be used ({error}): it names the "
            f"authority (PEM) that has signed the instances' certificates."
        ) from error
