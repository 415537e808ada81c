"""Strategies for every type that a schema can name, nested, and for values of them."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from everflow import serdes

UTC = dt.timezone.utc
SCALARS = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz", "varchar(9)", "char(9)"),
)
NAMES = ("a", "b", "key", "é", "a b", "x.y", 'q"', "`", "")
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
_decimals = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: pa.decimal128(precision, scale))
)
scalars = st.sampled_from(SCALARS).map(serdes.arrow_type) | _decimals


def _structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.lists(st.sampled_from(NAMES), unique=True, max_size=3)
    return names.flatmap(
        lambda found: st.tuples(*[inner] * len(found)).map(
            lambda types: pa.struct(list(zip(found, types, strict=True)))
        )
    )


keys = st.recursive(scalars, lambda inner: _structs(inner) | inner.map(pa.list_), max_leaves=3)
"""Of a map: Spark's have none that is a map or holds one."""


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    maps = st.tuples(keys, inner).map(lambda types: pa.map_(*types))
    return _structs(inner) | inner.map(pa.list_) | maps


types = st.recursive(scalars | st.just(pa.null()), _nested, max_leaves=5)


def values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """As `pa.Scalar.as_py` gives them; null among them."""
    return st.none() if pa.types.is_null(type_) else st.none() | present(type_)


def present(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """As `values`, but the value itself is not null."""
    if pa.types.is_struct(type_):
        return st.fixed_dictionaries({field.name: values(field.type) for field in type_})
    if pa.types.is_list(type_):
        return st.lists(values(type_.value_type), max_size=3)
    if pa.types.is_map(type_):
        written = serdes.json(type_.key_type)
        pairs = st.tuples(present(type_.key_type), values(type_.item_type))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: written.encode(pair[0]))
    return _scalar(type_)


def _scalar(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(type_):
        return st.booleans()
    if pa.types.is_integer(type_):
        most = 1 << (type_.bit_width - 1)
        return st.integers(-most, most - 1)
    if pa.types.is_floating(type_):
        return st.floats(width=type_.bit_width).map(abs_nan)
    if pa.types.is_decimal(type_):
        most = 10**type_.precision - 1
        return st.integers(-most, most).map(
            lambda digits: decimal.Decimal(digits).scaleb(-type_.scale, decimal.Context(prec=76))
        )
    if pa.types.is_date(type_):
        return st.dates()
    if pa.types.is_timestamp(type_):
        return st.datetimes(timezones=st.just(UTC)) if type_.tz else st.datetimes()
    return st.binary(max_size=4) if pa.types.is_binary(type_) else _text


def abs_nan(number: float) -> float:
    """There is one NaN."""
    return number if number == number else float("nan")


def same(column: pa.Array, other: pa.Array) -> bool:
    """Whether both are the same, NaN and negative zeros included."""
    return bool(column.type == other.type) and repr(column.to_pylist()) == repr(other.to_pylist())
