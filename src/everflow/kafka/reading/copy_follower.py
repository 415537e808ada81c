"""Follows changelogs for copies: one after the other while far behind, all at once near the end.

read_committed. At the end of the logs a round is one waiting fetch per broker.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everflow.errors import EverflowError, LogStartMovedError, RetriableError
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.reading.record_columns import LogChunk
from everflow.records import TopicPartition

BULK_LAG = 50_000
"""Offsets behind the stable end from which on reading in bulk is worth the change: a fetch's worth
or so."""
BULK_AGAIN_S = 10.0
"""After a fault of the log that is read in bulk, no log is for so long."""
IDLE_S = 30.0
_FETCH_BYTES = 4 << 20
_PARSED_BYTES = 1 << 20
"""The part of a fetch that is parsed at once: the caller's promotions wait for it."""
_AHEAD_BYTES = 8 << 20
_WAIT_MS = 200
"""Records come at once whatever this says; it is how often an idle follower asks."""
_STALL_S = 10.0
"""An answer may take so long; nothing waits for it meanwhile."""
_CONNECT_S = 1.0

_log = logging.getLogger(__name__)


@dataclass
class FollowedRound:
    """The result of a round: a chunk per partition that moved, and the partitions whose position
    the log no longer holds."""

    chunks: dict[TopicPartition, LogChunk] = field(default_factory=dict)
    gone: dict[TopicPartition, str] = field(default_factory=dict)


