"""The serde of JSON Schema: the type comes from the schema, the texts are read as all JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from everflow.serdes.arrow_types import field_step
from everflow.serdes.base import SerdeError
from everflow.serdes.byte_rows import NOTHING, Faults
from everflow.serdes.json_serde import JsonSerde
from everflow.serdes.registered import Registered
from everflow.serdes.registry import Schema
from everflow.serdes.schema import TIMESTAMP, storable

_SIMPLE = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "null": pa.null(),
}
_FORMATS = {"date": pa.date32(), "date-time": TIMESTAMP}
_CONNECT = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "float32": pa.float32()}
"""Of ``connect.type``, which Confluent's converter writes."""
_CHOICES = ("oneOf", "anyOf")


@dataclass(frozen=True, repr=False)
class JsonSchemaSerde(Registered):
    """JSON texts of a schema. They are read by their names alone, whatever they were written
    with."""

    format: ClassVar[str] = "JSON"
    format_name: ClassVar[str] = "JSON Schema"
    needs_writer: ClassVar[bool] = False

    @property
    def name(self) -> str:
        found = _loaded(self.schema.text)
        return str(found.get("title", "")) if isinstance(found, Mapping) else ""

    def _read(self, data: pa.Array, writer: Schema) -> tuple[pa.Array, Faults]:
        return JsonSerde(self.type).decode_marked(data)

    def _write(self, values: pa.Array, head: bytes) -> pa.Array:
        written = self._json(values)
        return pc.binary_join_element_wise(pa.scalar(head), written, NOTHING) if head else written

    def _json(self, values: pa.Array) -> pa.Array:
        place = place_of(self.schema)
        _require(values, place, "", np.arange(len(values)))
        written = JsonSerde(self.type).encode_array(values)
        if not _may_be_absent(values, place):
            return written
        rows = [
            None if one is None else orjson.dumps(_without(orjson.loads(one), place))
            for one in written.to_pylist()
        ]
        return pa.array(rows, pa.binary())

    def _difference(self, other: Schema) -> str:
        own, found = self.type, place_of(other).type
        for one in own if pa.types.is_struct(own) and pa.types.is_struct(found) else ():
            at = found.get_field_index(one.name)
            if at < 0 or found.field(at).type != one.type:
                there = "not there" if at < 0 else str(found.field(at).type)
                return f"{one.name}: it is {one.type} here, and {there} in the registry"
        return "" if own == found else f"it is {own} here, and {found} in the registry"


@dataclass(frozen=True)
class Place:
    """A part of a schema. ``required``: of an object, names that are always there."""

    type: pa.DataType
    nullable: bool = False
    fields: tuple[tuple[str, Place], ...] = ()
    required: frozenset[str] = frozenset()
    items: Place | None = None


@lru_cache(maxsize=256)
def place_of(schema: Schema) -> Place:
    """SerdeError names the place of what no column has, and of what contains itself."""
    whole = _loaded(schema.text)
    others = {name: _loaded(text) for name, text in schema.resolved}
    return _Parser(whole, others).place(whole, "", ())


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SerdeError(f"the JSON Schema is no JSON: {error}") from None


