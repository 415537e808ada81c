"""Translates what Spark made of Columns into Arrow operations that do the same (note 016).

The analysed plan is read, in one call, as the JSON that Spark makes of it (asking the JVM node by
node costs some milliseconds a Column): casts, field ordinals and the functions behind their names
are the analyser's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import _parse_datatype_json_value

from everflow.columns.computation import (
    ArrowExpression,
    ArrowExpressionBuilder,
    NotInArrowError,
)


class ExpressionNode(NamedTuple):
    """The name of its class in Catalyst, the fields that Spark ``says``, and what it is made of."""

    kind: str
    says: Mapping[str, Any]
    children: tuple[ExpressionNode, ...]

    def walk(self) -> Iterator[ExpressionNode]:
        yield self
        for child in self.children:
            yield from child.walk()


class AnalysedPlan(NamedTuple):
    """``operators``: the plan's nodes, the last one first. ``expressions`` of all of them, in
    order."""

    operators: tuple[str, ...]
    expressions: tuple[ExpressionNode, ...]

    @staticmethod
    def of(plan: str) -> AnalysedPlan:
        """Reads a logical plan from Spark's JSON."""
        nodes = json.loads(plan)
        return AnalysedPlan(
            tuple(_class_name(node) for node in nodes),
            tuple(_tree(iter(each)) for node in nodes for each in _listed(node)),
        )

    def walk(self) -> Iterator[ExpressionNode]:
        for expression in self.expressions:
            yield from expression.walk()


def reads_column(node: ExpressionNode) -> bool:
    """True if it reads one of the columns in sight, which are called as `column_read` says."""
    return node.kind == "AttributeReference"


def column_read(node: ExpressionNode) -> str:
    """The name of the column that it reads. Spark resolves names in any case, and says them as the
    program wrote them; all columns in sight have small letters."""
    return str(node.says["name"]).lower()


def _listed(node: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
    """A plan node's expressions, each a list of nodes with classes; a leaf's output is none."""
    for name, value in node.items():
        if name == "output" or not isinstance(value, list):
            continue
        for found in [value, *value]:
            if not isinstance(found, list) or not found or not isinstance(found[0], dict):
                continue
            if "class" in found[0]:
                yield found


def _tree(nodes: Iterator[Mapping[str, Any]]) -> ExpressionNode:
    says = next(nodes)
    children = tuple(_tree(nodes) for _ in range(says["num-children"]))
    return ExpressionNode(_class_name(says), says, children)


def _class_name(node: Mapping[str, Any]) -> str:
    return str(node["class"]).rpartition(".")[2].rstrip("$")


_TRYING = re.compile(r"\btry_\w+\(", re.IGNORECASE)
"""Expressions that give null where others fail; the plan's JSON does not tell them apart."""

_KERNELS = {
    "IsNaN": "is_nan",
    "Not": "not",
    "EqualTo": "equal",
    "EqualNullSafe": "null_safe_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "In": "in",
    "Add": "add",
    "Subtract": "subtract",
    "Multiply": "multiply",
    "UnaryMinus": "negate",
    "Abs": "abs",
    "Divide": "divide",
    "StartsWith": "starts_with",
    "EndsWith": "ends_with",
    "Contains": "contains",
    "Length": "length",
    "Concat": "concat",
    "Upper": "upper",
    "Lower": "lower",
    "StringTrim": "trim",
    "StringSplit": "split",
}
"""Catalyst's expressions that are a kernel of what they are given, and nothing else."""

_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "boolean": lambda text: text == "true",
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "date": date.fromisoformat,
}


@dataclass(frozen=True)
class _Struct:
    """A struct that is not put together before somebody wants it whole. ``valid``: the place of
    where it is not null; None: everywhere."""

    fields: tuple[tuple[str, _Value], ...]
    valid: int | None


_Value = int | _Struct


def arrow_expression_of(
    column: ExpressionNode, text: str, reads: pa.Schema, made: pa.DataType
) -> ArrowExpression:
    """The Arrow expression of an analysed Column (in SQL ``text``) over the columns ``reads``, of
    type ``made``. Raises NotInArrowError."""
    if trying := _TRYING.search(text):
        raise NotInArrowError(trying.group().lower().rstrip("("))
    return _Translation(reads).run(column, made)


