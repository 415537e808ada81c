"""Runs a micro-batch without the records that it fails on (note 041).

Everything up to the sink is computation: it may be run again, in this very worker, without the
record that failed, before anything of the batch was written. What the failure does not name is
looked for by prefixes: the record is the last one of the shortest prefix that fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from everflow.errors import EverflowError, RecordRefusedError, RecordTooLargeError
from everflow.kafka.reading.record_columns import LogColumns
from everflow.records import Int64, TopicPartition
from everflow.runtime.commit.batch import (
    COMMITTED,
    BadRecord,
    BatchRequest,
    BatchResult,
)
from everflow.runtime.step.checked_stores import CheckedAccess, damage_in
from everflow.runtime.step.spark_failure import failure_of_said
from everflow.runtime.step.step_failure import (
    SparkSays,
    failure_of,
    serde_outage,
)
from everflow.runtime.step.step_functions import RecordFailure
from everflow.runtime.step.task_step import StepResult, TaskStep
from everflow.runtime.step.timings import timed
from everflow.runtime.worker.large_records import (
    largest_entry,
    refused_cure,
    times_of_entries,
)
from everflow.runtime.worker.log_decoder import LogDecoder
from everflow.runtime.worker.set_aside import Fault, Judge
from everflow.serdes import SerdeError
from everflow.topology.hops import HopInput
from everflow.topology.known_results import KnownResults
from everflow.topology.physical_plan import Source

HALVED_AFTER = 12
"""So many runs of a batch that found another record each, and it is made half as large: of records
that all fail, each run would find one."""
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
"""What an operator raises because of what a record holds, or an entry of a store. (No memory, no
disk, a broker's errors are nobody's record.)"""

_T = TypeVar("_T")
Run = Callable[[BatchRequest, HopInput, "Trial | None"], _T]
"""Computes a batch; the third says that nothing may come of it (`trial_of`)."""


class Trial(NamedTuple):
    """A run of which nothing may come. It fails where an entry for changelog ``topic`` has more
    than ``most`` bytes (None: sizes do not matter), or one of these ``times``."""

    topic: str = ""
    most: int | None = None
    times: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Isolated:
    """One decoded micro-batch, and how it is computed. ``stores``: those that it reads, and for
    each who does; ``timings`` get how long decoding takes (ms)."""

    decoder: LogDecoder
    stores: Mapping[str, str] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    known: KnownResults = field(default_factory=KnownResults)
    """What functions gave in the runs of the batch so far: none is called twice for a record."""

    def run(
        self,
        request: BatchRequest,
        read: Mapping[TopicPartition, LogColumns],
        compute: Run[_T],
    ) -> _T:
        """What ``compute`` makes of the batch, without the records that their handlers leave out;
        perhaps of its beginning only. Raises what it fails with that is of no record, or of one
        that stops the instance: then with its record, where that can be found. DamagedEntryError
        where a store is to blame."""
        judge = Judge.of(self.decoder.handlers, request)
        runs = 0
        while True:
            try:
                return compute(request, self._decoded(read, judge), None)
            except RecordTooLargeError as error:
                # The gate has answered, perhaps: whose fault it is counts for the next attempt.
                found = self._enlarging(error, request, read, judge, compute)
                if found is None:
                    raise
                raise found from error
            except RecordRefusedError as error:
                late = self._untimely(error, request, read, judge, compute)
                if late is None:
                    raise
                raise late from error
            except Exception as error:
                if (away := serde_outage(error)) is not None:
                    raise away from error
                faults = named(error)
                if faults and self._unsure(error):
                    # Its record may only have the key of an entry that cannot be read, and others
                    # may fail as it does.
                    trial = self._failing(None, request, read, judge, compute, Trial())
                    faults = (named(trial) if trial is not None else []) or faults
                faults = faults or self._searched(error, request, read, judge, compute)
                if not faults:
                    raise
                for fault in faults:
                    if judge.in_vain(fault):
                        culprit = fault.cause or error
                        raise culprit from culprit.__cause__
                fresh = [judge.set_aside(fault) for fault in faults]
                if not any(fresh):
                    raise  # it fails although its record is left out
            runs += 1
            if runs % HALVED_AFTER == 0:
                request, read = _halved(request, read)

    def _unsure(self, error: Exception) -> bool:
        """Whether a run on stores that are checked may tell more than the ``error``."""
        if not isinstance(error, RecordFailure):
            return bool(self.stores)
        return not error.before_state and (bool(self.stores) or error.searchable)

    def _decoded(self, read: Mapping[TopicPartition, LogColumns], judge: Judge) -> HopInput:
        with timed(self.timings, "decode"):
            return replace(self.decoder.run(read, judge), known=self.known)

    def _searched(
        self,
        error: Exception,
        request: BatchRequest,
        read: Mapping[TopicPartition, LogColumns],
        judge: Judge,
        compute: Run[_T],
    ) -> list[Fault]:
        """The record for which a batch fails with an error that names none; empty where it is no
        record's: nothing of it fails alone, or it fails without any."""
        if not of_data(error):
            return []
        found = self._shortest(Trial(), request, read, judge, compute)
        if found is None:
            return []
        place, cause = found
        if known := named(cause):
            return known
        if not of_data(cause):
            return []
        failure = RecordFailure(place, None, cause)
        failure.__cause__ = cause
        return [Fault(failure.failure, failure)]

    def _enlarging(
        self,
        error: RecordTooLargeError,
        request: BatchRequest,
        read: Mapping[TopicPartition, LogColumns],
        judge: Judge,
        compute: Run[_T],
    ) -> RecordTooLargeError | None:
        """``error``, which is about an entry of a store, with the record that has made the entry
        too large; None where that is not known."""
        store = _store_of(request, error.topics)
        if error.place is not None or error.limit is None or store is None:
            return None
        trial = Trial(error.topics[0], error.limit)
        found = self._shortest(trial, request, read, judge, compute)
        if found is None or not isinstance(found[1], RecordTooLargeError):
            return None
        record = replace(found[0], node=self.stores.get(store, found[0].node))
        text = (
            f"{error}\n  Record {'-'.join(map(str, record.place[:2]))}@{record.offset} has made it "
        )
        return RecordTooLargeError(
            f"{text}so large.",
            topics=error.topics,
            limit=error.limit,
            place=(*record.place, record.node or ""),
        )

    def _untimely(
        self,
        error: RecordRefusedError,
        request: BatchRequest,
        read: Mapping[TopicPartition, LogColumns],
        judge: Judge,
        compute: Run[_T],
    ) -> RecordRefusedError | None:
        """``error``, which is about entries of a store whose times their changelog does not take,
        with the records that have given them those, some of them where there are many; None where
        that is not known."""
        store = _store_of(request, error.topics)
        if error.place is not None or not error.untimely or store is None:
            return None
        trial = Trial(error.topics[0], times=error.times)
        found: list[RecordRefusedError] = []
        while len(found) < HALVED_AFTER:
            one = self._shortest(trial, request, read, judge, compute)
            if one is None or not isinstance(one[1], RecordRefusedError):
                break
            record = replace(one[0], node=self.stores.get(store, one[0].node))
            time_ms = min(one[1].times)
            text = (
                f"{error}\n  Record {'-'.join(map(str, record.place[:2]))}@{record.offset} gives "
                f"an entry of store {store} that time.\n  "
                f"{refused_cure(error, trial.topic, time_ms)}"
            )
            place = (*record.place, record.node or "")
            told = RecordRefusedError(
                text, topics=error.topics, records=error.records, untimely=True, place=place
            )
            found.append(told)
            fault = Fault(failure_of(told), told)
            if judge.in_vain(fault) or not judge.set_aside(fault):
                break
        if not found:
            return None
        found[0].others = tuple(found[1:])
        return found[0]

    def _shortest(
        self,
        trial: Trial,
        request: BatchRequest,
        read: Mapping[TopicPartition, LogColumns],
        judge: Judge,
        compute: Run[_T],
    ) -> tuple[BadRecord, Exception] | None:
        """The last record of the shortest beginning that fails, and what that fails with; None
        where all succeeds, or no records at all fail."""
        order = _in_time(read)

        def failing(count: int) -> Exception | None:
            return self._failing(order[:count], request, read, judge, compute, trial)

        good, bad = 0, len(order)
        if failing(0) is not None or (cause := failing(bad)) is None:
            return None
        while bad - good > 1:
            middle = (good + bad) // 2
            found = failing(middle)
            if found is None:
                good = middle
            else:
                bad, cause = middle, found
        at, row = order[good]
        tp, columns = list(read.items())[at]
        node = _node(self.decoder.sources, tp)
        return BadRecord(tp.topic, tp.partition, int(columns.offsets[row]), node), cause

    def _failing(
        self,
        taken: Sequence[tuple[int, int]] | None,
        request: BatchRequest,
        read: Mapping[TopicPartition, LogColumns],
        judge: Judge,
        compute: Run[_T],
        trial: Trial,
    ) -> Exception | None:
        """What a trial of these records (None: all) fails with. DamagedEntryError."""
        asked, part = _prefix(request, read, _in_time(read) if taken is None else taken)
        try:
            compute(asked, self._decoded(part, judge), trial)
        except Exception as found:
            if (damage := damage_in(found)) is not None:
                raise damage from damage.__cause__
            return found
        return None


