"""An HTTP service on loopback that takes its time: `python -m bench.calls.service --ms 50`.

It prints its port, and ends at the end of standard input. Some answers are errors, some never come:
drawn anew for each request, so a second attempt mostly succeeds. With `--refuse` it knows nothing
of numbers that end in `REFUSED`, however often it is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

REFUSED = 777
"""Of each thousand numbers one: 404."""
_SEED = 70
_TEXTS = {200: "OK", 404: "Not Found", 500: "Internal Server Error"}


def is_refused(number: int) -> bool:
    """Whether a service that refuses knows no answer for this number."""
    return number % 1_000 == REFUSED


class Answers(asyncio.Protocol):
    """One connection; requests come one after the other (`GET /<number>`)."""

    def __init__(self, drawn: random.Random, options: argparse.Namespace) -> None:
        self._drawn, self._options = drawn, options
        self._read = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Kept, to write to."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answers each whole request after its time."""
        self._read += data
        while b"\r\n\r\n" in self._read:
            head, _, self._read = self._read.partition(b"\r\n\r\n")
            number = int(head.split(b" ", 2)[1].removeprefix(b"/"))
            luck = self._drawn.random() * 100
            if luck < self._options.hang:
                continue
            status = 500 if luck < self._options.hang + self._options.fail else 200
            status = 404 if self._options.refuse and is_refused(number) else status
            asyncio.get_running_loop().call_later(self._options.ms / 1000, self._answer, status)

    def _answer(self, status: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            head = f"HTTP/1.1 {status} {_TEXTS[status]}\r\nContent-Length: 1\r\n\r\n1"
            self._transport.write(head.encode())


async def serve(options: argparse.Namespace) -> None:
    """Until standard input ends."""
    loop, drawn = asyncio.get_running_loop(), random.Random(_SEED)
    server = await loop.create_server(
        lambda: Answers(drawn, options), "127.0.0.1", 0, backlog=4_096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await loop.run_in_executor(None, sys.stdin.buffer.read)


def main() -> None:
    """Times in ms, shares in %."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ms", type=float, required=True)
    parser.add_argument("--fail", type=float, default=0.0)
    parser.add_argument("--hang", type=float, default=0.0)
    parser.add_argument("--refuse", action="store_true")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
