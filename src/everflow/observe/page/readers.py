"""Sends the same text to all who read, now and then, as server-sent events.

It is made once for all of them, and only while somebody reads: two hundred open pages cost what
one does.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool

log = logging.getLogger("everflow")

MOST = 200
"""Readers at a time. Others are refused: a connection is left for probes, always."""


class Readers:
    """``make`` gives the text, without line ends, on a worker thread. Its methods belong to one
    event loop, but for `close`."""

    def __init__(self, make: Callable[[], str], every_s: float = 2.0, most: int = MOST) -> None:
        self._make, self._every_s, self._most = make, every_s, most
        self._waiting: set[asyncio.Event] = set()
        self._text = ""
        self._sender: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def full(self) -> bool:
        """No more can read."""
        return len(self._waiting) >= self._most

    async def read(self) -> AsyncIterator[str]:
        """The texts from now on, as events; the first at once. Ends with `close`."""
        self._loop = asyncio.get_running_loop()
        told = asyncio.Event()
        self._waiting.add(told)
        try:
            if self._sender is None:
                self._sender = self._loop.create_task(self._send())
            elif self._text:
                told.set()
            while True:
                await told.wait()
                if self._closed:
                    return
                told.clear()
                yield self._text
        finally:
            self._waiting.discard(told)

    def close(self) -> None:
        """From any thread: nobody reads any more. Returns at once."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell)

    async def _send(self) -> None:
        try:
            while self._waiting and not self._closed:
                self._text = event(await self._made())
                self._tell()
                await asyncio.sleep(self._every_s)
        finally:
            self._sender, self._text = None, ""

    async def _made(self) -> str:
        try:
            return await run_in_threadpool(self._make)
        except Exception as error:  # the next look may succeed
            log.debug("The page's view failed", exc_info=True)
            return json.dumps({"error": f"{type(error).__name__}: the instance's log says more"})

    def _tell(self) -> None:
        for told in self._waiting:
            told.set()


def event(data: str) -> str:
    """An event in the form of text/event-stream."""
    return f"data: {data}\n\n"