def named(error: Exception) -> list[Fault]:
    """The records that ``error`` names."""
    if isinstance(error, RecordFailure) and error.failure.record is not None:
        return [Fault(one.failure, one) for one in (error, *error.others)]
    if isinstance(error, SparkSays) and error.failure.record is not None:
        said = failure_of_said(error.failure)
        if said.kind == "column" and said.record is not None:
            return [Fault(replace(said, exception=said.error.partition(":")[0]), error)]
    return []


def of_data(error: Exception) -> bool:
    """Whether a record may be the reason of an error that names none."""
    if isinstance(error, RecordFailure | SparkSays):
        return True
    if isinstance(error, EverflowError) and not isinstance(error, SerdeError):
        return False
    return isinstance(error, _OF_DATA)


def trial_of(step: TaskStep, trial: Trial) -> TaskStep:
    """The same operators, of which nothing comes, and that look at what they read of stores."""
    return replace(
        step,
        sink=partial(_weighed, trial),
        stores=CheckedAccess.of(step.stores, step.stateful),
    )


def stores_of(step: TaskStep) -> dict[str, str]:
    """The stores that it reads, and for each who does: its owner, where that is one of its
    operators."""
    ops = step.stateful
    readers = {spec.name: op.name for op in ops for spec in (*op.reads, *op.looks_up)}
    return readers | {spec.name: op.name for op in ops for spec in op.stores}


