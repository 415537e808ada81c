"""Protobuf in columns is what the library makes of it, for random messages and values."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from hypothesis import assume, given
from hypothesis import strategies as st

from everflow.serdes.base import SerdeError
from everflow.serdes.byte_rows import MOST_ROUNDS, Rows, joined
from everflow.serdes.protobuf_reading import message_reader, read_columns, read_rows
from everflow.serdes.protobuf_types import Part, root, schema_of
from everflow.serdes.protobuf_writing import message_writer, write_columns, write_rows

SCALARS = {
    **dict.fromkeys(("INT32", "SINT32", "SFIXED32"), st.integers(-(2**31), 2**31 - 1)),
    **dict.fromkeys(("INT64", "SINT64", "SFIXED64"), st.integers(-(2**63), 2**63 - 1)),
    **dict.fromkeys(("UINT32", "FIXED32"), st.integers(0, 2**32 - 1)),
    **dict.fromkeys(("UINT64", "FIXED64"), st.integers(0, 2**64 - 1)),
    "DOUBLE": st.floats(),
    "FLOAT": st.floats(width=32),
    "BOOL": st.booleans(),
    "STRING": st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    "BYTES": st.binary(max_size=8),
    "ENUM": st.sampled_from([0, 1, -3]),
}
OTHERS = ("google.protobuf.Timestamp", "google.protobuf.Int64Value", "google.protobuf.StringValue")
MAP_KEYS = ("INT32", "SINT64", "UINT64", "FIXED32", "BOOL", "STRING")
NUMBERS = (*range(1, 14), 15, 16, 17, 2047, 2048, 500_000)
UNKNOWN = 14
_count = iter(range(10**9))


@st.composite
def classes(draw: st.DrawFn) -> Any:
    """The class of a random message."""
    syntax = draw(st.sampled_from(["proto3", "proto3", "proto2"]))
    name = f"f{next(_count)}"
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package=name, syntax=syntax)
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = file.enum_type.add(name="Kind")
    for number in (0, 1, -3):
        kind.value.add(name=f"K{number + 3}", number=number)
    _fill(draw, file.message_type.add(name="Root"), f".{name}.Root", syntax == "proto3", 2)
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{name}.Root"))


def _fill(draw: st.DrawFn, message: Any, path: str, modern: bool, depth: int) -> None:
    package = path.split(".")[1]
    if draw(st.booleans()):
        message.oneof_decl.add(name="one")
    numbers = draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=6, unique=True))
    optional = []
    for at, number in enumerate(numbers):
        one = message.field.add(name=f"f{at}", number=number, label=Field.LABEL_OPTIONAL)

        def typed(field: Any, name: str = f"M{at}") -> None:
            kind = draw(st.sampled_from([*SCALARS, *OTHERS, *(["message"] * 3 if depth else [])]))
            if kind in SCALARS:
                field.type = Field.Type.Value(f"TYPE_{kind}")
                if kind == "ENUM":
                    field.type_name = f".{package}.Kind"
                return
            field.type, field.type_name = Field.TYPE_MESSAGE, f".{kind}"
            if kind == "message":
                field.type_name = f"{path}.{name}"
                inner = message.nested_type.add(name=name)
                _fill(draw, inner, field.type_name, modern, depth - 1)

        how = draw(st.sampled_from(["plain", "plain", "many", "map", "one", "own"]))
        if how == "map":
            entry = message.nested_type.add(name=f"F{at}Entry")
            entry.options.map_entry = True
            key = draw(st.sampled_from(MAP_KEYS))
            entry.field.add(
                name="key", number=1, label=1, type=Field.Type.Value(f"TYPE_{key}"), json_name="key"
            )
            typed(entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL))
            one.type, one.type_name = Field.TYPE_MESSAGE, f"{path}.F{at}Entry"
            one.label = Field.LABEL_REPEATED
            continue
        typed(one)
        if how == "many":
            one.label = Field.LABEL_REPEATED
            if one.type not in (Field.TYPE_STRING, Field.TYPE_BYTES, Field.TYPE_MESSAGE):
                one.options.packed = draw(st.booleans())
        elif how == "one" and message.oneof_decl:
            one.oneof_index = 0
        elif how == "own" and modern:
            optional.append(one)
        elif how == "own":
            one.label = Field.LABEL_REQUIRED
    if message.oneof_decl and not any(one.HasField("oneof_index") for one in message.field):
        del message.oneof_decl[:]
    for one in optional:
        one.proto3_optional, one.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{one.name}")


def messages(found: Any) -> st.SearchStrategy[Any]:
    """Of a descriptor."""
    make = message_factory.GetMessageClass(found)
    if found.full_name == OTHERS[0]:
        seconds = st.integers(-62_135_596_800, 253_402_300_799)
        nanos = st.one_of(st.integers(0, 999_999).map(lambda one: one * 1000), st.just(0))
        return st.builds(make, seconds=seconds, nanos=nanos)
    always: dict[str, Any] = {}
    perhaps: dict[str, Any] = {}
    members: dict[str, Any] = {}
    for one in found.fields:
        if one.containing_oneof is not None and len(one.containing_oneof.fields) > 1:
            members[one.name] = _values(one)
        else:
            (always if one.is_required else perhaps)[one.name] = _values(one)
    chosen: list[st.SearchStrategy[Any]] = [st.just({})]
    chosen += [st.fixed_dictionaries({name: value}) for name, value in members.items()]
    fields = st.fixed_dictionaries(always, optional=perhaps)
    return st.builds(lambda one, other: make(**one, **other), fields, st.one_of(chosen))


def _values(field: Any) -> st.SearchStrategy[Any]:
    if field.is_repeated and field.message_type and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return st.dictionaries(_single(key), _single(value), max_size=3)
    return st.lists(_single(field), max_size=3) if field.is_repeated else _single(field)


def _single(field: Any) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type)
    return SCALARS[Field.Type.Name(field.type).removeprefix("TYPE_")]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Part, list[bytes]]:
    make = draw(classes())
    part = root(schema_of(make.DESCRIPTOR.file), make.DESCRIPTOR.full_name)
    rows = draw(st.lists(messages(make.DESCRIPTOR), min_size=1, max_size=5))
    return part, [one.SerializeToString(deterministic=True) for one in rows]


def _shown(column: pa.Array) -> str:
    """The library has the entries of a map in any order."""
    return repr(_sorted(column.to_pylist()))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(one) for name, one in value.items()}
    if not isinstance(value, list):
        return value
    if value and all(isinstance(one, tuple) for one in value):
        return sorted(((key, _sorted(one)) for key, one in value), key=repr)
    return [_sorted(one) for one in value]


def _same(part: Part, data: list[bytes]) -> None:
    column, faults = read_columns(pa.array(data, pa.binary()), part, message_reader(part))
    column.validate(full=True)
    by_row, wanted = read_rows(pa.array(data, pa.binary()), part)
    assert column.type == part.type
    assert _shown(column) == _shown(by_row)
    assert {row: str(one) for row, one in faults.items()} == {
        row: str(one) for row, one in wanted.items()
    }


@given(cases())
def test_columns_are_read_and_written_as_the_library_does(case: tuple[Part, list[bytes]]) -> None:
    part, data = case
    _same(part, data)
    rows = Rows.of(pa.array(data, pa.binary()))
    column = message_reader(part)(rows)
    assert not rows.bad.any()
    _require_written(part, joined(message_writer(part)(column), len(column)).to_pylist(), data)


def _require_written(
    part: Part, found: Sequence[bytes | None], wanted: Sequence[bytes | None]
) -> None:
    """The entries of a map may be in another order."""
    if not _has_map(part):
        assert found == wanted
    for one, other in zip(found, wanted, strict=True):
        assert (one is None, len(one or b"")) == (other is None, len(other or b""))
        read = [part.make.FromString(data or b"") for data in (one, other)]
        assert _bits(read[0]) == _bits(read[1])


def _bits(message: Any) -> str:
    return str(text_format.MessageToString(message))


def _has_map(part: Part) -> bool:
    return part.kind == "map" or any(map(_has_map, part.inner))


@given(cases(), st.data())
def test_other_orders_and_unknown_fields_are_read_too(
    case: tuple[Part, list[bytes]], data: st.DataObject
) -> None:
    part, rows = case
    varint, blob = bytes([UNKNOWN << 3, 0x85, 1]), bytes([UNKNOWN << 3 | 2, 3]) + b"abc"
    fixed, group = bytes([UNKNOWN << 3 | 5]) + b"1234", bytes([UNKNOWN << 3 | 3, UNKNOWN << 3 | 4])
    others = st.sampled_from([*rows, varint, blob, fixed, group])
    mixed = data.draw(st.lists(others, min_size=1, max_size=3).map(b"".join))
    _same(part, [*rows, mixed, mixed + rows[0]])
    if not any(one.number > UNKNOWN for one in part.inner):
        later = Rows.of(pa.array([one + varint + blob + fixed for one in rows], pa.binary()))
        message_reader(part)(later)
        assert not later.bad.any()


@given(cases(), st.data())
def test_broken_bytes_are_faults_of_their_rows(
    case: tuple[Part, list[bytes]], data: st.DataObject
) -> None:
    part, rows = case
    broken = []
    for row in rows:
        at = data.draw(st.integers(0, len(row)))
        more = data.draw(st.binary(max_size=3))
        broken.append(row[:at] + more + (row[at + 1 :] if more else b""))
    _same(part, [one for pair in zip(rows, broken, strict=True) for one in pair])


@given(cases(), st.data())
def test_what_columns_do_not_write_the_library_does(
    case: tuple[Part, list[bytes]], data: st.DataObject
) -> None:
    part, rows = case
    assume(len(part.inner))
    column, _ = read_columns(pa.array(rows, pa.binary()), part, message_reader(part))
    place = data.draw(st.integers(0, len(part.inner) - 1))
    parts = column.flatten()
    parts[place] = pa.nulls(len(column), parts[place].type)
    nulls = pa.array([data.draw(st.booleans()) for _ in rows])
    values = pa.StructArray.from_arrays(parts, fields=list(part.type), mask=nulls)
    wanted, refused = _written(lambda: write_rows(values, part))
    found, refused_too = _written(lambda: write_columns(values, part, message_writer(part)))
    assert refused_too == refused
    _require_written(part, found, wanted)


def _written(write: Callable[[], pa.Array]) -> tuple[list[bytes | None], str]:
    try:
        return write().to_pylist(), ""
    except SerdeError as error:
        return [], f"{error.index}: {error}"


@pytest.mark.parametrize("packed", [True, False])
def test_long_lists_are_read(packed: bool) -> None:
    file = descriptor_pb2.FileDescriptorProto(name=f"l{packed}.proto", syntax="proto3")
    one = file.message_type.add(name="L").field.add(name="n", number=1, type=Field.TYPE_SINT32)
    one.label, one.options.packed = Field.LABEL_REPEATED, packed
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName("L"))
    part = root(schema_of(make.DESCRIPTOR.file), "L")
    rows = [list(range(-3, 2 * MOST_ROUNDS)), [], [7], list(range(MOST_ROUNDS))]
    data = pa.array([make(n=one).SerializeToString() for one in rows], pa.binary())
    column, _ = read_columns(data, part, message_reader(part))
    assert [one["n"] for one in column.to_pylist()] == rows
    assert joined(message_writer(part)(column), len(column)).to_pylist() == data.to_pylist()


def test_a_map_is_in_the_order_of_its_keys() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="map.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    entry = message.nested_type.add(name="NEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, label=1, type=Field.TYPE_SINT32)
    message.field.add(
        name="n",
        number=1,
        label=Field.LABEL_REPEATED,
        type=Field.TYPE_MESSAGE,
        type_name=".M.NEntry",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName("M"))
    part = root(schema_of(make.DESCRIPTOR.file), "M")
    rows = [{"n": [(3, 1), (-2, 5), (3, 2), (0, 0)]}, {"n": []}, {"n": [(1, 1)]}]
    written = joined(message_writer(part)(pa.array(rows, part.type)), len(rows))
    found = [one["n"] for one in read_columns(written, part, message_reader(part))[0].to_pylist()]
    assert found == [[(-2, 5), (0, 0), (3, 2)], [], [(1, 1)]]
