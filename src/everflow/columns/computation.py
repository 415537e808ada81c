"""`ArrowExpression`: kernels over the columns of a batch, one after the other. Pure.

A kernel gives exactly what Spark's expression gives, or raises (note 016).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Datum = Any
"""A column (``pa.Array``) or a constant (``pa.Scalar``)."""
_REGULAR = re.compile(r"[\\^$.|?*+()\[\]{}]")
"""Characters that a regular expression does not take literally."""


class NotInArrowError(Exception):
    """There is no kernel for this. The text says for what."""


class InexactError(Exception):
    """Arrow's result might differ from Spark's for these rows."""


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_signed_integer(kind)) or _is_floating(kind)


def _is_floating(kind: pa.DataType) -> bool:
    return bool(types.is_float32(kind) or types.is_float64(kind))


def _is_ordered(kind: pa.DataType) -> bool:
    """True if Arrow's order is Spark's, NaN apart: texts and bytes byte by byte."""
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


def _same_types(name: str, *arguments: Datum) -> pa.DataType:
    kind = arguments[0].type
    if not all(each.type.equals(kind) for each in arguments):
        listed = ", ".join(str(each.type) for each in arguments)
        raise NotInArrowError(f"{name} of {listed}")
    return kind


def _only(
    wanted: Callable[[pa.DataType], bool],
    name: str,
    *arguments: Datum,
) -> pa.DataType:
    kind = _same_types(name, *arguments)
    if not wanted(kind):
        raise NotInArrowError(f"{name} of {kind}")
    return kind


def _of(
    wanted: Callable[[pa.DataType], bool], name: str, function: Callable[..., Datum]
) -> Callable[..., Datum]:
    """A function of Arrow's as it is, for columns of one such type."""

    def kernel(*arguments: Datum) -> Datum:
        _only(wanted, name, *arguments)
        return function(*arguments)

    return kernel


# --- null tests and logic -------------------------------------------------------------------------


def _coalesce(*arguments: Datum) -> Datum:
    _same_types("coalesce", *arguments)
    if isinstance(arguments[0], pa.Array) and not arguments[0].null_count:
        return arguments[0]
    return pc.coalesce(*arguments)


def _only_where(live: Datum, values: Datum) -> Datum:
    """``values`` where ``live`` (never null) is true, else null."""
    columns = isinstance(live, pa.Array) and isinstance(values, pa.Array)
    if columns and live.true_count == len(live):
        return values
    return pc.if_else(live, values, pa.scalar(None, values.type))


def _choose(*arguments: Datum) -> Datum:
    """condition, value, condition, value, ..., value: conditions are never null."""
    _same_types("case", *arguments[1::2], arguments[-1])
    made = arguments[-1]
    for at in range(len(arguments) - 3, -1, -2):
        made = pc.if_else(arguments[at], arguments[at + 1], made)
    return made


# --- comparison -----------------------------------------------------------------------------------


def _compared(name: str) -> Callable[[Datum, Datum], Datum]:
    """A comparison as in Spark: NaN is the largest number and equal to itself."""
    function: Callable[[Datum, Datum], Datum] = getattr(pc, name)

    def kernel(left: Datum, right: Datum) -> Datum:
        kind = _only(_is_ordered, name, left, right)
        made = function(left, right)
        if not _is_floating(kind):
            return made
        if not (_has_nan(left) or _has_nan(right)):
            return made
        left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
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


def _has_nan(numbers: Datum) -> bool:
    if isinstance(numbers, pa.Scalar):
        number = numbers.as_py()
        return number is not None and math.isnan(number)
    return bool(pc.is_nan(numbers).true_count)


_equal = _compared("equal")


def _null_safe_equal(left: Datum, right: Datum) -> Datum:
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(both, pc.coalesce(_equal(left, right), False))


def _is_in(value: Datum, *listed: Datum) -> Datum:
    made = _equal(value, listed[0])
    for each in listed[1:]:
        made = pc.or_kleene(made, _equal(value, each))
    return made


# --- numbers --------------------------------------------------------------------------------------


