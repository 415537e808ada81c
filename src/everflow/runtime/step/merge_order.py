"""Chooses the order of records: those a task takes, and those that tasks write (reference 1.6, D3).

Kafka Streams takes the partition whose head has the smallest timestamp. Over a batch that is a sort
by the running maximum of the timestamp inside each partition: a record that is out of order inside
its partition follows its predecessor at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from everflow.records import EdgeBatch, Int64, OffsetRange, TopicPartition
from everflow.topology.batches import BatchInput
from everflow.topology.plan import Source


class Merged(NamedTuple):
    """A hop's records by slot, in merge order (``seq``), and the next offset to read of every
    partition."""

    batches: dict[int, EdgeBatch]
    consumed: dict[TopicPartition, int]


def merge_inputs(
    hop: BatchInput,
    sources: tuple[Source, ...],
    ranges: Mapping[TopicPartition, OffsetRange],
    log_ends: Mapping[TopicPartition, int],
    waits: Collection[TopicPartition] | None = (),
) -> Merged:
    """Give every record its place in its task's merge order and say what is consumed.

    Where a task has several inputs, the batch ends where an input that has more records in the log
    runs dry: records behind that point are taken out of every slot and stay unconsumed (scenario
    16). ``waits``: inputs where it ends, too, as more may come to them; None: it ends nowhere
    (``max.task.idle.ms``).
    """
    total = len(hop.source)
    rank = np.arange(total, dtype=np.int64)
    kept = np.ones(total, dtype=bool)
    more = frozenset[TopicPartition]()
    if waits is not None:
        unread = (tp for tp, wanted in ranges.items() if wanted.end < log_ends[tp])
        more = frozenset((*unread, *waits))
    for partition, members in _merged_tasks(sources, ranges):
        rows = np.flatnonzero(
            (hop.partition == partition) & np.isin(hop.source, [source.index for source in members])
        )
        if not len(rows):
            continue
        effective = _running_maximum(
            hop.timestamp[rows], hop.source[rows], [source.index for source in members]
        )
        order = np.lexsort((rows, hop.source[rows], effective))
        rank[rows[order]] = np.sort(rows)
        waiting = [
            source.index for source in members if TopicPartition(source.topic, partition) in more
        ]
        kept[rows] &= _before_cut(hop.source[rows], effective, waiting)
    return Merged(_reordered(hop, rank, kept), _consumed(hop, sources, ranges, kept))


def merge_tasks(batch: EdgeBatch) -> EdgeBatch:
    """Records of several tasks, each task's in its order, in the order in which they are written:
    by time, too.

    A thread of Kafka Streams goes round its tasks record by record, so what they write to one topic
    is about as old. Written task by task, the whole backlog of one would come before the next one's
    first record, and a window behind a re-key would drop that record as late.
    """
    tasks = np.unique(batch.partition)
    if len(tasks) < 2:
        return batch
    effective = _running_maximum(batch.timestamp, batch.partition, tasks)
    if (np.diff(effective) >= 0).all():
        return batch
    return batch.take(np.argsort(effective, kind="stable"))


def _merged_tasks(
    sources: tuple[Source, ...], partitions: Iterable[TopicPartition]
) -> list[tuple[int, list[Source]]]:
    """(partition, sources) of every task in the batch that reads more than one topic."""
    by_task: dict[tuple[int, int], list[Source]] = {}
    by_topic = {source.topic: source for source in sources}
    for tp in partitions:
        source = by_topic[tp.topic]
        if source.merged:
            by_task.setdefault((source.subtopology, tp.partition), []).append(source)
    return [(partition, found) for (_, partition), found in by_task.items() if len(found) > 1]


def _running_maximum(timestamp: Int64, group: np.ndarray, groups: Iterable[int]) -> Int64:
    """The highest time so far in each row's group; ``groups`` are all there are."""
    effective = np.empty(len(timestamp), dtype=np.int64)
    for one in groups:
        mine = group == one
        effective[mine] = np.maximum.accumulate(timestamp[mine])
    return effective


def _before_cut(source: np.ndarray, effective: Int64, waiting: Iterable[int]) -> np.ndarray:
    """True for a task's records up to the last one of the input that runs dry first. ``waiting``:
    the inputs of which the log has more; the others bound nothing.

    Every batch moves on: either that input is consumed whole, or one that showed no record has its
    range behind it (`plan_ranges` gives each waiting input at least one offset)."""
    cut: tuple[int, int] | None = None
    for index in waiting:
        mine = source == index
        if not mine.any():
            # Its next record is still unknown (markers only in its range, or no range): the others
            # wait for one batch.
            return np.zeros(len(source), dtype=bool)
        last = (int(effective[mine][-1]), index)
        cut = last if cut is None else min(cut, last)
    if cut is None:
        return np.ones(len(source), dtype=bool)
    time, index = cut
    before: np.ndarray = (effective < time) | ((effective == time) & (source <= index))
    return before


def _consumed(
    hop: BatchInput,
    sources: tuple[Source, ...],
    ranges: Mapping[TopicPartition, OffsetRange],
    kept: np.ndarray,
) -> dict[TopicPartition, int]:
    """A partition is consumed up to its first record that was cut."""
    consumed = {tp: wanted.end for tp, wanted in ranges.items()}
    topics = {source.index: source.topic for source in sources}
    for row in np.flatnonzero(~kept):
        tp = TopicPartition(topics[int(hop.source[row])], int(hop.partition[row]))
        consumed[tp] = min(consumed[tp], int(hop.offset[row]))
    return consumed


def _reordered(hop: BatchInput, rank: Int64, kept: np.ndarray) -> dict[int, EdgeBatch]:
    """The slots' records with their ranks, without those that were cut."""
    ranked = {slot: replace(batch, seq=rank[hop.rows[slot]]) for slot, batch in hop.batches.items()}
    if kept.all():
        return ranked
    return {
        slot: batch.take(np.flatnonzero(kept[hop.rows[slot]])) for slot, batch in ranked.items()
    }
