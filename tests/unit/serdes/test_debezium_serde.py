"""Debezium's change data: what is read of which bytes, and what is refused and why."""

import base64
import datetime as dt
import io
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from everflow import serdes
from everflow.errors import SchemaError
from everflow.serdes import SerdeError
from everflow.serdes.avro_types import parsed, plain
from everflow.serdes.connect_types import VARIABLE, plain_text
from everflow.serdes.debezium_serde import (
    UNAVAILABLE,
    behind,
    envelope_type,
    keyless,
    no_key,
    of_a_table,
    payloads,
    reads_only,
)
from everflow.testing.schema_registry import SchemaRegistry
from everflow.topology.store_layouts import serde_words

COLUMNS = "id bigint, amount decimal(10,2), paid timestamp, day date, note string"
UTC = dt.timezone.utc
PAID = dt.datetime(2024, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
MICROS = 1_706_702_400_123_000
ROW = {
    "id": 1,
    "amount": Decimal("-123.45"),
    "paid": PAID,
    "day": dt.date(2024, 1, 31),
    "note": "x",
}


def base(unscaled: int, size: int = 2) -> str:
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def raw(**other: Any) -> dict[str, Any]:
    """`ROW` as Debezium writes it by default."""
    return {"id": 1, "amount": base(-12345), "paid": MICROS, "day": 19753, "note": "x", **other}


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def change(op: str | None, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "ts_ms": 5, **more}


def field(name: str, type_: str, semantic: str = "", **more: Any) -> dict[str, Any]:
    made = {"type": type_, "optional": True, **({"name": semantic} if semantic else {})}
    return {**made, **more, "field": name}


FIELDS = [
    field("id", "int64"),
    field("amount", "bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}),
    field("paid", "int64", "io.debezium.time.MicroTimestamp"),
    field("day", "int32", "io.debezium.time.Date"),
    field("note", "string"),
]


def envelope_schema(fields: list[dict[str, Any]]) -> dict[str, Any]:
    row = {"type": "struct", "fields": fields, "optional": True, "name": "t.Value"}
    source = {"type": "struct", "fields": [field("lsn", "int64")], "field": "source"}
    parts = [{**row, "field": "before"}, {**row, "field": "after"}, source]
    return {
        "type": "struct",
        "fields": [*parts, field("op", "string"), field("ts_ms", "int64")],
        "name": "t.Envelope",
    }


def with_schema(value: Any, schema: Any = None) -> bytes:
    return dumped(
        {"schema": envelope_schema(FIELDS) if schema is None else schema, "payload": value}
    )


def read(serde: Any, *rows: bytes | None) -> tuple[list[Any], dict[int, str]]:
    column, faults = serde.decode_marked(pa.array(rows, pa.binary()))
    assert column.type == serde.type
    return column.to_pylist(), {row: str(error) for row, error in faults.items()}


# --- JSON -----------------------------------------------------------------------------------------


def test_an_envelope_without_a_schema_is_read_as_the_program_says() -> None:
    serde = serdes.debezium(COLUMNS, times="us", source="lsn bigint, `table` string")
    data = dumped(change("u", raw(note="w"), raw(), source={"lsn": 7, "table": "t", "other": 1}))
    assert serde.decode(data) == {
        "before": {**ROW, "note": "w"},
        "after": ROW,
        "source": {"lsn": 7, "table": "t"},
        "op": "u",
        "ts_ms": 5,
    }
    assert serde.decode(None) is None
    assert serde.kind == "debezium"
    assert pickle.loads(pickle.dumps(serde)) == serde


def test_the_schema_of_a_record_says_how_its_columns_are_written() -> None:
    millis = [
        {**one, "name": "io.debezium.time.Timestamp"} if one["field"] == "paid" else one
        for one in FIELDS
    ]
    rows = [
        with_schema(change("c", None, raw())),
        None,
        with_schema(change("c", None, raw(paid=MICROS // 1000)), envelope_schema(millis)),
        dumped(change("c", None, raw(paid="2024-01-31T12:00:00.123Z"))),
        with_schema(change("d", raw(), None)),
    ]
    found, faults = read(serdes.debezium(COLUMNS), *rows)
    assert not faults
    assert [one and one["after"] for one in found] == [ROW, None, ROW, ROW, None]
    assert found[4]["before"] == ROW


@pytest.mark.parametrize(
    ("type_", "kind", "semantic", "written", "value"),
    [
        ("timestamp", "int64", "io.debezium.time.NanoTimestamp", MICROS * 1000, PAID),
        ("timestamp", "int64", "org.apache.kafka.connect.data.Timestamp", MICROS // 1000, PAID),
        ("timestamp", "string", "io.debezium.time.ZonedTimestamp", "2024-01-31T13:00:00.123+01:00",
         PAID),
        ("timestamp_ntz", "int64", "io.debezium.time.MicroTimestamp", MICROS,
         PAID.replace(tzinfo=None)),
        ("bigint", "int64", "io.debezium.time.MicroTimestamp", MICROS, MICROS),
        ("bigint", "int64", "io.debezium.time.MicroTime", 1, 1),
        ("date", "int32", "org.apache.kafka.connect.data.Date", -1, dt.date(1969, 12, 31)),
        ("date", "string", "io.debezium.time.IsoDate", "2024-01-31Z", dt.date(2024, 1, 31)),
        ("decimal(9,2)", "string", "", "12.50", Decimal("12.50")),
        ("decimal(9,2)", "double", "", 12.5, Decimal("12.50")),
        ("decimal(9,2)", "struct", "io.debezium.data.VariableScaleDecimal",
         {"scale": 1, "value": base(125)}, Decimal("12.50")),
        ("double", "double", "", 12.5, 12.5),
        ("string", "string", "io.debezium.data.Json", '{"a":1}', '{"a":1}'),
        ("binary", "bytes", "", base(5), b"\0\5"),
        ("boolean", "boolean", "", True, True),
    ],
)  # fmt: skip
def test_each_semantic_type_is_a_type(
    type_: str, kind: str, semantic: str, written: Any, value: Any
) -> None:
    schema = {"type": "struct", "fields": [field("x", kind, semantic)]}
    serde = serdes.debezium(f"x {type_}", form="row")
    rows = [with_schema({"x": written}, schema), with_schema({"x": None}, schema)]
    assert read(serde, *rows) == ([{"x": value}, {"x": None}], {})


def test_decimals_of_another_scale_and_doubles_are_read() -> None:
    decimals = [
        field("x", "bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "3"})
    ]
    schema = {"type": "struct", "fields": decimals}
    rows = [with_schema({"x": base(one, 3)}, schema) for one in (12_500, 12_501)]
    found, faults = read(serdes.debezium("x decimal(9,2)", form="row"), *rows)
    assert found == [{"x": Decimal("12.50")}, None]
    assert list(faults) == [1]
    assert "x" in faults[1]
    doubles, faults = read(serdes.debezium("x double", form="row"), *rows)
    assert (doubles, faults) == ([{"x": 12.5}, {"x": 12.501}], {})


def test_decimals_that_the_converter_writes_as_numbers_are_said_by_the_program() -> None:
    """KIP-481, ``decimal.format=NUMERIC``: the schema is that of bytes."""
    data = with_schema(change("c", None, raw(amount=-123.45)))
    assert serdes.debezium(COLUMNS, decimals="double").decode(data)["after"] == ROW
    assert "after.amount" in read(serdes.debezium(COLUMNS), data)[1][0]


def test_nested_values_are_read_by_their_schemas_too() -> None:
    item = {"type": "int64", "name": "io.debezium.time.Timestamp", "optional": True}
    point = {"type": "struct", "fields": [field("on", "int32", "io.debezium.time.Date")]}
    fields = [
        {"type": "array", "items": item, "field": "times"},
        {**point, "field": "point"},
        {"type": "map", "keys": {"type": "string"}, "values": item, "field": "by_name"},
    ]
    serde = serdes.debezium(
        "times array<timestamp>, point struct<on date>, by_name map<string, timestamp>", form="row"
    )
    schema = {"type": "struct", "fields": fields}
    values: list[dict[str, Any]] = [
        {"times": [MICROS // 1000, None], "point": {"on": 0}, "by_name": {"a": 0}},
        {"times": None, "point": None, "by_name": None},
        {"times": [], "point": {"on": None}, "by_name": {}},
    ]
    found, faults = read(serde, *(with_schema(one, schema) for one in values))
    epoch = dt.datetime(1970, 1, 1, tzinfo=UTC)
    first = {"times": [PAID, None], "point": {"on": epoch.date()}, "by_name": [("a", epoch)]}
    empty = {"times": [], "point": {"on": None}, "by_name": []}
    assert (found, faults) == ([first, values[1], empty], {})
    bad = with_schema({**values[0], "times": [0, 2**62]}, schema)
    found, faults = read(serde, with_schema(values[0], schema), bad)
    assert found == [first, None]
    assert "times[]" in faults[1]


def test_schemas_are_found_in_every_form() -> None:
    schema = {"type": "struct", "fields": [field("x", "int32", "io.debezium.time.Date")]}
    forms = [
        dumped({"schema": schema, "payload": {"x": 0}}),
        json.dumps({"schema": schema, "payload": {"x": 0}}).encode(),
        dumped({"payload": {"x": 0}, "schema": schema}),
        dumped({"schema": schema, "payload": {"x": 0}}) + b" ",
        dumped({"schema": None, "payload": {"x": 0}}),
    ]
    found, faults = read(serdes.debezium("x date", form="row"), *forms)
    assert not faults
    assert [one["x"] for one in found] == [dt.date(1970, 1, 1)] * 5


def test_records_in_other_forms_stay_in_their_order() -> None:
    schema = {"type": "struct", "fields": [field("x", "int32")]}
    in_front = json.dumps({"schema": schema, "payload": {"x": 0}}).encode()
    behind_it = dumped({"payload": {"x": 1}, "schema": schema})
    serde = serdes.debezium("x int", form="row")
    for rows in ([in_front, behind_it], [behind_it, in_front], [behind_it, in_front, behind_it]):
        found, faults = read(serde, *rows)
        assert not faults
        assert [one["x"] for one in found] == [0 if row is in_front else 1 for row in rows]


def test_rows_are_grouped_by_the_text_of_their_schema() -> None:
    rows = [with_schema({"x": at}, {"type": "struct", "at": at % 2}) for at in range(6)]
    parts = list(payloads(pa.array([*rows, b"{}"], pa.binary())))
    assert [one.rows.tolist() for one in parts] == [[6], [0, 2, 4], [1, 3, 5]]
    assert parts[1].data.to_pylist() == [b'{"x":0}', b'{"x":2}', b'{"x":4}']
    many = [with_schema({"x": at}, {"type": "struct", "at": at}) for at in range(100)]
    parts = list(payloads(pa.array(many, pa.binary())))
    assert sorted(row for one in parts for row in one.rows.tolist()) == list(range(100))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"{", "JSON"),
        (dumped({"id": 1}), "form='row'"),
        (with_schema(change("x", None, raw())), "op is 'x'"),
        (with_schema(change("c", raw(), None)), "after"),
        (dumped(change("c", None, raw(paid=MICROS))), "times="),
        (dumped(change("c", None, raw(amount="12.50", paid=None))), "decimals="),
        (dumped(change("c", None, raw(day="2024-01-31Z", paid=None))), "times="),
        (with_schema(change("c", None, raw(id="one"))), "after.id"),
        (with_schema(change("c", None, raw(paid=2**62))), "after.paid"),
        (with_schema(change("c", None, raw(amount=base(10**11, 6)))), "after.amount"),
        (with_schema(change("c"), "struct"), "schema"),
    ],
)
def test_a_record_that_is_no_change_is_a_bad_record(data: bytes, word: str) -> None:
    serde = serdes.debezium(COLUMNS)
    good = with_schema(change("c", None, raw()))
    found, faults = read(serde, good, data, good)
    assert [one is None for one in found] == [False, True, False]
    assert list(faults) == [1]
    assert word in faults[1]
    with pytest.raises(SerdeError) as caught:
        serde.decode_array(pa.array([good, data], pa.binary()))
    assert caught.value.index == 1


def test_a_table_gets_rows_and_deletions() -> None:
    serde = of_a_table(serdes.debezium(COLUMNS))
    assert serde.type == serdes.arrow_type(COLUMNS)
    assert of_a_table(serde) is serde
    ops = [("r", None, raw()), ("c", None, raw()), ("u", raw(), raw()), ("d", raw(), None)]
    rows = [with_schema(change(*one)) for one in ops]
    assert read(serde, *rows, None) == ([ROW, ROW, ROW, None, None], {})
    assert read(serde) == ([], {})


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (dumped(change("t")), "skipped.operations"),
        (dumped(change("m")), "message"),
        (dumped(change("u", None, {"id": 1, "note": UNAVAILABLE})), "REPLICA IDENTITY FULL"),
    ],
)
def test_what_is_no_row_and_no_deletion_is_no_tables(data: bytes, word: str) -> None:
    envelope = serdes.debezium(COLUMNS)
    assert read(envelope, data)[1] == {}
    found, faults = read(of_a_table(envelope), data)
    assert (found, list(faults)) == ([None], [0])
    assert word in faults[0]


def test_what_an_update_lacks_is_left_to_the_table() -> None:
    """A row that begins has nothing that could be kept: its primary key was another one before."""
    table = of_a_table(serdes.debezium("id bigint, note string"), completes=True)
    lacks = {"id": 1, "note": UNAVAILABLE}
    found, faults = read(table, *(dumped(change(op, None, lacks)) for op in ("u", "c")))
    assert found == [lacks, None]
    assert list(faults) == [1]
    row = of_a_table(serdes.debezium("id bigint, note string", form="row"), completes=True)
    assert read(row, dumped(lacks)) == ([lacks], {})


def test_unwrapped_rows_say_that_they_are_deleted() -> None:
    marked = [dumped({"id": 1, "__deleted": word}) for word in ("false", "true")]
    rows = [*marked, dumped({"id": 1}), None]
    for columns in ("id bigint", "id bigint, __deleted string"):
        table = of_a_table(serdes.debezium(columns, form="row"))
        found, faults = read(table, *rows)
        assert [one and one["id"] for one in found] == [1, None, 1, None]
        assert not faults
    stream = serdes.debezium("id bigint", form="row")
    assert read(stream, *rows[:2]) == ([{"id": 1}, {"id": 1}], {})


def test_columns_come_and_go() -> None:
    serde = of_a_table(serdes.debezium("id bigint, gone string"))
    added = [field("id", "int64"), field("fresh", "string")]
    new = with_schema(change("c", None, {"id": 1, "fresh": "x"}), envelope_schema(added))
    assert read(serde, new) == ([{"id": 1, "gone": None}], {})
    retyped = [field("id", "string")]
    other = with_schema(change("c", None, {"id": "one"}), envelope_schema(retyped))
    assert "id (bigint)" in read(serde, new, other)[1][1]


def test_a_change_without_a_key_is_none_of_a_row() -> None:
    keys, values = pa.array([b"k", None, None], pa.binary()), pa.array([b"v", b"v", None])
    values = values.cast(pa.binary())
    assert keyless(of_a_table(serdes.debezium("id bigint")), keys, values).tolist() == [1]
    assert not len(keyless(serdes.debezium("id bigint"), keys, values))
    assert not len(keyless(serdes.string(), keys, values))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"columns": "bigint"}, "columns"),
        ({"columns": COLUMNS, "form": "flat"}, "form"),
        ({"columns": COLUMNS, "decimals": "exact"}, "decimals"),
        ({"columns": COLUMNS, "times": {"paid": "s"}}, "times"),
        ({"columns": COLUMNS, "times": {"amount": "ms"}}, "amount"),
        ({"columns": COLUMNS, "decimals": {"cost": "string"}}, "cost"),
        ({"columns": COLUMNS, "form": "row", "source": "lsn bigint"}, "source"),
        ({"columns": COLUMNS, "source": "bigint"}, "source"),
    ],
)
def test_what_the_program_says_is_checked(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(SerdeError, match=word):
        serdes.debezium(**arguments)


# --- written --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decimals", "times", "written"),
    [
        ("precise", "us", raw()),
        ("string", "ms", raw(amount="-123.45", paid=MICROS // 1000)),
        ("double", "ns", raw(amount=-123.45, paid=MICROS * 1000)),
        (
            {"amount": "variable"},
            {"paid": "iso", "day": "iso"},
            raw(
                amount={"scale": 2, "value": base(-12345)},
                paid="2024-01-31T12:00:00.123000Z",
                day="2024-01-31Z",
            ),
        ),
    ],
)
def test_what_is_written_is_read_again(decimals: Any, times: Any, written: dict[str, Any]) -> None:
    serde = serdes.debezium(COLUMNS, decimals=decimals, times=times)
    value = change("u", {**ROW, "paid": None, "amount": None, "day": None}, ROW)
    data = serde.encode(value)
    assert data is not None
    assert json.loads(data)["after"] == written
    assert serde.decode(data) == value


def test_what_cannot_be_written_is_named() -> None:
    serde = serdes.debezium("paid timestamp", form="row", times="ms")
    with pytest.raises(SerdeError, match="paid"):
        serde.encode({"paid": PAID.replace(microsecond=1)})
    far = serdes.debezium("paid timestamp", form="row", times="ns")
    with pytest.raises(SerdeError, match="paid"):
        far.encode({"paid": PAID.replace(year=9000)})


def test_a_table_keeps_rows_and_not_changes() -> None:
    envelope = serdes.debezium("id bigint")
    assert behind(of_a_table(envelope)) == serdes.json("id bigint")
    assert behind(envelope) is envelope
    assert behind(serdes.string()) == serdes.string()
    row, dated = (serdes.debezium(one, form="row") for one in ("id bigint", "id bigint, day date"))
    assert (behind(row), behind(dated)) == (serdes.json("id bigint"), dated)
    assert serde_words(of_a_table(envelope)).endswith("as Debezium")
    assert envelope_type(pa.int64()).names == ["before", "after", "op", "ts_ms"]


def test_a_key_is_a_row() -> None:
    key = serdes.debezium("id bigint, day date", form="row")
    schema = {"type": "struct", "fields": [field("id", "int64"), FIELDS[3]]}
    for data in (with_schema({"id": 1, "day": 0}, schema), dumped({"id": 1, "day": 0})):
        assert key.decode(data) == {"id": 1, "day": dt.date(1970, 1, 1)}
    assert key.encode({"id": 1, "day": dt.date(1970, 1, 1)}) == b'{"id":1,"day":0}'
    assert not no_key(key)
    assert not no_key(serdes.string())
    assert "form='row'" in no_key(serdes.debezium("id bigint"))


# --- Avro -----------------------------------------------------------------------------------------

AVRO_FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {
        "name": "amount",
        "type": [
            "null",
            {
                "type": "bytes",
                "scale": 2,
                "precision": 64,  # AvroData's, where the connector says none
                "connect.version": 1,
                "connect.parameters": {"scale": "2"},
                "connect.name": "org.apache.kafka.connect.data.Decimal",
                "logicalType": "decimal",
            },
        ],
        "default": None,
    },
    {
        "name": "paid",
        "type": [
            "null",
            {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"},
        ],
        "default": None,
    },
    {"name": "day", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
    {"name": "note", "type": ["null", "string"], "default": None},
]  # fmt: skip


def avro_envelope(fields: list[dict[str, Any]] = AVRO_FIELDS) -> dict[str, Any]:
    """As `AvroData` makes it of Debezium's."""
    row = {"type": "record", "name": "Value", "fields": fields, "connect.name": "shop.Value"}
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": [
            {"name": "version", "type": "string"},
            {"name": "snapshot", "type": ["null", "string"], "default": None},
            {"name": "lsn", "type": ["null", "long"], "default": None},
        ],
    }
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.orders",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
        "connect.version": 2,
        "connect.name": "shop.public.orders.Envelope",
    }


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as found:
        yield found


