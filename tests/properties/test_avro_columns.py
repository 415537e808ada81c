"""Avro in columns is what fastavro and Apache's avro make of it, for random schemas and values."""

import io
import json
from typing import Any

import avro.io
import avro.schema
import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.serdes.avro_reading import Unresolved, read_columns, read_rows, rows_of
from everflow.serdes.avro_types import Avro, Field, arrow_of, parsed, plain
from everflow.serdes.avro_writing import write_columns

PRIMITIVES = ["boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL: list[tuple[str, dict[str, Any]]] = [
    ("int", {"logicalType": "date"}),
    ("long", {"logicalType": "timestamp-millis"}),
    ("long", {"logicalType": "timestamp-micros"}),
    ("long", {"logicalType": "timestamp-nanos"}),
    ("long", {"logicalType": "local-timestamp-micros"}),
    ("int", {"logicalType": "time-millis"}),
    ("bytes", {"logicalType": "decimal", "precision": 9, "scale": 2}),
    ("bytes", {"logicalType": "decimal", "precision": 38, "scale": 10}),
]

MERGED = [["int", "long"], ["double", "float"]]


class _Names:
    def __init__(self) -> None:
        self.count = 0

    def next(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"


@st.composite
def schemas(draw: st.DrawFn, names: _Names | None = None, depth: int = 3) -> Any:
    names = _Names() if names is None else names
    kinds = ["primitive"] * 4 + ["logical", "enum", "fixed", "nullable"]
    kinds += ["record", "record", "array", "map", "union"] if depth else []
    match draw(st.sampled_from(kinds)):
        case "primitive":
            return draw(st.sampled_from(PRIMITIVES))
        case "logical":
            kind, logical = draw(st.sampled_from(LOGICAL))
            return {"type": kind, **logical}
        case "enum":
            symbols = [f"S{at}" for at in range(draw(st.integers(1, 4)))]
            return {"type": "enum", "name": names.next("E"), "symbols": symbols}
        case "fixed":
            size = draw(st.integers(1, 20))
            made: dict[str, Any] = {"type": "fixed", "name": names.next("F"), "size": size}
            if draw(st.booleans()):
                digits = min(38, int((8 * size - 1) * 0.30103))
                if digits:
                    made |= {"logicalType": "decimal", "precision": digits, "scale": 0}
            return made
        case "nullable":
            if draw(st.booleans()):
                return draw(st.permutations(["null", *draw(st.sampled_from(MERGED))]))
            inner = draw(schemas(names, 0).filter(lambda one: not isinstance(one, list)))
            return draw(st.permutations(["null", inner]))
        case "array":
            return {"type": "array", "items": draw(schemas(names, depth - 1))}
        case "map":
            return {"type": "map", "values": draw(schemas(names, depth - 1))}
        case "union":
            # fastavro does not say which of int and long it read, and takes the first branch
            # into which a writer's type goes, where Java takes the same type
            kinds = ["null", "boolean", "long", "double", "string"]
            chosen = draw(st.sets(st.sampled_from(kinds), min_size=1))
            some = [one for one in kinds if one in chosen]
            return [*some, draw(records(names, depth - 1))]
    return draw(records(names, depth - 1))


@st.composite
def records(draw: st.DrawFn, names: _Names, depth: int) -> Any:
    count = draw(st.integers(1, 5))
    fields = [{"name": f"f{at}", "type": draw(schemas(names, depth))} for at in range(count)]
    return {"type": "record", "name": names.next("R"), "fields": fields}


def values(type_: Avro) -> st.SearchStrategy[Any]:
    """As fastavro takes them, without logical types."""
    match type_.kind:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "int" | "long":
            bits = 31 if type_.kind == "int" else 63
            least, most = -(2**bits), 2**bits - 1
            if type_.logical == "date":
                least, most = -719_162, 2_932_896
            elif type_.logical.endswith("millis"):
                least, most = -62_135_596_800_000, 253_402_300_799_999
            elif type_.logical:
                least, most = -62_135_596_800_000_000, 253_402_300_799_999_999
            near = st.integers(max(least, -200), min(most, 200))
            return st.one_of(near, st.integers(least, most))
        case "float":
            return st.floats(width=32, allow_nan=False)
        case "double":
            return st.floats(allow_nan=False)
        case "string":
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
        case "enum":
            return st.sampled_from(type_.symbols)
        case "array":
            return st.lists(values(type_.parts[0]), max_size=4)
        case "map":
            return st.dictionaries(st.text("abc", max_size=3), values(type_.parts[0]), max_size=3)
        case "union":
            return st.one_of([values(one).map(_named(one)) for one in type_.parts])
        case "record":
            return st.fixed_dictionaries({one.name: values(one.type) for one in type_.fields})
    if type_.logical == "decimal":
        most = 10**type_.precision - 1
        return st.integers(-most, most).map(lambda one: _decimal(one, type_))
    size = type_.size if type_.kind == "fixed" else None
    return st.binary(min_size=size or 0, max_size=size if size is not None else 8)


def _named(type_: Avro) -> Any:
    return lambda value: (type_.name or type_.kind, value)


def _decimal(number: int, type_: Avro) -> bytes:
    size = type_.size or max(
        1, (number.bit_length() if number >= 0 else (~number).bit_length()) // 8 + 1
    )
    return number.to_bytes(size, "big", signed=True)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Avro, list[Any]]:
    type_ = parsed(json.dumps(draw(schemas())))
    return type_, draw(st.lists(values(type_), min_size=1, max_size=6))


