"""The serde of Protobuf: messages by their descriptors, a column for each field.

A field is a column: null where a field with presence is not there, its default where a field
without presence is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.serdes.arrow_types import field_step
from everflow.serdes.base import SerdeError, bytes_of, rest
from everflow.serdes.byte_rows import Faults
from everflow.serdes.protobuf_reading import Read, message_reader, read_columns
from everflow.serdes.protobuf_types import (
    MAIN,
    Part,
    descriptor,
    file_of,
    indexes_of,
    message_at,
    root,
    same_form,
)
from everflow.serdes.protobuf_writing import Write, message_writer, write_columns
from everflow.serdes.registered import Registered
from everflow.serdes.registry import Reference, Schema, Version
from everflow.serdes.wire_format import read_indexes


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
        others: Faults = {}
        if self.registry is not None:
            data, others = self._own(data, writer)
        part = root(self.schema, self.message)
        column, faults = read_columns(data, part, _reader(self.schema, self.message))
        faults |= others
        if others:
            missing = np.zeros(len(column), bool)
            missing[list(others)] = True
            column = column.take(pa.array(np.arange(len(column)), mask=missing))
        return column, faults

    def _own(self, data: pa.Array, writer: Schema) -> tuple[pa.Array, Faults]:
        """Without the numbers that say which message it is; faults of those that are another."""
        content, places = bytes_of(data)
        begins = places[:-1]
        if len(data) and (np.diff(places) > 0).all() and not content[begins].any():
            self._require_own((0,), writer)
            return rest(data, 1), {}
        faults: Faults = {}
        own: list[bytes] = []
        for row, one in enumerate(data.to_pylist()):
            try:
                indexes, size = read_indexes(one)
                self._require_own(indexes, writer)
                own.append(one[size:])
            except SerdeError as error:
                faults[row] = error
                own.append(b"")
        return pa.array(own, pa.binary()), faults

    def _require_own(self, indexes: tuple[int, ...], writer: Schema) -> None:
        name = message_at(writer, indexes)
        if name.rpartition(".")[2] != self.message.rpartition(".")[2]:
            raise SerdeError(f"it is a message {name}, and is read as {self.message}")

    def _write(self, values: pa.Array, head: bytes) -> pa.Array:
        write = _writer(self.schema, self.message)
        return write_columns(values, root(self.schema, self.message), write, head)

    def _found(self, subject: str) -> Version:
        """Imports are registered under their names, as ReferenceSubjectNameStrategy does."""
        assert self.registry is not None
        if self.schema.references or not self.schema.resolved:
            return super()._found(subject)
        known: dict[str, Reference] = {}
        for name, text in self.schema.resolved:
            needs = tuple(known[one] for one in file_of(text, name).dependency if one in known)
            inner = replace(self, schema=Schema(self.format, text, needs))
            found = Registered._found(inner, name)
            if found.version is None:
                found = self.registry.found(name, inner.schema, self._meaning, register=False)
            known[name] = Reference(name, name, found.version or 1)
        direct = file_of(self.schema.text, MAIN).dependency
        own = tuple(known[one] for one in direct if one in known)
        return Registered._found(
            replace(self, schema=replace(self.schema, references=own)), subject
        )

    def _meaning(self, schema: Schema) -> object:
        return same_form(schema.text)

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


@lru_cache(maxsize=256)
def _reader(schema: Schema, message: str) -> Read:
    return message_reader(root(schema, message))


@lru_cache(maxsize=256)
def _writer(schema: Schema, message: str) -> Write:
    return message_writer(root(schema, message))
