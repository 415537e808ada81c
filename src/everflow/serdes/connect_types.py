"""How the columns of change data are written: what a schema of Kafka Connect says, or the program.

Semantic names are Debezium's (`io.debezium.time`, `io.debezium.data`) and Kafka Connect's own
(`org.apache.kafka.connect.data`). The schema of an Avro value has them, too (``connect.name``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from everflow.serdes.base import SerdeError

_UNITS = {
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "timestamp-nanos": "ns",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
    "local-timestamp-nanos": "ns",
}
"""Of names, and of Avro's logical types."""
_DAYS = frozenset({"io.debezium.time.Date", "org.apache.kafka.connect.data.Date", "date"})
_ISO_DATE = "io.debezium.time.IsoDate"
_DECIMALS = frozenset({"org.apache.kafka.connect.data.Decimal", "decimal"})
_VARIABLE = "io.debezium.data.VariableScaleDecimal"

VARIABLE = pa.struct([("scale", pa.int32()), ("value", pa.binary())])
"""A decimal with a scale of its own."""
TIMES = ("ms", "us", "ns", "iso")
DECIMALS = ("precise", "string", "double", "variable")
"""The first three: of Debezium's ``decimal.handling.mode``. ``variable``: a column without a scale
in the mode ``precise``."""


@dataclass(frozen=True)
class Connect:
    """What a schema says of a value. ``kind``: of Kafka Connect or Avro (``int64``, ``long``);
    ``name``: the semantic one, or Avro's logical type; ``scale``: of a decimal."""

    kind: str
    name: str = ""
    scale: int = 0
    fields: tuple[tuple[str, Connect], ...] = ()
    items: Connect | None = None
    """Of an array, and the values of a map."""

    def field(self, name: str) -> Connect | None:
        return next((one for called, one in self.fields if called == name), None)


# --- what schemas say -----------------------------------------------------------------------------


def connect_schema(found: Any) -> Connect:
    """Of the ``schema`` that `JsonConverter` writes. SerdeError for what is none."""
    if not isinstance(found, Mapping) or not isinstance(found.get("type"), str):
        raise SerdeError(f"the record's schema is none of Kafka Connect: {found!r:.100}")
    parameters = found.get("parameters")
    scale = parameters.get("scale", 0) if isinstance(parameters, Mapping) else 0
    listed = found.get("fields")
    fields = tuple(
        (str(one.get("field")), connect_schema(one))
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, Mapping)
    )
    inner = found.get("items") or (found.get("values") if found["type"] == "map" else None)
    return Connect(
        found["type"],
        str(found.get("name") or ""),
        _whole(scale),
        fields,
        None if inner is None else connect_schema(inner),
    )


@lru_cache(maxsize=1024)
def avro_schema(text: str, references: tuple[str, ...] = ()) -> tuple[Connect, str]:
    """Of a schema's JSON, and the same schema without its logical types. ``references``: texts of
    those that it names. SerdeError for what is no schema."""
    names: dict[str, Connect] = {}
    try:
        loaded = [json.loads(one) for one in (*references, text)]
        for one in loaded[:-1]:
            _of_avro(one, "", names)
        return _of_avro(loaded[-1], "", names), plain_text(text)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise SerdeError(f"the schema that it was written with is no Avro: {error!r}") from None


@lru_cache(maxsize=1024)
def plain_text(text: str) -> str:
    """An Avro schema without logical types: numbers and bytes as they are written."""
    return json.dumps(_plain(json.loads(text)))


def _of_avro(found: Any, namespace: str, names: dict[str, Connect]) -> Connect:
    if isinstance(found, list):
        present = [one for one in found if one != "null"]
        if len(present) != 1:  # a struct of members, of which nobody asks more
            return Connect("union" if present else "null")
        return _of_avro(present[0], namespace, names)
    if isinstance(found, str):
        word = found if "." in found or not namespace else f"{namespace}.{found}"
        return names.get(word) or names.get(found) or Connect(found)
    kind = found["type"]
    if not isinstance(kind, str) or kind not in _AVRO_KINDS:
        return _of_avro(kind, namespace, names)
    parameters = found.get("connect.parameters") or {}
    scale = _whole(found.get("scale", parameters.get("scale", 0)))
    name = str(found.get("connect.name") or found.get("logicalType") or "")
    inner: Connect | None = None
    fields: tuple[tuple[str, Connect], ...] = ()
    space = str(found.get("namespace", namespace) or "")
    full = str(found.get("name", ""))
    full = full if "." in full or not space else f"{space}.{full}"
    if kind == "record":
        space = full.rpartition(".")[0]
        names[full] = Connect(kind)  # of a schema that contains itself, whom `parsed` refuses
        fields = tuple(
            (one["name"], _of_avro(one["type"], space, names)) for one in found["fields"]
        )
    elif kind in ("array", "map"):
        inner = _of_avro(found["items" if kind == "array" else "values"], namespace, names)
    made = Connect(kind, name, scale, fields, inner)
    if kind in ("record", "enum", "fixed"):
        names[full] = made
    return made


