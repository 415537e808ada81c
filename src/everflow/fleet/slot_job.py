"""A slot of a fleet: a Spark job of one task, whose keeper runs one instance."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkFiles, TaskContext

from everflow.autoscale import InstanceSeen
from everflow.errors import FatalError
from everflow.fleet.control import Places
from everflow.fleet.decision import PROGRAM_FILE, Report, SlotOrder, SlotOutcome, Wanted

log = logging.getLogger("everflow.fleet")

FAILED = 70
"""The exit code of a slot whose job failed."""


class Jobs(Protocol):
    def run(self, order: SlotOrder) -> SlotOutcome:
        """Have the order carried out on some host, and wait for its end. Any error of Spark's."""

    def cancel(self, slot: int) -> None:
        """Let the job of a slot fail."""


class SlotJob:
    """An `everflow.autoscale.Instance`. Used by the loop's thread; the job is waited for by a
    thread of its own."""

    def __init__(self, order: SlotOrder, places: Places, jobs: Jobs) -> None:
        self.number = order.slot
        self.ending = False
        self._order, self._places, self._jobs = order, places, jobs
        self._outcome: SlotOutcome | None = None
        self._last: Report | None = None
        places.open(order.slot)
        self._thread = threading.Thread(
            target=self._wait_for_the_job, name=f"everflow-slot-{order.slot}", daemon=True
        )
        self._thread.start()

    @property
    def where(self) -> str:
        last = self._places.last(self.number) or self._last
        return "Spark chooses the host" if last is None else f"{last.host}: {last.log}"

    @property
    def code(self) -> int | None:
        return None if self._outcome is None else self._outcome.code

    def seen(self) -> InstanceSeen:
        self._cancel_if_deaf()
        return self._places.seen(self.number, self.ending)

    def end(self, for_good: bool) -> None:
        self.ending = True
        self._places.want(self.number, Wanted.drain if for_good else Wanted.stop)
        self._cancel_if_deaf()

    def _cancel_if_deaf(self) -> None:
        """Cancel the job of a slot that is to end and has no host: nobody there hears the order,
        and the loop would wait for as long as Spark has no host."""
        if self.ending and self.code is None and self._places.without_s().get(self.number):
            self.kill()

    def wait(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Spark ends the task; its keeper ends the instance in order, if it can."""
        self._jobs.cancel(self.number)

    def tail(self) -> str:
        return "" if self._outcome is None else self._outcome.tail

    def _wait_for_the_job(self) -> None:
        try:
            outcome = self._jobs.run(self._order)
        except Exception as error:
            log.debug("the job of slot %d failed", self.number, exc_info=True)
            outcome = SlotOutcome(FAILED, last_words(error))
        self._last = self._places.close(self.number)
        self._outcome = outcome  # last: from here on the number may be used again


class SparkJobs:
    """Slots as jobs of a cluster; each has a group of its own. Any thread."""

    def __init__(self, context: SparkContext, application_id: str) -> None:
        self._context, self._application_id = context, application_id

    def run(self, order: SlotOrder) -> SlotOutcome:
        context = self._context
        context.setJobGroup(_group(order.slot), f"instance {order.slot} of {self._application_id}")
        orders = context.parallelize([order.to_json()], 1)
        (outcome,) = orders.mapPartitions(host_instance).collect()
        return SlotOutcome.from_json(outcome)

    def cancel(self, slot: int) -> None:
        with suppress(Py4JError, OSError):  # a Spark that is gone has no jobs
            self._context.cancelJobGroup(_group(slot))


def _group(slot: int) -> str:
    return f"everflow-slot-{slot}"


def require_running(context: SparkContext) -> None:
    """FatalError where the cluster has ended the application."""
    try:
        runs = context._jsc is not None and not context._jsc.sc().isStopped()
    except (Py4JError, OSError):  # its JVM has ended
        runs = False
    if not runs:
        raise FatalError(
            "Spark has ended the application of the fleet: its master removed it, or somebody "
            "killed it there. The instances end in order; start the fleet again, and they go on "
            "where they were"
        )


def last_words(error: BaseException) -> str:
    """The text of a failed job without Java's stack."""
    text = str(error)
    if "No module named 'everflow'" in text:
        return (
            "The Python of the executors has no everflow: install it there, or name one that has "
            "it (PYSPARK_PYTHON, or --conf spark.pyspark.python=PATH)"
        )
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    return "\n".join(lines[:20])


def host_instance(orders: Iterable[str]) -> Iterator[str]:
    """The outcome of each order. RuntimeError where its keeper was killed: Spark then runs the task
    again."""
    for text in orders:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        order = SlotOrder.from_json(text).placed(SparkFiles.get(PROGRAM_FILE), attempt)
        yield kept(order).to_json()


def kept(order: SlotOrder) -> SlotOutcome:
    """Run an order with a keeper, and wait; the outcome of its instance."""
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
