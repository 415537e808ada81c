"""What Arrow computes exactly as Spark does in ANSI mode. Pure.

A kernel gets columns or scalars, and either gives what Spark gives, raises (then Spark is asked:
errors are never imitated), or says with `NoTwinError` that it is not for these types. The last is
known from columns without rows, so that it is known before the first record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Datum = Any
"""A column (``pa.Array``) or a constant (``pa.Scalar``)."""
_REGULAR = re.compile(r"[\\^$.|?*+()\[\]{}]")
"""What a regular expression does not take literally."""


class NoTwinError(Exception):
    """There is no kernel for this. The text says for what."""


class InexactError(Exception):
    """Arrow's result might differ from Spark's for these rows."""


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_signed_integer(kind)) or _is_floating(kind)


def _is_floating(kind: pa.DataType) -> bool:
    return bool(types.is_float32(kind) or types.is_float64(kind))


def _is_ordered(kind: pa.DataType) -> bool:
    """Whether Arrow's order is Spark's, NaN apart: texts and bytes byte by byte."""
    return any(
        test(kind)
        for test in (
            _is_number,
            types.is_boolean,
            types.is_string,
            types.is_binary,
            types.is_date32,
            types.is_timestamp,
            types.is_decimal128,
        )
    )


def _same_types(name: str, *given: Datum) -> pa.DataType:
    kind = given[0].type
    if not all(each.type.equals(kind) for each in given):
        listed = ", ".join(str(each.type) for each in given)
        raise NoTwinError(f"{name} of {listed}")
    return kind


def _only(wanted: Callable[[pa.DataType], bool], name: str, *given: Datum) -> pa.DataType:
    kind = _same_types(name, *given)
    if not wanted(kind):
        raise NoTwinError(f"{name} of {kind}")
    return kind


# --- null tests and logic -------------------------------------------------------------------------


def _is_nan(given: Datum) -> Datum:
    _only(_is_floating, "isnan", given)
    return pc.coalesce(pc.is_nan(given), False)


def _logic(name: str, function: Callable[..., Datum]) -> Callable[..., Datum]:
    def kernel(*given: Datum) -> Datum:
        _only(types.is_boolean, name, *given)
        return function(*given)

    return kernel


def _coalesce(*given: Datum) -> Datum:
    _same_types("coalesce", *given)
    return pc.coalesce(*given)


def _only_where(live: Datum, given: Datum) -> Datum:
    """``given`` where ``live`` (never null) is true, else null."""
    columns = isinstance(live, pa.Array) and isinstance(given, pa.Array)
    if columns and live.true_count == len(live):
        return given
    return pc.if_else(live, given, pa.scalar(None, given.type))


def _choose(*given: Datum) -> Datum:
    """condition, value, condition, value, ..., value: conditions are never null."""
    _same_types("case", *given[1::2], given[-1])
    made = given[-1]
    for at in range(len(given) - 3, -1, -2):
        made = pc.if_else(given[at], given[at + 1], made)
    return made


# --- comparison -----------------------------------------------------------------------------------


def _compared(name: str) -> Callable[[Datum, Datum], Datum]:
    """Of floating numbers NaN is the largest and equal to itself."""
    function: Callable[[Datum, Datum], Datum] = getattr(pc, name)

    def kernel(left: Datum, right: Datum) -> Datum:
        kind = _only(_is_ordered, name, left, right)
        made = function(left, right)
        if not _is_floating(kind):
            return made
        left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
        if not (_any(left_nan) or _any(right_nan)):
            return made
        match name:
            case "equal":
                return pc.or_(made, pc.and_(left_nan, right_nan))
            case "less":
                return pc.or_(made, pc.and_(right_nan, pc.invert(left_nan)))
            case "less_equal":
                return pc.or_(made, right_nan)
            case "greater":
                return pc.or_(made, pc.and_(left_nan, pc.invert(right_nan)))
            case _:
                return pc.or_(made, left_nan)

    return kernel


def _any(given: Datum) -> bool:
    if isinstance(given, pa.Scalar):
        return bool(given.as_py())
    return bool(given.true_count)


_equal = _compared("equal")


def _null_safe_equal(left: Datum, right: Datum) -> Datum:
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both, pc.coalesce(_equal(left, right), False))


def _is_in(given: Datum, *listed: Datum) -> Datum:
    made = _equal(given, listed[0])
    for each in listed[1:]:
        made = pc.or_kleene(made, _equal(given, each))
    return made


# --- numbers --------------------------------------------------------------------------------------


def _arithmetic(name: str) -> Callable[..., Datum]:
    """Of integers checked, as in ANSI mode; floating numbers follow IEEE 754 in both."""
    plain, checked = getattr(pc, name), getattr(pc, f"{name}_checked")

    def kernel(*given: Datum) -> Datum:
        kind = _only(_is_number, name, *given)
        made: Datum = (plain if _is_floating(kind) else checked)(*given)
        return made

    return kernel


def _divide(left: Datum, right: Datum) -> Datum:
    _only(types.is_float64, "/", left, right)
    return pc.divide_checked(left, right)


def _cast(kind: pa.DataType, given: Datum) -> Datum:
    there = given.type
    if there.equals(kind):
        return given
    if types.is_signed_integer(there) and types.is_signed_integer(kind):
        return given.cast(kind)
    if types.is_float32(kind) and types.is_integer(there) and not _fits_float(given):
        # Spark leaves a cast out where one to a wider type follows.
        raise NoTwinError(f"cast of {there} as {kind}")
    if _is_number(there) and _is_floating(kind):
        return pc.cast(given, kind, safe=False)
    if _is_floating(there) and types.is_signed_integer(kind):
        return pc.trunc(given).cast(kind)
    if (types.is_signed_integer(there) or types.is_boolean(there)) and types.is_string(kind):
        return given.cast(kind)
    if types.is_string(there) and types.is_binary(kind):
        return given.cast(kind)
    raise NoTwinError(f"cast of {there} as {kind}")


def _fits_float(given: Datum) -> bool:
    """Whether integers become the same numbers in 32 bits."""
    if isinstance(given, pa.Scalar):
        return not given.is_valid or abs(given.as_py()) <= 1 << 24
    return bool(given.type.bit_width <= 16)


def widens(there: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a cast between these types of numbers cannot fail."""
    return _is_floating(kind) or not _is_number(kind) or there.equals(kind)