class CopyFollower:
    """Follows a changing set of logs; owned by one thread. Holds some 16 MiB at most, and 128 KiB
    for each log where these are many."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        bulk_lag: int = BULK_LAG,
        folds: bool = True,
        every: frozenset[str] = frozenset(),
        to_ends: frozenset[str] = frozenset(),
        fetcher: LogFetcher | None = None,
    ) -> None:
        """``config``: librdkafka keys; ``clock``: monotonic seconds; ``folds``: see
        `LogChunk.latest`; ``fetcher`` in place of that of ``config``.

        ``every``: topics of which no record is left out, though a later one of its key is there.
        ``to_ends``: topics of which nothing is read beyond the ends that `poll` gets.
        """
        self._every, self._to_ends = every, to_ends
        self._resting: dict[TopicPartition, int] = {}
        """Logs of such topics that are read to their ends."""
        self._fetcher = fetcher or LogFetcher.over(
            config,
            clock=clock,
            fetch_bytes=_FETCH_BYTES,
            parsed_bytes=_PARSED_BYTES,
            ahead_bytes=_AHEAD_BYTES,
            wait_ms=_WAIT_MS,
        )
        self._clock = clock
        self._bulk_lag, self._folds = bulk_lag, folds
        self._fresh: dict[TopicPartition, int] = {}
        """Not placed yet: their ends are not known."""
        self._waiting: dict[TopicPartition, int] = {}
        """Far behind; they have their turn when the log that is read in bulk is at its end."""
        self._turn: TopicPartition | None = None
        self._came: frozenset[TopicPartition] = frozenset()
        self._bulk_end = 0
        self._bulk_again_s = self._bulk_moved_s = self._used_s = float("-inf")

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        return {**self._fetcher.positions, **self._fresh, **self._resting, **self._waiting}

    @property
    def far_behind(self) -> Mapping[TopicPartition, int]:
        """The `positions` of logs that are read in bulk or wait for it."""
        turn = self._turn
        return {**({} if turn is None else {turn: self._fetcher.positions[turn]}), **self._waiting}

    def follow(self, starts: Mapping[TopicPartition, int]) -> None:
        """Begin with these logs, at these offsets; one that is followed already goes on from there
        instead."""
        self.unfollow(starts)
        self._fresh.update(starts)

    def unfollow(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        for tp in gone:
            for book in (self._fresh, self._resting, self._waiting):
                book.pop(tp, None)
        if self._turn in gone:
            self._turn = None
        read = self._fetcher.positions
        if not gone.isdisjoint(read):
            self._fetcher.go_to({tp: at for tp, at in read.items() if tp not in gone})

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

        RetriableError if nothing else came (no broker, unreadable batch: go on); FatalError.
        """
        self._place(ends)
        found = FollowedRound()
        bulk = {} if self._turn is None else {self._turn: self._bulk_end}
        near = {
            tp: ends.get(tp, 0) if tp.topic in self._to_ends else sys.maxsize
            for tp in sorted(self._fetcher.positions, key=lambda one: one in self._came)
            if tp not in bulk
        }
        if near or bulk:
            self._used_s = self._clock()
        fault: RetriableError | None = None
        try:
            self._take_bulk(found, bulk, bulk_bytes, 0.0)
            wait_s = 0.0 if bulk else timeout_s
            found.chunks.update(self._fetcher.take(near, wait_s, most_records=records_max))
        except LogStartMovedError as moved:
            self._gone(found, moved)
        except RetriableError as failure:
            fault = failure  # of one log it may be; those that are far behind do not wait for it
        if self._turn is not None and not found.chunks:
            self._take_bulk(found, bulk, bulk_bytes, timeout_s)
        self._came = frozenset(found.chunks)
        if fault is not None and not found.chunks and not found.gone:
            raise fault
        return found

    def _take_bulk(
        self,
        found: FollowedRound,
        bulk: Mapping[TopicPartition, int],
        most_bytes: int,
        timeout_s: float,
    ) -> None:
        """Add the next slice of the log that is read in bulk. It is read so up to its stable end of
        when its turn began."""
        if not bulk:
            return
        (tp,) = bulk
        now_s = self._clock()
        try:
            taken = self._fetcher.take(bulk, timeout_s, most_bytes)
            if not taken and now_s - self._bulk_moved_s > _STALL_S:
                raise RetriableError(f"the broker has not answered for {_STALL_S:g} s")
        except LogStartMovedError as moved:
            self._gone(found, moved)
            return
        except RetriableError as fault:
            _log.info("%s: no log is read in bulk for a while (%s)", tp, fault)
            self._bulk_again_s = now_s + BULK_AGAIN_S
            self._turn = None
            self._fresh, self._waiting = {**self._fresh, **self._waiting}, {}
            return
        if not taken:
            return
        self._bulk_moved_s = now_s
        if taken[tp].next_position >= self._bulk_end:
            self._turn = None
        folds = self._folds and tp.topic not in self._every
        found.chunks[tp] = taken[tp].latest() if folds else taken[tp]

    def rest(self) -> None:
        """Drop the connection if it has not been used for a while; for who does not `poll` now."""
        if not self.positions and self._clock() - self._used_s > IDLE_S:
            self._fetcher.close()

    def close(self) -> None:
        self._fetcher.close()

    def _place(self, ends: Mapping[TopicPartition, int]) -> None:
        read = dict(self._fetcher.positions)
        turn = {} if self._turn is None else {self._turn: read.pop(self._turn)}
        near = {**read, **self._fresh, **self._resting}
        self._resting = {
            tp: at for tp, at in near.items() if tp.topic in self._to_ends and at >= ends.get(tp, 0)
        }
        near = {tp: at for tp, at in near.items() if tp not in self._resting}
        if self._clock() >= self._bulk_again_s:
            # The shortest that begin together is first at its end; who waits is never overtaken.
            far = sorted((ends.get(tp, 0) - at, tp) for tp, at in near.items())
            self._waiting.update({tp: near.pop(tp) for lag, tp in far if lag > self._bulk_lag})
        self._fresh = {}
        begun = next((tp for tp, at in self._waiting.items() if ends.get(tp, at) > at), None)
        if not turn and begun is not None:
            turn = {begun: self._waiting.pop(begun)}
            self._bulk_end, self._bulk_moved_s = ends[begun], self._clock()
        starts = {**near, **turn}
        if starts != self._fetcher.positions:
            try:
                self._fetcher.go_to(starts, _CONNECT_S)
            except EverflowError:
                self._fresh = starts
                self._turn = None
                raise
        self._turn = next(iter(turn), None)

    def _gone(self, found: FollowedRound, moved: LogStartMovedError) -> None:
        tp = moved.partition
        if tp is None:
            raise moved
        positions = dict(self._fetcher.positions)
        found.gone[tp] = f"offset {positions.pop(tp)} is no longer in the changelog ({moved})"
        if self._turn == tp:
            self._turn = None
        self._fetcher.go_to(positions)
