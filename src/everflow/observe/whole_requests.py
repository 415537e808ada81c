"""A connection whose request does not come is closed.

uvicorn bounds how long one may be idle behind an answer, and not before its first request or within
one. Some hundred of them would keep probes and metrics out
(`everflow.observe.http_server.MOST_CONNECTIONS`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""How long a request may take to arrive, as in most web servers. A connection that is used again
has uvicorn's own time between two requests."""


class WholeRequestsProtocol(H11Protocol):
    """uvicorn's own protocol, with that bound: ``request_s``, in seconds."""

    def __init__(self, *args: Any, request_s: float = REQUEST_S, **named: Any) -> None:
        super().__init__(*args, **named)
        self._request_s = request_s
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """From now on the first request is waited for."""
        super().connection_made(transport)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for."""
        self._unset_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A request is whole, or its rest is waited for."""
        super().data_received(data)
        if self.timeout_keep_alive_task is not None or not self._under_way():
            self._unset_deadline()
        elif self._deadline is None:
            self._wait_for_request()

    def on_response_complete(self) -> None:
        """What was not read of an answered request is not waited for."""
        self._unset_deadline()
        super().on_response_complete()

    def _under_way(self) -> bool:
        return str(self.conn.their_state) in ("IDLE", "SEND_BODY")

    def _wait_for_request(self) -> None:
        self._deadline = self.loop.call_later(self._request_s, self._too_late)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._under_way():
            self.transport.close()
