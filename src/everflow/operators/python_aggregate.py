"""`aggregate` and `reduce` with functions of the user: one call per record, in processing order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.operators.grouping import Groups, KeyedOperator, Stored, Tasks, group, read, result
from everflow.operators.user_code import function_failure, require_users
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.serdes import Serde
from everflow.serdes.base import encode_each
from everflow.serdes.windowed import python_keys
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
        updates = self._run(batch, groups, stored)
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


@dataclass
class _Updates:
    """``states``: the last aggregate of each group. ``every``: the bytes of each update, where each
    is emitted. ``times``: of each update."""

    states: list[Any]
    every: list[bytes | None]
    times: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
