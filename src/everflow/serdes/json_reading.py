"""JSON texts -> columns, record by record: the truth about what a text means (design note 015).

A text is parsed to Python values; the values of each field become a column together. What does not
fit is noted with its row, and null in the column.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from everflow.serdes.base import SerdeError
from everflow.user_texts import shown

Faults = dict[int, SerdeError]
"""Why a row cannot be read, by row, in order."""
_Unfit = dict[int, str]
"""What does not fit, by row."""
_Column = Callable[[Sequence[Any], _Unfit], pa.Array]
_One = Callable[[Any], Any]
_Parse = Callable[[bytes], Any]

_DIGITS = decimal.Context(prec=76)  # the default of 28 digits is fewer than decimal(38) has
_BEYOND_FLOAT = float(2**128 - 2**103)
"""From here on a number is rounded to infinity in 32 bits."""
_EXACT = 2**53
"""Up to here a double is the number that was written, if that was whole."""
# years that Python has, too
_DAY = r"^[12]\d{3}-\d{2}-\d{2}$"
_MOMENT = r"^[12]\d{3}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{3}|\.\d{6})?Z?$"
_FEW = 100
"""So many times cost as much at once as one by one."""
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError)


def read_rows(rows: Sequence[bytes | None], type_: pa.DataType) -> tuple[pa.Array, Faults]:
    """A column of ``type_``, null where there are no bytes, where the text is ``null`` and where
    there is a fault."""
    parse, read = _reading(type_)
    faults: Faults = {}
    try:
        values = [None if row is None else parse(row) for row in rows]
    except json.JSONDecodeError:  # orjson's is a subclass
        values = _parse_each(rows, parse, faults)
    unfit: _Unfit = {}
    column = read(values, unfit)
    if not unfit:
        return column, faults
    for row, text in unfit.items():
        faults[row] = SerdeError(f"JSON that does not fit {type_}: {text}")
    good = np.ones(len(rows), np.bool_)
    good[list(unfit)] = False
    places = pa.array(np.arange(len(rows)), mask=~good)
    return column.take(places), dict(sorted(faults.items()))


@lru_cache(maxsize=256)
def _reading(type_: pa.DataType) -> tuple[_Parse, _Column]:
    return _parse_exactly if _has_decimal(type_) else orjson.loads, reader(type_)


def _parse_each(rows: Sequence[bytes | None], parse: _Parse, faults: Faults) -> list[Any]:
    values: list[Any] = [None] * len(rows)
    for index, row in enumerate(rows):
        try:
            values[index] = None if row is None else parse(row)
        except json.JSONDecodeError as error:
            faults[index] = SerdeError(f"not JSON: {error}")
    return values


def _parse_exactly(row: bytes) -> Any:
    """The standard library's parser: orjson reads every fraction as a double, which loses digits of
    decimals. What is JSON, orjson says."""
    orjson.loads(row)
    try:
        return json.loads(row, parse_float=decimal.Decimal)
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", "", 0) from error


def _has_decimal(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return _has_decimal(type_.key_type) or _has_decimal(type_.item_type)
    if pa.types.is_nested(type_):
        return any(_has_decimal(type_.field(index).type) for index in range(type_.num_fields))
    return bool(pa.types.is_decimal(type_))


def reader(type_: pa.DataType) -> _Column:
    """Makes a column of what JSON holds."""
    if pa.types.is_struct(type_):
        return _struct_reader(type_)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _list_reader(type_)
    if pa.types.is_map(type_):
        return _map_reader(type_)
    if pa.types.is_timestamp(type_) or pa.types.is_date32(type_):
        return _time_reader(type_)
    return _scalar_reader(type_, *_scalar(type_))


def _scalar(type_: pa.DataType) -> tuple[tuple[type, ...], _One]:
    """The classes that Arrow takes as they are, and what is done with a value of any other."""
    if pa.types.is_timestamp(type_):
        return (), _moment  # Arrow takes one without zone for UTC
    if pa.types.is_date(type_):
        return (), dt.date.fromisoformat
    if pa.types.is_decimal(type_):
        quantum = decimal.Decimal(1).scaleb(-type_.scale)
        return (), lambda value: decimal.Decimal(str(value)).quantize(quantum, context=_DIGITS)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return (), lambda value: base64.b64decode(value, validate=True)
    if pa.types.is_integer(type_):
        return (int,), _integer  # Arrow would cut off what is behind the point
    if pa.types.is_float64(type_):
        return (float,), _number
    if pa.types.is_floating(type_):
        return (), _short_number
    if pa.types.is_boolean(type_):
        return (bool,), _only(bool, "true or false")
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return (str,), _only(str, "text")
    return (), lambda value: value  # Arrow decides


def _scalar_reader(type_: pa.DataType, taken: tuple[type, ...], one: _One) -> _Column:
    allowed = {type(None), *taken}

    def column(values: Sequence[Any], faults: _Unfit) -> pa.Array:
        if not allowed.issuperset(map(type, values)):
            try:
                values = [v if type(v) in allowed else one(v) for v in values]
            except _UNFIT:
                values = _each(values, one, faults)
        return _array(values, 0, type_, faults)

    return column


def _time_reader(type_: pa.DataType) -> _Column:
    by_value = _scalar_reader(type_, *_scalar(type_))

    def column(values: Sequence[Any], faults: _Unfit) -> pa.Array:
        if len(values) >= _FEW and {str, type(None)}.issuperset(map(type, values)):
            found = times(pa.array(values, pa.string()), type_)
            if found is not None:
                return found
        return by_value(values, faults)

    return column


def times(texts: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Dates or timestamps; None where one of the texts is none, or written in a way in which Arrow
    does not read it as Python does."""
    usual = _DAY if pa.types.is_date(type_) else _MOMENT
    if not pc.all(pc.match_substring_regex(texts, usual), min_count=0).as_py():
        return None
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:
        return None


