"""A process that reads the committed counts and notes when they appear:
`python -m bench.load.latency_probe ...`.

It prints READY when it reads from every partition, and ends at the end of standard input.
"""

from __future__ import annotations

import argparse
import struct
import sys
import threading
import time
from array import array
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.load.latency_schedule import number_of

# Bounds a fetch that the broker holds back; it answers at once when a commit makes records visible.
FETCH_WAIT_MAX_MS = 50
POLL_TIMEOUT_S = 0.1


def main() -> None:
    """Writes pairs (record number, monotonic ns at which it was seen), 8-byte integers, when it
    ends."""
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap-servers", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--seen-file", type=Path, required=True)
    options = parser.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap_servers,
            "group.id": f"probe-{options.topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": FETCH_WAIT_MAX_MS,
        }
    )
    consumer.assign(
        [TopicPartition(options.topic, p, OFFSET_BEGINNING) for p in range(options.partitions)]
    )
    stopped = threading.Event()
    threading.Thread(target=_stop_at_end_of_input, args=(stopped,), daemon=True).start()
    seen = array("q")
    print("READY", flush=True)
    while not stopped.is_set():
        message = consumer.poll(POLL_TIMEOUT_S)
        now = time.monotonic_ns()
        if message is None:
            continue
        if message.error() is not None:
            raise RuntimeError(f"cannot read {options.topic}: {message.error()}")
        (count,) = struct.unpack(">q", message.value() or b"")
        seen.append(number_of((message.key() or b"").decode(), count, options.keys))
        seen.append(now)
    consumer.close()
    options.seen_file.write_bytes(seen.tobytes())


def _stop_at_end_of_input(stopped: threading.Event) -> None:
    sys.stdin.buffer.read()
    stopped.set()


if __name__ == "__main__":
    main()
