"""Joins the pure assignor to the group protocol: user data in, a checked answer per member out.
Unreadable members, other programs and cloned folders are refused; the others go on."""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

from everflow.assignment import assignor as everflow_assignor
from everflow.assignment.cluster_state import (
    Assignment,
    AssignmentRules,
    ClusterState,
    Member,
    MemberFacts,
    TaskInfo,
    holding,
    owners_of,
    tasks_of,
    validate_assignment,
)
from everflow.assignment.lags import Delay, hold_back, remember
from everflow.assignment.target import eligible
from everflow.assignment.user_data import (
    LATEST_VERSION,
    UNREAD,
    AnswerError,
    AssignmentData,
    FutureVersionError,
    HostTasks,
    UserData,
    UserDataError,
    decode,
    decode_assignment,
    digest,
    encode,
    encode_assignment,
    hosts_within_budget,
)
from everflow.clock import Clock, SystemClock
from everflow.errors import EverflowError
from everflow.kafka.group_channel import MemberAssignment
from everflow.logs import ABOUT_ASSIGNMENT, counted, rebalance_log, some
from everflow.rebalances import Decision, Route, task_names
from everflow.records import TaskId, TopicPartition


@dataclass(frozen=True)
class Refusal:
    """Why a member takes no part, and the sentence it gets."""

    error: AnswerError
    message: str


@dataclass(frozen=True)
class Screening:
    """By member id; ``topology``: digest of the group's program; ``common_version``: the newest
    that all read."""

    accepted: Mapping[str, UserData]
    refused: Mapping[str, Refusal]
    topology: str
    common_version: int
    nonces: Mapping[str, int] = field(default_factory=dict)

    @property
    def unread(self) -> bool:
        return any(
            refusal.error is AnswerError.UNSUPPORTED_VERSION for refusal in self.refused.values()
        )


def screen(members: Mapping[str, bytes], latest_version: int) -> Screening:
    """Read and sort the members; ``latest_version`` is this leader's."""
    readable: dict[str, UserData] = {}
    refused: dict[str, Refusal] = {}
    versions = [latest_version]
    for member_id, blob in sorted(members.items()):
        try:
            readable[member_id] = decode(blob, latest_version)
            versions.append(
                max(readable[member_id].used_version, readable[member_id].latest_version)
            )
        except FutureVersionError as failure:
            refused[member_id] = Refusal(AnswerError.UNSUPPORTED_VERSION, str(failure))
            versions.append(max(failure.used, failure.latest))
        except UserDataError as failure:
            refused[member_id] = Refusal(AnswerError.ASSIGNMENT_FAILED, str(failure))
    topology = _program(readable)
    for member_id, data in readable.items():
        if data.topology != topology:
            where = f" at {data.endpoint}" if data.endpoint else ""
            refused[member_id] = Refusal(
                AnswerError.INCOMPATIBLE_TOPOLOGY,
                f"member {member_id}{where} runs a program that does not fit the group's "
                f"(fingerprint {data.topology})",
            )
    refused.update(_clones({m: data for m, data in readable.items() if m not in refused}))
    accepted = {member_id: data for member_id, data in readable.items() if member_id not in refused}
    return Screening(
        accepted, refused, topology, min(versions), {m: data.nonce for m, data in readable.items()}
    )


def _program(members: Mapping[str, UserData]) -> str:
    """The digest most owners of the newest generation have; without owners, the most frequent."""
    owners = [data for data in members.values() if data.owned]
    newest = max((data.generation for data in owners), default=-1)
    votes = [data for data in owners if data.generation == newest] or list(members.values())
    number = Counter(data.topology for data in votes)
    # A tie goes to the first process id, an order that restarts do not change.
    first = {
        data.topology: data.process_id
        for data in sorted(votes, key=lambda data: data.process_id, reverse=True)
    }
    return min(number, key=lambda topology: (-number[topology], first[topology]), default="")


