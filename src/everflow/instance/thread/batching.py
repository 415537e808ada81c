"""Chooses the size of the next micro-batch and its offsets: pure (D1). Small when caught up, up to
`BatchLimits` when lagging, and bounded in time, so that a rebalance never waits long."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from everflow.config import BatchLimits
from everflow.logs import some
from everflow.protocol.messages import BadRecord, BatchFailure, InputTime
from everflow.records import OffsetRange, Ranges, TaskId, TopicPartition

FIRST_RECORDS = 100_000
"""Bound of the first batch of a thread: nothing is known yet of what a record costs."""
COLD_MS = 1_500
"""Extra cost of a thread's first full batch of any size: connections, classes, compiled code."""
SMALLEST_RECORDS = 1_000
"""However slow all is but the program itself, a batch takes so many records, if there are."""
MERGED_SHARE = 4
"""A merge that reads a fourth of what was planned is bounded by its ranges; else it waits."""
ANSWERS = 2
"""A batch waits for the brokers about so often for each answer that has nothing of its records."""
WORTH_MS = 400.0
"""A core for so long is worth a ms of latency: batches are so far apart that one more ms between
them saves the 400th part of a core."""
WAKE_SHARE = 0.05
"""The share of the interval for which a record that wakes a thread waits for others, which may have
been sent at the same moment."""
CREDIT = 3
"""So many intervals are saved up while few records come: the next batches need not wait for one."""
LAST = 10
"""What a batch costs is the mean of about so many."""
LONG_AGO = 100
"""What a record costs is learnt from so many: batches of one size hardly show it."""
NEAR = 0.005
"""Batches whose records differ by less than a fourteenth of the mean do not show it at all."""

ENDINGS = 4
"""The rest for the end of a transaction goes by the shortest of so many: a broker may be busy."""
ENDING_SHARE = 0.75
"""The share of that time that is rested: all of it would often be too long."""
SHORT_ENDING_MS = 40.0
"""Taken off that rest: with few partitions it takes so long, and a rest only delays re-keys."""
LONGEST_ENDING_MS = 1_000.0


@dataclass(frozen=True)
class BatchCost:
    """What a batch costs, ms, by its records: least squares, in which the latest count most.

    ``records`` and ``ms`` are means, ``spread`` the variance of the records, ``together`` their
    covariance with ms. A batch counts as no further from the mean than twice of it: one with a
    backlog, or with one large record, tells no more than its direction."""

    count: int = 0
    records: float = 0.0
    ms: float = 0.0
    spread: float = 0.0
    together: float = 0.0

    def after(self, records: int, ms: float) -> BatchCost:
        """With one more batch."""
        count = self.count + 1
        gain, slow = max(1 / count, 1 / LAST), max(1 / count, 1 / LONG_AGO)
        more, longer = records - self.records, ms - self.ms
        if self.count:
            far = max(1.0, abs(more) / max(1.0, self.records), abs(longer) / max(1.0, self.ms))
            more, longer = more / far, longer / far
        return BatchCost(
            count,
            self.records + gain * more,
            self.ms + gain * longer,
            (1 - slow) * (self.spread + slow * more * more),
            (1 - slow) * (self.together + slow * more * longer),
        )

    @property
    def fixed_ms(self) -> float:
        """What a batch costs beside its records; all of it where batches are of one size."""
        differing = self.spread + NEAR * self.records**2
        per_record = max(0.0, self.together / differing) if differing else 0.0
        return max(0.0, self.ms - per_record * self.records)


