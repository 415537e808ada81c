"""Connections whose plain requests are answered together, beside the general road (note 058)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from uvicorn.protocols.http.h11_impl import H11Protocol

PAUSE_S = 0.005
"""Between two looks, while several connections ask: at 2,000 requests a second one look answers
ten."""


class ShortAnswers(Protocol):
    """What answers plain requests. Called on the event loop, so it does not wait."""

    def understood(self, request: bytes) -> Any | None:
        """What these bytes ask for; None: they go the general road."""

    def bodies(self, asked: Sequence[Any]) -> Sequence[bytes | None]:
        """The bodies (JSON) of answers with status 200; None: the request goes the general
        road."""


class ShortReads:
    """Who waits for the next look, of one server; on its event loop alone.

    A connection that asks by itself, one request after the other, is answered at once: nobody
    would come to share its look.
    """

    def __init__(self, answers: ShortAnswers) -> None:
        self.understood = answers.understood
        self._bodies = answers.bodies
        self._waiting: list[ShortRoadProtocol] = []
        self._alone: ShortRoadProtocol | None = None
        self._rested = 0.0

    def wait(self, one: ShortRoadProtocol, loop: asyncio.AbstractEventLoop) -> None:
        """Answer the connection with the next look."""
        self._waiting.append(one)
        if len(self._waiting) > 1:
            return
        # By then all whose bytes are here come along; 0: as soon as they do.
        loop.call_at(0.0 if self._alone is one else self._rested, self.look, loop)

    def look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer all who wait."""
        waiting, self._waiting = [one for one in self._waiting if one.asked is not None], []
        if not waiting:
            return
        self._alone = waiting[0] if len(waiting) == 1 else None
        for one, body in zip(waiting, self._bodies([one.asked for one in waiting]), strict=True):
            one.answered(body)
        self._rested = loop.time() + PAUSE_S


class ShortRoadProtocol(H11Protocol):
    """The short road first, then uvicorn's own protocol, the general road."""

    def __init__(self, *args: Any, reads: ShortReads, **named: Any) -> None:
        super().__init__(*args, **named)
        self._reads = reads
        self._idle = self.conn.our_state  # as it is between two requests
        self._read_at = 0.0
        self._held = b""
        self.asked: Any | None = None
        """What the request asks for that waits for the next look."""

    def data_received(self, data: bytes) -> None:
        """Wait for the next look, or leave it to the general road."""
        if self.asked is not None:  # it was not the whole request
            data = self._taken() + data
        elif self._at_rest() and (asked := self._reads.understood(data)) is not None:
            self.asked, self._held, self._read_at = asked, data, self.loop.time()
            self._reads.wait(self, self.loop)
            return
        super().data_received(data)

    def answered(self, body: bytes | None) -> None:
        """With the body of what was asked; None: by the general road."""
        data = self._taken()
        if body is None:
            super().data_received(data)
            return
        self.server_state.total_requests += 1
        head = [b"HTTP/1.1 200 OK\r\n"]
        head += [b"%b: %b\r\n" % pair for pair in self.server_state.default_headers]
        length = b"content-length: %d\r\ncontent-type: application/json\r\n\r\n" % len(body)
        if self.timeout_keep_alive_task is None:
            self._wait(self.timeout_keep_alive)
        self.transport.write(b"".join((*head, length, body)))

    def eof_received(self) -> None:
        """What was asked is answered before the connection ends."""
        self._reads.look(self.loop)
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there to be answered."""
        self._taken()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """As `eof_received`."""
        self._reads.look(self.loop)
        super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing has come on the general road for a while; close, unless the other one is used."""
        left = self._read_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._wait(left)
        else:
            super().timeout_keep_alive_handler()

    def _taken(self) -> bytes:
        """The request that waited; it waits no longer."""
        data, self._held, self.asked = self._held, b"", None
        return data

    def _wait(self, seconds: float) -> None:
        handler = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, handler)

    def _at_rest(self) -> bool:
        """Whether the general road has nothing of this connection in hand, and there is room for
        an answer."""
        return (
            (self.cycle is None or self.cycle.response_complete)
            and self.conn.their_state is self._idle
            and self.conn.our_state is self._idle
            and not self.conn.trailing_data[0]
            and not self.flow.write_paused
            and not self.transport.is_closing()
            and (self.limit_concurrency is None or len(self.connections) < self.limit_concurrency)
        )


def connections(answers: ShortAnswers) -> Callable[..., asyncio.Protocol]:
    """What makes a connection's protocol, for uvicorn."""
    reads = ShortReads(answers)

    def made(*args: Any, **named: Any) -> asyncio.Protocol:
        return ShortRoadProtocol(*args, reads=reads, **named)

    return made
