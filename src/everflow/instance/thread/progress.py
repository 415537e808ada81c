"""What is known of event time in a group, and what the batches of an instance are told of it
(``stream.time=lowest``, note 076). Pure but for a lock: `EventTimes` is shared by stream threads
and by who asks the brokers (`everflow.instance.thread.group_times`).
"""

from __future__ import annotations

import base64
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from everflow.instance.tasks.task import ActiveTask
from everflow.instance.thread.batching import PlannedBatch
from everflow.protocol.messages import BatchResult, InputTime, of_kafka_streams
from everflow.records import OffsetRange, Offsets, Ranges, TaskId, TopicPartition
from everflow.topology.event_time import (
    IN,
    OUT,
    UNKNOWN,
    Timeline,
    Told,
    Writer,
    least,
    read_to,
    told,
)
from everflow.topology.sources import Source

_Name = TypeVar("_Name")


class TimedInput(NamedTuple):
    """An input of a task: `Source.timed`, `Source.held`, whether the application writes it, and
    `Source.fed_back`."""

    timed: str
    held: bool
    internal: bool
    fed_back: bool = False


@dataclass(frozen=True)
class TimedProgram:
    """The inputs of all tasks of a group, and who writes its repartition topics. ``writers``:
    `everflow.topology.event_time.writers`."""

    tasks: Mapping[TaskId, Mapping[TopicPartition, TimedInput]]
    writers: Mapping[str, tuple[Writer, ...]]

    @staticmethod
    def of(
        tasks: Mapping[TaskId, Collection[TopicPartition]],
        sources: Iterable[Source],
        writers: Mapping[str, tuple[Writer, ...]],
    ) -> TimedProgram:
        listed = list(sources)
        found: dict[TaskId, dict[TopicPartition, TimedInput]] = {}
        for task, inputs in tasks.items():
            mine = [source for source in listed if source.subtopology == task.subtopology]
            found[task] = {
                tp: TimedInput(source.timed, source.held, source.topic in writers, source.fed_back)
                for tp in inputs
                for source in mine
                if source.reads(tp) and source.task(tp) == task
            }
        return TimedProgram(found, writers)

    @cached_property
    def of_subtopology(self) -> Mapping[int, tuple[TaskId, ...]]:
        found: dict[int, tuple[TaskId, ...]] = {}
        for task in sorted(self.tasks):
            found[task.subtopology] = (*found.get(task.subtopology, ()), task)
        return found

    @cached_property
    def feeding(self) -> frozenset[TaskId]:
        """The tasks that write repartition topics."""
        of = self.of_subtopology
        found = {writer.subtopology for listed in self.writers.values() for writer in listed}
        return frozenset(task for index in found for task in of.get(index, ()))

    @cached_property
    def sinks(self) -> Mapping[TaskId, frozenset[str]]:
        """Of tasks, those to repartition topics."""
        found: dict[TaskId, frozenset[str]] = {}
        for topic in self.writers:
            for task, sink in self.written(topic):
                found[task] = found.get(task, frozenset()) | {sink}
        return found

    @cached_property
    def waited(self) -> frozenset[TopicPartition]:
        """Source partitions that something waits for: of tasks with other inputs, or in front of a
        repartition topic."""
        return frozenset(
            tp
            for task, inputs in self.tasks.items()
            for tp, one in inputs.items()
            if not one.internal and (len(inputs) > 1 or task in self.feeding)
        )

    @cached_property
    def bounded(self) -> Mapping[TopicPartition, int]:
        """The source partitions of sub-topologies that feed each other, with a number of these: of
        none of them records are read far ahead of the others. What feeds nobody, and reads of
        nobody here, is not among them: nothing waits for it, even if it stands still for days."""
        readers: dict[str, set[int]] = {}
        for task, inputs in self.tasks.items():
            for tp in inputs:
                readers.setdefault(tp.topic, set()).add(task.subtopology)
        part: dict[int, int] = {}
        for topic, listed in self.writers.items():
            mine = {*readers.get(topic, ()), *(writer.subtopology for writer in listed)}
            known = {part[one] for one in mine if one in part}
            number = min(known | mine)
            part |= dict.fromkeys(mine, number)
            part = {one: number if its in known else its for one, its in part.items()}
        return {
            tp: part[task.subtopology]
            for task, inputs in self.tasks.items()
            for tp, one in inputs.items()
            if not one.internal and task.subtopology in part
        }

    @cached_property
    def circling(self) -> frozenset[str]:
        """The sinks whose topics lead back to them."""
        listed = (one for of_topic in self.writers.values() for one in of_topic)
        return frozenset(one.name for one in listed if one.circles)

    def written(self, topic: str) -> Iterable[tuple[TaskId, str]]:
        """The tasks that write a topic, with the name of the sink."""
        for writer in self.writers.get(topic, ()):
            for task in self.of_subtopology.get(writer.subtopology, ()):
                yield task, writer.name


