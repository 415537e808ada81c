"""A worker's thread that waits to be asked what the worker is running (note 059).

It sleeps in a read until then, so that a worker whose function hangs answers, too.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading

from everflow.runtime.worker.stack_samples import SAMPLER, sampled
from everflow.sockets import read_line

log = logging.getLogger("everflow")

_waiting: set[tuple[int, str]] = set()
"""Processes and the gates at which they wait; a fork is another process."""
_lock = threading.Lock()


def wait_for_questions(gate: str) -> None:
    """From now on, on a thread of its own, until the gate closes; returns at once. Where one waits
    there already nothing is done."""
    here = (os.getpid(), gate)
    with _lock:
        if here in _waiting:
            return
        _waiting.add(here)
    threading.Thread(target=_wait, args=(here,), name=SAMPLER, daemon=True).start()


def _wait(here: tuple[int, str]) -> None:
    pid, gate = here
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(gate)
            # closed here: the driver hears of it, whoever keeps the error
            with connection.makefile("rwb") as lines:
                lines.write(json.dumps({"op": "waits", "pid": pid}).encode() + b"\n")
                lines.flush()
                while line := read_line(lines, "a question for samples"):
                    asked = json.loads(line)
                    told = sampled(float(asked["seconds"])).told()
                    answer = {"op": "sampled", "pid": pid, "number": asked["number"], **told}
                    lines.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
                    lines.flush()
    except (OSError, ValueError) as error:  # the driver is gone, most likely
        log.debug("Nobody asks for samples any more: %s", error)
    finally:
        with _lock:
            _waiting.discard(here)
