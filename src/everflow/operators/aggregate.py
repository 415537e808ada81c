"""Computes built-in aggregates of grouped streams, whole or in time windows, in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow import serdes
from everflow.errors import TopologyError
from everflow.operators.agg import Aggregator, result_type
from everflow.operators.fold import Bounds, StateColumn
from everflow.operators.folds.folding import BESIDE, fold_columns
from everflow.operators.folds.lists import ListFullError
from everflow.operators.folds.packed_lists import pack, unpack
from everflow.operators.folds.sketch import estimates, precision_of
from everflow.operators.grouping import Groups, KeyedOperator, Tasks, group, read, result
from everflow.operators.user_code import UserFunctionError
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder, decode_present, value_reader
from everflow.serdes.schema import storable
from everflow.windows import TimeWindows


@dataclass(frozen=True, kw_only=True)
class AggregateSpec(KeyedOperator):
    """Built-in aggregates per key, or per key and window; make it with `of`.

    Input value: a struct that holds the aggregators' fields, or a boolean where records are only
    counted; null where the record's value was null. Output value: ``result``. Whole streams skip
    null keys and null values; windows skip null keys only, so a windowed ``count()`` counts null
    values, as in Kafka Streams. A result carries max(record's, stored) time. ``value_serde`` is the
    format of the stored state and of the changelog.
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

    def _process(self, batch: EdgeBatch, tasks: Tasks) -> TasksResult:
        groups = group(
            batch,
            self.key_serde,
            self.window,
            tasks,
            store=self.store,
            skip_null_values=self.window is None,
        )
        return self.folded(batch, groups, tasks)

    def folded(self, batch: EdgeBatch, groups: Groups, tasks: Tasks) -> TasksResult:
        """Folds the records into the stored aggregates; the last result per group, or every one."""
        stored = read(groups, tasks.stores, self.value_serde)
        states = self.state_columns_of(stored.values)
        inputs = self.inputs_of(batch.value, groups.take)
        with self.failing(batch, groups.rows):
            final, shown_states = fold_columns(
                self.columns,
                states,
                stored.present,
                groups.codes,
                inputs,
                every=self.emit_every_update,
            )
        times = batch.timestamp[groups.rows]
        timestamps = stored.timestamps
        running = _running_max(timestamps, groups.codes, times) if self.emit_every_update else None
        np.maximum.at(timestamps, groups.codes, times)
        values = self.value_serde.encode_array(self.state_of(final)).to_pylist()
        changes = groups.changes(self.store, values, timestamps)
        if running is not None:
            at = np.arange(len(groups.rows), dtype=np.int64)
            shown = self.finish(shown_states)
            return result(
                batch, groups, changes, at=at, values=shown, timestamps=running, window=self.window
            )
        order = np.argsort(groups.last)
        shown = self.finish(final).take(pa.array(order))
        return result(
            batch,
            groups,
            changes,
            at=groups.last[order],
            values=shown,
            timestamps=timestamps[order],
            window=self.window,
        )

    def decode_result(self, data: bytes) -> Any:
        """The result (type ``result``), not the state that is kept for it."""
        return self.decode_array(pa.array([data], pa.binary()))[0].as_py()

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
