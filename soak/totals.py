"""Follows the results of a soak, read committed, and says whether they are those that have to
be."""

from __future__ import annotations

import threading
import uuid

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, TopicPartition

from soak.program import PARTITIONS, SYMBOLS

_START_BYTES = 8
_MOST = 5_000


class Totals(threading.Thread):
    """Reads from the first result on; `stop` ends it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name="soak-totals", daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"soak-totals-{uuid.uuid4()}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self._lock = threading.Lock()
        self._last: dict[bytes, tuple[int, int]] = {}
        self._stop_asked = threading.Event()
        self.results = 0
        self.fallen: list[str] = []
        """Windows whose count went back."""

    def run(self) -> None:
        while not self._stop_asked.is_set():
            for message in self._consumer.consume(_MOST, 0.2):
                key, value = message.key(), message.value()
                if message.error() is not None or key is None or value is None:
                    continue
                trades, turnover = map(int, value.split())
                with self._lock:
                    self.results += 1
                    if trades < self._last.get(key, (0, 0))[0] and len(self.fallen) < 10:
                        self.fallen.append(f"{key!r}: {trades} after {self._last[key][0]}")
                    self._last[key] = (trades, turnover)
        self._consumer.close()

    def stop(self) -> None:
        """End the thread."""
        self._stop_asked.set()
        self.join()

    def found(self) -> npt.NDArray[np.int64]:
        """Trades and turnover of each symbol over all its windows, as `expected` has them."""
        sums = np.zeros((SYMBOLS, 2), np.int64)
        with self._lock:
            for key, values in self._last.items():
                sums[int(key[1:-_START_BYTES])] += values
        return sums
