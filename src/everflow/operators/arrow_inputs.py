"""Computes an aggregate's inputs on Arrow, for steps that read without Catalyst.

Each is the twin of a Column over the edge's value and gives the same result; picklable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Presence:
    """Twin of ``when(value is not null, true)``: the input of an aggregate that only counts."""

    def __call__(self, value: pa.Array) -> pa.Array:
        """``bool`` column: true, null where the value is null."""
        present = value.is_valid()
        return pc.if_else(present, present, pa.scalar(None, pa.bool_()))


@dataclass(frozen=True)
class Fields:
    """Twin of a struct of plain fields of the value. ``paths`` are field names from the value
    inwards (empty = the value itself); ``null_without_value``: the struct is null as a whole where
    the value is null."""

    paths: tuple[tuple[str, ...], ...]
    type: pa.StructType
    null_without_value: bool

    def __call__(self, value: pa.Array) -> pa.Array:
        """Struct column of ``type``."""
        columns = [
            _field(value, path).cast(field.type)
            for path, field in zip(self.paths, self.type, strict=True)
        ]
        mask = (
            pc.invert(value.is_valid())
            if self.null_without_value
            else pa.array(np.zeros(len(value), dtype=bool))
        )
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)


def _field(value: pa.Array, path: tuple[str, ...]) -> pa.Array:
    return pc.struct_field(value, list(path)) if path else value
