"""Change data are read as they were written: random columns, by the record's schema or by the
program's words."""

import base64
import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.serdes.avro_types import parsed, plain
from everflow.serdes.connect_columns import from_base64
from everflow.serdes.connect_types import plain_text
from everflow.serdes.registry import Schema

UTC = dt.timezone.utc
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
CONNECT = "org.apache.kafka.connect.data"
MOMENTS = st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29), timezones=st.just(UTC))
DAYS = st.dates()


def micros(when: dt.datetime) -> int:
    return (when - EPOCH) // dt.timedelta(microseconds=1)


def twos(number: int) -> str:
    size = max(1, (number.bit_length() + 8) // 8)
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def whole(moment: dt.datetime) -> dt.datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def unscaled(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale))


@st.composite
def columns(draw: st.DrawFn) -> tuple[str, dict[str, Any], Any]:
    """A type, its schema in Kafka Connect, and how a value of it is written; a value comes with
    `value_of`."""
    scale = draw(st.integers(0, 6))
    kinds: list[tuple[str, dict[str, Any], Any]] = [
        ("bigint", {"type": "int64"}, lambda one: one),
        ("string", {"type": "string"}, lambda one: one),
        ("date", {"type": "int32", "name": "io.debezium.time.Date"},
         lambda one: (one - EPOCH.date()).days),
        ("date", {"type": "string", "name": "io.debezium.time.IsoDate"},
         lambda one: f"{one.isoformat()}Z"),
        ("timestamp", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, micros),
        ("timestamp", {"type": "int64", "name": "io.debezium.time.NanoTimestamp"},
         lambda one: micros(one) * 1000),
        ("timestamp", {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
         lambda one: one.isoformat()),
        ("millis", {"type": "int64", "name": f"{CONNECT}.Timestamp"},
         lambda one: micros(one) // 1000),
        (f"decimal(18,{scale})",
         {"type": "bytes", "name": f"{CONNECT}.Decimal", "parameters": {"scale": str(scale)}},
         lambda one: twos(unscaled(one, scale))),
        (f"decimal(18,{scale})", {"type": "string"}, str),
        (f"decimal(18,{scale})",
         {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
         lambda one: {"scale": scale, "value": twos(unscaled(one, scale))}),
    ]  # fmt: skip
    chosen: tuple[str, dict[str, Any], Any] = draw(st.sampled_from(kinds))
    return chosen


def value_of(draw: st.DrawFn, type_: str, schema: dict[str, Any]) -> Any:
    if draw(st.integers(0, 4)) == 0:
        return None
    if type_ == "bigint":
        return draw(st.integers(-(2**63), 2**63 - 1))
    if type_ == "string":
        return draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5))
    if type_ == "date":
        return draw(DAYS)
    if type_ == "millis":
        return whole(draw(MOMENTS))
    if type_ == "timestamp":
        near = st.datetimes(
            dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(UTC)
        )
        return draw(near if schema.get("name", "").endswith("NanoTimestamp") else MOMENTS)
    scale = int(type_.rpartition(",")[2][:-1])
    return Decimal(draw(st.integers(-(10**18) + 1, 10**18 - 1))).scaleb(-scale)


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, bytes, list[bytes | None], list[Any]]:
    """Columns, and rows as they are written and as they are."""
    made = draw(st.lists(columns(), min_size=1, max_size=5))
    ddl = ", ".join(
        f"c{at} {'timestamp' if type_ == 'millis' else type_}"
        for at, (type_, _, _) in enumerate(made)
    )
    fields = [
        {**schema, "optional": True, "field": f"c{at}"} for at, (_, schema, _) in enumerate(made)
    ]
    schema = {"type": "struct", "fields": fields}
    rows: list[bytes | None] = []
    values: list[Any] = []
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            rows.append(None)
            values.append(None)
            continue
        row = [value_of(draw, type_, one) for type_, one, _ in made]
        values.append({f"c{at}": one for at, one in enumerate(row)})
        payload = {
            f"c{at}": None if one is None else write(one)
            for at, (one, (_, _, write)) in enumerate(zip(row, made, strict=True))
        }
        both = {"schema": schema, "payload": payload}
        blanks = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
        rows.append(json.dumps(both, separators=blanks, ensure_ascii=False).encode())
    return ddl, json.dumps(schema).encode(), rows, values


