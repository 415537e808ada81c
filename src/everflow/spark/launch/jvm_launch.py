"""Launches PySpark's JVM: quiet, deaf to signals for others, alive no longer than its user.

PySpark launches it as a child and waits for the file in which it tells its port. If that wait is
interrupted, the file's folder is removed, the JVM fails to write it, and lives on without anybody
who could end it: only behind that point it watches for the end of its parent.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

from pyspark import SparkContext, java_gateway

from everflow.spark.launch.jvm_ahead import WAIT_S, JvmAhead, recording, taken
from everflow.spark.launch.jvm_output import JvmOutput

log = logging.getLogger("everflow.spark")

END_S = 5.0
LOOK_S = 0.05


@contextmanager
def jvm_ends_with_failure(stop: threading.Event | None = None) -> Iterator[None]:
    """Around the start of a session: whatever it raises, also an interrupt, the JVM that it
    launched has ended before the error goes on, and PySpark has forgotten it, so that a later start
    launches another. A JVM that was there before is left alone. ``stop`` set meanwhile ends the
    JVM, and so the start, with some error of PySpark's.

    The JVM has a process group of its own and ignores what `StopSignals` answers: that comes to it
    when a terminal or a supervisor signals everything that it started, and this process, which then
    ends in order, still needs it. It ends with its standard input, at the end of this process at
    the latest. Not for several threads at once.
    """
    launched: list[subprocess.Popen[Any]] = []
    output = JvmOutput()
    recorded = recording(launched, output)
    were_ahead: list[JvmAhead] = []

    def launch(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        ahead = taken(command, options.get("env", {}))
        if ahead is None:
            return recorded(command, **options)
        were_ahead.append(ahead)
        launched.append(ahead.process)
        return ahead.process

    launcher: Any = java_gateway  # which names Popen for itself
    before, launcher.Popen = launcher.Popen, launch
    done = threading.Event()
    if stop is not None:
        threading.Thread(
            target=_end_on, args=(stop, done, launched), name="everflow-spark-launch", daemon=True
        ).start()
    try:
        yield
    except BaseException as error:
        done.set()
        for process in launched:
            _end(process)
        output.launched()
        if launched:
            _forget()
            if isinstance(error, Exception) and not (stop is not None and stop.is_set()):
                tails = [one.tail() for one in (output, *(one.output for one in were_ahead))]
                log.error("Spark did not start. Its last lines:\n  %s", "\n  ".join(chain(*tails)))
        raise
    finally:
        done.set()
        output.launched()
        launcher.Popen = before
        for ahead in were_ahead:
            ahead.forget_what_it_told()
    for process in launched:
        atexit.register(_end_in_order, process)


def _end_on(
    stop: threading.Event, done: threading.Event, launched: list[subprocess.Popen[Any]]
) -> None:
    while not done.wait(LOOK_S):
        if stop.is_set():
            for process in launched:
                if getattr(process, "pid", None) is not None:
                    with suppress(OSError):
                        os.kill(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[Any]) -> None:
    """spark-submit's shell becomes the JVM (exec), so there is one process to end."""
    if getattr(process, "pid", None) is None:  # not forked yet
        return
    process.kill()
    process.wait(WAIT_S)


def _end_in_order(process: subprocess.Popen[Any]) -> None:
    """At the end of this process: the JVM removes its temporary folders and its Python workers, and
    is gone before we are."""
    if process.poll() is not None or process.stdin is None:
        return
    gateway: Any = SparkContext._gateway
    if gateway is not None and gateway.proc is process:
        # What Python no longer refers to is told to the JVM by a thread of its own: an ending JVM
        # resets that, which it shows.
        gateway._gateway_client.is_connected = False
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(WAIT_S)


def _forget() -> None:
    """What the class keeps of a gateway; a context that was only half made is in
    ``_active_spark_context``."""
    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    if gateway is not None:
        gateway.shutdown()