def as_avro(registry: SchemaRegistry, value: Any, schema: dict[str, Any]) -> bytes:
    """As the converter writes it: of the same schema without precisions that no column has."""
    id_ = registry.register("orders-value", schema)
    out = io.BytesIO()
    written = fastavro.parse_schema(plain(parsed(plain_text(json.dumps(schema)))))
    fastavro.schemaless_writer(out, written, value)
    return b"\0" + id_.to_bytes(4, "big") + out.getvalue()


AVRO_ROW = raw(amount=(-12345).to_bytes(2, "big", signed=True))
SOURCE = {"version": "3", "snapshot": None, "lsn": 7}


def test_avro_is_read_by_the_names_of_kafka_connect(registry: SchemaRegistry) -> None:
    serde = serdes.debezium(COLUMNS, registry=registry.url, source="lsn bigint")
    changed = change("u", AVRO_ROW, AVRO_ROW, source=SOURCE)
    removed = change("d", {**AVRO_ROW, "amount": None, "paid": None}, None, source=SOURCE)
    rows = [as_avro(registry, one, avro_envelope()) for one in (changed, removed)]
    found, faults = read(serde, rows[0], None, rows[1])
    assert not faults
    assert found[0] == {"before": ROW, "after": ROW, "source": {"lsn": 7}, "op": "u", "ts_ms": 5}
    assert found[1] is None
    assert found[2]["before"] == {**ROW, "amount": None, "paid": None}
    assert read(of_a_table(serde), *rows) == ([ROW, None], {})


