"""JSON with a schema: objects in schema order, missing fields null, extra fields ignored.

What a text means, `json_reading` says, and `json_writing` what is written (design note 015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from everflow.serdes.base import SerdeError, encode_one, flat
from everflow.serdes.json_columns import read
from everflow.serdes.json_reading import Faults, read_rows
from everflow.serdes.json_writing import write
from everflow.serdes.schema import storable


@dataclass(frozen=True, repr=False)
class JsonSerde:
    """UTF-8 JSON text <-> ``type``.

    Dates and timestamps are ISO 8601 text (timestamps ``2024-01-31T12:00:00.000000Z``, read with
    any offset), binary is base64, decimals are numbers (read from numbers or text), null fields are
    written as ``null``, NaN and the infinities as text. SerdeError for a type that is not written.
    """

    type: pa.DataType
    kind: str = "json"

    def __post_init__(self) -> None:
        storable(self.type)

    def encode(self, value: Any) -> bytes | None:
        return encode_one(self, value)

    def decode(self, data: bytes | None) -> Any:
        column, faults = read_rows([data], self.type)
        if faults:
            raise faults[0]
        return column[0].as_py()

    def encode_array(self, values: pa.Array) -> pa.Array:
        return write(flat(values, self.type))

    def decode_array(self, data: pa.Array) -> pa.Array:
        column, faults = self.decode_marked(data)
        for index, error in faults.items():
            raise SerdeError(str(error), index=index) from error
        return column

    def decode_marked(self, data: pa.Array) -> tuple[pa.Array, Faults]:
        """As `decode_array`, with null for each row that cannot be read, and why by row, in
        order."""
        return read(flat(data, pa.binary()), self.type)

    def __repr__(self) -> str:
        return f"json({self.type})"
