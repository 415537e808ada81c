"""Arrow types: everflow's form of them, Spark's text of them, and which Python values fit them.

Values fit strictly, so that nothing is cut off, converted or left out in silence. As PySpark's
``createDataFrame`` does: no float for an integer, no bool for a number, no letters of a text for an
array. Beyond it an int fits a floating type, and so do NumPy's values of the same kind.
"""

from __future__ import annotations

import datetime as dt
import decimal
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.user_program import shown

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


class TypeMismatch(NamedTuple):
    """Why a value does not fit a schema. ``path``: steps from the root to the place (`field_step`
    and the like), ``type``: what is wanted there."""

    path: str
    type: pa.DataType
    why: str

    def below(self, step: str) -> TypeMismatch:
        return self._replace(path=step + self.path)

    def __str__(self) -> str:
        type_ = type_text(self.type)
        if len(type_) > _MOST_TYPE:
            type_ = type_.partition("<")[0]
        return f"{self.path.removeprefix('.') or 'the value'} ({type_}): {self.why}"


def holds(type_: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    if wanted(type_):
        return True
    count = type_.num_fields if pa.types.is_nested(type_) else 0
    return any(holds(type_.field(index).type, wanted) for index in range(count))


def field_step(name: str) -> str:
    """A step into a field of a struct, with backticks where Spark needs them, too."""
    if re.fullmatch(r"\w+", name):
        return f".{name}"
    return ".`" + name.replace("`", "``") + "`"


# --- Python values that fit a type ----------------------------------------------------------------

_Check = Callable[[Sequence[Any]], object]
"""Raises TypeError if one of the values does not fit. None fits every type."""
UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError)

BEYOND_FLOAT = float(2**128 - 2**103)
"""From here on a number is rounded to infinity in 32 bits."""
_BOOLS = (bool, np.bool_)
_INTS = (int, np.integer)
_TIMES = (dt.datetime, np.datetime64)

# (is it such a type, what it takes, what of that it does not take after all, both in words)
_SCALARS: tuple[
    tuple[Callable[[pa.DataType], bool], tuple[type, ...], tuple[type, ...], str], ...
] = (
    (pa.types.is_boolean, _BOOLS, (), "a bool"),
    (pa.types.is_integer, _INTS, (*_BOOLS, np.timedelta64), "an int"),
    (
        pa.types.is_floating,
        (float, *_INTS, np.floating),
        (*_BOOLS, np.timedelta64),
        "a float or an int",
    ),
    (pa.types.is_decimal, (decimal.Decimal, int), _BOOLS, "a decimal.Decimal or an int"),
    (pa.types.is_string, (str,), (), "a str"),
    (pa.types.is_large_string, (str,), (), "a str"),
    (pa.types.is_binary, (bytes, bytearray, memoryview), (), "bytes"),
    (pa.types.is_large_binary, (bytes, bytearray, memoryview), (), "bytes"),
    (pa.types.is_date, (dt.date, np.datetime64), (dt.datetime,), "a datetime.date"),
    (pa.types.is_timestamp, _TIMES, (), "a datetime.datetime"),
)
_NO_ARRAYS = (str, bytes, bytearray, memoryview, Mapping)


class _Unlike(TypeError):
    """A value is not what its type takes; the text, if any, says why."""


class UnfitError(TypeError):
    """A value does not fit its type; the text says where in it, and why. ``index``: which of the
    values."""

    def __init__(self, mismatch: TypeMismatch, index: int) -> None:
        super().__init__(str(mismatch))
        self.index = index


