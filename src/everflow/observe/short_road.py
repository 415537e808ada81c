"""A connection whose plain requests are answered where their bytes arrive (note 058)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

ShortAnswer = Callable[[bytes], bytes | None]
"""The body (JSON) that answers the bytes that have arrived, with status 200; None: they go the
general road. Called on the event loop, so it does not wait."""


class ShortRoadProtocol(H11Protocol):
    """The short road first, then uvicorn's own protocol, the general road."""

    def __init__(self, *args: Any, answer: ShortAnswer, **named: Any) -> None:
        super().__init__(*args, **named)
        self._answer = answer
        self._idle = self.conn.our_state  # as it is between two requests
        self._read_at = 0.0

    def data_received(self, data: bytes) -> None:
        """Answer at once, or leave it to the general road."""
        body = self._answer(data) if self._at_rest() else None
        if body is None:
            super().data_received(data)
            return
        self._read_at = self.loop.time()
        self.server_state.total_requests += 1
        head = [b"HTTP/1.1 200 OK\r\n"]
        head += [b"%b: %b\r\n" % pair for pair in self.server_state.default_headers]
        length = b"content-length: %d\r\ncontent-type: application/json\r\n\r\n" % len(body)
        if self.timeout_keep_alive_task is None:
            self._wait(self.timeout_keep_alive)
        self.transport.write(b"".join((*head, length, body)))

    def timeout_keep_alive_handler(self) -> None:
        """Nothing has come on the general road for a while; close, unless the other one is used."""
        left = self._read_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._wait(left)
        else:
            super().timeout_keep_alive_handler()

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


def connections(answer: ShortAnswer) -> Callable[..., asyncio.Protocol]:
    """What makes a connection's protocol, for uvicorn."""

    def made(*args: Any, **named: Any) -> asyncio.Protocol:
        return ShortRoadProtocol(*args, answer=answer, **named)

    return made
