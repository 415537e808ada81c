"""Trains the broker's JVM: does once what an embedded broker is used for, and ends it in order.

Run as a program by `everflow.jvm`.
"""

from __future__ import annotations

from kafka import KafkaConsumer

from everflow.kafka.writing.record_writer import RecordWriter
from everflow.testing.broker import EmbeddedBroker

TOPIC = "training"
WAIT_S = 60


def main() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC, partitions=2)
        writer = RecordWriter({"bootstrap.servers": broker.bootstrap_servers}, TOPIC)
        writer.begin()
        writer.write(TOPIC, [b"key"], [b"value"], [0])
        writer.flush(WAIT_S)
        writer.commit(WAIT_S)
        writer.close()
        consumer = KafkaConsumer(
            TOPIC,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=TOPIC,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            consumer_timeout_ms=WAIT_S * 1000,
        )
        next(consumer, None)
        consumer.close()
        broker.stop()


if __name__ == "__main__":
    main()
