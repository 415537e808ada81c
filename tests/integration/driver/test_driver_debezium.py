"""Programs that read and write change data, in the test driver."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import SinkBatch, StreamsBuilder, agg, serdes
from everflow.errors import EverflowError
from everflow.serdes.debezium_serde import UNAVAILABLE
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TOPIC = "shop.public.orders"
KEY = serdes.debezium("id bigint", form="row")
COLUMNS = "id bigint, amount decimal(9,2), paid timestamp, note string"
ORDERS = serdes.debezium(COLUMNS, times="us")
BYTES = serdes.bytes_()


def row(id_: int, amount: str, note: str = "x") -> dict[str, Any]:
    paid = dt.datetime(2024, 1, 31, 12, tzinfo=dt.timezone.utc)
    return {"id": id_, "amount": Decimal(amount), "paid": paid, "note": note}


def change(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "ts_ms": 1}


class Topics:
    """A driver with the topic of changes."""

    def __init__(self, driver: TopologyTestDriver) -> None:
        self.driver = driver
        self.changes = driver.create_input_topic(TOPIC, KEY, ORDERS)

    def pipe(self, id_: int, op: str, before: Any = None, after: Any = None) -> None:
        self.changes.pipe_input({"id": id_}, change(op, before, after))
        if op == "d":
            self.changes.pipe_input({"id": id_}, None)

    def read(self, topic: str, value: Any) -> list[Any]:
        return list(self.driver.create_output_topic(topic, KEY, value).read_key_values())


def rows_of(driver: TopologyTestDriver, store: str) -> list[Any]:
    return [value for _, value in driver.get_key_value_store(store).all()]


def table(builder: StreamsBuilder, **more: Any) -> Any:
    return builder.table(TOPIC, key=KEY, value=ORDERS, store="orders", **more)


def fed(topics: Topics) -> None:
    topics.pipe(1, "r", None, row(1, "10.00"))
    topics.pipe(2, "c", None, row(2, "20.00"))
    topics.pipe(1, "u", row(1, "10.00"), row(1, "11.00", UNAVAILABLE))
    topics.pipe(2, "d", row(2, "20.00"))


def test_a_table_is_what_the_changes_make_of_it() -> None:
    builder = StreamsBuilder()
    rows = table(builder)
    rows.to("upserts")
    rows.to("changes", as_="changes", value=ORDERS)
    totals = rows.group_by(F.lit("all"), name="all").aggregate(
        total=agg.sum("value.amount"), store="totals"
    )
    totals.to("totals")
    with TopologyTestDriver(builder.build()) as driver:
        topics = Topics(driver)
        fed(topics)
        assert rows_of(driver, "orders") == [row(1, "11.00")]
        text = serdes.json(COLUMNS)
        assert topics.read("upserts", text)[:4] == [
            ({"id": 1}, row(1, "10.00")),
            ({"id": 2}, row(2, "20.00")),
            ({"id": 1}, row(1, "11.00")),
            ({"id": 2}, None),
        ]
        found = topics.read("changes", ORDERS)
        shown = [
            (key["id"], value and (value["op"], value["before"], value["after"]))
            for key, value in found
        ]
        assert shown == [
            (1, ("c", None, row(1, "10.00"))),
            (2, ("c", None, row(2, "20.00"))),
            (1, ("u", row(1, "10.00"), row(1, "11.00"))),
            (2, ("d", row(2, "20.00"), None)),
            (2, None),
        ]
        total = serdes.json("total decimal(19,2)")
        out = driver.create_output_topic("totals", serdes.string(), total)
        assert out.read_key_values()[-1] == ("all", {"total": Decimal("11.00")})


def test_what_is_written_is_a_source_again() -> None:
    first, second = StreamsBuilder(), StreamsBuilder()
    table(first).to("copy", as_="changes", value=ORDERS)
    second.table("copy", key=KEY, value=ORDERS, store="copied")
    with TopologyTestDriver(first.build()) as driver:
        topics = Topics(driver)
        fed(topics)
        written = list(driver.create_output_topic("copy", BYTES, BYTES).read_key_values())
        kept = rows_of(driver, "orders")
    with TopologyTestDriver(second.build()) as driver:
        topic = driver.create_input_topic("copy", BYTES, BYTES)
        for key, value in written:
            topic.pipe_input(key, value)
        assert rows_of(driver, "copied") == kept


def test_a_stream_has_the_envelope_in_columns() -> None:
    builder = StreamsBuilder()
    changes = builder.stream(TOPIC, key=KEY, value=ORDERS)
    changed = changes.filter(F.col("value.op") == "u").map_values(
        was=F.col("value.before.amount"), amount=F.col("value.after.amount")
    )
    changed.to("changed")
    with TopologyTestDriver(builder.build()) as driver:
        topics = Topics(driver)
        fed(topics)
        found = topics.read("changed", serdes.json("was decimal(9,2), amount decimal(9,2)"))
        assert found == [({"id": 1}, {"was": Decimal("10.00"), "amount": Decimal("11.00")})]


BAD = {
    "no key": (None, change("c", None, {"id": 1}), "message.key.columns"),
    "truncate": (None, change("t"), "skipped.operations"),
    "no envelope": ({"id": 1}, {"id": 1}, "form='row'"),
    "another type": ({"id": 1}, change("c", None, {"id": "one"}), "after.id"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_row_fails_or_goes_to_its_handler(case: str) -> None:
    key, value, word = BAD[case]
    records = [(None if key is None else json.dumps(key).encode(), json.dumps(value).encode())]
    builder = StreamsBuilder()
    table(builder).to("upserts")
    topology = builder.build()
    with TopologyTestDriver(topology) as driver, pytest.raises(EverflowError, match=word):
        driver.create_input_topic(TOPIC, BYTES, BYTES).pipe_batch(records)
    with TopologyTestDriver(topology, exception_handlers={"deserialization": "continue"}) as driver:
        driver.create_input_topic(TOPIC, BYTES, BYTES).pipe_batch(records)
        assert not rows_of(driver, "orders")


def test_a_lower_position_is_applied_as_every_change() -> None:
    """After a crash the connector writes again what it had written: the table goes the same way."""
    builder = StreamsBuilder()
    table(builder)
    with TopologyTestDriver(builder.build()) as driver:
        topics = Topics(driver)
        for _ in range(2):
            topics.pipe(1, "c", None, row(1, "1.00"))
            topics.pipe(1, "u", row(1, "1.00"), row(1, "2.00"))
        assert rows_of(driver, "orders") == [row(1, "2.00")]


def test_unwrapped_rows_are_a_table_too() -> None:
    builder = StreamsBuilder()
    unwrapped = serdes.debezium("id bigint, name string", form="row")
    builder.table("people", key=KEY, value=unwrapped, store="people")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("people", BYTES, BYTES)
        for id_, deleted in ((1, "false"), (2, "false"), (2, "true")):
            value = {"id": id_, "name": "x", "__deleted": deleted}
            topic.pipe_input(json.dumps({"id": id_}).encode(), json.dumps(value).encode())
        assert rows_of(driver, "people") == [{"id": 1, "name": "x"}]


# --- out to another database ----------------------------------------------------------------------


def given_to(builder: StreamsBuilder, name: str, records: list[Any], value: Any) -> list[Any]:
    """Key, value and time of each row that the sink ``name`` is given, in one micro-batch."""
    batches: list[SinkBatch] = []

    def take(rows: pa.Table, batch: SinkBatch) -> None:
        batches.append(batch)

    with TopologyTestDriver(builder.build(), sinks={name: take}) as driver:
        driver.create_input_topic(TOPIC, KEY, value).pipe_batch(records)
    found = []
    for batch in batches:
        assert batch.keys == ("id",)
        assert batch.timestamps is not None
        gone = [False] * len(batch.rows) if batch.deletes is None else batch.deletes.to_pylist()
        times = batch.timestamps.to_pylist()
        for one, deleted, time in zip(batch.rows.to_pylist(), gone, times, strict=True):
            found.append((one["id"], None if deleted else one["note"], time))
    return found


POSTGRESQL: dict[str, Any] = {"key": "id", "dsn": "", "table": "copy"}


def test_a_table_is_written_as_rows_of_its_key() -> None:
    builder = StreamsBuilder()
    copy = table(builder).to_stream()
    copy.write_stream("postgresql", name="copy", mode="upsert", **POSTGRESQL)
    records = [
        ({"id": 1}, change("c", None, row(1, "1.00", "a"))),
        ({"id": 2}, change("c", None, row(2, "1.00", "b"))),
        ({"id": 1}, change("u", None, row(1, "1.00", UNAVAILABLE))),
        ({"id": 2}, change("d")),
        ({"id": 2}, None),
    ]
    found = given_to(builder, "copy", records, ORDERS)
    assert [one[:2] for one in found] == [(1, "a"), (2, None)]


def test_versions_of_a_table_are_all_its_updates() -> None:
    builder = StreamsBuilder()
    copy = table(builder).to_stream()
    copy.write_stream("postgresql", name="copy", mode="scd2", **POSTGRESQL)
    records = [({"id": 1}, change("u", None, row(1, "1.00", note))) for note in "abc"]
    found = given_to(builder, "copy", records, ORDERS)
    assert [one[:2] for one in found] == [(1, "a"), (1, "b"), (1, "c")]


def test_versions_of_changes_have_the_time_of_the_database() -> None:
    changes = serdes.debezium(COLUMNS, times="us", source="ts_ms bigint")
    builder = StreamsBuilder()
    (
        builder.stream(
            TOPIC,
            key=KEY,
            value=changes,
            timestamp=F.coalesce(F.col("value.source.ts_ms"), F.lit(-1)),
        )
        .map_values(F.col("value.after"))
        .write_stream("postgresql", name="copy", mode="scd2", **POSTGRESQL)
    )
    records = [
        ({"id": 1}, {**change("c", None, row(1, "1.00", "a")), "source": {"ts_ms": 500}}),
        ({"id": 1}, {**change("u", None, row(1, "1.00", "b")), "source": {"ts_ms": 700}}),
        ({"id": 1}, {**change("d"), "source": {"ts_ms": 900}}),
        ({"id": 1}, None),  # it has no time, and the deletion was there
    ]
    found = given_to(builder, "copy", records, changes)
    assert found == [(1, "a", 500), (1, "b", 700), (1, None, 900)]
