"""The serde of Avro."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from everflow.serdes.avro_reading import Unresolved, read_columns, reader
from everflow.serdes.avro_types import Avro, parsed, same_form
from everflow.serdes.avro_writing import write_columns
from everflow.serdes.byte_rows import Faults
from everflow.serdes.registered import Registered
from everflow.serdes.registry import Schema


@dataclass(frozen=True, repr=False)
class AvroSerde(Registered):
    """Values of an Avro schema; reads what other schemas wrote by Avro's rules of resolution."""

    format: ClassVar[str] = "AVRO"
    format_name: ClassVar[str] = "Avro"

    @property
    def name(self) -> str:
        return parsed_schema(self.schema).name

    def _read(self, data: pa.Array, writer: Schema) -> tuple[pa.Array, Faults]:
        return read_columns(data, parsed_schema(writer), parsed_schema(self.schema))

    def _write(self, values: pa.Array, head: bytes) -> pa.Array:
        return write_columns(values, parsed_schema(self.schema), head)

    def _difference(self, other: Schema) -> str:
        own, found = parsed_schema(self.schema), parsed_schema(other)
        for writer, wanted in ((own, found), (found, own)):
            try:
                reader(writer, wanted)
            except Unresolved as error:
                return str(error)
        return ""

    def _meaning(self, schema: Schema) -> object:
        return same_form(schema.text)


def parsed_schema(schema: Schema) -> Avro:
    return parsed(schema.text, tuple(text for _, text in schema.resolved))