def test_an_altered_table_is_read_in_avro(registry: SchemaRegistry) -> None:
    serde = of_a_table(serdes.debezium("id bigint, note string", registry=registry.url))
    id_only = avro_envelope([{"name": "id", "type": "int"}])
    text = avro_envelope([{"name": "id", "type": "string"}, AVRO_FIELDS[4]])
    rows = [
        as_avro(registry, change("c", None, AVRO_ROW, source=SOURCE), avro_envelope()),
        as_avro(registry, change("c", None, {"id": 2}, source=SOURCE), id_only),
        as_avro(registry, change("c", None, {"id": "3", "note": None}, source=SOURCE), text),
    ]
    found, faults = read(serde, *rows)
    assert found == [{"id": 1, "note": "x"}, {"id": 2, "note": None}, None]
    assert list(faults) == [2]
    assert "after.id" in faults[2]
    other = avro_envelope([{"name": "name", "type": "string"}])
    row = as_avro(registry, change("c", None, {"name": "x"}, source=SOURCE), other)
    assert "id, note" in read(serde, row)[1][0]


def test_what_the_registry_says_is_as_of_any_serde(registry: SchemaRegistry) -> None:
    serde = serdes.debezium(COLUMNS, registry=registry.url)
    _, faults = read(serde, b"\0\0\0\0\x63x", dumped(change("c", None, raw())), b"\0\0")
    assert ["99" in faults[0], "first byte" in faults[1], list(faults)] == [True, True, [0, 1, 2]]
    assert reads_only(serde)
    assert no_key(serdes.debezium("a int", form="row", registry=registry.url))
    assert behind(serde) == serdes.json(serde.type)
    with pytest.raises(SchemaError):
        serde.encode(change("c", None, ROW))
    assert not reads_only(serdes.debezium(COLUMNS))


def test_a_decimal_without_a_scale_is_a_struct_of_both() -> None:
    columns = "x decimal(9,2), y struct<scale int, value binary>"
    serde = serdes.debezium(columns, form="row", decimals={"x": "variable"})
    both = {"scale": 1, "value": base(5)}
    found = serde.decode(dumped({"x": both, "y": both}))
    assert found == {"x": Decimal("0.50"), "y": {"scale": 1, "value": b"\0\5"}}
    assert serde.type.field("y").type == VARIABLE