def fastavro_bytes(type_: Avro, value: Any) -> bytes:
    """As Confluent's serializers write it, for whom bytes are bytes."""
    if type_.kind == "bytes":
        return bytes(value)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain(type_)), value)
    return out.getvalue()


def each_row(data: list[bytes], writer: Avro, wanted: Avro) -> tuple[pa.Array, dict[int, Any]]:
    if writer.kind == "bytes":  # there is nothing to read
        return read_columns(pa.array(data, pa.binary()), writer, wanted)
    return read_rows(data, writer, wanted)


def merges(type_: Avro) -> bool:
    """An int and a long are one bigint: it is written as the larger, so by other bytes."""
    if type_.kind == "union" and arrow_of(type_) in (pa.int64(), pa.float64()):
        return len(type_.parts) > 2 or len({one.kind for one in type_.parts} - {"null"}) > 1
    inner = [*type_.parts, *(one.type for one in type_.fields)]
    return any(map(merges, inner))


@given(cases())
def test_columns_are_read_and_written_as_fastavro_does(case: tuple[Avro, list[Any]]) -> None:
    type_, rows = case
    data = [fastavro_bytes(type_, one) for one in rows]
    column, faults = read_columns(pa.array(data, pa.binary()), type_, type_)
    column.validate(full=True)
    by_row, none = each_row(data, type_, type_)
    assert not faults
    assert not none
    assert column.type == arrow_of(type_)
    assert column.to_pylist() == by_row.to_pylist()
    whole = column.null_count == 0 and type_.kind != "union"
    if whole and not merges(type_):
        assert write_columns(column, type_).to_pylist() == data


@given(cases())
def test_apache_avro_reads_what_columns_write(case: tuple[Avro, list[Any]]) -> None:
    type_, rows = case
    data = [fastavro_bytes(type_, one) for one in rows]
    column, _ = read_columns(pa.array(data, pa.binary()), type_, type_)
    if type_.kind == "bytes":
        return
    schema = avro.schema.parse(json.dumps(plain(type_)))
    written = write_columns(column, type_).to_pylist()
    for one, own in zip(written, data, strict=True):
        if one is not None:
            found = avro.io.DatumReader(schema).read(avro.io.BinaryDecoder(io.BytesIO(one)))
            wanted = avro.io.DatumReader(schema).read(avro.io.BinaryDecoder(io.BytesIO(own)))
            assert found == wanted


@given(cases(), st.data())
def test_broken_bytes_are_faults_of_their_rows(
    case: tuple[Avro, list[Any]], data: st.DataObject
) -> None:
    type_, rows = case
    good = [fastavro_bytes(type_, one) for one in rows]
    broken = [data.draw(damaged(one)) for one in good]
    mixed = [one for pair in zip(good, broken, strict=True) for one in pair]
    column, faults = read_columns(pa.array(mixed, pa.binary()), type_, type_)
    column.validate(full=True)
    by_row, wanted = each_row(mixed, type_, type_)
    assert all(row % 2 for row in faults)
    assert list(faults) == list(wanted)
    assert repr(column.to_pylist()) == repr(by_row.to_pylist())


