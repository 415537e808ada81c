"""Analyses Columns while the topology is built: type, what they read, whether they may run.

A Column is planned once and computed for every micro-batch, in an order that is not the merge
order. So only deterministic projections of one row are accepted; whatever Catalyst would freeze
(the clock), shuffle, multiply or number per batch is refused, with what to write instead. So are
constants that were a datetime without a zone, which is another moment on another machine.

The analyser's answers are kept for the next start (note 017), and translated into Arrow operations
that do the same (note 016), from the plan's JSON: to ask the JVM by node takes ms a Column.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyspark
from py4j import protocol
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from everflow.columns.computation import (
    ArrowExpression,
    ArrowExpressionBuilder,
    NotInArrowError,
)
from everflow.errors import TopologyError
from everflow.jvm import cache_root
from everflow.retry import waiting
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.spark.session import SQL_SETTINGS, get_session, letters_of, plain_context, sql_runs
from everflow.topology.graph import (
    ColumnExpr,
    EdgeType,
    column_names,
    columns_in_sight,
    same_type,
)
from everflow.user_program import UNDECODED

# --- answers of the analyser, kept from one start to the next -------------------------------------

MOST_KEPT = 2_000
"""Files; of more the older half is deleted."""
MOST_ADDED = 500
"""Files that one process adds: a program has some dozen Columns; only a test makes up thousands."""

_added = itertools.count()


@dataclass(frozen=True)
class Analysis:
    """Of one Column over one schema. ``schema`` of the selection and analysed ``plan``: Spark's
    JSON; ``sql``: the resolved Column's text."""

    schema: str
    plan: str
    sql: str
    deterministic: bool


def key_of(column: Column, schema: str) -> str | None:
    """Identifies an analysis: the Column as Java writes it (None: it cannot), ``schema``, Spark's
    version, our settings. None if more could matter (a user's Spark, extensions, catalogs)."""
    context = plain_context()
    if context is None:
        return None
    try:
        java: Any = column._jc
        jvm: Any = context._jvm
        written = bytes(jvm.org.apache.spark.util.Utils.serialize(java.node().normalized()))
    except (Py4JError, AttributeError):
        return None
    settings = json.dumps([pyspark.__version__, sorted(SQL_SETTINGS.items()), schema])
    return hashlib.sha256(settings.encode() + written).hexdigest()


def kept(key: str | None) -> Analysis | None:
    """An earlier analysis; None if there is none, and if Spark's SQL runs: then that is asked."""
    if key is None or sql_runs():
        return None
    try:
        found = Analysis(**json.loads(_file(key).read_text()))
        whole = [type(one) for one in astuple(found)] == [str, str, str, bool]
        return found if whole else None
    except (OSError, ValueError, TypeError):
        return None


def keep(key: str | None, analysis: Analysis) -> None:
    """Store an analysis for the next start. A folder that cannot be written is no failure."""
    if key is None or next(_added) >= MOST_ADDED:
        return
    file = _file(key)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _drop_oldest(file.parent)
        handle, name = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(handle, "w") as out:
            json.dump(asdict(analysis), out)
        os.replace(name, file)


def _file(key: str) -> Path:
    return cache_root() / "columns" / f"{key}.json"


