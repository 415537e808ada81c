"""Cuts a selection where it calls Python functions, as Spark's optimiser has cut it (note 014).

The optimiser takes each call out of its expression: what the functions read, a plan node for
functions of one kind, what is made of their results. Each becomes a stage
(`topology.column_stages`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

from everflow.spark.column_service import (
    nodes_of,
    prepared,
    prepared_call,
    refused_internals,
    schema_of,
)
from everflow.topology.column_stages import Call, Chain, Compute, Pick, Stage
from everflow.travel.udf_command import function_of

_CALLS = ("ArrowEvalPython", "BatchEvalPython")


def staged(frame: DataFrame) -> tuple[str, tuple[Stage, ...]]:
    """The stages of ``frame``, some selections above an `empty_frame`, and the socket where they
    are computed (empty: nowhere). NotComputableError where they cannot be."""
    with refused_internals():
        leaf, nodes = nodes_of(frame, ("Project", *_CALLS))
        cut = _Cut(frame.sparkSession, schema_of(leaf))
        for node in nodes:
            if node.nodeName() in _CALLS:
                cut.call(node)
            else:
                cut.project(node.projectList(), node.child().output())
        cut.compute()
        return cut.path, tuple(cut.stages)


class _Cut:
    """Collects stages. Projections wait until their result is needed: they go in one request."""

    def __init__(self, session: SparkSession, given: StructType) -> None:
        self._session = session
        self._jvm: Any = session._jvm
        self._given = given
        self._waiting: list[tuple[Any, Any]] = []
        self.stages: list[Stage] = []
        self.path = ""

    def project(self, expressions: Any, attributes: Any) -> None:
        self._waiting.append((expressions, attributes))

    def compute(self) -> None:
        """Stages for what waits; without the JVM where nothing is to compute."""
        if not self._waiting:
            return
        last = list(_items(self._waiting[-1][0]))
        made = _struct([_type(expression) for expression in last])
        paths = [_paths(*projection) for projection in self._waiting]
        picks = [Pick(tuple(found)) for found in paths if found is not None]
        if len(picks) == len(paths):
            self.stages += picks
        else:
            self.path, number = prepared(self._session, self._waiting, self._given, made)
            self.stages.append(Compute(number, _arrow(made)))
        self._given, self._waiting = made, []

    def call(self, node: Any) -> None:
        """A plan node that calls functions: its inputs are computed behind the columns that it
        keeps."""
        kept = node.child().output()
        inputs: list[Any] = []
        chains = tuple(self._chain(udf, inputs) for udf in _items(node.udfs()))
        expressions = self._jvm.java.util.ArrayList()
        for expression in (*_items(kept), *inputs):
            expressions.add(expression)
        self.project(self._jvm.PythonUtils.toSeq(expressions), kept)
        self.compute()
        count = kept.size()
        given = _struct([field.dataType for field in self._given.fields[count:]])
        made = _struct([_type(udf) for udf in _items(node.udfs())])
        settings = self._settings()
        pickled = None
        if node.nodeName() == "BatchEvalPython":
            as_bytes = settings.get("spark.sql.execution.pyspark.binaryAsBytes", "true") == "true"
            self.path, pickled = prepared_call(self._session, given, made, as_bytes)
        self.stages.append(
            Call(
                eval_type=int(node.udfs().apply(0).evalType()),
                chains=chains,
                kept=count,
                settings=settings,
                given=given.json(),
                made=_arrow(made),
                pickled=pickled,
            )
        )
        self._given = _struct([field.dataType for field in (*self._given.fields[:count], *made)])

    def _settings(self) -> dict[str, str]:
        runner = self._jvm.org.apache.spark.sql.execution.python.ArrowPythonRunner
        settings = runner.getPythonRunnerConfMap(self._session._jsparkSession.sessionState().conf())
        return dict(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(settings))

    def _chain(self, udf: Any, inputs: list[Any]) -> Chain:
        """A call and those inside it that Spark makes in one breath. Its arguments are added to
        ``inputs``, each once."""
        calls = [udf]
        while udf.children().size() == 1 and _class(udf.children().apply(0)) == "PythonUDF":
            udf = udf.children().apply(0)
            calls.append(udf)
        arguments = []
        for child in _items(udf.children()):
            named = _class(child) == "NamedArgumentExpression"
            value = child.value() if named else child
            place = next((i for i, known in enumerate(inputs) if known.semanticEquals(value)), None)
            if place is None:
                place = len(inputs)
                inputs.append(value)
            arguments.append((str(child.key()) if named else None, place))
        functions = tuple(function_of(self._command(call)) for call in reversed(calls))
        return Chain(functions, tuple(arguments))

    def _command(self, udf: Any) -> bytes:
        """The pickled function of a call."""
        return bytes(udf.func().command().toArray(self._jvm.scala.reflect.ClassTag.Byte()))


def _paths(expressions: Any, attributes: Any) -> list[tuple[int, ...]] | None:
    """Where the columns of a projection are in what it reads; None if one is computed."""
    places = {attribute.exprId().id(): place for place, attribute in enumerate(_items(attributes))}
    found = [_path(expression, places) for expression in _items(expressions)]
    paths = [path for path in found if path is not None]
    return paths if len(paths) == len(found) else None


def _path(expression: Any, places: dict[int, int]) -> tuple[int, ...] | None:
    kind = _class(expression)
    if kind == "AttributeReference":
        return (places[expression.exprId().id()],)
    if kind == "Alias":
        return _path(expression.child(), places)
    if kind == "GetStructField":
        inside = _path(expression.child(), places)
        return None if inside is None else (*inside, int(expression.ordinal()))
    return None


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(index) for index in range(sequence.size()))


def _class(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _type(expression: Any) -> Any:
    return _parse_datatype_json_string(expression.dataType().json())


def _struct(types: Sequence[Any]) -> StructType:
    return StructType([StructField(f"_{place}", kind) for place, kind in enumerate(types)])


def _arrow(struct: StructType) -> Any:
    return to_arrow_schema(struct, timezone="UTC")
