"""Arrow types as the topology compares and prints them.

Two schemas that differ only in nullability, field metadata or the width of offsets are one type on
an edge: a record may lack any field, and Arrow has several layouts for the same text.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from everflow.serdes import Serde
from everflow.serdes.arrow_types import normal_type as normal_type
from everflow.serdes.arrow_types import type_text as type_text


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether two edges of these types can meet."""
    return bool(normal_type(left) == normal_type(right))


def write_alike(one: Serde | None, other: Serde | None) -> bool:
    """Whether two serdes write equal values as equal bytes, so that equal keys meet: also where
    they are not equal themselves. What they do not write tells them apart for nobody: the size of
    time windows, which fields of a JSON type may be null."""
    if one is None or other is None:
        return one is other
    if one == other:
        return True
    if one.kind != other.kind:
        return False
    mine, its = _inner(one), _inner(other)
    if mine is not None and its is not None:
        return write_alike(mine, its)
    if one.kind in ("json", "packed"):
        return same_type(one.type, other.type)
    return _same_of_users(one, other)


def _inner(serde: Any) -> Serde | None:
    """The serde of a window's key or of a list's entries, which writes all that tells apart."""
    inner = ("time_windowed", "session_windowed", "list")
    found: Serde | None = getattr(serde, "inner", None) if serde.kind in inner else None
    return found


def _same_of_users(one: Any, other: Any) -> bool:
    """Whether two serdes of the user's are of one class, with the same in them: a class seldom says
    when its objects are equal."""
    mine, its = getattr(one, "own", one), getattr(other, "own", other)
    if type(mine) is not type(its) or not same_type(one.type, other.type):
        return False
    try:
        return bool(vars(mine) == vars(its))
    except Exception:  # without a __dict__, or with values that cannot be compared
        return False


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