def _drop_oldest(folder: Path) -> None:
    files = list(folder.iterdir())
    if len(files) > MOST_KEPT:
        for file in sorted(files, key=lambda each: each.stat().st_mtime)[: len(files) // 2]:
            file.unlink(missing_ok=True)


# --- datetimes without a zone ---------------------------------------------------------------------

_MOST_WRITTEN = 10_000
"""Moments that are kept; of more the oldest are forgotten."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_written: dict[int, datetime] = {}
"""The datetime by its moment, in µs since 1970."""


class _Watcher:
    """A converter of py4j that converts nothing: it sees what PySpark converts."""

    def can_convert(self, value: object) -> bool:
        if isinstance(value, datetime) and value.tzinfo is None:
            _keep(value)
        return False

    def convert(self, value: object, client: Any) -> Any:
        raise NotImplementedError


def _keep(value: datetime) -> None:
    try:
        local_s = int(time.mktime(value.timetuple()))
    except (OverflowError, ValueError):  # PySpark says so
        return
    moment = local_s * 1_000_000 + value.microsecond
    if moment == (value.replace(tzinfo=timezone.utc) - _EPOCH) // timedelta(microseconds=1):
        return  # this machine is where UTC is: it is the same moment elsewhere
    _written[moment] = value
    while len(_written) > _MOST_WRITTEN:
        _written.pop(next(iter(_written)), None)


def written_at(moment_us: int) -> datetime | None:
    """The datetime without a zone that became this moment here, and another one in UTC; or None."""
    return _written.get(moment_us)


if not any(isinstance(one, _Watcher) for one in protocol.INPUT_CONVERTER):
    protocol.register_input_converter(_Watcher(), prepend=True)


# --- the analysed plan ----------------------------------------------------------------------------


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
        nodes = json.loads(plan)
        return AnalysedPlan(
            tuple(_class_name(node) for node in nodes),
            tuple(_tree(iter(each)) for node in nodes for each in _listed(node)),
        )

    def walk(self) -> Iterator[ExpressionNode]:
        for expression in self.expressions:
            yield from expression.walk()


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


# --- the analysis of a Column ---------------------------------------------------------------------

_USE_TIMESTAMP = (
    "a prepared plan would freeze the time of its first batch; use "
    "F.col('timestamp'), the record's time in ms"
)
_USE_AGGREGATE = "use group_by(...).aggregate(...) with everflow.agg"

_NOW = (
    "CurrentTimestamp",
    "CurrentTimestampLike",
    "CurrentBatchTimestamp",
    "Now",
    "CurrentTime",
    "LocalTimestamp",
)
_SUBQUERY = ("a subquery", "join a table, or compute the value before the topology is built")
_IN_SUBQUERY = ("a subquery", "join a table, or use F.col(...).isin(values)")
_REFUSED_EXPRESSIONS = {
    **dict.fromkeys(_NOW, ("the current time", _USE_TIMESTAMP)),
    "CurrentDate": ("the current date", _USE_TIMESTAMP),
    "PythonUDAF": ("a Python UDF over groups", _USE_AGGREGATE),
    **dict.fromkeys(("ScalarSubquery", "LateralSubquery", "Exists"), _SUBQUERY),
    **dict.fromkeys(("InSubquery", "ListQuery"), _IN_SUBQUERY),
    "AggregateExpression": ("an aggregate", _USE_AGGREGATE),
    "MonotonicallyIncreasingID": (
        "monotonically_increasing_id()",
        "it restarts in every batch; use topic, partition and offset",
    ),
    "Uuid": (
        "uuid()",
        "derive an id from topic, partition and offset, e.g. F.sha2(F.concat_ws('-', ...), 256)",
    ),
    "Shuffle": (
        "shuffle()",
        "a re-run would give another result; use a Python function if that is wanted",
    ),
}
_REFUSED_PLANS = {
    "Aggregate": ("an aggregate", _USE_AGGREGATE),
    "Window": (
        "a window function such as row_number()",
        "rows of a stream have no neighbours; " + _USE_AGGREGATE,
    ),
    "Generate": (
        "a generator such as explode()",
        "use flat_map(column) or flat_map_values(column) with an array Column",
    ),
}
_WINDOWED_TIME = (
    "F.window() or F.session_window()",
    "records are put into windows by their own time, behind the grouping: "
    "stream.group_by_key().windowed_by(TimeWindows.of_size('1 minute')).count(store='a-name')",
)
_WINDOW_CALL = re.compile(r"\b(?:session_)?window\(")
_NOT_DETERMINISTIC = (
    "a non-deterministic expression",
    "a re-run after a failure would give another result; derive it from key, value, topic, "
    "partition and offset",
)
_KIND_BY_SQL_ERROR = {
    "UNSUPPORTED_GENERATOR": _REFUSED_PLANS["Generate"],
    "WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE": _REFUSED_PLANS["Window"],
    "MISSING_GROUP_BY": _REFUSED_PLANS["Aggregate"],
    "MISSING_AGGREGATION": _REFUSED_PLANS["Aggregate"],
}


_BY_LANGUAGE = frozenset({"Upper", "Lower", "InitCap", "ILike"})

_IN_SIGHT = frozenset(
    {"key", "value", "timestamp", "topic", "partition", "offset", "headers", "left", "right"}
)
_quiet = threading.RLock()
"""Locked while PySpark's loggers are disabled."""


def analyse(
    column: Column,
    edge: EdgeType,
    where: str | None = None,
    expected: pa.DataType | None = None,
) -> ColumnExpr:
    """Resolve ``column`` against the columns of ``edge`` without running anything.

    Columns in sight: key, value (in the edge's types), timestamp bigint in ms, topic, partition,
    offset, headers; of a join's results also left and right. From any thread; starts a Spark
    session if there is none.

    Args:
        expected: the type the place asks for (``pa.bool_()`` for a predicate), None where any will
        do.

    Raises:
        TopologyError: unknown column (with the list of those there are), refused expression (with
        the alternative), wrong type.
    """
    text = _text(column)
    schema = _schema(normal_type(edge.key), normal_type(edge.value))
    key = key_of(column, schema)
    known = kept(key)
    analysis = known or _asked(column, schema, text, edge, where)
    analysed = AnalysedPlan.of(analysis.plan)
    refused = _refused(analysed, analysis.deterministic)
    if refused:
        what, instead = refused
        raise TopologyError(f"{text}: {what} cannot be used in a Column; {instead}", where=where)
    literals = (node for node in analysed.walk() if node.kind == "Literal")
    if _written and any(node.says["dataType"] == "timestamp" for node in literals):
        _refuse_local_times(column, schema, text, where)
    if letters_of():
        _refuse_other_letters(analysed, text, where)
    fields = st.StructType.fromJson(json.loads(analysis.schema)).fields
    if len(fields) != 1:
        raise TopologyError(
            f"{text} gives {len(fields)} columns; wrap them: F.struct(...)", where=where
        )
    of_spark = fields[0].dataType
    if (typed := _typed(of_spark)) is not of_spark:
        what = "a NULL" if isinstance(of_spark, st.NullType) else "an empty array or map"
        raise TopologyError(
            f"{text} is {of_spark.simpleString()}: {what} needs a type; cast it, e.g. to string: "
            f".cast({typed.simpleString()!r})",
            where=where,
        )
    type_ = arrow_type(of_spark, text, where)
    if doubled := _doubled_field(type_):
        raise TopologyError(
            f"{text} has two fields called {doubled}, of which none could be named; give one "
            f"another name: F.col(...).alias('a-name')",
            where=where,
        )
    if expected is not None and not same_type(type_, expected):
        raise TopologyError(
            f"{text} is {type_text(type_)}, but {type_text(expected)} is needed here; "
            f"cast it: .cast({type_text(expected)!r})",
            where=where,
        )
    (read,) = analysed.expressions
    columns = (node for node in read.walk() if node.kind == "AttributeReference")
    uses = frozenset(map(column_read, columns))
    calls = any(node.kind == "PythonUDF" for node in read.walk())
    arrow, why = (
        (None, "it calls Python functions")
        if calls
        else _in_arrow(read, analysis.sql, columns_in_sight(edge, uses), type_)
    )
    if known is None and not calls:
        keep(key, analysis)
    return ColumnExpr(
        column=column,
        type=type_,
        uses=uses,
        calls=calls,
        arrow=arrow,
        why=why,
    )


def _asked(
    column: Column,
    schema: str,
    text: str,
    edge: EdgeType,
    where: str | None,
) -> Analysis:
    try:
        with without_error_log(), waiting("analysing a Column"):
            selected = _empty_frame(get_session(), schema).select(column)._jdf
            plan = selected.queryExecution().analyzed()
    except (AnalysisException, ParseException) as error:
        raise _not_analysable(text, edge, where, error) from None
    made = plan.expressions()
    return Analysis(
        schema=selected.schema().json(),
        plan=plan.toJSON(),
        sql=made.apply(0).sql(),
        deterministic=all(made.apply(i).deterministic() for i in range(made.size())),
    )


def _refuse_local_times(column: Column, schema: str, text: str, where: str | None) -> None:
    """TopologyError for a constant that was a datetime without a zone. The JSON says moments in the
    active session's zone, so the JVM is asked."""
    plan = _empty_frame(get_session(), schema).select(column)._jdf.queryExecution().analyzed()
    leaves = plan.expressions().apply(0).collectLeaves()
    for at in range(leaves.size()):
        leaf = leaves.apply(at)
        if leaf.nodeName() != "Literal" or leaf.dataType().typeName() != "timestamp":
            continue
        found = written_at(leaf.value()) if leaf.value() is not None else None
        if found is not None:
            raise TopologyError(
                f"{text}: {found!r} has no zone, and is another moment on a machine in another "
                f"time zone; write .replace(tzinfo=datetime.timezone.utc)",
                where=where,
            )


def _refuse_other_letters(plan: AnalysedPlan, text: str, where: str | None) -> None:
    """TopologyError for what goes by the language of the JVM, where that has letters of its own."""
    if any(node.kind in _BY_LANGUAGE for node in plan.walk()):
        raise TopologyError(
            f"{text} goes by the language of the JVM, which is {letters_of()!r} in your Spark "
            "session: upper('éi') is another text there than on other machines. Start the session "
            "with spark.driver.extraJavaOptions=-Duser.language=en, or let everflow start Spark",
            where=where,
        )


def _in_arrow(
    column: ExpressionNode, sql: str, reads: pa.Schema, made: pa.DataType
) -> tuple[ArrowExpression | None, str]:
    """The Column's Arrow expression, or why it has none: what fails to translate is Spark's."""
    try:
        if trying := _TRYING.search(sql):
            raise NotInArrowError(trying.group().lower().rstrip("("))
        return _Translation(reads).run(column, made), ""
    except NotInArrowError as error:
        return None, f"{error} has no Arrow expression"
    except Exception as error:
        return (
            None,
            f"what is translated with {type(error).__name__}: {error} has no Arrow expression",
        )


def spark_type(type_: pa.DataType) -> st.DataType:
    return from_arrow_type(normal_type(type_))


def arrow_type(
    type_: st.DataType, text: str = "the column", where: str | None = None
) -> pa.DataType:
    """The edge type of a Spark type; TopologyError for types that have no Arrow form."""
    try:
        if re.search(_TYPES + '"(?:variant"|time[("])', _json(type_)):
            # It names an Arrow type for them, and does not take what it made back.
            raise TypeError("PySpark passes on no variants and no times of day")
        return normal_type(to_arrow_type(type_, timezone="UTC"))
    except Exception as error:
        raise TopologyError(
            f"{text} is {type_.simpleString()}, which cannot leave Spark; cast it, e.g. to string "
            f"({error})",
            where=where,
        ) from None


@lru_cache(maxsize=256)
def _schema(key: pa.DataType, value: pa.DataType) -> str:
    seen = columns_in_sight(EdgeType(key, value), _IN_SIGHT)
    fields = [st.StructField(one.name, from_arrow_type(one.type)) for one in seen]
    return st.StructType(fields).json()


@lru_cache(maxsize=256)
def _empty_frame(session: SparkSession, schema: str) -> DataFrame:
    # Not by session.createDataFrame: that makes the session the thread's active one, which is the
    # user's to choose.
    java, jvm = session._jsparkSession, session._jvm
    assert jvm is not None
    return DataFrame(
        java.createDataFrame(jvm.java.util.ArrayList(), java.parseDataType(schema)), session
    )


def _refused(plan: AnalysedPlan, deterministic: bool) -> tuple[str, str] | None:
    """Why the analysed plan may not run, and the alternative; None if it may: then it is exactly
    one projection above the frame. The clock is deterministic in Catalyst's eyes, so expressions
    are judged by class name as well."""
    for node in plan.walk():
        if node.kind in _REFUSED_EXPRESSIONS:
            return _REFUSED_EXPRESSIONS[node.kind]
        if "TimeWindow" in node.kind or "SessionWindow" in node.kind:
            return _WINDOWED_TIME
    for name in plan.operators:
        if name in _REFUSED_PLANS:
            return _REFUSED_PLANS[name]
    if plan.operators[0] != "Project" or len(plan.operators) != 2:
        # what is left that rewrites the plan: time windows become projections and filters
        return _WINDOWED_TIME
    if not deterministic:
        return _NOT_DETERMINISTIC
    return None


_TYPES = r'("(?:type|elementType|keyType|valueType)":)'
"""Before each type in Spark's JSON of one."""


def _json(kind: st.DataType) -> str:
    return json.dumps({"type": kind.jsonValue()}, separators=(",", ":"))


def _typed(kind: st.DataType) -> st.DataType:
    made, voids = re.subn(_TYPES + '"void"', r'\1"string"', _json(kind))
    typed: st.DataType = st._parse_datatype_json_value(json.loads(made)["type"]) if voids else kind
    return typed


def _doubled_field(type_: pa.DataType) -> str | None:
    if pa.types.is_struct(type_):
        names: list[str] = [field.name for field in type_]
        if len(set(names)) < len(names):
            return next(name for name in names if names.count(name) > 1)
    inner = (_doubled_field(type_.field(i).type) for i in range(type_.num_fields))
    return next((name for name in inner if name is not None), None)


def _text(column: Column) -> str:
    return f"Column {_readable(str(column)[len('Column<') + 1 : -2])!r}"


def _readable(text: str) -> str:
    """Spark shows the arguments of a UDF as its own nodes; here they are names, or ``...``."""
    before, found, rest = text.partition("columnnodeexpression(")
    if not found:
        return text
    depth, end = 1, 0
    while depth and end < len(rest):
        depth += {"(": 1, ")": -1}.get(rest[end], 0)
        end += 1
    names = re.match(r"UnresolvedAttribute\(List\(([^()]*)\)", rest)
    return before + (names[1].replace(", ", ".") if names else "...") + _readable(rest[end:])


def _not_analysable(
    text: str, edge: EdgeType, where: str | None, error: Exception
) -> TopologyError:
    condition = str(getattr(error, "getCondition", lambda: "")() or "")
    known = _KIND_BY_SQL_ERROR.get(condition.split(".")[0])
    if known is None and _WINDOW_CALL.search(text):  # whatever is wrong with its arguments
        known = _WINDOWED_TIME
    if known:
        return TopologyError(
            f"{text}: {known[0]} cannot be used in a Column; {known[1]}", where=where
        )
    reason = re.split(r"\n'|\n\+-| SQLSTATE", str(error), maxsplit=1)[0].strip()
    reason = reason.replace("\n", " ")
    available = ", ".join(column_names(edge.key, edge.value))
    hint = _field_hint(edge, error)
    if pa.types.is_binary(edge.value):
        hint = f"\n  {UNDECODED}"
    return TopologyError(
        f"{text} cannot be used here: {reason}\n  columns: {available}{hint}", where=where
    )


def _field_hint(edge: EdgeType, error: Exception) -> str:
    """For ``F.col("amount")`` where the value, or the key, is a struct with such a field."""
    parameters: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    unknown = parameters.get("objectName", "").strip("`")
    for part, type_ in (("value", edge.value), ("key", edge.key)):
        for field in type_ if pa.types.is_struct(type_) else ():
            if field.name.lower() == unknown.lower():
                return f"\n  {unknown} is a field of the {part}: write F.col('{part}.{field.name}')"
    return ""


@contextmanager
def without_error_log() -> Iterator[None]:
    """pyspark logs each AnalysisException with its JVM stack; ours says it in one line."""
    # By PySpark's own way: a plain logger of that name cannot take what PySpark logs with, and
    # every failing job would raise.
    loggers = [
        PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("DataFrame", "SQL")
    ]
    with _quiet:  # of two threads at once, one would keep as "before" what the other has set
        disabled = [logger.disabled for logger in loggers]
        for logger in loggers:
            logger.disabled = True
        try:
            yield
        finally:
            for logger, before in zip(loggers, disabled, strict=True):
                logger.disabled = before


# --- the translation to Arrow ---------------------------------------------------------------------


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
"""Catalyst's expressions that are a kernel of their arguments, and nothing else."""

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
    "decimal": Decimal,
}


