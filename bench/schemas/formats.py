"""The trades in Avro and in Protobuf: their schemas, and records and results as bytes."""

from __future__ import annotations

import base64
import functools
import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bench.schemas.peer import HEAD

TRADE = {
    "symbol": "string",
    "price": "double",
    "size": "long",
    "at": "long",
    "venue": "string",
    "note": "string",
}
AVERAGE = {"price": "double", "shares": "long"}
AVRO, PROTOBUF, JSON = "avro", "protobuf", "json"
TRADES, AVERAGES = "trades", "averages"
"""Subjects of the registry. The trades' schema is registered first, with the id in `HEAD`."""


def avro_schema(name: str, fields: Mapping[str, str]) -> dict[str, Any]:
    listed = [{"name": field, "type": type_} for field, type_ in fields.items()]
    return {"type": "record", "name": name, "fields": listed}


def protobuf_file(name: str, fields: Mapping[str, str]) -> Any:
    """The descriptor of a file with one message."""
    found = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    kinds = {"string": "TYPE_STRING", "double": "TYPE_DOUBLE", "long": "TYPE_INT64"}
    message = found.message_type.add(name=name)
    for number, (field, type_) in enumerate(fields.items(), 1):
        kind = descriptor_pb2.FieldDescriptorProto.Type.Value(kinds[type_])
        label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
        message.field.add(name=field, number=number, type=kind, label=label)
    return found


def registered(kind: str, name: str, fields: Mapping[str, str]) -> str:
    """The text of a schema as the registry has it."""
    if kind == AVRO:
        return json.dumps(avro_schema(name, fields))
    return base64.standard_b64encode(protobuf_file(name, fields).SerializeToString()).decode()


@functools.cache
def _message(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(protobuf_file(name, {"Trade": TRADE, "Average": AVERAGE}[name]))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@functools.cache
def _parsed(name: str) -> Any:
    fields = {"Trade": TRADE, "Average": AVERAGE}[name]
    return fastavro.parse_schema(avro_schema(name, fields))


def encoded(kind: str, trade: Mapping[str, Any]) -> bytes:
    """A trade, with its head."""
    if kind == PROTOBUF:
        data: bytes = _message("Trade")(**trade).SerializeToString()
        return HEAD + b"\0" + data
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _parsed("Trade"), dict(trade))
    return HEAD + out.getvalue()


def decoded(kind: str, average: bytes) -> dict[str, Any]:
    """A result, whatever the id in front of it."""
    body = average[len(HEAD) :]
    if kind == PROTOBUF:
        found = _message("Average").FromString(body[1:])
        return {name: getattr(found, name) for name in AVERAGE}
    value: Any = fastavro.schemaless_reader(io.BytesIO(body), _parsed("Average"), None)
    return dict(value)