def _clones(members: Mapping[str, UserData]) -> dict[str, Refusal]:
    """All but the longest member of those with one process id (scenario 31)."""
    by_process: dict[str, list[str]] = defaultdict(list)
    for member_id in members:
        by_process[members[member_id].process_id].append(member_id)
    refused = {}
    for process_id, same in by_process.items():
        oldest, *newer = sorted(
            same, key=lambda m: (-members[m].generation, -len(members[m].owned), m)
        )
        for member_id in newer:
            refused[member_id] = Refusal(
                AnswerError.PROCESS_ID_CLASH,
                f"members {oldest} and {member_id} both have the process id {process_id}: their "
                f"state folders are copies of one "
                "another (a cloned volume?), and they would fence each other's transactions",
            )
    return refused


log = logging.getLogger("everflow.membership")

Decide = Callable[[ClusterState], Assignment]
"""The pure decision; a user's own assignor is plugged in here (KIP-924). It is validated."""

METADATA_RETRY_MS = 1_000
_MOVED_SHOWN = 5
_UUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Known = Mapping[str, tuple[str, frozenset[TaskId]]]
"""Members of the leader's last decision: what they are called, what they run or hand over."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Never changes while the instance lives; ``topology``: `topology.store_layouts`' lines."""

    process_id: str
    threads: int = 1
    rack: str = ""
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    endpoint: str = ""
    instance_id: str | None = None
    topology: tuple[str, ...] = ()


class EndSums(Protocol):
    """Ends of the changelogs, for the leader."""

    def refresh(self) -> None:
        """Start to read them anew; returns at once."""

    def latest(self) -> Mapping[TaskId, int] | None:
        """Per task; None without a fresh figure (X2)."""


class Claims(NamedTuple):
    """The tasks that the member has when it sends a join."""

    owned: frozenset[TaskId]
    generation: int


