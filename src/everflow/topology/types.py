"""Arrow types as the topology compares and prints them.

Two schemas that differ only in nullability, field metadata or the width of offsets are one type on
an edge: a record may lack any field, and Arrow has several layouts for the same text.
"""

from __future__ import annotations

import pyarrow as pa

from everflow.serdes.arrow_types import normal_type as normal_type
from everflow.serdes.arrow_types import type_text as type_text


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether two edges of these types can meet."""
    return bool(normal_type(left) == normal_type(right))


def column_names(key: pa.DataType, value: pa.DataType) -> list[str]:
    """What a Column on an edge may name, with types; struct fields are listed one level deep."""
    names: list[str] = []
    for root, type_ in (("key", key), ("value", value)):
        names.append(
            f"{root} {type_text(type_)}" if not pa.types.is_struct(type_) else f"{root} struct"
        )
        if pa.types.is_struct(type_):
            names += [f"{root}.{field.name} {type_text(field.type)}" for field in type_]
    return [
        *names,
        "timestamp bigint (ms)",
        "topic string",
        "partition int",
        "offset bigint",
        "headers array<struct<key:string,value:binary>>",
    ]