@dataclass(frozen=True)
class BatchSize:
    """The size of the next batch and the rest behind it, learnt from the batches before.

    A full batch, or one whose records took too long, sets it to what fits by the time that its
    records took. It is at least `SMALLEST_RECORDS`, unless computing them costs the time.
    ``bytes_per_record`` is smoothed, None if unknown. ``cost``: of the worker's processor.
    ``endings``: the ms for which the broker at least still ended each of the last transactions."""

    bound: int = FIRST_RECORDS
    bytes_per_record: float | None = None
    cold: bool = True
    cost: BatchCost = BatchCost()
    endings: tuple[float, ...] = ()

    @property
    def interval_ms(self) -> float:
        """From the start of a batch to that of the next one. What batches cost beside their records
        takes ``fixed_ms / interval_ms`` of a core; one more ms saves the derivative of that."""
        return math.sqrt(self.cost.fixed_ms * WORTH_MS)

    @property
    def ending_rest_ms(self) -> float:
        """The rest until the broker has ended the transaction: else the next batch waits for it."""
        if len(self.endings) < ENDINGS:
            return 0.0
        return max(0.0, min(min(self.endings) * ENDING_SHARE - SHORT_ENDING_MS, LONGEST_ENDING_MS))

    def after(
        self,
        limits: BatchLimits,
        planned: int,
        records: int,
        elapsed_ms: float,
        raw_bytes: int | None = None,
        computing_ms: float = 0.0,
        blocked_ms: float = 0.0,
        answers_ms: float = 0.0,
        processor_ms: float = 0.0,
    ) -> BatchSize:
        """With one more finished batch. ``planned``: how many its ranges had; a merge may read
        fewer. ``computing_ms``: what its records cost, which bounds the next one below
        `SMALLEST_RECORDS`, too. ``answers_ms``: how long the brokers took for what has none of its
        records. ``processor_ms``: of its worker. ``blocked_ms``: for how long the transaction
        before blocked it."""
        size = self.bytes_per_record
        if raw_bytes is not None and records > 0:
            size = raw_bytes / records if size is None else (size + raw_bytes / records) / 2
        bound = self.bound
        full = self.is_full(limits, records)
        if self.cold and full:
            elapsed_ms = max(elapsed_ms - COLD_MS, elapsed_ms / 4)
        records_ms = max(1.0, computing_ms, elapsed_ms - ANSWERS * answers_ms)
        affordable = max(1, int(records * limits.target_ms / max(1.0, computing_ms)))
        if records > 0 and records_ms > limits.target_ms:
            fitting = self._fitting(limits, min(records, bound), elapsed_ms, records_ms)
            bound = min(fitting, affordable)
        elif full or self._bounded_merge(limits, records, planned):
            fitting = self._fitting(limits, bound, elapsed_ms, records_ms)
            bound = max(bound, min(fitting, affordable))
        rested_ms = 0.0 if full else self.ending_rest_ms
        ending_ms = rested_ms + blocked_ms if blocked_ms > 0 else rested_ms * ENDING_SHARE
        endings = (*self.endings, ending_ms)[-ENDINGS:]
        cost = self.cost.after(records, processor_ms) if records else self.cost
        return BatchSize(bound, size, self.cold and not full, cost, endings)

    def due_ms(self, limits: BatchLimits, due_ms: float, began_ms: float, now_ms: float) -> float:
        """When the batch behind one may begin that was due then and ``began_ms`` at another time:
        one interval later, ``commit.interval.ms`` from now at the most."""
        interval_ms = self.interval_ms
        due_ms = max(due_ms, began_ms - CREDIT * interval_ms) + interval_ms
        return min(due_ms, now_ms + limits.most_rest_ms)

    def wake_rest_ms(self, limits: BatchLimits) -> float:
        """The wait behind a record that wakes a thread."""
        return min(self.interval_ms * WAKE_SHARE, limits.most_rest_ms)

    def records(self, limits: BatchLimits) -> int:
        """The bound with ``max.batch.records`` and ``max.batch.bytes``; at least 1."""
        bound: float = min(self.bound, limits.max_records)
        if self.bytes_per_record:
            bound = min(bound, limits.max_bytes / self.bytes_per_record)
        return max(1, int(bound))

    def _fitting(
        self, limits: BatchLimits, records: int, elapsed_ms: float, records_ms: float
    ) -> int:
        """How many fit into the time, if so many took ``records_ms`` of ``elapsed_ms``. What comes
        whatever the size leaves them half of it at least."""
        room_ms = max(limits.target_ms - (elapsed_ms - records_ms), limits.target_ms / 2)
        fitting = max(SMALLEST_RECORDS, int(records * room_ms / records_ms))
        return min(fitting, limits.max_records)

    def _bounded_merge(self, limits: BatchLimits, records: int, planned: int) -> bool:
        """True if a batch of fewer records was full: a merge ends with the range of one input."""
        near = self.bound < SMALLEST_RECORDS or records * MERGED_SHARE >= planned
        return near and self.is_full(limits, planned)

    def is_full(self, limits: BatchLimits, records: int) -> bool:
        return records * 10 >= self.records(limits) * 9


def plan_ranges(available: Ranges, records: int) -> dict[TopicPartition, OffsetRange]:
    """Offset ranges for one batch, fair over the partitions; one (maybe empty) for each of
    them. ``available``: ``[next offset, end that may be read)``, by the guarantee; no range goes
    beyond it (scenario 5). Offsets without a record count. Each with something to read gets one
    offset at least, beyond ``records`` if need be: a merge waits for each of its inputs."""
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


