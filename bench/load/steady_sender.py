"""A process that sends records at one pace until its standard input ends:
`python -m bench.load.steady_sender ...`."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Producer

from bench.topics import JAVA_PARTITIONER, key_of

FLUSH_TIMEOUT_S = 30.0
TICK_S = 0.001
# A large prime: the keys of successive records lie far apart, and every key comes once before one
# comes again.
STRIDE = 2_654_435_761
RowOf = Callable[[int], tuple[bytes, bytes, int]]
"""Key, value and time (ms since the epoch, 0: that of sending) of a record by its number."""


def key_index(number: int, keys: int) -> int:
    """Which of the keys record `number` carries."""
    return number * STRIDE % keys


def times_sent(records: int, keys: int) -> npt.NDArray[np.int64]:
    """How often each key was sent with the first so many records."""
    indexes = np.arange(records, dtype=np.int64) * (STRIDE % keys) % keys
    return np.bincount(indexes, minlength=keys).astype(np.int64)


def main() -> None:
    """Every key in turn, with an empty value."""
    options = parser().parse_args()
    run(options, lambda number: (key_of(key_index(number, options.keys)).encode(), b"{}", 0))


def parser() -> argparse.ArgumentParser:
    """Of the options that `run` takes."""
    found = argparse.ArgumentParser()
    for name in ("--bootstrap-servers", "--topic"):
        found.add_argument(name, required=True)
    found.add_argument("--keys", type=int, required=True)
    found.add_argument("--rate", type=float, required=True, help="records/s")
    found.add_argument("--sent-file", type=Path, required=True)
    return found


def run(
    options: argparse.Namespace, row_of: RowOf, settings: Mapping[str, Any] | None = None
) -> None:
    """Send until the end of standard input; then write `records` and `longest_pause_s` (between two
    sends that were due) as JSON."""
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap_servers,
            "partitioner": JAVA_PARTITIONER,
            "linger.ms": 1,
            "enable.idempotence": True,
            **(settings or {}),
        }
    )
    stopped = threading.Event()
    threading.Thread(target=_stop_at_end_of_input, args=(stopped,), daemon=True).start()
    sent, longest_pause_s = _send(producer, options.topic, row_of, options.rate, stopped)
    if producer.flush(FLUSH_TIMEOUT_S):
        raise RuntimeError("records are left unsent")
    options.sent_file.write_text(json.dumps({"records": sent, "longest_pause_s": longest_pause_s}))


def _send(
    producer: Producer, topic: str, row_of: RowOf, rate: float, stopped: threading.Event
) -> tuple[int, float]:
    started = before = time.monotonic()
    sent, longest = 0, 0.0
    while not stopped.is_set():
        now = time.monotonic()
        due = int((now - started) * rate) + 1
        if due > sent:
            longest, before = max(longest, now - before), now
        while sent < due:
            key, value, at_ms = row_of(sent)
            producer.produce(topic, value, key, on_delivery=_check, timestamp=at_ms)
            sent += 1
        producer.poll(0)
        time.sleep(TICK_S)
    return sent, longest


def _check(error: Any, _message: Any) -> None:
    if error is not None:
        raise RuntimeError(f"a record was refused: {error}")


def _stop_at_end_of_input(stopped: threading.Event) -> None:
    sys.stdin.buffer.read()
    stopped.set()


if __name__ == "__main__":
    main()
