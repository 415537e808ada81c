"""Does what a `Plan` says, in the one order in which a reset that is cut off cannot count wrongly.

Note 057 says what a start does behind each step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everflow.cli.reset_plan import (
    Plan,
    Position,
    chosen_topics,
    leftovers,
    new_offsets,
    still_running,
)
from everflow.clock import Clock, Deadline, SystemClock
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.errors import (
    EverflowError,
    FatalError,
    GenerationChanged,
    RetriableError,
    TaskMigratedError,
)
from everflow.instance.start_up import START_METADATA, ClusterTopics
from everflow.instance.tasks.recovery import lost_writers
from everflow.instance.topics.internal_topics import TopicSpec, fixed_outputs
from everflow.kafka.admin import ClusterAdmin, MemberDescription
from everflow.kafka.errors import OffsetsUnstableError
from everflow.kafka.writing.transaction import fence_all
from everflow.logs import counted, some
from everflow.protocol.messages import format_metadata
from everflow.records import TopicPartition
from everflow.retry import attempting
from everflow.state.disk import MemoryFolder
from everflow.state.task_directory import StateDirectory, content_of
from everflow.topology.patterns import with_topics
from everflow.topology.program import Topology
from everflow.topology.subtopologies import InternalTopics, SubTopologies, cut, internal_topics

log = logging.getLogger("everflow")

STEP_S = 60.0
"""How long each step is tried."""
REQUEST_S = 10.0
_LOOK_MS = 100.0


@dataclass(kw_only=True)
class ClusterReset:
    """One application, its cluster and this host's state folder. For one thread."""

    topology: Topology
    config: StreamsConfig
    admin: ClusterAdmin
    status: StatusLine
    clock: Clock = field(default_factory=SystemClock)
    _never: threading.Event = field(default_factory=threading.Event)

    # --- looking ----------------------------------------------------------------------------------

    def plan(self, position: Position, named: Sequence[str]) -> Plan:
        """The plan of a reset; changes nothing.

        Raises ConfigError for a topic of ``named`` that the program does not read, TopologyError
        for topics that are missing or do not fit, StateFormatError for another one's folder.
        """
        application_id = self.config.application_id
        existing = {name: shape.partitions for name, shape in self.admin.list_topics().items()}
        topology = with_topics(self.topology, existing, application_id)
        subs = cut(topology)
        inputs = list(dict.fromkeys(t for sub in subs.subtopologies for t in sub.source_topics))
        chosen = chosen_topics(named, inputs, subs.global_topics)
        needed = self._needed(subs, existing)
        partitions = _partitions({name: existing[name] for name in inputs})
        committed = self.admin.committed(application_id, partitions, stable=False)
        now = {tp: one.offset for tp, one in committed.items()}
        starts = self._starts(position, [tp for tp in partitions if tp.topic in chosen])
        dead_letters = self.config.errors_dead_letter_queue_topic_name
        used = {*inputs, *subs.global_topics, *fixed_outputs(topology, dead_letters)}
        own = {**needed.repartition, **needed.changelog}
        folder = content_of(Path(self.config.state_dir).expanduser(), application_id)
        recorded = () if folder is None else folder.transactional_ids
        return Plan(
            application_id=application_id,
            servers=self.config.bootstrap_servers,
            position=position,
            chosen=chosen,
            members=self._members(),
            transactions=tuple(sorted({*recorded, *self._open_transactions()})),
            folder=None if folder is None else str(folder.path),
            stores=0 if folder is None else folder.stores,
            existing=existing,
            needed={name: count for name, (count, _) in own.items()},
            repartition=frozenset(needed.repartition),
            others=tuple(
                leftovers(application_id, existing, used | own.keys(), self.admin.groups(STEP_S))
            ),
            committed=now,
            offsets=new_offsets(chosen, starts, now),
        )

    def _needed(self, subs: SubTopologies, counts: Mapping[str, int]) -> InternalTopics:
        config = self.config
        return internal_topics(
            subs,
            counts,
            config.application_id,
            topic_config=config.topic(),
            additional_retention_ms=config.windowstore_changelog_additional_retention_ms,
        )

    def _starts(
        self, position: Position, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if position.kind == "earliest":
            return self.admin.list_offsets(partitions, "earliest", "read_uncommitted")
        ends = self.admin.end_offsets(partitions, "read_uncommitted")
        if position.kind == "latest":
            return ends
        found = self.admin.list_offsets(partitions, position.time_ms, "read_uncommitted")
        return {tp: ends[tp] if offset < 0 else offset for tp, offset in found.items()}

    def _open_transactions(self) -> list[str]:
        """Open transactions of the application; none where the brokers do not list them (`_fence`
        then checks the offsets that open transactions block)."""
        config = self.config
        try:
            found = self.admin.open_transactions()
        except EverflowError as error:
            log.debug("Open transactions are not listed: %s", error)
            return []
        return lost_writers(config.application_id, found, (), "")

    # --- doing ------------------------------------------------------------------------------------

    def held_folder(self, plan: Plan) -> StateDirectory | None:
        """This host's state folder, which stays locked; None if there is none. StateLockedError if
        an instance runs on it."""
        if plan.folder is None:
            return None
        root = Path(self.config.state_memory_dir).expanduser()
        return StateDirectory.open(
            Path(self.config.state_dir).expanduser(),
            plan.application_id,
            memory=MemoryFolder(root),
        )

    def require_alone(self, members: Collection[MemberDescription]) -> None:
        """FatalError (EF-STILL-RUNNING) where there are any."""
        if members:
            config = self.config
            raise FatalError(
                still_running(config.application_id, members, config.session_timeout_ms),
                code="EF-STILL-RUNNING",
            )

    def carry_out(self, plan: Plan, folder: StateDirectory | None, *, force: bool) -> None:
        """The steps. Each may be done again; any EverflowError leaves those before it done."""
        if force:
            self._empty_the_group(plan)
        else:
            self.require_alone(self._members())
        steps: list[tuple[str, Callable[[], None]]] = [
            ("ending open transactions", lambda: self._fence(plan))
        ]
        if folder is not None:
            steps.append(("deleting the state folder", folder.delete))
        if plan.deleted:
            steps.append(("deleting internal topics", lambda: self._delete(plan.deleted)))
        steps.append(("committing where inputs begin", lambda: self._commit(plan.offsets)))
        if plan.needed:
            steps.append(("creating internal topics", lambda: self._create(plan)))
        for number, (what, step) in enumerate(steps, 1):
            with self.status.waiting(f"{what} ({number}/{len(steps)})", after_s=1.0):
                step()
            self.status.say(f"{number}/{len(steps)} done: {what}")

    def _empty_the_group(self, plan: Plan) -> None:
        deadline = Deadline(self.clock, STEP_S * 1000)
        with self.status.waiting("waiting until the group is empty", after_s=1.0):
            while members := self._members():
                if deadline.expired():
                    raise FatalError(
                        f"Members of {plan.application_id} come back after they were taken out of "
                        f"the group: instances run. Stop them, then reset. Nothing else was "
                        f"changed.",
                        code="EF-STILL-RUNNING",
                    )
                self.admin.remove_members(plan.application_id, members, STEP_S)
                self.status.say(f"took {counted(len(members), 'member')} out of the group")
                self.clock.wait(self._never, _LOOK_MS)

    def _fence(self, plan: Plan) -> None:
        """An open transaction may commit offsets of before the reset after it."""
        producer = self.config.producer()
        attempting(
            lambda: fence_all(producer, plan.transactions, REQUEST_S),
            "ending open transactions",
            clock=self.clock,
            deadline=Deadline(self.clock, STEP_S * 1000),
            stop=self._never,
        )
        there = {name: plan.existing[name] for name in plan.repartition & plan.existing.keys()}
        partitions = [*plan.offsets, *_partitions(there)]
        try:
            self.admin.committed(plan.application_id, partitions, STEP_S)
        except OffsetsUnstableError as error:
            raise FatalError(
                f"A transaction that is not {plan.application_id}'s by its name holds offsets of "
                f"the group open: it may still commit them. It ends by itself within its "
                f"transaction.timeout.ms; reset then. Nothing was deleted."
            ) from error

    def _delete(self, topics: Collection[str]) -> None:
        """Delete topics, and wait until they are gone: creating one too early is refused."""
        self.admin.delete_topics(topics, STEP_S)
        deadline = Deadline(self.clock, STEP_S * 1000)
        while left := self.admin.describe_topics(topics):
            if deadline.expired():
                raise RetriableError(
                    f"{some(sorted(left))} were deleted {STEP_S:g} s ago, and are still there. "
                    f"Look at the brokers, then reset again."
                )
            self.clock.wait(self._never, _LOOK_MS)

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets as a first start does, without metadata of stores and stream times."""
        if not offsets:
            return
        group = self.config.application_id
        metadata = format_metadata(START_METADATA, {})
        try:
            self.admin.commit_offsets(group, offsets, metadata, STEP_S)
        except (TaskMigratedError, GenerationChanged) as failure:
            raise FatalError(
                f"Somebody joined the group {group} during the reset, and the brokers refuse to "
                f"set its offsets. Stop all instances, then reset again: until it has ended a "
                f"start is refused.",
                code="EF-STILL-RUNNING",
            ) from failure

    def _create(self, plan: Plan) -> None:
        """Last, as an empty changelog beside old offsets is state that was lost."""
        topology = with_topics(self.topology, plan.existing, plan.application_id)
        needed = self._needed(cut(topology), plan.existing)
        kinds = (("repartition", needed.repartition), ("changelog", needed.changelog))
        specs = [
            TopicSpec(name, count, dict(config), kind)
            for kind, topics in kinds
            for name, (count, config) in topics.items()
        ]
        ClusterTopics(self.admin, self.config).create(specs)
        # The brokers forget what was committed of a deleted topic, some time.
        self._commit(dict.fromkeys(_partitions({n: plan.needed[n] for n in plan.repartition}), 0))

    # --- asking -----------------------------------------------------------------------------------

    def _members(self) -> tuple[MemberDescription, ...]:
        return self.admin.members(self.config.application_id, STEP_S)


def _partitions(counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(name, p) for name, count in sorted(counts.items()) for p in range(count)]
