"""`ComputationBuilder`: puts a `Computation` together, each operation once. Pure.

Every operation runs at once on columns without rows: so types are known, and what no kernel takes
raises while the computation is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from everflow.columns.computation import Computation, Operation, Twin, run_operation
from everflow.columns.kernels import (
    NEVER_NULL,
    NULL_OF_NULLS,
    Datum,
    InexactError,
    NoTwinError,
    widens,
)

_CAN_FAIL = frozenset({"add", "subtract", "multiply", "negate", "abs", "divide", "cast"})
_MAY_BE_INEXACT = frozenset({"upper", "lower", "concat", "split"})


class ComputationBuilder:
    """Columns of these types come in. Operations are named by the place of what they make."""

    def __init__(self, inputs: Iterable[pa.DataType]) -> None:
        self._empty: list[Datum] = [pa.array([], kind) for kind in inputs]
        self._inputs = len(self._empty)
        self._operations: list[Operation] = []
        self._known: dict[object, int] = {}
        self._never_null: set[int] = set()
        self._unsure: set[Operation] = set()
        self._implied: dict[int, frozenset[int]] = {}
        """Of a condition, those that are true where it is."""

    def type_of(self, place: int) -> pa.DataType:
        """Of what stands there."""
        return self._empty[place].type

    def never_null(self, place: int) -> bool:
        """Whether what stands there is known to have no nulls."""
        return place in self._never_null

    def literal(self, value: Any, kind: pa.DataType) -> int:
        """A constant. Raises NoTwinError for a value that is not of the type."""
        try:
            scalar = pa.scalar(value, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise NoTwinError(f"the constant {value!r} of type {kind}") from error
        return self._constant(scalar)

    def _constant(self, scalar: pa.Scalar) -> int:
        """What an operation made of constants alone."""
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
        """A kernel of `KERNELS`. Spark does not compute it where ``guard`` is false, so that what
        fails there must not.

        Raises NoTwinError where it is not for these types.
        """
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
        """Of conditions that are never null, where all are true."""
        made, *others = dict.fromkeys(conditions)
        for other in others:
            implied = self._implied.get(made, frozenset()) | self._implied.get(other, frozenset())
            made = self.call("and", *sorted((made, other)))
            self._implied[made] = implied | {*conditions}
        return made

    def coalesce(self, *given: int) -> int:
        """The first that is not null."""
        needed: list[int] = []
        for place in given:
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
        """What stands in ``place`` where ``live`` (never null) is true, else null."""
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
        given = [self._empty[at] for at in operation.arguments]
        try:
            empty = run_operation(operation, given, 0)
        except (pa.ArrowException, InexactError, TypeError) as error:
            kinds = ", ".join(str(each.type) for each in given)
            raise NoTwinError(f"{operation.kernel} of {kinds}: {error}") from error
        if given and all(isinstance(each, pa.Scalar) for each in (*given, empty)):
            return self._constant(empty)
        place = self._inputs + len(self._operations)
        self._operations.append(operation)
        self._empty.append(empty)
        self._known[known] = place
        if never_null:
            self._never_null.add(place)
        return place

    def build(self, results: Sequence[int], types: Sequence[pa.DataType]) -> Computation:
        """What makes ``results``. Raises NoTwinError where they are not of ``types``."""
        for place, kind in zip(results, types, strict=True):
            if not _alike(self.type_of(place), kind):
                raise NoTwinError(f"{kind} made of {self.type_of(place)}")
        needed: set[int] = set()
        # What may fail is computed also where nothing is made of it (`CAST(x AS tinyint) IS NOT
        # NULL` of an x that is never null): Spark does so, and fails.
        unsure = [self._known[operation] for operation in self._unsure if operation in self._known]
        wanted = [*results, *unsure]
        while wanted:
            place = wanted.pop()
            operation = self._operation(place)
            if place not in needed and operation is not None:
                wanted += operation.arguments
            needed.add(place)
        sure = not any(self._operation(place) in self._unsure for place in needed)
        return _renumbered(self._inputs, self._operations, needed, results, types, sure)


def presence(kind: pa.DataType) -> Twin:
    """``CASE WHEN value IS NOT NULL THEN true END`` over a ``value`` of this type: what is read of
    records that are only counted, without asking Spark for it."""
    builder = ComputationBuilder([kind])
    live = builder.call("is_valid", 0)
    made = builder.only_where(live, builder.literal(True, pa.bool_()))
    return Twin(pa.schema([("value", kind)]), builder.build([made], [pa.bool_()]))


def _alike(made: pa.DataType, wanted: pa.DataType) -> bool:
    """The same but for the names of a list's elements and for what may be null."""
    if pa.types.is_list(made) and pa.types.is_list(wanted):
        return _alike(made.value_type, wanted.value_type)
    if pa.types.is_struct(made) and pa.types.is_struct(wanted):
        return [field.name for field in made] == [field.name for field in wanted] and all(
            _alike(one.type, other.type) for one, other in zip(made, wanted, strict=True)
        )
    return bool(made.equals(wanted))


def _renumbered(
    inputs: int,
    operations: Sequence[Operation],
    needed: set[int],
    results: Sequence[int],
    types: Sequence[pa.DataType],
    sure: bool,
) -> Computation:
    """Only what is needed, with the places where each is let go."""
    places = {place: place for place in range(inputs)}
    kept: list[Operation] = []
    for at, operation in enumerate(operations, inputs):
        if at in needed:
            places[at] = inputs + len(kept)
            arguments = tuple(places[each] for each in operation.arguments)
            kept.append(Operation(operation.kernel, arguments, operation.parameter))
    final = tuple(places[place] for place in results)
    last = {place: at for at, operation in enumerate(kept) for place in operation.arguments}
    done = tuple(
        tuple({place for place in operation.arguments if last[place] == at}.difference(final))
        for at, operation in enumerate(kept)
    )
    return Computation(
        inputs=inputs,
        operations=tuple(kept),
        results=final,
        types=tuple(types),
        done=done,
        sure=sure,
    )