_AVRO_KINDS = frozenset(
    {
        *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
        *("record", "enum", "fixed", "array", "map"),
    }
)


def _plain(found: Any) -> Any:
    if isinstance(found, list):
        return [_plain(one) for one in found]
    if not isinstance(found, dict):
        return found
    inside = {"type", "items", "values", "fields"}
    return {
        name: _plain(one) if name in inside else one
        for name, one in found.items()
        if name != "logicalType"
    }


def _whole(number: Any) -> int:
    try:
        return int(number)
    except (TypeError, ValueError):
        raise SerdeError(f"the schema has the scale {number!r:.40} of a decimal") from None


# --- how a column is written ----------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """How values of ``type`` are written. ``how``: a unit of `TIMES` for a timestamp, ``days`` or
    ``iso`` for a date, ``bytes`` (of ``scale`` digits behind the point), ``variable`` or ``text``
    for a decimal; empty: as `serdes.json` writes the type. ``parts``: of a struct's fields, of a
    list's or map's items."""

    type: pa.DataType
    how: str = ""
    scale: int = 0
    parts: tuple[Form, ...] = ()

    @property
    def json_type(self) -> pa.DataType:
        """As which JSON is read, before `connect_columns.declared`."""
        if self.how in _JSON_TYPES:
            return _JSON_TYPES[self.how]
        if self.how == "iso" and pa.types.is_date(self.type):
            return pa.string()
        if not self.parts:
            return self.type
        inner = [one.json_type for one in self.parts]
        if pa.types.is_struct(self.type):
            return pa.struct([(one.name, of) for one, of in zip(self.type, inner, strict=True)])
        return pa.list_(inner[0]) if pa.types.is_list(self.type) else _map(self.type, inner[0])


def is_plain(form: Form) -> bool:
    """True if its values are written as `serdes.json` writes them."""
    return not form.how and all(is_plain(one) for one in form.parts)


_JSON_TYPES = {
    "ms": pa.int64(),
    "us": pa.int64(),
    "ns": pa.int64(),
    "days": pa.int32(),
    "bytes": pa.string(),  # base64, which `connect_columns` reads for all rows at once
    "variable": pa.struct([("scale", pa.int32()), ("value", pa.string())]),
}


def _map(type_: pa.DataType, items: pa.DataType) -> pa.DataType:
    return pa.map_(type_.key_type, items)


Words = tuple[tuple[str, str], ...]
"""Of columns, by name; of the name ``""``: of all others."""


@dataclass(frozen=True)
class Said:
    """What the program says of values without a schema: words of `DECIMALS` and `TIMES`."""

    decimals: Words = (("", "precise"),)
    times: Words = ()


def word_of(words: Words, column: str) -> str:
    found = dict(words)
    return found.get(column, found.get("", ""))


@lru_cache(maxsize=1024)
def form_of(type_: pa.DataType, schema: Connect | None, said: Said, column: str = "") -> Form:
    """Of a row, or, with the name of its ``column``, of a value in it. ``schema``: None where the
    record has none."""
    if pa.types.is_struct(type_):
        parts = tuple(
            form_of(one.type, schema and _field(schema, one.name), said, column or one.name)
            for one in type_
        )
        return Form(type_, parts=parts)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        inner = type_.value_type if pa.types.is_list(type_) else type_.item_type
        items = schema and (schema.items or NOT_SAID)
        return Form(type_, parts=(form_of(inner, items, said, column),))
    name = "" if schema is None else schema.name
    if pa.types.is_timestamp(type_):
        unit = word_of(said.times, column) if schema is None else _UNITS.get(name, "")
        return Form(type_, "" if unit == "iso" else unit)
    if pa.types.is_date(type_):
        if schema is None:
            return Form(type_, "iso" if word_of(said.times, column) == "iso" else "days")
        return Form(type_, "iso" if name == _ISO_DATE else "days" if name in _DAYS else "")
    if pa.types.is_decimal(type_) or (schema is not None and pa.types.is_floating(type_)):
        if schema is None:
            return _said_decimal(type_, word_of(said.decimals, column))
        if name in _DECIMALS:  # of KIP-481's numbers the schema says that they are bytes
            numbers = word_of(said.decimals, column) in ("string", "double")
            return Form(type_) if numbers else Form(type_, "bytes", schema.scale)
        return Form(type_, "variable" if name == _VARIABLE else "")
    return Form(type_)


NOT_SAID = Connect("")
"""Of a column that a schema does not have."""


def _field(schema: Connect, name: str) -> Connect:
    return schema.field(name) or NOT_SAID


def _said_decimal(type_: pa.DataType, word: str) -> Form:
    how = {"precise": "bytes", "variable": "variable", "string": "text"}.get(word, "")
    return Form(type_, how, type_.scale if how == "bytes" else 0)