@given(
    rows=st.lists(
        st.none()
        | st.binary(max_size=9).map(lambda one: base64.b64encode(one).decode())
        | st.text("AZaz09+/=-é", max_size=9)
    )
)
def test_base64_is_what_python_reads(rows: list[str | None]) -> None:
    column, wrong = from_base64(pa.array(rows, pa.string()))
    for row, found, bad in zip(rows, column.to_pylist(), wrong.tolist(), strict=True):
        try:
            wanted = None if row is None else base64.b64decode(row, validate=True)
        except ValueError:
            wanted = None
            assert bad
        assert found == wanted


@given(table=tables())
def test_rows_are_read_by_the_schemas_in_front_of_them(table: Any) -> None:
    ddl, _, rows, values = table
    serde: Any = serdes.debezium(ddl, form="row")
    column, faults = serde.decode_marked(pa.array(rows, pa.binary()))
    assert (faults, column.to_pylist()) == ({}, values)


AVRO = {"int64": "long", "int32": "int", "string": "string", "bytes": "bytes"}
SCALED = {
    "type": "record",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}


def avro_type(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """As Confluent's `AvroData` makes it of a schema of Kafka Connect."""
    named = {"connect.name": schema["name"]} if "name" in schema else {}
    if schema["type"] == "struct":
        return {**SCALED, "name": f"Scaled{name}", **named}
    made = {"type": AVRO[schema["type"]], **named}
    if schema.get("name", "").endswith(".Decimal"):
        parameters = schema["parameters"]
        more = {"connect.parameters": parameters, "scale": int(parameters["scale"])}
        return {**made, **more, "precision": 64, "logicalType": "decimal"}
    return made


def in_avro(value: Any, schema: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {**value, "value": base64.b64decode(value["value"])}
    return base64.b64decode(value) if value is not None and schema["type"] == "bytes" else value


@given(table=tables())
def test_rows_are_read_by_the_schema_of_the_registry(table: Any) -> None:
    ddl, schema, rows, values = table
    fields = json.loads(schema)["fields"]
    types = [
        {"name": one["field"], "type": ["null", avro_type(one, one["field"])]} for one in fields
    ]
    text = json.dumps({"type": "record", "name": "Value", "fields": types})
    written = fastavro.parse_schema(plain(parsed(plain_text(text))))
    data = []
    for row in rows:
        payload = {} if row is None else json.loads(row)["payload"]
        out = io.BytesIO()
        record = {one["field"]: in_avro(payload.get(one["field"]), one) for one in fields}
        fastavro.schemaless_writer(out, written, record)
        data.append(out.getvalue())
    serde: Any = serdes.debezium(ddl, form="row")
    column, faults = serde._of_avro(pa.array(data, pa.binary()), Schema("AVRO", text))
    nothing = {one["field"]: None for one in fields}
    assert faults == {}
    assert column.to_pylist() == [nothing if one is None else one for one in values]


@given(
    table=tables(),
    decimals=st.sampled_from(["precise", "string", "double", "variable"]),
    times=st.sampled_from(["us", "iso"]),
)
def test_rows_are_read_as_they_are_written(table: Any, decimals: str, times: str) -> None:
    ddl, _, _, values = table
    for serde in (
        serdes.debezium(ddl, form="row", decimals=decimals, times=times),
        serdes.debezium(ddl, decimals=decimals, times=times),
    ):
        wrap = serde.type.names[0] == "before"
        given_ = [
            {"before": one, "after": one, "op": "u", "ts_ms": 1} if wrap and one else one
            for one in values
        ]
        data = serde.encode_array(pa.array(given_, serde.type))
        assert serde.decode_array(data).to_pylist() == given_