@st.composite
def damaged(draw: st.DrawFn, row: bytes) -> bytes:
    at = draw(st.integers(0, len(row)))
    if draw(st.booleans()):
        return row[:at]
    return row[:at] + draw(st.binary(min_size=1, max_size=3)) + row[at + 1 :]


@st.composite
def evolved(draw: st.DrawFn, type_: Avro) -> Avro:
    """What a later program may read ``type_`` as."""
    wider = {"int": ["int", "long", "float", "double"], "long": ["long", "float", "double"]}
    wider |= {"float": ["float", "double"]}
    if type_.kind in wider and not type_.logical:
        return Avro(draw(st.sampled_from(wider[type_.kind])))
    if type_.kind in ("array", "map"):
        return Avro(type_.kind, parts=(draw(evolved(type_.parts[0])),))
    if type_.kind != "record":
        return type_
    fields = []
    for one in draw(st.permutations(type_.fields)):
        match draw(st.sampled_from(["kept", "kept", "gone", "renamed", "nullable"])):
            case "kept":
                fields.append(Field(one.name, draw(evolved(one.type))))
            case "renamed":
                fields.append(Field(f"new_{one.name}", one.type, aliases=(one.name,)))
            case "nullable" if one.type.kind not in ("union", "null"):
                fields.append(Field(one.name, Avro("union", parts=(Avro("null"), one.type))))
    if draw(st.booleans()) or not fields:
        fields.append(Field("added", Avro("string"), '"none"'))
    return Avro("record", type_.name, fields=tuple(fields))


@given(cases(), st.data())
def test_a_later_schema_reads_what_fastavro_says(
    case: tuple[Avro, list[Any]], data: st.DataObject
) -> None:
    writer, rows = case
    wanted = data.draw(evolved(writer))
    written = [fastavro_bytes(writer, one) for one in rows]
    column, faults = read_columns(pa.array(written, pa.binary()), writer, wanted)
    by_row, none = each_row(written, writer, wanted)
    column.validate(full=True)
    assert not faults
    assert not none
    assert repr(column.to_pylist()) == repr(by_row.to_pylist())


def test_long_and_nested_arrays_are_read() -> None:
    type_ = parsed('{"type":"array","items":{"type":"array","items":["null","string"]}}')
    rows = [[["a", None]] * 3, [["b"] * 2_000], [["c"]] * 2_000, []]
    data = [fastavro_bytes(type_, one) for one in rows]
    assert read_columns(pa.array(data, pa.binary()), type_, type_)[0].to_pylist() == rows
    numbers = parsed('{"type":"array","items":{"type":"array","items":"long"}}')
    many = [[list(range(-5, 1_000))] * 5, [[]], []]
    data = [fastavro_bytes(numbers, one) for one in many]
    assert read_columns(pa.array(data, pa.binary()), numbers, numbers)[0].to_pylist() == many


def test_a_count_beyond_all_bytes_is_a_fault_at_once() -> None:
    type_ = parsed('{"type":"array","items":"string"}')
    most = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    for row in (most, b"\x01" + most, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0"):
        assert list(read_columns(pa.array([row, b"\0"], pa.binary()), type_, type_)[1]) == [0]


def test_what_does_not_resolve_is_named() -> None:
    writer = parsed('{"type":"record","name":"T","fields":[{"name":"a","type":"string"}]}')
    wanted = parsed('{"type":"record","name":"T","fields":[{"name":"a","type":"double"}]}')
    lacking = parsed('{"type":"record","name":"T","fields":[{"name":"b","type":"double"}]}')
    for one, field in ((wanted, "a"), (lacking, "b")):
        with pytest.raises(Unresolved, match=f"^{field}: .*double"):
            read_columns(pa.array([b"\x02x"], pa.binary()), writer, one)


def test_values_of_rows_and_columns_are_one_form() -> None:
    type_ = parsed('["null","int","string"]')
    column, wrong = rows_of([None, 5, "x"], type_)
    assert column.to_pylist() == [
        None,
        {"member0": 5, "member1": None},
        {"member0": None, "member1": "x"},
    ]
    assert not wrong.any()
