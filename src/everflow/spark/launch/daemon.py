"""Spark's Python daemon with our imports done before it forks (`spark.python.daemon.module`).

Without this the first batch after a worker's death pays the imports again (1.6 s against 0.26 s
measured). Where another one has done them already, it is the daemon, and this one stands in for it
(`everflow.spark.launch.handover`).
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import resource
import socket
import sys
import termios
from collections.abc import Iterable
from contextlib import suppress
from pathlib import PurePath

from everflow.clock import to_utc
from everflow.spark.launch.handover import SOCKET_VARIABLE, DaemonPlace, awaited, give, stand_in

MODULE = "everflow.spark.launch.daemon"
AHEAD = "--ahead"
"""With the number of a listening socket: wait there for the daemon that Spark launches."""
AHEAD_S = 300.0
"""Nobody has asked for so long: Spark does not start, or has daemons of another kind."""

PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "lmdb",
    "orjson",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "everflow.runtime.step.task_step",
    "everflow.runtime.worker.kafka_sink",
    "everflow.runtime.worker.worker_ports",
    "everflow.runtime.thread.thread_job",
    "everflow.travel.parcel",
)
_ARCHIVES = PurePath("pyspark", "python", "lib")


def program_last(path: Iterable[str], own: Iterable[str], here: str) -> list[str]:
    """A worker's path with the program's folders ``own``, and the current one, behind those of
    libraries."""
    last = list(own)
    return [entry for entry in path if entry not in {"", here, *last}] + last


def without_archives(path: Iterable[str]) -> list[str]:
    """A worker's path without the archives of PySpark's sources that Spark puts first, where the
    installed PySpark that they lie in is on the path, too: an archive has no byte code, and to
    compile it costs half a second of processor time."""
    entries = list(path)
    archives = [PurePath(entry) / _ARCHIVES for entry in entries]
    return [entry for entry in entries if PurePath(entry).parent not in archives]


def keep_for_good() -> None:
    """What there is by now, modules above all, is no garbage and is never looked through again: a
    worker of PySpark's collects garbage after each task, which took 58 ms of a processor."""
    gc.collect()
    gc.freeze()


def as_a_jvms() -> None:
    """What a daemon has that Spark's JVM launches, and a child of the driver has not: no terminal,
    where one who asks for a password would stop all workers, and as many open files as are
    allowed."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDWR)
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
        os.close(terminal)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Import, then hand over to pyspark's daemon; runs as ``python -m`` with `MODULE`."""
    to_utc()
    own = os.environ.get("EVERFLOW_PROGRAM_PATH", "").split(os.pathsep)
    sys.path[:] = without_archives(program_last(sys.path, filter(None, own), os.getcwd()))
    # Meant for this process, not for those that a function starts.
    os.environ.pop("PYTHONSAFEPATH", None)
    ahead = sys.argv[1:2] == [AHEAD]
    if ahead:
        as_a_jvms()
    elif path := os.environ.get(SOCKET_VARIABLE):
        elsewhere = give(path, DaemonPlace.of_this_process())
        if elsewhere is not None:
            stand_in(elsewhere)
    for name in PRELOADED:
        importlib.import_module(name)
    from pyspark.daemon import manager

    keep_for_good()
    if ahead and not awaited(socket.socket(fileno=int(sys.argv[2])), AHEAD_S):
        return
    sys.stderr.flush()
    manager()


if __name__ == "__main__":
    main()
