"""Creates internal topics at the first start, checks them later (I10), and watches topics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from everflow.clock import Clock, on_thread
from everflow.errors import (
    EverflowError,
    FatalError,
    InternalTopicError,
    MissingSourceTopicError,
    OffsetsExpiredError,
    TopologyError,
    read_again,
    start_over,
)
from everflow.records import TopicPartition
from everflow.state.store import StoreSpec
from everflow.topology.graph import SinkNode
from everflow.topology.program import Topology

log = logging.getLogger("everflow")

LEFT_OUT = "left-out"
"""A kind of topic that earlier releases did not have."""


@dataclass(frozen=True)
class TopicSpec:
    """An internal topic, by full name; ``kind``: ``repartition``, ``changelog`` or `LEFT_OUT`."""

    name: str
    partitions: int
    config: Mapping[str, str]
    kind: str


@dataclass(frozen=True)
class TopicFacts:
    """An existing topic. ``config`` may be empty where the broker does not tell."""

    partitions: int
    topic_id: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ran:
    """The programs that have run in the group, by its committed offsets. ``committed``: by everflow
    or Java's Kafka Streams. ``foreign``: topics with offsets of another client. ``known``: their
    internal topics by kind, without the application's id; a kind is missing if it was not kept."""

    committed: bool = False
    foreign: frozenset[str] = frozenset()
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class InputIds:
    """The ids of the inputs: ``before``, as known of the last run, and ``now``."""

    before: Mapping[str, str] = field(default_factory=dict)
    now: Mapping[str, str] = field(default_factory=dict)

    @property
    def recreated(self) -> list[str]:
        before = self.before
        return [name for name, now in sorted(self.now.items()) if before.get(name, now) != now]

    @property
    def same(self) -> list[str]:
        return [name for name in sorted(self.now) if self.before.get(name) == self.now[name]]


NO_IDS = InputIds()


