"""Two tables joined: by their keys, or by a foreign key (KIP-213; note 022): then an entry
subscribes under that key with the hash of its value, which the answer carries back, so that a stale
one is known."""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.grouping import NEVER, Flags, rows_by_task, task_codes
from everflow.operators.joins.joined_table import (
    JoinKind,
    TableEntries,
    TableLookup,
    TableRead,
    first_and_last,
    joined,
)
from everflow.operators.user_code import written_alike, written_bytes
from everflow.records import ByteColumn, EdgeBatch, Int32, Int64, StoreChanges, TasksResult, valid
from everflow.serdes import Serde
from everflow.serdes.base import binary_from_matrix
from everflow.state.changelog import unpack_value
from everflow.state.key_ranges import after_prefix
from everflow.state.store import StoreView
from everflow.topology.batches import appended, concat
from everflow.topology.graph import Inputs, Operator


@dataclass(frozen=True, kw_only=True)
class TableTableJoin(Operator):
    """Inner, left or outer join of two tables by primary key (KTable-KTable). The first two sides
    are their updates, the others those of what they are made of.

    Each change gives a result, or a deletion where there is none any more. It gives nothing where
    there cannot have been one: while the other side has no entry, if its own side is not kept
    without a match; or for the deletion of what was not there on either side. A result's time is
    the later of both sides'. One result per key and batch, the last, or all of them with
    ``emit_every_update``. ``left_first``: of an input record that changes both tables, the left
    one's change comes first.
    """

    left: TableRead
    right: TableRead
    kind: JoinKind
    left_first: bool = True
    emit_every_update: bool = False
    one_result: ClassVar[bool] = True
    joins: ClassVar[bool] = True
    old_from: ClassVar[tuple[int, ...]] = (0, 1)

    @property
    def through(self) -> tuple[tuple[str, ...], ...]:
        return (*self.left.through, *self.right.through)

    @property
    def old_sides(self) -> tuple[int, ...]:
        keeps = self.kind.keeps_left, self.kind.keeps_right
        return tuple(side for side in (0, 1) if keeps[side])

    def meets(self, sides: int) -> Iterable[Iterable[int]]:
        pairs = {(0, table.side) for table in self.right.stored}
        return sorted({(0, 1), *pairs, *((1, table.side) for table in self.left.stored)})

    def run(self, inputs: Inputs) -> TasksResult:
        left, right = inputs.sides[:2]
        keeps = self.kind.keeps_left, self.kind.keeps_right
        results = [
            _results(
                _Changes(
                    left,
                    self.right.entries_for(left, inputs),
                    *keeps,
                    of_left=True,
                )
            ),
            _results(
                _Changes(
                    right,
                    self.left.entries_for(right, inputs),
                    *keeps[::-1],
                    of_left=False,
                )
            ),
        ]
        both = concat(results if self.left_first else results[::-1])
        if not self.emit_every_update and len(both):
            table = self.left.stored[0]
            first, last = first_and_last(task_codes(table.keys_of(both), both.partition))
            found = both.take(last)
            if both.old is not None:
                found.old = found.with_columns(value=both.old.value.take(first))
            both = found
        return TasksResult(both, {}, {}, {})


@dataclass(frozen=True)
class _Changes:
    """Changes of one side, the other's entry at each, and if either is kept unmatched."""

    own: EdgeBatch
    other: TableEntries
    keeps_own: bool
    keeps_other: bool
    of_left: bool

    def joined(self, own: pa.Array, rows: Int64) -> pa.Array:
        """The side's values with the other's entry, in ``rows``; null where that is no result."""
        mine, there = valid(own), valid(self.other.values)
        shown = (mine | self.keeps_other) & (there | self.keeps_own) & (mine | there)
        left, right = (own, self.other.values) if self.of_left else (self.other.values, own)
        return joined(left, right).take(pa.array(rows, mask=~shown[rows]))


def _results(changes: _Changes) -> EdgeBatch:
    """The results of one side's changes; with what each was before, where that is known."""
    old = changes.own.old
    own, other = valid(changes.own.value), valid(changes.other.values)
    has_result = other
    if changes.keeps_own:
        assert old is not None
        has_result = other | own | valid(old.value)
    rows = np.flatnonzero(has_result)
    found = replace(changes.own, old=None).take(rows)
    found = found.with_columns(value=changes.joined(changes.own.value, rows))
    times = np.maximum(found.timestamp, changes.other.times[rows])
    was = None
    if old is not None:
        was = replace(found.with_columns(value=changes.joined(old.value, rows)), timestamp=times)
    return replace(found, timestamp=times, old=was)


