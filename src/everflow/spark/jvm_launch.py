"""A JVM that PySpark launched must not outlive a start that failed.

PySpark launches it as a child and waits for the file in which it tells its port. If that wait is interrupted, the file's folder is
removed, the JVM fails to write it, and lives on without anybody who could end it: only behind that point it watches for the end of
its parent.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext, java_gateway

WAIT_S = 10.0


@contextmanager
def jvm_ends_with_failure() -> Iterator[None]:
    """Around the start of a session: whatever it raises, also an interrupt, the JVM that it launched has ended before the error
    goes on, and PySpark has forgotten it, so that a later start launches another. A JVM that was there before is left alone.

    Not for several threads at once.
    """
    launched: list[subprocess.Popen[Any]] = []

    class Recorded(subprocess.Popen[Any]):
        """Known before the fork: an interrupt may come before the constructor returns."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            launched.append(self)
            super().__init__(*arguments, **options)

    launcher: Any = java_gateway  # which names Popen for itself
    before, launcher.Popen = launcher.Popen, Recorded
    try:
        yield
    except BaseException:
        for process in launched:
            _end(process)
        if launched:
            _forget()
        raise
    finally:
        launcher.Popen = before


def _end(process: subprocess.Popen[Any]) -> None:
    """spark-submit's shell becomes the JVM (exec), so there is one process to end."""
    if getattr(process, "pid", None) is None:  # not forked yet
        return
    process.kill()
    process.wait(WAIT_S)


def _forget() -> None:
    """What the class keeps of a gateway; a context that was only half made is in ``_active_spark_context``."""
    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    if gateway is not None:
        gateway.shutdown()
