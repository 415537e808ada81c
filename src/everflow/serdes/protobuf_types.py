"""Protobuf's descriptors: found, as columns' types, and as Confluent's ids of a message."""

from __future__ import annotations

import base64
import importlib
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from everflow.serdes.arrow_types import field_step
from everflow.serdes.base import SerdeError
from everflow.serdes.registry import Schema
from everflow.serdes.schema import TIMESTAMP

MAIN = "$main.proto"
_TIME = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_CONFLUENT = "confluent/"
_SCALARS: dict[str, pa.DataType] = {
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "INT32": pa.int32(),
    "SINT32": pa.int32(),
    "SFIXED32": pa.int32(),
    "INT64": pa.int64(),
    "SINT64": pa.int64(),
    "SFIXED64": pa.int64(),
    "UINT32": pa.int64(),
    "FIXED32": pa.int64(),
    "UINT64": pa.decimal128(20, 0),
    "FIXED64": pa.decimal128(20, 0),
    "BOOL": pa.bool_(),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "ENUM": pa.string(),
}
LARGE = ("UINT64", "FIXED64")
LENGTH = 2
FIXED = {1: 8, 5: 4}
"""Wire types of a fixed number of bytes. Others: 0 is a varint, `LENGTH` a size and so many bytes,
3 begins a group."""
_WIRE = {"DOUBLE": 1, "FIXED64": 1, "SFIXED64": 1, "FLOAT": 5, "FIXED32": 5, "SFIXED32": 5}


class Part(NamedTuple):
    """A field, or what a list or a map has. ``kind``: a key of `_SCALARS`, or ``message``,
    ``time``, ``wrapper``, ``list``, ``map``."""

    name: str
    kind: str
    type: pa.DataType
    presence: bool = False
    inner: tuple[Part, ...] = ()
    """Of a message its fields, of a list what it has, of a map key and value."""
    make: Any = None
    """The class of a message."""
    oneof: str = ""
    names: Any = None
    """Of an enum: its names by number."""
    closed: bool = False
    """An enum whose other numbers are unknown fields."""
    number: int = 0
    required: bool = False
    packed: bool = False
    by_library: bool = False
    """Not written in columns: a group, or it is not known whether it is packed."""


INSTANT = Part(
    "",
    "message",
    pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())]),
    inner=(
        Part("seconds", "INT64", pa.int64(), number=1),
        Part("nanos", "INT32", pa.int32(), number=2),
    ),
)
"""The fields of a Timestamp."""


def wire_of(part: Part) -> int:
    """Of a single value."""
    if part.kind in ("STRING", "BYTES") or part.kind not in _SCALARS:
        return LENGTH
    return _WIRE.get(part.kind, 0)


def tag_of(part: Part) -> int:
    """What stands in front of a single value."""
    return part.number << 3 | wire_of(part)


# --- descriptors ----------------------------------------------------------------------------------


def schema_of(file: Any) -> Schema:
    """Of the descriptor of a file that protoc has generated, with what it imports."""
    known: dict[str, str] = {}

    def add(one: Any) -> None:
        for inner in one.dependencies:
            if not _is_built_in(inner.name) and inner.name not in known:
                add(inner)
                known[inner.name] = base64.standard_b64encode(inner.serialized_pb).decode()

    add(file)
    text = base64.standard_b64encode(file.serialized_pb).decode()
    return Schema("PROTOBUF", text, (), tuple(known.items()))


def _is_built_in(name: str) -> bool:
    return name.startswith(("google/protobuf/", "google/type/", _CONFLUENT))


def file_of(text: str, name: str) -> Any:
    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.FileDescriptorProto()
    try:
        found.ParseFromString(base64.standard_b64decode(text))
    except Exception as error:
        raise SerdeError(
            f"the Protobuf schema is no descriptor of a file, as a registry gives it that is asked "
            f"for format=serialized: {text.strip()[:40]!r} ({error})"
        ) from error
    found.name = name
    return found


def same_form(text: str) -> bytes:
    """Equal of two files that say the same: without a name, comments, and what protoc adds."""
    found = file_of(text, MAIN)
    found.ClearField("source_code_info")
    found.syntax = "" if found.syntax == "proto2" else found.syntax
    left = list(found.message_type)
    while left:
        message = left.pop()
        left += message.nested_type
        for field in (*message.field, *message.extension):
            if field.json_name == _json_name(field.name):
                field.ClearField("json_name")
    return bytes(found.SerializeToString(deterministic=True))


def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(one[:1].upper() + one[1:] for one in others)


@lru_cache(maxsize=256)
def _pool(schema: Schema) -> Any:
    """SerdeError for a file that does not fit those that it imports."""
    from google.protobuf import descriptor_pool

    pool, known = descriptor_pool.DescriptorPool(), set[str]()

    def add(found: Any) -> None:
        for name in found.dependency:
            if name not in known and _is_built_in(name):
                known.add(name)
                inner = _built_in(name)
                add(inner)
                pool.Add(inner)
        known.add(found.name)

    try:
        for name, text in (*schema.resolved, (MAIN, schema.text)):
            found = file_of(text, name)
            add(found)
            pool.Add(found)
        return pool, pool.FindFileByName(MAIN)
    except (TypeError, KeyError, ValueError) as error:
        raise SerdeError(f"the Protobuf schema is none: {error}") from error