def _arithmetic(name: str) -> Callable[..., Datum]:
    """Arithmetic: checked for integers, as in ANSI mode; IEEE 754 for floating numbers."""
    plain, checked = getattr(pc, name), getattr(pc, f"{name}_checked")

    def kernel(*arguments: Datum) -> Datum:
        kind = _only(_is_number, name, *arguments)
        made: Datum = (plain if _is_floating(kind) else checked)(*arguments)
        return made

    return kernel


def _cast(kind: pa.DataType, values: Datum) -> Datum:
    there = values.type
    if there.equals(kind):
        return values
    if types.is_signed_integer(there) and types.is_signed_integer(kind):
        return values.cast(kind)
    if types.is_float32(kind) and types.is_integer(there) and not _fits_float(values):
        # Spark leaves a cast out where one to a wider type follows.
        raise NotInArrowError(f"cast of {there} as {kind}")
    if _is_number(there) and _is_floating(kind):
        return pc.cast(values, kind, safe=False)
    if _is_floating(there) and types.is_signed_integer(kind):
        return pc.trunc(values).cast(kind)
    if (types.is_signed_integer(there) or types.is_boolean(there)) and types.is_string(kind):
        return values.cast(kind)
    if types.is_string(there) and types.is_binary(kind):
        return values.cast(kind)
    raise NotInArrowError(f"cast of {there} as {kind}")


def _fits_float(integers: Datum) -> bool:
    """True if integers become the same numbers in 32 bits."""
    if isinstance(integers, pa.Scalar):
        return not integers.is_valid or abs(integers.as_py()) <= 1 << 24
    return bool(integers.type.bit_width <= 16)


def widens(there: pa.DataType, kind: pa.DataType) -> bool:
    """True if a cast between these types of numbers cannot fail."""
    return _is_floating(kind) or not _is_number(kind) or there.equals(kind)


# --- text -----------------------------------------------------------------------------------------


def _predicate(name: str, function: Callable[..., Datum]) -> Callable[[Datum, Datum], Datum]:
    def kernel(text: Datum, pattern: Datum) -> Datum:
        _only(types.is_string, name, text, pattern)
        if not isinstance(pattern, pa.Scalar) or not pattern.is_valid:
            raise NotInArrowError(f"{name} of what is no constant")
        return function(text, pattern.as_py())

    return kernel


def _of_ascii(name: str, function: Callable[[Datum], Datum]) -> Callable[[Datum], Datum]:
    """Letters beyond ASCII change their case by other tables in Java than in Arrow."""

    def kernel(text: Datum) -> Datum:
        _only(types.is_string, name, text)
        if isinstance(text, pa.Scalar):
            raise NotInArrowError(f"{name} of a constant")
        if pc.all(pc.string_is_ascii(text)).as_py() is False:
            raise InexactError(name)
        return function(text)

    return kernel


def _split(text: Datum, pattern: Datum, limit: Datum) -> Datum:
    _only(types.is_string, "split", text, pattern)
    constant = isinstance(pattern, pa.Scalar) and isinstance(limit, pa.Scalar)
    if not constant or not pattern.as_py() or limit.as_py() != -1:
        raise NotInArrowError("split with a limit, or by what is no constant")
    if _REGULAR.search(pattern.as_py()):
        raise NotInArrowError("split by a regular expression")
    return pc.split_pattern(text, pattern=pattern.as_py())


def _field(ordinal: int, struct: Datum) -> Datum:
    if isinstance(struct, pa.StructArray) and not struct.null_count:
        return struct.field(ordinal)
    return pc.struct_field(struct, [ordinal])


