"""Computes built-in aggregates of grouped streams, whole or in time windows, in columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow import serdes
from everflow.errors import TopologyError
from everflow.operators.agg import Aggregator, precision_of, result_type
from everflow.operators.aggregates.folds import (
    BESIDE,
    Bounds,
    GroupValues,
    ListFullError,
    StateColumn,
    estimates,
    fold_columns,
    pack,
    unpack,
)
from everflow.operators.grouping import (
    NEVER,
    Groups,
    KeyedOperator,
    Stored,
    result,
    running_max,
    stored,
)
from everflow.operators.user_code import (
    UserFunctionError,
    failure_at,
    function_failure,
    require_users,
)
from everflow.records import EdgeBatch, Int64, TasksResult, valid
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder, decode_present, encode_each, value_reader
from everflow.serdes.schema import storable
from everflow.serdes.windowed import python_keys
from everflow.topology.graph import Inputs
from everflow.windows import TimeWindows

_Spec = TypeVar("_Spec", bound="AggregateSpec")


class Folded(NamedTuple):
    """The groups of a batch behind its records: stored bytes and times (ms) of each; and what is
    shown, with its times, of each group or, where every update is emitted, of each contribution."""

    entries: pa.Array
    times: Int64
    shown: pa.Array
    shown_times: Int64


class GroupAggregate(KeyedOperator):
    """Aggregates per key, or per key and time window. Null keys are skipped; null values too, but
    not in windows, as in Kafka Streams. A result carries max(record's, stored) time."""

    emit_every_update: bool = False

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        skips = self.window is None
        return self.folded(batch, self.groups_of(batch, inputs, skip_null_values=skips), inputs)

    def folded(self, batch: EdgeBatch, groups: Groups, inputs: Inputs) -> TasksResult:
        entries = groups.entries(inputs, self.store)
        done = self._fold(batch, groups, stored(entries, self.value_serde))
        if self.emit_every_update:
            at, shown, times = np.arange(len(groups.rows)), done.shown, done.shown_times
        else:
            order = np.argsort(groups.last)
            at, times = groups.last[order], done.shown_times[order]
            shown = done.shown.take(order)
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

    Input value: a struct of the aggregators' fields, or a boolean where records are only counted;
    null where the record's value was. ``value_serde``: the format of stored state and changelog.
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
    retracts: ClassVar[bool] = False
    """True if values can be taken back: a sum then has a count beside it."""

    @classmethod
    def of(
        cls: type[_Spec],
        store: str,
        key_serde: Serde,
        aggregators: Sequence[Aggregator],
        names: Sequence[str] | None,
        input_type: pa.DataType,
        *,
        window: TimeWindows | None = None,
        emit_every_update: bool = False,
    ) -> _Spec:
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
            for place, one in enumerate(aggregators)
            for column in cls._state_columns(
                labels[place], one, results[place], orders[place], place
            )
        )
        storable(pa.struct([(column.name, column.type) for column in columns]))  # lists, too
        state = pa.struct([(column.name, column.stored_type) for column in columns])
        bare_count = names is None and aggregators[0].kind == "count"
        return cls(
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
        group_values = GroupValues(
            stored=states, present=stored.present, codes=groups.codes, values=inputs
        )
        final, shown = self.fold(batch, groups.rows, group_values, every=every)
        times, shown_times = _times(batch, groups, stored, every)
        shown_values = self.finish(shown if every else final)
        return Folded(self.written(final), times, shown_values, shown_times)

    def value_reader(self) -> Callable[[bytes], Any] | None:
        return value_reader(self.value_serde) if self.value_serde.type == self.result else None

    @property
    def results(self) -> ResultDecoder:
        return self

    def decode_array(self, data: pa.Array) -> pa.Array:
        return decode_present(
            data,
            lambda some: self.finish(self.state_columns_of(self.value_serde.decode_array(some))),
        )

    def state_columns_of(self, state: pa.Array) -> list[pa.Array]:
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

    def fold(
        self, batch: EdgeBatch, rows: Int64, group_values: GroupValues, *, every: bool
    ) -> tuple[list[pa.Array], list[pa.Array]]:
        """See `fold_columns`; a list that is full fails at its record. ``rows``: of the
        contributions."""
        try:
            return fold_columns(self.columns, group_values, every=every)
        except ListFullError as error:
            full, row = error.column, int(rows[error.at])
            text = (
                f"{full.name} in store {self.store!r} holds {full.limit} values of the key "
                f"{batch.key[row].as_py()!r}, and may hold no more; give it more, "
                f"agg.{full.op}(column, limit={10 * full.limit}), let it leave values out, "
                "when_full='keep_first', or use windows, so that a key's values come to an end"
            )
            error.args = (text,)
            raise failure_at(text, batch, row) from error

    def written(self, columns: list[pa.Array]) -> pa.Array:
        """Stored bytes of state columns: the inverse of `state_columns_of`."""
        state = columns[0]
        if pa.types.is_struct(self.value_serde.type):
            packed = [pack(one) if pa.types.is_list(one.type) else one for one in columns]
            state = pa.StructArray.from_arrays(packed, fields=list(self.value_serde.type))
        return self.value_serde.encode_array(state)

    def finish(self, state: list[pa.Array]) -> pa.Array:
        columns, left = [], iter(state)
        for aggregator in self.aggregators:
            first = next(left)
            if aggregator.kind == "avg":
                counts = next(left).cast(pa.float64())
                some = pc.if_else(pc.equal(counts, 0.0), pa.scalar(None, pa.float64()), counts)
                first = pc.divide(first, some)
            elif aggregator.kind == "sum" and self.retracts:
                some = pc.not_equal(next(left), 0).fill_null(False)
                first = pc.if_else(some, first, pa.scalar(None, first.type))
            elif aggregator.kind == "approx_count_distinct":
                first = estimates(first, precision_of(aggregator.rsd))
            elif aggregator.limit is not None and first.null_count:
                first = first.fill_null(pa.scalar([], first.type))
            if aggregator.by is not None:
                next(left)
            columns.append(first)
        if self.names is None:
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=list(self.result))

    @staticmethod
    def _state_columns(
        label: str, one: Aggregator, type_: pa.DataType, order: pa.DataType | None, place: int
    ) -> tuple[StateColumn, ...]:
        field: Any = one.column
        kind, limit = one.kind, one.limit
        if kind == "avg":
            return (
                StateColumn(f"{label}.sum", pa.float64(), "sum", field),
                StateColumn(f"{label}.count", pa.int64(), "count", field),
            )
        if kind == "approx_count_distinct":
            bounds: Bounds | None = Bounds(precision_of(one.rsd))
            return (StateColumn(label, pa.binary(), "distinct", field, bounds),)
        bounds = None if limit is None else Bounds(limit, one.when_full)
        if kind in ("collect_list", "collect_set"):
            return (StateColumn(label, type_, kind, field, bounds),)
        if limit is not None:
            kind = "largest" if one.largest else "smallest"
        if one.by is None:
            return (StateColumn(label, type_, kind, field, bounds),)
        beside = order if limit is None else pa.list_(order)
        return (
            StateColumn(f"{label}.value", type_, kind, field, bounds),
            StateColumn(f"{label}.by", beside, BESIDE, one.by, bounds),
        )


