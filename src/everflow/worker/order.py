"""Puts records in order: those that a task reads, those that an operator gets, those that are
written (reference 1.6, D3; note 031).

Kafka Streams takes the partition whose head has the smallest timestamp. Over a batch that is a sort
by the running maximum of the timestamp inside each partition.

Kafka Streams forwards depth first: a result goes all its ways before the next result of the same
record. A step goes operator by operator, so `Order` puts what comes by several ways where the
original has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from everflow.records import (
    EdgeBatch,
    Int64,
    OffsetRange,
    TaskId,
    TopicPartition,
    partitions_in,
    rises,
)
from everflow.topology.arrival import DIGIT, Way, Ways
from everflow.topology.batches import BatchInput, appended, concat, empty_like, in_order
from everflow.topology.plan import AskOp, AssumedOp, NodeOp, SinkOp, StatefulOp, WriteOp
from everflow.topology.sources import Source, sources_of_logs
from everflow.worker.certain_times import CertainTimes

# --- what an operator gets ------------------------------------------------------------------------


Records = MutableMapping[int, EdgeBatch]
Paths = npt.NDArray[np.bytes_]
StatelessOp = NodeOp | AssumedOp | AskOp | SinkOp | WriteOp
MakingOp = StatefulOp | NodeOp | AssumedOp | AskOp

FIRST_ID = 1 << 40
"""A ``seq`` from here on is the number of a result whose path is kept, not a record's place."""
_RECORD_DIGITS, _RESULT_DIGITS, _BITS = 6, 4, 7


def _of_side(records: Records, op: StatefulOp, number: int) -> list[EdgeBatch]:
    """The records of a side, by slot, with what their entries were where the operator compares."""
    batches = [records[slot] for slot in op.sides[number]]
    if (old := op.old_sides.get(number)) is None:
        return batches
    (batch,) = batches  # a table's updates come one way
    return [replace(batch, old=records[old])]


class Order:
    """Orders results by the places of the records that brought them, then way by way; with ``ways``
    by paths as bytes: the record's place, then edges and numbers of results."""

    def __init__(self, records: Records, ways: Mapping[str, Ways]) -> None:
        self._records = records
        self._ways = ways
        self._kept: list[Paths] = []
        self._count = 0
        self._came: dict[str, Paths] = {}
        """Of each operator that runs, the paths on which its records came, by their ``seq``."""

    def sides(self, group: Sequence[StatefulOp]) -> list[list[EdgeBatch]]:
        """The records of each side of operators that run together; nothing for a processor that
        others hand their results to."""
        if group[0].name not in self._ways:
            return [
                [
                    in_order(concat(_of_side(self._records, op, number)))
                    if side
                    else empty_like(op.type.key, op.type.value)
                    for number, side in enumerate(op.sides)
                ]
                for op in group
            ]
        sides = [self._side(op, number) for op in group for number in range(len(op.sides))]
        paths = np.concatenate([path for side in sides for path in (side.put, side.came)])
        order = np.argsort(paths, kind="stable")
        self._came.update({op.name: paths[order] for op in group})
        places = iter(np.split(_inverse(order), np.cumsum([len(p) for s in sides for p in s[1:]])))
        ready = iter([side.placed(next(places), next(places)) for side in sides])
        return [[next(ready) for _ in op.sides] for op in group]

    def read(self, op: StatelessOp) -> EdgeBatch:
        batches = [self._records[slot] for slot in op.inputs]
        if op.name not in self._ways:
            return concat(batches)
        came = self._paths_of(batches, self._ways[op.name].sides[0])
        order = np.argsort(came, kind="stable")
        self._came[op.name] = came[order]
        return replace(appended(batches).take(order), seq=np.arange(len(order), dtype=np.int64))

    def keep(self, op: MakingOp, done: EdgeBatch) -> None:
        if op.name in self._ways and len(done):
            ways, paths = self._ways[op.name], self._origins(op, done.seq)
            paths = _added(paths, ways.member)
            if ways.several:
                paths = _joined(paths, _digits(_numbers(done.seq), _RESULT_DIGITS))
            begin = FIRST_ID + self._count
            self._kept.append(paths)
            self._count += len(paths)
            done = replace(
                done,
                seq=np.arange(begin, begin + len(paths), dtype=np.int64),
                put=None,
            )
        if isinstance(op, StatefulOp) and op.old is not None:
            assert done.old is not None
            self._records[op.old] = replace(done.old, seq=done.seq, put=None)
        self._records[op.output] = done if done.old is None else replace(done, old=None)

    def _side(self, op: StatefulOp, number: int) -> _Side:
        batches = _of_side(self._records, op, number)
        ways = self._ways[op.name].sides[number]
        came = self._paths_of(batches, ways)
        if not batches:
            return _Side(empty_like(op.type.key, op.type.value), _NOTHING, came)
        put = _NOTHING
        if op.operator.joins or number:
            put = np.concatenate(
                [
                    _without(self._path(batch.seq), way.table_bytes)
                    for batch, way in zip(batches, ways, strict=True)
                ]
            )
        if number and not op.operator.joins:
            put, came = _NOTHING, put  # it only looks the table up
        return _Side(appended(batches), put, came)

    def _paths_of(self, batches: Sequence[EdgeBatch], ways: Sequence[Way]) -> Paths:
        """The paths on which records of several ways come, one way behind the other."""
        paths = [
            _added(self._path(batch.seq), way.edges)
            for batch, way in zip(batches, ways, strict=True)
        ]
        return np.concatenate([_NOTHING, *paths])

    def _path(self, seqs: Int64) -> Paths:
        results = seqs >= FIRST_ID
        if results.all():
            return self._known()[seqs - FIRST_ID] if len(seqs) else _NOTHING
        return _digits(seqs, _RECORD_DIGITS)  # a slot has records or results

    def _origins(self, op: MakingOp, seqs: Int64) -> Paths:
        """The paths of the records that brought results; what a clock's call gave comes last."""
        came = self._came[op.name]
        clock = b"\xff" * _RECORD_DIGITS + _digits(np.array([op.output]), 2).tobytes()
        index = np.where(seqs < len(came), seqs, len(came))
        found: Paths = np.concatenate([came, np.array([clock])])[index]
        return found

    def _known(self) -> Paths:
        if len(self._kept) != 1:
            self._kept = [np.concatenate([_NOTHING, *self._kept])]
        return self._kept[0]


