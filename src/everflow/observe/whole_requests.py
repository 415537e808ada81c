"""A connection whose request does not come is closed.

uvicorn bounds how long one may be idle behind an answer, and not before its first request or within
one; and where there are as many connections as it was allowed, it refuses everybody
(`everflow.observe.room`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from everflow.observe.room import Room

log = logging.getLogger("everflow")

REQUEST_S = 10.0
"""How long a request may take to arrive, as in most web servers. A connection that is used again
has uvicorn's own time between two requests."""
SAID_EVERY_S = 60.0


class BoundedLog:
    """What uvicorn says of single requests: a line for each kind of them in `SAID_EVERY_S`, with
    the number of those that were left out. Whoever reaches the address decides how many there are.
    """

    level = logging.WARNING  # uvicorn looks whether it shall say more

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address, self._clock = address, clock
        self._said: dict[str, tuple[float, int]] = {}

    def warning(self, text: str, *_: object) -> None:
        """Something about a request, or about a connection."""
        self._say(logging.WARNING, text, None)

    def error(self, text: str, *_: object, exc_info: BaseException | None = None) -> None:
        """An exception of an answer."""
        self._say(logging.ERROR, text, exc_info)

    def info(self, *_: object, **__: object) -> None:
        """Nothing."""

    def log(self, *_: object, **__: object) -> None:
        """Nothing: uvicorn's traces."""

    def _say(self, level: int, text: str, error: BaseException | None) -> None:
        kind = text.strip() if error is None else f"{text.strip()}: {type(error).__name__}"
        at_s, left_out = self._said.get(kind, (-SAID_EVERY_S, 0))
        now_s = self._clock()
        if now_s - at_s < SAID_EVERY_S:
            self._said[kind] = at_s, left_out + 1
            return
        self._said[kind] = now_s, 0
        more = f" ({left_out:,} more since the last such line)" if left_out else ""
        log.log(level, "The HTTP server at %s: %s%s", self._address, kind, more, exc_info=error)


class WholeRequestsProtocol(H11Protocol):
    """uvicorn's own protocol, with that bound: ``request_s``, in seconds."""

    def __init__(
        self,
        *args: Any,
        room: Room | None = None,
        said: BoundedLog | None = None,
        request_s: float = REQUEST_S,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self._room = room or Room()
        if said is not None:
            self.logger = cast(logging.Logger, said)
        self._request_s = request_s
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_since = 0.0

    @property
    def address(self) -> str:
        """See `everflow.observe.room.Connection`."""
        return self.client[0] if self.client else ""

    def waits_since(self) -> float | None:
        """See `everflow.observe.room.Connection`: of a client that does not read its answer the
        time of the one before."""
        answered = self.cycle is None or self.cycle.response_complete
        return (
            self._waits_since if answered or self._under_way() or self.flow.write_paused else None
        )

    def give_way(self) -> None:
        """See `everflow.observe.room.Connection`."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """From now on the first request is waited for."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        if self._room.came(self):
            self._wait_for_request()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for."""
        self._room.left(self)
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
        self._waits_since = self.loop.time()
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
