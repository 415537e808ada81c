"""A process that sends records at one pace until its standard input ends:
`python -m bench.load.steady_sender ...`."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
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


def key_index(number: int, keys: int) -> int:
    """Which of the keys record `number` carries."""
    return number * STRIDE % keys


def times_sent(records: int, keys: int) -> npt.NDArray[np.int64]:
    """How often each key was sent with the first so many records."""
    indexes = np.arange(records, dtype=np.int64) * (STRIDE % keys) % keys
    return np.bincount(indexes, minlength=keys).astype(np.int64)


def main() -> None:
    """At the end write `records` and `longest_pause_s` (between two sends that were due) as
    JSON."""
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap-servers", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="records/s")
    parser.add_argument("--sent-file", type=Path, required=True)
    options = parser.parse_args()
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap_servers,
            "partitioner": JAVA_PARTITIONER,
            "linger.ms": 1,
            "enable.idempotence": True,
        }
    )
    stopped = threading.Event()
    threading.Thread(target=_stop_at_end_of_input, args=(stopped,), daemon=True).start()
    sent, longest_pause_s = _send(producer, options.topic, options.keys, options.rate, stopped)
    if producer.flush(FLUSH_TIMEOUT_S):
        raise RuntimeError("records are left unsent")
    options.sent_file.write_text(json.dumps({"records": sent, "longest_pause_s": longest_pause_s}))


def _send(
    producer: Producer, topic: str, keys: int, rate: float, stopped: threading.Event
) -> tuple[int, float]:
    started = before = time.monotonic()
    sent, longest = 0, 0.0
    while not stopped.is_set():
        now = time.monotonic()
        due = int((now - started) * rate) + 1
        if due > sent:
            longest, before = max(longest, now - before), now
        while sent < due:
            producer.produce(
                topic, b"{}", key_of(key_index(sent, keys)).encode(), on_delivery=_check
            )
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
