"""Programs, each read in a process of its own: two versions have modules of one name.

They share one Spark, which takes most of the time. It starts when the first of them needs it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO

import typer

from everflow.console.status import StatusLine
from everflow.errors import TopologyError
from everflow.retry import shown_by

_ANSWER = "from everflow.cli.program_processes import answer; answer()"
_ASK, _FOUND = b"s", b"f"
_LOADING_S = 2.0
_END_S = 30.0


def read(
    what: str, asked: Sequence[tuple[str, Mapping[str, object] | None]], status: StatusLine
) -> list[bytes]:
    """What the function ``what`` (``module:name``) makes of each program in its process: it gets
    the topology and what stands beside its target here, as JSON. TopologyError with what the
    process says where it fails; SetupError where Spark does not start."""
    lasting = partial(status.waiting, after_s=_LOADING_S)
    targets = [target for target, _ in asked]
    found: dict[int, bytes] = {}
    with ExitStack() as opened, shown_by(lasting), lasting(f"loading {' and '.join(targets)}"):
        processes, errors, reading = [], [], dict[Connection, int]()
        for number, (target, given) in enumerate(asked):
            errors.append(opened.enter_context(tempfile.TemporaryFile()))
            process, connection = _started(what, target, errors[-1])
            opened.callback(_end, process, connection)
            processes.append(process)
            reading[connection] = number
            _send(connection, json.dumps(given).encode())
        while reading:
            for ready in wait(list(reading)):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv_bytes()
                except (EOFError, OSError):
                    del reading[ready]
                    continue
                if message == _ASK:
                    _send(ready, _lent())
                else:
                    found[reading[ready]] = message.removeprefix(_FOUND)
        for number, (target, process) in enumerate(zip(targets, processes, strict=True)):
            code = process.wait()
            if code or number not in found:
                errors[number].seek(0)
                said = errors[number].read().decode(errors="replace").strip()
                raise TopologyError(
                    f"{target} cannot be loaded (exit code {code}):\n{said}", code="EF-PROGRAM"
                )
    return [found[number] for number in range(len(asked))]


def _started(
    what: str, target: str, errors: IO[bytes]
) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _ANSWER, str(theirs.fileno()), what, target],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a program may print while it is imported
            stderr=errors,
            pass_fds=[theirs.fileno()],
        )
    return process, ours


def _send(connection: Connection, data: bytes) -> None:
    """To a process that may have ended: its exit code and its words say why."""
    with suppress(OSError):
        connection.send_bytes(data)


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    process.kill()
    process.wait(_END_S)


def _lent() -> bytes:
    from everflow.spark.session import gateway_of, get_context

    return json.dumps(gateway_of(get_context())).encode()


def answer() -> None:
    """The process of one program."""
    from everflow.cli.commands import errors_for_people
    from everflow.cli.program import load_topology
    from everflow.spark.session import borrow, get_context

    number, what, target = sys.argv[1:]
    os.set_inheritable(int(number), False)
    with Connection(int(number)) as parent:

        def ask() -> tuple[int, str]:
            parent.send_bytes(_ASK)
            port, secret = json.loads(parent.recv_bytes())
            return port, secret

        borrow(ask)
        try:
            with errors_for_people(False):
                given = json.loads(parent.recv_bytes())
                topology = load_topology(target, start_spark=get_context)
                module, _, name = what.partition(":")
                found = getattr(importlib.import_module(module), name)(topology, given)
                parent.send_bytes(_FOUND + found)
        except typer.Exit as failed:
            sys.exit(failed.exit_code)
