"""Aggregates of a grouped table: what an entry was is taken back, what it is now is added.

Built-in ones keep what can be taken back: counts and sums. What Kafka Streams' adder and subtractor
get is the same, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow import serdes
from everflow.errors import TopologyError
from everflow.operators.agg import Aggregator, result_type
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.fold import StateColumn, valid
from everflow.operators.grouping import Tasks
from everflow.records import EdgeBatch, TasksResult
from everflow.serdes import Serde
from everflow.topology.graph import Inputs

REVERSIBLE = ("count", "sum", "avg")


@dataclass(frozen=True, kw_only=True)
class TableAggregateSpec(AggregateSpec):
    """Counts, sums and means of the entries of each group; make it with `of_table`.

    A record is what a change adds, its ``old`` what it takes back; one without an entry is null. A
    group that has lost all its entries stays, with 0, null and null. Means and sums of floats keep
    what adding and taking back leaves of rounding; a sum that has met NaN or an infinity is not a
    number any more.
    """

    old_sides: ClassVar[tuple[int, ...]] = (0,)
    joins: ClassVar[bool] = True

    @staticmethod
    def of_table(
        store: str,
        key_serde: Serde,
        aggregators: Sequence[Aggregator],
        names: Sequence[str] | None,
        input_type: pa.DataType,
    ) -> TableAggregateSpec:
        """As `AggregateSpec.of`. TopologyError also for an aggregate that cannot take back."""
        labels = ("value",) if names is None else tuple(names)
        columns: list[StateColumn] = []
        results: list[pa.DataType] = []
        for place, (label, one) in enumerate(zip(labels, aggregators, strict=True)):
            if one.kind not in REVERSIBLE:
                raise TopologyError(
                    f"agg.{one.kind} cannot take back what an entry was; a grouped table has "
                    f"{', '.join(f'agg.{kind}' for kind in REVERSIBLE)}, or functions: "
                    "aggregate(initializer=..., adder=..., subtractor=..., returns=...)"
                )
            given = None if one.column is None else input_type.field(one.column).type
            results.append(result_type(one, given))
            if one.kind != "count":
                columns.append(StateColumn(f"{label}.sum", results[-1], "sum", f"s{place}"))
            columns.append(StateColumn(f"{label}.count", pa.int64(), "sum", f"n{place}"))
        state = pa.struct([(column.name, column.type) for column in columns])
        bare = names is None
        return TableAggregateSpec(
            store=store,
            key_serde=key_serde,
            value_serde=serdes.long() if bare and len(columns) == 1 else serdes.packed(state),
            aggregators=tuple(aggregators),
            names=None if bare else labels,
            columns=tuple(columns),
            result=results[0] if bare else pa.struct(list(zip(labels, results, strict=True))),
        )

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: the last result of each group, or that of each change."""
        (right,) = inputs.sides
        assert right.old is not None
        both = self._signed(right.old, right)
        views = {partition: views[self.store] for partition, views in inputs.stores.items()}
        done = self._process(both, Tasks(both.partition, views, inputs.stream_times))
        done.dropped.pop("null-value", None)  # a side of a change that is none
        if self.emit_every_update and len(done.output):
            last = np.flatnonzero(np.diff(done.output.seq, append=-1) != 0)
            done.output = done.output.take(last)
        return done

    def _signed(self, left: EdgeBatch, right: EdgeBatch) -> EdgeBatch:
        """What is taken back as negative values, and behind it what is added, change by change."""
        rows = np.repeat(np.arange(len(right), dtype=np.int64), 2)
        columns: dict[str, pa.Array] = {}
        for place, one in enumerate(self.aggregators):
            inputs = [
                side.value if one.column is None else _field(side, one.column)
                for side in (left, right)
            ]
            there = [valid(column) for column in inputs]
            signs = np.stack([-there[0].astype(np.int64), there[1].astype(np.int64)], axis=1)
            columns[f"n{place}"] = pa.array(signs.reshape(-1))
            if one.kind != "count":
                type_ = next(c.type for c in self.columns if c.field == f"s{place}")
                minus, plus = (column.cast(type_, safe=False) for column in inputs)
                mixed = pa.concat_arrays([pc.negate(minus), plus])
                at = np.arange(2 * len(right)).reshape(2, -1).T.reshape(-1)
                columns[f"s{place}"] = mixed.take(pa.array(at))
        present = np.stack([valid(left.value), valid(right.value)], axis=1).reshape(-1)
        value = pa.StructArray.from_arrays(
            list(columns.values()), names=list(columns), mask=pa.array(~present)
        )
        return right.take(rows).with_columns(value=value)

    def finish(self, state: list[pa.Array]) -> pa.Array:
        """The result column of the state columns."""
        columns, at = [], 0
        for one, type_ in zip(self.aggregators, self._result_types(), strict=True):
            if one.kind == "count":
                columns.append(state[at])
                at += 1
                continue
            total, count = state[at], state[at + 1]
            at += 2
            some = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)
            if one.kind == "avg":
                columns.append(pc.divide(total, some.cast(pa.float64())))
            else:
                columns.append(pc.if_else(some.is_valid(), total, pa.scalar(None, type_)))
        if self.names is None:
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=list(self.result))

    def _result_types(self) -> list[pa.DataType]:
        return [self.result] if self.names is None else [field.type for field in self.result]


def _field(side: EdgeBatch, name: str) -> pa.Array:
    """A field of the side's inputs, null where the side has no entry."""
    names = [field.name for field in side.value.type]
    return side.value.flatten()[names.index(name)]


@dataclass(frozen=True)
class PythonTableAggregator:
    """``subtractor(key, old, aggregate)``, then ``adder(key, new, aggregate)``, of a change ``{new,
    old}``; the aggregate begins with ``initializer()``. None = the aggregate is deleted."""

    initializer: Callable[[], Any]
    adder: Callable[[Any, Any, Any], Any]
    subtractor: Callable[[Any, Any, Any], Any]

    def __call__(self, key: Any, change: Any, aggregate: Any) -> Any:
        """The next aggregate; ``aggregate`` None = there is none yet."""
        if change["old"] is not None and aggregate is not None:
            aggregate = self.subtractor(key, change["old"], aggregate)
        if change["new"] is None:
            return aggregate
        return self.adder(
            key, change["new"], self.initializer() if aggregate is None else aggregate
        )


@dataclass(frozen=True)
class PythonTableReducer:
    """``subtractor(aggregate, old)``, then ``adder(aggregate, new)``; the first value is taken as
    it is. None = deleted."""

    adder: Callable[[Any, Any], Any]
    subtractor: Callable[[Any, Any], Any]

    def __call__(self, key: Any, change: Any, aggregate: Any) -> Any:
        """The next aggregate; ``aggregate`` None = there is none yet."""
        if change["old"] is not None and aggregate is not None:
            aggregate = self.subtractor(aggregate, change["old"])
        if change["new"] is None:
            return aggregate
        return change["new"] if aggregate is None else self.adder(aggregate, change["new"])
