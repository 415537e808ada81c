"""How large the next micro-batch is and which offsets it takes: pure (D1).

Small when caught up (everything there is, at once), up to `BatchLimits` when lagging, and bounded
in time by what earlier batches took, so that a rebalance never waits long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from everflow.config import BatchLimits
from everflow.moves import some
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.runtime.commit.batch import BadRecord, BatchFailure, BatchResult
from everflow.runtime.tasks.task import ActiveTask
from everflow.topology.sources.idle_sources import IdleSource

FIRST_RECORDS = 100_000
"""Bound of the first batch of a thread: nothing is known yet of what a record costs."""
COLD_MS = 1_500
"""What the first full batch of a thread costs more than the next ones, whatever its size:
connections, classes, compiled code."""
SMALLEST_RECORDS = 1_000
"""However slow everything is but the program itself, a batch takes this many records (if there
are as many)."""
GROWTH = 4
"""How fast the bound grows at the most while full batches end before the time they may take."""
SHRINKING = 16
"""How much smaller a batch is made in which a record is looked for: from 100,000 to one in five
steps of a second or two."""
MERGED_SHARE = 4
"""A merge that reads a fourth of what was planned is bounded by its ranges; one that reads less
waits for an input, and larger ranges of the others would only be read in vain."""
REST_SHARE = 0.25
"""How long a thread that is caught up rests at the least, by what its last batch took: a fifth of
the batches is saved, and a record comes a quarter of a batch later at the most (note 018)."""
MANY_TASKS = 8
"""Behind a batch of records of so many tasks it rests for longer than that took: reading, storing
and committing cost by the task, and more records of each then share it. Behind half as many it
rests the least."""


ENDINGS = 4
"""A rest for what the broker takes to end a transaction goes by the shortest of so many: one that
took long, as the broker was busy, says nothing of the next."""
HELD_SHARE = 0.75
"""How much of that time is rested (all of it would often be more than it takes), less..."""
SHORT_HELD_MS = 40.0
"""...so much: what it takes with a few partitions, where a rest only makes a chain of re-keys late.
"""
LONGEST_HELD_MS = 1_000.0


@dataclass(frozen=True)
class BatchSize:
    """How many records the next batch may take and how long it rests, learnt from the batches
    before.

    A bound instead of a measured rate: a batch costs a fixed part and a part per record, and the
    first full one also the warm-up, so records / time of a small or cold batch says little. The
    bound shrinks to what fits once a batch took too long, and grows while full batches end early,
    to what would have fitted and by `GROWTH` at the most. Below `SMALLEST_RECORDS` it grows
    however long a batch takes, unless its records cost that. ``bytes_per_record`` is smoothed, None
    where unknown. ``endings``: for how many ms behind a batch the broker was still ending its
    transaction, at least, of the last ones.
    """

    bound: int = FIRST_RECORDS
    bytes_per_record: float | None = None
    cold: bool = True
    endings: tuple[float, ...] = ()

    @property
    def held_ms(self) -> float:
        """How long a rest spares the next batch from waiting, with records in its hands, until the
        broker has ended the transaction before it: what comes meanwhile is in it."""
        if len(self.endings) < ENDINGS:
            return 0.0
        return max(0.0, min(min(self.endings) * HELD_SHARE - SHORT_HELD_MS, LONGEST_HELD_MS))

    def after(
        self,
        limits: BatchLimits,
        planned: int,
        records: int,
        elapsed_ms: float,
        raw_bytes: int | None = None,
        computing_ms: float = 0.0,
        held_ms: float = 0.0,
    ) -> BatchSize:
        """With one more finished batch. ``planned``: how many its ranges had; a merge reads
        fewer, up to where one of its inputs ends. ``computing_ms``: the part of its
        time that its records cost, which bounds the next one below `SMALLEST_RECORDS` too.
        ``held_ms``: the part for which its transaction was held up by the one before it."""
        size = self.bytes_per_record
        if raw_bytes is not None and records > 0:
            size = raw_bytes / records if size is None else (size + raw_bytes / records) / 2
        bound = self.bound
        full = self._full(limits, records)
        if self.cold and full:
            elapsed_ms = max(elapsed_ms - COLD_MS, elapsed_ms / 4)
        if elapsed_ms > limits.target_ms and bound > SMALLEST_RECORDS:
            bound = max(SMALLEST_RECORDS, int(min(records, bound) * limits.target_ms / elapsed_ms))
        elif full or self._bounded_merge(limits, records, planned):
            bound = self._grown(limits, records, elapsed_ms, computing_ms)
        if records > 0 and computing_ms > limits.target_ms:
            bound = min(bound, max(1, int(records * limits.target_ms / computing_ms)))
        rested_ms = 0.0 if full else self.held_ms
        ending_ms = rested_ms + held_ms if held_ms > 0 else rested_ms * HELD_SHARE
        endings = (*self.endings, ending_ms)[-ENDINGS:]
        return BatchSize(bound, size, self.cold and not full, endings)

    def rest_ms(
        self, limits: BatchLimits, records: int, elapsed_ms: float, tasks: Collection[TaskId]
    ) -> float:
        """How long to wait behind a batch for more records, so that they share a commit, and for
        the broker to end its transaction; 0 behind a full one. ``tasks``: that had records."""
        if self._full(limits, records) or not limits.most_rest_ms:
            return 0.0
        share = max(REST_SHARE, min(len(tasks) / MANY_TASKS, 1.0) ** 3 * _most_share(tasks))
        return min(elapsed_ms * share, limits.most_rest_ms) + self.held_ms

    def shrunk(self, records: int) -> BatchSize:
        """With a batch of ``records`` that failed for a reason that fewer may not meet: one of
        them, or no memory."""
        return replace(self, bound=max(1, min(self.bound, records) // SHRINKING))

    def bounded(self, records: int) -> BatchSize:
        return replace(self, bound=records)

    def no_larger_than(self, other: BatchSize) -> BatchSize:
        """With the bound of ``other`` if that is smaller."""
        return replace(self, bound=min(self.bound, other.bound))

    def records(self, limits: BatchLimits) -> int:
        """The bound with ``max.batch.records`` and ``max.batch.bytes``; at least 1."""
        bound: float = min(self.bound, limits.max_records)
        if self.bytes_per_record:
            bound = min(bound, limits.max_bytes / self.bytes_per_record)
        return max(1, int(bound))

    def _grown(
        self, limits: BatchLimits, records: int, elapsed_ms: float, computing_ms: float
    ) -> int:
        """The bound behind a full batch: by what fits, or, of one that was made small in a search,
        back to the smallest; no further than the records themselves leave time for."""
        fitting = self.bound * min(GROWTH, limits.target_ms / max(1.0, elapsed_ms))
        least = min(self.bound * GROWTH, SMALLEST_RECORDS)
        affordable = records * limits.target_ms / max(1.0, computing_ms)
        bound = max(self.bound, min(max(fitting, least), affordable))
        return min(int(bound), limits.max_records)

    def _bounded_merge(self, limits: BatchLimits, records: int, planned: int) -> bool:
        """Whether a batch of fewer records was full none the less: a merge goes no further than the
        range of one input, and with small ranges of inputs of unequal pace that is soon."""
        near = self.bound < SMALLEST_RECORDS or records * MERGED_SHARE >= planned
        return near and self._full(limits, planned)

    def _full(self, limits: BatchLimits, records: int) -> bool:
        return records * 10 >= self.records(limits) * 9


def _most_share(tasks: Collection[TaskId]) -> float:
    """Of what a batch took, by how many sub-topologies it has: a record that is re-keyed meets a
    rest in each."""
    return 1.0 + 2.0 / max(1, len({task.subtopology for task in tasks}))


def plan_ranges(
    available: Mapping[TopicPartition, OffsetRange], records: int
) -> dict[TopicPartition, OffsetRange]:
    """Offset ranges for one batch, fair over the partitions; a range for every partition given
    (maybe empty).

    ``available`` is ``[next offset, end that may be read)``; ends are last stable offsets under
    exactly-once and high watermarks otherwise, so a range never goes beyond them (scenario 5). What
    one partition does not use of its equal share, the others get. Offsets without a record
    (transaction markers, compaction) count as records. Every partition with something to read gets
    at least one offset, beyond ``records`` if need be: a merge waits for each of its inputs.
    """
    waiting = {tp: r.end - r.start for tp, r in available.items() if r.end > r.start}
    taken = dict.fromkeys(waiting, 0)
    left = max(0, records)
    # Smallest backlog first: each leaves what it does not need to the ones behind it.
    order = sorted(waiting, key=lambda tp: (waiting[tp], tp))
    for position, tp in enumerate(order):
        share = max(1, -(-left // (len(order) - position)))
        taken[tp] = min(waiting[tp], share)
        left = max(0, left - taken[tp])
    return {tp: OffsetRange(r.start, r.start + taken.get(tp, 0)) for tp, r in available.items()}


def unread(
    tasks: Iterable[ActiveTask], ends: Mapping[TopicPartition, int], resting: Collection[TaskId]
) -> dict[TopicPartition, OffsetRange]:
    """What is in the logs of ``tasks`` and not yet processed: all inputs of those that have
    something and do not rest. Of a thousand tasks few have, and a turn of the thread's loop costs
    what those do (note 018)."""
    found: dict[TopicPartition, OffsetRange] = {}
    for task in tasks:
        for tp, position in task.positions.items():
            end = ends.get(tp)
            if end is None:
                end = task.ends.get(tp, position)
            if end > position:
                break
        else:
            continue
        if task.id not in resting:
            found |= _unread_of(task, ends)
    return found


def merged(tasks: Mapping[TaskId, ActiveTask]) -> list[Collection[TopicPartition]]:
    """The inputs of the tasks that have several."""
    several = sorted(name for name, task in tasks.items() if len(task.inputs) > 1)
    return [tasks[name].inputs for name in several]


def touched(tasks: Mapping[TaskId, ActiveTask], result: BatchResult) -> list[ActiveTask]:
    """Those that a committed batch may have changed."""
    read, times, stores = result.consumed.keys(), result.stream_times, result.positions
    return [
        task
        for name, task in tasks.items()
        if not read.isdisjoint(task.inputs) or name in times or name in stores
    ]


def nothing_of(tasks: Iterable[ActiveTask]) -> dict[TopicPartition, OffsetRange]:
    """An empty range of each of their inputs."""
    return {
        tp: OffsetRange(position, position)
        for task in tasks
        for tp, position in task.positions.items()
    }


def _unread_of(
    task: ActiveTask, ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetRange]:
    found = {}
    for tp, position in task.positions.items():
        end = ends.get(tp)
        found[tp] = OffsetRange(
            position, max(position, task.ends.get(tp, position) if end is None else end)
        )
    return found


def is_empty(ranges: Mapping[TopicPartition, OffsetRange]) -> bool:
    """Whether there is nothing to read."""
    return all(r.end <= r.start for r in ranges.values())


@dataclass(kw_only=True)
class PlannedBatch:
    """A batch to run: kept over attempts, so that a retry reads the same range (D6). ``ranges``:
    of all inputs of each task that is in it."""

    ranges: dict[TopicPartition, OffsetRange]
    log_ends: dict[TopicPartition, int]
    attempt: int = 0
    wall_clock_ms: int = 0
    """The machine's clock when it was planned: whatever goes by it gives the same again in a
    retry."""
    idle: Mapping[TaskId, Mapping[str, int]] = field(default_factory=dict)
    """To what the times of silent sources are moved (`everflow.runtime.thread.batching`)."""
    waits: tuple[TopicPartition, ...] | None = ()
    """Inputs at whose end the merge stops (`everflow.runtime.thread.batching.Look`)."""

    @property
    def records(self) -> int:
        return sum(r.end - r.start for r in self.ranges.values())

    @property
    def smallest(self) -> bool:
        """Whether it cannot have fewer records: a merge needs one of each input."""
        return all(r.end - r.start <= 1 for r in self.ranges.values())

    def only_record(self) -> BadRecord | None:
        """The one that it reads; None where there are others."""
        found = [(tp, r.start) for tp, r in self.ranges.items() if r.end > r.start]
        if len(found) != 1 or self.records != 1:
            return None
        (tp, offset) = found[0]
        return BadRecord(tp.topic, tp.partition, offset)

    def parts(self, groups: Iterable[Collection[TopicPartition]]) -> list[PlannedBatch]:
        """A batch for each of the ``groups`` of partitions that has records, with nothing of the
        others: inputs of one task are merged and stay together."""
        nothing = {tp: OffsetRange(r.start, r.start) for tp, r in self.ranges.items()}
        found = [
            {**nothing, **{tp: self.ranges[tp] for tp in group if tp in self.ranges}}
            for group in groups
        ]
        return [replace(self, ranges=ranges) for ranges in found if not is_empty(ranges)]

    def least(self, failure: BatchFailure, groups: Iterable[Collection[TopicPartition]]) -> bool:
        """Whether, after ``failure``, no smaller batch would get further or tell more; ``groups``
        as for `parts`."""
        if failure.kind == "column" and failure.record is not None:
            return self.until(failure.record.place) is None
        return self.smallest and len(self.parts(groups)) < 2

    def until(self, record: tuple[str, int, int]) -> PlannedBatch | None:
        """Without a record (topic, partition, offset) and what is behind it; None where nothing of
        its partition is before it."""
        tp, offset = TopicPartition(*record[:2]), record[2]
        begin = self.ranges[tp].start if tp in self.ranges else offset
        return (
            replace(self, ranges={**self.ranges, tp: OffsetRange(begin, offset)})
            if begin < offset
            else None
        )

    def named(self) -> str:
        """Its records, where they are few."""
        few = [
            f"{tp}@{r.start}"
            for tp, r in sorted(self.ranges.items())
            if self.smallest and r.end > r.start
        ]
        return f"one of {some(few, 20)}" if len(few) > 1 else "".join(few)


# --- task idling ----------------------------------------------------------------------------------
# Which tasks wait for an input that has nothing (`max.task.idle.ms`), and for how long: pure.
#
# Kafka Streams asks before each record whether every input of the task has one, or is known to
# have none; here it is asked before each micro-batch, and the merge ends a batch where an input
# that is still waited for runs dry (`everflow.runtime.step.merge_order`). Times are monotonic ms.

NEVER = -1
"""``max.task.idle.ms``: whatever is there is processed."""


@dataclass(frozen=True)
class Look:
    """What may be read now.

    Attributes:
        held: partitions of tasks that wait.
        waits: inputs at whose end a batch has to stop, though the log has no more; None: not at any
            input's, even if the log has more.
        enforced: how many tasks go on though an input has nothing.
    """

    held: frozenset[TopicPartition]
    waits: tuple[TopicPartition, ...] | None
    enforced: int

    def of(
        self, available: Mapping[TopicPartition, OffsetRange]
    ) -> dict[TopicPartition, OffsetRange]:
        """``available``, with nothing of tasks that wait."""
        return {
            tp: OffsetRange(r.start, r.start) if tp in self.held else r
            for tp, r in available.items()
        }


@dataclass
class TaskIdling:
    """Of one stream thread, which alone calls it."""

    idle_ms: int
    left_ms: float = math.inf
    """Until the first task has waited long enough, when it was last looked."""
    _until: dict[TopicPartition, float] = field(default_factory=dict)
    """Until when an input that has nothing is waited for; one that has something is left out."""

    def look(
        self,
        tasks: Iterable[Collection[TopicPartition]],
        available: Mapping[TopicPartition, OffsetRange],
        now_ms: float,
    ) -> Look:
        """``tasks``: the inputs of each; ``available``: what each of them has to read, where it has
        something."""
        if self.idle_ms == NEVER:
            return Look(frozenset(), None, 0)
        held: set[TopicPartition] = set()
        waits: list[TopicPartition] = []
        enforced, self.left_ms = 0, math.inf
        known = self._until
        self._until = {}
        for inputs in tasks:
            if len(inputs) < 2:
                continue
            empty = [tp for tp in inputs if (r := available.get(tp)) is None or r.end <= r.start]
            for tp in empty:
                self._until[tp] = known.get(tp, now_ms + self.idle_ms)
            if len(empty) == len(inputs):
                continue
            until = max((self._until[tp] for tp in empty), default=now_ms)
            if until > now_ms:
                held.update(inputs)
                self.left_ms = min(self.left_ms, until - now_ms)
                continue
            enforced += bool(empty)
            if self.idle_ms > 0:
                waits += sorted(set(inputs) - set(empty))
        return Look(frozenset(held), tuple(waits), enforced)


# --- idle sources ---------------------------------------------------------------------------------
# How long inputs have been silent, and to what that moves their times (note 025).
#
# The wall clock is the machine's that never goes back; what a partition's time is, is in the
# task, beside its positions. Of one stream thread, which alone calls it. Times in ms.

Moves = Mapping[TaskId, Mapping[str, int]]
"""Of each task, to what the times of its silent sources are to be moved, by the names under which
those are kept."""
AGAIN_MS = 1_000.0
"""Where what feeds a topic is not consumed, it is asked for again after this time."""


class Reader(Protocol):
    """`everflow.runtime.tasks.task.ActiveTask`."""

    @property
    def id(self) -> TaskId: ...

    @property
    def inputs(self) -> tuple[TopicPartition, ...]: ...

    @property
    def stream_times(self) -> Mapping[str, int]: ...


@dataclass
class IdleSources:
    """``sources``: those that count, by sub-topology and topic. ``consumed(topics)``: whether the
    application has consumed all that is in them; asks the brokers."""

    sources: Mapping[int, Mapping[str, IdleSource]]
    consumed: Callable[[Collection[str]], bool]
    left_ms: float = math.inf
    """Until the first time is to be moved, when it was last looked."""
    _since: dict[TopicPartition, float] = field(default_factory=dict)
    _asked: dict[frozenset[str], tuple[float, bool]] = field(default_factory=dict)

    def due(
        self,
        tasks: Iterable[Reader],
        available: Mapping[TopicPartition, OffsetRange],
        now_ms: float,
    ) -> Moves:
        """What is to be moved in tasks whose inputs' ends are known, by their silence: they have
        nothing in ``available``. A partition without a record so far has no time, and is not
        moved."""
        found: dict[TaskId, dict[str, int]] = {}
        self.left_ms = math.inf
        known = self._since
        self._since = {}
        for task in tasks:
            sources = self.sources.get(task.id.subtopology, {})
            for tp in task.inputs:
                source, waiting = sources.get(tp.topic), available.get(tp)
                if source is None or (waiting is not None and waiting.end > waiting.start):
                    continue
                since = self._since[tp] = known.get(tp, now_ms)
                time = task.stream_times.get(source.kept, -1)
                silent_ms = now_ms - since
                if time < 0:
                    continue
                if silent_ms < source.after_ms:
                    self.left_ms = min(self.left_ms, source.after_ms - silent_ms)
                elif self._is_fed(source, now_ms):
                    found.setdefault(task.id, {})[source.kept] = time + int(silent_ms)
                else:
                    self.left_ms = min(self.left_ms, AGAIN_MS)
        return found

    def moved(self, tasks: Iterable[Reader], moves: Moves, at_ms: float) -> None:
        """What was asked for at ``at_ms`` is committed, as far as the tasks say so: silence is
        counted from then."""
        if not self.sources:
            return
        for task in tasks:
            names = moves.get(task.id, {})
            for topic, source in self.sources.get(task.id.subtopology, {}).items():
                tp = TopicPartition(topic, task.id.partition)
                reached = task.stream_times.get(source.kept, -1) >= names.get(source.kept, math.inf)
                if reached and tp in self._since:
                    self._since[tp] = at_ms

    def _is_fed(self, source: IdleSource, now_ms: float) -> bool:
        """Whether nothing is on its way to the topic."""
        if not source.fed_by:
            return True
        asked_ms, answer = self._asked.get(source.fed_by, (-math.inf, False))
        if now_ms - asked_ms >= AGAIN_MS:
            answer = self.consumed(source.fed_by)
            self._asked[source.fed_by] = now_ms, answer
        return answer
