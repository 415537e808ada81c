"""The plan, topics and stores that an instance runs with, fixed at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from everflow.assignment.cluster_state import inputs_of, number_of_tasks
from everflow.instance.tasks.task import ActiveTask, StandbyTask, TaskRole, TaskStore
from everflow.records import TaskId, TopicPartition
from everflow.state.store import StoreSpec, left_out_topic
from everflow.topology.graph import Graph
from everflow.topology.plan import PhysicalPlan

if TYPE_CHECKING:
    from everflow.state.task_directory import StateDirectory


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """``inputs``: sub-topology -> full names of its topics; ``partitions``: of each. ``tasks``: of
    sub-topologies with state, whose inputs may have a multiple of it (`fixed_tasks`). ``kept``:
    repartition topics of which only everflow deletes records. ``fingerprint``: must be equal in all
    instances. ``layouts``: the text beside committed offsets (`topology.store_layouts`).
    ``topology``: the program, with the topics that match its patterns. ``filled_from``: the
    application whose state a migration was copying here at the start (note 067)."""

    application_id: str
    cluster_id: str
    plan: PhysicalPlan
    inputs: Mapping[int, tuple[str, ...]]
    stores: Mapping[int, tuple[StoreSpec, ...]]
    partitions: Mapping[str, int]
    tasks: Mapping[int, int] = field(default_factory=dict)
    offset_reset: Mapping[str, str]
    repartition: frozenset[str]
    kept: frozenset[str]
    fingerprint: tuple[str, ...] = ()
    layouts: str = ""
    global_partitions: Mapping[str, int] = field(default_factory=dict)
    topology: Graph = field(default_factory=lambda: Graph(()))
    filled_from: str | None = None

    def inputs_of(self, task: TaskId) -> tuple[TopicPartition, ...]:
        if task.subtopology not in self.inputs:
            return ()
        return inputs_of(task, self.inputs[task.subtopology], self.partitions, self.tasks)

    def number_of_tasks(self, subtopology: int) -> int:
        return number_of_tasks(subtopology, self.inputs[subtopology], self.partitions, self.tasks)

    @property
    def internal(self) -> dict[str, int]:
        """Partitions of the repartition topics and changelogs, by full name."""
        found = {name: self.partitions[name] for name in self.repartition}
        for subtopology in self.inputs:
            for spec in self.logged(subtopology):
                name = spec.left_out_topic(self.application_id)
                name = name or spec.changelog_topic(self.application_id)
                found[name] = self.number_of_tasks(subtopology)
        return found

    def every_task(self) -> frozenset[TaskId]:
        return frozenset(
            TaskId(index, partition)
            for index in self.inputs
            for partition in range(self.number_of_tasks(index))
        )

    def changelog(self, task: TaskId, spec: StoreSpec) -> TopicPartition:
        return TopicPartition(spec.changelog_topic(self.application_id), task.partition)

    def logged(self, subtopology: int) -> list[StoreSpec]:
        return [spec for spec in self.stores.get(subtopology, ()) if spec.logging]

    def task(self, task: TaskId, directory: StateDirectory) -> ActiveTask:
        stores = []
        for spec in self.stores.get(task.subtopology, ()):
            changelog = self.changelog(task, spec) if spec.logging else None
            stores.append(TaskStore(spec.name, directory.store_path(task, spec.name), changelog))
        return ActiveTask(id=task, inputs=self.inputs_of(task), stores=tuple(stores))

    def global_tasks(self, directory: StateDirectory) -> list[StandbyTask]:
        found = []
        for table in self.plan.global_tables:
            for partition in range(self.global_partitions[table.source.topic]):
                task = TaskId(table.subtopology, partition)
                path = directory.store_path(task, table.store.name)
                tp = TopicPartition(table.source.topic, partition)
                store = TaskStore(table.store.name, path, tp)
                found.append(StandbyTask(task, (store,), TaskRole.GLOBAL))
        return found

    def purged(self) -> list[TopicPartition]:
        topics = sorted(self.kept)
        return [TopicPartition(name, n) for name in topics for n in range(self.partitions[name])]

    @property
    def left_out(self) -> dict[str, str]:
        """Topic of the user that is a table's changelog -> the log of its skipped records."""
        specs = self.store_specs().values()
        topics = {spec.name: spec.source_topic for spec in specs if spec.source_topic is not None}
        return {topic: left_out_topic(self.application_id, name) for name, topic in topics.items()}

    def store_specs(self) -> dict[str, StoreSpec]:
        return {spec.name: spec for specs in self.stores.values() for spec in specs}