def without(
    ranges: Ranges, left_out: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    return {tp: OffsetRange(r.start, r.start) if tp in left_out else r for tp, r in ranges.items()}


def is_empty(ranges: Ranges) -> bool:
    return all(r.end <= r.start for r in ranges.values())


@dataclass(kw_only=True)
class PlannedBatch:
    """A batch to run; a retry reads the same range (D6). ``ranges``: of all inputs of its tasks."""

    ranges: dict[TopicPartition, OffsetRange]
    log_ends: dict[TopicPartition, int]
    attempt: int = 0
    wall_clock_ms: int = 0
    """The machine's clock when it was planned: what goes by it gives the same in a retry."""
    idle: Mapping[TaskId, Mapping[str, int]] = field(default_factory=dict)
    """To what the times of silent sources are moved (`everflow.instance.thread.batching`)."""
    waits: tuple[TopicPartition, ...] | None = ()
    """Inputs at whose end the merge stops (`planning.ReadableInputs`)."""
    spare: int = 0
    """So many more records may be read of logs that are read to their end."""
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the new records of a range begin that has held back ones in front (note 076)."""
    due: frozenset[TaskId] = frozenset()
    """Tasks that are served because times rise, maybe without new records."""
    times: Mapping[TopicPartition, InputTime] | None = None
    until_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    most_ms: int | None = None
    most_taken: int | None = None
    """As in `BatchRequest`."""
    first: tuple[BadRecord, ...] = ()
    """The first records that it takes, where the worker has said so (`BatchResult.next`): with
    ``most_taken`` of 1 all of them."""

    @property
    def new(self) -> dict[TopicPartition, OffsetRange]:
        """Its ranges, without what was held back."""
        if not self.begins:
            return self.ranges
        return {
            tp: OffsetRange(min(r.end, max(r.start, self.begins.get(tp, r.start))), r.end)
            for tp, r in self.ranges.items()
        }

    def fewer(self, records: int) -> PlannedBatch:
        """With so many of its new records; of what was held back no more are taken with them."""
        fewer = plan_ranges(self.new, records)
        ranges = {tp: OffsetRange(self.ranges[tp].start, r.end) for tp, r in fewer.items()}
        most = None if self.times is None else records
        return replace(self, ranges=ranges, most_taken=most)

    def served(self, inputs: Collection[TopicPartition], task: TaskId) -> bool:
        """Whether a task has something to do in it, by its records or by times."""
        new = self.new
        return task in self.due or any(tp in new and new[tp].end > new[tp].start for tp in inputs)

    @property
    def records(self) -> int:
        return sum(r.end - r.start for r in self.new.values())

    @property
    def reach(self) -> int:
        """How many records it takes at most, held back ones included."""
        count = sum(r.end - r.start for r in self.ranges.values())
        return count if self.most_taken is None else min(count, self.most_taken)

    @property
    def smallest(self) -> bool:
        """True if it cannot have fewer records: a merge needs one of each input."""
        one = not self._holds or (self.most_taken is not None and self.most_taken <= 1)
        return one and all(r.end - r.start <= 1 for r in self.new.values())

    @property
    def is_unknown(self) -> bool:
        """True if it takes one record, and only the worker knows which: held back ones come in the
        order of time. With ``most_taken`` of 0 the worker takes none, and says so."""
        return self._holds and self.smallest and self.most_taken == 1 and not self.first

    @property
    def _holds(self) -> bool:
        return any(at > self.ranges[tp].start for tp, at in self.begins.items())

    def only_record(self) -> BadRecord | None:
        if self.first:
            return self.first[0] if len(self.first) == 1 else None
        # One that takes nothing takes what is late, which is new.
        ranges = self.new if self.most_taken == 0 or not self._holds else {}
        found = [(tp, r.start) for tp, r in ranges.items() if r.end > r.start]
        if len(found) != 1 or self.records != 1:
            return None
        (tp, offset) = found[0]
        return BadRecord(tp.topic, tp.partition, offset)

    def parts(self, groups: Iterable[Collection[TopicPartition]]) -> list[PlannedBatch]:
        """A batch for each group with records: merged inputs of one task stay together. One alone
        where the worker takes the earliest of all tasks."""
        if self._holds:
            return [self]
        found = [without(self.ranges, self.ranges.keys() - set(group)) for group in groups]
        return [replace(self, ranges=ranges) for ranges in found if not is_empty(ranges)]

    def least(
        self,
        failure: BatchFailure,
        groups: Iterable[Collection[TopicPartition]],
    ) -> bool:
        """True if no smaller batch gets further or tells more; ``groups`` as for `parts`."""
        if failure.kind == "column" and failure.record is not None:
            return self.until(failure.record.place) is None
        return self.smallest and len(self.parts(groups)) < 2

    def until(self, record: tuple[str, int, int]) -> PlannedBatch | None:
        """Without a record (topic, partition, offset) and those behind it; None: it is first."""
        tp, offset = TopicPartition(*record[:2]), record[2]
        begin = self.new[tp].start if tp in self.ranges else offset
        if begin >= offset:
            return None
        start = self.ranges[tp].start
        return replace(self, ranges={**self.ranges, tp: OffsetRange(start, offset)})

    def named(self) -> str:
        ranges = sorted(self.new.items()) if self.smallest else []
        few = [f"{tp}@{r.start}" for tp, r in ranges if r.end > r.start]
        if self._holds and self.most_taken != 0:
            few = [str(one) for one in self.first]
        return f"one of {some(few, 20)}" if len(few) > 1 else "".join(few)