class MemberAssignor:
    """The group's ``everflow`` protocol (cooperative, KIP-429). Called on the group client's IO
    thread; no waiting. ``subtopologies``, ``changelogs``: index -> full names of topics; a
    sub-topology without a changelog is stateless. ``tasks``: how many those have whose state fixes
    it. ``offset_sums``: of every copy whose task does
    not run active here; ``racks``: of partitions, as far as they are known; neither does I/O.
    ``max_delay_ms``: how long a lost member's tasks wait for it. ``first_nonce``: two lives of an
    instance must not begin with the same. ``latest_version``: of user data; lower ones are used
    while members need them."""

    name = "everflow"

    def __init__(
        self,
        identity: Identity,
        subtopologies: Mapping[int, Sequence[str]],
        changelogs: Mapping[int, Sequence[str]],
        offset_sums: Callable[[], Mapping[TaskId, int]],
        end_sums: EndSums,
        racks: Callable[[], Mapping[TopicPartition, frozenset[str]]],
        rules: AssignmentRules,
        decide: Decide = everflow_assignor.assign,
        *,
        max_delay_ms: int = 0,
        clock: Clock | None = None,
        first_nonce: int | None = None,
        latest_version: int = LATEST_VERSION,
        tasks: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.identity = identity
        self.draining = False
        """Tell the others, from the next join on, that this member wants to leave."""
        self.shutting_down_all = False
        """Ask, from the next join on, every member of the group to end."""
        self.all_asked = False
        """True if this member led the last generation, and every member of it asked that."""
        self.held: frozenset[TaskId] = frozenset()
        """Ask, from the next join on, that no member runs these tasks (note 067)."""
        self._subtopologies = {index: tuple(topics) for index, topics in subtopologies.items()}
        self._grown: Mapping[str, int] = {}
        self._tasks = dict(tasks)
        self._subtopology_of = {
            topic: index for index, topics in self._subtopologies.items() for topic in topics
        }
        self._counted = self._subtopologies  # as of the last assignment
        self._changelogs = {index: tuple(topics) for index, topics in changelogs.items()}
        self._offset_sums, self._end_sums, self._racks = offset_sums, end_sums, racks
        self._reported_sums: Mapping[TaskId, int] = {}
        self._rules = rules
        self._decide = decide
        self._max_delay_ms = max_delay_ms
        self._clock = clock or SystemClock()
        self._delay = Delay()  # a leader's memory
        self._known: Known = {}
        self.decision: Decision | None = None
        """Of the last generation, if this member led it."""
        self._led = False  # whether this member made the assignment that it is about to get
        self.topology = digest(identity.topology)
        self._latest_version = latest_version
        self._used_version = latest_version
        self._claims: Callable[[], Claims] = lambda: Claims(frozenset(), -1)
        self._nonce = secrets.randbits(32) if first_nonce is None else first_nonce
        self._lock = threading.Lock()

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._subtopology_of)

    def read_more(
        self, subtopologies: Mapping[int, Sequence[str]], counts: Mapping[str, int]
    ) -> None:
        """The program reads these topics from now on (note 037). ``counts``: so many partitions of
        a topic there are at least, whatever the client's old metadata says. From any thread."""
        self._grown = {**self._grown, **counts}
        found = {topic: index for index, topics in subtopologies.items() for topic in topics}
        self._subtopology_of = found  # first: the leader looks up what is in the other
        self._subtopologies = {index: tuple(topics) for index, topics in subtopologies.items()}

    def known(
        self, partitions: Iterable[TopicPartition], active: Collection[TaskId]
    ) -> frozenset[TopicPartition]:
        """Those of topics that the program reads, and of tasks that the leader gave: one of a
        release before 0.1.0 takes a new partition of an input for a task of its own, whose records
        belong here to a task that another member may run."""
        return frozenset(
            tp
            for tp in partitions
            if tp.topic in self._subtopology_of and self.task_of(tp) in active
        )

    def bind(self, claims: Callable[[], Claims]) -> None:
        self._claims = claims

    def task_of(self, tp: TopicPartition) -> TaskId:
        """The task that reads a partition. KeyError for a topic of no sub-topology."""
        index = self._subtopology_of[tp.topic]
        tasks = self._tasks.get(index)
        return TaskId(index, tp.partition if tasks is None else tp.partition % tasks)

    def cold(self, tasks: Collection[TaskId]) -> frozenset[TaskId]:
        on_disk = self._offset_sums()
        return frozenset(
            task for task in tasks if self._changelogs.get(task.subtopology) and task not in on_disk
        )

    def reported(self) -> frozenset[TaskId]:
        """Held copies that are near what the last join said of them. The leader gives them to
        nobody, and the migrator takes that word while the end is within ``acceptable.recovery.lag``
        of it; half of that is for what a copy is behind the end itself."""
        if not self.held:
            return frozenset()
        now, near = self._offset_sums(), self._rules.acceptable_lag // 2
        known = {task: at for task, at in self._reported_sums.items() if task in self.held}
        return frozenset(task for task, at in known.items() if 0 <= now.get(task, 0) - at <= near)

    def user_data(self) -> bytes:
        """This member's bytes; they differ from join to join (scenario 20)."""
        claims = self._claims()
        with self._lock:
            self._nonce = (self._nonce + 1) & 0xFFFFFFFF
            nonce = self._nonce
        self._end_sums.refresh()
        self._reported_sums = dict(self._offset_sums())
        me = self.identity
        data = UserData(
            process_id=me.process_id,
            owned=claims.owned,
            generation=claims.generation,
            threads=me.threads,
            offset_sums=self._reported_sums,
            rack=me.rack,
            tags=me.tags,
            endpoint=me.endpoint,
            draining=self.draining,
            instance_id=me.instance_id,
            topology=self.topology,
            error=AnswerError.SHUTDOWN_REQUESTED if self.shutting_down_all else AnswerError.NONE,
            held=self.held,
            nonce=nonce,
            used_version=self._used_version,
            latest_version=self._latest_version,
        )
        return encode(data)

    def answer(self, blob: bytes) -> AssignmentData:
        """The leader's answer, and from now on the newest version that all read. UserDataError."""
        data = decode_assignment(blob, self._latest_version)
        self._used_version = min(self._latest_version, data.latest_version)
        if not self._led:  # what another leader decided meanwhile is not remembered here
            self._delay = delay_told(data, int(self._clock.monotonic_ms()))
            self._known, self.decision = {}, None
            self.all_asked = False
        self._led = False
        return data

    def is_stale(self, data: AssignmentData) -> bool:
        """True if this was decided before this instance's present life (KIP-345)."""
        return data.answers not in (self._nonce, UNREAD)

    def assign(
        self,
        members: Mapping[str, bytes],
        partition_counts: Mapping[str, int],
        read: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> dict[str, MemberAssignment]:
        """An answer per member id. Never raises: what goes wrong is an error in the answers. A
        topic counts from when all members ``read`` it, as one that a pattern has found."""
        self._led, self.decision = True, None
        grown = self._grown
        partition_counts = {
            topic: max(count, grown.get(topic, 0)) for topic, count in partition_counts.items()
        }
        screening = screen(members, self._latest_version)
        for member_id, refusal in screening.refused.items():
            log.warning("member %s takes no part: %s", member_id, refusal.message)
        everybodys = [read[member_id] for member_id in screening.accepted if member_id in read]
        self._counted = {
            index: tuple(topic for topic in topics if all(topic in one for one in everybodys))
            for index, topics in self._subtopologies.items()
        }
        answers = self._answers(screening, partition_counts)
        inputs = tasks_of(self._counted, partition_counts, self._tasks)
        return {
            member_id: MemberAssignment(
                [tp for task in sorted(answer.active) for tp in inputs[task]],
                encode_assignment(answer),
            )
            for member_id, answer in answers.items()
        }

    def _answers(
        self, screening: Screening, counts: Mapping[str, int]
    ) -> dict[str, AssignmentData]:
        accepted = screening.accepted
        self.all_asked = all(_asks_to_end(data) for data in accepted.values())
        common = screening.common_version
        base = AssignmentData(
            topology=screening.topology,
            version=common,
            latest_version=common,
        )
        reference = self.identity.topology if self.topology == screening.topology else ()
        answers = {
            member_id: replace(
                base,
                error=refusal.error,
                message=refusal.message,
                reference=reference if refusal.error is AnswerError.INCOMPATIBLE_TOPOLOGY else (),
                answers=screening.nonces.get(member_id, UNREAD),
            )
            for member_id, refusal in screening.refused.items()
        }
        error, message = _group_error(accepted, self._missing(counts))
        if error is AnswerError.NONE:
            try:
                return answers | self._decided(screening, counts, base)
            except KeyboardInterrupt:
                raise
            except BaseException as failure:  # even SystemExit: the group must hear of it
                log.exception("the assignor failed")
                known = isinstance(failure, (EverflowError, ValueError))
                why = str(failure) if known else repr(failure)
                error = AnswerError.ASSIGNMENT_FAILED
                message = f"the assignor failed on the leader: {why}"
        log.warning("nothing was assigned: %s", message)
        asker = min(accepted, default="")
        for member_id, data in accepted.items():
            again = member_id == asker and error is AnswerError.INCOMPLETE_SOURCE_METADATA
            answers[member_id] = replace(
                base,
                error=error,
                message=message,
                answers=data.nonce,
                followup_ms=METADATA_RETRY_MS if again else None,
            )
        return answers

    def _missing(self, counts: Mapping[str, int]) -> list[str]:
        wanted = {topic for topics in self._counted.values() for topic in topics}
        return sorted(topic for topic in wanted if not counts.get(topic, 0))

    def _decided(
        self, screening: Screening, counts: Mapping[str, int], base: AssignmentData
    ) -> dict[str, AssignmentData]:
        cluster, now_ms = self._cluster(screening, counts), int(self._clock.monotonic_ms())
        delays = self._max_delay_ms > 0 and not screening.unread
        if delays:
            self._delay, cluster = hold_back(
                self._delay,
                cluster,
                now_ms,
                self._max_delay_ms,
            )
        decided = self._decide(cluster)
        problems = validate_assignment(
            decided,
            cluster.members,
            cluster.tasks,
            cluster.held_back,
        )
        if problems:
            raise ValueError(f"it broke the rules: {'; '.join(problems[:10])}")
        if delays:
            self._delay, decided = remember(self._delay, cluster, decided, now_ms)
        held = frozenset[TaskId]().union(*(data.held for data in screening.accepted.values()))
        decided = holding(decided, held, cluster.tasks)
        if held:
            cluster = replace(cluster, held_back=cluster.held_back | held)
        self.decision = decision_of(self._known, cluster, decided, held)
        if rebalance_log.isEnabledFor(logging.INFO):
            text = decision_text(self.decision)
            rebalance_log.info("The leader decides: %s", text, extra=ABOUT_ASSIGNMENT)
        self._known = known_of(cluster, decided)
        none: frozenset[TaskId] = frozenset()
        hosts = hosts_within_budget(
            {
                member.endpoint: HostTasks(
                    decided.active[member.member_id], decided.standby.get(member.member_id, none)
                )
                for member in cluster.members
                if member.endpoint
            },
            len(cluster.members),
        )
        awaited, await_ms = self._awaited(len(cluster.members), now_ms) if delays else ({}, None)
        asking = {member.member_id for member in eligible(cluster)[:1]}
        all_drain = all(member.draining for member in cluster.members)
        # Who has to let go of a withheld task asks once it has (KIP-429). A rebalance that anyone
        # else asks for would wait for an owner that is dead, and renew the session of a static one:
        # it would never be found out. A static one that was only restarted gets this answer again,
        # and asks then.
        if decided.withheld and decided.followup_ms == 0:
            asking = {m.member_id for m in cluster.members if m.owned & decided.withheld}
        return {
            member.member_id: replace(
                base,
                active=decided.active[member.member_id],
                standby=decided.standby.get(member.member_id, none),
                warmup=decided.warmup.get(member.member_id, none),
                hosts=hosts,
                followup_ms=decided.followup_ms if member.member_id in asking else None,
                draining_done=all_drain,
                answers=screening.accepted[member.member_id].nonce,
                awaited=awaited,
                await_ms=await_ms,
            )
            for member in cluster.members
        }

    def _awaited(self, members: int, now_ms: int) -> tuple[Mapping[str, HostTasks], int | None]:
        """`AssignmentData.awaited`: without it a leader that is lost takes its memory along, and a
        rolling bounce meets each leader once."""
        delay, found = self._delay, defaultdict[str, set[TaskId]](set)
        for task, process in (*delay.owners.items(), *delay.lost.items()):
            if task in delay.lost or process == self.identity.process_id:
                found[process].add(task)
        awaited = {process: HostTasks(frozenset(tasks)) for process, tasks in found.items()}
        await_ms = None if delay.deadline_ms is None else max(1, delay.deadline_ms - now_ms)
        return hosts_within_budget(awaited, members) or {}, await_ms

    def _cluster(self, screening: Screening, counts: Mapping[str, int]) -> ClusterState:
        members = tuple(
            _member(member_id, data) for member_id, data in sorted(screening.accepted.items())
        )
        tasks = {
            task: self._info(task, inputs)
            for task, inputs in tasks_of(self._counted, counts, self._tasks).items()
        }
        held_back: frozenset[TaskId] = frozenset()
        if screening.unread:
            # A member that cannot be read may run what nobody else claims, and keeps it until it
            # has come down a version.
            held_back = frozenset(tasks) - frozenset().union(*(member.owned for member in members))
        return ClusterState(
            members=members,
            tasks=tasks,
            end_sums=self._end_sums.latest(),
            racks=self._racks(),
            rules=self._rules,
            held_back=held_back,
        )

    def _info(self, task: TaskId, inputs: Sequence[TopicPartition]) -> TaskInfo:
        changelogs = tuple(
            TopicPartition(topic, task.partition)
            for topic in self._changelogs.get(task.subtopology, ())
        )
        return TaskInfo(task, tuple(inputs), changelogs, bool(changelogs))


def delay_told(data: AssignmentData, now_ms: int) -> Delay:
    """What a leader has told, as memory of the next one."""
    had = {task: process for process, of in data.awaited.items() for task in of.active}
    if data.await_ms is None:
        return Delay(had)
    return Delay(lost=had, deadline_ms=now_ms + data.await_ms)


def _asks_to_end(data: UserData) -> bool:
    return data.error is AnswerError.SHUTDOWN_REQUESTED


def _group_error(
    members: Mapping[str, UserData], missing: Sequence[str]
) -> tuple[AnswerError, str]:
    asking = sorted(member_id for member_id, data in members.items() if _asks_to_end(data))
    if asking:
        return (
            AnswerError.SHUTDOWN_REQUESTED,
            f"member {asking[0]} asked the whole application to shut down",
        )
    if missing:
        return (
            AnswerError.INCOMPLETE_SOURCE_METADATA,
            f"the leader does not see topic {', '.join(missing)}",
        )
    return AnswerError.NONE, ""


def _member(member_id: str, data: UserData) -> Member:
    facts = {one.name: getattr(data, one.name) for one in fields(MemberFacts)}
    return Member(member_id=member_id, **facts)


def known_of(cluster: ClusterState, decided: Assignment) -> Known:
    return {
        member.member_id: (
            name_of(member.member_id, member.endpoint),
            decided.active.get(member.member_id, frozenset()) | (member.owned & decided.withheld),
        )
        for member in cluster.members
    }


def name_of(member_id: str, endpoint: str) -> str:
    """The member id, of each random part the beginning only, and ``application.server`` if set."""
    short = _UUID.sub(r"\1", member_id)
    return f"{short} ({endpoint})" if endpoint else short


def decision_of(
    before: Known,
    cluster: ClusterState,
    decided: Assignment,
    held: Collection[TaskId] = frozenset(),
) -> Decision:
    """``before`` is empty where this member did not make the last decision."""
    names = {m.member_id: name_of(m.member_id, m.endpoint) for m in cluster.members}

    def by_name(copies: Mapping[str, frozenset[TaskId]]) -> dict[str, Sequence[str]]:
        found = sorted((names.get(member_id, member_id), of) for member_id, of in copies.items())
        return {name: task_names(tasks) for name, tasks in found if tasks}

    return Decision(
        tasks=len(cluster.tasks),
        members=list(names.values()),
        before={name: task_names(had) for name, had in before.values()} if before else None,
        moved=_moved(before, cluster, decided, names),
        withheld=task_names(decided.withheld),
        held_back=task_names(cluster.held_back),
        held=task_names(held),
        warmups=by_name(decided.warmup),
        standbys=by_name(decided.standby),
        later=decided.movements - len(decided.withheld),
    )


def decision_text(decision: Decision) -> str:
    """One line."""
    count = counted(decision.tasks, "task"), counted(len(decision.members), "instance")
    parts = [" on ".join(count)]
    gone = [f"{name} (had {some(had)})" for name, had in sorted(decision.gone.items())]
    parts += [f"gone: {some(gone)}"] * bool(gone)
    parts += [f"new: {some(decision.new)}"] * bool(decision.new)
    moved = [
        f"{some(one.tasks)} from {one.origin or 'nobody (new, or the owner is gone)'} to {one.to}"
        for one in decision.moved
    ]
    parts += [f"moves now: {some(moved, _MOVED_SHOWN)}"] * bool(moved)
    if decision.withheld:
        parts.append(
            f"being handed over: {some(decision.withheld)} (their owners finish, the next "
            f"rebalance gives them on)"
        )
    if decision.held:
        parts.append(f"held for everflow migrate: {some(decision.held)}")
    if waiting := [task for task in decision.held_back if task not in decision.held]:
        parts.append(f"held back for now: {some(waiting)}")
    warming = [f"{task} on {name}" for name, tasks in decision.warmups.items() for task in tasks]
    parts += [f"warm-ups: {some(warming)}"] * bool(warming)
    if decision.later > 0:
        parts.append(f"still to move: {decision.later:,}")
    elif not (decision.withheld or warming or decision.held_back):
        parts.append("nothing left to move")
    return "; ".join(parts)


def _moved(
    before: Known, cluster: ClusterState, decided: Assignment, names: Mapping[str, str]
) -> list[Route]:
    """Of tasks whose new owner did not have them."""
    owners = owners_of(cluster.members)
    last = {task: member_id for member_id, (_, had) in before.items() for task in had}
    routes: dict[tuple[str, str], list[TaskId]] = defaultdict(list)
    for member_id, tasks in decided.active.items():
        for task in tasks:
            owner_ids = owners.get(task, frozenset())
            if member_id in owner_ids:
                continue
            giver = min(owner_ids, default=last.get(task, ""))
            origin = names.get(giver) or (before[giver][0] if giver in before else "")
            routes[origin, names.get(member_id, member_id)].append(task)
    return [
        Route(tasks=task_names(tasks), origin=origin, to=to)
        for (origin, to), tasks in sorted(routes.items())
    ]
