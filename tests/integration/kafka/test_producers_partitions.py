"""Keys lie where librdkafka, which writes for confluent-kafka, puts them on a broker."""

from __future__ import annotations

import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer

from everflow.columns.key_partitions import key_partitions
from integration.kafka.test_record_writer import Topic

KEYS = [f"key-{number}".encode() * (number % 7 + 1) for number in range(100)]


@pytest.mark.parametrize(
    ("by", "setting"),
    [("crc32", None), ("murmur2", "murmur2_random"), ("fnv1a", "fnv1a_random")],
)
def test_a_key_is_where_confluent_kafka_puts_it(
    bootstrap: str, topic: Topic, by: str, setting: str | None
) -> None:
    target = topic(5)
    given = {} if setting is None else {"partitioner": setting}
    found: dict[bytes, int] = {}

    def delivered(error: object, message: Message) -> None:
        assert error is None
        key, partition = message.key(), message.partition()
        assert isinstance(key, bytes)
        assert partition is not None
        found[key] = partition

    producer = Producer({"bootstrap.servers": bootstrap, **given})
    for key in KEYS:
        producer.produce(target, b"", key, on_delivery=delivered)
    assert producer.flush(20) == 0
    assert [found[key] for key in KEYS] == key_partitions(pa.array(KEYS), 5, by).tolist()
