"""Arrow types: everflow's form of them, Spark's text of them, and places in their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

_MOST_TYPE = 60
_NAMES = {
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
    pa.duration("us"): "interval day to second",
}


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
    return _NAMES.get(type_, str(type_))


class Misfit(NamedTuple):
    """Why a value does not fit a schema. ``path``: steps from the root to the place (`field_step`
    and the like), ``type``: what is wanted there."""

    path: str
    type: pa.DataType
    why: str

    def below(self, step: str) -> Misfit:
        """The same, seen from one level above."""
        return self._replace(path=step + self.path)

    def __str__(self) -> str:
        type_ = type_text(self.type)
        if len(type_) > _MOST_TYPE:
            type_ = type_.partition("<")[0]
        return f"{self.path.removeprefix('.') or 'the value'} ({type_}): {self.why}"


def holds(type_: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type, or a type in it, is ``wanted``."""
    if wanted(type_):
        return True
    count = type_.num_fields if pa.types.is_nested(type_) else 0
    return any(holds(type_.field(index).type, wanted) for index in range(count))


def field_step(name: str) -> str:
    """A step into a field of a struct, with backticks where Spark needs them, too."""
    if re.fullmatch(r"\w+", name):
        return f".{name}"
    return ".`" + name.replace("`", "``") + "`"