class Committed(NamedTuple):
    """What a task has committed: its offsets, and the stream times beside them."""

    offsets: Offsets
    times: Mapping[str, int]


NOTHING = Committed({}, {})


def committed_by_kafka_streams(metadata: str, sinks: Iterable[str]) -> dict[str, int]:
    """The partition time that Kafka Streams keeps, as what was told of each sink; none of other
    metadata."""
    if not of_kafka_streams(metadata):
        return {}
    ms = int.from_bytes(base64.b64decode(metadata[:12])[1:], "big", signed=True)
    return {sink + OUT: max(UNKNOWN, ms) for sink in sinks}


def certain(writers: Sequence[Told], *, everybody: bool = False) -> Told:
    """The time that is certain of a repartition topic, and whether all its writers are silent;
    ``everybody``: who is silent is waited for as well."""
    listed = [one._replace(silent=False) for one in writers] if everybody else writers
    return Told(least(listed), bool(listed) and all(one.silent for one in listed))


def told_by_writers(
    program: TimedProgram,
    topic: str,
    known: Mapping[TaskId, Committed],
    ends: Offsets,
) -> list[Told]:
    """What the writers of a repartition topic have told, each silent if that can be believed.
    ``ends``: of logs, open transactions included, read after what is ``known``."""
    listed = []
    for task, sink in program.written(topic):
        said = told(known.get(task, NOTHING).times, sink)
        silent = said.silent and _is_silent(program, task, sink, known, ends, frozenset())
        listed.append(Told(said.ms, silent))
    return listed


@dataclass
class Resumed(Generic[_Name]):
    """Who is silent beside others that go on is not waited for. But where all were silent, as in an
    outage of what feeds them, all are waited for again from when the first one goes on: the others
    may have as much to tell, a moment later. By what goes on together; monotonic ms."""

    _since: dict[_Name, float | None] = field(default_factory=dict)
    """None: all are silent."""

    def left_ms(
        self, name: _Name, silent: Collection[bool], idle_ms: float, now_ms: float
    ) -> float:
        """So long nobody's silence counts. ``silent``: of each of them."""
        since = self._since.get(name, -math.inf)
        if all(silent):
            self._since[name] = None
            return 0.0
        if since is None:
            since = self._since[name] = now_ms
        return max(0.0, since + idle_ms - now_ms)


def _is_silent(
    program: TimedProgram,
    task: TaskId,
    sink: str,
    known: Mapping[TaskId, Committed],
    ends: Offsets,
    seen: frozenset[TaskId],
) -> bool:
    """Whether it has committed all of its logs, and those that write them have: all by which the
    ``sink`` goes. ``seen``: tasks that feed each other say nothing of one another."""
    if task in seen:
        return True
    (offsets, times), seen = known.get(task, NOTHING), seen | {task}
    for tp, one in program.tasks.get(task, {}).items():
        if one.fed_back and sink in program.circling:
            continue  # it would wait for those that wait for it
        end, at = ends.get(tp, -1), offsets.get(tp, -1)
        # Who has read of it and knows no time yet has found no record that has one.
        timeless = at > 0 and not one.internal and times.get(one.timed + IN, UNKNOWN) == UNKNOWN
        if end < 0 or (end > 0 and at < end and not timeless):
            return False
        for other, theirs in program.written(tp.topic) if one.internal else ():
            said = told(known.get(other, NOTHING).times, theirs)
            if not (said.silent and _is_silent(program, other, theirs, known, ends, seen)):
                return False
    return True


