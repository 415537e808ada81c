"""Computes Columns in the instance's JVM without a Spark job; calls functions in them (note 014).

The service in the JVM runs the optimised plan's expressions by Spark's own `UnsafeProjection`, one
row for one row, so that a failing row names its record. It refuses other nodes and unknown Sparks.

A selection that calls Python functions is cut as Spark's optimiser cuts it, into stages of `plan`.
A Column with an Arrow expression is planned when a worker asks a socket: it takes 2 s (note 016).
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, cast

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.cloudpickle import cloudpickle as untyped
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    DataType,
    StringType,
    StructField,
    StructType,
    _parse_datatype_json_string,
)

from everflow.sockets import MOST_MESSAGE_BYTES, socket_folder_of_process
from everflow.topology.plan import Call, Chain, Compute, Pick, Stage, Ticket

log = logging.getLogger("everflow.spark")

# --- the service in the JVM -----------------------------------------------------------------------

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
        self, projections: Sequence[tuple[Any, Any]], input_type: StructType, made: StructType
    ) -> tuple[str, int]:
        expressions, inputs = self._jvm.java.util.ArrayList(), self._jvm.java.util.ArrayList()
        for project_list, attributes in projections:
            expressions.add(project_list)
            inputs.add(attributes)
        parse = self._session._jsparkSession.parseDataType
        self._prepared += 1
        self._java.add(
            self._prepared, expressions, inputs, parse(input_type.json()), parse(made.json())
        )
        return self.path, self._prepared

    def add_call(
        self, input_type: StructType, made: StructType, binary_as_bytes: bool
    ) -> tuple[str, tuple[int, int]]:
        parse = self._session._jsparkSession.parseDataType
        self._prepared += 2
        arguments, results = self._prepared - 1, self._prepared
        kind = made if len(made) > 1 else made[0].dataType
        self._java.addCall(
            arguments,
            parse(input_type.json()),
            binary_as_bytes,
            results,
            parse(kind.json()),
            parse(made.json()),
        )
        return self.path, (arguments, results)


def computed(frame: DataFrame) -> tuple[str, int]:
    """Prepare what ``frame``, selections above an `empty_frame`, makes of its rows; the socket's
    path and the number to ask for. NotComputableError. Any thread; lasts with the JVM."""
    with _lock, refused_internals():
        leaf, nodes = nodes_of(frame, ("Project",))
        projections = [(plan.projectList(), plan.child().output()) for plan in nodes]
        return _service(frame.sparkSession).add(projections, schema_of(leaf), frame.schema)


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
    """No rows, which the optimiser takes for some: it leaves the selections above alone."""
    java: Any = session._jsparkSession
    rows = session.sparkContext._jsc.emptyRDD()
    return DataFrame(java.createDataFrame(rows, java.parseDataType(schema.json())), session)


def nodes_of(frame: DataFrame, names: Collection[str]) -> tuple[Any, list[Any]]:
    """The leaf of the optimised plan, and the nodes above it in turn, all of these ``names``."""
    plan: Any = frame._jdf.queryExecution().optimizedPlan()
    above = []
    while plan.nodeName() in names:
        above.append(plan)
        plan = plan.child()
    if plan.nodeName() not in ("LogicalRDD", "Scan ExistingRDD") or not above:
        raise NotComputableError(f"it has a plan node {plan.nodeName()}")
    return plan, above[::-1]


def schema_of(plan: Any) -> StructType:
    return cast(StructType, _parse_datatype_json_string(plan.schema().json()))


# --- preparing Columns when a worker asks ---------------------------------------------------------

_door_lock = threading.Lock()
_door: _Door | None = None

Prepare = Callable[[], tuple[str, int]]
"""Prepares, and gives the socket of the service and the number there."""


class _Door:
    """One per process. A worker sends its ticket's number, and gets what `Prepare` gives, or why
    not and None."""

    def __init__(self) -> None:
        self.path = str(socket_folder_of_process() / "d")
        self._lock = threading.Lock()
        self._wanted: list[Prepare] = []
        self._prepared: dict[int, tuple[str, int]] = {}
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(self.path)
        self._listening.listen()
        threading.Thread(
            target=self._serve,
            name="everflow-columns-door",
            daemon=True,
        ).start()

    def add(self, prepare: Prepare) -> int:
        with self._lock:
            self._wanted.append(prepare)
            return len(self._wanted) - 1

    def _serve(self) -> None:
        while True:
            accepted, _ = self._listening.accept()
            with suppress(OSError, EOFError, ValueError), Connection(accepted.detach()) as asking:
                answer = self._answer(int(asking.recv_bytes(MOST_MESSAGE_BYTES)))
                asking.send_bytes(json.dumps(answer).encode())

    def _answer(self, ticket: int) -> tuple[str, int | None]:
        try:
            if ticket not in self._prepared:
                with self._lock:
                    prepare = self._wanted[ticket]
                log.info("Arrow leaves Columns to Spark for the first time: preparing them")
                self._prepared[ticket] = prepare()
            return self._prepared[ticket]
        except Exception as error:
            log.warning("Columns could not be prepared", exc_info=True)
            return f"{type(error).__name__}: {error}", None


def prepared_later(prepare: Prepare) -> Ticket:
    """The ticket for what ``prepare`` gives, which the door's thread calls once at most. Any
    thread."""
    global _door
    with _door_lock:
        _door = _door or _Door()
        return Ticket(_door.path, _door.add(prepare))


# --- Columns as stages ----------------------------------------------------------------------------


def spark_type(kind: pa.DataType) -> DataType:
    """The Spark type of an Arrow type (``null`` becomes string: Spark carries no void columns)."""
    return StringType() if pa.types.is_null(kind) else from_arrow_type(kind)


def struct_type(fields: pa.Schema) -> StructType:
    return StructType([StructField(field.name, spark_type(field.type)) for field in fields])


_CALLS = ("ArrowEvalPython", "BatchEvalPython")


def staged(frame: DataFrame) -> tuple[str, tuple[Stage, ...]]:
    """The stages of ``frame``, some selections above an `empty_frame`, and the socket where they
    are computed (empty: nowhere). NotComputableError."""
    with _lock, refused_internals():
        leaf, nodes = nodes_of(frame, ("Project", *_CALLS))
        cut = _Cut(frame.sparkSession, schema_of(leaf))
        for node in nodes:
            if node.nodeName() in _CALLS:
                cut.call(node)
            else:
                cut.waiting.append((node.projectList(), node.child().output()))
        cut.compute()
        return cut.path, tuple(cut.stages)


class _Cut:
    """Collects stages. Projections wait until their result is needed: they go in one request."""

    def __init__(self, session: SparkSession, input_type: StructType) -> None:
        self._session = session
        self._jvm: Any = session._jvm
        self._input_type = input_type
        self.waiting: list[tuple[Any, Any]] = []
        """Expressions of projections, and the attributes that they read."""
        self.stages: list[Stage] = []
        self.path = ""

    def compute(self) -> None:
        """Stages for what waits; without the JVM where nothing is to compute."""
        if not self.waiting:
            return
        last = list(_items(self.waiting[-1][0]))
        made = _struct([_type(expression) for expression in last])
        paths = [_paths(*projection) for projection in self.waiting]
        picks = [Pick(tuple(found)) for found in paths if found is not None]
        if len(picks) == len(paths):
            self.stages += picks
        else:
            service = _service(self._session)
            self.path, number = service.add(self.waiting, self._input_type, made)
            self.stages.append(Compute(number, _arrow(made)))
        self._input_type, self.waiting = made, []

    def call(self, node: Any) -> None:
        """A plan node that calls functions, whose inputs stand behind the columns that it keeps."""
        kept = node.child().output()
        inputs: list[Any] = []
        chains = tuple(self._chain(udf, inputs) for udf in _items(node.udfs()))
        expressions = self._jvm.java.util.ArrayList()
        for expression in (*_items(kept), *inputs):
            expressions.add(expression)
        self.waiting.append((self._jvm.PythonUtils.toSeq(expressions), kept))
        self.compute()
        count = kept.size()
        input_type = _struct([field.dataType for field in self._input_type.fields[count:]])
        made = _struct([_type(udf) for udf in _items(node.udfs())])
        settings = self._settings()
        pickled = None
        if node.nodeName() == "BatchEvalPython":
            as_bytes = settings.get("spark.sql.execution.pyspark.binaryAsBytes", "true") == "true"
            self.path, pickled = _service(self._session).add_call(input_type, made, as_bytes)
        self.stages.append(
            Call(
                eval_type=int(node.udfs().apply(0).evalType()),
                chains=chains,
                kept=count,
                settings=settings,
                input_type=input_type.json(),
                made=_arrow(made),
                pickled=pickled,
            )
        )
        self._input_type = _struct(
            [field.dataType for field in (*self._input_type.fields[:count], *made)]
        )

    def _settings(self) -> dict[str, str]:
        runner = self._jvm.org.apache.spark.sql.execution.python.ArrowPythonRunner
        settings = runner.getPythonRunnerConfMap(self._session._jsparkSession.sessionState().conf())
        return dict(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(settings))

    def _chain(self, udf: Any, inputs: list[Any]) -> Chain:
        """A call and those inside it that Spark makes at once. Its arguments are added to
        ``inputs``."""
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
        return bytes(udf.func().command().toArray(self._jvm.scala.reflect.ClassTag.Byte()))


def _paths(expressions: Any, attributes: Any) -> list[tuple[int, ...]] | None:
    """The paths of a projection's columns in its input; None if one is computed."""
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


cloudpickle: Any = untyped


def function_of(command: bytes) -> tuple[Callable[..., Any], Any]:
    """A function that PySpark has pickled for a UDF, and its result's Spark type. One of a loaded
    module gets that module's variables, not copies; a closure is as at the UDF's first call."""
    function, kind = _Unpickler(io.BytesIO(command)).load()
    return function, kind


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        here = module == cloudpickle.__name__ and _HERE.get(name)
        return here or super().find_class(module, name)


def _make_function(
    code: CodeType, facts: dict[str, Any], name: Any, defaults: Any, cells: Any
) -> FunctionType:
    module = sys.modules.get(facts.get("__name__", ""))
    space = facts if module is None else vars(module)
    space.setdefault("__builtins__", __builtins__)
    return FunctionType(code, space, name, defaults, cells)


def _function_setstate(fn: FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, slots = state
    space = fn.__globals__
    pickled = slots["__globals__"].items()
    missing = {name: value for name, value in pickled if name not in space}
    builtins = space["__builtins__"]
    cloudpickle._function_setstate(fn, (attributes, {**slots, "__globals__": missing}))
    space["__builtins__"] = builtins


_HERE: dict[str, Any] = {
    "_make_function": _make_function,
    "_function_setstate": _function_setstate,
}
