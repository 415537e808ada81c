"""What a table tells the tasks of its foreign keys, and what they answer (KIP-213; note 022).

An entry subscribes under its foreign key with the hash of its value; an answer carries that hash
back, so that one for a value that is gone is known as stale.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.fold import valid
from everflow.operators.joins.joined_values import (
    JoinKind,
    first_and_last,
    task_codes,
)
from everflow.operators.user_code import written_alike, written_bytes
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.serdes import Serde
from everflow.topology.graph import Inputs, Operator

HASH_BYTES = 16
SUBSCRIPTION = pa.struct([("entry", pa.binary()), ("hash", pa.binary()), ("order", pa.int32())])
"""Key bytes of the entry, hash of its value (null: it is gone), and an `Order`."""


class Order(enum.IntEnum):
    """What an entry asks of its foreign key, as Kafka Streams' instructions; the last one is
    ours."""

    FORGET = 0
    FORGET_AND_TELL = 1
    """Answer null."""
    TELL = 2
    """Remember it, and answer what there is, or null."""
    TELL_IF_THERE = 3
    """Remember it, and answer only if there is something."""
    TELL_IF_GONE = 4
    """Answer null if there is nothing, and remember nothing: it is remembered already."""


def selected_type(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """``struct<fk, value>``: an entry with its foreign key; null where there is none."""
    return pa.struct([("fk", key), ("value", value)])


def answer_type(value: pa.DataType) -> pa.DataType:
    """``struct<hash, found>``: the hash of the asking entry, and the other table's value."""
    return pa.struct([("hash", pa.binary()), ("found", value)])


def subscriptions(entries: pa.Array, hashes_: pa.Array, orders: Int64) -> pa.StructArray:
    """What entries ask, as `SUBSCRIPTION`."""
    columns = [entries, hashes_, pa.array(orders, pa.int32())]
    return pa.StructArray.from_arrays(columns, fields=list(SUBSCRIPTION))


def hashes(values: pa.Array) -> pa.Array:
    """A hash of each value's bytes; null stays null."""
    found = [
        None if data is None else blake2b(data, digest_size=HASH_BYTES).digest()
        for data in values.to_pylist()
    ]
    return pa.array(found, pa.binary())


@dataclass(frozen=True)
class ForeignKeys(Operator):
    """The subscriptions that changes of a table's entries ask for. The side is what an entry is,
    and was, as `selected_type`.

    What a batch has made of an entry asks, or each change with ``emit_every_update``: an answer to
    another one would be stale.
    """

    key_serde: Serde
    value_serde: Serde
    foreign_serde: Serde
    """Of the foreign keys: an entry keeps its one where the bytes stay the same."""
    kind: JoinKind
    emit_every_update: bool = False
    old_sides: ClassVar[tuple[int, ...]] = (0,)

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: what the old foreign key is told comes first."""
        (right,) = inputs.sides
        left = right.old
        assert left is not None
        dropped = 0 if self.kind.keeps_left else _without_foreign_key(right)
        entries = written_bytes(self.key_serde, right.key, "subscriptions", right)
        if not self.emit_every_update:
            first, last = first_and_last(task_codes(entries, right.partition))
            left, right = left.take(first), right.take(last)
            entries = entries.take(pa.array(last))
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
        key = pa.concat_arrays([old, new]).take(pa.array(rows + is_new * len(right)))
        written = written_bytes(self.value_serde, right.value.flatten()[1], "subscriptions", right)
        at = pa.array(rows)
        orders = np.where(is_new, order[rows], forget[rows])
        value = subscriptions(entries.take(at), hashes(written).take(at), orders)
        return TasksResult(
            right.take(rows).with_columns(key, value),
            {},
            {},
            {"null-foreign-key": dropped} if dropped else {},
        )


def _without_foreign_key(side: EdgeBatch) -> int:
    return int(np.count_nonzero(valid(side.value) & ~valid(side.value.flatten()[0])))


def hashes_equal(one: pa.Array, other: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Where both are equal, or both null."""
    both = pc.and_(pc.is_null(one), pc.is_null(other))
    equal = pc.or_(both, pc.equal(one, other).fill_null(False))
    found: np.ndarray[Any, np.dtype[np.bool_]] = equal.to_numpy(zero_copy_only=False)
    return found