class Slowest(NamedTuple):
    """A source partition, and the time (ms) up to which it is processed; `UNKNOWN`: it has none."""

    input: TopicPartition
    ms: int


class Watermark(NamedTuple):
    """The time (ms) that is certain for all inputs of a sub-topology's tasks here, and the source
    partition that holds it back, by ``behind_ms`` against the furthest one; ``since_ms``: when that
    got on last (epoch), as far as it is known here. ``input`` None: nobody is waited for."""

    ms: int
    input: TopicPartition | None = None
    behind_ms: int = 0
    since_ms: int | None = None


class Question(NamedTuple):
    """What is to be asked of the brokers: ``committed`` offsets of tasks of others first, then the
    ``ends`` of logs, open transactions included."""

    committed: frozenset[TopicPartition]
    ends: frozenset[TopicPartition]


@dataclass
class _Local:
    """A stream thread's tasks. ``wake`` is set when there is something new for them."""

    tasks: dict[TaskId, Committed]
    wake: threading.Event


@dataclass
class EventTimes:
    """Of an instance; any thread. ``lead_ms``: ``max.event.time.lead``."""

    program: TimedProgram
    lead_ms: int
    idle_ms: int
    now_ms: Callable[[], int] = lambda: 0
    """The wall clock, for people."""
    due: threading.Event = field(default_factory=threading.Event)
    """There is something to ask the brokers."""
    _threads: dict[int, _Local] = field(default_factory=dict)
    _others: dict[TaskId, Committed] = field(default_factory=dict)
    _ends: Offsets = field(default_factory=dict)
    """As last read, open transactions included."""
    _heads: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Of source partitions: the position, and the time of the record there."""
    _lines: dict[TopicPartition, Timeline] = field(default_factory=dict)
    _silent: dict[TopicPartition, int] = field(default_factory=dict)
    """Repartition partitions all of whose writers are silent, and the end of the log then."""
    _moved: dict[TopicPartition, int] = field(default_factory=dict)
    """When source partitions got on last (epoch ms)."""
    _resumed: Resumed[str] = field(default_factory=Resumed)
    """By repartition topic."""
    _held_up: set[int] = field(default_factory=set)
    """Threads that wait for slower source partitions."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- called by stream threads -----------------------------------------------------------------

    def watch(self, thread: int, tasks: Iterable[ActiveTask], wake: threading.Event) -> None:
        """The tasks of a thread, in place of earlier ones."""
        with self._lock:
            before = self._threads.pop(thread, None)
            for name, one in (before.tasks if before else {}).items():
                self._others[name] = one  # until the group's offsets say more
            found = {task.id: _committed(task) for task in tasks}
            if found:
                self._threads[thread] = _Local(found, wake)
            self._free()
        self.due.set()

    def committed(
        self, thread: int, tasks: Iterable[ActiveTask], heads: Mapping[TopicPartition, int]
    ) -> None:
        """A batch with these ``tasks`` was committed; ``heads``: as in its result."""
        tells = False
        with self._lock:
            mine = self._threads.get(thread)
            known = {} if mine is None else mine.tasks
            for task in tasks if mine is not None else ():
                before, now = known.get(task.id, NOTHING), _committed(task)
                known[task.id] = now
                self._note(task.id, before, now)
                tells = tells or (task.id in self.program.feeding and before.times != now.times)
                for tp in task.inputs:
                    if tp in self._lines:
                        self._lines[tp].passed(self.read_position(task, tp))
                    if tp in heads:
                        self._heads[tp] = (task.positions[tp], heads[tp])
            self._free()
        if tells:
            self.due.set()

    def read_position(self, task: ActiveTask, tp: TopicPartition) -> int:
        """Up to where an input was read: what is held back lies in front of it."""
        one = self.program.tasks.get(task.id, {}).get(tp)
        at = task.positions[tp]
        return at if one is None or not one.held else max(at, read_to(task.stream_times, one.timed))

    def input_time(self, tp: TopicPartition, end: int) -> InputTime | None:
        """What is certain of a repartition partition that is read up to ``end``; None: nothing."""
        with self._lock:
            line = self._lines.get(tp)
            at, ms = line.before(end) if line is not None else (-1, UNKNOWN)
            was = self._silent.get(tp)
        silent = was == end
        if was is not None and was < end:  # somebody has written since, if only a marker
            self.due.set()
        return InputTime(ms, at, silent) if silent or ms != UNKNOWN else None

    def until_ms(self, ends: Offsets, thread: int | None = None) -> dict[TopicPartition, int]:
        """Up to which time those of the source partitions may be read that have a bound; -1: a time
        is not known yet. ``ends``: of the instance's inputs. ``thread`` is woken once it is
        later."""
        with self._lock:
            if thread is not None:
                self._held_up.add(thread)
            return self._until(ends)

    def _until(self, ends: Offsets) -> dict[TopicPartition, int]:
        bounded, slowest = self.program.bounded, dict[int, int]()
        for one in self._unread(ends):
            if (part := bounded.get(one.input)) is not None:
                slowest[part] = min(one.ms, slowest.get(part, one.ms))
        until = {
            part: UNKNOWN if ms == UNKNOWN else ms + self.lead_ms for part, ms in slowest.items()
        }
        return {tp: until[bounded[tp]] for tp in ends if bounded.get(tp) in until}

    def head(self, tp: TopicPartition, position: int) -> int:
        """The time of the source record at a position, if it was read; else `UNKNOWN`."""
        at, ms = self._heads.get(tp, (-1, UNKNOWN))
        return ms if at == position else UNKNOWN

    def _unread(self, ends: Offsets) -> list[Slowest]:
        """The source partitions with unread records, with a time that these have at least. Of
        others, and of what was read already, only those whose time is known."""
        found = []
        for mine in self._threads.values():
            for task, one in mine.tasks.items():
                for tp, source in self.program.tasks.get(task, {}).items():
                    at = one.offsets.get(tp, 0)
                    if source.internal or ends.get(tp, self._ends.get(tp, -1)) <= at:
                        continue
                    head = self.head(tp, at)
                    ms = one.times.get(source.timed + IN, UNKNOWN) if head == UNKNOWN else head
                    if ms != UNKNOWN or at <= 0:  # else no record that was read has a time
                        found.append(Slowest(tp, ms))
        here = self._here()
        for task, one in self._others.items():
            for tp, source in self.program.tasks.get(task, {}).items() if task not in here else ():
                ms = one.times.get(source.timed + IN, UNKNOWN)
                behind = self._ends.get(tp, -1) > one.offsets.get(tp, 0)
                if not source.internal and behind and ms != UNKNOWN:
                    found.append(Slowest(tp, ms))
        return found

    def _free(self) -> None:
        for number in self._held_up:
            if number in self._threads:
                self._threads[number].wake.set()
        self._held_up.clear()

    # --- called by who asks the brokers -----------------------------------------------------------

    def _here(self) -> dict[TaskId, Committed]:
        return {name: one for mine in self._threads.values() for name, one in mine.tasks.items()}

    def _internal(self) -> list[TopicPartition]:
        """The repartition partitions that are read here."""
        return [
            tp
            for task in self._here()
            for tp, one in self.program.tasks.get(task, {}).items()
            if one.internal
        ]

    @property
    def waits_for_others(self) -> bool:
        """True if tasks here go by the times of tasks of other instances: by what these write, or
        by how far they have read."""
        with self._lock:
            return self._goes_by_others(self._here())

    def _goes_by_others(self, here: Collection[TaskId]) -> bool:
        feeding = self.program.feeding
        return bool(self._internal() or not feeding.isdisjoint(here)) and not feeding <= {*here}

    def question(self) -> Question | None:
        """What has to be asked; None: nothing. Call `answered` with what was committed, and then
        with the ends."""
        with self._lock:
            here, tasks, internal = self._here(), self.program.tasks, self._internal()
            if not internal and not self._goes_by_others(here):
                return None
            others = [task for task in self.program.feeding if task not in here]
            committed = frozenset(tp for task in others for tp in tasks[task])
            ends = {*internal, *(tp for task in self.program.feeding for tp in tasks[task])}
        return Question(committed, frozenset(ends))

    def known(self) -> Mapping[TaskId, Committed]:
        """What the tasks of this instance have committed. To be taken before the ends are read."""
        with self._lock:
            return self._here()

    def answered(
        self,
        here: Mapping[TaskId, Committed],
        others: Mapping[TaskId, Committed],
        ends: Offsets,
        now_ms: float,
    ) -> bool:
        """The brokers' answers: what the tasks of others have committed, then the ends of logs.
        ``here``: `known` as it was before the ends were read. ``now_ms``: monotonic. True if they
        told something new."""
        with self._lock:
            news = any(self._others.get(task) != one for task, one in others.items())
            for task, one in others.items():
                if task in self._others:
                    self._note(task, self._others[task], one)
            self._others |= others
            self._ends = dict(ends)
            known = {**self._others, **here}
            topics: dict[str, Told] = {}
            for mine in self._threads.values():
                internal = [
                    tp
                    for task in mine.tasks
                    for tp, one in self.program.tasks.get(task, {}).items()
                    if one.internal and tp in ends
                ]
                changed = False
                for tp in internal:
                    if tp.topic not in topics:
                        topics[tp.topic] = self._told(tp.topic, known, ends, now_ms)
                    changed = self._learn(tp, topics[tp.topic], ends[tp]) or changed
                if changed:
                    mine.wake.set()
                news = news or changed
            self._free()
        return news

    def _told(
        self, topic: str, known: Mapping[TaskId, Committed], ends: Offsets, now_ms: float
    ) -> Told:
        writers = told_by_writers(self.program, topic, known, ends)
        silent = [one.silent for one in writers]
        left_ms = self._resumed.left_ms(topic, silent, self.idle_ms, now_ms)
        return certain(writers, everybody=left_ms > 0)

    def _learn(self, tp: TopicPartition, found: Told, end: int) -> bool:
        line = self._lines.setdefault(tp, Timeline())
        before = line.before(end)[1], self._silent.get(tp)
        if found.ms != UNKNOWN:
            line.add(end, found.ms)
        if found.silent:
            self._silent[tp] = end
        else:
            self._silent.pop(tp, None)
        return before != (line.before(end)[1], self._silent.get(tp))

    # --- for people -------------------------------------------------------------------------------

    def _note(self, task: TaskId, before: Committed, now: Committed) -> None:
        for tp, one in self.program.tasks.get(task, {}).items():
            name = one.timed + IN
            if not one.internal and before.times.get(name) != now.times.get(name):
                self._moved[tp] = self.now_ms()

    def watermarks(self) -> dict[int, Watermark]:
        """By sub-topology that has tasks here."""
        with self._lock:
            here, known = self._here(), {**self._others, **self._here()}
            furthest = max((one.ms for one in self._sources(known)), default=UNKNOWN)
            found: dict[int, Watermark] = {}
            sinks = self.program.sinks
            # Who is silent is not waited for, unless all are.
            quiet = {
                task
                for task, one in here.items()
                if task in sinks and all(told(one.times, sink).silent for sink in sinks[task])
            }
            for task in sorted(here, key=lambda task: (task in quiet, task)):
                for tp, one in self.program.tasks.get(task, {}).items():
                    ms = here[task].times.get(one.timed + IN, UNKNOWN)
                    before = found.get(task.subtopology)
                    if before is None or (ms < before.ms and task not in quiet):
                        held_by = self._holder(tp, ms, known)
                        found[task.subtopology] = Watermark(
                            ms,
                            None if held_by is None else held_by.input,
                            0 if held_by is None else max(0, furthest - held_by.ms),
                            None if held_by is None else self._moved.get(held_by.input),
                        )
            return found

    def _sources(self, known: Mapping[TaskId, Committed]) -> Iterable[Slowest]:
        for task, one in known.items():
            for tp, source in self.program.tasks.get(task, {}).items():
                if not source.internal:
                    yield Slowest(tp, one.times.get(source.timed + IN, UNKNOWN))

    def _holder(
        self, tp: TopicPartition, ms: int, known: Mapping[TaskId, Committed]
    ) -> Slowest | None:
        """The source partition that the time ``ms`` of an input comes from, by who writes it."""
        seen: set[TopicPartition] = set()
        while tp.topic in self.program.writers:
            said = [
                (told(known.get(task, NOTHING).times, sink), task)
                for task, sink in self.program.written(tp.topic)
            ]
            going = [(at.ms, task) for at, task in said if not at.silent]
            inputs = self.program.tasks.get(min(going)[1], {}) if going else {}
            if tp in seen or not inputs:
                return None
            seen.add(tp)
            times = known.get(min(going)[1], NOTHING).times
            ms, tp = min(
                (times.get(source.timed + IN, UNKNOWN), log) for log, source in inputs.items()
            )
        return Slowest(tp, ms)


