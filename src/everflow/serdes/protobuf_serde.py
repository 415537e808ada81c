"""The serde of Protobuf: messages by their descriptors, a column for each field.

The protobuf library parses and writes the messages. A field is a column: null where a field with
presence is not there, its default where a field without presence is not there.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.records import Int64
from everflow.serdes.arrow_types import field_step
from everflow.serdes.base import SerdeError, rest, starts
from everflow.serdes.registered import Faults, Registered
from everflow.serdes.registry import Reference, Schema, Version
from everflow.serdes.schema import TIMESTAMP
from everflow.serdes.wire_format import read_indexes

_MAIN = "$main.proto"
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
_LARGE = ("UINT64", "FIXED64")
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799


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


@dataclass(frozen=True, repr=False)
class ProtobufSerde(Registered):
    """Values of the message ``message`` of a schema (a file's descriptor)."""

    message: str = ""
    format: ClassVar[str] = "PROTOBUF"
    format_name: ClassVar[str] = "Protobuf"

    @property
    def name(self) -> str:
        return self.message

    def _indexes(self) -> tuple[int, ...]:
        return indexes_of(descriptor(self.schema, self.message))

    def _read(self, data: pa.Array, writer: Schema) -> tuple[pa.Array, Faults]:
        faults: Faults = {}
        if self.registry is not None:
            data, faults = self._own(data, writer)
        part = root(self.schema, self.message)
        messages = _parsed(data, part.make.FromString, faults)
        wrong = np.zeros(len(messages), bool)
        column = _column(messages, part, np.arange(len(messages)), wrong)
        for row in np.flatnonzero(wrong).tolist():
            faults.setdefault(row, SerdeError("Protobuf that does not fit: a time has nanoseconds"))
        if faults:
            missing = np.zeros(len(messages), bool)
            missing[list(faults)] = True
            column = column.take(pa.array(np.arange(len(messages)), mask=missing))
        return column, faults

    def _own(self, data: pa.Array, writer: Schema) -> tuple[pa.Array, Faults]:
        """Without the numbers that say which message it is; faults of those that are another."""
        firsts = {one[:1] for one in data.to_pylist()}
        if firsts == {b"\0"}:
            self._require_own((0,), writer)
            return rest(data, 1), {}
        faults: Faults = {}
        own: list[bytes | None] = []
        for row, one in enumerate(data.to_pylist()):
            try:
                indexes, size = read_indexes(one)
                self._require_own(indexes, writer)
                own.append(one[size:])
            except SerdeError as error:
                faults[row] = error
                own.append(None)
        return pa.array(own, pa.binary()), faults

    def _require_own(self, indexes: tuple[int, ...], writer: Schema) -> None:
        name = message_at(writer, indexes)
        if name.rpartition(".")[2] != self.message.rpartition(".")[2]:
            raise SerdeError(f"it is a message {name}, and is read as {self.message}")

    def _write(self, values: pa.Array) -> pa.Array:
        part = root(self.schema, self.message)
        made: list[bytes | None] = []
        row = 0
        try:
            for message in _messages(values, part):
                made.append(
                    None if message is None else message.SerializeToString(deterministic=True)
                )
                row += 1
        except (ValueError, TypeError, OverflowError) as error:
            if isinstance(error, _Misplaced):
                row = error.row
            raise SerdeError(f"Protobuf cannot be written: {error}", index=row) from error
        return pa.array(made, pa.binary())

    def _found(self, subject: str) -> Version:
        """Imports are registered under their names, as ReferenceSubjectNameStrategy does."""
        assert self.registry is not None
        if self.schema.references or not self.schema.resolved:
            return super()._found(subject)
        known: dict[str, Reference] = {}
        for name, text in self.schema.resolved:
            needs = tuple(known[one] for one in _file(text, name).dependency if one in known)
            inner = replace(self, schema=Schema(self.format, text, needs))
            found = Registered._found(inner, name)
            if found.version is None:
                found = self.registry.found(name, inner.schema, register=False)
            known[name] = Reference(name, name, found.version or 1)
        direct = _file(self.schema.text, _MAIN).dependency
        own = tuple(known[one] for one in direct if one in known)
        return Registered._found(
            replace(self, schema=replace(self.schema, references=own)), subject
        )

    def _difference(self, other: Schema) -> str:
        try:
            found = root(other, self.message)
        except SerdeError as error:
            return str(error)
        return _differing(root(self.schema, self.message), found, "")


def _differing(own: Part, other: Part, path: str) -> str:
    theirs = {one.name: one for one in other.inner}
    for one in own.inner:
        at = path + field_step(one.name)
        found = theirs.get(one.name)
        if found is None:
            return f"{at.removeprefix('.')}: the registry's schema does not have it"
        if found.kind != one.kind:
            return f"{at.removeprefix('.')}: it is {one.kind} here and {found.kind} there"
        if inner := _differing(one, found, at):
            return inner
    return ""


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


def _file(text: str, name: str) -> Any:
    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.FileDescriptorProto()
    try:
        found.ParseFromString(base64.standard_b64decode(text))
    except Exception as error:
        raise SerdeError(f"the Protobuf schema is no descriptor of a file: {error}") from error
    found.name = name
    return found


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
        for name, text in (*schema.resolved, (_MAIN, schema.text)):
            found = _file(text, name)
            add(found)
            pool.Add(found)
        return pool, pool.FindFileByName(_MAIN)
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
    if _repeated(found):
        entry = found.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key = _scalar("key", entry.fields_by_name["key"])
            value = _single(entry.fields_by_name["value"], f"{path}[]", around)
            return Part(found.name, "map", pa.map_(key.type, value.type), False, (key, value))
        inner = _single(found, f"{path}[]", around)
        return Part(found.name, "list", pa.list_(inner.type), False, (inner,))
    oneof = found.containing_oneof
    own = "" if oneof is None or len(oneof.fields) == 1 else oneof.name
    return _single(found, path, around)._replace(presence=found.has_presence, oneof=own)


def _single(found: Any, path: str, around: tuple[str, ...]) -> Part:
    if found.message_type is not None:
        return _message_part(found.name, found.message_type, path, around)
    return _scalar(found.name, found)


def _scalar(name: str, found: Any) -> Part:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    kind = FieldDescriptorProto.Type.Name(found.type).removeprefix("TYPE_")
    names = None
    if kind == "ENUM":
        names = {number: one.name for number, one in found.enum_type.values_by_number.items()}
    return Part(name, kind, _SCALARS[kind], names=names)


def _repeated(found: Any) -> bool:
    own = getattr(found, "is_repeated", None)  # protobuf 7; `label` before
    return bool(found.label == found.LABEL_REPEATED if own is None else own)


# --- messages -> columns --------------------------------------------------------------------------


def _parsed(data: pa.Array, parse: Callable[[bytes], Any], faults: Faults) -> list[Any]:
    """Empty messages for those that are none."""
    rows = data.to_pylist()
    if None not in rows:
        try:
            return list(map(parse, rows))
        except Exception:  # which of them, and why, is found below
            pass
    found = []
    for row, one in enumerate(rows):
        try:
            found.append(parse(one or b""))
        except Exception as error:
            faults.setdefault(row, SerdeError(f"Protobuf that does not fit: {error}"))
            found.append(parse(b""))
    return found


def _column(messages: Sequence[Any], part: Part, owners: Int64, wrong: Any) -> pa.Array:
    """Of messages, none of which is None."""
    if not part.inner:
        return pa.array([{}] * len(messages), part.type)
    columns = [_field(messages, one, owners, wrong) for one in part.inner]
    return pa.StructArray.from_arrays(columns, fields=list(part.type))


def _field(messages: Sequence[Any], part: Part, owners: Int64, wrong: Any) -> pa.Array:
    name = part.name
    values: list[Any] = list(map(attrgetter(name), messages))
    if part.kind == "list":
        counts = np.fromiter(map(len, values), np.int64, len(values))
        inner = _values(
            [e for one in values for e in one], part.inner[0], np.repeat(owners, counts), wrong
        )
        return pa.ListArray.from_arrays(pa.array(starts(counts), pa.int32()), inner)
    if part.kind == "map":
        counts = np.fromiter(map(len, values), np.int64, len(values))
        around = np.repeat(owners, counts)
        keys = _values([k for one in values for k in one], part.inner[0], around, wrong)
        items = _values([one[k] for one in values for k in one], part.inner[1], around, wrong)
        return pa.MapArray.from_arrays(pa.array(starts(counts), pa.int32()), keys, items)
    if not part.presence:
        return _values(values, part, owners, wrong)
    there = np.fromiter((one.HasField(name) for one in messages), bool, len(messages))
    if there.all():
        return _values(values, part, owners, wrong)
    rows = np.flatnonzero(there)
    found = _values([values[row] for row in rows], part, owners[rows], wrong)
    return found.take(pa.array(np.cumsum(there) - 1, mask=~there))


def _values(values: Sequence[Any], part: Part, owners: Int64, wrong: Any) -> pa.Array:
    if part.kind == "message":
        return _column(values, part, owners, wrong)
    if part.kind == "wrapper":
        return _values([one.value for one in values], part.inner[0], owners, wrong)
    if part.kind == "time":
        seconds = np.fromiter((one.seconds for one in values), np.int64, len(values))
        nanos = np.fromiter((one.nanos for one in values), np.int64, len(values))
        odd = (nanos % 1000 != 0) | (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND)
        wrong[owners[odd]] = True
        return pa.array(np.where(odd, 0, seconds) * 1_000_000 + nanos // 1000).view(part.type)
    if part.kind == "ENUM":  # a number that a later schema has a name for is not lost
        values = [part.names.get(one) or str(one) for one in values]
    if part.kind in _LARGE:
        values = [Decimal(one) for one in values]
    return pa.array(values, part.type)


# --- columns -> messages --------------------------------------------------------------------------


class _Misplaced(ValueError):
    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


def _messages(values: pa.Array, part: Part) -> Iterable[Any]:
    """None for null; a field that is null is left out. `_Misplaced`, or what protobuf raises for
    the row at hand."""
    columns = values.flatten() if part.inner else []
    _require_one(columns, part)
    listed = [_given(column, one) for column, one in zip(columns, part.inner, strict=True)]
    names = [one.name for one in part.inner]
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    rows = zip(*listed, strict=True) if listed else iter([()] * len(values))
    for there, row in zip(valid, rows, strict=True):
        if not there:
            yield None
            continue
        given = {name: one for name, one in zip(names, row, strict=True) if one is not None}
        yield part.make(**given)


def _require_one(columns: Sequence[pa.Array], part: Part) -> None:
    by_oneof: dict[str, list[pa.Array]] = {}
    for column, one in zip(columns, part.inner, strict=True):
        if one.oneof:
            by_oneof.setdefault(one.oneof, []).append(column)
    for name, members in by_oneof.items():
        count = sum(one.is_valid().to_numpy(zero_copy_only=False).astype(int) for one in members)
        several = np.flatnonzero(np.asarray(count) > 1)
        if len(several):
            raise _Misplaced(int(several[0]), f"{name}: one of its members at most is not null")


def _given(column: pa.Array, part: Part) -> list[Any]:
    if part.kind in ("list", "map"):
        listed: list[Any] = []
        for one in column:
            if not one.is_valid:
                listed.append(None)
            elif part.kind == "list":
                listed.append(_entries(one.values, part.inner[0], part.name))
            else:
                keys, items = one.values.flatten()
                own = _entries(keys, part.inner[0], part.name)
                listed.append(
                    dict(zip(own, _entries(items, part.inner[1], part.name), strict=True))
                )
        return listed
    if part.kind == "message":
        return list(_messages(column, part))
    if part.kind == "wrapper":
        return [
            None if one is None else part.make(value=one) for one in _given(column, part.inner[0])
        ]
    if part.kind == "time":
        micros = column.view(pa.int64()).to_pylist()
        return [
            None
            if one is None
            else part.make(seconds=one // 1_000_000, nanos=one % 1_000_000 * 1000)
            for one in micros
        ]
    values: list[Any] = column.to_pylist()
    if part.kind in _LARGE:
        return [None if one is None else int(one) for one in values]
    if part.kind == "ENUM":
        numbers = {name: number for number, name in part.names.items()}
        return [None if one is None else _number(one, numbers, part.name) for one in values]
    return values


def _number(name: str, numbers: dict[str, int], field: str) -> int:
    if name in numbers:
        return numbers[name]
    if name.lstrip("-").isdecimal():
        return int(name)
    raise ValueError(f"{field}: {name!r:.60} is none of its names")


def _entries(values: pa.Array, part: Part, name: str) -> list[Any]:
    if values.null_count:
        raise ValueError(f"{name}: a null among its entries, which Protobuf does not have")
    return _given(values, part)