class _Translation:
    def __init__(self, reads: pa.Schema) -> None:
        self._builder = ArrowExpressionBuilder(reads)
        self._common: _Value | None = None
        self._columns = {name: at for at, name in enumerate(reads.names)}

    def run(self, expression: ExpressionNode, made: pa.DataType) -> ArrowExpression:
        return self._builder.build(self._place(self._value(expression, None)), made)

    def _value(self, node: ExpressionNode, guard: int | None) -> _Value:
        """``guard``: the place of where Spark computes it (None: everywhere)."""
        builder = self._builder
        match node.kind:
            case "AttributeReference":
                return self._columns[column_read(node)]
            case "Alias" | "Nvl" | "NullIf" | "Between":  # its child is what it stands for
                return self._value(node.children[0], guard)
            case "Literal":
                return self._literal(node)
            case "GetStructField":
                return self._field(self._value(node.children[0], guard), node.says["ordinal"])
            case "CreateNamedStruct":
                return self._struct(node.children, guard)
            case "UpdateFields":
                return self._updated(node, guard)
            case "IsNull" | "IsNotNull":
                return self._null_test(
                    self._value(node.children[0], guard), node.kind == "IsNotNull"
                )
            case "And" | "Or":
                return self._logic(node, guard)
            case "Coalesce":
                return self._coalesce(node.children, guard)
            case "CaseWhen" | "If":
                return self._case(node.children, guard)
            case "Cast":
                return self._cast(node, guard)
            case "With":
                return self._with(node, guard)
            case "CommonExpressionRef" if self._common is not None:
                return self._common
            case "TypedNullLiteral":
                place = self._place(self._value(node.children[0], guard))
                return builder.literal(None, builder.type_of(place))
        kernel = _KERNELS.get(node.kind)
        if kernel is None:
            raise NotInArrowError(_spoken(node.kind))
        places = [self._place(self._value(each, guard)) for each in node.children]
        if _is_reordered(node) and pa.types.is_integer(builder.type_of(places[0])):
            raise NotInArrowError("integers whose constants Spark moves to the end of their sum")
        return builder.call(kernel, *places, guard=guard)

    def _with(self, node: ExpressionNode, guard: int | None) -> _Value:
        """An expression and the one that it refers to; Spark computes that one for every row."""
        if self._common is not None or len(node.children) != 2:
            raise NotInArrowError("what refers to several expressions")
        child, (inside,) = node.children[0], node.children[1].children
        self._common = self._value(inside, None)
        made = self._value(child, guard)
        self._common = None
        return made

    def _place(self, value: _Value) -> int:
        if isinstance(value, int):
            return value
        fields = [(name, self._place(each)) for name, each in value.fields]
        return self._builder.struct(fields, value.valid)

    def _literal(self, node: ExpressionNode) -> int:
        kind, text = node.says["dataType"], node.says["value"]
        if text is None:
            return self._builder.literal(None, _arrow(kind))
        if isinstance(kind, str) and kind.startswith("decimal("):
            return self._builder.literal(Decimal(text), _arrow(kind))
        if not isinstance(kind, str) or kind not in _SCALARS:
            raise NotInArrowError(f"a constant of type {kind}")
        try:
            return self._builder.literal(_SCALARS[kind](text), _arrow(kind))
        except ValueError as error:
            raise NotInArrowError(f"the constant {text} of type {kind}") from error

    def _struct(self, children: Sequence[ExpressionNode], guard: int | None) -> _Struct:
        if not children:
            raise NotInArrowError("a struct without fields")
        names = [str(each.says["value"]) for each in children[::2]]
        values = [self._value(each, guard) for each in children[1::2]]
        return _Struct(tuple(zip(names, values, strict=True)), None)

    def _updated(self, node: ExpressionNode, guard: int | None) -> _Struct:
        """``withField`` and ``dropFields``, in turn; a null struct stays null. Spark writes them
        out as a struct of all fields, which takes it seconds of a wide one."""
        given = self._value(node.children[0], guard)
        fields: list[tuple[str, _Value]]
        valid: int | None = None
        if isinstance(given, int):
            kind = self._builder.type_of(given)
            fields = [(one.name, self._field(given, at)) for at, one in enumerate(kind)]
            never_null = self._builder.never_null(given)
            valid = None if never_null else self._null_test(given, wanted=True)
        else:
            fields, valid = list(given.fields), given.valid
        within = guard if valid is None else self._both(guard, valid)
        for change in node.children[1:]:
            name = str(change.says["name"])
            if not all(each.isascii() for each in (name, *(field for field, _ in fields))):
                raise NotInArrowError("a changed field whose name is not ASCII")
            same = [field.lower() == name.lower() for field, _ in fields]
            if change.kind == "DropField":
                fields = [field for field, is_it in zip(fields, same, strict=True) if not is_it]
            elif change.kind == "WithField":
                made = name, self._value(change.children[0], within)
                fields = [
                    made if is_it else field for field, is_it in zip(fields, same, strict=True)
                ]
                fields += [] if any(same) else [made]
            else:
                raise NotInArrowError(_spoken(change.kind))
        return _Struct(tuple(fields), valid)

    def _field(self, given: _Value, ordinal: int) -> _Value:
        if isinstance(given, int):
            return self._builder.call("field", given, parameter=ordinal)
        value = given.fields[ordinal][1]
        return value if given.valid is None else self._only_where(given.valid, value)

    def _only_where(self, live: int, value: _Value) -> _Value:
        if isinstance(value, int):
            return self._builder.only_where(live, value)
        valid = live if value.valid is None else self._builder.all_of(live, value.valid)
        return _Struct(value.fields, valid)

    def _null_test(self, given: _Value, wanted: bool) -> int:
        builder = self._builder
        if isinstance(given, int):
            if builder.never_null(given):
                return builder.literal(wanted, pa.bool_())
            return builder.call("is_valid" if wanted else "is_null", given)
        if given.valid is None:
            return builder.literal(wanted, pa.bool_())
        return given.valid if wanted else builder.call("not", given.valid)

    def _logic(self, node: ExpressionNode, guard: int | None) -> int:
        builder, conjunction = self._builder, node.kind == "And"
        left = self._place(self._value(node.children[0], guard))
        undecided = builder.truth(left, unknown=conjunction)
        if not conjunction:
            undecided = builder.call("not", undecided)
        right = self._place(self._value(node.children[1], self._both(guard, undecided)))
        return builder.call("and" if conjunction else "or", left, right)

    def _both(self, guard: int | None, condition: int) -> int:
        return condition if guard is None else self._builder.all_of(guard, condition)

    def _coalesce(self, children: Sequence[ExpressionNode], guard: int | None) -> int:
        places = []
        for each in children:
            places.append(self._place(self._value(each, guard)))
            guard = self._both(guard, self._null_test(places[-1], wanted=False))
        return self._builder.coalesce(*places)

    def _case(self, children: Sequence[ExpressionNode], guard: int | None) -> _Value:
        """Conditions and values by turns, and perhaps a last value."""
        builder = self._builder
        conditions, values = [], []
        for at in range(0, len(children) - 1, 2):
            condition = builder.truth(self._place(self._value(children[at], guard)))
            values.append(self._value(children[at + 1], self._both(guard, condition)))
            conditions.append(condition)
            guard = self._both(guard, builder.call("not", condition))
        last = children[-1] if len(children) % 2 else None
        if len(conditions) == 1 and (last is None or _is_null(last)):
            return self._only_where(conditions[0], values[0])
        places = [self._place(value) for value in values]
        if last is None:
            otherwise = builder.literal(None, builder.type_of(places[0]))
        else:
            otherwise = self._place(self._value(last, guard))
        return self._chosen(conditions, places, otherwise)

    def _chosen(self, conditions: Sequence[int], places: Sequence[int], otherwise: int) -> int:
        builder = self._builder
        false = builder.literal(False, pa.bool_())
        if len(places) == 1 and otherwise == false and builder.never_null(places[0]):
            return builder.all_of(conditions[0], places[0])
        pairs = [each for pair in zip(conditions, places, strict=True) for each in pair]
        return builder.call("choose", *pairs, otherwise)

    def _cast(self, node: ExpressionNode, guard: int | None) -> _Value:
        wanted = _arrow(node.says["dataType"])
        (given,) = node.children
        if _is_null(given):
            return self._builder.literal(None, wanted)
        if _is_decimal(given) and pa.types.is_float64(wanted):
            # As Java does: the nearest number.
            return self._builder.literal(float(Decimal(given.says["value"])), wanted)
        value = self._value(given, guard)
        if isinstance(value, _Struct):
            return self._cast_struct(value, wanted)
        if self._builder.type_of(value).equals(wanted):
            return value
        return self._builder.call("cast", value, parameter=wanted, guard=guard)

    def _cast_struct(self, value: _Struct, wanted: pa.DataType) -> _Struct:
        """Field by field, where that cannot fail: a field under a null struct is not computed."""
        if not pa.types.is_struct(wanted) or wanted.num_fields != len(value.fields):
            raise NotInArrowError(f"cast of a struct as {wanted}")
        fields: list[tuple[str, _Value]] = []
        for (_, given), field in zip(value.fields, wanted, strict=True):
            if isinstance(given, _Struct):
                fields.append((field.name, self._cast_struct(given, field.type)))
            elif self._builder.type_of(given).equals(field.type):
                fields.append((field.name, given))
            else:
                cast = self._builder.call("cast", given, parameter=field.type, guard=value.valid)
                fields.append((field.name, cast))
        return _Struct(tuple(fields), value.valid)


