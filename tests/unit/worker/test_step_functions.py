"""Record-by-record operators: results, and the record that a failure names (design D10)."""

import asyncio
import json
import re
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkValueError

from everflow import serdes
from everflow.errors import RecordError
from everflow.instance.thread.failure_text import ending, in_full
from everflow.protocol.messages import (
    FAILED,
    BadRecord,
    BatchResult,
    CodeLine,
    TaskContext,
    as_line,
    from_line,
)
from everflow.records import EdgeBatch, StoreChanges, TaskId
from everflow.state.store import InMemoryStore, OverlayView, StoreSpec
from everflow.topology.graph import (
    EdgeType,
    FunctionNode,
    Graph,
    MergeNode,
    Node,
    SinkNode,
    SourceNode,
)
from everflow.topology.plan import NodeOp, PhysicalPlan, SinkOp, plan
from everflow.worker.failures import Failures, RecordFailure, failure_of, failure_of_text, says
from everflow.worker.order import Order
from everflow.worker.stores import FollowedView, TaskStores
from everflow.worker.task_step import _to_outputs, run_function
from unit.builders import edge_batch, source, store_spec
from unit.instance.own_serde import OwnSerde

TEXT = serdes.string()
SOURCES = [source("in", key=TEXT, value=serdes.long())]
EDGE = EdgeType(pa.string(), pa.int64())


def batch(
    keys: list[Any], values: list[Any], key: pa.DataType = EDGE.key, value: pa.DataType = EDGE.value
) -> EdgeBatch:
    return edge_batch(keys, values, key, value, partition=3, offset=40)


def called(
    op: str, fn: Callable[[Any, Any], Any], given: EdgeBatch, every_failure: bool = False
) -> EdgeBatch:
    node = FunctionNode("node", ("in",), EDGE, "MAP", op, fn, where="app.py:7")
    return run_function(node, Failures(node, SOURCES, given, every_failure))


def pairs(found: EdgeBatch) -> list[tuple[Any, Any]]:
    return list(zip(found.key.to_pylist(), found.value.to_pylist(), strict=True))


def test_every_result_keeps_the_place_of_its_record() -> None:
    found = called("flat_map_values", lambda k, v: range(v), batch(["a", "b", "c"], [2, 0, 1]))
    assert found.offset.tolist() == [40, 40, 42]
    assert found.seq.tolist() == [0, 0, 2]


def test_an_op_that_nothing_computes_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="rank"):
        called("rank", lambda k, v: v, batch(["a"], [1]))


