"""Named places at which tests stop or kill a process: `reached` does nothing unless one is armed.

A test sets ``EVERFLOW_CRASH_POINTS`` to a folder and creates ``<folder>/<name>``. The first process
at that point writes its pid into ``<name>.reached``, which replaces ``<name>``, and waits there
until ``<name>.go`` appears or it is killed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

ENVIRONMENT_VARIABLE = "EVERFLOW_CRASH_POINTS"
BEFORE_TRANSACTION = "before-transaction"
FIRST_RECORD = "first-record"
OFFSETS_SENT = "offsets-sent"
COMMITTED = "committed"
APPLYING = "applying"
NAMES = (BEFORE_TRANSACTION, FIRST_RECORD, OFFSETS_SENT, COMMITTED, APPLYING)
"""Of a micro-batch."""
SINK_PARTLY = "sink-partly"
"""The first call of a batch to a sink outside Kafka is over (note 072)."""
SINK_WRITTEN = "sink-written"
"""All sinks outside Kafka have the batch, and Kafka has nothing of it."""
RECOVERING = "recovering"
"""An instance has read the offsets of new tasks, and restores their stores."""
SWITCH_SEEN = "switch-seen"
"""An instance has read that `everflow migrate` has switched, and tells nobody yet."""

_POLL_S = 0.01


def reached(name: str) -> None:
    """This process is at the point ``name``; blocks if a test armed it. Costs about 1 µs
    otherwise."""
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    if folder is None:
        return
    armed = Path(folder, name)
    caught = Path(folder, f"{name}.{os.getpid()}")
    try:
        armed.rename(caught)
    except FileNotFoundError:
        return
    caught.write_text(str(os.getpid()))
    caught.rename(Path(folder, f"{name}.reached"))
    go = Path(folder, f"{name}.go")
    while not go.exists():
        time.sleep(_POLL_S)
    go.unlink()
