"""Sizes, rates and time-outs of a simulation. Times in ms, rates in records a second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from everflow.config import AssignmentRules
from everflow.records import TaskId, TopicPartition

APPLICATION = "simulated"


@dataclass(frozen=True)
class SimulatedSubTopology:
    """``tasks`` partitions of each of ``inputs`` topics; a stateful one has one store with a
    changelog."""

    tasks: int
    stateful: bool = True
    inputs: int = 1


@dataclass(frozen=True, kw_only=True)
class Timings:
    """How long things take. Ranges are drawn from evenly.

    Attributes:
        batch_base_ms: fixed part of a micro-batch.
        batch_rate: records a second beyond that.
        restore_rate: of one restore thread.
        follow_rate: of one state updater for its warm-ups, and for its standbys.
        follow_ms: how often a follower hands records to the updater.
        poll_ms: how often ends of the input are asked for; ``step_ms``: how often the membership
        polls its group when
            nothing calls it.
    """

    batch_base_ms: tuple[float, float] = (20.0, 80.0)
    batch_rate: float = 400_000.0
    restore_rate: float = 400_000.0
    follow_rate: float = 400_000.0
    follow_ms: float = 100.0
    poll_ms: float = 20.0
    step_ms: float = 50.0
    session_timeout_ms: int = 10_000
    heartbeat_ms: int = 500
    rebalance_timeout_ms: int = 30_000
    transaction_timeout_ms: float = 10_000.0
    initial_delay_ms: float = 0.0
    network_ms: tuple[float, float] = (0.2, 2.0)
    marker_ms: tuple[float, float] = (0.5, 8.0)
    """Until a transaction's marker has landed, for each partition by itself."""


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """A whole simulated application. ``input_rate``: records a second that arrive at every task."""

    subtopologies: tuple[SimulatedSubTopology, ...] = (SimulatedSubTopology(12),)
    threads: int = 2
    rules: AssignmentRules = field(default_factory=AssignmentRules)
    timings: Timings = field(default_factory=Timings)
    input_rate: float = 1_000.0
    input_period_ms: float = 100.0
    task_timeout_ms: float = 300_000.0
    max_delay_ms: int = 0
    """``scheduled.rebalance.max.delay.ms``."""
    racks: int = 1
    """Instances stand in turn in so many racks, which are their tag ``zone`` too; each partition
    has replicas in two of them."""

    def rack(self, number: int) -> str:
        """Of the instance, or replica, of this number."""
        return f"r{number % self.racks}"

    @cached_property
    def replicas(self) -> dict[TopicPartition, frozenset[str]]:
        """Racks of each partition's replicas; none are known where there is one rack."""
        if self.racks == 1:
            return {}
        changelogs = [tp for task in self.tasks if (tp := self.changelog(task)) is not None]
        partitions = sorted(
            {tp for inputs in self.tasks.values() for tp in inputs} | set(changelogs)
        )
        return {
            tp: frozenset({self.rack(number), self.rack(number // self.racks)})
            for number, tp in enumerate(partitions)
        }

    @cached_property
    def idle_ms(self) -> float:
        """The longest time in which nothing arrives at a task."""
        if self.input_rate <= 0:
            return 0.0
        return (
            self.input_period_ms * math.ceil(1_000 / (self.input_rate * self.input_period_ms))
            + self.timings.poll_ms
        )

    @cached_property
    def topics(self) -> dict[int, tuple[str, ...]]:
        """Input topics by sub-topology."""
        return {
            i: tuple(f"input-{i}-{n}" for n in range(sub.inputs))
            for i, sub in enumerate(self.subtopologies)
        }

    @cached_property
    def changelogs(self) -> dict[int, tuple[str, ...]]:
        """Changelog topics by sub-topology."""
        return {
            i: (f"{APPLICATION}-store-{i}-changelog",)
            for i, sub in enumerate(self.subtopologies)
            if sub.stateful
        }

    @cached_property
    def partition_counts(self) -> dict[str, int]:
        """Of the input topics."""
        return {
            topic: self.subtopologies[i].tasks
            for i, topics in self.topics.items()
            for topic in topics
        }

    @cached_property
    def tasks(self) -> dict[TaskId, tuple[TopicPartition, ...]]:
        """Every task and its inputs."""
        return {
            TaskId(i, p): tuple(TopicPartition(topic, p) for topic in topics)
            for i, topics in self.topics.items()
            for p in range(self.subtopologies[i].tasks)
        }

    def changelog(self, task: TaskId) -> TopicPartition | None:
        """The task's changelog partition."""
        names: Mapping[int, tuple[str, ...]] = self.changelogs
        found = names.get(task.subtopology)
        return None if found is None else TopicPartition(found[0], task.partition)