# --- text -----------------------------------------------------------------------------------------


def _text(name: str, function: Callable[..., Datum]) -> Callable[..., Datum]:
    def kernel(*given: Datum) -> Datum:
        _only(types.is_string, name, *given)
        return function(*given)

    return kernel


def _predicate(name: str, function: Callable[..., Datum]) -> Callable[[Datum, Datum], Datum]:
    def kernel(given: Datum, pattern: Datum) -> Datum:
        _only(types.is_string, name, given, pattern)
        if not isinstance(pattern, pa.Scalar) or not pattern.is_valid:
            raise NoTwinError(f"{name} of what is no constant")
        return function(given, pattern.as_py())

    return kernel


def _of_ascii(name: str, function: Callable[[Datum], Datum]) -> Callable[[Datum], Datum]:
    """Letters beyond ASCII change their case by other tables in Java than in Arrow."""

    def kernel(given: Datum) -> Datum:
        _only(types.is_string, name, given)
        if isinstance(given, pa.Scalar):
            raise NoTwinError(f"{name} of a constant")
        if pc.all(pc.string_is_ascii(given)).as_py() is False:
            raise InexactError(name)
        return function(given)

    return kernel


def _split(given: Datum, pattern: Datum, limit: Datum) -> Datum:
    _only(types.is_string, "split", given, pattern)
    constant = isinstance(pattern, pa.Scalar) and isinstance(limit, pa.Scalar)
    if not constant or not pattern.as_py() or limit.as_py() != -1:
        raise NoTwinError("split with a limit, or by what is no constant")
    if _REGULAR.search(pattern.as_py()):
        raise NoTwinError("split by a regular expression")
    return pc.split_pattern(given, pattern=pattern.as_py())


def _field(ordinal: int, given: Datum) -> Datum:
    return pc.struct_field(given, [ordinal])


KERNELS: Mapping[str, Callable[..., Datum]] = {
    "is_null": pc.is_null,
    "is_valid": pc.is_valid,
    "is_nan": _is_nan,
    "and": _logic("and", pc.and_kleene),
    "or": _logic("or", pc.or_kleene),
    "not": _logic("not", pc.invert),
    "coalesce": _coalesce,
    "only_where": _only_where,
    "choose": _choose,
    "equal": _equal,
    "null_safe_equal": _null_safe_equal,
    "less": _compared("less"),
    "less_equal": _compared("less_equal"),
    "greater": _compared("greater"),
    "greater_equal": _compared("greater_equal"),
    "in": _is_in,
    "add": _arithmetic("add"),
    "subtract": _arithmetic("subtract"),
    "multiply": _arithmetic("multiply"),
    "negate": _arithmetic("negate"),
    "abs": _arithmetic("abs"),
    "divide": _divide,
    "cast": _cast,
    "starts_with": _predicate("startswith", lambda text, part: pc.starts_with(text, part)),
    "ends_with": _predicate("endswith", lambda text, part: pc.ends_with(text, part)),
    "contains": _predicate("contains", lambda text, part: pc.match_substring(text, part)),
    "length": _text("length", pc.utf8_length),
    "concat": _text("concat", lambda *texts: pc.binary_join_element_wise(*texts, "")),
    "upper": _of_ascii("upper", pc.ascii_upper),
    "lower": _of_ascii("lower", pc.ascii_lower),
    "trim": _text("trim", lambda text: pc.utf8_trim(text, characters=" ")),
    "split": _split,
    "field": _field,
}
"""By name. What a kernel needs besides columns comes before them."""

NEVER_NULL = frozenset({"is_null", "is_valid", "is_nan", "null_safe_equal"})
NULL_OF_NULLS = frozenset(
    {"and", "or", "not", "equal", "less", "less_equal", "greater", "greater_equal", "in"}
    | {"add", "subtract", "multiply", "negate", "abs", "divide", "cast", "choose"}
    | {"starts_with", "ends_with", "contains", "length", "concat", "upper", "lower", "trim"}
)
"""Null only where something given is."""