def _times(
    batch: EdgeBatch, groups: Groups, stored: Stored, every: bool, ended: Collection[int] = ()
) -> tuple[Int64, Int64]:
    """The time of each group, the later of the stored one and its records', and those of what is
    shown. Behind a contribution in ``ended`` a group begins anew."""
    records, times = batch.timestamp[groups.rows], stored.timestamps
    if not every and not ended:
        np.maximum.at(times, groups.codes, records)
        return times, times
    codes, known = groups.codes, times[groups.codes]
    segments = codes
    if ended:
        order = np.argsort(codes, kind="stable")
        ends = np.isin(order, list(ended))
        before: Int64 = np.cumsum(ends) - ends
        segments = np.empty(len(codes), np.int64)
        segments[order] = codes[order] + before
        begin = np.searchsorted(codes[order], codes[order])
        known[order[before > before[begin]]] = NEVER
    running = np.maximum(running_max(segments, records), known)
    times = running[groups.last]
    return times, running if every else times


# --- `aggregate` and `reduce` with functions of the user: one call per record, in their order -----


@dataclass(frozen=True)
class PythonAggregator:
    """``aggregator(key, value, aggregate)`` starting from ``initializer()``; None = the aggregate
    is deleted."""

    initializer: Callable[[], Any]
    aggregator: Callable[[Any, Any, Any], Any]

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        return self.aggregator(key, value, self.initializer() if aggregate is None else aggregate)


