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


def program(cluster: Cluster, registry: SchemaRegistry, schema: Any = V1) -> Any:
    order = serdes.avro(schema, registry={"url": registry.url, "request.timeout.ms": "2000"})
    builder = StreamsBuilder()
    orders = builder.stream(f"{cluster.prefix}-in", key=serdes.string(), value=order)
    orders.to(f"{cluster.prefix}-out")
    total = orders.group_by_key().aggregate(total=agg.sum("value.amount"), store="totals")
    total.to_stream().to(f"{cluster.prefix}-totals", value=serdes.json("total double"))
    return builder.build()


def record(
    serde: Any, cluster: Cluster, value: dict[str, Any], key: bytes = b"k", partition: int = 0
) -> Record:
    data = bound_to(serde, f"{cluster.prefix}-in", "value").encode(value)
    return Record(key, data, 1, partition)


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

    first = record(old, cluster, {"who": "Ada", "amount": 1.0})
    second = record(new, cluster, {"who": "Bob", "amount": 2.0, "note": "x"})
    registry.fails = 503  # from before the start, which asks once and waits for no registry
    with app.running(
        program(cluster, registry),
        task_timeout_ms=300_000,
        errors_dead_letter_queue_topic_name=dead,
        deserialization_exception_handler="continue",
    ) as streams:
        until_running(streams)
        asked = len(registry.asked)
        cluster.write(f"{cluster.prefix}-in", [first, Record(b"k", b"\0\0", 1, 0), second])
        wait_until(lambda: len(registry.asked) > asked, WAIT_S, "the registry to be asked")
        assert written() == []
        registry.fails = None
        wait_until(lambda: written() == ["Ada", "Bob"], WAIT_S, "both schemas to be read")
        wait_until(lambda: len(cluster.read(dead)) == 1, WAIT_S, "the one that was cut")
        assert streams.error is None
    assert cluster.read(f"{cluster.prefix}-totals")[-1].value == b'{"total":3.0}'


def test_a_schema_that_nobody_registered_refuses_the_start(
    app: Application, cluster: Cluster, registry: SchemaRegistry
) -> None:
    for name in ("in", "out", "totals"):
        cluster.topic(name, 1)
    registry.register(f"{cluster.prefix}-in-value", V1)
    streams = app.instance(program(cluster, registry))
    try:
        with pytest.raises(SchemaError, match=f"{cluster.prefix}-out-value"):
            streams.start()
    finally:
        closed(streams)


def test_a_schema_that_is_gone_when_the_registry_comes_back_stops_the_instance(
    app: Application, cluster: Cluster, registry: SchemaRegistry
) -> None:
    for name in ("in", "out", "totals"):
        cluster.topic(name, 1)
    registry.register(f"{cluster.prefix}-in-value", V1)
    old = serdes.avro(V1, registry=registry.url)
    own = record(old, cluster, {"who": "Ada", "amount": 1.0})
    registry.fails = 503
    streams = app.instance(program(cluster, registry))
    try:
        streams.start()
        until_running(streams)
        registry.fails = None
        cluster.write(f"{cluster.prefix}-in", [own])
        failed = until_failed(streams, WAIT_S)
    finally:
        closed(streams)
    assert failed.code == SchemaError.code
    assert f"{cluster.prefix}-out-value" in str(failed)
    assert cluster.read(f"{cluster.prefix}-out") == []


def test_old_and_new_instances_and_schemas_share_a_group(
    app: Application, cluster: Cluster, registry: SchemaRegistry
) -> None:
    """Each reads both schemas as its own, and writes its own."""
    source, *_ = (cluster.topic(name, 2) for name in ("in", "out", "totals"))
    for subject in ("in", "out"):
        for schema in (V1, V2):
            registry.register(f"{cluster.prefix}-{subject}-value", schema)
    old, new = (serdes.avro(one, registry=registry.url) for one in (V1, V2))
    sent: list[dict[str, Any]] = []

    def write() -> None:
        """Of each schema a record into each partition, whose keys are its own."""
        records = []
        for partition in (0, 1):
            key = f"k{partition}".encode()
            for serde in (old, new):
                value = {"who": f"w{len(sent)}", "amount": 1.0, "note": "x"}
                own = {name: value[name] for name in serde.type.names}
                records.append(record(serde, cluster, own, key, partition))
                sent.append({**dict.fromkeys(value), **own})
        cluster.write(source, records)

    def written() -> list[dict[str, Any]]:
        rows = [one.value for one in cluster.read(f"{cluster.prefix}-out")]
        found = new.decode_array(pa.array(rows, pa.binary())).to_pylist()
        return sorted(found, key=lambda one: int(one["who"][1:]))

    def running(name: str, schema: Any) -> Any:
        topology = program(cluster, registry, schema)
        return app.running(topology, state_dir=str(app.folder / name))

    def tasks(streams: Any) -> int:
        return sum(task.role.value == "active" for task in streams.all_tasks().values())

    by_old: set[str] = set()
    with running("old", V1) as first:
        until_running(first)
        write()
        app.until_processed(first, source)
        by_old.update(one["who"] for one in sent)
        with running("new", V2) as second:
            wait_until(lambda: tasks(first) == tasks(second) == 1, WAIT_S, "a task each")
            for streams in (first, second):
                until_running(streams)
            before = len(written())
            write()
            wait_until(lambda: len(written()) == before + 4, WAIT_S, "both to have read", written)
            notes = [one["note"] for one in written()[before:]]
            assert notes.count("x") == 1, "of two of the later schema the old one writes its own"
            first.close()
            wait_until(lambda: tasks(second) == 2, WAIT_S, "the new one to have both tasks")
            write()
            wait_until(lambda: len(written()) == len(sent), WAIT_S, "all to be read", written)
            assert written()[-4:] == sent[-4:]
    found = written()
    assert [one["who"] for one in found] == [one["who"] for one in sent]
    assert {one["note"] for one in found if one["who"] in by_old} == {None}
    totals = {one.key: one.value for one in cluster.read(f"{cluster.prefix}-totals")}
    assert totals == dict.fromkeys((b"k0", b"k1"), b'{"total":6.0}')
