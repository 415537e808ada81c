"""The Spark task of a slot: it has a keeper host the instance, and waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

from pyspark import SparkFiles, TaskContext

from everflow.fleet.messages import PROGRAM_FILE, SlotOrder, SlotOutcome


def host_instance(orders: Iterable[str]) -> Iterator[str]:
    """The outcome of each order. RuntimeError where its keeper was killed: Spark then runs the task
    again."""
    for text in orders:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        order = SlotOrder.from_json(text).placed(SparkFiles.get(PROGRAM_FILE), attempt)
        yield kept(order).to_json()


def kept(order: SlotOrder) -> SlotOutcome:
    """How the order's instance ended."""
    keeper = subprocess.Popen(
        [sys.executable, "-m", "everflow.fleet.keeper"],
        stdin=subprocess.PIPE,  # stays open for as long as this process lives
        stdout=subprocess.PIPE,
        start_new_session=True,  # what ends a Python worker of Spark ends its process group
        env=dict(os.environ),
        text=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    with keeper.stdin, keeper.stdout:
        keeper.stdin.write(order.to_json() + "\n")
        keeper.stdin.flush()
        said = keeper.stdout.readline()
    code = keeper.wait()
    try:
        return SlotOutcome.from_json(said)
    except ValueError:
        raise RuntimeError(
            f"the keeper of instance {order.slot} ended without a word (exit code {code})"
        ) from None
