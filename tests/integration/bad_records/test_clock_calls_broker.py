"""A clock's call that fails, on a broker: it is left out whole, and is no letter."""

from __future__ import annotations

import pytest

from everflow import Processor, Record, StreamsBuilder, punctuate, serdes
from integration.lifecycle.lifecycle_cluster import Application, Cluster, in_json

pytestmark = [pytest.mark.broker, pytest.mark.spark]


class FailsOnce(Processor):
    """Its call at 20 ms forwards, and raises then."""

    def process(self, record: Record) -> None:
        self.context.forward(record)

    @punctuate("10 ms")
    def tick(self, time: int) -> None:
        self.context.forward(Record("tick", {"n": time}, time))
        if time == 20:
            raise LookupError("no tick at 20")


def test_a_call_that_fails_is_left_out(app: Application, cluster: Cluster) -> None:
    source, output, dead = (cluster.topic(name, 1) for name in ("in", "out", "dead"))
    cluster.write(
        source, [in_json(key, {"n": 1}, at) for key, at in zip("abc", (10, 20, 30), strict=True)]
    )
    builder = StreamsBuilder()
    schema = serdes.json("n bigint")
    builder.stream(source, key=serdes.string(), value=schema).process(FailsOnce).to(output)
    app.run_through(
        builder.build(),
        source,
        errors_dead_letter_queue_topic_name=dead,
    )
    keys = [record.key for record in cluster.read(output)]
    assert keys == [b"a", b"tick", b"b", b"c", b"tick"]
    assert cluster.read(dead) == []
