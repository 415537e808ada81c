"""Which of the records that fail together fail whatever becomes of the others (note 041).

A record is left out for what it does in a batch in which those before it are left out. What it
fails on may be what another one that fails has left in a store: then it is judged in the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa

from everflow.operators.aggregates.aggregate import (
    AggregateSpec,
    PythonAggregateSpec,
    TableAggregateSpec,
)
from everflow.operators.joins.stream_table import StreamTableJoin
from everflow.operators.joins.table_table import TableTableJoin
from everflow.operators.table import TableSpec
from everflow.records import EdgeBatch, Int32, Int64, TasksResult
from everflow.runtime.step.step_functions import RecordFailure
from everflow.topology.graph import ProcessorOperator
from everflow.topology.physical_plan import Source, StatefulOp

_BY_KEY = (
    AggregateSpec,
    PythonAggregateSpec,
    StreamTableJoin,
    TableAggregateSpec,
    TableSpec,
    TableTableJoin,
)
"""Operators in which a record changes what comes of records with its key, and of no others, if no
record is too late."""
_Place = tuple[int, int, int]
"""Source, partition, offset."""


class _Given(NamedTuple):
    """Records without their values, which nobody is to hold any longer."""

    key: pa.Array
    source: Int32
    partition: Int32
    offset: Int64

    def places(self) -> Iterator[_Place]:
        columns = (self.source, self.partition, self.offset)
        return zip(*(column.tolist() for column in columns), strict=True)


class RanOperator(NamedTuple):
    """An operator that has run in this run of the batch: its records, and whether one was late."""

    op: StatefulOp
    sides: Sequence[_Given]
    late: bool

    @staticmethod
    def of(op: StatefulOp, sides: Sequence[EdgeBatch], done: TasksResult) -> RanOperator:
        given = [_Given(one.key, one.source, one.partition, one.offset) for one in sides]
        return RanOperator(op, given, "late" in done.dropped)

    @property
    def writes(self) -> bool:
        """Whether what it does with a record may change what it does with those behind."""
        return remembers(self.op) and any(len(side.offset) for side in self.sides)

    @property
    def links(self) -> bool:
        """Whether it does something else with a record for what came with others."""
        updates = any(len(side.offset) for side in self.sides[1:])
        return self.writes or (updates and bool(self.op.reads))

    def linked(self) -> Iterator[tuple[str, _Place]]:
        """Its records; those with the same text may change what comes of each other."""
        by_key = type(self.op.operator) in _BY_KEY and not self.late
        for side in self.sides:
            texts = map(str, side.key.to_pylist()) if by_key else repeat("", len(side.offset))
            yield from zip(texts, side.places(), strict=True)


def remembers(op: StatefulOp) -> bool:
    """Whether it keeps something of a record: in a store, or in a processor's fields."""
    return bool(op.stores) or isinstance(op.operator, ProcessorOperator)


def sees_one_record(op: StatefulOp) -> bool:
    """Whether it makes a value of each record alone, as a function does."""
    return op.operator.asked is not None


def independent(
    failures: Sequence[RecordFailure],
    ran: Sequence[RanOperator],
    sources: Sequence[Source],
    function: bool,
) -> tuple[RecordFailure, ...]:
    """Those of ``failures``, which are in order, that fail without the others, too: always the
    first. ``ran``: what has run before; ``function``: they fail in what sees one record alone."""
    indexes = {source.topic: source.index for source in sources}
    places = [_place(indexes, failure) for failure in failures]
    wanted = set(places)
    kept = {
        place
        for one in ran
        if one.writes
        for side in one.sides
        for place in side.places()
        if place in wanted
    }
    if not kept:
        return tuple(failures)
    linking = [one for one in ran if one.links]
    group = _groups(linking)
    found: list[RecordFailure] = []
    changed = set[_Place]()
    for failure, place in zip(failures, places, strict=True):
        mine, alone = group.get(place, (place, True))
        # What comes of the others of its group may go on to any other one, in a second operator.
        if not changed or (function and len(linking) == 1 and mine not in changed):
            found.append(failure)
        if place in kept and not alone:
            changed.add(mine)
    return tuple(found)


def _groups(linking: Sequence[RanOperator]) -> dict[_Place, tuple[_Place, bool]]:
    """Of each record one of its group, and whether there is no other one in it."""
    above: dict[_Place, _Place] = {}

    def top(place: _Place) -> _Place:
        while (higher := above[place]) != place:
            above[place] = above[higher]
            place = above[place]
        return place

    for one in linking:
        first: dict[str, _Place] = {}
        for text, place in one.linked():
            above.setdefault(place, place)
            above[top(place)] = top(first.setdefault(text, place))
    sizes: dict[_Place, int] = {}
    for place in above:
        sizes[top(place)] = sizes.get(top(place), 0) + 1
    return {place: (top(place), sizes[top(place)] == 1) for place in above}


def _place(indexes: Mapping[str, int], failure: RecordFailure) -> _Place:
    record = failure.failure.record
    assert record is not None
    return indexes[record.topic], record.partition, record.offset
