"""Starts the service of the instance's JVM that computes Columns without a Spark job (note 014).

What it runs is what Catalyst made of the Columns: the expressions of the optimised plan, compiled
by its own `UnsafeProjection`. Other plan nodes, and a Spark whose internals are not as expected,
are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, _parse_datatype_json_string

from everflow.sockets import socket_folder_of_process

_SOURCE = Path(__file__).with_name("ColumnService.java")
_lock = threading.Lock()
_running: tuple[Any, _Service] | None = None


class NotComputableError(Exception):
    """This Spark cannot compute these Columns without a job. The text says why."""


class _Service:
    """One per JVM; the JVM ends it."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(_SOURCE.read_text())
        arguments = session.sparkContext._gateway.new_array(jvm.java.lang.Object, 2)  # type: ignore[union-attr]
        self.path = str(socket_folder_of_process() / "c")
        arguments[0], arguments[1] = self.path, session._jsparkSession.sessionState().conf()
        service = compiler.getClassLoader().loadClass("everflow.ColumnService")
        self._java = service.getConstructors()[0].newInstance(arguments)
        self._jvm = jvm
        self._session = session
        self._prepared = 0

    def add(
        self, projections: Sequence[tuple[Any, Any]], given: StructType, made: StructType
    ) -> tuple[str, int]:
        """Prepare projections: of each the expressions, and the attributes that they read."""
        expressions, inputs = self._jvm.java.util.ArrayList(), self._jvm.java.util.ArrayList()
        for project_list, attributes in projections:
            expressions.add(project_list)
            inputs.add(attributes)
        parse = self._session._jsparkSession.parseDataType
        self._prepared += 1
        self._java.add(self._prepared, expressions, inputs, parse(given.json()), parse(made.json()))
        return self.path, self._prepared

    def add_call(
        self, given: StructType, made: StructType, binary_as_bytes: bool
    ) -> tuple[str, tuple[int, int]]:
        """Prepare how arguments are pickled and results unpickled: the number of each."""
        parse = self._session._jsparkSession.parseDataType
        self._prepared += 2
        arguments, results = self._prepared - 1, self._prepared
        kind = made if len(made) > 1 else made[0].dataType
        self._java.addCall(
            arguments,
            parse(given.json()),
            binary_as_bytes,
            results,
            parse(kind.json()),
            parse(made.json()),
        )
        return self.path, (arguments, results)


def computed(frame: DataFrame) -> tuple[str, int]:
    """Prepare what ``frame``, some selections above an `empty_frame`, makes of its rows: the
    socket's path, and the number under which workers ask for it.

    NotComputableError where it cannot. Any thread; the service lives as long as the JVM.
    """
    with refused_internals():
        leaf, nodes = nodes_of(frame, ("Project",))
        projections = [(plan.projectList(), plan.child().output()) for plan in nodes]
        return prepared(frame.sparkSession, projections, schema_of(leaf), frame.schema)


def prepared(
    session: SparkSession,
    projections: Sequence[tuple[Any, Any]],
    given: StructType,
    made: StructType,
) -> tuple[str, int]:
    """As `computed`, for Catalyst's own expressions and attributes, projection by projection."""
    with _lock, refused_internals():
        return _service(session).add(projections, given, made)


def prepared_call(
    session: SparkSession, given: StructType, made: StructType, binary_as_bytes: bool
) -> tuple[str, tuple[int, int]]:
    """Prepare a call of functions that take pickled rows: the socket's path, and the numbers under
    which workers ask for pickled arguments and for results."""
    with _lock, refused_internals():
        return _service(session).add_call(given, made, binary_as_bytes)


def _service(session: SparkSession) -> _Service:
    global _running
    if _running is None or _running[0] is not session.sparkContext:
        _running = session.sparkContext, _Service(session)
    return _running[1]


@contextmanager
def refused_internals() -> Iterator[None]:
    """NotComputableError for a Spark whose internals are not as expected."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise NotComputableError(
            f"this Spark offers no such service: {str(error).splitlines()[0]}"
        ) from error


def empty_frame(session: SparkSession, schema: Any) -> DataFrame:
    """No rows, of a Spark schema, which the optimiser takes for some: it leaves the selections
    above alone."""
    java: Any = session._jsparkSession
    rows = session.sparkContext._jsc.emptyRDD()
    return DataFrame(java.createDataFrame(rows, java.parseDataType(schema.json())), session)


def nodes_of(frame: DataFrame, names: Collection[str]) -> tuple[Any, list[Any]]:
    """The leaf of the optimised plan, and the nodes above it in the order they run, all of them
    with one of ``names``."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()
    above = []
    while plan.nodeName() in names:
        above.append(plan)
        plan = plan.child()
    if plan.nodeName() not in ("LogicalRDD", "Scan ExistingRDD") or not above:
        raise NotComputableError(f"it has a plan node {plan.nodeName()}")
    return plan, above[::-1]


def schema_of(plan: Any) -> StructType:
    """What a plan node gives."""
    return cast(StructType, _parse_datatype_json_string(plan.schema().json()))