def _is_reordered(node: ExpressionNode) -> bool:
    """True if Spark's optimiser (ReorderAssociativeOperator) computes a sum or product of integers
    in another order than it is written: one of another order overflows elsewhere."""
    if node.kind not in ("Add", "Multiply"):
        return False
    operands = _operands(node, node.kind)
    constants = [
        all(part.kind != "AttributeReference" for part in each.walk()) for each in operands
    ]
    nested_last = len(_operands(node.children[-1], node.kind)) > 1
    return len(operands) > 2 and (any(constants[:-1]) or (constants[-1] and nested_last))


_TRANSPARENT = ("Alias", "Nvl", "If", "CaseWhen", "Coalesce", "Cast")
"""Expressions that the optimiser may remove around a sum, where a condition is a constant."""


def _operands(node: ExpressionNode, kind: str) -> list[ExpressionNode]:
    """The operands of nested sums (``kind`` Add) or products, in order; else the node."""
    if node.kind != kind and node.kind not in _TRANSPARENT:
        return [node]
    parts = [_operands(child, kind) for child in node.children]
    nested = node.kind == kind or any(len(some) > 1 for some in parts)
    return [part for some in parts for part in some] if nested else [node]


def _is_null(node: ExpressionNode) -> bool:
    return node.kind == "Literal" and node.says["value"] is None


def _is_decimal(node: ExpressionNode) -> bool:
    return (
        node.kind == "Literal"
        and node.says["value"] is not None
        and str(node.says["dataType"]).startswith("decimal(")
    )


def _arrow(kind: Any) -> pa.DataType:
    """The Arrow type of a Spark type's JSON. Texts of another collation compare in another way."""
    if "collat" in json.dumps(kind):
        raise NotInArrowError(f"the type {kind}")
    try:
        made: pa.DataType = to_arrow_type(_parse_datatype_json_value(kind), timezone="UTC")
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        raise NotInArrowError(f"the type {kind}") from error
    return made


def _spoken(kind: str) -> str:
    """A Catalyst expression's name as its functions are written: ``RLike`` -> ``rlike``,
    ``DateFormatClass`` -> ``date_format``."""
    name = kind.removesuffix("Class").removesuffix("Expression")
    if name.upper().startswith("RL"):
        return name.lower()
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
