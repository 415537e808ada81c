"""What operators share: Column or function, the type of a result, the serde of an edge."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow import serdes
from everflow.errors import EverflowError, TopologyError
from everflow.records import names_a_topic
from everflow.serdes import Serde
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.serdes.by_record import adopted, is_serde, no_serde
from everflow.serdes.registered import bound_to
from everflow.spark.expressions import analyse
from everflow.topology.graph import CallLimits, ColumnExpr, EdgeType, column_names, same_type
from everflow.windows import checked_ms

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # for the type checker only

_PYTHON_TYPES: dict[object, str] = {
    str: "string",
    int: "bigint",
    float: "double",
    bool: "boolean",
    bytes: "binary",
    dict: "name string, amount double",
    list: "array<string>",
}

_PATTERN = re.compile(r"[*+?|()\[\]{}^$\\]")
_A_COLUMN = re.compile(r"\w+(?:\.\w+)*")

CALL_OPTIONS = ("concurrency", "timeout", "retries")
CallOptions = tuple[Any, Any, Any]
"""`CALL_OPTIONS` as the user gave them; None: left out."""
ONE_BY_ONE: CallOptions = (None, None, None)

Function = Callable[..., Any]
Expression = Column | Function


@dataclass(frozen=True)
class Edge:
    """An edge while it is being built: its type and the serdes it would be written with (None = the
    type has no default)."""

    type: EdgeType
    key_serde: Serde | None
    value_serde: Serde | None

    @staticmethod
    def of(key_serde: Serde, value_serde: Serde) -> Edge:
        return Edge(
            EdgeType(normal_type(key_serde.type), normal_type(value_serde.type)),
            key_serde,
            value_serde,
        )

    def with_types(
        self,
        key: pa.DataType | None = None,
        value: pa.DataType | None = None,
    ) -> Edge:
        """The edge behind an operator: a new type has its default serde."""
        key_serde, value_serde = self.key_serde, self.value_serde
        key_type, value_type = self.type.key, self.type.value
        if key is not None and not same_type(key, key_type):
            key_type, key_serde = normal_type(key), default_serde(key)
        if value is not None and not same_type(value, value_type):
            value_type, value_serde = normal_type(value), default_serde(value)
        return Edge(EdgeType(key_type, value_type), key_serde, value_serde)

    @staticmethod
    def inside(key: pa.DataType, value: pa.DataType) -> Edge:
        """The edge between two nodes of one operator, which no serde writes."""
        return Edge(EdgeType(key, value), None, None)

    def returning(self, operator: str, fn: Function, **returns: object) -> Edge:
        """The edge behind a function; ``returns``: types of ``key``, ``value``, as declared."""
        types = {part: result_type(declared, fn, operator) for part, declared in returns.items()}
        serdes = {part: result_serde(declared) for part, declared in returns.items()}
        return self.with_types(**types).with_serdes(**serdes)

    def with_serdes(self, key: Serde | None = None, value: Serde | None = None) -> Edge:
        """The same edge, read with other serdes of the same types."""
        return Edge(self.type, key or self.key_serde, value or self.value_serde)

    def serdes(self, operator: str) -> tuple[Serde, Serde]:
        """Both serdes, for a place that writes bytes; TopologyError where a type has none."""
        value = _required(self.value_serde, "value", self.type.value, operator)
        return self.written_key(operator), value

    def written_key(self, operator: str) -> Serde:
        return _required(self.key_serde, "key", self.type.key, operator)


def check_name(what: str, name: object) -> None:
    """TopologyError unless ``name`` is text that Kafka allows in topic names."""
    if not names_a_topic(name):
        pattern = what == "topic" and isinstance(name, str) and _PATTERN.search(name)
        cure = f"; a pattern is given as stream(re.compile({name!r}))" if pattern else ""
        raise TopologyError(
            f"{name!r} cannot name a {what}: 1 to 249 letters, digits, '.', '_' or '-' are allowed"
            f"{cure}"
        )


def column_named(name: str, type_: EdgeType) -> str | None:
    """The column that ``name`` may mean: itself, or a field of the value."""
    names = [text.partition(" ")[0] for text in column_names(type_.key, type_.value)]
    return next((one for one in (name, f"value.{name}") if one in names), None)


def in_expressions(column: str) -> str:
    return (
        f"its columns are named in expressions, e.g. map_values(F.col({column!r})) or "
        f"filter(F.col({column!r}).isNotNull())"
    )


def default_serde(type_: pa.DataType) -> Serde | None:
    """``serdes.from_type``, None for types without a default."""
    if _has_no_text(type_):
        return None
    try:
        return serdes.from_type(normal_type(type_))
    except EverflowError:
        return None


def _has_no_text(type_: pa.DataType) -> bool:
    """True if a part of it is an interval: JSON's schemas have none."""
    if pa.types.is_duration(type_):
        return True
    return any(_has_no_text(type_.field(i).type) for i in range(type_.num_fields))


