"""The steps of a migration, in their one order, and the one transaction that is the switch."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everflow.assignment.user_data import digest
from everflow.clock import Clock, Deadline, SystemClock
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.errors import (
    ApplicationMigratedError,
    ConfigError,
    EverflowError,
    GenerationChanged,
    MigrationError,
    RetriableError,
    TaskMigratedError,
    UnknownOutcomeError,
)
from everflow.instance.start_up import ClusterTopics
from everflow.instance.tasks.recovery import fence_lost_writers
from everflow.instance.topics.internal_topics import LEFT_OUT, TopicSpec
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.connection_settings import security_keywords
from everflow.kafka.group_channel import GroupSettings
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import GroupMetadata, fence_all
from everflow.logs import counted, some
from everflow.migration.copying import Copying, carry, estimate, logs_of, without_member
from everflow.migration.holding import (
    HEARTBEAT_MS,
    SESSION_MS,
    Holder,
    await_still,
    grown_since,
    near_tasks,
    require_one_version,
    seen_members,
)
from everflow.migration.plan import Estimate, MigrationPlan, stream_times
from everflow.migration.programs import Program
from everflow.protocol.messages import (
    COPIED,
    FILLED,
    GONE,
    MARK_BYTES,
    Mark,
    format_metadata,
    mark_in,
    of_kafka_streams,
    parse_metadata,
)
from everflow.records import CommittedOffset, TaskId, TopicPartition
from everflow.retry import attempting, quietly
from everflow.topology.idle_sources import MOST_BYTES, fitting
from everflow.topology.store_layouts import TIMES, from_json, newest, program_in
from everflow.topology.store_layouts import digest as digest_of_lines
from everflow.worker.crash_points import reached

log = logging.getLogger("everflow")

REQUEST_S = 30.0
STEP_MS = 60_000.0
FOLLOW_MS = 250.0
"""From one round of copying to the next, once it has caught up."""
FOLLOW_AGAIN_MS = 5_000.0
"""So long the old version stands still for copies that an instance of the new one opens again."""
DRAIN_MS = 10.0
BACKLOG = 10_000
"""Records: the old version takes longer for more than a round of copying does."""
NEAR_MS = 1_000.0
"""A round that takes less has caught up. At 10,000 records a second there are always some left."""
ROUNDS = 10
"""So often a rebalance of the old group in the middle of the switch is no end of it."""
TAKE_OVER_MS = 10_000.0
LOOK_MS = 100.0
TRANSACTION_MS = 10_000
"""The old version's recoveries wait for a transaction that a killed migrator left open."""
MARKED, CREATED, CAUGHT_UP = "migration-marked", "migration-created", "migration-caught-up"
FOLLOWED, ASKED, INPUTS_HELD = "migration-followed", "migration-asked", "migration-inputs-held"
DRAINED, HELD, REST_COPIED = "migration-drained", "migration-held", "migration-rest-copied"
SETTLED = "migration-settled"
COMPARED, SWITCHING, SWITCHED = "migration-compared", "migration-switching", "migration-switched"
TAKEN_OVER = "migration-taken-over"
"""Crash points, beside those of `copying`."""

T = TypeVar("T")


def transactional_id(new: str) -> str:
    """Of who migrates into ``new``."""
    return f"{new}-migration"


Committed = Mapping[TopicPartition, CommittedOffset]