@dataclass(frozen=True)
class _Parser:
    whole: Any
    others: Mapping[str, Any]

    def place(self, found: Any, path: str, around: tuple[str, ...]) -> Place:
        if not isinstance(found, Mapping):
            raise _wrong(path, f"is {found!r:.60}, of which no type can be said")
        if "$ref" in found:
            return self.referred(str(found["$ref"]), path, around)
        for word in _CHOICES:
            if word in found:
                return self.choice(found[word], path, around)
        if len(found.get("allOf", ())) == 1:
            return self.place(found["allOf"][0], path, around)
        kinds = found.get("type", _kind_of(found))
        listed = [kinds] if isinstance(kinds, str) else list(kinds or ())
        present = [one for one in listed if one != "null"]
        if len(present) > 1 or not listed:
            raise _wrong(
                path, f"may be {', '.join(present) or 'anything'}, and a column has one type"
            )
        nullable = len(present) < len(listed)
        made = self.of_kind(present[0] if present else "null", found, path, around)
        return Place(made.type, nullable, made.fields, made.required, made.items)

    def of_kind(
        self, kind: str, found: Mapping[str, Any], path: str, around: tuple[str, ...]
    ) -> Place:
        if kind == "array":
            items = self.place(found.get("items"), f"{path}[]", around)
            return Place(pa.list_(items.type), items=items)
        if kind == "object":
            return self.object(found, path, around)
        if kind not in _SIMPLE:
            raise _wrong(path, f"is of the type {kind!r}, which JSON Schema does not have")
        if kind == "string" and found.get("contentEncoding") == "base64":
            return Place(pa.binary())
        if kind == "string":
            return Place(_FORMATS.get(str(found.get("format")), pa.string()))
        return Place(_CONNECT.get(str(found.get("connect.type")), _SIMPLE[kind]))

    def object(self, found: Mapping[str, Any], path: str, around: tuple[str, ...]) -> Place:
        properties = found.get("properties")
        if not properties:
            values = found.get("additionalProperties")
            if not isinstance(values, Mapping):
                raise _wrong(path, "is an object without properties")
            inner = self.place(values, f"{path}[]", around)
            return Place(pa.map_(pa.string(), inner.type), items=inner)
        fields = tuple(
            (name, self.place(one, path + field_step(name), around))
            for name, one in properties.items()
        )
        type_ = pa.struct([(name, one.type) for name, one in fields])
        return Place(type_, fields=fields, required=frozenset(found.get("required") or ()))

    def choice(self, some: Sequence[Any], path: str, around: tuple[str, ...]) -> Place:
        present = [
            one for one in some if not (isinstance(one, Mapping) and one.get("type") == "null")
        ]
        if len(present) != 1:
            raise _wrong(path, f"is one of {len(present)} schemas, and a column has one type")
        made = self.place(present[0], path, around)
        nullable = made.nullable or len(present) < len(some)
        return Place(made.type, nullable, made.fields, made.required, made.items)

    def referred(self, word: str, path: str, around: tuple[str, ...]) -> Place:
        if word in around:
            raise _wrong(
                path,
                f"is {word}, which contains itself; Arrow and Spark have no such types. Read the "
                f"topic as serdes.bytes_(), or declare what you need by serdes.json",
            )
        name, _, fragment = word.partition("#")
        target, parser = self.whole, self
        if name:
            if name not in self.others:
                raise _wrong(path, f"is {word}, which is none of the references")
            target = self.others[name]
            parser = _Parser(target, self.others)
        for step in fragment.strip("/").split("/") if fragment.strip("/") else ():
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or step not in target:
                raise _wrong(path, f"is {word}, which is not there")
            target = target[step]
        return parser.place(target, path, (*around, word))


def _kind_of(found: Mapping[str, Any]) -> str | None:
    if "properties" in found:
        return "object"
    values = found.get("enum", [found["const"]] if "const" in found else [])
    kinds = {type(one) for one in values} - {type(None)}
    known = {str: "string", bool: "boolean", int: "integer", float: "number"}
    return known.get(kinds.pop()) if len(kinds) == 1 else None


def _wrong(path: str, why: str) -> SerdeError:
    return SerdeError(f"{path.removeprefix('.') or 'the schema'} {why}")


def json_schema_type(schema: Schema) -> pa.DataType:
    return storable(place_of(schema).type)


# --- nulls that a schema does not have ------------------------------------------------------------


def _require(values: pa.Array, place: Place, path: str, rows: Any) -> None:
    if not place.fields:
        return
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    for (name, inner), column in zip(place.fields, values.flatten(), strict=True):
        at = path + field_step(name)
        if name in place.required and not inner.nullable and column.null_count:
            null = column.is_null().to_numpy(zero_copy_only=False) & valid
            if null.any():
                row = int(rows[np.flatnonzero(null)[0]])
                why = f"{at.removeprefix('.')}: null, and the schema requires it"
                raise SerdeError(f"JSON cannot be written: {why}", index=row)
        _require(column, inner, at, rows)


def _may_be_absent(values: pa.Array, place: Place) -> bool:
    """There is a null where the schema has none, so the field is to be left out."""
    if place.items is not None:
        inner = place.items
        some = values.flatten() if pa.types.is_list(values.type) else values.items
        return _may_be_absent(some, inner)
    return any(
        (column.null_count > 0 and not inner.nullable and not pa.types.is_null(inner.type))
        or _may_be_absent(column, inner)
        for (_, inner), column in zip(
            place.fields, values.flatten() if place.fields else (), strict=True
        )
    )


def _without(value: Any, place: Place) -> Any:
    if isinstance(value, list) and place.items is not None:
        return [_without(one, place.items) for one in value]
    if not isinstance(value, dict):
        return value
    if place.items is not None:
        return {name: _without(one, place.items) for name, one in value.items()}
    return {
        name: _without(value[name], inner)
        for name, inner in place.fields
        if value[name] is not None or inner.nullable or pa.types.is_null(inner.type)
    }
