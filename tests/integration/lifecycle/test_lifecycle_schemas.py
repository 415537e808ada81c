"""A program whose topics and store hold Avro of a registry, on a broker: schemas that change, a
registry that is away, records that do not fit, a schema that nobody has registered."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from everflow import StreamsBuilder, agg, serdes
from everflow.errors import SchemaError
from everflow.serdes.registered import bound_to
from everflow.testing import SchemaRegistry, wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    closed,
    until_failed,
    until_running,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

WAIT_S = 90.0
V1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "who", "type": "string"}, {"name": "amount", "type": "double"}],
}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
V2 = {**V1, "fields": [*V1["fields"], NOTE]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as found:
        yield found


def program(cluster: Cluster, registry: SchemaRegistry) -> Any:
    order = serdes.avro(V1, registry={"url": registry.url, "request.timeout.ms": "2000"})
    builder = StreamsBuilder()
    orders = builder.stream(f"{cluster.prefix}-in", key=serdes.string(), value=order)
    orders.to(f"{cluster.prefix}-out")
    total = orders.group_by_key().aggregate(total=agg.sum("value.amount"), store="totals")
    total.to_stream().to(f"{cluster.prefix}-totals", value=serdes.json("total double"))
    return builder.build()


def record(serde: Any, cluster: Cluster, value: dict[str, Any]) -> Record:
    data = bound_to(serde, f"{cluster.prefix}-in", "value").encode(value)
    return Record(b"k", data, 1, 0)


def test_schemas_change_and_a_registry_comes_back(
    app: Application, cluster: Cluster, registry: SchemaRegistry
) -> None:
    *_, dead = (cluster.topic(name, 1) for name in ("in", "out", "totals", "dead"))
    for subject, schema in (("in", V1), ("in", V2), ("out", V1)):
        registry.register(f"{cluster.prefix}-{subject}-value", schema)
    old, new = (serdes.avro(one, registry=registry.url) for one in (V1, V2))

    def written() -> list[str]:
        rows = [one.value for one in cluster.read(f"{cluster.prefix}-out")]
        return [one["who"] for one in old.decode_array(pa.array(rows, pa.binary())).to_pylist()]

    with app.running(
        program(cluster, registry),
        task_timeout_ms=300_000,
        errors_dead_letter_queue_topic_name=dead,
        deserialization_exception_handler="continue",
    ) as streams:
        until_running(streams)
        first = record(old, cluster, {"who": "Ada", "amount": 1.0})
        second = record(new, cluster, {"who": "Bob", "amount": 2.0, "note": "x"})
        registry.fails = 503
        cluster.write(f"{cluster.prefix}-in", [first, Record(b"k", b"\0\0", 1, 0), second])
        asked = len(registry.asked)
        wait_until(lambda: len(registry.asked) > asked, WAIT_S, "the registry to be asked")
        assert written() == []
        registry.fails = None
        wait_until(lambda: written() == ["Ada", "Bob"], WAIT_S, "both schemas to be read")
        wait_until(lambda: len(cluster.read(dead)) == 1, WAIT_S, "the one that was cut")
        assert streams.error is None
    assert cluster.read(f"{cluster.prefix}-totals")[-1].value == b'{"total":3.0}'


def test_a_schema_that_nobody_registered_stops_the_instance(
    app: Application, cluster: Cluster, registry: SchemaRegistry
) -> None:
    for name in ("in", "out", "totals"):
        cluster.topic(name, 1)
    registry.register(f"{cluster.prefix}-in-value", V1)
    old = serdes.avro(V1, registry=registry.url)
    streams = app.instance(program(cluster, registry))
    try:
        streams.start()
        until_running(streams)
        cluster.write(f"{cluster.prefix}-in", [record(old, cluster, {"who": "Ada", "amount": 1.0})])
        failed = until_failed(streams, WAIT_S)
    finally:
        closed(streams)
    assert failed.code == SchemaError.code
    assert f"{cluster.prefix}-out-value" in str(failed)
    assert cluster.read(f"{cluster.prefix}-out") == []
