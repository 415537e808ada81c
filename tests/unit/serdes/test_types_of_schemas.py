"""Each type of Avro and Protobuf as a column, in its bytes; of keys as of values."""

import datetime as dt
import io
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from everflow import serdes
from everflow.serdes import SerdeError
from everflow.serdes.registered import bound_to
from everflow.testing.schema_registry import SchemaRegistry

UTC = dt.timezone.utc
NOON = dt.datetime(2024, 1, 31, 12, 0, 0, 5_000, tzinfo=UTC)
MICRO = dt.datetime(2024, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
MILLIS = int(NOON.timestamp() * 1000)
TIMESTAMP, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as found:
        yield found


def of(type_: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": logical, **more}


def decimal(**more: Any) -> dict[str, Any]:
    return of(more.pop("type", "bytes"), "decimal", precision=5, scale=2, **more)


POINT = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
AVRO: dict[str, tuple[Any, pa.DataType, Any, Any]] = {
    # Avro's type; the column's; a value in it; what fastavro takes for it, if that is another
    "null": ("null", pa.null(), None, None),
    "boolean": ("boolean", pa.bool_(), True, None),
    "int": ("int", pa.int32(), -(2**31), None),
    "long": ("long", pa.int64(), 2**63 - 1, None),
    "float": ("float", pa.float32(), 0.5, None),
    "double": ("double", pa.float64(), -0.1, None),
    "bytes": ("bytes", pa.binary(), b"\x00\xff", None),
    "string": ("string", pa.string(), "Zoë", None),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), "B", None),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"ab", None),
    "array": ({"type": "array", "items": "long"}, pa.list_(pa.int64()), [1, -70_000], None),
    "map": (
        {"type": "map", "values": "string"},
        pa.map_(pa.string(), pa.string()),
        [("a", "b"), ("c", "")],
        {"a": "b", "c": ""},
    ),
    "record": (POINT, pa.struct([("x", pa.int32())]), {"x": 64}, None),
    "null or string": (["null", "string"], pa.string(), "x", None),
    "null or string, null": (["null", "string"], pa.string(), None, None),
    "string or null, null": (["string", "null"], pa.string(), None, None),
    "null or record": (["null", POINT], pa.struct([("x", pa.int32())]), {"x": 1}, None),
    "int or long": (["int", "long"], pa.int64(), 2**40, None),
    "long or string": (
        ["long", "string", "null"],
        pa.struct([("member0", pa.int64()), ("member1", pa.string())]),
        {"member0": None, "member1": "x"},
        "x",
    ),
    "decimal": (decimal(), pa.decimal128(5, 2), Decimal("-1.27"), None),
    "fixed decimal": (
        decimal(type="fixed", name="D", size=4),
        pa.decimal128(5, 2),
        Decimal("999.99"),
        None,
    ),
    "date": (of("int", "date"), pa.date32(), dt.date(2024, 1, 31), None),
    "timestamp-millis": (of("long", "timestamp-millis"), TIMESTAMP, NOON, None),
    "timestamp-micros": (of("long", "timestamp-micros"), TIMESTAMP, MICRO, None),
    "timestamp-nanos": (of("long", "timestamp-nanos"), pa.int64(), MILLIS * 10**6 + 1, None),
    "local-timestamp-millis": (
        of("long", "local-timestamp-millis"),
        LOCAL,
        NOON.replace(tzinfo=None),
        None,
    ),
    "local-timestamp-micros": (
        of("long", "local-timestamp-micros"),
        LOCAL,
        MICRO.replace(tzinfo=None),
        None,
    ),
    "time-millis": (of("int", "time-millis"), pa.int32(), 43_200_005, dt.time(12, 0, 0, 5_000)),
    "time-micros": (of("long", "time-micros"), pa.int64(), 5, dt.time(0, 0, 0, 5)),
    "uuid": (
        of("string", "uuid"),
        pa.string(),
        "c9a646d3-9c61-4cb7-bfcd-ee2522c8f633",
        None,
    ),
}


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("name", AVRO)
def test_each_type_of_avro_is_a_column(registry: SchemaRegistry, name: str, part: str) -> None:
    type_, column, value, plain = AVRO[name]
    fields = [{"name": "v", "type": type_}, {"name": "behind", "type": "int"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    topic = name.replace(" ", "-").replace(",", "")
    registry.register(f"{topic}-{part}", schema)
    serde: Any = bound_to(serdes.avro(schema, registry=registry.url), topic, part)
    assert serde.type.field("v").type.equals(column)
    row = {"v": value, "behind": 7}
    data = serde.encode(row)
    out = io.BytesIO()
    given = {**row, "v": value if plain is None else plain}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), given)
    assert data[5:] == out.getvalue()
    assert serde.decode(data) == row
    both = pa.array([row, None, row], serde.type)
    assert serde.decode_array(serde.encode_array(both)).equals(both)


@pytest.mark.parametrize("name", ["timestamp-millis", "local-timestamp-millis"])
def test_what_a_type_would_cut_off_is_a_fault(name: str) -> None:
    type_, *_ = AVRO[name]
    serde = serdes.avro({"type": "record", "name": "R", "fields": [{"name": "v", "type": type_}]})
    with pytest.raises(SerdeError, match=r"v: .*microseconds"):
        serde.encode({"v": MICRO if name[0] == "t" else MICRO.replace(tzinfo=None)})


# --- Protobuf -------------------------------------------------------------------------------------


def _wrapped(name: str) -> dict[str, Any]:
    return {"type_name": f".google.protobuf.{name}Value", "type": Field.TYPE_MESSAGE}


