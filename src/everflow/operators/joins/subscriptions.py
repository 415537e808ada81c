"""The entries that ask for a foreign key, in the task of that key (KIP-213; note 022).

They are answered when they ask, and whenever the key's entry changes. A subscription's key in the
store is the foreign key's length (4 bytes), its bytes, and the entry's key bytes; its value is the
hash of the entry's value.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.fold import valid
from everflow.operators.joins.batch_records import Flags
from everflow.operators.joins.foreign_keys import Order, answer_type
from everflow.operators.joins.joined_table import NEVER, Held, TableLookup, TableRead
from everflow.operators.joins.joined_values import first_and_last
from everflow.operators.user_code import written_bytes
from everflow.records import ByteColumn, EdgeBatch, Int32, Int64, StoreChanges, TasksResult
from everflow.serdes import Serde
from everflow.serdes.base import binary_from_matrix
from everflow.state.changelog import unpack_value
from everflow.state.store import StoreView
from everflow.topology.graph import Inputs
from everflow.topology.hops import appended

_LENGTH = struct.Struct(">I")
_LAST = b"\xff"


@dataclass(frozen=True, kw_only=True)
class Subscriptions(TableLookup):
    """The first side are subscriptions, the second one the updates of the table of foreign keys,
    the others those of what it is made of. Results have the asking entry's key and the value
    `answer_type`; their time is the later of the subscription's and the found entry's, or the
    update's."""

    store: str
    table: TableRead
    entry_serde: Serde
    """Of the keys of the entries that ask."""
    foreign_serde: Serde
    kept: bool
    """Whether an entry without a foreign key has a result."""
    joins: ClassVar[bool] = True

    @property
    def takes_null_keys(self) -> bool:
        return self.kept

    def run(self, inputs: Inputs) -> TasksResult:
        left, right = inputs.sides[:2]
        held = self.table.held(left, inputs)
        asks, updates = self._asks(left), self._updates(right)
        told = [
            one
            for partition, views in inputs.stores.items()
            for one in self._told(partition, views[self.store], asks, updates)
        ]
        changes = {
            partition: [made]
            for partition in inputs.stores
            if len(made := asks.changes(self.store, partition))
        }
        output = self._answered(left, right, held, asks, told)
        after = {
            partition: max([before, *(_latest(side, partition) for side in (left, right))])
            for partition, before in inputs.stream_times.items()
        }
        return TasksResult(output, changes, after, {})

    def _asks(self, left: EdgeBatch) -> _Asks:
        entries, hashes, orders = left.value.flatten()
        keys = written_bytes(self.foreign_serde, left.key, self.store, left)
        return _Asks(left, keys, entries, hashes, orders.to_numpy())

    def _updates(self, right: EdgeBatch) -> list[_Update]:
        keys = written_bytes(self.foreign_serde, right.key, self.store, right).to_pylist()
        rows = zip(
            range(len(right)),
            right.seq.tolist(),
            right.partition.tolist(),
            keys,
            valid(right.value).tolist(),
            strict=True,
        )
        return [_Update(*row) for row in rows]

    def _told(
        self, partition: int, view: StoreView, asks: _Asks, updates: list[_Update]
    ) -> list[_Told]:
        """Whom a task's updates are told to: those who asked before, in this batch or earlier."""
        mine = [one for one in updates if one.partition == partition]
        if not mine:
            return []
        known = _Known.of(view, {one.key for one in mine})
        found: list[_Told] = []
        before = iter(asks.of_keys(partition, known.of_key))
        ask = next(before, None)
        for update in mine:
            while ask is not None and ask.seq <= update.seq:
                known.take(ask)
                ask = next(before, None)
            found += [
                _Told(update.row, entry, hash_, update.there)
                for entry, hash_ in known.entries(update.key)
            ]
        return found

    def _answered(
        self,
        left: EdgeBatch,
        right: EdgeBatch,
        held: Held,
        asks: _Asks,
        told: list[_Told],
    ) -> EdgeBatch:
        """The answers as records, each with the place of what made it: tasks take turns, an ask
        comes before an update."""
        plain = [
            side.with_columns(pa.nulls(len(side), pa.int8()), value=pa.nulls(len(side), pa.int8()))
            for side in (left, right)
        ]
        there = held.times != NEVER
        answered = asks.answered(there)
        of_updates = np.array([one.row for one in told], np.int64)
        rows = np.concatenate([answered, len(left) + of_updates])
        made = appended(plain).take(rows)
        entries = pa.array([one.entry for one in told], pa.binary())
        hashes = pa.array([one.hash for one in told], pa.binary())
        shown = np.concatenate(
            [
                (there & (asks.orders != Order.FORGET_AND_TELL))[answered],
                np.array([one.there for one in told], bool),
            ]
        )
        index = pa.array(answered)
        values = pa.concat_arrays([held.values, right.value.cast(held.values.type)])
        value = pa.StructArray.from_arrays(
            [
                pa.concat_arrays([asks.hashes.take(index), hashes]),
                values.take(pa.array(rows, mask=~shown)),
            ],
            fields=list(answer_type(self.table.type)),
        )
        keys = pa.concat_arrays([asks.entries.take(index), entries])
        made = made.with_columns(self.entry_serde.decode_array(keys), value)
        times = np.concatenate([np.maximum(left.timestamp, held.times), right.timestamp])
        made.timestamp = times[rows]
        return made.take(np.lexsort((rows >= len(left), made.partition, made.seq)))