FAILING: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "raises": ("map_values", lambda k, v: 1 // (v - 2)),
    "raises while it is drained": (
        "flat_map_values",
        lambda k, v: (1 // (v - 2) for _ in range(1)),
    ),
    "another type": ("map_values", lambda k, v: "text" if v == 2 else v),
    "too large": ("map_values", lambda k, v: 2**70 if v == 2 else v),
    "no pair": ("map", lambda k, v: None if v == 2 else (k, v)),
    "no pairs": ("flat_map", lambda k, v: [(k, v, v)] if v == 2 else [(k, v)]),
    "a text for a pair": ("map", lambda k, v: "ab" if v == 2 else (k, v)),
    "a text for the first pair": (
        "flat_map",
        lambda k, v: {1: [(k, v)], 2: ["ab"], 3: [(k, v), 5]}[v],
    ),
    "a text for values": ("flat_map_values", lambda k, v: "12" if v == 2 else [v]),
    "a dict for values": ("flat_map_values", lambda k, v: {1: "x"} if v == 2 else [v]),
    "a text for pairs": ("flat_map", lambda k, v: "" if v == 2 else [(k, v)]),
    "bytes for a pair": ("flat_map", lambda k, v: [b"ab"] if v == 2 else [(k, v)]),
    "a dict for a pair": ("map", lambda k, v: {"key": k, "value": v} if v == 2 else (k, v)),
    "no truth": ("filter", lambda k, v: np.array([1, 2]) if v == 2 else True),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_names_its_record(name: str) -> None:
    op, fn = FAILING[name]
    with pytest.raises(RecordFailure) as failure:
        called(op, fn, batch(["a", "b", "c"], [1, 2, 3]))
    found = failure.value.failure
    assert found.record == BadRecord("in", 3, 41, "node")
    assert (found.kind, found.where) == ("record", ("app.py:7",))
    assert found.error.partition(":")[0] in {"ZeroDivisionError", "TypeError", "ValueError"}


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        (lambda k, v: v["amount"], True),
        (lambda k, v: v.get("amount"), True),
        (lambda k, v: 1 // (len(v) - 2), False),
    ],
)
def test_who_takes_a_field_of_bytes_is_told(fails: Callable[[Any, Any], Any], told: bool) -> None:
    with pytest.raises(RecordFailure) as failure:
        called("map_values", fails, batch(["a"], [b"{}"], value=pa.binary()))
    hint = "the value is undecoded bytes; give the stream a serde, e.g. value=serdes.json("
    assert (hint in failure.value.failure.error) is told


def test_whoever_writes_columns_in_a_function_reads_that_it_gets_values() -> None:
    def both(key: Any, value: Any) -> Any:
        raise PySparkValueError("Cannot convert column into bool: please use '&' for 'and'")

    with pytest.raises(RecordFailure) as failure:
        called("filter", both, batch(["a"], [1]))
    assert "please use '&' for 'and'" in failure.value.failure.error
    assert "gets values, not Columns" in failure.value.failure.error


def test_a_value_that_a_serde_of_the_user_cannot_write_names_record_and_line() -> None:
    op = SinkOp(
        name="sink",
        topic="out",
        key_serde=TEXT,
        value_serde=OwnSerde(),
        drop_null_keys=False,
        inputs=(1,),
        where="app.py:9",
    )
    with pytest.raises(RecordFailure) as failure:
        _to_outputs(op, Failures(op, SOURCES, batch(["x", "y"], ["A", "B"], value=pa.string())))
    found = failure.value.failure
    assert (found.error, found.record) == ("KeyError: 'B'", BadRecord("in", 3, 41, "sink"))
    assert found.line is not None
    assert found.line.function == "encode"
    assert found.where == ("app.py:9",)


def test_of_several_failures_each_has_its_own_stack_alone() -> None:
    def fails(key: str, value: int) -> int:
        raise ValueError(f"no {key}")

    with pytest.raises(RecordFailure) as failure:
        called("map_values", fails, batch(["a", "b"], [1, 2]), every_failure=True)
    (other,) = failure.value.others
    assert str(other.__cause__) == "no b"
    assert "no a" not in "".join(traceback.format_exception(other.__cause__))


# What comes by several ways comes as Kafka Streams forwards it: depth first (note 031).

ORDER_EDGE = EdgeType(pa.string(), pa.string())
RECORDS = ("r0", "r1", "r2")


def one(name: str) -> FunctionNode:
    return FunctionNode(name, (), ORDER_EDGE, "MAP", "map_values", lambda _, v: f"{v}>{name}")


def several(name: str) -> FunctionNode:
    """Gives two results, or three for every other one, or none."""

    def fn(_: object, value: str) -> list[str]:
        return [f"{value}>{name}{number}" for number in range((len(value) + 1) % 4)]

    return FunctionNode(name, (), ORDER_EDGE, "FLAT", "flat_map_values", fn)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A source, operators and merges of what there is already, and a sink behind all of them."""
    nodes: list[Node] = [SourceNode("n0", (), ORDER_EDGE, ("in",), TEXT, TEXT)]
    for number in range(1, draw(st.integers(2, 9))):
        name, before = f"n{number}", st.sampled_from([node.name for node in nodes])
        merges = len(nodes) > 1 and draw(st.integers(0, 2)) == 0
        if merges:
            both = draw(st.lists(before, min_size=2, max_size=2, unique=True))
            nodes.append(MergeNode(name, tuple(both), ORDER_EDGE))
        else:
            made = draw(st.sampled_from([one, several]))(name)
            nodes.append(replace(made, inputs=(draw(before),)))
    read = {name for node in nodes for name in node.inputs}
    for node in [node for node in nodes if node.name not in read]:
        nodes.append(SinkNode(f"to-{node.name}", (node.name,), ORDER_EDGE, node.name, TEXT, TEXT))
    return Graph(tuple(nodes))


def forwarded(graph: Graph) -> dict[str, list[str]]:
    """What each sink gets if every node hands each result to its children at once."""
    found: dict[str, list[str]] = {n.name: [] for n in graph.nodes if isinstance(n, SinkNode)}

    def reach(node: Node, value: str) -> None:
        results: Iterable[str] = [value]
        if isinstance(node, SinkNode):
            found[node.name].append(value)
        elif isinstance(node, FunctionNode):
            made = node.fn(None, value)
            results = [made] if node.op == "map_values" else made
        for result in results:
            for child in (one for one in graph.nodes if node.name in one.inputs):
                reach(child, result)

    for record in RECORDS:
        reach(graph.nodes[0], record)
    return found


def records() -> EdgeBatch:
    return edge_batch(RECORDS, RECORDS)


def ran(found: PhysicalPlan) -> dict[str, list[str]]:
    """What the sinks get of a plan's operators."""
    slots = {found.sources[0].slot: records()}
    order = Order(slots, found.ways)
    results = {}
    for op in found.ops:
        if isinstance(op, SinkOp):
            results[op.name] = order.read(op).value.to_pylist()
        else:
            assert isinstance(op, NodeOp)
            assert isinstance(op.node, FunctionNode)
            order.keep(op, run_function(op.node, Failures(op, (), order.read(op))))
    return results


def planned(graph: Graph) -> PhysicalPlan:
    return plan(graph, {node.name: 0 for node in graph.nodes}, "app")


@given(graph=graphs())
def test_results_come_as_nodes_forward_them(graph: Graph) -> None:
    assert ran(planned(graph)) == forwarded(graph)


def test_where_one_result_goes_two_ways_nothing_is_kept_of_the_ways() -> None:
    """Branches of a stream that are merged again, behind whatever: the usual program."""
    fn = one("a").fn
    nodes = [
        SourceNode("in", (), ORDER_EDGE, ("in",), TEXT, TEXT),
        FunctionNode("a", ("in",), ORDER_EDGE, "MAP", "map_values", fn),
        FunctionNode("b", ("in",), ORDER_EDGE, "MAP", "map_values", fn),
        MergeNode("both", ("b", "a"), ORDER_EDGE),
        FunctionNode("many", ("both",), ORDER_EDGE, "FLAT", "flat_map_values", several("m").fn),
        SinkNode("out", ("many",), ORDER_EDGE, "out", TEXT, TEXT),
    ]
    assert planned(Graph(tuple(nodes))).ways == {}
    again = FunctionNode("again", ("many",), ORDER_EDGE, "MAP", "map_values", fn)
    merged = MergeNode("all", ("again", "many"), ORDER_EDGE)
    out = SinkNode("out", ("all",), ORDER_EDGE, "out", TEXT, TEXT)
    assert set(planned(Graph((*nodes[:-1], again, merged, out))).ways) == {
        "a",
        "b",
        "many",
        "again",
        "out",
    }


# Views of stores in one step.

SHARED = store_spec("s", value=serdes.string())


def changes(*pairs: tuple[bytes, bytes | None]) -> StoreChanges:
    return StoreChanges(
        "s", [k for k, _ in pairs], [v for _, v in pairs], np.arange(len(pairs), dtype=np.int64)
    )


def filled() -> InMemoryStore:
    store = InMemoryStore(SHARED)
    store.apply(changes((b"a", b"1"), (b"b", b"2"), (b"c", b"3")))
    return store


def test_changes_lie_over_the_store_exactly_as_if_applied() -> None:
    batch = changes(
        (b"b", b"new"), (b"d", b"4"), (b"c", None), (b"a", None), (b"a", b"again"), (b"x", None)
    )
    overlay, applied = OverlayView(filled()), filled()
    overlay.remember(batch)
    applied.apply(batch)
    keys = [b"a", b"b", b"c", b"d", b"x", b"unknown", b"a"]
    assert overlay.get_many(keys) == applied.get_many(keys)
    for start, end in ((None, None), (b"b", None), (None, b"b"), (b"b", b"d"), (b"d", b"b")):
        assert list(overlay.range(start, end)) == list(applied.range(start, end))
    assert overlay.get_many([]) == []
    bounds = [(b"b", b"e"), (b"c", b"d")]
    assert overlay.range_many(bounds) == applied.range_many(bounds)


class Counting:
    """Counts how often a store is opened and closed."""

    def __init__(self) -> None:
        self.opened, self.closed = 0, 0

    @contextmanager
    def view(self, task: TaskContext, spec: StoreSpec) -> Iterator[FollowedView]:
        self.opened += 1
        yield filled()
        self.closed += 1

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        raise AssertionError(reason)


@pytest.mark.parametrize(("shared", "expected"), [(frozenset({"s"}), b"new"), (frozenset(), b"1")])
def test_snapshots_are_opened_once_and_closed(shared: frozenset[str], expected: bytes) -> None:
    access = Counting()
    specs: Sequence[StoreSpec] = (SHARED,)
    with TaskStores(access, [TaskContext(TaskId(0, 1), "i", "b", {"node": 7})], shared) as stores:
        stores.views(TaskId(0, 1), specs)
        stores.remember(TaskId(0, 1), changes((b"a", b"new")))
        (found,) = stores.views(TaskId(0, 1), specs)["s"].get_many([b"a"])
        assert found is not None
        assert found[8:] == expected
        assert (
            stores.stream_time(TaskId(0, 1), "node"),
            stores.stream_time(TaskId(0, 1), "other"),
        ) == (7, -1)
        with pytest.raises(KeyError):
            stores.views(TaskId(0, 2), specs)
        assert (access.opened, access.closed) == (1, 0)
    assert access.closed == 1


# What a failure says.

DIVISION = """[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. If \
necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012
== DataFrame ==
"divide" was called from
java.base/jdk.internal.reflect.NativeMethodAccessorImpl.invoke0(Native Method)

"""  # noqa: E501
STAGE = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost \
task 0.0 in stage 3.0 (TID 3) (localhost executor driver): {cause}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:711)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2936)
"""  # noqa: E501
CRASH = """org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): Fatal Python error: Segmentation fault

