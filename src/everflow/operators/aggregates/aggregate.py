"""Computes built-in aggregates of grouped streams, whole or in time windows, in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow import serdes
from everflow.errors import TopologyError
from everflow.operators.agg import Aggregator, precision_of, result_type
from everflow.operators.aggregates.folds import (
    BESIDE,
    ListFullError,
    estimates,
    fold_columns,
    pack,
    unpack,
)
from everflow.operators.fold import Bounds, StateColumn, valid
from everflow.operators.grouping import Groups, KeyedOperator, Stored, Tasks, group, read, result
from everflow.operators.user_code import UserFunctionError, function_failure, require_users
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder, decode_present, encode_each, value_reader
from everflow.serdes.schema import storable
from everflow.serdes.windowed import python_keys
from everflow.topology.graph import Inputs
from everflow.windows import TimeWindows


class Folded(NamedTuple):
    """The groups of a batch behind its records: stored bytes and times (ms) of each; and what is
    shown, with its times, of each group or, where every update is emitted, of each contribution."""

    entries: pa.Array
    times: Int64
    shown: pa.Array
    shown_times: Int64


class GroupAggregate(KeyedOperator):
    """Aggregates per key, or per key and time window. Whole streams skip null keys and null values;
    windows skip null keys only, so a windowed ``count()`` counts null values, as in Kafka Streams.
    A result carries max(record's, stored) time."""

    emit_every_update: bool = False

    def _process(self, batch: EdgeBatch, tasks: Tasks) -> TasksResult:
        skips = self.window is None
        groups = group(
            batch, self.key_serde, self.window, tasks, store=self.store, skip_null_values=skips
        )
        return self.folded(batch, groups, tasks)

    def folded(self, batch: EdgeBatch, groups: Groups, tasks: Tasks) -> TasksResult:
        """Folds the records into the stored aggregates; the last result per group, or every one."""
        done = self._fold(batch, groups, read(groups, tasks.stores, self.value_serde))
        if self.emit_every_update:
            at, shown, times = np.arange(len(groups.rows)), done.shown, done.shown_times
        else:
            order = np.argsort(groups.last)
            at, times = groups.last[order], done.shown_times[order]
            shown = done.shown.take(pa.array(order))
        return result(
            batch,
            groups,
            groups.changes(self.store, done.entries.to_pylist(), done.times),
            at=at,
            values=shown,
            timestamps=times,
            window=self.window,
        )

    def _fold(self, batch: EdgeBatch, groups: Groups, stored: Stored) -> Folded:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AggregateSpec(GroupAggregate):
    """Built-in aggregates per key, or per key and window; make it with `of`.

    Input value: a struct that holds the aggregators' fields, or a boolean where records are only
    counted; null where the record's value was null. Output value: ``result``. ``value_serde`` is
    the format of the stored state and of the changelog.
    """

    store: str
    key_serde: Serde
    value_serde: Serde
    aggregators: tuple[Aggregator, ...]
    names: tuple[str, ...] | None
    columns: tuple[StateColumn, ...]
    result: pa.DataType
    window: TimeWindows | None = None
    emit_every_update: bool = False

    @staticmethod
    def of(
        store: str,
        key_serde: Serde,
        aggregators: Sequence[Aggregator],
        names: Sequence[str] | None,
        input_type: pa.DataType,
        *,
        window: TimeWindows | None = None,
        emit_every_update: bool = False,
    ) -> AggregateSpec:
        """A spec with its state layout worked out.

        ``aggregators`` are lowered: their ``column`` is None or a field name of ``input_type``.
        ``names`` None = one aggregator whose bare result is the value; a bare ``count()`` is stored
        as Java's long, everything else packed. Raises TopologyError if an aggregate cannot be taken
        of its column's type.
        """
        labels = ("value",) if names is None else tuple(names)
        if not aggregators or len(labels) != len(aggregators):
            raise TopologyError(f"{len(aggregators)} aggregates but {len(labels)} names")
        orders = [None if a.by is None else input_type.field(a.by).type for a in aggregators]
        types = [None if a.column is None else input_type.field(a.column).type for a in aggregators]
        results = [result_type(a, t, o) for a, t, o in zip(aggregators, types, orders, strict=True)]
        columns = tuple(
            column
            for label, one, type_, order in zip(labels, aggregators, results, orders, strict=True)
            for column in _state_columns(label, one, type_, order)
        )
        storable(pa.struct([(column.name, column.type) for column in columns]))  # lists, too
        state = pa.struct([(column.name, column.stored_type) for column in columns])
        bare_count = names is None and aggregators[0].kind == "count"
        return AggregateSpec(
            store=store,
            key_serde=key_serde,
            value_serde=serdes.long() if bare_count else serdes.packed(state),
            aggregators=tuple(aggregators),
            names=None if names is None else labels,
            columns=columns,
            result=results[0]
            if names is None
            else pa.struct(list(zip(labels, results, strict=True))),
            window=window,
            emit_every_update=emit_every_update,
        )

    def _fold(self, batch: EdgeBatch, groups: Groups, stored: Stored) -> Folded:
        states = self.state_columns_of(stored.values)
        inputs = self.inputs_of(batch.value, groups.take)
        every = self.emit_every_update
        with self.failing(batch, groups.rows):
            final, shown = fold_columns(
                self.columns, states, stored.present, groups.codes, inputs, every=every
            )
        records, times = batch.timestamp[groups.rows], stored.timestamps
        running = _running_max(times, groups.codes, records) if every else times
        np.maximum.at(times, groups.codes, records)
        entries = self.value_serde.encode_array(self.state_of(final))
        return Folded(entries, times, self.finish(shown if every else final), running)

    def value_reader(self) -> Callable[[bytes], Any] | None:
        """See `everflow.serdes.base.value_reader`: where the state is the result."""
        return value_reader(self.value_serde) if self.value_serde.type == self.result else None

    @property
    def results(self) -> ResultDecoder:
        """See `TableOperator`: what is made of the states."""
        return self

    def decode_array(self, data: pa.Array) -> pa.Array:
        return decode_present(
            data,
            lambda some: self.finish(self.state_columns_of(self.value_serde.decode_array(some))),
        )

    def state_columns_of(self, state: pa.Array) -> list[pa.Array]:
        """The columns of decoded states, in the order of ``columns``."""
        if not pa.types.is_struct(self.value_serde.type):
            return [state]
        return [
            unpack(stored, column.type) if column.stored_type != column.type else stored
            for stored, column in zip(state.flatten(), self.columns, strict=True)
        ]

    def inputs_of(
        self, value: pa.Array, take: Callable[[pa.Array], pa.Array]
    ) -> list[pa.Array | None]:
        """The input of each of ``columns``, ``take`` applied; None where records are counted."""
        fields: dict[str | None, pa.Array | None] = {None: None}
        if pa.types.is_struct(value.type):
            names = [field.name for field in value.type]
            wanted = {column.field for column in self.columns}
            for name, column in zip(names, value.flatten(), strict=True):
                if name in wanted:
                    fields[name] = take(column)
        return [fields[column.field] for column in self.columns]

    @contextmanager
    def failing(self, batch: EdgeBatch, rows: Sequence[int] | Int64) -> Iterator[None]:
        """A list that is full fails at its record; ``rows``: of the contributions."""
        try:
            yield
        except ListFullError as error:
            full, row = error.column, int(rows[error.at])
            text = (
                f"{full.name} in store {self.store!r} holds {full.limit} values of the key "
                f"{batch.key[row].as_py()!r}, and may hold no more; give it more, "
                f"agg.{full.op}(column, limit={10 * full.limit}), let it leave values out, "
                "when_full='keep_first', or use windows, so that a key's values come to an end"
            )
            error.args = (text,)
            raise UserFunctionError(
                text,
                source=int(batch.source[row]),
                partition=int(batch.partition[row]),
                offset=int(batch.offset[row]),
            ) from error

    def state_of(self, columns: list[pa.Array]) -> pa.Array:
        """Inverse of `state_columns_of`."""
        if not pa.types.is_struct(self.value_serde.type):
            return columns[0]
        written = [pack(one) if pa.types.is_list(one.type) else one for one in columns]
        return pa.StructArray.from_arrays(written, fields=list(self.value_serde.type))

    def finish(self, state: list[pa.Array]) -> pa.Array:
        """The result column of the state columns."""
        columns, at = [], 0
        for aggregator in self.aggregators:
            if aggregator.kind == "avg":
                counts = state[at + 1].cast(pa.float64())
                columns.append(
                    pc.divide(
                        state[at],
                        pc.if_else(pc.equal(counts, 0.0), pa.scalar(None, pa.float64()), counts),
                    )
                )
            elif aggregator.kind == "approx_count_distinct":
                columns.append(estimates(state[at], precision_of(aggregator.rsd)))
            elif aggregator.limit is not None:
                columns.append(state[at].fill_null(pa.scalar([], state[at].type)))
            else:
                columns.append(state[at])
            at += 2 if aggregator.kind == "avg" or aggregator.by is not None else 1
        return (
            columns[0]
            if self.names is None
            else pa.StructArray.from_arrays(columns, fields=list(self.result))
        )


def _state_columns(
    label: str, aggregator: Aggregator, type_: pa.DataType, order: pa.DataType | None
) -> tuple[StateColumn, ...]:
    field: Any = aggregator.column
    kind, limit = aggregator.kind, aggregator.limit
    if kind == "avg":
        return (
            StateColumn(f"{label}.sum", pa.float64(), "sum", field),
            StateColumn(f"{label}.count", pa.int64(), "count", field),
        )
    if kind == "approx_count_distinct":
        bounds: Bounds | None = Bounds(precision_of(aggregator.rsd))
        return (StateColumn(label, pa.binary(), "distinct", field, bounds),)
    bounds = None if limit is None else Bounds(limit, aggregator.when_full)
    if kind in ("collect_list", "collect_set"):
        return (StateColumn(label, type_, kind, field, bounds),)
    if limit is not None:
        kind = "largest" if aggregator.largest else "smallest"
    if aggregator.by is None:
        return (StateColumn(label, type_, kind, field, bounds),)
    beside = order if limit is None else pa.list_(order)
    return (
        StateColumn(f"{label}.value", type_, kind, field, bounds),
        StateColumn(f"{label}.by", beside, BESIDE, aggregator.by, bounds),
    )


def _running_max(stored: Int64, codes: Int64, times: Int64) -> Int64:
    state = stored.tolist()
    found = np.empty(len(codes), np.int64)
    for index, (code, time) in enumerate(zip(codes.tolist(), times.tolist(), strict=True)):
        if time > state[code]:
            state[code] = time
        found[index] = state[code]
    return found


# --- `aggregate` and `reduce` with functions of the user: one call per record, in processing


@dataclass(frozen=True)
class PythonAggregator:
    """``aggregator(key, value, aggregate)`` starting from ``initializer()``; None = the aggregate
    is deleted."""

    initializer: Callable[[], Any]
    aggregator: Callable[[Any, Any, Any], Any]

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        """The next aggregate; ``aggregate`` None = there is none yet."""
        return self.aggregator(key, value, self.initializer() if aggregate is None else aggregate)


@dataclass(frozen=True)
class PythonReducer:
    """``reducer(aggregate, value)``; the first value is taken as it is, without a call. None =
    deleted."""

    reducer: Callable[[Any, Any], Any]

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        """The next aggregate; ``aggregate`` None = there is none yet."""
        return value if aggregate is None else self.reducer(aggregate, value)


@dataclass(frozen=True)
class PythonCogroup:
    """An aggregator for each of several streams, starting from ``initializer()``; a value is
    ``{which, v0, v1, ...}`` and belongs to the aggregator ``which``. None = deleted."""

    initializer: Callable[[], Any]
    aggregators: tuple[Callable[[Any, Any, Any], Any], ...]

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        """The next aggregate; ``aggregate`` None = there is none yet."""
        which = value["which"]
        before = self.initializer() if aggregate is None else aggregate
        return self.aggregators[which](key, value[f"v{which}"], before)


@dataclass(frozen=True, kw_only=True)
class PythonAggregateSpec(GroupAggregate):
    """`PythonAggregator`, `PythonReducer`, or their like for tables, per key, or per key and
    window; null and time rules as in `AggregateSpec`.

    Functions get Python values (a dict for a struct, a `Windowed` for a windowed key) and may
    change and return the aggregate they are given. Raises UserFunctionError naming the record.
    """

    store: str
    key_serde: Serde
    value_serde: Serde
    aggregator: Callable[[Any, Any, Any], Any]
    window: TimeWindows | None = None
    emit_every_update: bool = False

    @property
    def result(self) -> pa.DataType:
        """Arrow type of the output's value."""
        return self.value_serde.type

    def _fold(self, batch: EdgeBatch, groups: Groups, stored: Stored) -> Folded:
        """Calls the function for every record (and window)."""
        states: list[Any] = stored.values.to_pylist()
        state_times: list[int] = stored.timestamps.tolist()
        keys = python_keys(batch.key.take(pa.array(groups.rows[groups.last])))
        values = groups.take(batch.value).to_pylist()
        times = batch.timestamp[groups.rows].tolist()
        # an aggregate may be changed in place, so each result that is emitted is written down at
        # once
        encode = self.value_serde.encode if self.emit_every_update else None
        every: list[bytes | None] = []
        aggregator, index = self.aggregator, 0
        try:
            for index, code in enumerate(groups.codes.tolist()):
                before = states[code]
                states[code] = aggregator(keys[code], values[index], before)
                if encode is not None:
                    every.append(encode(states[code]))
                if before is not None and state_times[code] > times[index]:
                    times[index] = state_times[code]
                else:
                    state_times[code] = times[index]
        except BaseException as error:
            require_users(error)
            raise function_failure(self.store, batch, int(groups.rows[index]), error) from error
        last, after = groups.last, np.array(times, np.int64)
        if encode is not None:
            written = pa.array(every, pa.binary())
            entries, shown_times = written.take(pa.array(last)), after
        else:
            at = np.sort(last)
            written = self._written(batch, groups, states, at)
            written = written.take(pa.array(np.searchsorted(at, last)))
            entries, shown_times = written, after[last]
        return Folded(entries, after[last], self.value_serde.decode_array(written), shown_times)

    def _written(self, batch: EdgeBatch, groups: Groups, states: list[Any], at: Int64) -> pa.Array:
        """The last aggregate of each group, in the order of its contribution ``at``."""
        final = [states[code] for code in groups.codes[at].tolist()]
        try:
            return encode_each(self.value_serde, final)
        except BaseException as error:
            require_users(error)
            for index, state in zip(at.tolist(), final, strict=True):
                try:
                    self.value_serde.encode(state)
                except BaseException as found:
                    row = int(groups.rows[index])
                    raise function_failure(self.store, batch, row, found) from found
            raise


# --- aggregates of a grouped table: what an entry was is taken back, what it is now is added ------
# Built-in ones keep what can be taken back: counts and sums. What Kafka Streams' adder and
# subtractor get is the same, in the same order.


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
    old_input: ClassVar[bool] = True
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
        """Retracted values, negated, and behind them the added ones, change by change."""
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
