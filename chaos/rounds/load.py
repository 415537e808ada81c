"""Sends orders at one pace, with bad ones where they are asked for, and keeps what it sent."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from confluent_kafka import Producer

from bench.topics import JAVA_PARTITIONER
from chaos.rounds.orders import SHOPS as ALL_SHOPS
from chaos.rounds.orders import Kind, Order, Orders, row
from chaos.rounds.program import ORDERS, PAYMENTS, SHOPS, topic

FLUSH_S = 120.0
PAUSE_S = 0.02
BEHIND_MS = 6 * 3_600_000
"""So far behind the clock a run begins: orders of a high rate are quicker than the clock, and a
broker refuses what is more than an hour before its own."""


class _LastLines(logging.Handler):
    """What a client said last: told when it does not get on, and else to nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=20)
        self.logger = logging.Logger("chaos-load", logging.INFO)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{time.strftime('%H:%M:%S')} {record.getMessage()}")


class Load(threading.Thread):
    """Owned by one thread. `fill`, then `start`; `stop` ends it. A broker that is away is waited
    for by the producer, which never gives up and never repeats."""

    def __init__(self, bootstrap: str, application: str, seed: int, rate: float) -> None:
        super().__init__(name="chaos-load", daemon=True)
        self._application, self._rate = application, rate
        self._orders = Orders(seed, time.time_ns() // 1_000_000 - BEHIND_MS)
        self._lock = threading.Lock()
        self._sent: list[Order] = []
        self._asked: deque[Kind] = deque()
        self._stop_asked = threading.Event()
        self._failures: list[str] = []
        self._told = _LastLines()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": JAVA_PARTITIONER,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "message.max.bytes": 2_000_000,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
            },
            logger=self._told.logger,
        )

    def fill(self, orders: int) -> None:
        """The table, and so many first orders, which every partition's time begins with."""
        for shop in ALL_SHOPS:
            self._produce(SHOPS, shop, row(shop, 0).encode(), 1)
        self._flush()
        for _ in range(orders):
            self._send(None)
        self._flush()

    def ask(self, kinds: Sequence[Kind]) -> None:
        """Send these as soon as possible, between others."""
        with self._lock:
            self._asked.extend(kinds)

    def send_now(self, kinds: Sequence[Kind]) -> None:
        """Send these and wait for the broker to have them; once the thread has ended."""
        for kind in kinds:
            self._send(kind)
        self._flush()

    def sent(self) -> list[Order]:
        """All orders so far; those that were asked for are among them when `asked_for` is 0."""
        with self._lock:
            return list(self._sent)

    @property
    def asked_for(self) -> int:
        """What was asked for and not sent yet."""
        with self._lock:
            return len(self._asked)

    def run(self) -> None:
        try:
            began, number = time.monotonic(), 0
            while not self._stop_asked.wait(PAUSE_S):
                due = int((time.monotonic() - began) * self._rate)
                while number < due:
                    number += 1
                    with self._lock:
                        kind = self._asked.popleft() if self._asked and number % 3 == 0 else None
                    self._send(kind)
                self._producer.poll(0)
        except BaseException as error:
            self._failures.append(repr(error))

    def stop(self) -> None:
        """End the thread, once all is acknowledged. RuntimeError if something was refused."""
        self._stop_asked.set()
        if self.is_alive():
            self.join()
        self._flush()

    def _flush(self) -> None:
        if left := self._producer.flush(FLUSH_S):
            said = "; ".join(self._told.lines) or "nothing"
            self._failures.append(f"{left} records are left unsent, the client says: {said}")
        if self._failures:
            raise RuntimeError(f"the load failed: {self._failures[0]}")

    def _send(self, kind: Kind | None) -> None:
        with self._lock:
            order = self._orders.next(kind)
            self._sent.append(order)
        if order.written_row:
            shop, written = order.written_row
            self._produce(SHOPS, shop, written.encode(), order.time_ms)
        self._produce(ORDERS, order.key, order.value(), order.time_ms)
        if order.paid:
            self._produce(PAYMENTS, order.key, order.payment(), order.payment_ms)

    def _produce(self, name: str, key: str, value: bytes, time_ms: int) -> None:
        self._producer.produce(
            topic(self._application, name),
            value,
            key.encode(),
            timestamp=time_ms,
            on_delivery=self._check,
        )

    def _check(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(str(error))