def _built_in(name: str) -> Any:
    from google.protobuf import descriptor_pb2

    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    if name.startswith(_CONFLUENT):
        module = f"confluent_kafka.schema_registry.{module}"
    found = descriptor_pb2.FileDescriptorProto()
    try:
        importlib.import_module(module).DESCRIPTOR.CopyToProto(found)
    except ImportError as error:
        raise SerdeError(f"the Protobuf schema imports {name}: {error}") from error
    return found


def descriptor(schema: Schema, message: str) -> Any:
    """SerdeError where the schema has no such message; empty: the first."""
    pool, file = _pool(schema)
    if not message:
        if not file.message_types_by_name:
            raise SerdeError("the Protobuf schema has no message")
        return next(iter(file.message_types_by_name.values()))
    for name in (message, f"{file.package}.{message}"):
        try:
            return pool.FindMessageTypeByName(name)
        except KeyError:
            continue
    names = ", ".join(file.message_types_by_name) or "none"
    raise SerdeError(f"the Protobuf schema has no message {message}; it has {names}")


def indexes_of(found: Any) -> tuple[int, ...]:
    if found.containing_type is None:
        names = list(found.file.message_types_by_name)
        return (names.index(found.name),)
    names = [one.name for one in found.containing_type.nested_types]
    return (*indexes_of(found.containing_type), names.index(found.name))


@lru_cache(maxsize=1024)
def message_at(schema: Schema, indexes: tuple[int, ...]) -> str:
    """SerdeError where the schema has no message there."""
    listed = list(_pool(schema)[1].message_types_by_name.values())
    found: Any = None
    for at in indexes:
        if not 0 <= at < len(listed):
            raise SerdeError(f"its schema has no message {list(indexes)}")
        found = listed[at]
        listed = list(found.nested_types)
    return str(found.full_name)


@lru_cache(maxsize=256)
def root(schema: Schema, message: str) -> Part:
    """SerdeError for a message that contains itself, or with a type that no column has."""
    return _message_part("", descriptor(schema, message), "", ())


def _message_part(name: str, found: Any, path: str, around: tuple[str, ...]) -> Part:
    from google.protobuf import message_factory

    if found.full_name in around:
        raise SerdeError(
            f"{path.removeprefix('.')} is {found.full_name}, which contains itself; Arrow and "
            f"Spark have no such types. Read the topic as serdes.bytes_(), or keep the inner part "
            f"as bytes"
        )
    make = message_factory.GetMessageClass(found)
    if found.full_name == _TIME:
        return Part(name, "time", TIMESTAMP, True, make=make)
    if found.full_name in _WRAPPERS:
        inner = _scalar("value", found.fields_by_name["value"])
        return Part(name, "wrapper", inner.type, True, (inner,), make)
    inside = (*around, found.full_name)
    parts = tuple(_field_part(one, path + field_step(one.name), inside) for one in found.fields)
    type_ = pa.struct([(one.name, one.type) for one in parts])
    return Part(name, "message", type_, True, parts, make)


def _field_part(found: Any, path: str, around: tuple[str, ...]) -> Part:
    if _is(found, "repeated"):
        entry, own = found.message_type, (found.name, found.number)
        if entry is not None and entry.GetOptions().map_entry:
            key = _scalar("key", entry.fields_by_name["key"])
            value = _single(entry.fields_by_name["value"], f"{path}[]", around)
            type_ = pa.map_(key.type, value.type)
            return Part(own[0], "map", type_, inner=(key, value), number=own[1])
        inner = _single(found, f"{path}[]", around)
        packed = getattr(found, "is_packed", None)  # protobuf 6
        return Part(
            *(own[0], "list", pa.list_(inner.type)),
            inner=(inner,),
            number=own[1],
            packed=bool(packed),
            by_library=inner.by_library or packed is None,
        )
    oneof = found.containing_oneof
    return _single(found, path, around)._replace(
        presence=found.has_presence,
        required=_is(found, "required"),
        oneof="" if oneof is None or len(oneof.fields) == 1 else oneof.name,
    )


def _single(found: Any, path: str, around: tuple[str, ...]) -> Part:
    if found.message_type is None:
        return _scalar(found.name, found)
    part = _message_part(found.name, found.message_type, path, around)
    return part._replace(number=found.number, by_library=found.type == found.TYPE_GROUP)


def _scalar(name: str, found: Any) -> Part:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    kind = FieldDescriptorProto.Type.Name(found.type).removeprefix("TYPE_")
    part = Part(name, kind, _SCALARS[kind], number=found.number)
    if kind != "ENUM":
        return part
    names = {number: one.name for number, one in found.enum_type.values_by_number.items()}
    return part._replace(names=names, closed=bool(found.enum_type.is_closed))


def _is(found: Any, label: str) -> bool:
    own = getattr(found, f"is_{label}", None)  # protobuf 7; `label` before
    return bool(found.label == getattr(found, f"LABEL_{label.upper()}") if own is None else own)
