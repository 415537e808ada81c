"""Aggregates over windows that depend on the records before: sessions, sliding and count windows.

An assigner says which windows each record goes into. What they hold is folded over that: in columns
for built-in aggregates, record by record with functions of the user (`FunctionFold`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from everflow.operators.aggregate import AggregateSpec
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.user_code import function_failure, require_users
from everflow.records import EdgeBatch
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder
from everflow.serdes.windowed import python_keys, windowed_key_type
from everflow.topology.graph import TableOperator

Layout = TypeVar("Layout", bound=AggregateSpec | PythonAggregateSpec)


@dataclass(frozen=True)
class WindowedAggregate(TableOperator, Generic[Layout]):
    """``layout``: the aggregate as it is without these windows; it has the types and the store."""

    layout: Layout

    @property
    def store(self) -> str:
        return self.layout.store

    @property
    def key_serde(self) -> Serde:
        """Of the keys without their windows."""
        return self.layout.key_serde

    @property
    def value_serde(self) -> Serde:
        return self.layout.value_serde

    @property
    def result(self) -> pa.DataType:
        """Arrow type of the output's value."""
        return self.layout.result

    @property
    def result_key(self) -> pa.DataType:
        """Arrow type of the output's key."""
        return windowed_key_type(self.key_serde.type)

    def decode_result(self, data: bytes) -> Any:
        """What the table shows for stored bytes."""
        return self.layout.decode_result(data)

    @property
    def results(self) -> ResultDecoder:
        return self.layout.results


class WindowFold(Protocol):
    """What the windows of a batch hold. A window is a number, as its assigner gives it."""

    def take(self, row: int) -> None:
        """A record of the batch, which the assigner has just put into its windows."""

    def results(
        self, windows: Sequence[int], rows: Sequence[int]
    ) -> tuple[Sequence[bytes | None], pa.Array]:
        """Stored bytes of these windows, and what is shown: their results, or where every update is
        emitted that of each update. ``rows``: of the last record of each window."""


Step: TypeAlias = tuple[int, tuple[int, ...], bool, bool]
"""What a record does to a window, a plain tuple as there is one for each record: the window; the
windows whose aggregates it begins with, if it is new; whether the record goes into it; and whether
it is an update that is shown."""


class FunctionFold:
    """Functions of the user over a batch's windows, one call per record and window: a `WindowFold`.
    UserFunctionError naming the record."""

    def __init__(
        self,
        layout: PythonAggregateSpec,
        batch: EdgeBatch,
        stored: Sequence[bytes],
        *,
        steps: Callable[[], Iterable[Step]],
        begin: Callable[[Any, list[Any]], Any],
        remove: Callable[[int], None],
        every: bool,
        write_each: bool = False,
    ) -> None:
        """``steps``: those of the record that was taken last; ``begin``: makes the aggregate of a
        new window from its key and the aggregates of its parents; ``remove``: is told of windows
        whose aggregate has become None; ``every``: each update is emitted; ``write_each``: an
        aggregate that cannot be written fails at the record that made it so, not at its last."""
        known = layout.value_serde.decode_array(pa.array(stored, pa.binary())).to_pylist()
        self._layout, self._batch, self._aggregator = layout, batch, layout.aggregator
        self._encode = layout.value_serde.encode
        self._states: dict[int, Any] = dict(enumerate(known))
        self._keys, self._values = python_keys(batch.key), batch.value.to_pylist()
        self._steps, self._begin, self._remove = steps, begin, remove
        self._every: list[bytes | None] | None = [] if every else None
        self._written: dict[int, bytes | None] | None = {} if write_each else None

    def take(self, row: int) -> None:
        states, every, written = self._states, self._every, self._written
        key, value, aggregator = self._keys[row], self._values[row], self._aggregator
        try:
            for window, parents, takes, shown in self._steps():
                if parents:
                    states[window] = self._begin(key, [states[one] for one in parents])
                if takes:
                    states[window] = after = aggregator(key, value, states.get(window))
                    if after is None:
                        self._remove(window)
                # An aggregate may be changed in place, so each result is written down at once.
                if written is not None:
                    written[window] = data = self._encode(states[window])
                    if every is not None:
                        every.append(data)
                elif every is not None and shown:
                    every.append(self._encode(states[window]))
        except BaseException as error:
            require_users(error)
            raise function_failure(self._layout.store, self._batch, row, error) from error

    def results(
        self, windows: Sequence[int], rows: Sequence[int]
    ) -> tuple[Sequence[bytes | None], pa.Array]:
        if self._written is not None:
            found = [self._written[window] for window in windows]
        else:
            found = self._encoded(windows, rows)
        shown = pa.array(found if self._every is None else self._every, pa.binary())
        return found, self._layout.value_serde.decode_array(shown)

    def _encoded(self, windows: Sequence[int], rows: Sequence[int]) -> list[bytes | None]:
        found: list[bytes | None] = []
        try:
            for window in windows:
                found.append(self._encode(self._states[window]))
        except BaseException as error:
            require_users(error)
            row = rows[len(found)]
            raise function_failure(self._layout.store, self._batch, row, error) from error
        return found
