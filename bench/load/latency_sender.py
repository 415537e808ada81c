"""A process that sends records at a set pace and notes when:
`python -m bench.load.latency_sender ...`."""

from __future__ import annotations

import argparse
import json
import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench.load.latency_schedule import Phase, key_at, read_schedule
from bench.programs.catalogue import PROGRAMS, Row
from bench.topics import JAVA_PARTITIONER

FLUSH_TIMEOUT_S = 30.0
TICK_S = 0.001


def main() -> None:
    """Send the schedule; at the end write the send times (monotonic ns as 8-byte integers, by
    number)."""
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap-servers", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--keys", type=int, default=0, help="send the records of the count")
    parser.add_argument("--program", help="send the records of this program")
    parser.add_argument(
        "--clock-offset-ns",
        type=int,
        default=time.time_ns() - time.monotonic_ns(),
        help="a record's time is that of its sending on the monotonic clock, and this",
    )
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
    row = PROGRAMS[options.program].row if options.program else partial(_count_row, options.keys)
    sent_ns = array("q")
    for phase in read_schedule(options.schedule):
        _send(producer, options.topic, row, options.clock_offset_ns, phase, sent_ns)
    if producer.flush(FLUSH_TIMEOUT_S):
        raise RuntimeError("records are left unsent")
    options.sent_file.write_bytes(sent_ns.tobytes())


def _count_row(keys: int, number: int) -> Row:
    return key_at(number, keys).encode(), json.dumps({"number": number}).encode()


def _send(
    producer: Producer,
    topic: str,
    row: Callable[[int], Row],
    clock_offset_ns: int,
    phase: Phase,
    sent_ns: array[int],
) -> None:
    if phase.pause_before_s:
        producer.flush(FLUSH_TIMEOUT_S)
        time.sleep(phase.pause_before_s)
    started = time.monotonic()
    sent = 0
    while sent < phase.records:
        due = min(phase.records, int((time.monotonic() - started) * phase.records_per_s) + 1)
        while sent < due:
            key, value = row(len(sent_ns))
            sent_ns.append(_produced(producer, topic, key, value, clock_offset_ns))
            sent += 1
        producer.poll(0)
        time.sleep(TICK_S)


def _produced(
    producer: Producer, topic: str, key: bytes, value: bytes, clock_offset_ns: int
) -> int:
    """When it was sent (monotonic ns). A state of millions of keys is sent faster than brokers take
    it: it waits for room then."""
    while True:
        now = time.monotonic_ns()
        time_ms = (now + clock_offset_ns) // 1_000_000
        try:
            producer.produce(topic, value, key, on_delivery=_check, timestamp=time_ms)
            return now
        except BufferError:
            producer.poll(TICK_S)


def _check(error: Any, _message: Any) -> None:
    if error is not None:
        raise RuntimeError(f"a record was refused: {error}")


if __name__ == "__main__":
    main()
