"""The records of both sides of a stream-stream join, in the order in which they came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.grouping import stream_times
from everflow.operators.joins.join_side import JoinKeys, JoinSide
from everflow.operators.joins.joined_values import task_codes
from everflow.records import EdgeBatch, Int32, Int64

Flags = npt.NDArray[np.bool_]


@dataclass(kw_only=True)
class BatchRecords:
    """Columns by place, the position of a record among those of both sides.

    ``rows``: its row in its side's batch. ``stream_times``: of its task, itself included;
    ``before`` and ``after`` the whole batch, by task. ``side_times``: of its task's store of a
    side, itself included, by whether it is the left. ``live``: it has key and value; ``codes``: its
    task and key, as a number of ``groups`` (0 where it is not live). ``late``: it is live, and its
    window and the grace are over. ``stored``: it is live, and its side's store takes it.
    ``values``: bytes of each side's live records, in their order, by whether it is the left.
    ``keyless``: places of those that give a result without a match at once. ``advancing``: it has
    key and value, and no time before it was later.
    """

    left: JoinSide
    of_left: Flags
    rows: Int64
    times: Int64
    partitions: Int32
    stream_times: Int64
    before: Mapping[int, int]
    after: dict[int, int]
    side_times: dict[bool, Int64]
    live: Flags
    late: Flags
    stored: Flags
    codes: Int64
    groups: JoinKeys
    values: dict[bool, pa.Array]
    keyless: Int64
    advancing: Flags
    dropped: dict[str, int]

    def __len__(self) -> int:
        return len(self.times)

    @property
    def keys(self) -> pa.Array:
        return self.groups.keys

    def live_of(self, left: bool) -> Int64:
        """Places of the live records of a side."""
        return np.flatnonzero(self.live & (self.of_left == left))

    def stored_of(self, left: bool) -> Int64:
        """Places of the records of a side that its store takes."""
        return np.flatnonzero(self.stored & (self.of_left == left))

    def values_at(self, left: bool, places: Int64) -> pa.Array:
        """Value bytes of the live records of a side at these places."""
        return self.values[left].take(pa.array(np.searchsorted(self.live_of(left), places)))

    @staticmethod
    def of_ticks(
        left: JoinSide,
        right: JoinSide,
        ticks: EdgeBatch,
        nothing: EdgeBatch,
        before: Mapping[int, int],
    ) -> BatchRecords:
        """No records, but times that the tasks' stream times reach; ``nothing``: of the right
        side."""
        none = dict.fromkeys(before, -1)
        newest = {True: none, False: none}
        found = BatchRecords.of(
            left, right, ticks, nothing, before=before, newest=newest, left_first=True
        )
        return replace(found, advancing=found.times == found.stream_times, dropped={})

    @staticmethod
    def of(
        left: JoinSide,
        right: JoinSide,
        lefts: EdgeBatch,
        rights: EdgeBatch,
        *,
        before: Mapping[int, int],
        newest: Mapping[bool, Mapping[int, int]],
        left_first: bool,
    ) -> BatchRecords:
        """Judges each record by the times at its place. ``newest``: the own times of the stores
        before the batch, by side and task. ``left_first``: where one input record is on both sides.
        UserFunctionError for a key or value that cannot be written."""
        both = (lefts, rights)
        turn = np.repeat([0, 1] if left_first else [1, 0], [len(lefts), len(rights)])
        order = np.lexsort((turn, np.concatenate([b.seq for b in both])))
        of_left = order < len(lefts)
        rows = np.where(of_left, order, order - len(lefts))
        times = np.concatenate([b.timestamp for b in both])[order]
        partitions = np.concatenate([b.partition for b in both])[order]
        keyed = np.concatenate([valid(b.key) for b in both])[order]
        valued = np.concatenate([valid(b.value) for b in both])[order]
        running, after = stream_times(times, partitions, before)
        kept = np.where(of_left, left.kept, right.kept)
        live = keyed & valued
        late = live & (times + np.where(of_left, left.closes_ms, right.closes_ms) < running)
        side_times, stored = {}, np.zeros(len(times), bool)
        for side, mine in ((left, of_left), (right, ~of_left)):
            put = np.where(live & mine, times, -1)
            own, _ = stream_times(put, partitions, newest[side is left])
            side_times[side is left] = own
            stored |= live & mine & (times + side.stays_ms >= own)
        dropped = {
            "null-value": int(np.count_nonzero(~valued)),
            "null-key": int(np.count_nonzero(valued & ~keyed & ~kept)),
        }
        taken = {
            True: lefts.take(rows[live & of_left]),
            False: rights.take(rows[live & ~of_left]),
        }
        sides = {True: left, False: right}
        keys = pa.concat_arrays([sides[one].keys_of(taken[one]) for one in (True, False)])
        places = np.concatenate([np.flatnonzero(live & of_left), np.flatnonzero(live & ~of_left)])
        found = task_codes(keys, partitions[places])
        codes = np.zeros(len(times), np.int64)
        codes[places] = found
        _, first = np.unique(found, return_index=True)
        return BatchRecords(
            left=left,
            of_left=of_left,
            rows=rows,
            times=times,
            partitions=partitions,
            stream_times=running,
            before=before,
            after=after,
            side_times=side_times,
            live=live,
            late=late,
            stored=stored,
            codes=codes,
            groups=JoinKeys(partitions[places[first]], keys.take(pa.array(first))),
            values={one: sides[one].values_of(taken[one]) for one in (True, False)},
            keyless=np.flatnonzero(valued & ~keyed & kept),
            advancing=keyed & valued & (times == running),
            dropped={reason: count for reason, count in dropped.items() if count},
        )