def checked_serde(candidate: object, part: str, operator: str) -> Serde:
    """``candidate`` as a whole serde if it is one, else TopologyError with the way to write one."""
    problem = no_serde(candidate, serdes.__all__)
    if problem is not None:
        raise TopologyError(f"{operator}: {part}={candidate!r} {problem}")
    try:
        return adopted(candidate)
    except EverflowError as error:
        raise TopologyError(
            f"{operator}: the type of {part}={candidate!r} is not one: {error}"
        ) from None


def bound_serdes(serdes: tuple[Serde, Serde], topic: object) -> tuple[Serde, Serde]:
    """Of key and value, with the topic that they are read from or written to."""
    key, value = serdes
    return bound_to(key, topic, "key"), bound_to(value, topic, "value")


def fitting_serde(
    candidate: object | None, type_: pa.DataType, part: str, operator: str
) -> Serde | None:
    """``candidate`` checked against the type it is to write; None stays None."""
    if candidate is None:
        return None
    serde = checked_serde(candidate, part, operator)
    if not same_type(serde.type, type_):
        raise TopologyError(
            f"{operator}: the {part} is {type_text(type_)}, which {part}={serde!r} (for "
            f"{type_text(serde.type)}) cannot write; "
            f"leave {part}= out for the type's own serde, or cast the {part} first"
        )
    return serde


def is_column(expression: object, operator: str) -> TypeIs[Column]:
    """True for a Column, False for a Python function, TopologyError for anything else."""
    if isinstance(expression, Column):
        return True
    if callable(expression):
        refuse_pyspark(expression, operator)
        return False
    cure = ""
    if isinstance(expression, str):
        cure = f"; write F.{'col' if _A_COLUMN.fullmatch(expression) else 'expr'}({expression!r})"
    raise TopologyError(
        f"{operator} takes a Column or a Python function, found {expression!r}{cure}"
    )


def checked_column(column: object, part: str, operator: str) -> None:
    """TopologyError unless ``column``, if it is not None, is a Column."""
    if column is None or isinstance(column, Column):
        return
    cure = (
        f"write {part}=F.col({column!r})" if isinstance(column, str) else "constants are F.lit(...)"
    )
    if callable(column):
        cure = (
            f"one function gives both: {operator}(lambda key, value: (key, value), "
            f"returns=('string', 'double'))"
        )
    raise TopologyError(f"{operator}: {part}={column!r} is not a Column; {cure}")


def predicate(column: Column, edge: Edge) -> ColumnExpr:
    return analyse(column, edge.type, expected=pa.bool_())


def refuse_calls(expression: ColumnExpr, what: str) -> None:
    if expression.calls:
        raise TopologyError(
            f"{what} cannot be a Column that calls Python functions; pass a function of (key, "
            f"value), or make a field of it with map_values before"
        )


def is_true(column: Column) -> Column:
    """``column`` with NULL as false, so that a predicate and its negation split a stream."""
    return F.coalesce(column, F.lit(False))


def unless_deleted(column: Column, edge: Edge) -> ColumnExpr:
    """``column`` as the value of a table: deletions pass by it."""
    analyse(column, edge.type)  # judged as the user wrote it, for the message
    value = analyse(F.when(F.col("value").isNotNull(), column), edge.type)
    return replace(value, skips_null=True)


def struct_of(fields: dict[str, Column], operator: str) -> Column:
    """``name=Column`` arguments as one struct Column."""
    for name, column in fields.items():
        if not isinstance(column, Column):
            raise TopologyError(
                f"{operator}: {name}={column!r} is not a Column; constants are F.lit(...)"
            )
    return F.struct(*[column.alias(name) for name, column in fields.items()])


def result_type(returns: object, fn: Callable[..., Any], operator: str) -> pa.DataType:
    """The Arrow type that ``returns=`` names: DDL text, an Arrow type, a serde or a StructType."""
    if returns is None:
        raise TopologyError(
            f"{operator}: the result type of the Python function {function_name(fn)} is not known; "
            f"add returns=..., e.g. "
            "returns='double', returns='carrier string, delay double' or a serde"
        )
    if is_serde(returns):
        return normal_type(checked_serde(returns, "returns", operator).type)
    try:
        return normal_type(serdes.arrow_type(returns))
    except EverflowError as error:
        hint = f"; write returns={_PYTHON_TYPES[returns]!r}" if returns in _PYTHON_TYPES else ""
        raise TopologyError(
            f"{operator}: returns={returns!r} is not a type: {error}{hint}"
        ) from None


