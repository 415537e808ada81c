"""Protobuf: what a message is as a column, and whose message it is."""

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from everflow import serdes
from everflow.errors import SchemaError
from everflow.serdes import SerdeError
from everflow.serdes.registered import bound_to
from everflow.serdes.wire_format import read_indexes, written_indexes
from everflow.testing.schema_registry import SchemaRegistry

MANY = Field.LABEL_REPEATED
UTC = dt.timezone.utc


def _add(message: Any, number: int, name: str, type_: int, **more: Any) -> Any:
    one = message.field.add(name=name, number=number, type=type_, label=Field.LABEL_OPTIONAL)
    for what, value in more.items():
        setattr(one, what, value)
    return one


def _file() -> Any:
    """shop.Order with a field of each kind; shop.Line nested in it; shop.Other behind it."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="RUSH", number=1)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    _add(line, 1, "item", Field.TYPE_STRING)
    _add(line, 2, "count", Field.TYPE_INT32)
    entry = order.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    _add(entry, 1, "key", Field.TYPE_STRING)
    _add(entry, 2, "value", Field.TYPE_DOUBLE)
    order.oneof_decl.add(name="payment")
    order.oneof_decl.add(name="_note")
    _add(order, 1, "id", Field.TYPE_INT64)
    _add(order, 2, "large", Field.TYPE_UINT64)
    _add(order, 3, "kind", Field.TYPE_ENUM, type_name=".shop.Kind")
    _add(order, 4, "note", Field.TYPE_STRING, proto3_optional=True, oneof_index=1)
    _add(order, 5, "lines", Field.TYPE_MESSAGE, type_name=".shop.Order.Line", label=MANY)
    _add(order, 6, "prices", Field.TYPE_MESSAGE, type_name=".shop.Order.PricesEntry", label=MANY)
    _add(order, 7, "cash", Field.TYPE_DOUBLE, oneof_index=0)
    _add(order, 8, "card", Field.TYPE_STRING, oneof_index=0)
    _add(order, 9, "at", Field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    _add(order, 10, "maybe", Field.TYPE_MESSAGE, type_name=".google.protobuf.Int64Value")
    _add(order, 11, "first", Field.TYPE_MESSAGE, type_name=".shop.Order.Line")
    _add(order, 12, "tags", Field.TYPE_STRING, label=MANY)
    _add(file.message_type.add(name="Other"), 1, "x", Field.TYPE_STRING)
    return file


def _classes(file: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


ORDER, OTHER = (_classes(_file())(f"shop.{name}") for name in ("Order", "Other"))
LINE = _classes(_file())("shop.Order.Line")
WHOLE = {
    "id": 7,
    "large": Decimal(2**64 - 1),
    "kind": "RUSH",
    "note": "",
    "lines": [{"item": "pen", "count": 2}],
    "prices": [("EUR", 1.5)],
    "cash": None,
    "card": "visa",
    "at": dt.datetime(2024, 1, 31, 12, 0, 0, 5, tzinfo=UTC),
    "maybe": 0,
    "first": {"item": "pen", "count": 0},
    "tags": ["a", "b"],
}
EMPTY: dict[str, Any] = {
    **dict.fromkeys(WHOLE),
    "id": 0,
    "large": Decimal(0),
    "kind": "NONE",
    "lines": [],
    "prices": [],
    "tags": [],
}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as found:
        yield found


def test_a_message_is_read_and_written_as_the_library_does() -> None:
    serde = serdes.protobuf(ORDER)
    message = ORDER(id=7, large=2**64 - 1, kind=1, note="", card="visa", tags=["a", "b"])
    message.lines.add(item="pen", count=2)
    message.prices["EUR"] = 1.5
    message.at.seconds, message.at.nanos = 1706702400, 5000
    message.maybe.value = 0
    message.first.item = "pen"
    data = message.SerializeToString(deterministic=True)
    assert serde.decode(data) == WHOLE
    assert serde.encode(WHOLE) == data
    assert serde.decode(b"") == EMPTY
    assert serde.encode(EMPTY) == b""
    column = serde.decode_array(pa.array([data, None, b""], pa.binary()))
    column.validate(full=True)
    assert column.to_pylist() == [WHOLE, None, EMPTY]
    assert serde.encode_array(column).to_pylist() == [data, None, b""]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"\x08", "fit"),
        (b"\x22\x01\xff", "fit"),
        (ORDER(at={"seconds": 1, "nanos": 1}).SerializeToString(), "nanoseconds"),
    ],
)
def test_a_record_that_does_not_fit_is_a_fault_of_its_own(data: bytes, word: str) -> None:
    serde: Any = serdes.protobuf(ORDER)
    _, faults = serde.decode_marked(pa.array([b"", data], pa.binary()))
    assert list(faults) == [1]
    assert word in str(faults[1])


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"cash": 1.0, "card": "x"}, "payment"),
        ({"kind": "SLOW"}, "kind"),
        ({"large": Decimal(-1)}, "-1"),
        ({"tags": ["a", None]}, "tags"),
    ],
)
def test_a_value_without_a_place_is_named(value: dict[str, Any], word: str) -> None:
    serde = serdes.protobuf(ORDER)
    with pytest.raises(SerdeError, match=word) as failed:
        serde.encode_array(pa.array([EMPTY, {**EMPTY, **value}], serde.type))
    assert failed.value.index is not None


def test_a_number_without_a_name_is_kept() -> None:
    serde = serdes.protobuf(ORDER)
    data = ORDER(kind=9).SerializeToString()
    assert serde.decode(data)["kind"] == "9"
    assert serde.encode(serde.decode(data)) == data


def test_the_head_says_which_message_it_is(registry: SchemaRegistry) -> None:
    def made(message: Any) -> Any:
        serde = serdes.protobuf(message, registry=registry.url, auto_register=True)
        return bound_to(serde, "orders", "value")

    order, line, other = (made(one) for one in (ORDER, LINE, OTHER))
    heads = [one.encode_array(pa.array([{}], one.type))[0].as_py() for one in (order, line, other)]
    assert heads == [b"\0\0\0\0\1\0", b"\0\0\0\0\1\4\0\0", b"\0\0\0\0\1\2\2"]
    column, faults = order.decode_marked(pa.array([*heads, b"\0\0\0\0\1", b"\0\0\0\0\1\2\x08"]))
    assert [one is None for one in column.to_pylist()] == [False, True, True, True, True]
    assert [sorted(faults), "shop.Other" in str(faults[2])] == [[1, 2, 3, 4], True]
    latest = serdes.protobuf("Order.Line", registry=registry.url, subject="orders-value")
    assert latest.type == line.type
    assert latest.decode(heads[1]) == {"item": "", "count": 0}


def test_a_later_schema_reads_by_numbers(registry: SchemaRegistry) -> None:
    later = _file()
    del later.message_type[0].field[1]
    later.message_type[0].field[0].name = "number"
    _add(later.message_type[0], 20, "more", Field.TYPE_STRING)
    new = bound_to(
        serdes.protobuf(_classes(later)("shop.Order"), registry=registry.url, auto_register=True),
        "t",
        "value",
    )
    old = bound_to(serdes.protobuf(ORDER, registry=registry.url, auto_register=True), "t", "value")
    found = new.decode(old.encode(WHOLE))
    assert (found["number"], found["more"]) == (7, "")
    assert old.decode(new.encode(found))["card"] == "visa"


def test_imports_are_registered_under_their_names(registry: SchemaRegistry) -> None:
    money = descriptor_pb2.FileDescriptorProto(name="money.proto", package="m", syntax="proto3")
    _add(money.message_type.add(name="Money"), 1, "cents", Field.TYPE_INT64)
    bill = descriptor_pb2.FileDescriptorProto(name="bill.proto", package="b", syntax="proto3")
    bill.dependency.append("money.proto")
    _add(bill.message_type.add(name="Bill"), 1, "sum", Field.TYPE_MESSAGE, type_name=".m.Money")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(money)
    pool.Add(bill)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("b.Bill"))
    strict = serdes.protobuf(made, registry=registry.url, subject="bills")
    with pytest.raises(SchemaError, match=r"money\.proto"):
        strict.encode({"sum": {"cents": 5}})
    serde = serdes.protobuf(made, registry=registry.url, subject="bills", auto_register=True)
    data = serde.encode({"sum": {"cents": 5}})
    latest = serdes.protobuf(registry=registry.url, subject="bills")
    assert latest.decode(data) == {"sum": {"cents": 5}}
    assert strict.encode({"sum": {"cents": 5}}) == data


def test_a_message_that_contains_itself_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    _add(file.message_type.add(name="Node"), 1, "next", Field.TYPE_MESSAGE, type_name=".Node")
    with pytest.raises(SerdeError, match=r"next .*contains itself"):
        serdes.protobuf(_classes(file)("Node"))


@pytest.mark.parametrize("indexes", [(0,), (1,), (0, 0), (3, 2, 70)])
def test_numbers_of_messages_come_back(indexes: tuple[int, ...]) -> None:
    data = written_indexes(indexes)
    assert read_indexes(data + b"x") == (indexes, len(data))


# --- JSON Schema ----------------------------------------------------------------------------------

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "connect.type": "int32"},
        "at": {"type": "string", "format": "date-time"},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "by": {"$ref": "#/definitions/person"},
        "prices": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "required": ["id"],
    "definitions": {"person": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


def test_json_has_the_type_of_its_schema_and_its_id(registry: SchemaRegistry) -> None:
    id_ = registry.register("orders-value", SCHEMA, "JSON")
    serde = bound_to(serdes.json_schema(SCHEMA, registry=registry.url), "orders", "value")
    assert serde.type.field("id").type == pa.int32()
    assert serde.type.field("by").type == pa.struct([("name", pa.string())])
    value = {"id": 1, "at": None, "note": None, "tags": ["a"], "by": None, "prices": [("x", 1.0)]}
    data = serde.encode(value)
    assert data[:5] == b"\0" + id_.to_bytes(4, "big")
    assert json.loads(data[5:]) == {"id": 1, "note": None, "tags": ["a"], "prices": {"x": 1.0}}
    assert serde.decode(data) == value
    _, faults = serde.decode_marked(pa.array([data, data[:5] + b'{"id": "x"}', b"{}"], pa.binary()))
    assert ["id (int)" in str(faults[1]), "registry" in str(faults[2])] == [True, True]
    with pytest.raises(SerdeError, match="id: null"):
        serde.encode({**value, "id": None})
    latest = serdes.json_schema(registry=registry.url, subject="orders-value")
    assert latest.type == serde.type


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": ["string", "integer"]}, "one type"),
        ({"type": "object"}, "properties"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "a.* contains itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#/no"}}}, "a.* not there"),
        ("{", "no JSON"),
    ],
)
def test_a_json_schema_that_no_column_has_is_refused(schema: Any, word: str) -> None:
    with pytest.raises(SerdeError, match=word):
        serdes.json_schema(schema)
