"""Starts a daemon of Spark's Python workers beside the start of Spark.

Spark launches its daemon for the first job, when its JVM is up; the daemon's imports, 0.7 s of a
processor, were waited for then, by everybody. One that has done them takes the place of the one
that Spark launches (`give`); where it is not the same, or has gone, nothing but time is lost.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import NamedTuple

from everflow.sockets import remove_socket_folder, socket_folder_of_process
from everflow.spark.launch.daemon import AHEAD, MODULE, SOCKET_VARIABLE
from everflow.spark.launch.jvm_launch import deaf

_BY_SPARK = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "YES"}
"""Variables that Spark sets for a daemon and that libraries read when they are imported."""
_HASH_SEED = "PYTHONHASHSEED"
_SPARKS_HASH_SEED = "0"
"""PySpark's, where none is set."""


class _Ahead(NamedTuple):
    process: subprocess.Popen[bytes]
    socket: str


_ahead: list[_Ahead] = []
"""One at the most; it stays here when it has become the daemon."""


def launch(workers: Mapping[str, str]) -> None:
    """Let a daemon start for workers of this environment; returns at once. Nothing happens where
    there is one, and where this process's JVM was launched by somebody else, with variables of its
    own. Whatever goes wrong is found, and told, by the one that Spark launches. Not for several
    threads at once."""
    running = bool(_ahead) and _ahead[0].process.poll() is None
    if running or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    _ahead.clear()
    try:
        folder = socket_folder_of_process()
        process = _launched(path := str(folder / "p"), workers)
    except OSError:
        return
    _ahead.append(_Ahead(process, path))

    def reap() -> None:
        process.wait()  # it is this process's child, and nobody else's to be reaped
        remove_socket_folder(folder)

    threading.Thread(target=reap, name="everflow-daemon-ahead", daemon=True).start()


def _launched(path: str, workers: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        _HASH_SEED: os.environ.get(_HASH_SEED, _SPARKS_HASH_SEED),
        **workers,
        **_BY_SPARK,
        SOCKET_VARIABLE: path,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(1)
        number = listening.fileno()
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        return subprocess.Popen(
            [python, "-m", MODULE, AHEAD, str(number)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(number,),
            preexec_fn=_apart,
        )


def _apart() -> None:
    deaf()
    os.setpgid(0, 0)


def variable() -> dict[str, str]:
    """The variable by which a worker's daemon finds the one that was started ahead. It is the same
    from the launch on, since Spark has a daemon for each environment."""
    return {SOCKET_VARIABLE: _ahead[0].socket} if _ahead else {}


def discard() -> None:
    """End it, if it is no daemon yet; Spark has ended then, or is somebody else's. Idempotent."""
    for one in _ahead:
        if one.process.stdin is not None:
            one.process.stdin.close()