Thread 0x00007f15c22156c0 (most recent call first):
  File "selectors.py", line 468 in select

Current thread 0x00007f15d5c30b80 (most recent call first):
  File "{python}/ctypes/__init__.py", line 519 in string_at
  File "app.py", line 34 in boom
  File "app.py", line 40 in caller
"""  # noqa: E501


def test_a_column_that_fails_is_told_with_sparks_sentence_and_the_lines_it_may_be() -> None:
    failure = failure_of_text(DIVISION, ["app.py:3"])
    assert (failure.kind, failure.where) == ("column", ("app.py:3",))
    told = r"A Column .*: \[DIVIDE_BY_ZERO\] .* `try_divide` .* NULL instead\."
    assert re.fullmatch(told, failure.error)
    wrapped = STAGE.format(cause="org.apache.spark.SparkArithmeticException: " + DIVISION)
    assert (failure_of_text(wrapped).kind, failure_of_text(wrapped).error) == (
        "column",
        failure.error,
    )


def test_a_crash_is_told_with_the_innermost_line_of_the_user() -> None:
    import ctypes
    from pathlib import Path

    failure = failure_of_text(
        STAGE.format(cause=CRASH.format(python=Path(ctypes.__file__).parents[1]))
    )
    assert failure.kind == "worker"
    assert failure.error.endswith(" died (Segmentation fault)")
    assert failure.line == CodeLine("app.py", 34, "boom")
    killed = failure_of_text(
        STAGE.format(cause="org.apache.spark.SparkException: Python worker exited unexpectedly (x)")
    )
    assert killed.kind == "worker"
    assert "out of memory" in killed.error
    assert killed.line is None


def test_kinds_of_what_spark_says() -> None:
    memory = STAGE.format(cause="java.lang.OutOfMemoryError: Java heap space")
    assert failure_of_text(memory).kind == "worker"
    assert failure_of_text(STAGE.format(cause="java.lang.IllegalStateException")).kind == "other"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            (
                'Oh:\nTraceback (most recent call last):\n  File "x", line 1\n    f()\nValueError: '
                "bad\n\n\tat j"
            ),
            "ValueError: bad",
        ),
        (
            (
                "An error\n\tat x\nCaused by: worker crashed\n\tat y\nCaused by: "
                "java.io.EOFException\n\tat z"
            ),
            "worker crashed",
        ),
        (
            STAGE.format(cause="java.lang.IllegalStateException: the store is shut"),
            "the store is shut",
        ),
        (
            "An error occurred while calling o1.collectAndServe.\n",
            "Spark's job .* why",
        ),
        ("just this", "just this"),
        ("", "Spark's job .* why"),
    ],
)
def test_the_sentence_is_that_of_the_deepest_cause(text: str, sentence: str) -> None:
    assert re.fullmatch(sentence, says(text))


FAILING_EDGE = EdgeType(pa.string(), pa.string())
FAILING_SOURCES = [source("in")]


def helper(value: str) -> Any:
    return json.loads(value)["a"]  # the innermost line


def endless(value: str) -> Any:
    return endless(value)


def stops(value: str) -> Any:
    raise StopIteration("no more")


def leaves(value: str) -> Any:
    raise SystemExit(3)


class Abort(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("str fails")


class Hidden:
    def __repr__(self) -> str:
        raise RuntimeError("repr fails")

    def __bool__(self) -> bool:
        raise Abort("no truth")


def aborts(value: str) -> Any:
    raise Abort("stop all")


def cancelled(value: str) -> Any:
    raise asyncio.CancelledError("x")


def closed(value: str) -> Any:
    raise GeneratorExit("g")


def mute(value: str) -> Any:
    raise Mute


def interrupts(value: str) -> Any:
    raise KeyboardInterrupt


def interrupted(value: str) -> Any:
    signal.raise_signal(signal.SIGINT)


def chained(value: str) -> Any:
    try:
        return int(value)
    except ValueError as error:
        raise RuntimeError("not mine") from error


def failure(fn: Callable[[str], Any], op: str = "map_values") -> RecordFailure:
    batch = edge_batch(["k"], ["{}"], offset=7)
    node = FunctionNode(
        "node", ("in",), FAILING_EDGE, "MAP", op, lambda k, v: fn(v), where="app.py:30"
    )
    with pytest.raises(RecordFailure) as raised:
        run_function(node, Failures(node, FAILING_SOURCES, batch))
    return raised.value


@pytest.mark.parametrize(
    ("fn", "op", "text", "function"),
    [
        (helper, "map_values", "KeyError: 'a'", "helper"),
        (lambda v: json.loads("{"), "map_values", "JSONDecodeError", "<lambda>"),
        (endless, "map_values", "RecursionError: maximum recursion depth exceeded", "endless"),
        (stops, "map_values", "StopIteration: no more", "stops"),
        (leaves, "map_values", "SystemExit: 3 (a function cannot end the application", "leaves"),
        (chained, "map_values", "RuntimeError: not mine", "chained"),
        (aborts, "map_values", "Abort: stop all", "aborts"),
        (cancelled, "map_values", "CancelledError: x", "cancelled"),
        (closed, "map_values", "GeneratorExit: g", "closed"),
        (
            interrupts,
            "map_values",
            "KeyboardInterrupt (a function cannot end the application",
            "interrupts",
        ),
        (mute, "map_values", "Mute: (its __str__ raises RuntimeError)", "mute"),
        (lambda v: (aborts(v) for _ in range(1)), "flat_map_values", "Abort: stop all", "aborts"),
        (lambda v: Hidden(), "filter", "Abort: no truth", "__bool__"),
        (
            lambda v: (stops(v) for _ in range(1)),
            "flat_map_values",
            "RuntimeError: generator raised StopIteration",
            "stops",
        ),
    ],
)
def test_the_innermost_line_of_the_users_own_code(
    fn: Callable[[str], Any], op: str, text: str, function: str
) -> None:
    found = failure(fn, op).failure
    assert found.error.startswith(text)
    assert found.line is not None
    assert (found.line.file, found.line.function) == (__file__, function)


def test_the_message_has_the_record_both_lines_and_the_cure() -> None:
    found = failure(helper).failure
    line = helper.__code__.co_firstlineno + 1
    first, place, operator, cure = str(ending(found, 1, "")).splitlines()
    assert first == "KeyError: 'a' (record in-0@7, node node)"
    assert place.startswith(f'  at {__file__}:{line} in helper: return json.loads(value)["a"]')
    assert operator.endswith(" at app.py:30")
    assert "start again" in cure
    assert isinstance(ending(found, 1, ""), RecordError)
    assert in_full(found).splitlines()[0] == "KeyError: 'a' (record in-0@7)"


def test_a_result_of_another_type_is_told_without_a_line_of_ours() -> None:
    found = failure(lambda value: 7).failure
    assert found.error.startswith("TypeError: result 7 is not ")
    assert found.line is None


def test_a_result_whose_repr_fails_is_told_by_its_class() -> None:
    found = failure(lambda value: Hidden()).failure
    told = r"TypeError: result <Hidden, .*__repr__ .* RuntimeError> .* \(string\): "
    assert re.match(told, found.error)


def test_an_interrupt_by_a_signal_is_no_error_of_the_function() -> None:
    with pytest.raises(KeyboardInterrupt):
        failure(interrupted)


def test_a_failure_has_its_stack_as_text() -> None:
    found = failure_of(failure(helper))
    assert from_line(as_line(BatchResult(outcome=FAILED, failure=found))).failure == found
    assert "Traceback" in found.details
    assert "in helper" in found.details
