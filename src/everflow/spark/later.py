"""Starts Spark when PySpark is first asked for it: programs without Columns never wait.

``pyspark.sql.functions`` ask whatever is the active SparkContext for its JVM, so a stand-in takes
that place until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext

_chosen: list[Callable[[], object]] = []
"""How the one that is inside `started_by` starts Spark."""


class LaterContext:
    """In the place of the active SparkContext: the first attribute that is asked of it starts the
    real one, which then answers this and every later question, and is the active one. Any thread
    may ask."""

    def __init__(self, start: Callable[[], object]) -> None:
        self._start = start
        self._real: SparkContext | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by copy, pickle, notebooks: not meant for Spark
            raise AttributeError(name)
        if self._real is None:
            (_chosen[-1] if _chosen else self._start)()
            self._real = running_context()
        return getattr(self._real, name)

    def __bool__(self) -> bool:
        """PySpark refuses a second SparkContext where there is one: here there is none yet."""
        return False


def running_context() -> SparkContext | None:
    """The SparkContext that runs; None where there is a stand-in or nothing."""
    found: object = SparkContext._active_spark_context
    return found if isinstance(found, SparkContext) else None


def stand_in(start: Callable[[], object]) -> None:
    """Let ``start``, which starts a SparkContext, be called when PySpark is first asked for one.
    Nothing changes where one runs, or a stand-in is there already."""
    if SparkContext._active_spark_context is None:
        SparkContext._active_spark_context = LaterContext(start)  # type: ignore[assignment]


@contextmanager
def started_by(start: Callable[[], object]) -> Iterator[None]:
    """While in the block a stand-in starts Spark by ``start``, which calls `get_context` and says
    that it does."""
    _chosen.append(start)
    try:
        yield
    finally:
        _chosen.remove(start)


@contextmanager
def real_one_starts() -> Iterator[None]:
    """The stand-in steps aside for the block, which starts a SparkContext, and comes back if it
    failed."""
    before: object = SparkContext._active_spark_context
    SparkContext._active_spark_context = None
    try:
        yield
    finally:
        if isinstance(before, LaterContext) and SparkContext._active_spark_context is None:
            SparkContext._active_spark_context = before  # type: ignore[assignment]