# --- a foreign key: what an entry asks, in the task of the entry ---------------------------------


HASH_BYTES = 16
SUBSCRIPTION = pa.struct([("entry", pa.binary()), ("hash", pa.binary()), ("order", pa.int32())])
"""Key bytes of the entry, hash of its value (null: it is gone), and an `Order`."""


class Order(enum.IntEnum):
    """What an entry asks of its foreign key, as Kafka Streams' instructions; the last is ours."""

    FORGET = 0
    FORGET_AND_TELL = 1
    """Answer null."""
    TELL = 2
    """Remember it, and answer what there is, or null."""
    TELL_IF_THERE = 3
    """Remember it, and answer only if there is something."""
    TELL_IF_GONE = 4
    """Answer null if there is nothing, and remember nothing: it is remembered already."""


_FORGETS = Order.FORGET, Order.FORGET_AND_TELL


def selected_type(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """``struct<fk, value>``: an entry with its foreign key; null where there is none."""
    return pa.struct([("fk", key), ("value", value)])


def answer_type(value: pa.DataType) -> pa.DataType:
    """``struct<hash, found>``: the hash of the asking entry, and the other table's value."""
    return pa.struct([("hash", pa.binary()), ("found", value)])


def subscriptions(entries: pa.Array, hashes_: pa.Array, orders: Int64) -> pa.StructArray:
    columns = [entries, hashes_, pa.array(orders, pa.int32())]
    return pa.StructArray.from_arrays(columns, fields=list(SUBSCRIPTION))


def hashes(values: pa.Array) -> pa.Array:
    found = [
        None if data is None else blake2b(data, digest_size=HASH_BYTES).digest()
        for data in values.to_pylist()
    ]
    return pa.array(found, pa.binary())


@dataclass(frozen=True)
class ForeignKeys(Operator):
    """The subscriptions that changes of a table's entries ask for: of what a batch has made of an
    entry, or, with ``emit_every_update``, each change. The side is what an entry is, and was, as
    `selected_type`."""

    key_serde: Serde
    value_serde: Serde
    foreign_serde: Serde
    """Of the foreign keys: an entry keeps its one where the bytes stay the same."""
    kind: JoinKind
    emit_every_update: bool = False
    old_sides: ClassVar[tuple[int, ...]] = (0,)

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: the order to the old foreign key comes first."""
        (right,) = inputs.sides
        left = right.old
        assert left is not None
        dropped = 0
        if not self.kind.keeps_left:
            keyed = valid(right.value.flatten()[0])
            dropped = int(np.count_nonzero(valid(right.value) & ~keyed))
        entries = written_bytes(self.key_serde, right.key, "subscriptions", right)
        if not self.emit_every_update:
            first, last = first_and_last(task_codes(entries, right.partition))
            left, right = left.take(first), right.take(last)
            entries = entries.take(last)
        old, new = (side.value.flatten()[0] for side in (left, right))
        was, there = valid(left.value), valid(right.value)
        same = written_alike(self.foreign_serde, old, new)
        tell_old = valid(old) & ~same
        # The new key's answer takes the place of the old one's, where there is a new one.
        if self.kind.keeps_left:
            tell_new = was | there
            forget = np.full(len(right), Order.FORGET)
            order = np.full(len(right), Order.TELL)
        else:
            tell_new = valid(new)
            forget = np.where(valid(new), Order.FORGET, Order.FORGET_AND_TELL)
            order = np.where(tell_old, Order.TELL, Order.TELL_IF_THERE)
        rows = np.concatenate([np.flatnonzero(tell_old), np.flatnonzero(tell_new)])
        is_new = np.arange(len(rows)) >= np.count_nonzero(tell_old)
        turn = np.lexsort((is_new, rows))
        rows, is_new = rows[turn], is_new[turn]
        key = pa.concat_arrays([old, new]).take(rows + is_new * len(right))
        written = written_bytes(
            self.value_serde,
            right.value.flatten()[1],
            "subscriptions",
            right,
        )
        at = pa.array(rows)
        orders = np.where(is_new, order[rows], forget[rows])
        value = subscriptions(entries.take(at), hashes(written).take(at), orders)
        output = right.take(rows).with_columns(key, value)
        return TasksResult(output, {}, {}, {"null-foreign-key": dropped})


# --- the entries that ask for a foreign key, in the task of that key (KIP-213; note 022) ----------
# They are answered when they ask, and whenever the key's entry changes. A key in the store: the
# foreign key's length (4 bytes), its bytes, the entry's key bytes; the value: its value's hash.


_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, kw_only=True)
class Subscriptions(TableLookup):
    """The first side are subscriptions, the second one the updates of the table of foreign keys,
    the others those of what it is made of. Results have the asking entry's key and the value
    `answer_type`; their time is the later of the subscription's and the found entry's, or the
    update's."""

    store: str
    table: TableRead
    entry_serde: Serde
    """The serde of the keys of the entries that ask."""
    foreign_serde: Serde
    kept: bool
    """True if an entry without a foreign key has a result."""
    joins: ClassVar[bool] = True

    @property
    def takes_null_keys(self) -> bool:
        return self.kept

    def run(self, inputs: Inputs) -> TasksResult:
        left, right = inputs.sides[:2]
        found = self.table.entries_for(left, inputs)
        asks = self._asks(left)
        keys = written_bytes(self.foreign_serde, right.key, self.store, right).to_pylist()
        answers = [
            one
            for partition, rows in rows_by_task(right.partition)
            for one in _answers_to(
                inputs.stores[partition][self.store],
                asks,
                right,
                rows,
                keys,
            )
        ]
        changes = {
            partition: [made]
            for partition in inputs.stores
            if len(made := asks.changes(self.store, partition))
        }
        output = self._answered(left, right, found, asks, answers)
        after = {
            partition: max([before, *(_latest(side, partition) for side in (left, right))])
            for partition, before in inputs.stream_times.items()
        }
        return TasksResult(output, changes, after, {})

    def _asks(self, left: EdgeBatch) -> _Asks:
        entries, hashes, orders = left.value.flatten()
        keys = written_bytes(self.foreign_serde, left.key, self.store, left)
        return _Asks(left, keys, entries, hashes, orders.to_numpy())

    def _answered(
        self,
        left: EdgeBatch,
        right: EdgeBatch,
        found: TableEntries,
        asks: _Asks,
        answers: list[_Answer],
    ) -> EdgeBatch:
        """The answers as records, in the order of what made them; an ask before an update."""
        plain = [
            side.with_columns(pa.nulls(len(side), pa.int8()), value=pa.nulls(len(side), pa.int8()))
            for side in (left, right)
        ]
        there = found.times != NEVER
        answered = asks.answered(there)
        of_updates = np.array([one.row for one in answers], np.int64)
        rows = np.concatenate([answered, len(left) + of_updates])
        made = appended(plain).take(rows)
        entries = pa.array([one.entry for one in answers], pa.binary())
        hashes = pa.array([one.hash for one in answers], pa.binary())
        shown = np.concatenate(
            [
                (there & (asks.orders != Order.FORGET_AND_TELL))[answered],
                valid(right.value)[of_updates],
            ]
        )
        index = pa.array(answered)
        values = pa.concat_arrays([found.values, right.value.cast(found.values.type)])
        value = pa.StructArray.from_arrays(
            [
                pa.concat_arrays([asks.hashes.take(index), hashes]),
                values.take(pa.array(rows, mask=~shown)),
            ],
            fields=list(answer_type(self.table.type)),
        )
        keys = pa.concat_arrays([asks.entries.take(index), entries])
        made = made.with_columns(self.entry_serde.decode_array(keys), value)
        times = np.concatenate([np.maximum(left.timestamp, found.times), right.timestamp])
        made.timestamp = times[rows]
        return made.take(np.lexsort((rows >= len(left), made.partition, made.seq)))


def _latest(side: EdgeBatch, partition: int) -> int:
    return int(side.timestamp[side.partition == partition].max(initial=-1))


class _Ask(NamedTuple):
    seq: int
    key: bytes
    entry: bytes
    hash: bytes | None
    order: int


@dataclass(frozen=True)
class _Asks:
    batch: EdgeBatch
    keys: pa.Array
    entries: pa.Array
    hashes: pa.Array
    orders: Int32

    def answered(self, there: Flags) -> Int64:
        """The rows that are answered at once; ``there``: whether the foreign key's entry was."""
        is_answered = self.orders != Order.FORGET
        is_answered &= there | (self.orders != Order.TELL_IF_THERE)
        is_answered &= ~there | (self.orders != Order.TELL_IF_GONE)
        return np.flatnonzero(is_answered)

    def of_keys(self, partition: int, keys: Collection[bytes]) -> list[_Ask]:
        wanted = pc.is_in(self.keys, pa.array(list(keys), pa.binary()))
        chosen = wanted.to_numpy(zero_copy_only=False) & (self.batch.partition == partition)
        rows = np.flatnonzero(chosen)
        index = pa.array(rows)
        columns = (self.keys, self.entries, self.hashes)
        found = (column.take(index).to_pylist() for column in columns)
        parts = zip(
            self.batch.seq[rows].tolist(),
            *found,
            self.orders[rows].tolist(),
            strict=True,
        )
        return [_Ask(*one) for one in parts]

    def changes(self, store: str, partition: int) -> StoreChanges:
        """The subscriptions that a task adds and drops: the last of each foreign key and entry."""
        meant = valid(self.keys) & (self.orders != Order.TELL_IF_GONE)
        rows = np.flatnonzero(meant & (self.batch.partition == partition))
        index = pa.array(rows)
        keys = self.keys.take(index)
        stored = _joined([_prefixes(keys), self.entries.take(index)])
        _, last = first_and_last(stored.dictionary_encode().indices.to_numpy())
        rows = rows[last]
        forgets = np.isin(self.orders[rows], _FORGETS)
        values = self.hashes.take(rows).fill_null(b"")
        kept = values.take(pa.array(np.arange(len(rows)), mask=forgets))
        stored = ByteColumn(stored.take(last))
        return StoreChanges(store, stored, ByteColumn(kept), self.batch.timestamp[rows])


class _Answer(NamedTuple):
    """An answer to an update: the update's row, the entry that asked, and its hash."""

    row: int
    entry: bytes
    hash: bytes | None


def _answers_to(
    view: StoreView, asks: _Asks, updates: EdgeBatch, rows: Int64, keys: Sequence[bytes]
) -> list[_Answer]:
    """The answers to a task's updates: for who asked before, in this batch or earlier."""
    known = _subscribers(view, {keys[row] for row in rows.tolist()})
    found: list[_Answer] = []
    before = iter(asks.of_keys(int(updates.partition[rows[0]]), known))
    ask = next(before, None)
    for row, seq in zip(rows.tolist(), updates.seq[rows].tolist(), strict=True):
        while ask is not None and ask.seq <= seq:
            if ask.order in _FORGETS:
                known[ask.key].pop(ask.entry, None)
            elif ask.order != Order.TELL_IF_GONE:
                known[ask.key][ask.entry] = ask.hash or b""
            ask = next(before, None)
        found += [
            _Answer(row, one, hash_ or None) for one, hash_ in sorted(known[keys[row]].items())
        ]
    return found


def _subscribers(view: StoreView, keys: set[bytes]) -> dict[bytes, dict[bytes, bytes]]:
    """Of each foreign key the entries that have asked for it, each with its hash."""
    listed = sorted(keys)
    bounds = [(_prefix(key), after_prefix(_prefix(key)) or b"") for key in listed]
    found = {}
    for key, entries in zip(listed, view.range_many(bounds), strict=True):
        begin = len(_prefix(key))
        found[key] = {stored[begin:]: unpack_value(entry)[1] for stored, entry in entries}
    return found


def _prefix(key: bytes) -> bytes:
    return _LENGTH.pack(len(key)) + key


def _prefixes(keys: pa.Array) -> pa.Array:
    lengths = pc.binary_length(keys).to_numpy().astype(">u4")
    packed = np.ascontiguousarray(lengths).view(np.uint8).reshape(-1, _LENGTH.size)
    return _joined([binary_from_matrix(packed), keys])


def _joined(parts: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))


