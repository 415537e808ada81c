"""A slot of a fleet: a Spark job of one task, which hosts one instance."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext

from everflow.autoscale.decision import InstanceSeen
from everflow.errors import FatalError
from everflow.fleet.host_task import host_instance
from everflow.fleet.messages import Report, SlotOrder, SlotOutcome, Wanted
from everflow.fleet.places import Places

log = logging.getLogger("everflow.fleet")

FAILED = 70
"""The exit code of a slot whose job failed."""


class Jobs(Protocol):
    """What a slot needs of Spark."""

    def run(self, order: SlotOrder) -> SlotOutcome:
        """Have the order carried out on some host, and wait for its end. Any error of Spark's."""

    def cancel(self, slot: int) -> None:
        """Let the job of a slot fail."""


class SlotJob:
    """An `everflow.autoscale.loop.Instance`. Used by the loop's thread; the job is waited for by a
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
        """See `Instance`."""
        last = self._places.last(self.number) or self._last
        return "its place is Spark's choice" if last is None else f"{last.host}: {last.log}"

    @property
    def code(self) -> int | None:
        """See `Instance`."""
        return None if self._outcome is None else self._outcome.code

    def seen(self) -> InstanceSeen:
        """See `Instance`."""
        self._cancel_if_deaf()
        return self._places.seen(self.number, self.ending)

    def end(self, for_good: bool) -> None:
        """See `Instance`."""
        self.ending = True
        self._places.want(self.number, Wanted.drain if for_good else Wanted.stop)
        self._cancel_if_deaf()

    def _cancel_if_deaf(self) -> None:
        """One that is to end and has no place hears nothing, and the loop would wait for it for as
        long as Spark has none."""
        if self.ending and self.code is None and not self._places.placed(self.number):
            self.kill()

    def wait(self, timeout_s: float) -> bool:
        """See `Instance`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Spark ends the task; its keeper ends the instance in order, if it can."""
        self._jobs.cancel(self.number)

    def tail(self) -> str:
        """See `Instance`."""
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
        """See `Jobs`."""
        context = self._context
        context.setJobGroup(_group(order.slot), f"instance {order.slot} of {self._application_id}")
        orders = context.parallelize([order.to_json()], 1)
        (outcome,) = orders.mapPartitions(host_instance).collect()
        return SlotOutcome.from_json(outcome)

    def cancel(self, slot: int) -> None:
        """See `Jobs`."""
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
    """What matters of a failed job, without Java's part."""
    text = str(error)
    if "No module named 'everflow'" in text:
        return (
            "The Python of the executors has no everflow: install it there, or name one that has "
            "it (PYSPARK_PYTHON, or --conf spark.pyspark.python=PATH)"
        )
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    return "\n".join(lines[:20])
