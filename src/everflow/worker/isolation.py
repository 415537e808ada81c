"""Runs a micro-batch without the records that it fails on (note 041).

Everything up to the sink is computation: it may be run again, in this very worker. What the failure
does not name is the last record of the shortest prefix that fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from everflow.errors import EverflowError, RecordRefusedError, RecordTooLargeError
from everflow.kafka.reading.record_columns import LogColumns
from everflow.protocol.messages import (
    COMMITTED,
    BadRecord,
    BatchRequest,
    BatchResult,
    timed,
)
from everflow.records import Int64, TopicPartition
from everflow.serdes import SerdeError
from everflow.sinks.batch import SinkAhead
from everflow.topology.batches import BatchInput, KnownResults
from everflow.worker.certain_times import CertainTimes
from everflow.worker.decode import Fault, Judge, LogDecoder
from everflow.worker.failures import (
    CallsEnded,
    MoreRecords,
    RecordFailure,
    Sources,
    SparkSays,
    failure_of,
    serde_outage,
)
from everflow.worker.letters import largest_entry, refused_cure, times_of_entries
from everflow.worker.stores import CheckedAccess, damage_in
from everflow.worker.task_step import StepResult, TaskStep

HALVED_AFTER = 12
"""After so many runs of a batch, each of which found one more record, it is halved."""
_OF_DATA = (
    ArithmeticError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    pa.ArrowException,
    SerdeError,
    struct.error,
)
"""What an operator raises because of a record or an entry: no fault of memory, disk or broker."""

_T = TypeVar("_T")
_Read = Mapping[TopicPartition, LogColumns]
Trial = Callable[[BatchRequest, StepResult], None]
"""Checks what a run would write, of which nothing comes; raises where that is to fail."""


Run = Callable[[BatchRequest, BatchInput, Trial | None], _T]
"""Computes a batch; the third says that nothing may come of it (`trial_of`)."""


def anything(request: BatchRequest, result: StepResult) -> None:
    """The `Trial` of a run that is only to compute."""


class Arriving(Protocol):
    """Records that come while calls of their batch are under way (note 070)."""

    def joined(self, request: BatchRequest, read: _Read) -> tuple[BatchRequest, _Read]:
        """With those that have come."""

    def close(self, calls: bool) -> None:
        """The batch has become shorter: none may be added. ``calls``: because records have no
        answer yet."""


@dataclass(frozen=True)
class Isolated:
    """One decoded batch. ``stores``: the node that reads each; ``timings`` get decoding's ms.
    ``arriving``: of a step whose calls outlive batches."""

    decoder: LogDecoder
    stores: Mapping[str, str] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    known: KnownResults = field(default_factory=KnownResults)
    """What functions gave in the runs of the batch so far: none is called twice for a record."""
    arriving: Arriving | None = None

    def run(
        self,
        request: BatchRequest,
        read: Mapping[TopicPartition, LogColumns],
        compute: Run[_T],
    ) -> _T:
        """``compute``'s result for the batch, or its beginning, without records that handlers leave
        out. Raises all else, with its record if found; DamagedEntryError for a store."""
        judge = Judge.of(self.decoder.handlers, request)
        runs = 0
        while True:
            search = _Search(self, request, read, judge, compute)
            try:
                return compute(request, self.decoded(request, read, judge), None)
            except (RecordTooLargeError, RecordRefusedError) as error:
                # The gate has answered, perhaps: whose fault it is counts for the next attempt.
                blamed = search.blamed(error)
                if blamed is None:
                    raise
                raise blamed from error
            except MoreRecords:
                assert self.arriving is not None
                request, read = self.arriving.joined(request, read)
                continue
            except SinkAhead as ahead:
                request, read = self._shorter(_exactly(request, read, ahead.ends), calls=False)
                continue
            except CallsEnded as over:
                request, read = self._shorter(_until(request, read, over.ends), calls=True)
                continue
            except Exception as error:
                if (away := serde_outage(error)) is not None:
                    raise away from error
                if isinstance(error, RecordFailure) and error.ends is not None:
                    request, read = self._shorter(_until(request, read, error.ends), calls=True)
                    search = replace(search, request=request, read=read)
                faults = named(error)
                if faults and self._unsure(error):
                    # Its record may only have the key of an entry that cannot be read, and others
                    # may fail as it does.
                    trial = search.failing(None, anything)
                    faults = (named(trial) if trial is not None else []) or faults
                faults = faults or search.unnamed(error)
                if not faults:
                    raise
                for fault in faults:
                    if judge.in_vain(fault):
                        culprit = fault.cause or error
                        raise culprit from culprit.__cause__
                fresh = [judge.skip(fault) for fault in faults]
                if not any(fresh):
                    raise  # it fails although its record is left out
            runs += 1
            if runs % HALVED_AFTER == 0:
                request, read = self._shorter(_halved(request, read), calls=False)

    def _shorter(
        self, shorter: tuple[BatchRequest, _Read], *, calls: bool
    ) -> tuple[BatchRequest, _Read]:
        if self.arriving is not None:
            self.arriving.close(calls)
        return shorter

    def decoded(self, request: BatchRequest, read: _Read, judge: Judge) -> BatchInput:
        with timed(self.timings, "decode"):
            decoded = self.decoder.run(read, judge, later=request.times is not None)
            decoded.known = self.known
            return decoded

    def _unsure(self, error: Exception) -> bool:
        """True if a run on checked stores may tell more than the ``error``."""
        if not isinstance(error, RecordFailure):
            return bool(self.stores)
        return not error.before_state and (bool(self.stores) or error.searchable)


@dataclass(frozen=True)
class _Search(Generic[_T]):
    """Finds the record for which a batch fails where the error does not name it."""

    batch: Isolated
    request: BatchRequest
    read: Mapping[TopicPartition, LogColumns]
    judge: Judge
    compute: Run[_T]

    def unnamed(self, error: Exception) -> list[Fault]:
        found = self._shortest(anything) if of_data(error) else None
        if found is None:
            return []
        place, cause = found
        if known := named(cause):
            return known
        if not of_data(cause):
            return []
        failure = RecordFailure(place, None, cause)
        return [Fault(failure.failure, failure)]

    def blamed(
        self, error: RecordTooLargeError | RecordRefusedError
    ) -> RecordTooLargeError | RecordRefusedError | None:
        """``error`` about entries of a store that their changelog does not take, with the records
        that have made an entry so large or set its time; None where those are not
        known."""
        places = (one for task in self.request.tasks for one in task.stores.items())
        store = next((one for one, at in places if error.topics == (at.changelog,)), None)
        if error.place is not None or store is None:
            return None
        if isinstance(error, RecordRefusedError):
            return self._untimely(error, store) if error.untimely else None
        (topic, *_), limit = error.topics, error.limit
        if limit is None:
            return None

        def weigh(request: BatchRequest, result: StepResult) -> None:
            if (size := largest_entry(request, result, topic)) > limit:
                raise RecordTooLargeError(f"{size} bytes", topics=(topic,), limit=limit)

        found = self._shortest(weigh)
        if found is None or not isinstance(found[1], RecordTooLargeError):
            return None
        record = self._writing(found[0], store)
        return RecordTooLargeError(
            f"{error}\n  Record {record} has made it so large.",
            topics=error.topics,
            limit=limit,
            place=(*record.place, record.node or ""),
        )

    def _untimely(self, error: RecordRefusedError, store: str) -> RecordRefusedError | None:
        (topic, *_) = error.topics

        def refuse(request: BatchRequest, result: StepResult) -> None:
            if met := error.times.intersection(times_of_entries(request, result, topic).tolist()):
                records = frozenset((None, None, time) for time in met)
                raise RecordRefusedError("its time", topics=(topic,), records=records)

        found: list[RecordRefusedError] = []
        while len(found) < HALVED_AFTER:
            one = self._shortest(refuse)
            if one is None or not isinstance(one[1], RecordRefusedError):
                break
            record = self._writing(one[0], store)
            cure = refused_cure(error, topic, min(one[1].times))
            blamed = RecordRefusedError(
                f"{error}\n  Record {record} gives an entry of store {store} that time.\n  {cure}",
                topics=error.topics,
                records=error.records,
                untimely=True,
                place=(*record.place, record.node or ""),
            )
            found.append(blamed)
            fault = Fault(failure_of(blamed), blamed)
            if self.judge.in_vain(fault) or not self.judge.skip(fault):
                break
        if not found:
            return None
        found[0].others = tuple(found[1:])
        return found[0]

    def _writing(self, record: BadRecord, store: str) -> BadRecord:
        return replace(record, node=self.batch.stores.get(store, record.node))

    def _shortest(self, trial: Trial) -> tuple[BadRecord, Exception] | None:
        """The last record of the shortest failing beginning, and its error; None: there is none."""
        order = self._order
        good, bad = 0, len(order)
        if self.failing([], trial) is not None or (cause := self.failing(order, trial)) is None:
            return None
        while bad - good > 1:
            middle = (good + bad) // 2
            found = self.failing(order[:middle], trial)
            if found is None:
                good = middle
            else:
                bad, cause = middle, found
        at, row = order[good]
        tp, columns = list(self.read.items())[at]
        node = next(one.node for one in self.batch.decoder.sources if one.topic == tp.topic)
        return BadRecord(tp.topic, tp.partition, int(columns.offsets[row]), node), cause

    def failing(
        self,
        taken: Sequence[tuple[int, int]] | None,
        trial: Trial,
    ) -> Exception | None:
        """The error of a trial of these records (None: all); None if it succeeds.
        DamagedEntryError."""
        if self.request.times is not None:
            asked, part = self._among_certain(taken)
        else:
            taken = _in_time(self.read) if taken is None else taken
            asked, part = _prefix(self.request, self.read, taken)
        try:
            self.compute(asked, self.batch.decoded(asked, part, self.judge), trial)
        except Exception as found:
            if (damage := damage_in(found)) is not None:
                raise damage from damage.__cause__
            return found
        return None

    @cached_property
    def _order(self) -> list[tuple[int, int]]:
        """As `_in_time`; with ``stream.time=lowest`` of the records that the batch takes, in its
        order, and of all of inputs that are not held back."""
        if self.request.times is None:
            return _in_time(self.read)
        return self._taken_of(self.request)

    def _taken_of(self, request: BatchRequest) -> list[tuple[int, int]]:
        batch_input = self.batch.decoded(request, self.read, self.judge)
        certain = CertainTimes.of(batch_input, self.batch.decoder.sources, request)
        free = np.array([not one.held for one in self.batch.decoder.sources], bool)
        (rows,) = np.nonzero(certain.kept | free[batch_input.source])
        rows = rows[np.argsort(certain.rank[rows], kind="stable")]
        begins = np.cumsum([0, *map(len, self.read.values())])
        place = np.searchsorted(begins, rows, "right") - 1
        return list(zip(place.tolist(), (rows - begins[place]).tolist(), strict=True))

    @cached_property
    def _all(self) -> frozenset[tuple[int, int]]:
        """All that it might take, with no `most_taken`."""
        return frozenset(self._taken_of(replace(self.request, most_taken=None)))

    def _among_certain(
        self, taken: Sequence[tuple[int, int]] | None
    ) -> tuple[BatchRequest, dict[TopicPartition, LogColumns]]:
        """The batch without those of `_order` that are not ``taken``, as if its logs had never had
        them: what is held back stays so."""
        asked = replace(self.request, idle={})
        if taken is None:
            return asked, dict(self.read)
        asked = replace(asked, most_taken=None)
        left, part = self._all.difference(taken), {}
        for place, (tp, columns) in enumerate(self.read.items()):
            rows = [row for row in range(len(columns)) if (place, row) not in left]
            part[tp] = columns.only(np.array(rows, np.int64))
        return asked, part


def named(error: Exception) -> list[Fault]:
    if isinstance(error, RecordFailure) and error.failure.record is not None:
        return [Fault(one.failure, one) for one in (error, *error.others)]
    if isinstance(error, SparkSays) and error.failure.record is not None:
        return [Fault(error.failure, error)]
    return []


def of_data(error: Exception) -> bool:
    """True if a record may be the cause of an error that names none."""
    if isinstance(error, RecordFailure | SparkSays):
        return True
    if isinstance(error, EverflowError) and not isinstance(error, SerdeError):
        return False
    return isinstance(error, _OF_DATA)


def trial_of(step: TaskStep, trial: Trial) -> TaskStep:
    """The same operators, of which nothing comes, and that check what they read of stores."""

    def sink(request: BatchRequest, result: StepResult, sources: Sources) -> BatchResult:
        trial(request, result)
        return BatchResult(outcome=COMMITTED)

    return replace(step, sink=sink, stores=CheckedAccess.of(step.stores, step.stateful))


def stores_of(step: TaskStep) -> dict[str, str]:
    """The stores that it reads, each with the node that reads it: its owner, if that is among
    them."""
    ops = step.stateful
    readers = {spec.name: op.name for op in ops for spec in (*op.reads, *op.looks_up)}
    return readers | {spec.name: op.name for op in ops for spec in op.stores}


def _in_time(read: Mapping[TopicPartition, LogColumns]) -> list[tuple[int, int]]:
    """(partition's place, row) of all records, each partition's in its order, by time."""
    times, places, rows = [], [], []
    for at, columns in enumerate(read.values()):
        if len(columns):
            times.append(np.maximum.accumulate(columns.timestamps))
            places.append(np.full(len(columns), at, np.int64))
            rows.append(np.arange(len(columns), dtype=np.int64))
    if not times:
        return []
    place, row = np.concatenate(places), np.concatenate(rows)
    order = np.lexsort((row, place, np.concatenate(times)))
    return list(zip(place[order].tolist(), row[order].tolist(), strict=True))


def _prefix(
    request: BatchRequest,
    read: Mapping[TopicPartition, LogColumns],
    taken: Sequence[tuple[int, int]],
) -> tuple[BatchRequest, dict[TopicPartition, LogColumns]]:
    counts: Int64 = np.bincount([at for at, _ in taken], minlength=len(read)).astype(np.int64)
    part = {}
    ends = {tp: wanted.start for tp, wanted in request.ranges.items()}
    for (tp, columns), count in zip(read.items(), counts.tolist(), strict=True):
        end = int(columns.offsets[count]) if count < len(columns) else request.ranges[tp].end
        ends[tp] = end
        part[tp] = columns.before(end)
    # Not all records are there: no idle source moves on behind them, and none waits for others.
    return replace(request.ending(ends), log_ends=ends, waits=None, idle={}), part


def _halved(
    request: BatchRequest, read: Mapping[TopicPartition, LogColumns]
) -> tuple[BatchRequest, Mapping[TopicPartition, LogColumns]]:
    """The first half of each partition; at least a record of each. With ``stream.time=lowest`` the
    earlier half, as what was held back is read again whole."""
    if request.times is not None:
        reach = sum(map(len, read.values())) if request.most_taken is None else request.most_taken
        return replace(request, most_taken=max(1, reach // 2)), read
    halves = {tp: len(columns) // 2 for tp, columns in read.items()}
    return _until(
        request, read, {tp: int(read[tp].offsets[half]) for tp, half in halves.items() if half}
    )


def _until(
    request: BatchRequest,
    read: Mapping[TopicPartition, LogColumns],
    ends: Mapping[TopicPartition, int],
) -> tuple[BatchRequest, Mapping[TopicPartition, LogColumns]]:
    """What lies before these offsets; of other partitions all."""
    until = {tp: ends.get(tp, wanted.end) for tp, wanted in request.ranges.items()}
    return request.ending(until), {tp: columns.before(until[tp]) for tp, columns in read.items()}


def _exactly(
    request: BatchRequest,
    read: Mapping[TopicPartition, LogColumns],
    ends: Mapping[TopicPartition, int],
) -> tuple[BatchRequest, Mapping[TopicPartition, LogColumns]]:
    """What lies before these offsets, merged as if the logs ended there: all of it is consumed,
    once it is read."""
    nearer = {tp: min(end, request.ranges[tp].end) for tp, end in ends.items()}
    shorter, part = _until(request, read, nearer)
    waits = request.waits
    if waits is not None:
        waits = [tp for tp in waits if tp not in ends]
    return replace(shorter, log_ends={**shorter.log_ends, **ends}, waits=waits), part
