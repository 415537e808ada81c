"""A process that reads a program's committed output and notes when what appears:
`python -m bench.programs.probe ...`.

It prints READY when it reads from every partition, and ends at the end of standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from array import array
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.load.latency_probe import FETCH_WAIT_MAX_MS, POLL_TIMEOUT_S
from bench.programs.catalogue import PROGRAMS
from bench.programs.matching import KEYS_FILE


def main() -> None:
    """Writes triples (number of the key, record time in ms, monotonic ns at which it was seen),
    8-byte integers, and beside them the keys, when it ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--program", choices=PROGRAMS, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--seen-file", type=Path, required=True)
    options = parser.parse_args()
    program = PROGRAMS[options.program]
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap_servers,
            "group.id": f"probe-{options.topic[0]}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": FETCH_WAIT_MAX_MS,
        }
    )
    consumer.assign(
        [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in options.topic
            for partition in range(options.partitions)
        ]
    )
    # The end of standard input ends it.
    reader = threading.Thread(target=sys.stdin.buffer.read, daemon=True)
    reader.start()
    keys: dict[bytes, int] = {}
    seen = array("q")
    print("READY", flush=True)
    while reader.is_alive():
        message = consumer.poll(POLL_TIMEOUT_S)
        now = time.monotonic_ns()
        if message is None:
            continue
        if message.error() is not None:
            raise RuntimeError(f"cannot read {options.topic}: {message.error()}")
        # A session that grew leaves a null under its old window.
        if message.value() is None:
            continue
        key = program.plain_key(bytes(message.key() or b""))
        seen.extend((keys.setdefault(key, len(keys)), message.timestamp()[1], now))
    consumer.close()
    options.seen_file.write_bytes(seen.tobytes())
    options.seen_file.with_name(KEYS_FILE).write_text(json.dumps([key.hex() for key in keys]))


if __name__ == "__main__":
    main()