@dataclass(frozen=True)
class PythonReducer:
    """``reducer(aggregate, value)``; the first value is taken without a call. None: deleted."""

    reducer: Callable[[Any, Any], Any]

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        return value if aggregate is None else self.reducer(aggregate, value)


@dataclass(frozen=True)
class PythonCogroup:
    """An aggregator for each of several streams, starting from ``initializer()``; a value is
    ``{which, v0, v1, ...}`` and belongs to the aggregator ``which``. None = deleted."""

    initializer: Callable[[], Any]
    aggregators: tuple[Callable[[Any, Any, Any], Any], ...]

    def __call__(self, key: Any, value: Any, aggregate: Any) -> Any:
        which = value["which"]
        before = self.initializer() if aggregate is None else aggregate
        return self.aggregators[which](key, value[f"v{which}"], before)


@dataclass(frozen=True, kw_only=True)
class PythonAggregateSpec(GroupAggregate):
    """`PythonAggregator`, `PythonReducer`, or their like for tables, per key, or per key and
    window; null and time rules as in `AggregateSpec`. Functions get Python values (a dict for a
    struct, a `Windowed` for a windowed key) and may change the aggregate. UserFunctionError."""

    store: str
    key_serde: Serde
    value_serde: Serde
    aggregator: Callable[[Any, Any, Any], Any]
    window: TimeWindows | None = None
    emit_every_update: bool = False

    @property
    def result(self) -> pa.DataType:
        return self.value_serde.type

    def _fold(self, batch: EdgeBatch, groups: Groups, stored: Stored) -> Folded:
        codes, ended = groups.codes.tolist(), set[int]()
        of_groups = python_keys(batch.key.take(groups.rows[groups.last]))
        fold = FunctionFold(
            self,
            batch,
            groups.rows,
            [of_groups[code] for code in codes],
            groups.take(batch.value).to_pylist(),
            stored.values.to_pylist(),
        )
        steps = zip(
            range(len(codes)),
            codes,
            repeat(()),
            repeat(True),
            repeat(True),
            strict=False,
        )
        fold.take(steps, remove=lambda at, _: ended.add(at), every=self.emit_every_update)
        entries, shown = fold.results(range(len(groups)), groups.last.tolist())
        times, shown_times = _times(batch, groups, stored, self.emit_every_update, ended)
        return Folded(entries, times, shown, shown_times)


Step: TypeAlias = tuple[int, int, tuple[int, ...], bool, bool]
"""What a record does to a window (a plain tuple: there are many): its number; the window; the
windows whose aggregates it begins with, if new; whether the record goes in; whether it is shown."""


def _refuse(key: Any, aggregates: list[Any]) -> Any:
    raise AssertionError("no window begins with the aggregates of others")


class FunctionFold:
    """A function of the user over a batch's windows (or keys), one call per record and window. A
    window is a number. UserFunctionError naming the record."""

    def __init__(
        self,
        layout: PythonAggregateSpec,
        batch: EdgeBatch,
        rows: Int64,
        keys: Sequence[Any],
        values: Sequence[Any],
        known: Sequence[Any],
    ) -> None:
        """``rows``, ``keys``, ``values``: by record; ``known``: aggregates of the first windows."""
        self._layout, self._batch, self._rows = layout, batch, rows
        self._keys, self._values = keys, values
        self._states: dict[int, Any] = dict(enumerate(known))
        self._every: list[bytes | None] | None = None

    def take(
        self,
        steps: Iterable[Step],
        *,
        begin: Callable[[Any, list[Any]], Any] = _refuse,
        remove: Callable[[int, int], object],
        every: bool,
    ) -> None:
        """``begin``: makes the aggregate of a new window from its key and the aggregates of its
        parents; ``remove``: is called with record and window where an aggregate becomes None;
        ``every``: each update is emitted."""
        states, keys, values = self._states, self._keys, self._values
        aggregator, encode = self._layout.aggregator, self._layout.value_serde.encode
        shown: list[bytes | None] = []
        record = 0
        try:
            for record, window, parents, takes, shows in steps:
                if parents:
                    states[window] = begin(keys[record], [states[one] for one in parents])
                if takes:
                    after = aggregator(keys[record], values[record], states.get(window))
                    states[window] = after
                    if after is None:
                        remove(record, window)
                if every and shows:
                    # An aggregate may be changed in place, so each result is written down at once.
                    shown.append(encode(states[window]))
        except BaseException as error:
            require_users(error)
            raise self._failure(record, error) from error
        self._every = shown if every else None

    def results(
        self,
        windows: Sequence[int],
        records: Sequence[int],
    ) -> tuple[pa.Array, pa.Array]:
        """Stored bytes of these windows, and what is shown: their results, or where every update is
        emitted that of each update. ``records``: the last one of each window."""
        serde, final = self._layout.value_serde, [self._states[window] for window in windows]
        try:
            entries = encode_each(serde, final)
        except BaseException as error:
            require_users(error)
            for record, state in sorted(zip(records, final, strict=True), key=itemgetter(0)):
                try:
                    serde.encode(state)
                except BaseException as found:
                    raise self._failure(record, found) from found
            raise
        shown = entries if self._every is None else pa.array(self._every, pa.binary())
        return entries, serde.decode_array(shown)

    def _failure(self, record: int, error: BaseException) -> UserFunctionError:
        return function_failure(
            self._layout.store,
            self._batch,
            int(self._rows[record]),
            error,
        )