class TopicAdmin(Protocol):
    def topics(self, names: Iterable[str]) -> Mapping[str, TopicFacts]: ...

    def create(self, topics: Iterable[TopicSpec]) -> None:
        """Create them and wait until they are usable; one that exists by now is no error."""

    def spans(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Log start and log end (read_uncommitted) of partitions."""

    def ran(self, partitions: Iterable[TopicPartition]) -> Ran:
        """The programs that have run, by the group's committed offsets of the partitions."""

    def topics_with_offsets(self) -> frozenset[str]: ...


def problems(spec: TopicSpec, facts: TopicFacts) -> list[str]:
    """The fault of an existing topic; empty if it will do. Only settings that would lose or mix
    data count. Changelogs of stream joins need not be compacted: Kafka Streams' are not."""
    found = []
    if facts.partitions != spec.partitions:
        found.append(
            f"{spec.name} has {facts.partitions} partitions, the topology needs {spec.partitions}"
        )
    wanted, policy = spec.config.get("cleanup.policy"), facts.config.get("cleanup.policy")
    if policy is not None and wanted is not None:
        have, need = set(policy.split(",")), set(wanted.split(","))
        fault = None
        if spec.kind == "repartition" and "compact" in have:
            fault = "compaction would lose records before they are read"
        elif (need == {"compact"} and "compact" not in have) or not have & need:
            fault = f"it must be {wanted}, or state would be lost"
        elif need == {"compact"} and "delete" in have:
            fault = "old state would be deleted, it must be compact"
        if fault is not None:
            found.append(f"{spec.name} has cleanup.policy={policy}: {fault}")
    return found


def keeps_unread(spec: TopicSpec, facts: TopicFacts | None) -> bool:
    """True if records stay until everflow deletes them. ``facts`` None: the topic is new."""
    config = {**spec.config, **({} if facts is None else facts.config)}
    return all(config.get(name, "-1") == "-1" for name in ("retention.ms", "retention.bytes"))


def is_first_start(
    application_id: str,
    ran: Ran,
    spans: Mapping[TopicPartition, tuple[int, int]],
    why_none: Callable[[], str],
) -> bool:
    """True without offsets of a Kafka Streams application and without a record in an internal topic
    (D5). OffsetsExpiredError, with ``why_none``, for records without offsets (scenario 15)."""
    if ran.committed:
        return False
    filled = sorted({tp.topic for tp, (start, end) in spans.items() if end > start})
    if filled and not ran.foreign:
        raise OffsetsExpiredError(
            f"The group {application_id} has no committed offsets of its inputs, but its internal "
            f"topics hold records ({', '.join(filled[:5])}{', ...' if len(filled) > 5 else ''}). "
            f"{why_none()} Starting would count the input twice. {start_over(application_id)}"
        )
    return not filled


def why_no_offsets(
    application_id: str, inputs: Iterable[str], ids: InputIds, others: Iterable[str]
) -> str:
    """In sentences: what is certain, else all that may be. ``others``: topics with offsets."""
    names = ", ".join(sorted(inputs))
    if recreated := ids.recreated:
        changed = ", ".join(f"{name} ({ids.before[name]} -> {ids.now[name]})" for name in recreated)
        return (
            f"Deleted and created again while the application was stopped: {changed} (topic ids "
            f"before and now). Offsets are deleted with their topic. "
            f"{read_again(application_id, recreated[0])}"
        )
    if left := sorted(others):
        return (
            f"The group still has offsets of {', '.join(left[:5])}, so it was not deleted: those "
            f"of {names} were, by themselves or with their topic."
        )
    reasons = [
        "the offsets expired (the application was down for longer than offsets.retention.minutes)",
        "the group was deleted",
    ]
    if ids.same != sorted(ids.now) or not ids.now:
        reasons.insert(0, f"{names} was deleted and created again (offsets go with their topic)")
    known = "; the topic ids are those of the last run" if len(reasons) == 2 else ""
    return f"The brokers do not report the reason: {', or '.join(reasons)}{known}."


def _other_program(application_id: str) -> str:
    """The likeliest cause, for starting over would then destroy a healthy application."""
    return (
        f"Most likely another topology (or one with a changed store name) runs or ran under the "
        f"application.id {application_id}: then delete nothing, and give this program an "
        f"application.id of its own, or its stores the names they had."
    )


def prepare(
    admin: TopicAdmin,
    application_id: str,
    specs: Iterable[TopicSpec],
    inputs: Iterable[TopicPartition],
    *,
    ids: InputIds = NO_IDS,
    create_new: bool = False,
) -> frozenset[str]:
    """Create (first start) or validate (any other) the internal topics, before the instance joins.
    Returns the repartition topics that keep what is not read (`keeps_unread`). ``inputs``: existing
    partitions that are read. Raises InternalTopicError, OffsetsExpiredError as `is_first_start`."""
    needed, reads = {spec.name: spec for spec in specs}, list(inputs)
    # In this order, since another instance may start for the first time meanwhile: it creates
    # topics, commits where its inputs begin, and only then writes. So records that are seen have
    # offsets behind them, and offsets that are seen have topics.
    existing = admin.topics(needed)
    partitions = [
        TopicPartition(n, p) for n, facts in existing.items() for p in range(facts.partitions)
    ]
    repartition = [tp for tp in partitions if needed[tp.topic].kind == "repartition"]
    spans = admin.spans(partitions) if partitions else {}
    ran = admin.ran([*reads, *repartition])

    def why_none() -> str:
        names = {tp.topic for tp in reads}
        return why_no_offsets(
            application_id,
            names,
            ids,
            admin.topics_with_offsets() - names,
        )

    first = is_first_start(application_id, ran, spans, why_none)
    if first and ran.foreign:
        log.warning(
            "The group %s has offsets of %s that no Kafka Streams application has committed: the "
            "first start begins there",
            application_id,
            ", ".join(sorted(ran.foreign)),
        )
    if not first and len(existing) < len(needed):
        existing = admin.topics(needed)
    wrong = [
        text for name, facts in sorted(existing.items()) for text in problems(needed[name], facts)
    ]
    if wrong:
        raise InternalTopicError(
            f"Internal topics do not fit the topology: {'; '.join(wrong)}. "
            f"{_other_program(application_id)} Or the number of input partitions was changed: keys "
            f"are then in other partitions than their state. {start_over(application_id)}"
        )
    missing = [spec for name, spec in sorted(needed.items()) if name not in existing]
    between = [spec for spec in needed.values() if spec.kind == "repartition"]
    kept = frozenset(s.name for s in between if keeps_unread(s, existing.get(s.name)))
    if not missing:
        return kept
    named = [spec for spec in missing if spec.kind != LEFT_OUT]
    if not first and named:
        _require_new(application_id, named, ran, create_new)
    admin.create(missing)
    for spec in missing:
        log.info("Created topic %s (%d partitions)", spec.name, spec.partitions)
        if not first and spec.kind == LEFT_OUT:
            log.warning(
                "The topic %s is new, and %s has run before: it is not known what processing left "
                "out of the table's topic until now. If the table is restored, such records are "
                "in it",
                spec.name,
                application_id,
            )
    return kept


def _require_new(
    application_id: str, missing: Sequence[TopicSpec], ran: Ran, create_new: bool
) -> None:
    """InternalTopicError unless the application never had them and they are to be created."""
    said = {spec.name: short_name(application_id, spec.name) for spec in missing}

    def error(names: Iterable[str], why: str) -> InternalTopicError:
        listed = ", ".join(names)
        return InternalTopicError(
            f"Internal topics are missing: {listed}. {application_id} has run {why}"
        )

    gave_up = f"or, without one, give up the state. {start_over(application_id)}"
    if unsure := [spec.name for spec in missing if spec.kind not in ran.known]:
        raise error(
            unsure,
            f"before, and its committed offsets do not show whether it had them, so they are not "
            f"created: state could be lost. {_other_program(application_id)} Only if these topics "
            f"were deleted: restore them from a backup; {gave_up}",
        )
    known = frozenset[str]().union(*ran.known.values())
    if lost := [name for name, short in said.items() if short in known]:
        raise error(
            lost,
            f"with them before, so they were deleted, and with them state. They are not created "
            f"again. Restore them from a backup; {gave_up}",
        )
    if not create_new:
        raise error(
            said,
            f"before, but never with them: the program is a new version of it, or another one. "
            f"{_other_program(application_id)} For a new version, start it once with "
            f"--create-new-topics (create.new.topics=true): existing state stays, and new stores "
            f"begin empty.",
        )


def short_name(application_id: str, topic: str) -> str:
    return topic.removeprefix(f"{application_id}-")


def fixed_outputs(topology: Topology, dead_letter_topic: str | None) -> dict[str, str | None]:
    """The user's topics that are known at the start, and the line of the user's code."""
    found: dict[str, str | None] = {} if dead_letter_topic is None else {dead_letter_topic: None}
    for node in topology.nodes:
        if isinstance(node, SinkNode) and node.kind == "sink" and isinstance(node.topic, str):
            found[node.topic] = node.where
    return found


def missing_outputs(
    missing: Mapping[str, str | None],
    creates_topics: bool | None,
    partitions: int,
    dead_letter_topic: str | None = None,
) -> TopologyError | None:
    """The error for outputs that nobody creates. ``creates_topics`` None: it is unknown."""
    if not missing or creates_topics is not False:
        return None
    command = "  everflow topic create {}:{} --bootstrap-servers ..."
    commands = "\n".join(command.format(name, partitions) for name in sorted(missing))
    outputs = sorted(missing.keys() - {dead_letter_topic})
    named = [f"output topic {', '.join(outputs)}"] if outputs else []
    if dead_letter_topic in missing:
        named.append(f"dead-letter topic {dead_letter_topic} (errors.dead.letter.queue.topic.name)")
    verb = "do" if len(missing) > 1 else "does"
    return TopologyError(
        f"{' and '.join(named)} {verb} not exist, and the brokers do not create topics by "
        f"themselves "
        f"(auto.create.topics.enable=false); create it before the application starts, "
        f"e.g.\n{commands}",
        where=next((where for where in missing.values() if where is not None), None),
        code="EF-OUTPUT-TOPIC",
    )


Configs = Callable[[Iterable[str]], Mapping[str, Mapping[str, str]]]


def require_compacted(stores: Iterable[StoreSpec], configs: Configs) -> None:
    """TopologyError for a reused topic that deletes records. ``configs``: of those that tell."""
    of_topic = {store.source_topic: store for store in stores if store.source_topic is not None}
    if not of_topic:
        return
    found = configs(of_topic)
    for topic, store in sorted(of_topic.items()):
        policy = found.get(topic, {}).get("cleanup.policy")
        if policy is not None and policy != "compact":
            raise TopologyError(
                f"the topic {topic} is to be the changelog of the table {store.name!r} "
                f"(topology.optimization=reuse.ktable.source.topics), and its "
                f"cleanup.policy={policy} deletes records: the table would lose entries. Set "
                f"cleanup.policy=compact for the topic, or leave topology.optimization at none",
                where=store.where,
            )


# --- topics that change while the application runs ------------------------------------------------
# Nothing else would notice: a new log that is longer than the position looks like the old one.

NO_TOPIC_ID = "A" * 22
"""The id that brokers before Kafka 2.8 return."""
PERIOD_MS = 10_000.0
CONFIRM_MS = 1_000.0
MISSING_ANSWERS = 5
"""In a row: a broker that has just started may know no topic at all for a moment."""


class TopicState(Protocol):
    """`kafka.admin.TopicDescription`."""

    @property
    def partitions(self) -> int: ...

    @property
    def topic_id(self) -> str: ...


@dataclass
class TopicChanges:
    """Decides from the brokers' answers whether a topic has changed. Pure; one thread at a time.
    ``partitions``: of the inputs as the application runs with them. ``inputs``: topics that other
    programs write, global tables' too; the others are internal. ``why_not(partitions of all,
    topic, number)``: why the application does not read the topic's new partitions; None: it does.
    """

    application_id: str
    partitions: dict[str, int]
    inputs: Collection[str]
    topics: Collection[str]
    global_topics: Collection[str] = ()
    why_not: Callable[[Mapping[str, int], str, int], str | None] = lambda *_: ""
    _ids: dict[str, str] = field(default_factory=dict)
    _suspects: frozenset[str] = frozenset()
    _grown: list[Mapping[str, int]] = field(default_factory=list)
    _missing: dict[str, int] = field(default_factory=dict)

    @property
    def suspected(self) -> bool:
        """True if the last answer showed a change, which the next one has to confirm."""
        return bool(self._suspects or self._missing)

    @property
    def ids(self) -> Mapping[str, str]:
        """Of the first answer; without topics of which the brokers know none. From any thread."""
        return {
            name: topic_id for name, topic_id in list(self._ids.items()) if topic_id != NO_TOPIC_ID
        }

    def grow(self, partitions: Mapping[str, int]) -> None:
        """The application also reads these topics, with so many partitions; from any thread."""
        self._grown.append(partitions)

    def after(
        self, now: Mapping[str, TopicState], doubted: Collection[str] = ()
    ) -> FatalError | None:
        """Take an answer of the brokers. Returns an error once two answers in a row show a change,
        or one for a ``doubted`` topic; or once a topic was missing in `MISSING_ANSWERS`."""
        self._missing = {
            name: self._missing.get(name, 0) + 1 for name in self.topics if name not in now
        }
        while self._grown:  # afterwards: the answer is not about them
            found = self._grown.pop(0)
            self.topics, self.inputs = {*self.topics, *found}, {*self.inputs, *found}
            self.partitions.update(found)
        gone = [
            name for name, answers in sorted(self._missing.items()) if answers >= MISSING_ANSWERS
        ]
        if gone:
            return self._gone(gone)
        changed = {}
        for name, state in sorted(now.items()):
            topic_id = self._ids.setdefault(name, state.topic_id)
            partitions = self.partitions.setdefault(name, state.partitions)
            if state.topic_id != topic_id:
                changed[name] = self._recreated(name, topic_id, state.topic_id)
            elif state.partitions != partitions:
                why = self.why_not(self.partitions, name, state.partitions)
                if why is not None:
                    changed[name] = self._resized(name, partitions, state.partitions, why)
        sure = [text for name, text in changed.items() if name in self._suspects.union(doubted)]
        self._suspects = frozenset(changed)
        return FatalError(" ".join(sure)) if sure else None

    def _gone(self, topics: list[str]) -> FatalError:
        names = ", ".join(topics)
        what = f"Topic {names} was" if len(topics) == 1 else f"Topics {names} were"
        # A topic that this user may not see has another answer (TOPIC_AUTHORIZATION_FAILED).
        happened = f"{what} deleted while the application ran"
        if internal := [topic for topic in topics if topic not in self.inputs]:
            return InternalTopicError(
                f"{happened}. Internal topics are not created again silently: the records of "
                f"{', '.join(internal)} are lost. Stop all instances; restore from a backup, or "
                f"give up the state. {start_over(self.application_id)}"
            )
        return MissingSourceTopicError(
            f"{happened}. What was counted of it stays in the state and the output. To go on with "
            f"a new topic of that name, create it with the same number of partitions first. "
            f"{read_again(self.application_id, topics[0])} {start_over(self.application_id)}"
        )

    def _recreated(self, topic: str, before: str, now: str) -> str:
        return self._changed(
            topic,
            f"Topic {topic} was deleted and created again while the application ran (topic id "
            f"{before} -> {now})",
            f"the positions belong to the old topic, so the beginning of the new one would not be "
            f"read. {read_again(self.application_id, topic)}",
            "the records of this internal topic are lost. Stop all instances; restore the topic "
            "from a backup, or give up the state.",
        )

    def _resized(self, topic: str, before: int, now: int, why: str) -> str:
        return self._changed(
            topic,
            f"Topic {topic} has now {now} partitions, was {before} when the application started",
            f"its new partitions are not read{f', for {why}' if why else ''}. Stop all instances; "
            f"everflow check PROGRAM --application-id {self.application_id} says what a start "
            f"needs.",
            "keys of this internal topic no longer meet their state. Stop all instances; create "
            "the topic as it was from a backup, or give up the state.",
        )

    def _changed(self, topic: str, happened: str, of_input: str, of_internal: str) -> str:
        if topic in self.global_topics:
            return (
                f"{happened}. Start the instances again: each then reads the topic of its global "
                f"table as it is now."
            )
        means = of_input if topic in self.inputs else of_internal
        return f"{happened}: {means} {start_over(self.application_id)}"


@dataclass
class TopicWatch:
    """Asks the brokers about every 10 s, and after `doubt`, on a thread of its own. ``failed``:
    called once, on that thread, which then ends. ``check_new``: takes up new topics; blocks."""

    read: Callable[[], Mapping[str, TopicState]]
    changes: TopicChanges
    failed: Callable[[EverflowError], object]
    clock: Clock
    check_new: Callable[[], None] = lambda: None
    _doubted: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._stop, self._woken = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def doubt(self, topics: Collection[str]) -> None:
        """Leaders of logs of these topics reported other topic ids: ask soon. From any thread."""
        with self._lock:
            self._doubted = self._doubted.union(topics)
        self._woken.set()

    def check_once(self) -> bool:
        doubted = self._doubted
        try:
            now = self.read()
        except EverflowError as error:
            log.debug("The topics cannot be checked now: %s", error)
            return False
        with self._lock:
            self._doubted -= doubted
        changed = self.changes.after(now, doubted)
        if changed is not None:
            self.failed(changed)
            return True
        try:
            self.check_new()
        except EverflowError as error:
            log.debug("New topics cannot be listed now: %s", error)
        return False

    def start(self) -> None:
        """Note the topics as they are (one request), then check them on a thread until `close`."""
        self.check_once()
        on_thread("everflow-topic-watch", self._run)

    def close(self) -> None:
        self._stop.set()
        self._woken.set()

    def _run(self) -> None:
        try:
            while not self._rest():
                if self.check_once():
                    return
        except Exception:  # a defect of the watch is no reason to stop the application
            log.exception("Checking the topics failed; they are not checked any more")

    def _rest(self) -> bool:
        """Wait for at least `CONFIRM_MS`, even in doubt; True if the thread is to end."""
        if self.clock.wait(self._stop, CONFIRM_MS) or self.changes.suspected:
            return self._stop.is_set()
        self.clock.wait(self._woken, PERIOD_MS - CONFIRM_MS)
        self._woken.clear()
        return self._stop.is_set()