def column_of(items: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """``items`` as an array of ``type_``. UnfitError for the first that does not fit. A NamedTuple
    (a `Windowed`, for instance) fits a struct."""
    try:
        return _column(items, type_)
    except UNFIT as error:
        for index, item in enumerate(items):
            mismatch = mismatch_of(item, type_)
            if mismatch is not None:
                raise UnfitError(mismatch, index) from error
        raise  # of all together: they are more than a column holds


def _column(items: Sequence[Any], type_: pa.DataType) -> pa.Array:
    made = _whole_structs(items, type_) if pa.types.is_struct(type_) else None
    if made is not None:
        return made
    _check_of(type_)(items)
    try:
        return pa.array(items, type_)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.array([_plain(item) for item in items], type_)


def mismatch_of(value: Any, type_: pa.DataType) -> TypeMismatch | None:
    """Why ``value`` does not fit, at the first place where it does not; None where it does."""
    try:
        _column([value], type_)
    except UNFIT as error:
        inner = next((found for found in _parts(value, type_) if found is not None), None)
        if inner is not None:
            return inner
        why = (str(error) if isinstance(error, _Unlike) else "") or _refused_by_arrow(value, type_)
        if pa.types.is_timestamp(type_) and isinstance(value, int | float):
            why += ": a number may be seconds or milliseconds; declare a bigint"
        return TypeMismatch("", type_, why)
    return None


def _parts(value: Any, type_: pa.DataType) -> Iterator[TypeMismatch | None]:
    if pa.types.is_struct(type_):
        fields = value._asdict() if hasattr(value, "_asdict") else value
        if isinstance(fields, dict):
            for field in type_:
                found = mismatch_of(fields.get(field.name), field.type)
                yield found and found.below(field_step(field.name))
    elif pa.types.is_map(type_):
        pairs = list(value.items()) if isinstance(value, dict) else value
        if isinstance(pairs, list | tuple):
            for pair in pairs:
                if not (isinstance(pair, tuple) and len(pair) == 2):
                    yield TypeMismatch(
                        "", type_, f"expected pairs of key and value, found {shown(pair)}"
                    )
                    continue
                step = f"[{shown(pair[0], 50)}]"
                if pair[0] is None:
                    yield TypeMismatch(step, type_.key_type, "expected a key, found None")
                for item, kind in zip(pair, (type_.key_type, type_.item_type), strict=True):
                    found = mismatch_of(item, kind)
                    yield found and found.below(step)
    elif _is_list(type_) and isinstance(value, list | tuple | np.ndarray):
        for at, item in enumerate(value):
            found = mismatch_of(item, type_.value_type)
            yield found and found.below(f"[{at}]")


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def _refused_by_arrow(value: Any, type_: pa.DataType) -> str:
    if pa.types.is_integer(type_):
        most = 1 << (type_.bit_width - 1)
        expected = f"an int from {-most} to {most - 1}"
    elif pa.types.is_decimal(type_):
        before = type_.precision - type_.scale
        expected = f"at most {before} digits before the point and {type_.scale} behind it"
    elif pa.types.is_string(type_):
        expected = "a str that can be written as UTF-8"
    elif pa.types.is_temporal(type_):
        expected = "a time that it holds without being cut"
    elif pa.types.is_map(type_):
        expected = "a dict or a list of pairs of key and value"
    elif pa.types.is_floating(type_):
        expected = f"an int that a {type_text(type_)} holds exactly"
    else:
        expected = f"a {type_text(type_)}"
    return f"expected {expected}, found {shown(value)}"


def _whole_structs(items: Sequence[Any], type_: pa.DataType) -> pa.Array | None:
    """``items`` field by field, a third of the time of what is said below; None unless all are
    dicts with all the fields and no others, whose values fit: then that says what is wrong."""
    names = [field.name for field in type_]
    if not names or set(map(type, items)) != {dict} or set(map(len, items)) != {len(set(names))}:
        return None
    try:
        columns = [_column(list(map(itemgetter(field.name), items)), field.type) for field in type_]
    except (KeyError, *UNFIT):
        return None
    return pa.StructArray.from_arrays(columns, fields=list(type_))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=256)
def _check_of(type_: pa.DataType) -> _Check:
    """The check of a column of ``type_``: by the few classes that occur, not value by value."""
    if pa.types.is_struct(type_):
        return _struct_check(type_)
    if pa.types.is_map(type_):
        return _map_check(type_)
    if _is_list(type_):
        return _list_check(type_)
    for is_such, taken, refused, words in _SCALARS:
        if is_such(type_):
            check = _scalar_check(taken, refused, words)
            if pa.types.is_timestamp(type_) and type_.unit in ("s", "ms"):
                return _coarse_check(check, 1_000_000 if type_.unit == "s" else 1_000)
            return _short_check(check) if pa.types.is_float32(type_) else check
    return lambda items: None  # Arrow decides


