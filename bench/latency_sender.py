"""A process that sends records at a set pace and notes when:
`python -m bench.latency_sender ...`."""

from __future__ import annotations

import argparse
import json
import time
from array import array
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench.latency_schedule import Phase, key_at, read_schedule
from bench.topics import JAVA_PARTITIONER

FLUSH_TIMEOUT_S = 30.0
TICK_S = 0.001


def main() -> None:
    """Send the schedule; at the end write the send times (monotonic ns as 8-byte integers, by
    number)."""
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap-servers", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--schedule", type=Path, required=True)
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
    sent_ns = array("q")
    for phase in read_schedule(options.schedule):
        _send(producer, options.topic, options.keys, phase, sent_ns)
    if producer.flush(FLUSH_TIMEOUT_S):
        raise RuntimeError("records are left unsent")
    options.sent_file.write_bytes(sent_ns.tobytes())


def _send(producer: Producer, topic: str, keys: int, phase: Phase, sent_ns: array[int]) -> None:
    if phase.pause_before_s:
        producer.flush(FLUSH_TIMEOUT_S)
        time.sleep(phase.pause_before_s)
    started = time.monotonic()
    sent = 0
    while sent < phase.records:
        due = min(phase.records, int((time.monotonic() - started) * phase.records_per_s) + 1)
        while sent < due:
            number = len(sent_ns)
            now = time.monotonic_ns()
            value = json.dumps({"number": number, "sent_ns": now})
            producer.produce(
                topic, value.encode(), key_at(number, keys).encode(), on_delivery=_check
            )
            sent_ns.append(now)
            sent += 1
        producer.poll(0)
        time.sleep(TICK_S)


def _check(error: Any, _message: Any) -> None:
    if error is not None:
        raise RuntimeError(f"a record was refused: {error}")


if __name__ == "__main__":
    main()