# --- the answers of foreign keys, back in the task of the entry that asked (KIP-213; note 022) ----


class _ReadsAnswers(Operator):
    """An operator whose last side, the answers, looks up the table that asked."""

    table: TableRead
    selected: TableRead | None

    @property
    def through(self) -> tuple[tuple[str, ...], ...]:
        selected = () if self.selected is None else self.selected.through
        return (*self.table.through, *selected)

    def meets(self, sides: int) -> Iterable[Iterable[int]]:
        return ((side, sides - 1) for side in range(sides - 1))


@dataclass(frozen=True, kw_only=True)
class Answers(_ReadsAnswers):
    """The last side are the answers, the others the updates of what the table that asked is made
    of. An answer for a value that is not the entry's any more is stale and left out; the others
    give the joined value, or a deletion where there is nothing to join.

    One result per key and batch, the last, or all of them with ``emit_every_update``.
    """

    table: TableRead
    selected: TableRead | None
    """Of an inner join, the table's entries with their foreign keys (`selected_type`): where one
    has none, or is gone, an answer that there is nothing holds for every request."""
    value_serde: Serde
    kind: JoinKind
    emit_every_update: bool = False
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        answers = inputs.sides[-1]
        current = self.table.entries_for(answers, inputs).values
        _, found = answers.value.flatten()
        holds = _holds(answers, current, self.value_serde, self.table)
        shown = valid(current) & (valid(found) | self.kind.keeps_left)
        if self.selected is not None:
            rows = np.flatnonzero(~holds & ~valid(found))
            entries = self.selected.entries_for(answers.take(rows), inputs).values
            holds[rows] = ~valid(entries.flatten()[0])
        fresh = np.flatnonzero(holds)
        value = joined(current, found).take(pa.array(fresh, mask=~shown[fresh]))
        output = answers.take(fresh).with_columns(value=value)
        if not self.emit_every_update:
            keys = self.table.stored[0].keys_of(output)
            _, last = first_and_last(task_codes(keys, output.partition))
            output = output.take(last)
        return TasksResult(output, {}, {}, {})


