"""Takes up topics that come under a pattern while the instance runs (note 037).

The program's plan is made anew with them, threads that run it are started beside those there are,
and tasks go over between two of their batches. No task is given up, and none waits for that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from everflow.clock import Running, Spawn
from everflow.errors import EverflowError
from everflow.logs import moves
from everflow.records import TaskId, TopicPartition
from everflow.runtime.client_state import ClientState
from everflow.runtime.commit.batch import format_metadata
from everflow.runtime.instance import Instance
from everflow.runtime.start_up import START_METADATA
from everflow.runtime.tasks.recovery import Recovery
from everflow.runtime.tasks.task import ActiveTask
from everflow.topology.patterns import TopicGrowth

log = logging.getLogger("everflow")


class ExtensionPorts(Protocol):
    """What an extension needs of the cluster; the parts of `ClusterPorts`."""

    @property
    def spawn(self) -> Spawn: ...
    def growth(self) -> TopicGrowth:
        """What came since the program was planned; blocks for a request."""

    def prepare(self, growth: TopicGrowth) -> Callable[[], None]:
        """Threads that are opened from now on run the program with these topics. What it returns
        takes that back."""

    def inputs(self, task: TaskId) -> tuple[TopicPartition, ...]:
        """Of a task, as it is prepared."""

    def exchange(self) -> None:
        """Tasks that are created from now on have the inputs that were prepared."""

    def recovery(self, instance: Instance, stop: threading.Event, *, pauses: bool) -> Recovery: ...
    def grown(self, growth: TopicGrowth) -> None:
        """It reads them now: who watches topics, and who shows tasks."""


@dataclass(kw_only=True)
class Extension:
    """`look` belongs to the thread that watches topics. What it finds is taken up on a thread of
    its own, one growth at a time."""

    instance: Instance
    ports: ExtensionPorts
    _told: set[str] = field(default_factory=set)
    _hopeless: set[str] = field(default_factory=set)
    """They need another start."""
    _running: Running | None = None
    _begun: list[ActiveTask] = field(default_factory=list)
    _started: Mapping[TopicPartition, int] = field(default_factory=dict)

    def look(self) -> None:
        """Ask what came, and begin. EverflowError where the brokers do not say."""
        if self._running is not None and not self._running.join(0):
            return
        found = self.ports.growth()
        for topic, why in found.left_out.items():
            self._tell(topic, found, f"{why}. An instance that starts now is refused for it")
        came = found.taken.keys() - self._hopeless
        if came and self.instance.states.state is ClientState.RUNNING:
            self._running = self.ports.spawn("everflow-new-topics", lambda: self._take_up(found))

    def _take_up(self, found: TopicGrowth) -> None:
        try:
            done = self._extend(found)
        except EverflowError as error:  # it is tried again with the next look
            log.info("New topics cannot be taken up now: %s", error)
            return
        except Exception:  # a defect is no reason to stop what runs
            log.exception("New topics cannot be taken up")
            done = False
        for topic in found.taken:
            if done:
                moves.info(
                    "Topic %s of the source at %s is read with %d partitions from now on",
                    topic,
                    found.where[topic],
                    found.taken[topic],
                )
            elif self.instance.thread_count.may_change:
                self._hopeless.add(topic)
                self._tell(
                    topic,
                    found,
                    "Spark has no slots for a second set of stream threads (local[N]), or they did "
                    "not start. Start the instances again, one after the other, to read it",
                )

    def _extend(self, found: TopicGrowth) -> bool:
        undo = self.ports.prepare(found)
        done = False
        try:
            done = self.instance.thread_count.replace_all(self._begin, self._exchange)
        finally:
            if not done:
                undo()
        if done:
            self.ports.grown(found)
        return done

    def _begin(self) -> None:
        """Where the new partitions of the tasks that run here begin. Nobody else reads them for as
        long as the tasks are owned without a break."""
        self._begun = []
        for task in self.instance.running_tasks():
            lacking = tuple(tp for tp in self.ports.inputs(task.id) if tp not in task.inputs)
            if lacking:
                self._begun.append(ActiveTask(id=task.id, inputs=lacking, epoch=task.epoch))
        recovery = self.ports.recovery(self.instance, self.instance.stop, pauses=False)
        self._started, _ = recovery.recover(self._begun, ())

    def _exchange(self) -> None:
        """On the instance's loop, where no revoked task is released meanwhile. A task whose new
        partitions could not be begun is recovered, as one that moves."""
        self.ports.exchange()
        book, begun = self.instance.book, self.instance.begun
        begun.clear()
        known = [task for task in self._begun if not book.broken(task.id, task.epoch)]
        offsets = {
            tp: (self._started[tp], format_metadata(START_METADATA, {}))
            for task in known
            for tp in task.inputs
            if tp in self._started
        }
        try:
            committed = not offsets or self.instance.member.commit(offsets)
        except EverflowError as error:
            log.info("Where new topics begin is committed by recoveries: %s", error)
            committed = False
        if committed:
            begun.update({task.id: task for task in known})

    def _tell(self, topic: str, found: TopicGrowth, why: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            log.warning(
                "Topic %s of the source at %s is not read: %s",
                topic,
                found.where[topic],
                why,
            )
