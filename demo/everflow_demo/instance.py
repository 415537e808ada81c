"""Runs one more instance of the demo: `python -m everflow_demo.instance SETTINGS` (JSON).

It tells what its tasks do in lines of JSON on its standard output. A line ``stop`` on its standard
input makes it hand its tasks over, leave and end; the end of the input, which is also what it sees
when its starter dies, ends it at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from everflow import KafkaStreams
from everflow.config import StreamsConfig
from everflow.errors import EverflowError, FatalError
from everflow.instance.client_state import ENDED, ClientState
from everflow.instance.describe import TaskStatus
from everflow.instance.tasks.task import TaskRole, TaskState
from everflow.records import TaskId
from everflow.spark.session import get_context
from everflow_demo import topology

STOP = "stop"
MARK = '{"everflow":'
"""How a status line begins: Spark's JVM has the same standard output."""
TELL_S = 0.1
EXIT_ABANDONED = 3
_FIGURES = ("lag", "rate", "remaining_s", "copied")


def encode(state: str, tasks: Mapping[TaskId, TaskStatus]) -> str:
    """A status line, without its end."""
    listed = {
        str(task): {
            "role": s.role.value,
            "state": s.state.value,
            **{name: getattr(s, name) for name in _FIGURES},
        }
        for task, s in tasks.items()
    }
    return json.dumps({"everflow": state, "tasks": listed})


def decode(line: str) -> tuple[str, dict[TaskId, TaskStatus]] | None:
    """State and tasks; None for a line of somebody else."""
    if not line.startswith(MARK):
        return None
    found: dict[str, Any] = json.loads(line)
    tasks = {
        TaskId.parse(name): TaskStatus(
            **{**status, "role": TaskRole(status["role"]), "state": TaskState(status["state"])}
        )
        for name, status in found["tasks"].items()
    }
    return found["everflow"], tasks


def main() -> None:
    """Run until told to stop. Exit codes: 0 stopped as told, 1 failed (standard error says why), 3
    abandoned."""
    stop = threading.Event()
    threading.Thread(target=_obey, args=(stop,), name="demo-orders", daemon=True).start()
    try:
        run(StreamsConfig(**json.loads(sys.argv[1])), stop)
    except EverflowError as error:
        sys.exit(f"[{error.code}] {error}")


def run(config: StreamsConfig, stop: threading.Event) -> None:
    """An instance from start to clean end. Raises EverflowError: what stopped it before."""
    context = get_context()
    streams = KafkaStreams(topology.build(), config)
    threading.Thread(target=_tell, args=(streams,), name="demo-status", daemon=True).start()
    streams.start()
    while not stop.wait(TELL_S):
        if streams.state in ENDED:
            raise streams.error or FatalError("the instance stopped by itself")
    if not streams.close():
        raise FatalError("the instance did not end in time")
    context.stop()


def _tell(streams: KafkaStreams) -> None:
    while True:
        state = streams.state
        sys.stdout.write(
            encode(
                state.name, {} if state in (ClientState.CREATED, *ENDED) else streams.all_tasks()
            )
            + "\n"
        )
        sys.stdout.flush()
        if state in ENDED:
            return
        time.sleep(TELL_S)


def _obey(stop: threading.Event) -> None:
    # Not sys.stdin: its lock, held while waiting, would be missed when the interpreter ends.
    while order := os.read(0, 64):
        if STOP.encode() in order:
            stop.set()
    os._exit(EXIT_ABANDONED)  # nobody is left to tell; Spark ends with this process


if __name__ == "__main__":
    main()
