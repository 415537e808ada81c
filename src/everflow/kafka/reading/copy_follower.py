"""Follows changelogs for copies: in bulk while they are far behind, by a consumer near the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from everflow.errors import LogStartMovedError, RetriableError
from everflow.kafka.reading.bulk_follower import BulkFollower
from everflow.kafka.reading.fetch_connection import bulk_settings
from everflow.kafka.reading.log_follower import FollowedRound, LogFollower
from everflow.kafka.reading.record_batches import UnsupportedBatchError
from everflow.records import TopicPartition

BULK_LAG = 50_000
"""Offsets behind the stable end from which on reading in bulk is worth the change: a fetch's worth or so."""
BULK_AGAIN_S = 10.0
"""After a fault of the bulk reader the consumer, which never waits for a broker, has everything for so long."""
BULK_IDLE_S = 30.0
"""A connection that nobody was far behind for so long to use is dropped."""

_log = logging.getLogger(__name__)


class CopyFollower:
    """Follows a changing set of logs; owned by one thread. Holds the consumer's queue (16 MiB) and two fetches of 4 MiB at most.

    Where librdkafka knows security settings that the bulk reader does not, or a log has batches of an old format, the consumer
    reads everything.
    """

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic, bulk_lag: int = BULK_LAG) -> None:
        """``config``: librdkafka keys, ``bootstrap.servers`` at least; ``clock``: monotonic seconds."""
        settings = bulk_settings(config)
        self._tail = LogFollower(config)
        self._bulk = None if settings is None else BulkFollower(settings, clock=clock)
        self._clock = clock
        self._bulk_lag = bulk_lag
        self._fresh: dict[TopicPartition, int] = {}
        """Not placed yet: their ends are not known."""
        self._unsuited: set[TopicPartition] = set()
        self._bulk_again_s = self._bulk_used_s = float("-inf")

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Next offset of every followed log."""
        return {**self._tail.positions, **self._fresh, **self.far_behind}

    @property
    def far_behind(self) -> Mapping[TopicPartition, int]:
        """Those of `positions` that are read in bulk or wait for it."""
        return {} if self._bulk is None else self._bulk.positions

    def follow(self, starts: Mapping[TopicPartition, int]) -> None:
        """Begin with these logs, at these offsets; one that is followed already goes on from there instead."""
        self.unfollow(starts)
        self._fresh.update(starts)

    def unfollow(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop with these logs; those that are not followed are ignored."""
        gone = list(partitions)
        for tp in gone:
            self._fresh.pop(tp, None)
            self._unsuited.discard(tp)
        if self._bulk is not None:
            self._bulk.remove(gone)
        self._tail.unfollow(gone)

    def poll(self, records_max: int, bulk_bytes: int, ends: Mapping[TopicPartition, int], timeout_s: float) -> FollowedRound:
        """About ``records_max`` records of the logs near their ends and ``bulk_bytes`` bytes of one that is far behind, waiting at
        most ``timeout_s`` seconds for the first. ``ends``: last stable offsets, as far as known; nothing is read beyond them.

        Raises RetriableError (broker away: go on polling) and FatalError as classified in `everflow.kafka.errors`.
        """
        self._place(ends)
        bulk = self._bulk
        if bulk is None or not len(bulk):
            self.rest()
            return self._tail.poll(records_max, timeout_s)
        found = self._tail.poll(records_max, 0.0)
        self._bulk_used_s = self._clock()
        try:
            taken = bulk.poll(ends, bulk_bytes, 0.0 if found.chunks else timeout_s)
            if taken is not None:
                tp, chunk = taken
                found.chunks[tp] = chunk
                if tp not in bulk.positions:  # at its end
                    self._tail.follow({tp: chunk.next_position})
        except LogStartMovedError as moved:
            self._gone(bulk, found, moved)
        except UnsupportedBatchError as reason:
            unsuited = [] if bulk.reading is None else [bulk.reading]
            self._unsuited.update(unsuited)
            self._leave(bulk, unsuited, f"librdkafka reads on ({reason})")
        except RetriableError as fault:
            self._bulk_again_s = self._clock() + BULK_AGAIN_S
            self._leave(bulk, list(bulk.positions), f"librdkafka reads on for a while ({fault})")
        return found

    def rest(self) -> None:
        """Drop the bulk reader's connection if it has not been used for a while; for who does not `poll` now."""
        if self._bulk is not None and self._clock() - self._bulk_used_s > BULK_IDLE_S:
            self._bulk.rest()

    def close(self) -> None:
        """Release the connections."""
        self._tail.close()
        if self._bulk is not None:
            self._bulk.rest()

    def _place(self, ends: Mapping[TopicPartition, int]) -> None:
        bulk = self._bulk
        near, self._fresh = self._fresh, {}
        if bulk is not None and self._clock() >= self._bulk_again_s:
            behind = {tp: ends.get(tp, 0) - at for tp, at in {**near, **self._tail.positions}.items() if tp not in self._unsuited}
            # The shortest of those that begin together is first at its end; who waits already is never overtaken.
            far = sorted((lag, tp) for tp, lag in behind.items() if lag > self._bulk_lag)
            starts = {tp: near.pop(tp) if tp in near else self._tail.positions[tp] for _, tp in far}
            if starts:
                self._tail.unfollow(starts)
                bulk.add(starts)
        if near:
            self._tail.follow(near)

    def _gone(self, bulk: BulkFollower, found: FollowedRound, moved: LogStartMovedError) -> None:
        tp = bulk.reading
        if tp is None:
            raise moved
        found.gone[tp] = f"offset {bulk.positions[tp]} is no longer in the changelog ({moved})"
        bulk.remove([tp])

    def _leave(self, bulk: BulkFollower, partitions: list[TopicPartition], why: str) -> None:
        """The consumer goes on with these logs, from what was handed out of them."""
        starts = {tp: bulk.positions[tp] for tp in partitions}
        bulk.remove(starts)
        self._tail.follow(starts)
        for tp, at in starts.items():
            _log.info("%s: %s from offset %d", tp, why, at)