_NOTHING: Paths = np.array([], "S1")


class _Side(NamedTuple):
    """Records with the paths on which they ``came``; ``put``: from where on a table has them."""

    batch: EdgeBatch
    put: Paths
    came: Paths

    def placed(self, put: Int64, came: Int64) -> EdgeBatch:
        batch = replace(self.batch, seq=came, put=put if len(put) else None)
        return batch.take(np.argsort(came))


def _added(paths: Paths, edges: bytes) -> Paths:
    return _joined(paths, np.full(len(paths), edges, f"S{len(edges)}")) if edges else paths


def _joined(paths: Paths, tails: Paths) -> Paths:
    """Each path with its tail, all of which have the same length."""
    begins, behind = _matrix(paths), _matrix(tails)
    found = np.zeros((len(paths), begins.shape[1] + behind.shape[1]), np.uint8)
    found[:, : begins.shape[1]] = begins
    at = np.count_nonzero(begins, axis=1)
    found[np.arange(len(paths))[:, None], at[:, None] + np.arange(behind.shape[1])] = behind
    return _paths(found)


def _without(paths: Paths, last: int) -> Paths:
    if not last:
        return paths
    found = _matrix(paths).copy()
    found[np.arange(found.shape[1]) >= np.count_nonzero(found, axis=1)[:, None] - last] = 0
    return _paths(found)


def _digits(numbers: Int64, count: int) -> Paths:
    """Numbers as ``count`` bytes that sort as they do, none of which is 0."""
    shifts = np.arange(count - 1, -1, -1, dtype=np.int64) * _BITS
    found = (numbers[:, None] >> shifts) & (DIGIT - 1) | DIGIT
    return _paths(found.astype(np.uint8))


def _matrix(paths: Paths) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(paths).view(np.uint8).reshape(len(paths), paths.dtype.itemsize)


def _paths(matrix: npt.NDArray[np.uint8]) -> Paths:
    found: Paths = np.ascontiguousarray(matrix).view(f"S{matrix.shape[1]}").reshape(-1)
    return found


def _numbers(seqs: Int64) -> Int64:
    order = np.argsort(seqs, kind="stable")
    ranked = seqs[order]
    begins = np.flatnonzero(np.diff(ranked, prepend=ranked[:1] - 1))
    counted = np.arange(len(seqs)) - np.repeat(begins, np.diff([*begins, len(seqs)]))
    return counted[_inverse(order)]


def _inverse(order: Int64) -> Int64:
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found


# --- what a task reads and writes -----------------------------------------------------------------


class Merged(NamedTuple):
    """Records by slot, in merge order (``seq``), and the next offset to read of every partition."""

    batches: dict[int, EdgeBatch]
    consumed: dict[TopicPartition, int]