def _array(values: Sequence[Any], start: int, type_: pa.DataType, faults: _Unfit) -> pa.Array:
    """What Arrow refuses (an integer beyond its type, say) is found by halves, a fault and null.
    ``start`` is the row of the first value."""
    try:
        return pa.array(values, type_)
    except _UNFIT as error:
        if len(values) == 1:
            faults.setdefault(start, str(error))
            return pa.nulls(1, type_)
    half = len(values) // 2
    return pa.concat_arrays(
        [
            _array(values[:half], start, type_, faults),
            _array(values[half:], start + half, type_, faults),
        ]
    )


def _each(values: Sequence[Any], one: _One, faults: _Unfit) -> list[Any]:
    """``one`` of every value; what it refuses is a fault, and null."""
    done: list[Any] = [None] * len(values)
    for index, value in enumerate(values):
        try:
            done[index] = None if value is None else one(value)
        except _UNFIT as error:
            faults.setdefault(index, str(error))
    return done


def _of_class(values: Sequence[Any], class_: type, one: _One, faults: _Unfit) -> Sequence[Any]:
    """``values``, without those that are of another class."""
    classes = set(map(type, values))
    return values if classes <= {class_, type(None)} else _each(values, one, faults)


def _struct_reader(type_: pa.DataType) -> _Column:
    fields, readers = list(type_), [(field.name, reader(field.type)) for field in type_]
    an_object = _only(dict, "an object")

    def column(values: Sequence[Any], faults: _Unfit) -> pa.Array:
        rows = _of_class(values, dict, an_object, faults)
        if not fields:
            return pa.array(rows, type_)
        nulls = None
        if not all(rows):
            nulls = pa.array([row is None for row in rows])
            rows = [{} if row is None else row for row in rows]
        columns = [read(_of_field(name, rows), faults) for name, read in readers]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=nulls)

    return column


def _of_field(name: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))  # half the time of the other
    except KeyError:
        return [row.get(name) for row in rows]


def _list_reader(type_: pa.DataType) -> _Column:
    element = reader(type_.value_type)
    large = pa.types.is_large_list(type_)
    arrays, offset = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
    an_array = _only(list, "an array")  # Arrow would take the letters of a text

    def column(values: Sequence[Any], faults: _Unfit) -> pa.Array:
        rows = _of_class(values, list, an_array, faults)
        inner: _Unfit = {}
        items = element(list(chain.from_iterable(row for row in rows if row)), inner)
        if inner:
            _fault_owners(inner, rows, faults)
        return arrays.from_arrays(_starts(rows, offset), items, type=type_)

    return column


def _map_reader(type_: pa.DataType) -> _Column:
    names = _scalar_reader(type_.key_type, *_name(type_.key_type))
    item = reader(type_.item_type)
    an_object = _only(dict, "an object")

    def column(values: Sequence[Any], faults: _Unfit) -> pa.Array:
        rows = _of_class(values, dict, an_object, faults)
        present = [row for row in rows if row]
        inner: _Unfit = {}
        keys = names(list(chain.from_iterable(present)), inner)
        items = item(list(chain.from_iterable(row.values() for row in present)), inner)
        if inner:  # a key that does not fit would be null
            bad = _fault_owners(inner, rows, faults)
            return column([None if at in bad else row for at, row in enumerate(rows)], faults)
        return pa.MapArray.from_arrays(_starts(rows, pa.int32()), keys, items, type=type_)

    return column


def _name(type_: pa.DataType) -> tuple[tuple[type, ...], _One]:
    """A key of a map is text in JSON, whatever its type."""
    return ((), int) if pa.types.is_integer(type_) else _scalar(type_)


def _starts(rows: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Where each row's items begin, null for null rows, with the end at last."""
    starts: list[int | None] = list(accumulate((len(row or ()) for row in rows), initial=0))
    if not all(rows):
        starts[:-1] = [None if row is None else at for row, at in zip(rows, starts, strict=False)]
    return pa.array(starts, type_)


def _fault_owners(inner: _Unfit, rows: Sequence[Any], faults: _Unfit) -> set[int]:
    """The rows whose items do not fit; ``inner`` numbers all items of all rows."""
    owners = np.repeat(np.arange(len(rows)), [len(row or ()) for row in rows])
    for index, text in sorted(inner.items()):
        faults.setdefault(int(owners[index]), text)
    return {int(owners[index]) for index in inner}


def _only(class_: type, words: str) -> _One:
    def one(value: Any) -> Any:
        if type(value) is not class_:
            raise TypeError(f"expected {words}, found {shown(value, 100)}")
        return value

    return one


def _moment(value: Any) -> dt.datetime:
    """In UTC, unless it has no zone. OverflowError where the year is then none of 1 to 9999."""
    if not isinstance(value, str):
        raise TypeError(f"expected a time as text, found {shown(value, 100)}")
    parsed = dt.datetime.fromisoformat(value[:-1] + "+00:00" if value.endswith("Z") else value)
    return parsed.astimezone(dt.timezone.utc) if parsed.tzinfo else parsed


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        raise TypeError(f"expected a number, found {shown(value, 100)}")
    return float(value)  # the nearest; orjson refused what is too large for any


def _short_number(value: Any) -> float:
    number = _number(value)
    if abs(number) >= _BEYOND_FLOAT:
        raise TypeError(f"{value} is too large for a float")
    return number


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    number = _number(value)
    if not number.is_integer():
        raise TypeError(f"expected an integer, found {value}")
    if abs(number) > _EXACT:
        raise TypeError(f"{value} is too large to be read exactly")
    return int(number)
