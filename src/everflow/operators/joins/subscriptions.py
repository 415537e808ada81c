"""The entries that ask for a foreign key, in the task of that key (KIP-213; note 022).

They are answered when they ask, and whenever the key's entry changes. A subscription's key in the
store is the foreign key's length (4 bytes), its bytes, and the entry's key bytes; its value is the
hash of the entry's value.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.foreign_keys import Order, answer_type
from everflow.operators.joins.joined_table import NEVER, JoinedTable
from everflow.operators.joins.joined_values import Stores
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, StoreChanges, TasksResult
from everflow.serdes import Serde
from everflow.state.changelog import unpack_value
from everflow.state.store import StoreView
from everflow.topology.hops import appended

_LENGTH = struct.Struct(">I")
_ABSENT = -1
_LAST = b"\xff"


@dataclass(frozen=True, kw_only=True)
class Subscriptions:
    """The left side are subscriptions, the right side the updates of the table of foreign keys.
    Results have the asking entry's key and the value `answer_type`; their time is the later of the
    subscription's and the found entry's, or the update's."""

    store: str
    table: JoinedTable
    entry_serde: Serde
    """Of the keys of the entries that ask."""
    foreign_serde: Serde
    kept: bool
    """Whether an entry without a foreign key has a result."""

    @property
    def takes_null_keys(self) -> bool:
        """See `JoinOperator`."""
        return self.kept

    def join_tasks(
        self, left: EdgeBatch, right: EdgeBatch, stores: Stores, stream_times: Mapping[int, int]
    ) -> TasksResult:
        """See `JoinOperator`."""
        held = self.table.when(left, right, stores, first=True)
        there = held.times != NEVER
        asks, updates = self._asks(left, there), self._updates(right)
        answers: list[_Answer] = []
        changes: dict[int, list[StoreChanges]] = {}
        for partition, views in stores.items():
            task = _Task(self.store, views[self.store])
            task.load({update.key for update in updates if update.partition == partition})
            both: list[_Ask | _Update] = [*asks, *updates]
            mine = [one for one in both if one.partition == partition]
            mine.sort(key=lambda one: one.seq)  # stable: an ask, then an update
            for one in mine:
                if isinstance(one, _Ask):
                    task.take(one)
                    if one.answered:
                        answers.append(_Answer(one.row, one.entry, one.hash, one.row, one.there))
                else:
                    answers += [
                        _Answer(len(left) + one.row, entry, hash_, len(left) + one.row, one.there)
                        for entry, hash_ in task.known(one.key)
                    ]
            made = task.changes()
            if len(made):
                changes[partition] = [made]
        output = self._answered(left, right, held.values, answers)
        times = np.concatenate([np.maximum(left.timestamp, held.times), right.timestamp])
        output.timestamp = times[[one.row for one in answers]] if answers else output.timestamp
        after = {
            partition: max([before, *(_latest(side, partition) for side in (left, right))])
            for partition, before in stream_times.items()
        }
        return TasksResult(output, changes, after, {})

    def decode_result(self, data: bytes) -> Any:
        """See `JoinOperator`."""
        return data

    def _asks(self, left: EdgeBatch, there: np.ndarray[Any, Any]) -> list[_Ask]:
        keys = written_bytes(self.foreign_serde, left.key, self.store, left).to_pylist()
        entries, hashes, orders = (column.to_pylist() for column in left.value.flatten())
        rows = zip(
            range(len(left)),
            left.seq.tolist(),
            left.partition.tolist(),
            keys,
            entries,
            hashes,
            orders,
            left.timestamp.tolist(),
            there.tolist(),
            strict=True,
        )
        return [_Ask(*row) for row in rows]

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

    def _answered(
        self, left: EdgeBatch, right: EdgeBatch, held: pa.Array, answers: list[_Answer]
    ) -> EdgeBatch:
        """The answers as records, each with the place of what made it."""
        answers.sort(key=lambda one: _seq(left, right, one.row))  # tasks take turns
        plain = [
            side.with_columns(pa.nulls(len(side), pa.int8()), value=pa.nulls(len(side), pa.int8()))
            for side in (left, right)
        ]
        made = appended(plain).take(np.array([one.row for one in answers], np.int64))
        keys = self.entry_serde.decode_array(pa.array([one.entry for one in answers], pa.binary()))
        places = [one.value if one.there else _ABSENT for one in answers]
        at = pa.array([None if place < 0 else place for place in places], pa.int64())
        found = pa.concat_arrays([held, right.value.cast(held.type)]).take(at)
        hashes = pa.array([one.hash for one in answers], pa.binary())
        value = pa.StructArray.from_arrays(
            [hashes, found], fields=list(answer_type(self.table.type))
        )
        return made.with_columns(keys, value)