def merge_inputs(
    batch_input: BatchInput,
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
    merged = _merged_tasks(sources, ranges)
    if not merged:  # all records have their places, and all are taken
        consumed = {tp: wanted.end for tp, wanted in ranges.items()}
        return Merged(dict(batch_input.batches), consumed)
    total = len(batch_input.source)
    rank = np.arange(total, dtype=np.int64)
    kept = np.ones(total, dtype=bool)
    more = frozenset[TopicPartition]()
    if waits is not None:
        unread = (tp for tp, wanted in ranges.items() if wanted.end < log_ends[tp])
        more = frozenset((*unread, *waits))
    for partition, members in merged:
        rows = np.flatnonzero(
            (batch_input.partition == partition)
            & np.isin(batch_input.source, [source.index for source in members])
        )
        if not len(rows):
            continue
        effective = _running_maximum(
            batch_input.timestamp[rows],
            batch_input.source[rows],
            [source.index for source in members],
        )
        order = np.lexsort((rows, batch_input.source[rows], effective))
        rank[rows[order]] = np.sort(rows)
        waiting = [source.index for source in members if source.log(partition) in more]
        kept[rows] &= _before_cut(batch_input.source[rows], effective, waiting)
    return Merged(_placed(batch_input, rank, kept), _consumed(batch_input, sources, ranges, kept))


def merge_by_certain_times(batch_input: BatchInput, certain: CertainTimes) -> Merged:
    """The same with ``stream.time=lowest`` (note 076)."""
    placed = _placed(batch_input, certain.rank, certain.kept)
    in_turn = {slot: in_order(batch) for slot, batch in placed.items()}
    return Merged(in_turn, dict(certain.consumed))


def _placed(batch_input: BatchInput, rank: Int64, kept: np.ndarray) -> dict[int, EdgeBatch]:
    batches = {
        one: replace(batch, seq=rank[batch_input.rows[one]])
        for one, batch in batch_input.batches.items()
    }
    if not kept.all():
        for slot, batch in batches.items():
            if not (mine := kept[batch_input.rows[slot]]).all():
                batches[slot] = batch.take(np.flatnonzero(mine))
    return batches


def merge_tasks(batch: EdgeBatch) -> EdgeBatch:
    """Records of several tasks, each task's in its order, by time, as Kafka Streams' threads do.

    Written task by task, the whole backlog of one would come before the next one's first record,
    and a window behind a re-key would drop that record as late.
    """
    if rises(batch.timestamp):
        return batch
    tasks = partitions_in(batch.partition)
    if len(tasks) < 2:
        return batch
    effective = _running_maximum(batch.timestamp, batch.partition, tasks)
    if rises(effective):
        return batch
    return batch.take(np.argsort(effective, kind="stable"))


def _merged_tasks(
    sources: tuple[Source, ...], partitions: Iterable[TopicPartition]
) -> list[tuple[int, list[Source]]]:
    """(partition, sources) of every task in the batch that reads more than one log."""
    if not any(source.merged for source in sources):
        return []
    by_task: dict[TaskId, list[Source]] = {}
    for tp, source in sources_of_logs(sources, partitions).items():
        if source.merged:
            by_task.setdefault(source.task(tp), []).append(source)
    return [(task.partition, found) for task, found in by_task.items() if len(found) > 1]


def _running_maximum(timestamp: Int64, group: np.ndarray, groups: Iterable[int]) -> Int64:
    effective = np.empty(len(timestamp), dtype=np.int64)
    for one in groups:
        mine = group == one
        effective[mine] = np.maximum.accumulate(timestamp[mine])
    return effective


def _before_cut(source: np.ndarray, effective: Int64, waiting: Iterable[int]) -> np.ndarray:
    """True for a task's records up to the last one of the input that runs dry first. ``waiting``:
    the inputs of which the log has more. Every batch moves on: `plan_ranges` gives each of those at
    least one offset."""
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
    batch_input: BatchInput,
    sources: tuple[Source, ...],
    ranges: Mapping[TopicPartition, OffsetRange],
    kept: np.ndarray,
) -> dict[TopicPartition, int]:
    """A partition is consumed up to its first record that was cut."""
    consumed = {tp: wanted.end for tp, wanted in ranges.items()}
    for row in np.flatnonzero(~kept):
        tp = sources[int(batch_input.source[row])].log(int(batch_input.partition[row]))
        consumed[tp] = min(consumed[tp], int(batch_input.offset[row]))
    return consumed
