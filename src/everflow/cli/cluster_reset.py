"""Resets an application: what goes and where inputs begin (pure), and the steps that do it, in the
one order in which a reset that is cut off cannot count wrongly (note 057).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from everflow.clock import Clock, Deadline, SystemClock, instant, time_of
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.errors import (
    ConfigError,
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
from everflow.setting_checks import BY_DURATION, reset_duration_ms
from everflow.state.disk import MemoryFolder
from everflow.state.task_directory import StateDirectory, content_of
from everflow.topology.graph import WriteNode
from everflow.topology.patterns import with_topics
from everflow.topology.program import Topology
from everflow.topology.subtopologies import InternalTopics, SubTopologies, cut, internal_topics

log = logging.getLogger("everflow")

_SUFFIXES = (
    "-changelog",
    "-repartition",
    "-subscription-registration-topic",
    "-subscription-response-topic",
)
_FORMS = (
    "earliest, latest, a time as 2026-11-26T08:00:00Z (UTC where it names no zone), or how long "
    "ago, as PT12H or P1DT6H"
)


@dataclass(frozen=True)
class Position:
    """A position of the inputs. ``time_ms``: the first record of this time or later."""

    kind: Literal["earliest", "latest", "time"]
    time_ms: int = -1

    def __str__(self) -> str:
        return instant(self.time_ms) if self.kind == "time" else self.kind


def parse_position(text: str, now_ms: int) -> Position:
    """Parse ``--to`` (KIP-171). Raises ConfigError."""
    if text == "earliest":
        return Position("earliest")
    if text == "latest":
        return Position("latest")
    ago_ms = reset_duration_ms(f"{BY_DURATION}{text}")
    try:
        time_ms = time_of(text) if ago_ms is None else max(1, now_ms - ago_ms)
    except ValueError:
        raise ConfigError(f"--to {text!r} is none of {_FORMS}") from None
    if time_ms > now_ms:
        raise ConfigError(f"--to {text} lies in the future; --to latest passes over what is there")
    return Position("time", time_ms)


def chosen_topics(
    named: Sequence[str], inputs: Sequence[str], tables: Collection[str]
) -> tuple[str, ...]:
    """The input topics that ``--input-topics`` names, all without it; ConfigError for others, such
    as those of global ``tables``."""
    wanted = dict.fromkeys(
        name.strip() for part in named for name in part.split(",") if name.strip()
    )
    if named and not wanted:
        raise ConfigError("--input-topics names no topic")
    whole = [name for name in wanted if name in tables and name not in inputs]
    if whole:
        raise ConfigError(
            f"--input-topics {', '.join(whole)}: a global table is read from the beginning of its "
            f"topic at every start, so there is no offset to set"
        )
    unknown = [name for name in wanted if name not in inputs]
    if unknown:
        raise ConfigError(
            f"--input-topics {', '.join(unknown)}: the program reads no such topic. It reads "
            f"{some(inputs, 12)}. Nothing was changed."
        )
    return tuple(wanted) or tuple(inputs)


@dataclass(frozen=True)
class Leftover:
    """A topic that is named like an internal one and is not of this program. ``group``: whose it
    rather is; empty: an earlier program's of this application."""

    topic: str
    partitions: int
    group: str = ""