KINDS: dict[str, tuple[dict[str, Any], pa.DataType, Any, Any]] = {
    # the field; the column's type; a value in it; what the library takes for it, if another
    "double": ({"type": Field.TYPE_DOUBLE}, pa.float64(), -0.0, None),
    "float": ({"type": Field.TYPE_FLOAT}, pa.float32(), 0.5, None),
    "int32": ({"type": Field.TYPE_INT32}, pa.int32(), -1, None),
    "int64": ({"type": Field.TYPE_INT64}, pa.int64(), -(2**63), None),
    "uint32": ({"type": Field.TYPE_UINT32}, pa.int64(), 2**32 - 1, None),
    "uint64": ({"type": Field.TYPE_UINT64}, pa.decimal128(20, 0), Decimal(2**64 - 1), 2**64 - 1),
    "sint32": ({"type": Field.TYPE_SINT32}, pa.int32(), -(2**31), None),
    "sint64": ({"type": Field.TYPE_SINT64}, pa.int64(), -70_000, None),
    "fixed32": ({"type": Field.TYPE_FIXED32}, pa.int64(), 2**32 - 1, None),
    "fixed64": ({"type": Field.TYPE_FIXED64}, pa.decimal128(20, 0), Decimal(2**63), 2**63),
    "sfixed32": ({"type": Field.TYPE_SFIXED32}, pa.int32(), -5, None),
    "sfixed64": ({"type": Field.TYPE_SFIXED64}, pa.int64(), -5, None),
    "bool": ({"type": Field.TYPE_BOOL}, pa.bool_(), True, None),
    "string": ({"type": Field.TYPE_STRING}, pa.string(), "Zoë", None),
    "bytes": ({"type": Field.TYPE_BYTES}, pa.binary(), b"\x00\xff", None),
    "enum": ({"type": Field.TYPE_ENUM, "type_name": ".E"}, pa.string(), "B", 1),
    "message": (
        {"type": Field.TYPE_MESSAGE, "type_name": ".P"},
        pa.struct([("x", pa.int32())]),
        {"x": 64},
        None,
    ),
    "timestamp": (
        {"type": Field.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"},
        TIMESTAMP,
        MICRO,
        {"seconds": MILLIS // 1000, "nanos": 5_000},
    ),
    "double wrapper": (_wrapped("Double"), pa.float64(), 0.0, {}),
    "float wrapper": (_wrapped("Float"), pa.float32(), 0.5, {"value": 0.5}),
    "int64 wrapper": (_wrapped("Int64"), pa.int64(), 0, {}),
    "uint64 wrapper": (
        _wrapped("UInt64"),
        pa.decimal128(20, 0),
        Decimal(300),
        {"value": 300},
    ),
    "int32 wrapper": (_wrapped("Int32"), pa.int32(), -1, {"value": -1}),
    "uint32 wrapper": (_wrapped("UInt32"), pa.int64(), 5, {"value": 5}),
    "bool wrapper": (_wrapped("Bool"), pa.bool_(), False, {}),
    "string wrapper": (_wrapped("String"), pa.string(), "", {}),
    "bytes wrapper": (_wrapped("Bytes"), pa.binary(), b"x", {"value": b"x"}),
}


def _message(field: dict[str, Any], *, oneof: bool = False) -> Any:
    file = FileDescriptorProto(name="r.proto", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = file.enum_type.add(name="E")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=1)
    whole = file.message_type.add(name="R")
    point = file.message_type.add(name="P")
    point.field.add(name="x", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    whole.field.add(name="v", number=1, label=Field.LABEL_OPTIONAL, **field)
    whole.field.add(name="many", number=2, label=Field.LABEL_REPEATED, **field)
    if oneof:
        whole.oneof_decl.add(name="choice")
        whole.field[0].oneof_index = 0
        other = {"number": 3, "type": Field.TYPE_STRING, "label": Field.LABEL_OPTIONAL}
        whole.field.add(name="other", oneof_index=0, **other)
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("R"))


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("name", KINDS)
def test_each_type_of_protobuf_is_a_column(registry: SchemaRegistry, name: str, part: str) -> None:
    field, column, value, plain = KINDS[name]
    make = _message(field)
    own = value if plain is None else plain
    serde: Any = serdes.protobuf(make, registry=registry.url, auto_register=True)
    serde = bound_to(serde, f"protobuf-{name.replace(' ', '-')}", part)
    assert serde.type.field("v").type.equals(column)
    row = {"v": value, "many": [value, value]}
    data = serde.encode(row)
    assert data[6:] == make(v=own, many=[own, own]).SerializeToString(deterministic=True)
    assert serde.decode(data) == row
    assert serde.encode(serde.decode(data)) == data  # -0.0 is not 0.0
    both = pa.array([row, None, {"v": value, "many": []}], serde.type)
    assert serde.decode_array(serde.encode_array(both)).equals(both)


@pytest.mark.parametrize("name", KINDS)
def test_each_type_of_protobuf_may_be_the_member_of_a_oneof(name: str) -> None:
    field, _, value, plain = KINDS[name]
    make = _message(field, oneof=True)
    serde = serdes.protobuf(make)
    mine = {"v": value, "many": [], "other": None}
    assert serde.encode(mine) == make(v=value if plain is None else plain).SerializeToString()
    for row in (mine, {**mine, "v": None, "other": ""}, {**mine, "v": None}):
        assert serde.decode(serde.encode(row)) == row
    with pytest.raises(SerdeError, match="choice"):
        serde.encode({**mine, "other": "x"})