KERNELS: Mapping[str, Callable[..., Datum]] = {
    "is_null": pc.is_null,
    "is_valid": pc.is_valid,
    "is_nan": _of(_is_floating, "isnan", lambda values: pc.coalesce(pc.is_nan(values), False)),
    "and": _of(types.is_boolean, "and", pc.and_kleene),
    "or": _of(types.is_boolean, "or", pc.or_kleene),
    "not": _of(types.is_boolean, "not", pc.invert),
    "coalesce": _coalesce,
    "only_where": _only_where,
    "choose": _choose,
    "equal": _equal,
    "null_safe_equal": _null_safe_equal,
    **{name: _compared(name) for name in ("less", "less_equal", "greater", "greater_equal")},
    "in": _is_in,
    **{name: _arithmetic(name) for name in ("add", "subtract", "multiply", "negate", "abs")},
    "divide": _of(types.is_float64, "/", pc.divide_checked),
    "cast": _cast,
    "starts_with": _predicate("startswith", lambda text, part: pc.starts_with(text, part)),
    "ends_with": _predicate("endswith", lambda text, part: pc.ends_with(text, part)),
    "contains": _predicate("contains", lambda text, part: pc.match_substring(text, part)),
    "length": _of(types.is_string, "length", pc.utf8_length),
    "concat": _of(
        types.is_string, "concat", lambda *texts: pc.binary_join_element_wise(*texts, "")
    ),
    "upper": _of_ascii("upper", pc.ascii_upper),
    "lower": _of_ascii("lower", pc.ascii_lower),
    "trim": _of(types.is_string, "trim", lambda text: pc.utf8_trim(text, characters=" ")),
    "split": _split,
    "field": _field,
}
"""Kernels by name. Arguments that are no columns come first."""

NEVER_NULL = frozenset({"is_null", "is_valid", "is_nan", "null_safe_equal"})
NULL_OF_NULLS = frozenset(
    {"and", "or", "not", "equal", "less", "less_equal", "greater", "greater_equal", "in"}
    | {"add", "subtract", "multiply", "negate", "abs", "divide", "cast", "choose"}
    | {"starts_with", "ends_with", "contains", "length", "concat", "upper", "lower", "trim"}
)
"""Null only where an argument is."""


class LeftToSpark(Exception):
    """Arrow has no result for these rows that is sure to be Spark's. The text says why."""


@dataclass(frozen=True)
class Operation:
    """A kernel of `KERNELS` (or ``literal``, ``struct``) over what stands in ``arguments``."""

    kernel: str
    arguments: tuple[int, ...]
    parameter: Any = None


@dataclass(frozen=True, kw_only=True)
class ArrowExpression:
    """A Column on Arrow, computed from the columns that it ``reads`` (their names and types, in
    order); picklable. A place below their number is such a column, each further place the result
    of an operation. ``result``: the place of the Column, of ``type``. ``done``: for each operation
    the places that none after it reads. ``sure``: none of the operations can fail."""

    reads: pa.Schema
    operations: tuple[Operation, ...]
    result: int
    type: pa.DataType
    done: tuple[tuple[int, ...], ...]
    sure: bool

    def run(self, columns: Sequence[pa.Array], count: int) -> pa.Array:
        """The column, for ``count`` rows of the columns that it reads. Raises LeftToSpark."""
        places: list[Datum | None] = list(columns)
        try:
            for operation, done in zip(self.operations, self.done, strict=True):
                arguments = [places[at] for at in operation.arguments]
                places.append(run_operation(operation, arguments, count))
                for at in done:
                    places[at] = None
            made = _column(places[self.result], self.type, count)
        except Exception as error:  # whatever Arrow stumbles over, Spark computes
            raise LeftToSpark(f"{type(error).__name__}: {error}") from error
        if len(made) != count:
            raise LeftToSpark(f"Arrow made another number of rows than {count}")
        return made


def run_operation(operation: Operation, arguments: Sequence[Any], count: int) -> Datum:
    if operation.kernel == "literal":
        return operation.parameter
    if operation.kernel == "struct":
        return _struct(operation.parameter, arguments, count)
    kernel = KERNELS[operation.kernel]
    return (
        kernel(*arguments)
        if operation.parameter is None
        else kernel(operation.parameter, *arguments)
    )