@dataclass(frozen=True, kw_only=True)
class AskAgain(_ReadsAnswers):
    """Asks again for what the entries of stale answers are now, if these say that there is nothing;
    for what the batch has made of an entry, as `ForeignKeys` has before it. The first side are the
    changes of entries in the batch, as `selected_type`, the last one the answers; between them see
    `Answers`."""

    table: TableRead
    selected: TableRead
    key_serde: Serde
    value_serde: Serde
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: one question for each entry. Where it has no foreign key any more,
        the old one gets the order to forget it, and answers that there is nothing."""
        left, stale = inputs.sides[0], self._stale(inputs)
        both = appended([stale, left if len(stale) else left.take(np.empty(0, np.int64))])
        entries = written_bytes(self.key_serde, both.key, "subscriptions", both)
        first, last = first_and_last(task_codes(entries, both.partition))
        chosen = np.argsort(first)
        chosen = chosen[first[chosen] < len(stale)]
        first, last = first[chosen], last[chosen]
        keys, values = both.value.flatten()
        keyed, index = valid(keys)[last], pa.array(last)
        now = written_bytes(
            self.value_serde,
            values.take(index),
            "subscriptions",
            both,
            last,
        )
        orders = np.where(keyed, Order.TELL_IF_GONE, Order.FORGET_AND_TELL)
        value = subscriptions(entries.take(index), hashes(now), orders)
        key = keys.take(np.where(keyed, last, first))
        times = np.maximum(both.timestamp[first], both.timestamp[last])
        output = replace(both.take(first).with_columns(key, value), timestamp=times)
        return TasksResult(output, {}, {}, {})

    def _stale(self, inputs: Inputs) -> EdgeBatch:
        answers = inputs.sides[-1]
        answers = answers.take(np.flatnonzero(~valid(answers.value.flatten()[1])))
        current = self.table.entries_for(answers, inputs)
        stale = valid(current.values) & ~_holds(
            answers, current.values, self.value_serde, self.table
        )
        rows = np.flatnonzero(stale)
        times = np.maximum(current.times, answers.timestamp)[rows]
        found = replace(answers.take(rows), timestamp=times)
        entries = self.selected.entries_for(found, inputs).values
        found = found.with_columns(value=entries)
        return found.take(np.flatnonzero(valid(entries.flatten()[0])))


def _holds(answers: EdgeBatch, current: pa.Array, serde: Serde, table: TableRead) -> Flags:
    """Where the hash that an answer carries is that of the entry as it is now."""
    now = hashes(written_bytes(serde, current, table.stored[0].spec.name, answers))
    asked = answers.value.flatten()[0]
    neither = pc.and_(pc.is_null(asked), pc.is_null(now))
    equal = pc.or_(neither, pc.equal(asked, now).fill_null(False))
    found: Flags = equal.to_numpy(zero_copy_only=False)
    return found