def _committed(task: ActiveTask) -> Committed:
    return Committed(dict(task.positions), dict(task.stream_times))


# --- the batches of one stream thread -------------------------------------------------------------


class TimedBatch(NamedTuple):
    """What a batch is told. ``due``: tasks that it serves because times rise, maybe without
    records. ``wait_ms``: until more of them are due."""

    times: Mapping[TopicPartition, InputTime]
    due: frozenset[TaskId]
    wait_ms: float


@dataclass
class BatchTimes:
    """Owned by one stream thread. ``interval_ms``: between two batches of a task only because times
    rise, of which nothing is held back."""

    shared: EventTimes
    thread: int
    interval_ms: float
    _sent: dict[TopicPartition, InputTime] = field(default_factory=dict)
    """What the last batch was told of each input that it has read as far as that."""
    _served_ms: dict[TaskId, float] = field(default_factory=dict)
    left: set[TaskId] = field(default_factory=set)
    """Tasks of the last batches that may take more at once (`BatchRequest.most_taken`)."""
    _resumed: Resumed[TaskId] = field(default_factory=Resumed)
    """Of tasks with several inputs."""
    timeless: set[TopicPartition] = field(default_factory=set)
    """Source partitions of which records were read, none of which had a time: as if there were
    none."""

    def forget(self) -> None:
        self._sent.clear()
        self.timeless.clear()

    def positions(self, task: ActiveTask) -> dict[TopicPartition, int]:
        """From where on the inputs of a task have new records."""
        return {tp: self.shared.read_position(task, tp) for tp in task.inputs}

    def within(
        self,
        tasks: Mapping[TaskId, ActiveTask],
        available: Ranges,
        ends: Offsets,
        wall_ms: float,
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, OffsetRange]]:
        """`BatchRequest.until_ms`, and what is ``available`` without tasks all of whose records
        are later, if not later than the wall clock."""
        until, left = self.shared.until_ms(ends, self.thread), dict(available)
        if not until:
            return until, left
        for task in tasks.values():
            unread = [tp for tp in task.inputs if tp in left and left[tp].end > left[tp].start]
            later = [
                tp in until and until[tp] < self.shared.head(tp, left[tp].start) <= wall_ms
                for tp in unread
            ]
            if unread and all(later):
                for tp in task.inputs:
                    left.pop(tp, None)
        return until, left

    def of(
        self,
        tasks: Mapping[TaskId, ActiveTask],
        ranges: Ranges,
        silent: Collection[TopicPartition],
        now_ms: float,
    ) -> TimedBatch:
        """``ranges``: of new records, by input that has some. ``silent``: source partitions."""
        times: dict[TopicPartition, InputTime] = {}
        due: set[TaskId] = set()
        wait_ms = float("inf")
        for name, task in tasks.items():
            rises = held = False
            told_of = self._inputs(name, task, ranges, silent)
            left_ms = self._left_ms(name, told_of, now_ms)
            if left_ms:
                wait_ms = min(wait_ms, left_ms)
            for tp, (one, found) in told_of.items():
                held = held or self.shared.read_position(task, tp) > task.positions[tp]
                if left_ms and found.silent and not one.fed_back:
                    found = found._replace(silent=False)
                if found == InputTime():
                    continue
                times[tp] = found
                before = self._sent.get(tp, InputTime())
                has = max(before.ms, task.stream_times.get(one.timed + IN, UNKNOWN))
                rises = rises or found.ms > has or (found.silent and not before.silent)
            if name in self.left:
                due.add(name)
            elif rises:
                left_ms = self._served_ms.get(name, -self.interval_ms) + self.interval_ms - now_ms
                if held or left_ms <= 0:
                    due.add(name)
                else:
                    wait_ms = min(wait_ms, left_ms)
        return TimedBatch(times, frozenset(due), wait_ms)

    def _inputs(
        self,
        name: TaskId,
        task: ActiveTask,
        ranges: Ranges,
        silent: Collection[TopicPartition],
    ) -> dict[TopicPartition, tuple[TimedInput, InputTime]]:
        """What is known of the inputs of a task, which are read up to their ranges' ends."""
        found = {}
        for tp, one in self.shared.program.tasks.get(name, {}).items():
            if tp not in task.positions:
                continue
            said = InputTime(silent=tp in silent)
            if one.internal:
                end = ranges[tp].end if tp in ranges else self.shared.read_position(task, tp)
                said = self.shared.input_time(tp, end) or InputTime()
            found[tp] = one, said
        return found

    def _left_ms(
        self,
        name: TaskId,
        inputs: Mapping[TopicPartition, tuple[TimedInput, InputTime]],
        now_ms: float,
    ) -> float:
        quiet = [said.silent for one, said in inputs.values() if not one.fed_back]
        if len(quiet) < 2:
            return 0.0
        return self._resumed.left_ms(name, quiet, self.shared.idle_ms, now_ms)

    def begins(self, tasks: Iterable[ActiveTask]) -> dict[TopicPartition, int]:
        """Where the new records of inputs begin that hold some back."""
        return {
            tp: at
            for task in tasks
            for tp, at in self.positions(task).items()
            if at > task.positions[tp]
        }

    def committed(
        self,
        planned: PlannedBatch,
        result: BatchResult,
        tasks: Mapping[TaskId, ActiveTask],
        now_ms: float,
    ) -> None:
        """``tasks``: behind the batch."""
        served = [task for task in tasks.values() if planned.served(task.inputs, task.id)]
        for task in served:
            self._served_ms[task.id] = now_ms
            for tp in task.inputs:
                given = (planned.times or {}).get(tp, InputTime())
                if self.shared.read_position(task, tp) >= given.end:
                    self._sent[tp] = given
            self._note_times(task, result)
        mine = {task.id for task in served}
        self.left = self.left | mine if result.next else self.left - mine
        self.shared.committed(self.thread, served, result.heads)

    def _note_times(self, task: ActiveTask, result: BatchResult) -> None:
        for tp, one in self.shared.program.tasks.get(task.id, {}).items():
            if one.internal or task.stream_times.get(one.timed + IN, UNKNOWN) != UNKNOWN:
                self.timeless.discard(tp)
            elif result.consumed.get(tp, 0) > 0:
                self.timeless.add(tp)