def _struct(fields: tuple[pa.Field, ...], parts: Sequence[Datum], count: int) -> pa.Array:
    """The fields, and behind them, if there is one more, where the struct is not null."""
    columns = [_column(each, f.type, count) for each, f in zip(parts, fields, strict=False)]
    mask = None
    if len(parts) > len(fields):
        there = _column(parts[-1], pa.bool_(), count)
        mask = None if there.true_count == count else pc.invert(there)
    return pa.StructArray.from_arrays(columns, fields=list(fields), mask=mask)


def _column(value: Datum | None, kind: pa.DataType, count: int) -> pa.Array:
    assert value is not None
    column = pa.repeat(value, count) if isinstance(value, pa.Scalar) else value
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type.equals(kind) else column.cast(kind)


_CAN_FAIL = frozenset({"add", "subtract", "multiply", "negate", "abs", "divide", "cast"})
_MAY_BE_INEXACT = frozenset({"upper", "lower", "concat", "split"})


class ArrowExpressionBuilder:
    """Operations are named by the place of their result."""

    def __init__(self, reads: pa.Schema) -> None:
        self._reads = reads
        self._empty: list[Datum] = [pa.array([], kind) for kind in reads.types]
        self._inputs = len(self._empty)
        self._operations: list[Operation] = []
        self._known: dict[object, int] = {}
        self._never_null: set[int] = set()
        self._unsure: set[Operation] = set()
        self._implied: dict[int, frozenset[int]] = {}
        """Conditions that are true wherever a condition is."""

    def type_of(self, place: int) -> pa.DataType:
        return self._empty[place].type

    def never_null(self, place: int) -> bool:
        return place in self._never_null

    def literal(self, value: Any, kind: pa.DataType) -> int:
        try:
            scalar = pa.scalar(value, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise NotInArrowError(f"the constant {value!r} of type {kind}") from error
        return self._constant(scalar)

    def _constant(self, scalar: pa.Scalar) -> int:
        # 0.0 is not -0.0, nor 1 True
        known = ("literal", str(scalar.type), repr(scalar.as_py()))
        return self._made(Operation("literal", (), scalar), known, scalar.is_valid)

    def struct(self, fields: Sequence[tuple[str, int]], valid: int | None) -> int:
        """A struct, null where ``valid`` is false."""
        kinds = tuple(pa.field(name, self.type_of(place)) for name, place in fields)
        places = [place for _, place in fields] + ([] if valid is None else [valid])
        operation = Operation("struct", tuple(places), kinds)
        return self._made(operation, operation, valid is None)

    def call(
        self, kernel: str, *arguments: int, parameter: Any = None, guard: int | None = None
    ) -> int:
        """A kernel of `KERNELS`; what fails there must not where ``guard`` is false. Raises
        NotInArrowError where it is not for these types."""
        fails = self._can_fail(kernel, arguments, parameter)
        if fails and guard is not None and kernel in _CAN_FAIL:
            arguments = (*arguments[:-1], self.only_where(guard, arguments[-1]))
        operation = Operation(kernel, arguments, parameter)
        if fails:
            self._unsure.add(operation)
        never_null = kernel in NEVER_NULL or (
            kernel in NULL_OF_NULLS and all(map(self.never_null, arguments))
        )
        return self._made(operation, operation, never_null)

    def _can_fail(self, kernel: str, arguments: Sequence[int], parameter: Any) -> bool:
        if kernel not in _CAN_FAIL:
            return kernel in _MAY_BE_INEXACT
        kind = self.type_of(arguments[-1])
        if kernel == "cast":
            return not widens(kind, parameter)
        return kernel == "divide" or not pa.types.is_floating(kind)

    def all_of(self, *conditions: int) -> int:
        """True where all conditions are, none of which is ever null."""
        made, *others = dict.fromkeys(conditions)
        for other in others:
            implied = self._implied.get(made, frozenset()) | self._implied.get(other, frozenset())
            made = self.call("and", *sorted((made, other)))
            self._implied[made] = implied | {*conditions}
        return made

    def coalesce(self, *arguments: int) -> int:
        """The first that is not null."""
        needed: list[int] = []
        for place in arguments:
            needed.append(place)
            if self.never_null(place):
                break
        if len(needed) == 1:
            return needed[0]
        operation = Operation("coalesce", tuple(needed))
        return self._made(operation, operation, self.never_null(needed[-1]))

    def truth(self, condition: int, unknown: bool = False) -> int:
        """A condition, with null as ``unknown``."""
        return self.coalesce(condition, self.literal(unknown, pa.bool_()))

    def only_where(self, live: int, place: int) -> int:
        inside = self._operation(place)
        if inside is not None and inside.kernel == "only_where":
            already = inside.arguments[0]
            if already == live or already in self._implied.get(live, frozenset()):
                return self.only_where(live, inside.arguments[1])
        operation = Operation("only_where", (live, place))
        return self._made(operation, operation, False)

    def _operation(self, place: int) -> Operation | None:
        return None if place < self._inputs else self._operations[place - self._inputs]

    def _made(self, operation: Operation, known: object, never_null: bool) -> int:
        place = self._known.get(known)
        if place is not None:
            return place
        arguments = [self._empty[at] for at in operation.arguments]
        try:
            empty = run_operation(operation, arguments, 0)
        except (pa.ArrowException, InexactError, TypeError) as error:
            kinds = ", ".join(str(each.type) for each in arguments)
            raise NotInArrowError(f"{operation.kernel} of {kinds}: {error}") from error
        if arguments and all(isinstance(each, pa.Scalar) for each in (*arguments, empty)):
            return self._constant(empty)
        place = self._inputs + len(self._operations)
        self._operations.append(operation)
        self._empty.append(empty)
        self._known[known] = place
        if never_null:
            self._never_null.add(place)
        return place

    def build(self, result: int, type_: pa.DataType) -> ArrowExpression:
        if not _alike(self.type_of(result), type_):
            raise NotInArrowError(f"{type_} made of {self.type_of(result)}")
        needed: set[int] = set()
        # What may fail is computed also where nothing is made of it (`CAST(x AS tinyint) IS NOT
        # NULL` of an x that is never null): Spark does so, and fails.
        unsure = [self._known[operation] for operation in self._unsure if operation in self._known]
        wanted = [result, *unsure]
        while wanted:
            place = wanted.pop()
            operation = self._operation(place)
            if place not in needed and operation is not None:
                wanted += operation.arguments
            needed.add(place)
        places = {place: place for place in range(self._inputs)}
        kept: list[Operation] = []
        for at, operation in enumerate(self._operations, self._inputs):
            if at in needed:
                places[at] = self._inputs + len(kept)
                arguments = tuple(places[each] for each in operation.arguments)
                kept.append(Operation(operation.kernel, arguments, operation.parameter))
        last = {place: at for at, operation in enumerate(kept) for place in operation.arguments}
        done = tuple(
            tuple({one for one in operation.arguments if last[one] == at} - {places[result]})
            for at, operation in enumerate(kept)
        )
        return ArrowExpression(
            reads=self._reads,
            operations=tuple(kept),
            result=places[result],
            type=type_,
            done=done,
            sure=not any(self._operation(place) in self._unsure for place in needed),
        )


def presence(kind: pa.DataType) -> ArrowExpression:
    """``CASE WHEN value IS NOT NULL THEN true END``: what is read of records that are only
    counted."""
    builder = ArrowExpressionBuilder(pa.schema([("value", kind)]))
    live = builder.call("is_valid", 0)
    made = builder.only_where(live, builder.literal(True, pa.bool_()))
    return builder.build(made, pa.bool_())


def _alike(made: pa.DataType, wanted: pa.DataType) -> bool:
    """The same but for the names of a list's elements and for what may be null."""
    if pa.types.is_list(made) and pa.types.is_list(wanted):
        return _alike(made.value_type, wanted.value_type)
    if pa.types.is_struct(made) and pa.types.is_struct(wanted):
        return [field.name for field in made] == [field.name for field in wanted] and all(
            _alike(one.type, other.type) for one, other in zip(made, wanted, strict=True)
        )
    return bool(made.equals(wanted))