@dataclass(frozen=True)
class _Struct:
    """A struct that is not put together before somebody wants it whole. ``valid``: the place of
    where it is not null; None: everywhere."""

    fields: tuple[tuple[str, _Value], ...]
    valid: int | None


_Value = int | _Struct


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
        read = _SCALARS.get(str(kind).partition("(")[0])
        if read is None:
            raise NotInArrowError(f"a constant of type {kind}")
        try:
            return self._builder.literal(read(text), _arrow(kind))
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
        struct = self._value(node.children[0], guard)
        fields: list[tuple[str, _Value]]
        valid: int | None = None
        if isinstance(struct, int):
            kind = self._builder.type_of(struct)
            fields = [(one.name, self._field(struct, at)) for at, one in enumerate(kind)]
            never_null = self._builder.never_null(struct)
            valid = None if never_null else self._null_test(struct, wanted=True)
        else:
            fields, valid = list(struct.fields), struct.valid
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

    def _field(self, struct: _Value, ordinal: int) -> _Value:
        if isinstance(struct, int):
            return self._builder.call("field", struct, parameter=ordinal)
        value = struct.fields[ordinal][1]
        return value if struct.valid is None else self._only_where(struct.valid, value)

    def _only_where(self, live: int, value: _Value) -> _Value:
        if isinstance(value, int):
            return self._builder.only_where(live, value)
        valid = live if value.valid is None else self._builder.all_of(live, value.valid)
        return _Struct(value.fields, valid)

    def _null_test(self, value: _Value, wanted: bool) -> int:
        builder = self._builder
        if isinstance(value, int):
            if builder.never_null(value):
                return builder.literal(wanted, pa.bool_())
            return builder.call("is_valid" if wanted else "is_null", value)
        if value.valid is None:
            return builder.literal(wanted, pa.bool_())
        return value.valid if wanted else builder.call("not", value.valid)

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
        false = builder.literal(False, pa.bool_())
        if len(places) == 1 and otherwise == false and builder.never_null(places[0]):
            return builder.all_of(conditions[0], places[0])
        pairs = [each for pair in zip(conditions, places, strict=True) for each in pair]
        return builder.call("choose", *pairs, otherwise)

    def _cast(self, node: ExpressionNode, guard: int | None) -> _Value:
        wanted = _arrow(node.says["dataType"])
        (child,) = node.children
        if _is_null(child):
            return self._builder.literal(None, wanted)
        decimal = child.kind == "Literal" and str(child.says["dataType"]).startswith("decimal(")
        if decimal and pa.types.is_float64(wanted):
            # As Java does: the nearest number.
            return self._builder.literal(float(Decimal(child.says["value"])), wanted)
        return self._as(self._value(child, guard), wanted, guard)

    def _as(self, value: _Value, wanted: pa.DataType, guard: int | None) -> _Value:
        """A struct field by field, where that cannot fail: none is computed under a null struct."""
        if isinstance(value, int):
            if self._builder.type_of(value).equals(wanted):
                return value
            return self._builder.call("cast", value, parameter=wanted, guard=guard)
        if not pa.types.is_struct(wanted) or wanted.num_fields != len(value.fields):
            raise NotInArrowError(f"cast of a struct as {wanted}")
        pairs = zip(value.fields, wanted, strict=True)
        fields = [(one.name, self._as(part, one.type, value.valid)) for (_, part), one in pairs]
        return _Struct(tuple(fields), value.valid)


def _is_reordered(node: ExpressionNode) -> bool:
    """True if Spark reorders a sum or product of integers, which then overflows elsewhere."""
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


def _arrow(kind: Any) -> pa.DataType:
    """The Arrow type of a Spark type's JSON. Texts of another collation compare in another way."""
    if "collat" in json.dumps(kind):
        raise NotInArrowError(f"the type {kind}")
    try:
        made: pa.DataType = to_arrow_type(st._parse_datatype_json_value(kind), timezone="UTC")
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