def _scalar_check(taken: tuple[type, ...], refused: tuple[type, ...], words: str) -> _Check:
    allowed = (*taken, type(None), pa.Scalar)

    def fits(found: type) -> bool:
        return issubclass(found, allowed) and not issubclass(found, refused)

    return lambda items: _require(items, fits, words)


def _coarse_check(times: _Check, step: int) -> _Check:
    """Arrow would cut what is no multiple of ``step`` µs."""

    def check(items: Sequence[Any]) -> None:
        times(items)
        if any(isinstance(one, dt.datetime) and one.microsecond % step for one in items):
            raise _Unlike

    return check


def _short_check(floats: _Check) -> _Check:
    """Arrow would make an infinity of what is too large."""

    def check(items: Sequence[Any]) -> None:
        floats(items)
        if not np.isinf(pa.array(items, pa.float32()).fill_null(0.0).to_numpy()).any():
            return
        numbers = [one for one in items if one is not None and not isinstance(one, pa.Scalar)]
        sizes = np.abs(np.array(numbers, np.float64))
        wrong = np.flatnonzero((sizes >= BEYOND_FLOAT) & np.isfinite(sizes))
        if len(wrong):
            raise _Unlike(
                f"expected a number, found {shown(numbers[wrong[0]])}, which is too large for a "
                f"float"
            )

    return check


def _list_check(type_: pa.DataType) -> _Check:
    elements = _check_of(type_.value_type)

    def check(items: Sequence[Any]) -> None:
        classes = _require(items, lambda found: not issubclass(found, _NO_ARRAYS), "a list")
        present = items if classes == {list} else [item for item in items if item is not None]
        elements(list(chain.from_iterable(present)))

    return check


def _map_check(type_: pa.DataType) -> _Check:
    keys, values = _check_of(type_.key_type), _check_of(type_.item_type)

    def check(items: Sequence[Any]) -> None:
        _require(
            items, lambda found: not issubclass(found, (str, bytes)), "a dict or a list of pairs"
        )
        dicts = [item for item in items if isinstance(item, dict)]
        pairs = [pair for item in items if isinstance(item, list | tuple) for pair in item]
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise _Unlike
        keys([*chain.from_iterable(dicts), *map(itemgetter(0), pairs)])
        values([*chain.from_iterable(map(dict.values, dicts)), *map(itemgetter(1), pairs)])

    return check


def _struct_check(type_: pa.DataType) -> _Check:
    fields = [(field.name, _check_of(field.type)) for field in type_]
    names = frozenset(name for name, _ in fields)

    def check(items: Sequence[Any]) -> None:
        rows = items
        if _require(items, _is_object, f"a dict of {', '.join(sorted(names))}") != {dict}:
            present = [
                item for item in items if item is not None and not isinstance(item, pa.Scalar)
            ]
            rows = [item if isinstance(item, dict) else item._asdict() for item in present]
        for name in set(chain.from_iterable(rows)) - names:
            near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(names))}"
            raise _Unlike(f"there is no field {shown(name)}; {hint}")
        for name, check_field in fields:
            check_field(of_field(name, rows))

    return check


def of_field(name: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))  # half the time of the other
    except KeyError:
        return [row.get(name) for row in rows]


def _is_object(found: type) -> bool:
    return issubclass(found, (dict, type(None), pa.Scalar)) or (
        issubclass(found, tuple) and hasattr(found, "_asdict")
    )


def _require(items: Sequence[Any], fits: Callable[[type], bool], words: str) -> set[type]:
    """The classes of the items; TypeError if one does not fit."""
    classes = set(map(type, items))
    wrong = [found for found in classes if not fits(found)]
    if wrong:
        bad = next(item for item in items if type(item) in wrong)
        raise _Unlike(f"expected {words}, found {type(bad).__name__} {shown(bad)}")
    return classes
