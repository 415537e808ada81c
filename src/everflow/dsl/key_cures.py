"""What a program writes where two sides meet by key and their keys are of other types. Pure."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from everflow.serdes.arrow_types import normal_type, type_text
from everflow.topology.graph import same_type

Named = Callable[[tuple[str, ...]], str]
"""The text of a Column, by the path of fields to it."""


def column(name: str) -> Named:
    return lambda path: f"F.col({'.'.join((name, *path))!r})"


def given(path: tuple[str, ...]) -> str:
    """The Column that the user wrote."""
    return "(...)" + "".join(f"[{one!r}]" for one in path)


def key_of_key(wanted: pa.DataType, found: pa.DataType) -> str | None:
    """The Column that makes a key of the type ``wanted`` of one of the type ``found``; None where
    the types do not say how."""
    return converted(wanted, found, column("key"))


def key_of_field(wanted: pa.DataType) -> str:
    """The Column that makes a key of fields of the value, whatever they are called."""
    if not pa.types.is_struct(wanted):
        return column("value")(("a_field",))
    single = wanted.num_fields == 1
    fields = [
        f"{column('value')(('a_field' if single else one.name,))}.alias({one.name!r})"
        for one in wanted
    ]
    return f"F.struct({', '.join(fields)})"


def converted(wanted: pa.DataType, found: pa.DataType, named: Named) -> str | None:
    """The text of a Column of the type ``wanted``, made of the one of the type ``found`` that
    ``named`` names. A struct of one field and its field are the same key, and so are structs of the
    same fields; of a larger struct, as a windowed key, the first field of the type. None: else."""
    return _converted(normal_type(wanted), normal_type(found), named, ())


def _converted(
    wanted: pa.DataType, found: pa.DataType, named: Named, path: tuple[str, ...]
) -> str | None:
    if same_type(wanted, found):
        return named(path)
    if pa.types.is_struct(wanted):
        parts = [_field(one, wanted, found, named, path) for one in wanted]
        known = [part for part in parts if part is not None]
        return f"F.struct({', '.join(known)})" if len(known) == len(parts) else None
    if pa.types.is_struct(found):
        alike = [one for one in found if same_type(one.type, wanted)]
        fields = list(found) if found.num_fields == 1 else alike[:1]
        return (
            _converted(wanted, fields[0].type, named, (*path, fields[0].name)) if fields else None
        )
    return f"{named(path)}.cast({type_text(wanted)!r})" if _is_cast(wanted, found) else None


def _field(
    field: pa.Field, wanted: pa.DataType, found: pa.DataType, named: Named, path: tuple[str, ...]
) -> str | None:
    """``field`` of a struct ``wanted``."""
    if not pa.types.is_struct(found):
        made = _converted(field.type, found, named, path) if wanted.num_fields == 1 else None
    else:
        both_single = wanted.num_fields == found.num_fields == 1
        its = [one for one in found if one.name == field.name or both_single]
        made = _converted(field.type, its[0].type, named, (*path, its[0].name)) if its else None
    return None if made is None else f"{made}.alias({field.name!r})"


def _is_cast(wanted: pa.DataType, found: pa.DataType) -> bool:
    """True if Spark casts one into the other, in ANSI mode, too."""
    if pa.types.is_nested(wanted) or pa.types.is_nested(found):
        return False
    kinds = pa.types

    def is_number(one: pa.DataType) -> bool:
        return bool(kinds.is_integer(one) or kinds.is_floating(one) or kinds.is_decimal(one))

    def is_time(one: pa.DataType) -> bool:
        return bool(kinds.is_timestamp(one) or kinds.is_date(one))

    groups = (is_number, is_time)
    return (
        kinds.is_string(wanted)
        or kinds.is_string(found)
        or any(is_one(wanted) and is_one(found) for is_one in groups)
    )
