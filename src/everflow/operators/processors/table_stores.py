"""The stores of tables, for processors to read (note 040).

A processor sees a table as of its record: what the table's store held before the batch, and the
batch's updates of the table up to there. Only the table writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.processors.stores import Entries
from everflow.operators.processors.versioned_store import VersionEntries
from everflow.records import EdgeBatch
from everflow.state.changelog import expiry_times
from everflow.state.store import StoreSpec, StoreView


class ReadTable(NamedTuple):
    """A table that a processor reads. ``first``: whether an input record that changes the table and
    reaches the processor changes the table first."""

    table: JoinedTable
    first: bool


class _Shown(NamedTuple):
    """An entry's value as the table shows it, which the batch has brought."""

    value: Any


class _TableValues:
    """Reads what a table's store holds, and what the batch has brought."""

    def __init__(self, name: str, decode: Callable[[bytes], Any]) -> None:
        self._name, self._decode = name, decode

    def decode(self, data: Any) -> Any:
        return data.value if isinstance(data, _Shown) else self._decode(data)

    def encode(self, value: Any) -> NoReturn:
        raise read_only(self._name)


def read_only(name: str) -> TypeError:
    """What a processor is told that writes into a table."""
    return TypeError(
        f"store {name!r} is a table's, and only the table writes it: write to its topic, or into a "
        f"store of the processor's own"
    )


class TableEntries(Entries):
    """The entries of a table of any kind but versioned ones."""

    def __init__(self, spec: StoreSpec, view: StoreView, decode: Callable[[bytes], Any]) -> None:
        super().__init__(spec, view)
        self.values = _TableValues(spec.name, decode)
        self.newest_ms = view.newest_ms
        """The store's own time, with the updates so far."""

    def put(self, key: bytes, value: Any, time: int) -> NoReturn:
        raise read_only(self.spec.name)

    def update(self, key: bytes, value: Any, time: int) -> None:
        super().put(key, None if value is None else _Shown(value), time)
        if self.spec.expires:
            written = int(expiry_times([key], self.spec.kind)[0])
            self.newest_ms = max(self.newest_ms, written)


class TableVersions(VersionEntries):
    """The versions of a versioned table."""

    def __init__(self, spec: StoreSpec, view: StoreView, decode: Callable[[bytes], Any]) -> None:
        super().__init__(spec, view)
        self.values = _TableValues(spec.name, decode)

    def put(self, key: bytes, value: Any, time: int) -> NoReturn:
        raise read_only(self.spec.name)

    def update(self, key: bytes, value: Any, time: int) -> None:
        shown: Any = None if value is None else _Shown(value)
        super().put(key, shown, time)


class Updates:
    """The updates of a table in one task, which are put one after the other."""

    def __init__(
        self, table: JoinedTable, batch: EdgeBatch, entries: TableEntries | TableVersions
    ) -> None:
        self._entries = entries
        self._keys = table.keys_of(batch).to_pylist()
        self._values, self._times = batch.value.to_pylist(), batch.timestamp.tolist()

    def put(self, first: int, last: int) -> None:
        """Those from ``first`` until before ``last``."""
        for at in range(first, last):
            self._entries.update(self._keys[at], self._values[at], self._times[at])


def table_entries(table: JoinedTable, view: StoreView) -> TableEntries | TableVersions:
    """What a table's store held before the batch."""
    made = TableVersions if table.spec.versioned else TableEntries
    return made(table.spec, view, _decoder(table))


def global_entries(spec: StoreSpec, view: StoreView) -> TableEntries:
    return TableEntries(spec, view, spec.value_serde.decode)


def _decoder(table: JoinedTable) -> Callable[[bytes], Any]:
    """Reads one stored value's bytes as the table shows them."""
    results = table.results
    of_serde: Callable[[bytes], Any] | None = getattr(results, "decode", None)
    if of_serde is not None:
        return of_serde
    return lambda data: results.decode_array(pa.array([data], pa.binary()))[0].as_py()