@dataclass(kw_only=True)
class Migrator:
    """``functions``: by new store. ``instances``: of the new version that have to follow before the
    switch. One thread."""

    config: StreamsConfig
    plan: MigrationPlan
    old: Program
    new: Program
    functions: Mapping[str, Callable[[Any], Any]]
    admin: ClusterAdmin
    status: StatusLine
    instances: int = 1
    compare: bool = True
    clock: Clock = field(default_factory=SystemClock)
    stop: threading.Event = field(default_factory=threading.Event)
    phases_ms: dict[str, int] = field(default_factory=dict)
    """When it came to each of the points above last, ms since the epoch."""
    _hot: set[TaskId] = field(default_factory=set)
    _ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    _began: frozenset[TopicPartition] | None = None
    """What the old group had offsets of at `check`."""

    @property
    def transactional_id(self) -> str:
        return transactional_id(self.plan.new)

    @property
    def _batch(self) -> str:
        """Beside the offsets that the switch writes, until the new version commits."""
        return f"migrated-{self.plan.digest}"

    @property
    def producer(self) -> dict[str, Any]:
        return {**self.config.producer(), "transaction.timeout.ms": TRANSACTION_MS}

    def _reached(self, point: str) -> None:
        self.phases_ms[point] = self.clock.now_ms()
        reached(point)

    # --- before anything is changed --------------------------------------------------------------

    def check(self) -> None:
        """MigrationError where the applications are not as they have to be; changes nothing."""
        was = self._committed(self.plan.old, None)
        if not was:
            raise ConfigError(
                f"group {self.plan.old} has committed nothing at {self.config.bootstrap_servers}: "
                f"there is nothing to migrate. Is it spelled as its application.id?",
                code="EF-USAGE",
            )
        self._began = frozenset(was)
        self._require_not_gone(was)
        if any(of_kafka_streams(one.metadata) for one in was.values()):
            raise MigrationError(
                f"Application {self.plan.old} was run by Kafka Streams (Java). Take it over first: "
                f"start the old program once with everflow (docs/guide/taking-over.md).",
                code="EF-MIGRATION-PLAN",
            )
        self._require_old_program(was)
        now = self._committed(self.plan.new, None)
        marks = {tp: mark_in(one.metadata) for tp, one in now.items()}
        strange = [tp for tp, mark in marks.items() if mark is None or mark.kind == GONE]
        if strange:
            raise MigrationError(
                f"Application {self.plan.new} has run already: its group has an offset of "
                f"{strange[0]}. Give the new version an application.id that nothing has run under. "
                f"(If it was started before the migration: stop it, and give the migration another "
                f"--application-id.)",
                code="EF-MIGRATION-PLAN",
            )
        for mark in marks.values():
            ours = FILLED, self.plan.old, self.plan.digest
            if mark is not None and mark.kind == FILLED and mark != ours:
                raise MigrationError(
                    f"{self.plan.new} is being filled from {mark.application_id} by another plan: "
                    f"programs or options were others. Call the command as it was, or give that "
                    f"migration up with --back and begin anew.",
                    code="EF-MIGRATION-PLAN",
                )

    def _require_old_program(self, was: Committed) -> None:
        members = seen_members(self.admin.members(self.plan.old, REQUEST_S, settled=True))
        wanted = digest(self.old.lines)
        if members:
            require_one_version(members, self.plan.old, wanted)
            return
        texts = [from_json(parse_metadata(one.metadata).layouts) for one in was.values()]
        ran = program_in(newest(texts))
        if ran is not None and ran != digest_of_lines(self.old.lines):
            raise MigrationError(
                f"{self.plan.old} was last run by another program than --from names. Nothing was "
                f"changed. Give that one to --from.",
                code="EF-MIGRATION-MEMBERS",
            )

    def estimated(self) -> Estimate:
        """What is to be copied, and for how long."""
        with LogReader(self.config.consumer(), fetch_bytes=1 << 20) as reader:
            logs = logs_of(self.plan, self.old, self.new, self.functions)
            return estimate(logs, self.admin, reader)

    # --- the steps -------------------------------------------------------------------------------

    def run(self) -> dict[str, int]:
        """Carry the application over; the number of entries by store. EverflowError: before the
        switch, and the old version goes on; calling it again goes on with the copy."""
        with ExitStack() as opened:
            self._mark()
            self._create()
            writer = RecordWriter.get(self.producer, self.transactional_id)
            opened.callback(writer.close)
            opened.push(self._end_transaction)
            self._require_not_switched()
            reader = opened.enter_context(LogReader(self.config.consumer()))
            copying = Copying(
                logs=logs_of(self.plan, self.old, self.new, self.functions),
                old=self.plan.old,
                new=self.plan.new,
                admin=self.admin,
                writer=writer,
                reader=reader,
                compared=self.compare,
            )
            with self._step("reading what was copied before"):
                copying.begin(self._committed(self.plan.new, None))
            self._catch_up(copying)
            self._await_instances(copying)
            self._reached(FOLLOWED)
            holder = self._holder()
            opened.callback(holder.close)
            counts = self._switch(copying, holder, writer, reader)
            quietly(lambda: self._await_new(reader))
            return counts

    def _require_not_switched(self) -> None:
        """The transaction of a migrator that was killed at its commit is over only now that its id
        is fenced: `check` may have read the offsets before it."""
        now = self.admin.committed(self.plan.new, sorted(self._shared()), REQUEST_S)
        if any(mark_in(one.metadata) is None for one in now.values()):
            self._require_not_gone(self._committed(self.plan.old, None))

    def _end_transaction(self, kind: type[BaseException] | None, *_: object) -> None:
        """After a failure or Ctrl-C: an open transaction would hold the old version's offsets."""
        if kind is not None:
            quietly(lambda: fence_all(self.producer, [self.transactional_id], REQUEST_S))

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        with self.status.waiting(what, after_s=1.0):
            yield

    def _mark(self) -> None:
        """First: from now on a start of the new version waits for the switch."""
        now = self._committed(self.plan.new, None)
        kinds = {mark.kind for one in now.values() if (mark := mark_in(one.metadata))}
        if FILLED in kinds:
            return
        was = self._committed(self.plan.old, sorted(self._shared()))
        offsets = {tp: was[tp].offset if tp in was else 0 for tp in self._shared()}
        mark = Mark(FILLED, self.plan.old, self.plan.digest)
        text = format_metadata(mark.batch_id, {}, self.new.layouts)
        self._in_transaction([(tp, offset, text) for tp, offset in sorted(offsets.items())])
        self._reached(MARKED)

    def _in_transaction(self, rows: Iterable[tuple[TopicPartition, int, str]]) -> None:
        writer = RecordWriter.get(self.producer, self.transactional_id)
        with closing(writer):
            writer.begin()
            listed = [(tp.topic, tp.partition, offset, text) for tp, offset, text in rows]
            writer.send_offsets(listed, without_member(self.plan.new), REQUEST_S)
            writer.commit(REQUEST_S)

    def _create(self) -> None:
        internal = self.new.internal
        specs = [
            TopicSpec(n, p, dict(c), "repartition") for n, (p, c) in internal.repartition.items()
        ]
        specs += [
            TopicSpec(n, p, dict(c), LEFT_OUT if n in internal.left_out else "changelog")
            for n, (p, c) in internal.changelog.items()
        ]
        there = self.admin.describe_topics([spec.name for spec in specs])
        wrong = [
            s.name for s in specs if s.name in there and there[s.name].partitions != s.partitions
        ]
        if wrong:
            raise MigrationError(
                f"Topic {some(wrong)} exists with another number of partitions. Is the "
                f"application.id {self.plan.new} in use? Give the migration up (--back).",
                code="EF-MIGRATION-PLAN",
            )
        marks = [mark_in(one.metadata) for one in self._committed(self.plan.new, None).values()]
        copied = any(mark is not None and mark.kind == COPIED for mark in marks)
        if copied and (missing := [s.name for s in specs if s.name not in there]):
            raise MigrationError(
                f"Topic {some(missing)} was deleted, and some of the state had been copied into "
                f"it: was --back cut off? Give the migration up (--back), and begin it anew.",
                code="EF-MIGRATION-PLAN",
            )
        with self._step("creating internal topics"):
            ClusterTopics(self.admin, self.config).create(specs)
        self._reached(CREATED)

    def _catch_up(self, copying: Copying) -> None:
        with self._step("copying changelogs"):
            took_ms = NEAR_MS
            while took_ms >= NEAR_MS:
                began_ms = self.clock.monotonic_ms()
                self._round(copying)
                took_ms = self.clock.monotonic_ms() - began_ms
        self.status.say(f"{counted(copying.copied, 'record')} copied, and caught up")
        self._reached(CAUGHT_UP)

    def _round(self, copying: Copying) -> None:
        """Copy what there is by now. A passing fault is tried again."""

        def once() -> None:
            copying.round(copying.ends())
            if self.compare:
                copying.read_back()

        self._patiently(once, "copying changelogs")

    def _patiently(self, operation: Callable[[], T], what: str) -> T:
        limit = Deadline(self.clock, self.config.task_timeout_ms)
        return attempting(operation, what, clock=self.clock, deadline=limit, stop=self.stop)

    def _await_instances(self, copying: Copying) -> None:
        """Go on copying until the new version's instances have followed."""
        if not self.instances:
            return
        what = (
            f"waiting for {counted(self.instances, 'instance')} of {self.plan.new} to follow: "
            f"start it as always, with everflow run"
        )
        with self._step(what):
            while not self._followed():
                self._round(copying)
                self.clock.wait(self.stop, FOLLOW_MS)

    def _followed(self) -> bool:
        """True once so many members are there, and each task's copy was near its end at one of
        them. Their word is as old as their last join, which a copy that has caught up brings; so a
        word counts by the ends of the look before, when it had not been given."""
        members = seen_members(self.admin.members(self.plan.new, REQUEST_S, settled=True))
        if not members or len(members) < self.instances:
            return False
        stateful = self._changelogs_of_new_tasks()
        ends = self.admin.list_offsets(
            {tp for tps in stateful.values() for tp in tps}, "latest", "read_committed", REQUEST_S
        )
        before, self._ends = self._ends or ends, ends
        self._hot |= near_tasks(members, stateful, before, self.config.acceptable_recovery_lag)
        return self._hot >= stateful.keys()

    def _changelogs_of_new_tasks(self) -> dict[TaskId, list[TopicPartition]]:
        found: dict[TaskId, list[TopicPartition]] = {}
        for name, (topic, count) in self.new.changelogs.items():
            index = self.new.facts.stores[name].subtopology
            if index is None:
                continue
            for number in range(count):
                found.setdefault(TaskId(index, number), []).append(TopicPartition(topic, number))
        return found

    def _holder(self) -> Holder:
        process_id = str(uuid.uuid4())
        settings = GroupSettings(
            bootstrap_servers=self.config.bootstrap_servers,
            group_id=self.plan.old,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            rebalance_timeout_ms=self.config.rebalance_timeout_ms,
            client_id=f"{self.plan.old}-migration-{process_id}",
            client=security_keywords(self.config.main_consumer()),
        )
        return Holder(settings, self.old, process_id)

    # --- the switch ------------------------------------------------------------------------------

    def _switch(
        self, copying: Copying, holder: Holder, writer: RecordWriter, reader: LogReader
    ) -> dict[str, int]:
        copying.gather()
        every = frozenset(self.old.tasks())
        if len(self.plan.stages) > 1 and self.admin.members(self.plan.old, REQUEST_S):
            self._drain(copying, holder)
        for last in (False,) * (ROUNDS - 1) + (True,):
            holder.hold(every)
            self._round(copying)
            with self._step("waiting until the old version stands still"):
                member = self._await_still(holder, every)
            self._reached(HELD)
            try:
                return self._commit(copying, member, writer, reader)
            except TaskMigratedError as evicted:
                raise MigrationError(
                    f"The migrator was taken out of the group {self.plan.old}, or another one was "
                    f"started: {evicted}. The old version goes on.",
                    code="EF-MIGRATION-MEMBERS",
                ) from evicted
            except GenerationChanged as moved:
                if last:
                    raise MigrationError(
                        f"The group {self.plan.old} is rebalanced again and again: {moved}. The "
                        f"old version goes on; call everflow migrate again.",
                        code="EF-MIGRATION-MEMBERS",
                    ) from moved
        raise AssertionError("unreachable")

    def _drain(self, copying: Copying, holder: Holder) -> None:
        """Have the old version read the records between its tasks, upstream first."""
        held: frozenset[TaskId] = frozenset()
        for number, stage in enumerate(self.plan.stages):
            if stage.topics:
                with self._step("waiting until the old version has read its repartition topics"):
                    self._await_drained(copying, stage.topics)
            if number and not stage.parts:
                continue
            held |= {task for task in self.old.tasks() if task.subtopology in stage.parts}
            holder.hold(held)
            if not number:
                self._reached(ASKED)
            self._round(copying)  # while the group is rebalanced, here and below
            with self._step("waiting until the old version reads no input"):
                self._await_still(holder, held)
            if not number:
                self._reached(INPUTS_HELD)
        self._reached(DRAINED)

    def _await_new(self, reader: LogReader) -> None:
        """Until the new version has committed what each task has to read. So long the old one's
        instances are at rest: on hosts that both share, their end would take processor from its
        first micro-batches (0.15 s of 0.4 s on two cores)."""
        if not self.instances:
            return
        read = sorted({tp for inputs in self.new.tasks().values() for tp in inputs})
        limit = Deadline(self.clock, TAKE_OVER_MS)
        with self._step(f"waiting for the first micro-batch of {self.plan.new}"):
            while not self._has_taken_over(read, reader):
                if limit.expired():
                    self.status.say(
                        f"{self.plan.new} has committed nothing for {TAKE_OVER_MS / 1000:g} s: "
                        f"see the logs of its instances"
                    )
                    return
                self.clock.wait(self.stop, LOOK_MS)
        self._reached(TAKEN_OVER)

    def _has_taken_over(self, read: Sequence[TopicPartition], reader: LogReader) -> bool:
        found = self.admin.committed(self.plan.new, read, REQUEST_S)
        batches = {tp: parse_metadata(one.metadata).batch_id for tp, one in found.items()}
        fresh = [tp for tp, batch in batches.items() if batch == self._batch]
        return not fresh or not self._waiting(self.plan.new, fresh, reader)

    def _await_still(self, holder: Holder, held: Collection[TaskId]) -> GroupMetadata:
        return await_still(
            holder,
            held,
            lambda: self.admin.members(self.plan.old, REQUEST_S, settled=True),
            self.clock,
            self.stop,
            self.config.task_timeout_ms,
        )

    def _await_drained(self, copying: Copying, topics: Collection[str]) -> None:
        read = [TopicPartition(t, p) for t in topics for p in range(self.old.partitions[t])]
        limit = Deadline(self.clock, self.config.task_timeout_ms)
        while waiting := self._waiting(self.plan.old, read, copying.reader):
            if limit.expired():
                raise self._not_drained(waiting)
            if sum(waiting.values()) > BACKLOG:
                self._round(copying)
            self.clock.wait(self.stop, DRAIN_MS)

    def _not_drained(self, waiting: Mapping[TopicPartition, int]) -> MigrationError:
        listed = ", ".join(f"{tp}: {count:,}" for tp, count in sorted(waiting.items()))
        return MigrationError(
            f"Records of {self.plan.old} wait in repartition topics ({listed}), and cannot be "
            f"carried. Does the old version run, and get on? It goes on; call everflow migrate "
            f"again when they are read.",
            code="EF-MIGRATION-WAITING",
        )

    def _waiting(
        self, group: str, partitions: Sequence[TopicPartition], reader: LogReader
    ) -> dict[TopicPartition, int]:
        """How many records wait for the group. The offsets are read before the ends: what was read
        to its end then had nothing in flight."""
        done = self.admin.committed(group, partitions, REQUEST_S)
        starts = self.admin.list_offsets(partitions, "earliest", "read_uncommitted", REQUEST_S)
        ends = self.admin.end_offsets(partitions, "read_uncommitted", REQUEST_S)
        read = {tp: max(starts[tp], done[tp].offset if tp in done else 0) for tp in partitions}
        behind = [tp for tp in partitions if ends[tp] > read[tp]]
        stable = self.admin.list_offsets(behind, "latest", "read_committed", REQUEST_S)
        return {
            tp: ends[tp] - read[tp]
            for tp in behind
            if stable[tp] < ends[tp] or _has_records(reader, tp, read[tp], ends[tp])
        }

    def _commit(
        self, copying: Copying, member: GroupMetadata, writer: RecordWriter, reader: LogReader
    ) -> dict[str, int]:
        """Nobody of the old version runs: copy the rest, compare, and switch. GenerationChanged:
        the group has gone on."""
        self._end_writers()
        inputs = sorted(tp for read in self.old.tasks().values() for tp in read)
        committed = self.admin.committed(self.plan.old, None, REQUEST_S)
        self._require_not_gone(committed)
        self._require_same_inputs(committed)
        drained = [
            TopicPartition(t, p) for t in self.plan.drained for p in range(self.old.partitions[t])
        ]
        if drained and (waiting := self._waiting(self.plan.old, drained, reader)):
            raise self._not_drained(waiting)
        ends = self._settled_ends(copying)
        self._reached(SETTLED)
        with self._step("copying the rest"):
            copying.round(ends)
        self._reached(REST_COPIED)
        counts: dict[str, int] = {}
        if self.compare:
            with self._step("comparing counts and checksums"):
                counts = self._patiently(copying.require_equal, "comparing both versions")
        self._require_followers()
        self._reached(COMPARED)
        self._write_switch(committed, inputs, member, writer, reader)
        self._reached(SWITCHED)
        return counts

    def _require_same_inputs(self, read: Collection[TopicPartition]) -> None:
        """MigrationError where the old version has ``read`` more than there was as the plan was
        made: the new one would begin at the first records of that, and count them twice."""
        known = self.old.partitions
        came = [tp for tp in read if tp.partition >= known.get(tp.topic, 1 << 31)]
        if self._began is not None:  # topics that match a pattern
            came += [tp for tp in read if tp.topic not in known and tp not in self._began]
        if came:
            raise grown_since(self.plan.old, some(sorted(came)))

    def _require_followers(self) -> None:
        """MigrationError where nobody would go on behind the switch."""
        if not self.instances:
            return
        there = len(self.admin.members(self.plan.new, REQUEST_S))
        if there < self.instances:
            raise MigrationError(
                f"{counted(self.instances, 'instance')} of {self.plan.new} had followed, and "
                f"{there:,} are in its group now. Nothing was switched, and the old version goes "
                f"on. Start them again, and call everflow migrate again.",
                code="EF-MIGRATION-MEMBERS",
            )
        stateful = self._changelogs_of_new_tasks()
        anywhere = dict.fromkeys((tp for tps in stateful.values() for tp in tps), 0)
        limit = Deadline(self.clock, FOLLOW_AGAIN_MS)
        while True:
            members = seen_members(self.admin.members(self.plan.new, REQUEST_S, settled=True))
            lost = stateful.keys() - near_tasks(members or (), stateful, anywhere, 0)
            if not lost or limit.expired():
                break
            self.clock.wait(self.stop, DRAIN_MS)
        if members and lost:  # of a group that is rebalanced nothing is known
            raise MigrationError(
                f"Instances of {self.plan.new} had followed all tasks, and do not say any more "
                f"that they have copies of {some(sorted(lost))}: their logs say why (a full "
                f"disk?). Nothing was switched, and the old version goes on. Mend that, and call "
                f"everflow migrate again.",
                code="EF-MIGRATION-MEMBERS",
            )

    def _end_writers(self) -> None:
        """Transactions of instances that have vanished hold changelogs and offsets open."""
        fence_lost_writers(
            self.plan.old,
            "",
            self.admin.open_transactions,
            lambda: self.admin.client_ids(self.plan.old),
            lambda ids: fence_all(self.producer, ids, REQUEST_S),
        )

    def _settled_ends(self, copying: Copying) -> dict[TopicPartition, int]:
        """The ends of the old changelogs, once no transaction is open below them."""
        partitions = [tp for log in copying.logs for tp in log.partitions]
        ends = self.admin.end_offsets(partitions, "read_uncommitted", REQUEST_S)

        def settled() -> None:
            stable = copying.ends()
            if any(stable[tp] < end for tp, end in ends.items()):
                raise RetriableError("a transaction of the old version is still open")

        self._patiently(settled, "waiting for open transactions of the old version")
        return ends

    def _write_switch(
        self,
        committed: Committed,
        inputs: Sequence[TopicPartition],
        member: GroupMetadata,
        writer: RecordWriter,
        reader: LogReader,
    ) -> None:
        rows = self._offsets_of_new(committed)
        carried = [
            TopicPartition(move.source, number)
            for move in self.plan.waiting
            for number in range(move.before)
        ]
        starts = self.admin.list_offsets(carried, "earliest", "read_uncommitted", REQUEST_S)
        ends = self.admin.end_offsets(carried, "read_committed", REQUEST_S)
        spans = {
            tp: (max(starts[tp], committed[tp].offset if tp in committed else 0), ends[tp])
            for tp in carried
        }
        marks = []
        for tp in inputs:
            found = committed.get(tp, CommittedOffset(0, ""))
            marks.append((tp.topic, tp.partition, found.offset, text_of_gone(self.plan.new, found)))
        writer.begin()
        try:
            for move in self.plan.waiting:
                carry(writer, reader, move, spans)
            writer.send()
            writer.send_offsets(rows, without_member(self.plan.new), REQUEST_S)
            writer.send_offsets(marks, member.encode(), REQUEST_S)
            writer.flush(REQUEST_S)
            self._reached(SWITCHING)
            writer.commit(REQUEST_S)
        except UnknownOutcomeError:
            self._require_switched(inputs)
        except EverflowError:
            writer.abort()
            raise

    def _offsets_of_new(self, committed: Committed) -> list[tuple[str, int, int, str]]:
        """Of the new group: the inputs as the old group has read them, the repartition topics from
        where this switch writes, with the stream times of the tasks that read them."""
        tasks = self.new.tasks()
        times = {
            tp: self.old.times.now(kept.stream_times, kept.layouts.get(TIMES))
            for tp, one in committed.items()
            for kept in (parse_metadata(one.metadata),)
        }
        of_tasks = stream_times(self.plan, self.old, self.new, times)
        own = [tp for read in tasks.values() for tp in read if tp.topic in self.new.repartition]
        begins = self.admin.end_offsets(own, "read_uncommitted", REQUEST_S)
        rows = []
        for task, read in sorted(tasks.items()):
            kept = self.new.times.fitting(of_tasks[task], task.subtopology)
            text = format_metadata(self._batch, kept, self.new.layouts)
            for tp in read:
                if tp in begins:
                    rows.append((tp.topic, tp.partition, begins[tp], text))
                elif tp in committed:
                    rows.append((tp.topic, tp.partition, committed[tp].offset, text))
                elif tp in self._shared():
                    rows.append((tp.topic, tp.partition, 0, text))
        return rows

    def _require_switched(self, inputs: Sequence[TopicPartition]) -> None:
        """No answer came to the commit: end the transaction if it is open, and look."""
        fence_all(self.producer, [self.transactional_id], REQUEST_S)
        found = self.admin.committed(self.plan.old, inputs, REQUEST_S)
        marks = [mark_in(one.metadata) for one in found.values()]
        if not any(mark is not None and mark.kind == GONE for mark in marks):
            raise RetriableError(
                "The switch was not committed: the brokers gave no answer. The old version goes "
                "on; call everflow migrate again."
            )

    # --- what is there ---------------------------------------------------------------------------

    def _shared(self) -> frozenset[TopicPartition]:
        """Partitions of the topics that both versions read."""
        return frozenset(
            TopicPartition(topic, number)
            for topic in {topic for topics in self.new.inputs.values() for topic in topics}
            & {topic for topics in self.old.inputs.values() for topic in topics}
            for number in range(self.new.partitions[topic])
        )

    def _committed(self, group: str, partitions: Sequence[TopicPartition] | None) -> Committed:
        return self.admin.committed(group, partitions, REQUEST_S, stable=False)

    def _require_not_gone(self, committed: Committed) -> None:
        for one in committed.values():
            mark = mark_in(one.metadata)
            if mark is not None and mark.kind == GONE:
                raise ApplicationMigratedError(
                    f"Application {self.plan.old} was migrated to {mark.application_id} already, "
                    f"which goes on in its place. Nothing was changed.",
                    to=mark.application_id,
                )


def text_of_gone(new: str, found: CommittedOffset) -> str:
    """What is beside an old offset from the switch on: the mark, and of the times so many as fit,
    for a release that does not know the mark."""
    times = parse_metadata(found.metadata).stream_times
    return format_metadata(Mark(GONE, new).batch_id, fitting(times, (), MOST_BYTES - MARK_BYTES))


def _has_records(reader: LogReader, tp: TopicPartition, start: int, end: int) -> bool:
    """False for markers of transactions alone."""
    return any(len(chunk) for chunk in reader.read(tp, start, end, every=True))
