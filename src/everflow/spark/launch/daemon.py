"""Spark's Python daemon with our imports done before it forks (`spark.python.daemon.module`), so
that the first batch after a worker's death does not pay them again (1.6 s against 0.26 s).

Where a daemon was started ahead, Spark's gives its place to that one over a socket in a private
folder: its standard streams (SCM_RIGHTS); environment, path and arguments as a line of JSON.
Spark's own becomes a stand-in of a megabyte: it ends when the daemon does, and where Spark ends it,
its streams end, which is PySpark's signal to a daemon to end.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import resource
import select
import socket
import sys
import termios
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath

from everflow.clock import to_utc
from everflow.sockets import read_line

SOCKET_VARIABLE = "EVERFLOW_DAEMON_AHEAD"
"""The socket's path, in the environment of the daemon that Spark launches."""
STREAMS = (0, 1, 2)
TAKEN = b"taken"
ANSWER_S = 20.0
"""The other one may be at its imports still; it has had the time since Spark began to start."""
_OF_A_SHELL = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})
_OF_THE_PATH = frozenset({"PYTHONPATH", "EVERFLOW_PROGRAM_PATH"})
"""They are compared as what they make: `DaemonPlace.path`."""
_SPARKS = ("SPARK_", "PYSPARK_", "PYTHON_", "_PYSPARK_")


@dataclass(frozen=True, kw_only=True)
class DaemonPlace:
    """Everything that a daemon runs with."""

    executable: str
    folder: str
    environment: Mapping[str, str]
    path: Sequence[str]
    arguments: Sequence[str]

    @classmethod
    def of_this_process(cls) -> DaemonPlace:
        return cls(
            executable=sys.executable,
            folder=os.getcwd(),
            environment=dict(os.environ),
            path=list(sys.path),
            arguments=list(sys.argv),
        )

    def take(self) -> None:
        """Let this process have it."""
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path[:] = self.path
        sys.argv[:] = self.arguments


def same_imports(mine: DaemonPlace, asked: DaemonPlace) -> bool:
    """True if imports in ``mine`` are those in ``asked``: interpreter, folder, variables, path."""
    left_out = _OF_A_SHELL | _OF_THE_PATH
    had, has = (
        {name: value for name, value in one.environment.items() if name not in left_out}
        for one in (mine, asked)
    )
    more = has.keys() - had.keys()
    return (
        mine.executable == asked.executable
        and mine.folder == asked.folder
        and all(has.get(name) == value for name, value in had.items())
        and all(name.startswith(_SPARKS) for name in more)
        and [entry for entry in asked.path if entry in mine.path or not _gives_nothing(entry)]
        == [entry for entry in mine.path if entry in asked.path or not _gives_nothing(entry)]
    )


def give(path: str, place: DaemonPlace) -> socket.socket | None:
    """Give ``place`` and this process's streams to the one that waits at ``path``; the connection,
    which ends with that one's life. None where nobody takes it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER_S)
        connection.connect(path)
        socket.send_fds(connection, [b"\n"], STREAMS)
        connection.sendall(json.dumps(asdict(place)).encode() + b"\n")
        if connection.recv(len(TAKEN), socket.MSG_WAITALL) == TAKEN:
            connection.settimeout(None)
            return connection
    except OSError:
        pass
    connection.close()
    return None


def stand_in(connection: socket.socket) -> None:
    """Be there while the other one is; does not return. Not as a Python, which takes ten times the
    memory."""
    os.dup2(connection.fileno(), STREAMS[0])
    with open(os.devnull, "wb") as nowhere:
        for stream in STREAMS[1:]:
            os.dup2(nowhere.fileno(), stream)
    with suppress(OSError):
        os.execvp("cat", ["cat"])  # by another name a binary of many commands is none
    while connection.recv(1):  # where there is no cat
        pass
    os._exit(0)


def awaited(listening: socket.socket, timeout_s: float) -> bool:
    """Wait for somebody, and take the place if it is like this one; False also where stdin ends."""
    mine = DaemonPlace.of_this_process()
    ready, _, _ = select.select([listening.fileno(), STREAMS[0]], [], [], timeout_s)
    if listening.fileno() not in ready:
        return False
    connection, _ = listening.accept()
    listening.close()
    _, streams, _, _ = socket.recv_fds(connection, 1, len(STREAMS))
    asked = None
    with connection.makefile("rb") as lines, suppress(OSError, ValueError, TypeError):
        asked = DaemonPlace(**json.loads(read_line(lines, "the place of a daemon")))
    if len(streams) != len(STREAMS) or asked is None or not same_imports(mine, asked):
        connection.close()
        return False
    asked.take()
    for received, stream in zip(streams, STREAMS, strict=True):
        os.dup2(received, stream)
        os.close(received)
    connection.sendall(TAKEN)
    # It says whether this process lives, not whether a worker does.
    os.register_at_fork(after_in_child=connection.close)
    return True


def _gives_nothing(entry: str) -> bool:
    """A folder that is empty or not there, and Spark's archive of Java classes."""
    folder = Path(entry)
    return (
        folder.suffix == ".jar"
        or not folder.exists()
        or (folder.is_dir() and not any(folder.iterdir()))
    )


MODULE = "everflow.spark.launch.daemon"
AHEAD = "--ahead"
"""Option with the number of a listening socket: wait there for the daemon that Spark launches."""
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
    "everflow.worker.serve",
    "everflow.worker.sink",
)
_ARCHIVES = PurePath("pyspark", "python", "lib")


def program_last(path: Iterable[str], own: Iterable[str], here: str) -> list[str]:
    """A worker's path with the program's folders ``own``, and the current one, behind libraries."""
    last = list(own)
    return [entry for entry in path if entry not in {"", here, *last}] + last


def without_archives(path: Iterable[str]) -> list[str]:
    """A worker's path without archives of an installed PySpark: compiling them takes 0.5 s."""
    entries = list(path)
    archives = [PurePath(entry) / _ARCHIVES for entry in entries]
    return [entry for entry in entries if PurePath(entry).parent not in archives]


def keep_for_good() -> None:
    """Exempt what exists now from garbage collection: PySpark's workers collect after each task (58
    ms)."""
    gc.collect()
    gc.freeze()


def as_a_jvms() -> None:
    """Make this child of the driver like a daemon that Spark's JVM launches: without a terminal (a
    prompt for a password would stop all workers), and with as many open files as are allowed."""
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

    from everflow.travel.pickled_objects import no_program_yet

    keep_for_good()
    no_program_yet()
    if ahead and not awaited(socket.socket(fileno=int(sys.argv[2])), AHEAD_S):
        return
    sys.stderr.flush()
    manager()


if __name__ == "__main__":
    main()