def _latest(side: EdgeBatch, partition: int) -> int:
    return int(side.timestamp[side.partition == partition].max(initial=-1))


class _Ask(NamedTuple):
    """A subscription under a key that changes in the batch."""

    seq: int
    key: bytes
    entry: bytes
    hash: bytes | None
    order: int


@dataclass(frozen=True)
class _Asks:
    """The subscriptions of a batch: their records, foreign keys as bytes, and what is asked."""

    batch: EdgeBatch
    keys: pa.Array
    entries: pa.Array
    hashes: pa.Array
    orders: Int32

    def answered(self, there: Flags) -> Int64:
        """The rows that are answered at once; ``there``: whether the foreign key's entry was."""
        told = self.orders != Order.FORGET
        told &= there | (self.orders != Order.TELL_IF_THERE)
        told &= ~there | (self.orders != Order.TELL_IF_GONE)
        return np.flatnonzero(told)

    def of_keys(self, partition: int, keys: Collection[bytes]) -> list[_Ask]:
        """A task's with one of these foreign keys."""
        wanted = pc.is_in(self.keys, pa.array(list(keys), pa.binary()))
        chosen = wanted.to_numpy(zero_copy_only=False) & (self.batch.partition == partition)
        rows = np.flatnonzero(chosen)
        index = pa.array(rows)
        columns = (self.keys, self.entries, self.hashes)
        found = (column.take(index).to_pylist() for column in columns)
        parts = zip(self.batch.seq[rows].tolist(), *found, self.orders[rows].tolist(), strict=True)
        return [_Ask(*one) for one in parts]

    def changes(self, store: str, partition: int) -> StoreChanges:
        """What a task remembers and forgets: the last of each foreign key and entry."""
        meant = valid(self.keys) & (self.orders != Order.TELL_IF_GONE)
        rows = np.flatnonzero(meant & (self.batch.partition == partition))
        index = pa.array(rows)
        keys = self.keys.take(index)
        stored = _joined([_prefixes(keys), self.entries.take(index)])
        _, last = first_and_last(stored.dictionary_encode().indices.to_numpy())
        rows = rows[last]
        forgets = np.isin(self.orders[rows], (Order.FORGET, Order.FORGET_AND_TELL))
        values = self.hashes.take(pa.array(rows)).fill_null(b"")
        kept = values.take(pa.array(np.arange(len(rows)), mask=forgets))
        return StoreChanges(
            store,
            ByteColumn(stored.take(pa.array(last))),
            ByteColumn(kept),
            self.batch.timestamp[rows],
        )


class _Update(NamedTuple):
    """A change of the table of foreign keys: its row, and whether there is an entry now."""

    row: int
    seq: int
    partition: int
    key: bytes
    there: bool


class _Told(NamedTuple):
    """An answer to an update: the update's row, the entry that asked and its hash, and whether the
    foreign key has an entry now."""

    row: int
    entry: bytes
    hash: bytes | None
    there: bool


@dataclass(frozen=True)
class _Known:
    """Who asked for the foreign keys that change: by key, the hash by entry."""

    of_key: dict[bytes, dict[bytes, bytes]]

    @staticmethod
    def of(view: StoreView, keys: set[bytes]) -> _Known:
        listed = sorted(keys)
        bounds = [(_prefix(key), _behind(_prefix(key))) for key in listed]
        found = {}
        for key, entries in zip(listed, view.range_many(bounds), strict=True):
            begin = len(_prefix(key))
            found[key] = {stored[begin:]: unpack_value(entry)[1] for stored, entry in entries}
        return _Known(found)

    def take(self, ask: _Ask) -> None:
        known = self.of_key[ask.key]
        if ask.order in (Order.FORGET, Order.FORGET_AND_TELL):
            known.pop(ask.entry, None)
        elif ask.order != Order.TELL_IF_GONE:
            known[ask.entry] = ask.hash or b""

    def entries(self, key: bytes) -> list[tuple[bytes, bytes | None]]:
        """Entries and hashes of a foreign key, in the order of their keys."""
        return [(entry, hash_ or None) for entry, hash_ in sorted(self.of_key[key].items())]


def _prefix(key: bytes) -> bytes:
    return _LENGTH.pack(len(key)) + key


def _prefixes(keys: pa.Array) -> pa.Array:
    lengths = pc.binary_length(keys).to_numpy().astype(">u4")
    packed = np.ascontiguousarray(lengths).view(np.uint8).reshape(-1, _LENGTH.size)
    return _joined([binary_from_matrix(packed), keys])


def _joined(parts: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))


def _behind(prefix: bytes) -> bytes:
    """Sorts behind all keys that begin with ``prefix``."""
    rest = prefix.rstrip(_LAST)
    return rest[:-1] + bytes((rest[-1] + 1,))
