"""Follows changelogs for copies: in bulk while they are far behind, by a consumer near the end.

In bulk one log is read after the other; the consumer waits over all the others at once.
read_committed: the broker gives nothing beyond the last stable offset. At the end of the logs a
round costs one waiting fetch per broker for all partitions together.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everflow.errors import LogStartMovedError, RetriableError
from everflow.kafka.reading.client_tap import ClientTap
from everflow.kafka.reading.fetch_tap import FetchTap
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.record_batches import UnsupportedBatchError
from everflow.kafka.reading.taps import Tap, Taps
from everflow.records import TopicPartition

BULK_LAG = 50_000
"""Offsets behind the stable end from which on reading in bulk is worth the change: a fetch's worth
or so."""
BULK_AGAIN_S = 10.0
"""After a fault of reading in bulk the consumer, which never waits for a broker, has everything for
so long."""
BULK_IDLE_S = 30.0
"""A connection that nobody was far behind for so long to use is dropped."""
FETCHING: Mapping[str, Any] = {
    # records come at once whatever this says; a tail of markers after so long
    "fetch.wait.max.ms": 200,
    "fetch.message.max.bytes": 2 << 20,
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16_384,  # the bytes that following may hold, over all partitions
}
_FETCH_BYTES = 4 << 20
_PARSED_BYTES = 1 << 20
"""What is parsed at once of a fetch: the caller's promotions wait for it."""
_STALL_S = 10.0
"""An answer may take so long; nothing waits for it meanwhile."""
_ATTEND_S = 1.0
"""How long a failed fetch is attended to before the log is given back: the caller has promotions to
serve."""
_CONNECT_S = 3.0

_log = logging.getLogger(__name__)


@dataclass
class FollowedRound:
    """What one round brought: a chunk per partition that moved, and the partitions whose position
    the log no longer holds."""

    chunks: dict[TopicPartition, LogChunk] = field(default_factory=dict)
    gone: dict[TopicPartition, str] = field(default_factory=dict)


