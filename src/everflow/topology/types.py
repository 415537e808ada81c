"""Arrow types as the topology compares and prints them.

Two schemas that differ only in nullability, field metadata or the width of offsets are one type on
an edge: a record may lack any field, and Arrow has several layouts for the same text.
"""

from __future__ import annotations

import pyarrow as pa


def normal_type(type_: pa.DataType) -> pa.DataType:
    """``type_`` in the form edges use: everything nullable, 32-bit offsets, no metadata, instants
    in µs UTC."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, normal_type(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(normal_type(type_.key_type), normal_type(type_.item_type))
    if (
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    ):
        return pa.list_(normal_type(type_.value_type))
    if pa.types.is_large_string(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_dictionary(type_):
        return normal_type(type_.value_type)
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", tz="UTC") if type_.tz else pa.timestamp("us")
    return type_


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether two edges of these types can meet."""
    return bool(normal_type(left) == normal_type(right))


def type_text(type_: pa.DataType) -> str:
    """``type_`` as Spark's DDL writes it, e.g. ``struct<carrier:string,delay:double>``."""
    if pa.types.is_struct(type_):
        return (
            "struct<" + ",".join(f"{field.name}:{type_text(field.type)}" for field in type_) + ">"
        )
    if pa.types.is_map(type_):
        return f"map<{type_text(type_.key_type)},{type_text(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"array<{type_text(type_.value_type)}>"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    names = {
        pa.bool_(): "boolean",
        pa.int8(): "tinyint",
        pa.int16(): "smallint",
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.date32(): "date",
        pa.duration("us"): "interval day to second",
        pa.null(): "void",
    }
    return names.get(type_, str(type_))


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
