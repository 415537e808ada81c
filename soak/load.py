"""Sends trades at one pace until its standard input ends: ``python -m soak.load SERVERS TOPIC RATE
SENT_FILE``. Then the file holds how many they were."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Producer

from bench.topics import JAVA_PARTITIONER
from soak.program import PERIOD, trade

TICK_S = 0.005
FLUSH_S = 60.0


def main(servers: str, topic: str, rate: float, sent_file: Path) -> int:
    """0, or 1 where a record was refused."""
    refused: list[str] = []
    stopped = threading.Event()

    def check(error: object, _: object) -> None:
        if error is not None:
            refused.append(str(error))

    def listen() -> None:
        sys.stdin.buffer.read()
        stopped.set()

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "partitioner": JAVA_PARTITIONER,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    threading.Thread(target=listen, daemon=True).start()
    trades = [trade(number) for number in range(PERIOD)]
    began, sent = time.monotonic(), 0
    while not stopped.wait(TICK_S):
        due = int((time.monotonic() - began) * rate)
        for number in range(sent, due):
            key, value = trades[number % PERIOD]
            producer.produce(topic, value, key, on_delivery=check)
        sent = max(sent, due)
        producer.poll(0)
    if producer.flush(FLUSH_S) or refused:
        print(f"records are left unsent: {refused[:1]}", file=sys.stderr)
        return 1
    sent_file.write_text(str(sent))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])))
