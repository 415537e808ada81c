"""Brings functions of the user to one shape, ``fn(key, value)``, in objects that workers import.

A function with one required positional parameter gets the value only, one with two gets key and
value. Parameters with defaults do not count, ``*args`` counts as two. Built-in functions whose
signature Python cannot tell (``int``, ``str``) get the value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from everflow.errors import TopologyError

Function = Callable[..., Any]


def required_parameters(fn: Function) -> int | None:
    """Number of positional parameters without default; 2 for ``*args``; None where Python cannot
    tell."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 2
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for p in parameters if p.kind in positional and p.default is p.empty)


def key_value_function(fn: Function, operator: str, where: str | None) -> Function:
    """``fn`` as a function of key and value; TopologyError if it takes neither one nor two
    arguments."""
    count = required_parameters(fn)
    if count == 2:
        return fn
    if count in (None, 1):
        return ValueOnly(fn)
    raise TopologyError(
        (
            f"{operator} calls its function with (value) or (key, value); {function_name(fn)} "
            f"takes "
            f"{count} arguments"
        ),
        where=where,
    )


def check_parameters(fn: Function, names: Sequence[str], operator: str, where: str | None) -> None:
    """TopologyError unless ``fn`` can be called with as many arguments as there are ``names``."""
    refuse_pyspark(fn, operator, where)
    if not callable(fn):
        raise TopologyError(
            f"{operator} takes a function of ({', '.join(names)}), found {fn!r}", where=where
        )
    count = required_parameters(fn)
    try:
        inspect.signature(fn).bind(*names)
    except TypeError:
        raise TopologyError(
            (
                f"{operator} calls its function with ({', '.join(names)}); {function_name(fn)} "
                f"takes "
                f"{count} arguments"
            ),
            where=where,
        ) from None
    except ValueError:
        return


def refuse_pyspark(given: object, operator: str, where: str | None) -> None:
    """TopologyError for a function of PySpark (``F.upper``), or what ``F.udf`` or ``F.pandas_udf``
    made of the user's: they take Columns, not values."""
    if isinstance(
        getattr(given, "evalType", None), int
    ):  # a Column has every attribute, as a Column
        name = function_name(getattr(given, "func"))  # noqa: B009
        kind = getattr(given, "returnType", None)
        one_result = operator in ("map_values", "flat_map_values", "select_key", "group_by")
        returns = f", returns={kind.simpleString()!r}" if kind is not None and one_result else ""
        function = name if name.isidentifier() else "the_function"
        part = operator.partition(": ")[2]
        written = f"{part}={function}" if part else f"{operator}({function}{returns})"
        raise TopologyError(
            f"{operator} found a PySpark UDF; call it with Columns, as in "
            f"{function}(F.col('value')), or pass the Python function itself: {written}",
            where=where,
        )
    if callable(given) and str(getattr(given, "__module__", "")).startswith("pyspark.sql"):
        name = function_name(given)
        raise TopologyError(
            (
                f"{operator} found PySpark's function {name} itself; call it: "
                f"{operator}(F.{name}(...))"
            ),
            where=where,
        )


def function_name(fn: Function) -> str:
    """A readable name of ``fn``."""
    return str(getattr(fn, "__name__", type(fn).__name__))


@dataclass(frozen=True)
class ValueOnly:
    """Calls a function of the value."""

    fn: Function

    def __call__(self, key: Any, value: Any) -> Any:
        return self.fn(value)

    @property
    def __name__(self) -> str:
        return function_name(self.fn)


@dataclass(frozen=True)
class TableFilter:
    """A table's filter as a value mapper: what fails becomes a tombstone; tombstones pass
    unasked."""

    predicate: Function
    negate: bool

    def __call__(self, key: Any, value: Any) -> Any:
        if value is None or bool(self.predicate(key, value)) == self.negate:
            return None
        return value


@dataclass(frozen=True)
class TableMapper:
    """A table's value mapper: tombstones pass unasked."""

    fn: Function

    def __call__(self, key: Any, value: Any) -> Any:
        return None if value is None else self.fn(key, value)


@dataclass(frozen=True)
class TablePairs:
    """A table's mapper to key and value: tombstones have neither, unasked."""

    fn: Function

    def __call__(self, key: Any, value: Any) -> Any:
        return (None, None) if value is None else self.fn(key, value)


@dataclass(frozen=True)
class ForeignKeyOf:
    """A foreign key's function as one that gives it beside the value."""

    fn: Function

    def __call__(self, key: Any, value: Any) -> Any:
        return {"fk": self.fn(key, value), "value": value}

    @property
    def __name__(self) -> str:
        return function_name(self.fn)


@dataclass(frozen=True)
class OfSides:
    """A joiner as a function of key and joined value."""

    fn: Function
    keyed: bool

    def __call__(self, key: Any, value: Any) -> Any:
        left, right = value["left"], value["right"]
        return self.fn(key, left, right) if self.keyed else self.fn(left, right)

    @property
    def __name__(self) -> str:
        return function_name(self.fn)


@dataclass(frozen=True)
class OfMappedSides:
    """A joiner with a global table as a function of key and joined value (KIP-1340)."""

    fn: Function

    def __call__(self, key: Any, value: Any) -> Any:
        return self.fn(key, value["mapped"], value["left"], value["right"])

    @property
    def __name__(self) -> str:
        return function_name(self.fn)


@dataclass(frozen=True)
class WithoutKey:
    """An aggregator of (value, aggregate), or a merger of two aggregates, that is called with the
    key, too."""

    fn: Function

    def __call__(self, key: Any, one: Any, two: Any) -> Any:
        return self.fn(one, two)


@dataclass(frozen=True)
class FunctionSupplier:
    """Makes the processor, or the value transformer, that calls ``fn``."""

    made: Callable[[Function], Any]
    fn: Function

    def __call__(self) -> Any:
        return self.made(self.fn)