def _weighed(
    trial: Trial, request: BatchRequest, result: StepResult, sources: tuple[Source, ...]
) -> BatchResult:
    """A sink of which nothing comes."""
    if trial.times:
        met = trial.times.intersection(times_of_entries(request, result, trial.topic).tolist())
        if met:
            records = frozenset((None, None, time) for time in met)
            raise RecordRefusedError("its time", topics=(trial.topic,), records=records)
    if trial.most is not None:
        size = largest_entry(request, result, trial.topic)
        if size > trial.most:
            raise RecordTooLargeError(f"{size} bytes", topics=(trial.topic,), limit=trial.most)
    return BatchResult(outcome=COMMITTED)


def _store_of(request: BatchRequest, topics: tuple[str, ...]) -> str | None:
    """Whose changelog alone ``topics`` are."""
    stores = (one for task in request.tasks for one in task.stores.items())
    return next((name for name, place in stores if topics == (place.changelog,)), None)


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
    """The batch of these records alone, as if there were no others."""
    counts: Int64 = np.bincount([at for at, _ in taken], minlength=len(read)).astype(np.int64)
    part = {}
    ends = {tp: wanted.start for tp, wanted in request.ranges.items()}
    for (tp, columns), count in zip(read.items(), counts.tolist(), strict=True):
        end = int(columns.offsets[count]) if count < len(columns) else request.ranges[tp].end
        ends[tp] = end
        part[tp] = columns.before(end)
    # It is not all there is: nobody's time is moved behind it.
    return replace(request.ending(ends), log_ends=ends, waits=None, idle={}), part


def _halved(
    request: BatchRequest, read: Mapping[TopicPartition, LogColumns]
) -> tuple[BatchRequest, Mapping[TopicPartition, LogColumns]]:
    """The first half of each partition; at least a record of each."""
    ends = {tp: wanted.end for tp, wanted in request.ranges.items()}
    for tp, columns in read.items():
        half = len(columns) // 2
        if half:
            ends[tp] = int(columns.offsets[half])
    return request.ending(ends), {tp: columns.before(ends[tp]) for tp, columns in read.items()}


def _node(sources: tuple[Source, ...], tp: TopicPartition) -> str:
    return next(source.node for source in sources if source.topic == tp.topic)
