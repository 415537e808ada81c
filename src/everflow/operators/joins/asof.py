"""As-of join of two streams: each left record with the latest right one that is not later than it.

Stream time is that of both sides. The right side's records are kept, by key and time, for tolerance
and grace behind it: a left record that is not later than the grace finds all it may meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.grouping import (
    NEVER,
    Kept,
    Stores,
    TaskKeys,
    changes_by_task,
    extent,
    read_as_of,
    rows_by_task,
    stored,
    stream_times,
    task_codes,
)
from everflow.operators.joins.joined_table import (
    NONE,
    STORED,
    JoinKind,
    Versions,
    joined,
    latest_before,
)
from everflow.operators.joins.stream_table import HeldBack, Released, TimeMakers, come_out
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int32, Int64, StoreChanges, TasksResult, valid
from everflow.serdes.windowed import window_store_keys
from everflow.state.store import StoreSpec
from everflow.topology.batches import appended
from everflow.topology.graph import Inputs, Operator


@dataclass(frozen=True, kw_only=True)
class AsOfJoin(Operator):
    """Inner or left. A left record at t meets, of the right records with its key from
    t - ``tolerance_ms`` to t, the latest (of one time the one that came last), as far as they have
    come when stream time has reached t and the grace (``held``; without one: when it comes itself).
    One that is later than that is joined at once.

    Right records are dropped as late once no left record within the grace can meet them. Null
    values are dropped; null keys too, but of a left join's left side, which comes at once with a
    null right. A result has the left record's time and headers.
    """

    kind: JoinKind
    right: StoreSpec
    type: pa.DataType
    tolerance_ms: int
    held: HeldBack | None
    left_first: bool = True
    """The side that takes an input record first that is on both."""
    joins: ClassVar[bool] = True

    @property
    def takes_null_keys(self) -> bool:
        return self.kind.keeps_left

    @property
    def kept_ms(self) -> int:
        """The time for which right records are of use behind stream time (ms)."""
        return self.tolerance_ms + (0 if self.held is None else self.held.grace_ms)

    def run(self, inputs: Inputs) -> TasksResult:
        left, right = inputs.sides
        events = _Events.of(left, right, inputs.stream_times, self.kind.keeps_left, self.left_first)
        rights = right.take(events.rows[events.of_right])
        open_ = rights.timestamp >= events.running[events.of_right] - self.kept_ms
        came, puts = events.of_right[open_], rights.take(np.flatnonzero(open_))
        keys = written_bytes(self.right.key_serde, puts.key, self.right.name, puts)
        changes = changes_by_task(
            self.right.name,
            puts.partition,
            window_store_keys(keys, puts.timestamp),
            written_bytes(self.right.value_serde, puts.value, self.right.name, puts),
            puts.timestamp,
        )
        asking = left.take(events.rows[events.asking])
        output, places, waited = self._met(asking, events, puts, keys, came, inputs.stores)
        for partition, listed in waited.items():
            changes.setdefault(partition, []).extend(listed)
        alone = left.take(events.rows[events.keyless])
        alone = alone.with_columns(value=joined(alone.value, pa.nulls(len(alone), self.type)))
        order = np.argsort(np.concatenate([places, events.keyless]), kind="stable")
        dropped = {**events.dropped, "late": len(rights) - len(puts)}
        return TasksResult(appended([output, alone]).take(order), changes, events.after, dropped)

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult | None:
        if self.held is None:
            return None
        none = np.empty(0, np.int64)
        puts = inputs.sides[1].take(none)
        keys = written_bytes(self.right.key_serde, puts.key, self.right.name, puts)
        events = _Events.of_ticks(ticks, inputs.stream_times)
        output, _, changes = self._met(ticks.take(none), events, puts, keys, none, inputs.stores)
        return TasksResult(output, changes, {}, {})

    def _met(
        self,
        asking: EdgeBatch,
        events: _Events,
        puts: EdgeBatch,
        keys: pa.Array,
        came: Int64,
        stores: Stores,
    ) -> tuple[EdgeBatch, Int64, dict[int, list[StoreChanges]]]:
        """The results of left records that look for their match now, the places of the records that
        bring them, and the changes of the store in which left records wait."""
        released = self._released(asking, events, stores)
        found = self._found(released, events, puts, keys, came, stores)
        shown = np.arange(len(found)) if self.kind.keeps_left else np.flatnonzero(valid(found))
        by = events.both.take(released.at)
        output = come_out(by, released, joined(released.value, found)).take(shown)
        return output, released.at[shown], released.changes

    def _released(self, asking: EdgeBatch, events: _Events, stores: Stores) -> Released:
        if self.held is not None:
            makers = TimeMakers(events.both.partition, events.running)
            return self.held.release(asking, events.asking, makers, events.before, stores)
        keys = written_bytes(self.right.key_serde, asking.key, self.right.name, asking)
        return Released(
            events.asking,
            keys.cast(pa.binary()),
            asking.key,
            asking.value,
            asking.timestamp,
            asking.headers,
            {},
        )

    def _found(
        self,
        released: Released,
        events: _Events,
        puts: EdgeBatch,
        keys: pa.Array,
        came: Int64,
        stores: Stores,
    ) -> pa.Array:
        count, owners = len(released.keys), events.both.partition[released.at]
        # One that is late meets what is kept, and nothing that is not: that must not depend on
        # what a batch still holds.
        low = np.maximum(
            released.times - self.tolerance_ms, events.until[released.at] - self.kept_ms
        )
        both = pa.concat_arrays([released.keys, keys.cast(pa.binary())])
        codes = task_codes(both, np.concatenate([owners, puts.partition]))
        kept = self._stored(released, codes[:count], owners, low, stores)
        times = np.concatenate([kept.times, puts.timestamp])
        found = latest_before(
            codes[:count],
            released.times,
            released.at,
            Versions(
                np.concatenate([kept.codes, codes[count:]]),
                times,
                np.concatenate([np.full(len(kept.times), STORED), came]),
            ),
        )
        met = found != NONE
        met[met] = times[found[met]] >= low[met]
        used = np.unique(found[met & (found < len(kept.times))])
        values = stored(kept.entries.take(used).to_pylist(), self.right.value_serde)
        here = found >= len(kept.times)
        index = np.where(here, found - len(kept.times), len(puts) + np.searchsorted(used, found))
        column = pa.concat_arrays([puts.value.cast(self.type), values.values.cast(self.type)])
        return column.take(pa.array(np.where(met, index, 0), mask=~met))

    def _stored(
        self, released: Released, codes: Int64, owners: Int32, low: Int64, stores: Stores
    ) -> Kept:
        """The stored right records that the left ones may meet; each key is read once: from the one
        that holds for the earliest of them."""
        ones, first, group = np.unique(codes, return_index=True, return_inverse=True)
        least, _ = extent(group, len(ones), low, low)
        earliest, most = extent(group, len(ones), released.times, released.times)
        groups = TaskKeys(owners[first], released.keys.take(first))
        found = read_as_of(self.right.name, groups, least, earliest, most, stores)
        return found._replace(codes=ones[found.codes])


@dataclass(frozen=True, kw_only=True)
class _Events:
    """The records of both sides that are not dropped at once, in their order.

    ``both``: without values; ``rows``: of each in its side's batch; ``running``: stream time at
    each, ``until``: before it. ``asking``, ``keyless``, ``of_right``: places of left records with
    and without a key, and of right ones.
    """

    both: EdgeBatch
    rows: Int64
    running: Int64
    until: Int64
    before: Mapping[int, int]
    after: dict[int, int]
    asking: Int64
    keyless: Int64
    of_right: Int64
    dropped: dict[str, int]

    @staticmethod
    def of_ticks(ticks: EdgeBatch, before: Mapping[int, int]) -> _Events:
        none = np.empty(0, np.int64)
        return _Events(
            both=ticks.with_columns(value=pa.nulls(len(ticks))),
            rows=none,
            running=ticks.timestamp,
            until=np.array([before[one] for one in ticks.partition.tolist()], np.int64),
            before=before,
            after={},
            asking=none,
            keyless=none,
            of_right=none,
            dropped={},
        )

    @staticmethod
    def of(
        left: EdgeBatch,
        right: EdgeBatch,
        before: Mapping[int, int],
        keeps_left: bool,
        left_first: bool,
    ) -> _Events:
        keyed = [valid(side.key) for side in (left, right)]
        valued = [valid(side.value) for side in (left, right)]
        rows = [
            np.flatnonzero(valued[0] & (keyed[0] | keeps_left)),
            np.flatnonzero(valued[1] & keyed[1]),
        ]
        count = len(rows[0])
        sides = [
            side.take(taken).with_columns(value=pa.nulls(len(taken)))
            for side, taken in zip((left, right), rows, strict=True)
        ]
        unordered = appended(sides) if any(map(len, sides)) else sides[0]
        turn = np.repeat([0, 1] if left_first else [1, 0], [count, len(rows[1])])
        order = np.lexsort((turn, unordered.seq))
        both = unordered.take(order)
        keyless = ~valid(both.key)
        running, after = stream_times(
            np.where(keyless, NEVER, both.timestamp), both.partition, before
        )
        is_left = order < count
        return _Events(
            both=both,
            rows=np.concatenate(rows)[order],
            running=running,
            until=_until(running, both.partition, before),
            before=before,
            after=after,
            asking=np.flatnonzero(is_left & ~keyless),
            keyless=np.flatnonzero(keyless),
            of_right=np.flatnonzero(~is_left),
            dropped={
                "null-value": sum(int(np.count_nonzero(~one)) for one in valued),
                "null-key": int(np.count_nonzero(valued[0] & ~keyed[0])) * (not keeps_left)
                + int(np.count_nonzero(valued[1] & ~keyed[1])),
            },
        )


def _until(running: Int64, partitions: Int32, before: Mapping[int, int]) -> Int64:
    found = np.empty(len(running), np.int64)
    for partition, mine in rows_by_task(partitions):
        found[mine] = np.concatenate([[before[partition]], running[mine[:-1]]])
    return found
