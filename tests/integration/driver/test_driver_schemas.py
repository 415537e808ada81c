"""Programs whose topics hold Avro and Protobuf of a registry, in the test driver."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import Response, StreamsBuilder, agg, serdes
from everflow.errors import RetriableError, SchemaError
from everflow.testing import TopologyTestDriver
from everflow.testing.schema_registry import SchemaRegistry

pytestmark = pytest.mark.spark

V1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "who", "type": "string"}, {"name": "amount", "type": "double"}],
}
V2 = {
    **V1,
    "fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as found:
        for subject in ("orders-value", "large-value", "totals-value"):
            found.register(subject, V1)
        found.register("orders-value", V2)
        for subject in ("orders-key", "large-key", "totals-key"):
            found.register(subject, KEY)
        yield found


def avro(registry: SchemaRegistry, schema: Any) -> Any:
    return serdes.avro(schema, registry=registry.url)


def test_a_program_reads_two_schemas_and_writes_one(registry: SchemaRegistry) -> None:
    builder = StreamsBuilder()
    old, new, key = (avro(registry, one) for one in (V1, V2, KEY))
    orders = builder.stream("orders", key=key, value=old)
    orders.filter(F.col("value.amount") > 10).to("large")
    totals = orders.group_by_key().aggregate(total=agg.sum("value.amount"), store="totals")
    totals.to_stream().to("totals")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("orders", key, old).pipe_input(
            {"id": 1}, {"who": "Ada", "amount": 20.0}
        )
        driver.create_input_topic("orders", key, new).pipe_input(
            {"id": 1}, {"who": "Bob", "amount": 15.0, "note": "x"}
        )
        raw = driver.create_output_topic("large", serdes.bytes_(), serdes.bytes_())
        written = raw.read_key_values()
        found = driver.create_output_topic("totals", key, serdes.json("total double"))
        assert found.read_key_values()[-1] == ({"id": 1}, {"total": 35.0})
    assert [old.decode(value)["who"] for _, value in written] == ["Ada", "Bob"]
    assert {value[:5] for _, value in written} == {b"\0\0\0\0\1"}
    assert {key[:5] for key, _ in written} == {b"\0\0\0\0\3"}


def test_ids_in_headers_are_read(registry: SchemaRegistry) -> None:
    builder = StreamsBuilder()
    builder.stream("orders", value=avro(registry, V1)).map_values(F.col("value.who")).to("names")
    guid = b"\1" + bytes.fromhex(registry.guid(1).replace("-", ""))
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("orders", serdes.bytes_(), serdes.bytes_())
        headers = [("__value_schema_id", guid)]
        topic.pipe_input(None, b"\2A" + bytes(8), headers=headers)
        out = driver.create_output_topic("names", serdes.bytes_(), serdes.string())
        assert out.read_key_values() == [(None, "A")]


def test_ids_are_written_into_headers_in_place_of_those_read(registry: SchemaRegistry) -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=serdes.string(), value=avro(registry, V2))
    one = serdes.avro(V1, registry=registry.url, header_id=True)
    both = orders.map_values(who=F.col("value.who"), amount=F.col("value.amount"))
    both.to("large", value=one)
    both.to("totals", value=avro(registry, V1))
    ids = [b"\1" + bytes.fromhex(registry.guid(id_).replace("-", "")) for id_ in (1, 2)]
    order = {"who": "A", "amount": 0.0}
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("orders", serdes.string(), serdes.bytes_())
        headers = [("a", b"1"), ("__value_schema_id", ids[1]), ("b", b"2")]
        topic.pipe_input("k", b"\2A" + bytes(9), headers=headers)
        raw = driver.create_output_topic("large", serdes.string(), serdes.bytes_())
        kept = [("a", b"1"), ("b", b"2")]
        assert [(one.value, list(one.headers)) for one in raw.read_records()] == [
            (b"\2A" + bytes(8), [*kept, ("__value_schema_id", ids[0])])
        ]
        topic.pipe_input("k", b"\2A" + bytes(9), headers=headers)
        named = driver.create_output_topic("large", serdes.string(), avro(registry, V1))
        assert named.read_value() == order
        front = driver.create_output_topic("totals", serdes.string(), avro(registry, V1))
        found = front.read_records()
        assert [(one.value, list(one.headers)) for one in found] == [(order, kept)] * 2


def test_bad_records_go_to_their_handler_and_outages_do_not(registry: SchemaRegistry) -> None:
    builder = StreamsBuilder()
    builder.stream("orders", value=avro(registry, V1)).to("large")
    asked: list[str] = []

    def skip(context: Any, error: BaseException) -> Response:
        asked.append(str(error))
        return Response.CONTINUE

    handlers = {"deserialization": skip}
    with TopologyTestDriver(builder.build(), exception_handlers=handlers) as driver:
        topic = driver.create_input_topic("orders", serdes.bytes_(), serdes.bytes_())
        registry.fails = 503
        with pytest.raises(RetriableError, match="503"):
            topic.pipe_input(None, b"\0\0\0\0\1\2A" + bytes(8))
        assert not asked
        registry.fails = None
        topic.pipe_input(None, b"\0\0\0\0\x63\2")
        assert [word in asked[0] for word in ("schema 99", "40403")] == [True, True]
        topic.pipe_input(None, b"\0\0\0\0\1\2A" + bytes(8))
        out = driver.create_output_topic("large", serdes.bytes_(), avro(registry, V1))
        assert [value["who"] for _, value in out.read_key_values()] == ["A"]


def test_a_schema_that_is_not_registered_stops_the_program(registry: SchemaRegistry) -> None:
    builder = StreamsBuilder()
    builder.stream("orders", value=avro(registry, V1)).to("unknown")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("orders", serdes.bytes_(), serdes.bytes_())
        with pytest.raises(SchemaError, match="unknown-value"):
            topic.pipe_input(None, b"\0\0\0\0\1\2A" + bytes(8))