def result_serde(returns: object) -> Serde | None:
    """The serde itself where ``returns=`` gave one: it replaces the default of the type."""
    return adopted(returns) if is_serde(returns) else None


def _required(serde: Serde | None, part: str, type_: pa.DataType, operator: str) -> Serde:
    if serde is None:
        raise TopologyError(
            f"{operator} writes the {part}, and {type_text(type_)} has no serde of its own; "
            f"cast it, for example to string"
        )
    return serde


def fields_from_options(
    name: str | Column | None, returns: object, fields: dict[str, Column]
) -> tuple[str | None, object, dict[str, Column]]:
    if isinstance(name, Column):
        fields, name = {"name": name, **fields}, None
    if isinstance(returns, Column):
        fields, returns = {**fields, "returns": returns}, None
    return name, returns, fields


def calls_from_options(
    options: CallOptions, fields: dict[str, Column]
) -> tuple[CallOptions, dict[str, Column]]:
    """`CALL_OPTIONS`, and the fields with those of them that are Columns."""
    given = dict(zip(CALL_OPTIONS, options, strict=True))
    named = {name: value for name, value in given.items() if isinstance(value, Column)}
    concurrency, timeout, retries = (given[n] if n not in named else None for n in CALL_OPTIONS)
    return (concurrency, timeout, retries), {**named, **fields}


# --- functions of the user in one shape, ``fn(key, value)``, in objects that workers get ----------
# Built-in functions whose signature Python cannot tell (``int``, ``str``) get the value.


def required_parameters(fn: Function) -> int | None:
    """Positional parameters without default; 2 for ``*args``; None where Python cannot tell."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 2
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(1 for p in parameters if p.kind in positional and p.default is p.empty)


def is_awaited(fn: Function) -> bool:
    """True for an ``async def``, also as a method, a partial, or a class's ``__call__``."""
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
        for one in (fn, getattr(fn, "__call__", None))  # noqa: B004
    )


SIDE_BY_SIDE = "map_values, flat_map_values, filter, filter_not, peek and for_each"
MOST_CALLS = 10_000
CALL_MS = 30_000
"""The time-out of a call that names none."""


def call_limits(fn: object, operator: str, options: CallOptions) -> CallLimits | None:
    """How an operator calls ``fn``; None: one call after the other. TopologyError for what is no
    such number, and for calls that Spark makes."""
    concurrency, timeout, retries = options
    asked = [name for name, value in zip(CALL_OPTIONS, options, strict=True) if value is not None]
    if isinstance(fn, Column) or not callable(fn):
        if asked:
            raise TopologyError(
                f"{operator}: {asked[0]}= is for a Python function, and here is a Column"
            )
        return None
    awaited = is_awaited(fn)
    if concurrency is None:
        if awaited:
            raise TopologyError(
                f"{operator} found the async function {function_name(fn)}; say how many of its "
                f"calls are made at a time: {operator}({function_name(fn)}, ..., concurrency=64)"
            )
        if asked:
            raise TopologyError(
                f"{operator}: {asked[0]}= is for calls that are made side by side; add "
                f"concurrency=64, the number of calls at a time"
            )
        return None
    if not _is_whole(concurrency) or not 1 <= concurrency <= MOST_CALLS:
        raise TopologyError(
            f"{operator}: concurrency is a number of calls from 1 to {MOST_CALLS:,}, found "
            f"{concurrency!r}"
        )
    if retries is not None and (not _is_whole(retries) or retries < 0):
        raise TopologyError(f"{operator}: retries is a number from 0 on, found {retries!r}")
    timeout_ms = CALL_MS if timeout is None else checked_ms(timeout, f"{operator}: timeout", 1)
    return CallLimits(concurrency, timeout_ms, 0 if retries is None else retries, awaited)


def _is_whole(number: object) -> TypeIs[int]:
    return isinstance(number, int) and not isinstance(number, bool)


def refuse_awaited(fn: Function, operator: str) -> None:
    """TopologyError for an async function where nobody awaits it."""
    if is_awaited(fn):
        raise TopologyError(
            f"{operator} here calls no async function, found {function_name(fn)}; of a stream, "
            f"{SIDE_BY_SIDE} do, with concurrency=: put the answer beside the value with "
            f"map_values before"
        )


