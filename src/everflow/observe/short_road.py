"""Connections whose plain requests are answered together, beside the general road (note 058)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from everflow.observe.room import Room
from everflow.observe.whole_requests import BoundedLog, WholeRequestsProtocol

MOST_REST_S = 0.012
REST = 20
ENOUGH = 24


def rest_after(look_s: float, answered: int) -> float:
    """Seconds between looks, while several connections ask, by how long the last one took and how
    many it answered. Looks take a twentieth of the time: where there is less of it, because the
    cores are busy, each answers more. Nobody waits for longer than twelve milliseconds, in which
    24 of 2,000 requests a second come; where more share a look, there is less to gain."""
    return min(MOST_REST_S, REST * look_s) * min(1.0, ENOUGH / answered)


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

    def __init__(self, answers: ShortAnswers, sleep: Callable[[float], None] = time.sleep) -> None:
        """``sleep`` blocks for so many seconds."""
        self.understood = answers.understood
        self._bodies = answers.bodies
        self._sleep = sleep
        self._waiting: list[ShortRoadProtocol] = []
        self._alone: ShortRoadProtocol | None = None
        self._rested = 0.0

    def wait(self, one: ShortRoadProtocol, loop: asyncio.AbstractEventLoop) -> None:
        """Answer the connection with the next look."""
        self._waiting.append(one)
        if len(self._waiting) > 1:
            return
        # By then all whose bytes are here come along; 0: as soon as they do.
        loop.call_at(0.0 if self._alone is one else self._rested, self._turn, loop)

    def look(self) -> list[ShortRoadProtocol]:
        """Answer all who wait: those."""
        waiting, self._waiting = [one for one in self._waiting if one.asked is not None], []
        if waiting:
            head = _head(waiting[0].server_state.default_headers)
            bodies = self._bodies([one.asked for one in waiting])
            for one, body in zip(waiting, bodies, strict=True):
                one.answered(body, head)
        return waiting

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """A look, and the rest after it."""
        began = loop.time()
        answered = self.look()
        if not answered:
            return
        ended = loop.time()
        rest = rest_after(ended - began, len(answered))
        self._alone = answered[0] if len(answered) == 1 else None
        self._rested = ended + rest
        if len(answered) > 1 and not answered[0].server_state.tasks:
            # Nobody else has anything to do here: the loop itself rests, and what comes meanwhile
            # wakes it once instead of packet by packet.
            self._sleep(rest)


class ShortRoadProtocol(WholeRequestsProtocol):
    """The short road first, then uvicorn's own protocol, the general road."""

    def __init__(self, *args: Any, reads: ShortReads, **named: Any) -> None:
        super().__init__(*args, **named)
        self._reads = reads
        self._idle = self.conn.our_state  # as it is between two requests
        self._read_at = 0.0
        self._held = b""
        self.asked: Any | None = None
        """What the request asks for that waits for the next look."""

    def waits_since(self) -> float | None:
        """See `everflow.observe.room.Connection`."""
        since = super().waits_since()
        return None if since is None or self.asked is not None else max(since, self._read_at)

    def data_received(self, data: bytes) -> None:
        """Wait for the next look, or leave it to the general road."""
        if self.asked is not None:  # it was not the whole request
            data = self._taken() + data
        elif self._at_rest() and (asked := self._reads.understood(data)) is not None:
            self._unset_deadline()
            self.asked, self._held, self._read_at = asked, data, self.loop.time()
            self._reads.wait(self, self.loop)
            return
        super().data_received(data)

    def answered(self, body: bytes | None, head: bytes) -> None:
        """With the body of what was asked; None: by the general road."""
        data = self._taken()
        if body is None:
            super().data_received(data)
            return
        self.server_state.total_requests += 1
        if self.timeout_keep_alive_task is None:
            self._wait(self.timeout_keep_alive)
        self.transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))

    def eof_received(self) -> None:
        """What was asked is answered before the connection ends."""
        self._reads.look()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there to be answered."""
        self._taken()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """As `eof_received`."""
        self._reads.look()
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
            and not self._room.full
        )


def _head(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Of an answer, up to the length of its body; ``headers``: those of all answers."""
    lines = [b"HTTP/1.1 200 OK", *(b"%b: %b" % pair for pair in headers)]
    return b"\r\n".join([*lines, b"content-type: application/json", b"content-length: "])


def connections(
    answers: ShortAnswers | None, request_s: float, room: Room, said: BoundedLog
) -> Callable[..., asyncio.Protocol]:
    """What makes a connection's protocol, for uvicorn. ``request_s``: how long a request may take
    to arrive, in seconds; ``said`` gets what is said of single requests."""
    given: dict[str, Any] = {"request_s": request_s, "room": room, "said": said}
    if answers is None:
        return partial(WholeRequestsProtocol, **given)
    return partial(ShortRoadProtocol, reads=ShortReads(answers), **given)