class CopyFollower:
    """Follows a changing set of logs; owned by one thread. Holds the consumer's queue (16 MiB) and
    two fetches of 4 MiB at most, whatever the number of logs."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        bulk_lag: int = BULK_LAG,
        folds: bool = True,
        every: frozenset[str] = frozenset(),
        to_ends: frozenset[str] = frozenset(),
        taps: Taps | None = None,
    ) -> None:
        """``config``: librdkafka keys, ``bootstrap.servers`` at least; ``clock``: monotonic
        seconds; ``folds``: see `LogChunk.latest`; ``taps`` in place of those of ``config``.

        ``every``: topics of which no record is left out, though a later one of its key is there.
        ``to_ends``: topics of which nothing is read beyond the ends that `poll` is told, though
        there is more."""
        self._every, self._to_ends = every, to_ends
        self._resting: dict[TopicPartition, int] = {}
        """Logs of such topics that are read to their ends."""
        bulk: dict[str, Any] = {
            "fetch_bytes": _FETCH_BYTES,
            "parsed_bytes": _PARSED_BYTES,
            "attend_s": _ATTEND_S,
        }
        self._taps = taps or Taps(
            FetchTap.over(config, clock=clock, **bulk),
            ClientTap(config, "everflow-log-follower", FETCHING, clock=clock),
        )
        self._near = self._taps.client
        self._bulk = self._taps.own()
        self._clock = clock
        self._bulk_lag, self._folds = bulk_lag, folds
        self._fresh: dict[TopicPartition, int] = {}
        """Not placed yet: their ends are not known."""
        self._waiting: dict[TopicPartition, int] = {}
        """Far behind; they have their turn when the log that is read in bulk is at its end."""
        self._bulk_end = 0
        self._bulk_again_s = self._bulk_used_s = self._bulk_moved_s = float("-inf")

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Next offset of every followed log."""
        return {**self._near.positions, **self._fresh, **self._resting, **self.far_behind}

    @property
    def far_behind(self) -> Mapping[TopicPartition, int]:
        """Those of `positions` that are read in bulk or wait for it."""
        return {**({} if self._bulk is None else self._bulk.positions), **self._waiting}

    def follow(self, starts: Mapping[TopicPartition, int]) -> None:
        """Begin with these logs, at these offsets; one that is followed already goes on from there
        instead."""
        self.unfollow(starts)
        self._fresh.update(starts)

    def unfollow(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop with these logs; those that are not followed are ignored."""
        gone = set(partitions)
        self._taps.forget(gone)
        for tp in gone:
            self._fresh.pop(tp, None)
            self._resting.pop(tp, None)
        self._leave_bulk(gone)
        near = self._near.positions
        if not gone.isdisjoint(near):
            self._near.go_to({tp: at for tp, at in near.items() if tp not in gone})

    def poll(
        self,
        records_max: int,
        bulk_bytes: int,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
    ) -> FollowedRound:
        """About ``records_max`` records of the logs near their ends and ``bulk_bytes`` bytes of one
        that is far behind, waiting at most ``timeout_s`` seconds for the first. ``ends``: last
        stable offsets, as far as known; nothing is read beyond them.

        Raises RetriableError (broker away, a log with a batch that cannot be read: go on polling)
        if nothing else came, and FatalError as classified in `everflow.kafka.errors`.
        """
        self._place(ends)
        found = FollowedRound()
        far, bulk = self.far_behind, self._bulk
        fault: RetriableError | None = None
        if not far:
            self.rest()
        try:
            everything = {
                tp: ends.get(tp, 0) if tp.topic in self._to_ends else sys.maxsize
                for tp in self._near.positions
            }
            found.chunks.update(
                self._near.take(everything, 0.0 if far else timeout_s, most_records=records_max)
            )
        except LogStartMovedError as moved:
            self._gone(self._near, found, moved)
        except RetriableError as failure:
            fault = failure  # of one log it may be; those that are far behind do not wait for it
        if bulk is not None and far:
            self._read_bulk(bulk, found, ends, bulk_bytes, 0.0 if found.chunks else timeout_s)
        if fault is not None and not found.chunks and not found.gone:
            raise fault
        return found

    def _read_bulk(
        self,
        bulk: Tap,
        found: FollowedRound,
        ends: Mapping[TopicPartition, int],
        bulk_bytes: int,
        timeout_s: float,
    ) -> None:
        """Add the next slice of those that are far behind to what was found. Where bulk reading
        cannot go on, the consumer does."""
        self._bulk_used_s = self._clock()
        try:
            found.chunks.update(self._slice(bulk, ends, bulk_bytes, timeout_s))
        except LogStartMovedError as moved:
            self._gone(bulk, found, moved)
        except UnsupportedBatchError as reason:
            starts = bulk.positions
            self._taps.leave(starts, reason)
            self._hand_over(starts)
        except RetriableError as fault:
            self._bulk_again_s = self._clock() + BULK_AGAIN_S
            starts = self.far_behind
            self._hand_over(starts)
            for tp, at in starts.items():
                _log.info("%s: librdkafka reads on for a while (%s) from offset %d", tp, fault, at)

    def rest(self) -> None:
        """Drop the connection for reading in bulk if it has not been used for a while; for who does
        not `poll` now."""
        if self._bulk is not None and self._clock() - self._bulk_used_s > BULK_IDLE_S:
            self._bulk.close()

    def close(self) -> None:
        """Release the connections."""
        self._taps.close()

    def _place(self, ends: Mapping[TopicPartition, int]) -> None:
        near = {**self._near.positions, **self._fresh, **self._resting}
        self._resting = {
            tp: at for tp, at in near.items() if tp.topic in self._to_ends and at >= ends.get(tp, 0)
        }
        near = {tp: at for tp, at in near.items() if tp not in self._resting}
        if self._bulk is not None and self._clock() >= self._bulk_again_s:
            # The shortest of those that begin together is first at its end; who waits already is
            # never overtaken.
            far = sorted(
                (ends.get(tp, 0) - at, tp)
                for tp, at in near.items()
                if self._taps.own([tp]) is not None
            )
            self._waiting.update({tp: near.pop(tp) for lag, tp in far if lag > self._bulk_lag})
        self._fresh = {}
        if near != self._near.positions:
            self._near.go_to(near)

    def _slice(
        self, bulk: Tap, ends: Mapping[TopicPartition, int], bulk_bytes: int, timeout_s: float
    ) -> dict[TopicPartition, LogChunk]:
        """The next slice of the log whose turn it is. It is read up to its stable end of when its
        turn began, and then near it."""
        if not bulk.positions:
            begun = next(
                ((tp, at) for tp, at in self._waiting.items() if ends.get(tp, at) > at), None
            )
            if begun is None:
                return {}
            tp, at = begun
            bulk.go_to({tp: at}, _CONNECT_S)
            del self._waiting[tp]
            self._bulk_end, self._bulk_moved_s = ends[tp], self._clock()
        ((tp, at),) = bulk.positions.items()
        taken = bulk.take({tp: self._bulk_end}, timeout_s, bulk_bytes)
        now_s = self._clock()
        if not taken:
            if now_s - self._bulk_moved_s > _STALL_S:
                raise RetriableError(
                    f"reading {tp} at {at}: the broker has not answered for {_STALL_S:g} s"
                )
            return {}
        self._bulk_moved_s = now_s
        if taken[tp].next_position >= self._bulk_end:
            self._hand_over(bulk.positions)
        folds = self._folds and tp.topic not in self._every
        return {tp: taken[tp].latest() if folds else taken[tp]}

    def _hand_over(self, starts: Mapping[TopicPartition, int]) -> None:
        """The consumer goes on with these logs, from what was handed out of them."""
        self._leave_bulk(starts)
        self._near.go_to({**self._near.positions, **starts})

    def _leave_bulk(self, gone: Iterable[TopicPartition]) -> None:
        for tp in gone:
            self._waiting.pop(tp, None)
            if self._bulk is not None and tp in self._bulk.positions:
                self._bulk.go_to({})

    def _gone(self, tap: Tap, found: FollowedRound, moved: LogStartMovedError) -> None:
        tp = moved.partition
        if tp is None:
            raise moved
        positions = dict(tap.positions)
        found.gone[tp] = f"offset {positions.pop(tp)} is no longer in the changelog ({moved})"
        tap.go_to(positions)