def key_value_function(fn: Function, operator: str, *, awaited: bool = False) -> Function:
    """``fn`` as a function of key and value; TopologyError unless it takes one or two, and for an
    async one unless it is ``awaited``."""
    if not awaited:
        refuse_awaited(fn, operator)
    count = required_parameters(fn)
    if count == 2:
        return fn
    if count in (None, 1):
        return ValueOnly(fn)
    raise TopologyError(
        f"{operator} calls its function with (value) or (key, value); {function_name(fn)} takes "
        f"{count} arguments"
    )


def check_parameters(fn: Function, names: Sequence[str], operator: str) -> None:
    """TopologyError unless ``fn`` can be called with arguments of these ``names``."""
    refuse_pyspark(fn, operator)
    if not callable(fn):
        raise TopologyError(f"{operator} takes a function of ({', '.join(names)}), found {fn!r}")
    refuse_awaited(fn, operator)
    count = required_parameters(fn)
    try:
        inspect.signature(fn).bind(*names)
    except TypeError:
        raise TopologyError(
            f"{operator} calls its function with ({', '.join(names)}); {function_name(fn)} takes "
            f"{count} arguments"
        ) from None
    except ValueError:
        return


def refuse_pyspark(argument: object, operator: str) -> None:
    """TopologyError for PySpark's own functions and UDFs: they take Columns, not values."""
    if isinstance(
        getattr(argument, "evalType", None), int
    ):  # a Column has every attribute, as a Column
        name = function_name(getattr(argument, "func"))  # noqa: B009
        kind = getattr(argument, "returnType", None)
        one_result = operator in ("map_values", "flat_map_values", "select_key", "group_by")
        returns = f", returns={kind.simpleString()!r}" if kind is not None and one_result else ""
        function = name if name.isidentifier() else "the_function"
        part = operator.partition(": ")[2]
        written = f"{part}={function}" if part else f"{operator}({function}{returns})"
        raise TopologyError(
            f"{operator} found a PySpark UDF; call it with Columns, as in "
            f"{function}(F.col('value')), or pass the Python function itself: {written}"
        )
    if callable(argument) and str(getattr(argument, "__module__", "")).startswith("pyspark.sql"):
        name = function_name(argument)
        raise TopologyError(
            f"{operator} found PySpark's function {name} itself; call it: {operator}(F.{name}(...))"
        )


def function_name(fn: Function) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


@dataclass(frozen=True)
class _Calling:
    """A function of the user in another shape, under its own name."""

    fn: Function

    @property
    def __name__(self) -> str:
        return function_name(self.fn)


@dataclass(frozen=True)
class ValueOnly(_Calling):
    def __call__(self, key: Any, value: Any) -> Any:
        return self.fn(value)


@dataclass(frozen=True)
class TableFilter(_Calling):
    """A table's filter as a value mapper: what fails becomes a tombstone; tombstones pass."""

    negate: bool

    def __call__(self, key: Any, value: Any) -> Any:
        if value is None or bool(self.fn(key, value)) == self.negate:
            return None
        return value


@dataclass(frozen=True)
class TableMapper(_Calling):
    """A table's value mapper: tombstones pass unasked."""

    def __call__(self, key: Any, value: Any) -> Any:
        return None if value is None else self.fn(key, value)


@dataclass(frozen=True)
class TablePairs(_Calling):
    """A table's mapper to key and value: tombstones have neither, unasked."""

    def __call__(self, key: Any, value: Any) -> Any:
        return (None, None) if value is None else self.fn(key, value)


@dataclass(frozen=True)
class ForeignKeyOf(_Calling):
    """A foreign key's function as one that gives it beside the value."""

    def __call__(self, key: Any, value: Any) -> Any:
        return {"fk": self.fn(key, value), "value": value}


@dataclass(frozen=True)
class OfSides(_Calling):
    """A joiner as a function of key and joined value."""

    keyed: bool

    def __call__(self, key: Any, value: Any) -> Any:
        left, right = value["left"], value["right"]
        return self.fn(key, left, right) if self.keyed else self.fn(left, right)


@dataclass(frozen=True)
class OfMappedSides(_Calling):
    """A joiner with a global table as a function of key and joined value (KIP-1340)."""

    def __call__(self, key: Any, value: Any) -> Any:
        return self.fn(key, value["mapped"], value["left"], value["right"])


@dataclass(frozen=True)
class WithoutKey(_Calling):
    """An aggregator, or a merger, that is called with the key, too."""

    def __call__(self, key: Any, one: Any, two: Any) -> Any:
        return self.fn(one, two)


@dataclass(frozen=True)
class FunctionSupplier:
    """Makes the processor, or the value transformer, that calls ``fn``."""

    made: Callable[[Function], Any]
    fn: Function

    def __call__(self) -> Any:
        return self.made(self.fn)
