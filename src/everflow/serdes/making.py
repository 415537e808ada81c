"""Makes the serdes of a schema registry from what a program gives."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.errors import ConfigError, SchemaError
from everflow.records import Int64, valid
from everflow.serdes.arrow_types import holds, type_text
from everflow.serdes.avro_serde import AvroSerde, parsed_schema
from everflow.serdes.avro_types import arrow_of
from everflow.serdes.base import SerdeError
from everflow.serdes.byte_rows import Faults
from everflow.serdes.connect_types import DECIMALS, TIMES, Said, Words
from everflow.serdes.debezium_serde import ENVELOPE, ROW, DebeziumSerde, envelope_type
from everflow.serdes.json_schema_serde import JsonSchemaSerde, json_schema_type
from everflow.serdes.json_serde import JsonSerde
from everflow.serdes.protobuf_serde import ProtobufSerde
from everflow.serdes.protobuf_types import descriptor, message_at, root, schema_of
from everflow.serdes.registered import STRATEGIES, Registered
from everflow.serdes.registry import EXTRA, MissingSchema, Reference, Registry, Schema
from everflow.serdes.schema import arrow_type
from everflow.serdes.wire_format import Group, SchemaId, groups, read_indexes


@dataclass(frozen=True)
class Asked:
    """What all three formats take, checked."""

    format: str
    registry: Registry | None
    subject: str | None
    strategy: str
    references: tuple[Reference, ...]
    auto_register: bool
    header_id: bool

    @staticmethod
    def of(
        format_: str,
        registry: object,
        subject: object,
        strategy: str,
        references: Sequence[tuple[str, str, int]],
        auto_register: bool,
        header_id: bool,
    ) -> Asked:
        called = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json_schema"}[format_]
        if subject is not None and (not isinstance(subject, str) or not subject):
            raise ConfigError(f"serdes.{called}: subject is a name, found {subject!r}")
        if strategy not in STRATEGIES:
            raise ConfigError(
                f"serdes.{called}: strategy is one of {', '.join(STRATEGIES)}; found {strategy!r}"
            )
        if registry is None and header_id:
            raise ConfigError(f"serdes.{called}: header_id= is the id of a registry=")
        if registry is None and references:
            raise ConfigError(f"serdes.{called}: references= are read from a registry=")
        asked = None if registry is None else Registry.of(registry)
        listed = tuple(Reference(*one) for one in references)
        return Asked(format_, asked, subject, strategy, listed, auto_register, header_id)

    def schema(self, text: str | None) -> Schema:
        """Of ``text``, or the latest of the subject."""
        if text is not None:
            made = Schema(self.format, text, self.references)
            return made if self.registry is None else self.registry.resolved(made)
        if self.registry is None or self.subject is None:
            raise ConfigError("give a schema, or registry= and subject= to read its latest version")
        try:
            return self.registry.latest(self.subject, self.format).schema
        except MissingSchema as error:
            raise SchemaError(f"there is no schema to read: {error}") from error

    def options(self) -> dict[str, Any]:
        return {
            "registry": self.registry,
            "subject": self.subject,
            "strategy": self.strategy,
            "auto_register": self.auto_register,
            "header_id": self.header_id,
        }


def needs(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ConfigError(f"this serde needs {library}: {EXTRA}") from error


def avro(schema: object, asked: Asked) -> AvroSerde:
    needs("fastavro")
    if isinstance(schema, Mapping | list | tuple):
        schema = json.dumps(schema, separators=(",", ":"))
    if schema is not None and not isinstance(schema, str):
        raise SerdeError(f"an Avro schema is JSON, or its values; found {type(schema).__name__}")
    found = asked.schema(schema)
    return AvroSerde(found, arrow_of(parsed_schema(found)), **asked.options())


def protobuf(message: object, asked: Asked) -> ProtobufSerde:
    """``message``: a generated class, or the name of one in the schema that the registry has."""
    needs("google.protobuf")
    if hasattr(message, "DESCRIPTOR"):
        found = replace(schema_of(message.DESCRIPTOR.file), references=asked.references)
        name = message.DESCRIPTOR.full_name
    elif message is None or isinstance(message, str):
        found = asked.schema(None)
        name = descriptor(found, message or "").full_name
    else:
        raise SerdeError(
            f"serdes.protobuf takes a class that protoc generated, or the name of a message; found "
            f"{type(message).__name__}"
        )
    return ProtobufSerde(found, root(found, name).type, message=name, **asked.options())


def json_schema(schema: object, asked: Asked) -> JsonSchemaSerde:
    if isinstance(schema, Mapping):
        schema = json.dumps(schema, separators=(",", ":"))
    if schema is not None and not isinstance(schema, str):
        raise SerdeError(f"a JSON Schema is JSON, or a dict; found {type(schema).__name__}")
    found = asked.schema(schema)
    return JsonSchemaSerde(found, json_schema_type(found), **asked.options())


def debezium(
    columns: object,
    form: str,
    source: object,
    registry: object,
    decimals: object,
    times: object,
) -> DebeziumSerde:
    row = _struct(columns, "columns")
    if form not in (ENVELOPE, ROW):
        raise SerdeError(f"serdes.debezium: form is {ENVELOPE!r} or {ROW!r}, found {form!r}")
    if source is not None and form == ROW:
        raise SerdeError("serdes.debezium: source= is a part of an envelope, and this is a row")
    if registry is not None:
        needs("fastavro")
    type_ = row
    if form == ENVELOPE:
        type_ = envelope_type(row, None if source is None else _struct(source, "source"))
    words = (
        _words("decimals", decimals, DECIMALS, row, pa.types.is_decimal),
        _words("times", times, TIMES, row, pa.types.is_temporal),
    )
    asked = None if registry is None else Registry.of(registry)
    schema = Schema("AVRO", "")  # of the program there is none: the columns are
    return DebeziumSerde(schema, type_, asked, columns=row, shape=form, said=Said(*words))


def _struct(columns: object, called: str) -> pa.DataType:
    found = arrow_type(columns)
    if not pa.types.is_struct(found) or not len(found):
        raise SerdeError(
            f"serdes.debezium: {called} are fields, e.g. 'id bigint, name string'; found "
            f"{type_text(found)}"
        )
    return found


def _words(
    called: str,
    given: object,
    known: Sequence[str],
    row: pa.DataType,
    fits: Callable[[pa.DataType], bool],
) -> Words:
    """Of ``decimals=`` or ``times=``: for all columns, or by column."""
    default: Words = getattr(Said(), called)
    if given is None:
        return default
    found: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"": given}
    for name, word in found.items():
        if word not in known:
            raise SerdeError(
                f"serdes.debezium: {called} is one of {', '.join(known)}, or a dict of them by "
                f"column; found {word!r}"
            )
        at = row.get_field_index(name) if name else -1
        if name and (at < 0 or not holds(row.field(at).type, fits)):
            raise SerdeError(
                f"serdes.debezium: {called} names {name!r}, which is no such column: "
                f"{type_text(row)}"
            )
    return tuple(sorted({**dict(default), **found}.items()))


def json_texts(data: pa.Array, registry: Registry) -> tuple[list[str | None], Faults]:
    """A column of values (``pa.binary()``) as JSON, each by the schema that it was written with,
    whatever its format; None for null, and for a value that cannot be read: why, by row.
    RetriableError where the registry does not answer."""
    texts: list[str | None] = [None] * len(data)
    there = np.flatnonzero(valid(data))
    present = data.drop_null()
    found, faults = groups(present)
    for group in found:
        try:
            read = _readers(group, registry)
        except (MissingSchema, SerdeError) as error:
            faults.update(dict.fromkeys(group.rows.tolist(), SerdeError(str(error))))
            continue
        for serde, rows in read:
            column, wrong = serde.decode_marked(present.take(pa.array(rows)))
            faults.update((int(rows[row]), error) for row, error in wrong.items())
            written, unfit = _texts(column, serde.type)
            faults.update((int(rows[row]), error) for row, error in unfit.items())
            for row, text in zip(there[rows], written, strict=False):
                texts[row] = text
    return texts, {int(there[row]): error for row, error in sorted(faults.items())}


def _texts(column: pa.Array, type_: pa.DataType) -> tuple[list[str | None], Faults]:
    """Up to the first value that JSON cannot hold."""
    try:
        written = JsonSerde(type_).encode_array(column)
    except SerdeError as error:
        if error.index is None:
            raise
        before, _ = _texts(column[: error.index], type_)
        return before, {error.index: error}
    return [None if one is None else one.decode() for one in written.to_pylist()], {}


def _readers(group: Group, registry: Registry) -> list[tuple[Registered, Int64]]:
    """Who reads which rows of a group: in Protobuf each message has its own."""
    schema = _written_with(registry, group.schema)
    if schema.kind != "PROTOBUF":
        return [(_reader(registry, schema, ""), group.rows)]
    by_message: dict[tuple[int, ...], list[int]] = {}
    for row, value in zip(group.rows.tolist(), group.data.to_pylist(), strict=True):
        try:
            indexes, _ = read_indexes(value)
        except SerdeError:
            indexes = (0,)  # whose reader says what is wrong with it
        by_message.setdefault(indexes, []).append(row)
    return [
        (_reader(registry, schema, message_at(schema, indexes)), np.array(rows))
        for indexes, rows in by_message.items()
    ]


@lru_cache(maxsize=1024)
def _written_with(registry: Registry, id_: SchemaId) -> Schema:
    return registry.any_schema(id_)


@lru_cache(maxsize=1024)
def _reader(registry: Registry, schema: Schema, message: str) -> Registered:
    return _serde_of(schema, registry, None, message)


def from_json(text: str, subject: str, registry: Registry) -> bytes:
    """Inverse of `json_texts`, by the latest schema of ``subject``; of Protobuf's, its first
    message. SerdeError, SchemaError, RetriableError."""
    serde = _latest(subject, registry)
    value = JsonSerde(serde.type).decode_array(pa.array([text.encode()], pa.binary()))
    return bytes(serde.encode_array(value)[0].as_py() or b"null")


@lru_cache(maxsize=16)
def _latest(subject: str, registry: Registry) -> Registered:
    try:
        return _serde_of(registry.latest(subject, None).schema, registry, subject, "")
    except MissingSchema as error:
        raise SchemaError(f"there is no schema to write by: {error}") from error


def _serde_of(schema: Schema, registry: Registry, subject: str | None, message: str) -> Registered:
    if schema.kind == "AVRO":
        needs("fastavro")
        return AvroSerde(schema, arrow_of(parsed_schema(schema)), registry, subject)
    if schema.kind == "PROTOBUF":
        needs("google.protobuf")
        name = descriptor(schema, message).full_name
        return ProtobufSerde(schema, root(schema, name).type, registry, subject, message=name)
    return JsonSchemaSerde(schema, json_schema_type(schema), registry, subject)
