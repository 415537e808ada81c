"""A job that fails because its Spark has ended says so; other faults stay what they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from everflow.spark.job import SparkGoneError, SparkJobError, failure

STOPPED: Any = SimpleNamespace(_jsc=None)
"""As PySpark leaves a context after ``stop()``."""
LIVING: Any = SimpleNamespace(
    _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
)


def missing() -> AttributeError:
    """What a call on a stopped context meets."""
    try:
        STOPPED._jsc.setLocalProperty("a", "b")
    except AttributeError as error:
        return error
    raise AssertionError


def test_a_context_that_was_stopped_in_this_process_is_named() -> None:
    found = failure(STOPPED, missing())
    assert isinstance(found, SparkGoneError)
    assert "spark.stop()" in str(found)


def test_an_error_of_the_jvm_with_a_stopped_context_is_its_end() -> None:
    assert type(failure(STOPPED, OSError("Job 3 cancelled"))) is SparkGoneError


def test_where_spark_lives_a_failed_job_is_a_failed_job() -> None:
    assert type(failure(LIVING, OSError("an answer got lost"))) is SparkJobError


def test_an_error_in_our_own_code_is_no_matter_of_spark() -> None:
    error = missing()
    with pytest.raises(AttributeError) as raised:
        failure(LIVING, error)
    assert raised.value is error