def leftovers(
    application_id: str,
    existing: Mapping[str, int],
    used: Collection[str],
    groups: Iterable[str],
) -> list[Leftover]:
    """Topics with the application's prefix and an internal topic's suffix, without the program's.

    ``orders-eu-count-changelog`` begins with ``orders-``: where there is a group ``orders-eu``, the
    topic is that one's.
    """
    prefix = f"{application_id}-"
    longer = sorted((one for one in groups if one.startswith(prefix)), key=len, reverse=True)
    return [
        Leftover(name, count, next((one for one in longer if name.startswith(f"{one}-")), ""))
        for name, count in sorted(existing.items())
        if name.startswith(prefix) and name.endswith(_SUFFIXES) and name not in used
    ]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``needed``: the program's internal topics, whether they exist or not, with their partitions;
    ``repartition`` some of them. ``offsets``: to commit for the inputs, in the order of partitions;
    ``committed``: those of now. ``sinks``: outside Kafka, which are left as they are."""

    application_id: str
    servers: str
    position: Position
    chosen: tuple[str, ...]
    members: tuple[MemberDescription, ...]
    transactions: tuple[str, ...]
    folder: str | None
    stores: int
    existing: Mapping[str, int]
    needed: Mapping[str, int]
    repartition: frozenset[str]
    others: tuple[Leftover, ...]
    committed: Mapping[TopicPartition, int]
    offsets: Mapping[TopicPartition, int]
    sinks: tuple[str, ...] = ()

    @property
    def deleted(self) -> dict[str, int]:
        own = {name: self.existing[name] for name in sorted(self.needed) if name in self.existing}
        return own | {one.topic: one.partitions for one in self.others if not one.group}

    @property
    def untouched(self) -> bool:
        return not (self.members or self.transactions or self.deleted or self.committed) and (
            self.folder is None
        )

    def lines(self) -> list[str]:
        old = {one.topic for one in self.others}
        stores = f", {counted(self.stores, 'store')}"
        rows = [
            *(("member", _member(one)) for one in self.members),
            *(("fence", f"transactional id {name}") for name in self.transactions),
            *([] if self.folder is None else [("delete", f"folder {self.folder}{stores}")]),
            *(
                ("delete", f"topic {name}, {counted(count, 'partition')}{' (old)' * (name in old)}")
                for name, count in self.deleted.items()
            ),
            *(("commit", self._moved(tp)) for tp in self.offsets),
            *(
                ("create", f"topic {name}, {counted(count, 'partition')}")
                for name, count in sorted(self.needed.items())
            ),
            *(
                ("leave", f"topic {one.topic}, of group {one.group}")
                for one in self.others
                if one.group
            ),
            *(
                ("leave", f"sink {name}: its rows, and the position below which it takes none")
                for name in self.sinks
            ),
        ]
        head = f"reset of {self.application_id} at {self.servers}, inputs to {self.position}"
        shown = [head, *(f"  {verb:<8}{what}" for verb, what in rows)]
        if old - {one.topic for one in self.others if one.group}:
            shown.append(
                "(old): named like internal topics of this application, not this program's"
            )
        return shown

    def plain(self, *, dry_run: bool, done: bool) -> dict[str, Any]:
        return {
            "application_id": self.application_id,
            "dry_run": dry_run,
            "done": done,
            "to": str(self.position),
            "members": [
                {
                    "client_id": one.client_id,
                    "host": one.host,
                    "group_instance_id": one.instance_id,
                    "member_id": one.member_id,
                }
                for one in self.members
            ],
            "transactional_ids": list(self.transactions),
            "state_folder": self.folder,
            "delete_topics": [{"topic": n, "partitions": c} for n, c in self.deleted.items()],
            "offsets": [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "committed": self.committed.get(tp),
                    "offset": offset,
                }
                for tp, offset in self.offsets.items()
            ],
            "create_topics": [
                {"topic": name, "partitions": count} for name, count in sorted(self.needed.items())
            ],
            "left_alone": [
                {"topic": one.topic, "group": one.group} for one in self.others if one.group
            ],
            "sinks": list(self.sinks),
        }

    def _moved(self, tp: TopicPartition) -> str:
        now = self.committed.get(tp)
        before = "none" if now is None else f"{now:,}"
        kept = "" if tp.topic in self.chosen else " (kept)"
        return f"{tp}: {before} -> {self.offsets[tp]:,}{kept}"


def new_offsets(
    chosen: Collection[str],
    starts: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Offsets to commit for the inputs: ``starts`` of the ``chosen`` topics, for the others the
    committed ones again, without the stream times and layouts beside them: by these, records that
    are read again would be late."""
    kept = {tp: offset for tp, offset in committed.items() if tp.topic not in chosen}
    return dict(sorted({**kept, **starts}.items()))


def still_running(
    application_id: str, members: Collection[MemberDescription], session_timeout_ms: int
) -> str:
    return (
        f"The group {application_id} has members: {some(map(_member, members))}. Stop all "
        f"instances, then reset. Nothing was changed. One that was killed stays in the group until "
        f"its session is over, so does a static one (group.instance.id) that was stopped: "
        f"session.timeout.ms, {session_timeout_ms / 1000:g} s here. --force takes members out at "
        f"once; an instance that lives joins again."
    )


def _member(one: MemberDescription) -> str:
    static = f", group.instance.id {one.instance_id}" if one.instance_id else ""
    return f"{one.client_id} at {one.host.lstrip('/')}{static}"


STEP_S = 60.0
"""How long each step is tried."""
REQUEST_S = 10.0
_POLL_MS = 100.0


@dataclass(kw_only=True)
class ClusterReset:
    """One application, its cluster and this host's state folder. For one thread."""

    topology: Topology
    config: StreamsConfig
    admin: ClusterAdmin
    status: StatusLine
    clock: Clock = field(default_factory=SystemClock)
    _never: threading.Event = field(default_factory=threading.Event)

    def plan(self, position: Position, named: Sequence[str]) -> Plan:
        """Changes nothing. Raises ConfigError for a topic of ``named`` that the program does not
        read, TopologyError for topics that are missing or do not fit, StateFormatError for another
        one's folder."""
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
                leftovers(
                    application_id,
                    existing,
                    used | own.keys(),
                    self.admin.groups(STEP_S),
                )
            ),
            committed=now,
            offsets=new_offsets(chosen, starts, now),
            sinks=tuple(node.name for node in topology.nodes if isinstance(node, WriteNode)),
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
        """The application's open transactions; none where brokers list none: see `_fence`."""
        config = self.config
        try:
            found = self.admin.open_transactions()
        except EverflowError as error:
            log.debug("Open transactions are not listed: %s", error)
            return []
        return lost_writers(config.application_id, found, (), "")

    def locked_folder(self, plan: Plan) -> StateDirectory | None:
        """This host's state folder, locked; None: there is none. StateLockedError: in use."""
        if plan.folder is None:
            return None
        root = Path(self.config.state_memory_dir).expanduser()
        return StateDirectory.open(
            Path(self.config.state_dir).expanduser(),
            plan.application_id,
            memory=MemoryFolder(root),
        )

    def require_alone(self, members: Collection[MemberDescription]) -> None:
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
                self.clock.wait(self._never, _POLL_MS)

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
            self.clock.wait(self._never, _POLL_MS)

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

    def _members(self) -> tuple[MemberDescription, ...]:
        return self.admin.members(self.config.application_id, STEP_S)


def _partitions(counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(name, p) for name, count in sorted(counts.items()) for p in range(count)]