# --- aggregates of a grouped table: what an entry was is taken back, what it is now is added ------
# Built-in ones keep what can be taken back; adding and taking back is in Kafka Streams' order.


REVERSIBLE = ("count", "sum", "avg")


@dataclass(frozen=True, kw_only=True)
class TableAggregateSpec(AggregateSpec):
    """Counts, sums and means of the entries of each group; make it with `of`. A record is what a
    change adds, its ``old`` what it takes back, or null. A group that has lost all its entries
    stays, with 0, null and null. Floats keep what adding and taking back leaves of rounding; a sum
    that has met NaN or an infinity is not a number any more."""

    old_sides: ClassVar[tuple[int, ...]] = (0,)
    old_input: ClassVar[bool] = True
    retracts: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @staticmethod
    def _state_columns(
        label: str, one: Aggregator, type_: pa.DataType, order: pa.DataType | None, place: int
    ) -> tuple[StateColumn, ...]:
        """TopologyError for an aggregate that cannot take back."""
        if one.kind not in REVERSIBLE:
            raise TopologyError(
                f"agg.{one.kind} cannot take back what an entry was; a grouped table has "
                f"{', '.join(f'agg.{kind}' for kind in REVERSIBLE)}, or functions: "
                "aggregate(initializer=..., adder=..., subtractor=..., returns=...)"
            )
        count = StateColumn(f"{label}.count", pa.int64(), "sum", f"n{place}")
        if one.kind == "count":
            return (count,)
        return StateColumn(f"{label}.sum", type_, "sum", f"s{place}"), count

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: the last result of each group, or that of each change."""
        (right,) = inputs.sides
        assert right.old is not None
        done = super().run(inputs._replace(sides=(self._signed(right.old, right),)))
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
                columns[f"s{place}"] = mixed.take(at)
        present = np.stack([valid(left.value), valid(right.value)], axis=1).reshape(-1)
        value = pa.StructArray.from_arrays(
            list(columns.values()), names=list(columns), mask=pa.array(~present)
        )
        return right.take(rows).with_columns(value=value)


def _field(side: EdgeBatch, name: str) -> pa.Array:
    """A field of the side's inputs, null where the side has no entry."""
    names = [field.name for field in side.value.type]
    return side.value.flatten()[names.index(name)]


@dataclass(frozen=True)
class PythonTableAggregator:
    """``subtractor(key, old, aggregate)``, then ``adder(key, new, aggregate)``, of a change ``{new,
    old}``: each as `PythonAggregator` or `PythonReducer`. None = the aggregate is deleted."""

    adder: Callable[[Any, Any, Any], Any]
    subtractor: Callable[[Any, Any, Any], Any]

    def __call__(self, key: Any, change: Any, aggregate: Any) -> Any:
        if change["old"] is not None and aggregate is not None:
            aggregate = self.subtractor(key, change["old"], aggregate)
        return aggregate if change["new"] is None else self.adder(key, change["new"], aggregate)
