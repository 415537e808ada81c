"""`aggregate` and `reduce` with functions of the user: one call per record, in processing order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.operators.grouping import Groups, KeyedOperator, Stored, Tasks, group, read, result
from everflow.operators.user_code import UserFunctionError, function_failure, require_users
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.serdes import Serde
from everflow.serdes.base import encode_each
from everflow.serdes.windowed import python_keys
from everflow.state.store import StoreView
from everflow.windows import TimeWindows


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
class PythonAggregateSpec(KeyedOperator):
    """`PythonAggregator`, `PythonReducer`, or their like for tables, per key, or per key and
    window; null and time rules as in `AggregateSpec`.

    Functions get Python values (a dict for a struct, a `Windowed` for a windowed key) and may
    change and return the aggregate they are given. Raises UserFunctionError naming the record, and
    after `process_all` others on which the functions fail.
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

    def process_all(
        self,
        batch: EdgeBatch,
        stores: Mapping[int, Mapping[str, StoreView]],
        stream_times: Mapping[int, int],
    ) -> TasksResult:
        """As `process_tasks`, but a record on which a function fails changes nothing, and the
        others go on, so that all of those are told at once. It copies aggregates."""
        views = {partition: views[self.store] for partition, views in stores.items()}
        return self._process(batch, Tasks(batch.partition, views, stream_times, True))

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
        """Calls the function for every record (and window); the last result per group, or every
        one."""
        stored = read(groups, tasks.stores, self.value_serde)
        run = self._run_all if tasks.every_failure else self._run
        updates = run(batch, groups, stored)
        if self.emit_every_update:
            at = np.arange(len(groups.rows), dtype=np.int64)
            after = pa.array(updates.every, pa.binary())
        else:
            at = np.sort(groups.last)
            after = self._written(batch, groups, updates.states, at)
        last = np.searchsorted(at, groups.last)
        changes = groups.changes(
            self.store, after.take(pa.array(last)).to_pylist(), updates.times[groups.last]
        )
        shown = self.value_serde.decode_array(after)
        return result(
            batch,
            groups,
            changes,
            at=at,
            values=shown,
            timestamps=updates.times[at],
            window=self.window,
        )

    def _run(self, batch: EdgeBatch, groups: Groups, stored: Stored) -> _Updates:
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
        return _Updates(states, every, np.array(times, np.int64))

    def _run_all(self, batch: EdgeBatch, groups: Groups, stored: Stored) -> _Updates:
        """As `_run`, but a record on which the function fails leaves all aggregates as they were,
        and the others go on. UserFunctionError with its ``others``."""
        states: list[Any] = stored.values.to_pylist()
        state_times: list[int] = stored.timestamps.tolist()
        keys = python_keys(batch.key.take(pa.array(groups.rows[groups.last])))
        values = groups.take(batch.value).to_pylist()
        times = batch.timestamp[groups.rows].tolist()
        encode = self.value_serde.encode if self.emit_every_update else None
        records, apart = _records(batch, groups.rows)
        one_each = len(apart) == len(records)
        every: list[bytes | None] = []
        failures: list[UserFunctionError] = []
        failed, undone = set[int](), set[int]()
        last, before = -1, list[tuple[int, Any, int]]()
        for index, (code, record) in enumerate(
            zip(groups.codes.tolist(), records.tolist(), strict=True)
        ):
            if record != last:
                last, before = record, []
            if record in failed or code in undone:
                continue
            before.append((code, _copy(states[code]), state_times[code]))
            try:
                was = states[code]
                states[code] = self.aggregator(keys[code], values[index], was)
                if encode is not None:
                    every.append(encode(states[code]))
            except BaseException as error:
                require_users(error)
                failure = function_failure(self.store, batch, int(groups.rows[index]), error)
                failure.__cause__ = error
                failures.append(failure)
                failed.add(record)
                if self._late(groups) or not apart[record]:
                    break  # without it others would be in their groups, too
                for other, copy, time in reversed(before):
                    states[other], state_times[other] = copy, time
                    if copy is _NO_COPY:
                        undone.add(other)
                if undone and not one_each:
                    break
                continue
            if was is not None and state_times[code] > times[index]:
                times[index] = state_times[code]
            else:
                state_times[code] = times[index]
        if failures:
            failures[0].others = tuple(failures[1:])
            raise failures[0] from failures[0].__cause__
        return _Updates(states, every, np.array(times, np.int64))

    def _late(self, groups: Groups) -> bool:
        """Whether the time of a record decides which others are in their windows."""
        return self.window is not None and "late" in groups.dropped

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


class _NoCopy:
    """Stands for a copy that would be large."""


_NO_COPY = _NoCopy()
_MOST_COPIED = 100
"""Elements of an aggregate that is copied at each of its records."""
_CHANGEABLE = (dict, list, set, bytearray)


def _copy(aggregate: Any) -> Any:
    """The aggregate as it is, which a function that fails may have changed half; `_NO_COPY` where
    it is large."""
    if aggregate is None or isinstance(aggregate, str | bytes | int | float):
        return aggregate
    todo, count = [aggregate], 0
    while todo:
        one = todo.pop()
        if isinstance(one, _CHANGEABLE):
            count += len(one)
            if count > _MOST_COPIED:
                return _NO_COPY
            todo += one.values() if isinstance(one, dict) else one
    return deepcopy(aggregate)


def _records(batch: EdgeBatch, rows: Int64) -> tuple[Int64, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Of each contribution which record it is of, by number; of each number whether all that there
    is of its record has it. (What one record became may lie apart: then it has several.)"""
    places = [column[rows].astype(np.int64) for column in (batch.source, batch.partition)]
    places.append(batch.offset[rows])
    changed = np.zeros(len(rows), bool)
    for column in places:
        changed |= np.diff(column, prepend=-1) != 0
    first = np.flatnonzero(changed)
    order = np.lexsort([column[first] for column in places])
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in places:
        same &= np.diff(column[first][order]) == 0
    whole = np.ones(len(first), bool)
    whole[order[:-1][same]] = False
    whole[order[1:][same]] = False
    return np.cumsum(changed) - 1, whole


@dataclass
class _Updates:
    """``states``: the last aggregate of each group. ``every``: the bytes of each update, where each
    is emitted. ``times``: of each update."""

    states: list[Any]
    every: list[bytes | None]
    times: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