def _latest(side: EdgeBatch, partition: int) -> int:
    return int(side.timestamp[side.partition == partition].max(initial=-1))


def _seq(left: EdgeBatch, right: EdgeBatch, row: int) -> int:
    return int(left.seq[row] if row < len(left) else right.seq[row - len(left)])


class _Ask(NamedTuple):
    """A subscription: its row, and whether the foreign key's entry was there when it came."""

    row: int
    seq: int
    partition: int
    key: bytes | None
    entry: bytes
    hash: bytes | None
    order: int
    time: int
    found: bool

    @property
    def there(self) -> bool:
        """Whether the answer has a value."""
        return self.found and self.order != Order.FORGET_AND_TELL

    @property
    def answered(self) -> bool:
        """Whether it is answered at once."""
        if self.order == Order.TELL_IF_THERE:
            return self.found
        return self.order != Order.FORGET


class _Update(NamedTuple):
    """A change of the table of foreign keys: its row, and whether there is an entry now."""

    row: int
    seq: int
    partition: int
    key: bytes
    there: bool


class _Answer(NamedTuple):
    """An answer: the row that made it (the right side's behind the left side's), the entry and its
    hash, and the row of the value, if ``there`` is one."""

    row: int
    entry: bytes
    hash: bytes | None
    value: int
    there: bool


@dataclass
class _Task:
    """A task's subscriptions during a batch: those of the keys that change, and what is new."""

    store: str
    view: StoreView
    of_key: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)
    made: dict[bytes, tuple[bytes | None, int]] = field(default_factory=dict)

    def load(self, keys: set[bytes]) -> None:
        """Read the subscriptions of these foreign keys."""
        listed = sorted(keys)
        bounds = [(_prefix(key), _behind(_prefix(key))) for key in listed]
        for key, entries in zip(listed, self.view.range_many(bounds), strict=True):
            begin = len(_prefix(key))
            self.of_key[key] = {stored[begin:]: unpack_value(entry)[1] for stored, entry in entries}

    def take(self, ask: _Ask) -> None:
        """Remember or forget an entry."""
        if ask.key is None:
            return
        forgets = ask.order in (Order.FORGET, Order.FORGET_AND_TELL)
        kept = None if forgets else ask.hash or b""
        self.made[_prefix(ask.key) + ask.entry] = (kept, ask.time)
        known = self.of_key.get(ask.key)
        if known is None:
            return
        if kept is None:
            known.pop(ask.entry, None)
        else:
            known[ask.entry] = kept

    def known(self, key: bytes) -> list[tuple[bytes, bytes | None]]:
        """Entries and hashes of a foreign key, in the order of their keys."""
        return [(entry, hash_ or None) for entry, hash_ in sorted(self.of_key[key].items())]

    def changes(self) -> StoreChanges:
        """What is new, for the store."""
        values = list(self.made.values())
        return StoreChanges(
            self.store,
            list(self.made),
            [value for value, _ in values],
            np.array([time for _, time in values], np.int64),
        )


def _prefix(key: bytes) -> bytes:
    return _LENGTH.pack(len(key)) + key


def _behind(prefix: bytes) -> bytes:
    """Sorts behind all keys that begin with ``prefix``."""
    rest = prefix.rstrip(_LAST)
    return rest[:-1] + bytes((rest[-1] + 1,))
