"""A process that reads an instance over HTTP until its standard input ends:
`python -m bench.readers.reading ...`.

Windows of many keys a request at one pace, the page's events in many connections, and `/metrics`
each second. One loop over epoll that looks every few milliseconds, so that the readers take little
of the machine that they share with what is measured; an answer counts when it is looked at. It
prints READY when all pages are open and a read was answered, and counts from then on.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SCRAPE_S = 1.0
TICK_S = 0.004
RECEIVED = 1 << 18
HEAD_ENDS = b"\r\n\r\n"
LENGTH = b"content-length: "
EVENT = b"data: "


@dataclass
class Exchange:
    """One connection with at most one request in flight; ``due``: when that should have been sent,
    0: none is."""

    connection: socket.socket
    due: float = 0.0
    data: bytearray = field(default_factory=bytearray)

    def ask(self, request: bytes, due: float) -> None:
        """Send a request."""
        self.due = due
        self.connection.sendall(request)

    def answered(self) -> int:
        """Take what has come; the status of a whole answer, 0 while it is not whole."""
        self.data += self.connection.recv(RECEIVED)
        body = self.data.find(HEAD_ENDS) + len(HEAD_ENDS)
        if body < len(HEAD_ENDS):
            return 0
        head = self.data[:body].lower()
        length = int(head.split(LENGTH, 1)[1].split(b"\r\n", 1)[0])
        if len(self.data) < body + length:
            return 0
        self.data.clear()
        return int(head.split(b" ", 2)[1])


@dataclass
class Counted:
    """What was read since READY; a read is a request for the windows of ``together`` keys."""

    together: int = 1
    latencies_ms: list[float] = field(default_factory=list)
    scrapes_ms: list[float] = field(default_factory=list)
    errors: int = 0
    events: int = 0
    began: float = field(default_factory=time.monotonic)
    processor_s: float = field(default_factory=time.process_time)


class ReadersLoop:
    """All readers, on one thread."""

    def __init__(self, options: argparse.Namespace, requests: Sequence[bytes]) -> None:
        self._requests, self._asked = requests, 0
        self._rate = options.rate / options.together
        self._together = options.together
        self._epoll = select.epoll()
        self._reads: dict[int, Exchange] = {}
        for _ in range(options.connections):
            exchange = Exchange(self._connect(options.query))
            self._reads[exchange.connection.fileno()] = exchange
        self._idle = deque(self._reads.values())
        self._scrape = Exchange(self._connect(options.page))
        self._scrape_request = get(options.page, "/metrics")
        self._pages: dict[int, socket.socket] = {}
        for _ in range(options.pages):
            page = self._connect(options.page)
            page.sendall(get(options.page, "/page/events"))
            self._pages[page.fileno()] = page
        self._opened: set[int] = set()
        self.counted = Counted(self._together)
        self._began = time.monotonic()
        self._next_scrape = self._began

    @property
    def ready(self) -> bool:
        """All pages have had an event, and a read was answered."""
        return len(self._opened) == len(self._pages) and bool(self.counted.latencies_ms)

    def turn(self) -> None:
        """Send what is due, and take what has come a tick later."""
        now = time.monotonic()
        due = int((now - self._began) * self._rate)
        while self._asked < due and self._idle:
            at = self._began + (self._asked + 1) / self._rate
            self._idle.popleft().ask(self._requests[self._asked % len(self._requests)], at)
            self._asked += 1
        if now >= self._next_scrape and not self._scrape.due:
            self._scrape.ask(self._scrape_request, now)
            self._next_scrape = now + SCRAPE_S
        time.sleep(TICK_S)
        for descriptor, _ in self._epoll.poll(0):
            if descriptor in self._reads:
                self._take(self._reads[descriptor], self.counted.latencies_ms)
            elif descriptor in self._pages:
                self._take_event(descriptor)
            else:
                self._take(self._scrape, self.counted.scrapes_ms)

    def restart(self) -> None:
        """Count from now on."""
        self._began, self._asked = time.monotonic(), 0
        self.counted = Counted(self._together)

    def _take(self, exchange: Exchange, took_ms: list[float]) -> None:
        status = exchange.answered()
        if not status:
            return
        took_ms.append((time.monotonic() - exchange.due) * 1000)
        self.counted.errors += status != 200
        exchange.due = 0.0
        if exchange is not self._scrape:
            self._idle.append(exchange)

    def _take_event(self, descriptor: int) -> None:
        data = self._pages[descriptor].recv(RECEIVED)
        events = data.count(EVENT)
        if not data or (descriptor not in self._opened and not data.startswith(b"HTTP/1.1 200")):
            raise ConnectionError(f"a page was refused: {data[:80]!r}")
        self._opened.add(descriptor)
        self.counted.events += events

    def _connect(self, address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        return connection


def get(address: str, path: str) -> bytes:
    """A request as a client of HTTP/1.1 sends it."""
    return f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept-Encoding: identity\r\n\r\n".encode()


def post(address: str, path: str, keys: Sequence[str]) -> bytes:
    """The same for what ``path`` has of many keys."""
    body = json.dumps({"keys": keys})
    return (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\nAccept-Encoding: identity\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def report_of(counted: Counted) -> dict[str, float]:
    """The figures, in ms, seconds and numbers a second."""
    seconds = time.monotonic() - counted.began
    return {
        "seconds": seconds,
        "reads": len(counted.latencies_ms) * counted.together / seconds,
        "read_p50": float(np.percentile(counted.latencies_ms, 50)),
        "read_p99": float(np.percentile(counted.latencies_ms, 99)),
        "events": counted.events / seconds,
        "scrapes": len(counted.scrapes_ms),
        "scrape_max": max(counted.scrapes_ms, default=0.0),
        "errors": counted.errors,
        "processor": (time.process_time() - counted.processor_s) / seconds,
    }


def main() -> None:
    """Writes the report as JSON when it ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--query", required=True, help="host:port of the query service")
    parser.add_argument("--page", required=True, help="host:port of the page and of /metrics")
    parser.add_argument(
        "--path", action="append", required=True, help="of the keys' windows; in turn"
    )
    parser.add_argument("--key", action="append", required=True, help="in turn")
    parser.add_argument("--together", type=int, required=True, help="keys of a request")
    parser.add_argument("--rate", type=float, required=True, help="keys/s")
    parser.add_argument("--pages", type=int, required=True)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args()
    parts = [
        options.key[begin : begin + options.together]
        for begin in range(0, len(options.key), options.together)
    ]
    requests = [post(options.query, path, part) for path in options.path for part in parts]
    loop = ReadersLoop(options, requests)
    os.set_blocking(sys.stdin.fileno(), False)
    ready = False
    while sys.stdin.buffer.read() != b"":  # None: nobody has closed it yet
        for _ in range(20):
            loop.turn()
        if not ready and loop.ready:
            ready = True
            loop.restart()
            print("READY", flush=True)
    options.report.write_text(json.dumps(report_of(loop.counted)))


if __name__ == "__main__":
    main()
