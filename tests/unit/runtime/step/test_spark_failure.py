"""What Spark's text says of a failed job, as one sentence, and what kind of failure it is."""

from __future__ import annotations

import pytest

from everflow.runtime.commit.batch import CodeLine
from everflow.runtime.step.spark_failure import failure_of_text, says

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
        STAGE.format(
            cause="org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
        )
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
