"""Trains the broker's JVM: does once what an embedded broker is used for, and ends it in order.

Run as a program by `everflow.jvm`.
"""

from __future__ import annotations

from confluent_kafka import Consumer, Producer

from everflow.testing.broker import EmbeddedBroker

TOPIC = "training"
POLLS = 60


def main() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(TOPIC, partitions=2)
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": TOPIC}
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(TOPIC, b"key", b"value")
        producer.commit_transaction()
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": TOPIC,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TOPIC])
        for _ in range(POLLS):
            if consumer.poll(1.0) is not None:
                break
        consumer.close()
        broker.stop()


if __name__ == "__main__":
    main()
