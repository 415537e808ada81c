"""What a failure says: the user's line, the record, the cause in Spark's text."""

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from everflow.errors import RecordError
from everflow.instance.thread.failure_text import ending, in_full
from everflow.protocol.messages import FAILED, BatchResult, CodeLine, as_line, from_line
from everflow.topology.graph import EdgeType, FunctionNode
from everflow.worker.failures import (
    Failures,
    RecordFailure,
    failure_of,
    failure_of_text,
    says,
)
from everflow.worker.task_step import run_function
from unit.builders import edge_batch, source

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
    assert failure.error == (
        "A Column cannot be computed: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to "
        "tolerate divisor being 0 and return "
        "NULL instead."
    )
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
    assert (failure.kind, failure.error) == (
        "worker",
        "A Python worker process died (Segmentation fault)",
    )
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
            "Spark's job failed and does not say why",
        ),
        ("just this", "just this"),
        ("", "Spark's job failed and does not say why"),
    ],
)
def test_the_sentence_is_that_of_the_deepest_cause(text: str, sentence: str) -> None:
    assert says(text) == sentence


EDGE = EdgeType(pa.string(), pa.string())
SOURCES = [source("in")]


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
    node = FunctionNode("node", ("in",), EDGE, "MAP", op, lambda k, v: fn(v), where="app.py:30")
    with pytest.raises(RecordFailure) as raised:
        run_function(node, Failures(node, SOURCES, batch))
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
    assert str(ending(found, 1, "")).splitlines() == [
        "KeyError: 'a' (record in-0@7, node node)",
        f'  at {__file__}:{line} in helper: return json.loads(value)["a"]  # the innermost line',
        "  operator added at app.py:30",
        "  Nothing of its micro-batch was written. Correct the function, or let it handle such "
        "records, and start again: "
        "processing goes on where it stopped.",
    ]
    assert isinstance(ending(found, 1, ""), RecordError)
    assert in_full(found).splitlines()[0] == "KeyError: 'a' (record in-0@7)"


def test_a_result_of_another_type_is_told_without_a_line_of_ours() -> None:
    found = failure(lambda value: 7).failure
    assert found.error.startswith("TypeError: result 7 is not of the declared type: the value")
    assert found.line is None


def test_a_result_whose_repr_fails_is_told_by_its_class() -> None:
    found = failure(lambda value: Hidden()).failure
    assert found.error.startswith(
        "TypeError: result <Hidden, whose __repr__ raises RuntimeError> is not of the declared "
        "type: the value (string): "
    )


def test_an_interrupt_by_a_signal_is_no_error_of_the_function() -> None:
    with pytest.raises(KeyboardInterrupt):
        failure(interrupted)


def test_a_failure_has_its_stack_as_text() -> None:
    found = failure_of(failure(helper))
    assert from_line(as_line(BatchResult(outcome=FAILED, failure=found))).failure == found
    assert "Traceback" in found.details
    assert "in helper" in found.details
