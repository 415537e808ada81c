"""The records of a stream that is joined to a versioned table with a grace: they wait (KIP-923)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from everflow.operators.fold import valid
from everflow.operators.grouping import stream_times as running_times
from everflow.operators.joins.held_back import HeldBack, Released, TimeMakers, come_out
from everflow.operators.joins.joined_values import Stores
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.state.store import StoreSpec
from everflow.topology.hops import appended


@dataclass(frozen=True)
class GraceWait:
    """A record goes on when the stream's own stream time has reached its time and the grace; one
    that is later than that at once, and so does one without a key, where those are ``kept``. What
    the table then holds as of its time is looked up behind (`HeldRows`). It goes on at the place of
    the record that brings it out, with its own time and headers.
    """

    held: HeldBack
    kept: bool

    @property
    def takes_null_keys(self) -> bool:
        """See `WaitingOperator`."""
        return self.kept

    @property
    def looks_up(self) -> tuple[StoreSpec, ...]:
        """See `WaitingOperator`."""
        return ()

    @property
    def look_every_ms(self) -> int | None:
        """See `WaitingOperator`: it waits by stream time alone."""
        return None

    @property
    def marks(self) -> tuple[str, ...]:
        """See `WaitingOperator`."""
        return ()

    def wait_tasks(
        self,
        sides: Sequence[EdgeBatch],
        stores: Stores,
        stream_times: Mapping[int, int],
        clocks: Mapping[int, Mapping[str, int]],
        now_ms: int,
    ) -> TasksResult:
        """See `WaitingOperator`."""
        (stream,) = sides
        keyed, valued = valid(stream.key), valid(stream.value)
        rows = np.flatnonzero(keyed & valued)
        asking = stream.take(rows)
        running, after = running_times(asking.timestamp, asking.partition, stream_times)
        released = self.held.release(
            asking,
            np.arange(len(rows), dtype=np.int64),
            TimeMakers(asking.partition, running),
            stream_times,
            stores,
        )
        output = _out(asking.take(released.at), released)
        dropped = {"null-value": int(np.count_nonzero(~valued))}
        keyless = np.flatnonzero(valued & ~keyed)
        if self.kept:
            output = _with_keyless(output, rows[released.at], stream.take(keyless), keyless)
        else:
            dropped["null-key"] = len(keyless)
        counted = {reason: count for reason, count in dropped.items() if count}
        return TasksResult(output, released.changes, after, counted)

    def advance_tasks(
        self,
        ticks: EdgeBatch,
        sides: Sequence[EdgeBatch],
        stores: Stores,
        stream_times: Mapping[int, int],
    ) -> TasksResult:
        """See `TimedOperator`."""
        none = np.empty(0, np.int64)
        clock = TimeMakers(ticks.partition, ticks.timestamp)
        released = self.held.release(ticks.take(none), none, clock, stream_times, stores)
        return TasksResult(_out(ticks.take(released.at), released), released.changes, {}, {})

    def decode_result(self, data: bytes) -> Any:
        """The bytes of its own store as they are: no table shows them."""
        return data


def _out(by: EdgeBatch, released: Released) -> EdgeBatch:
    return come_out(by, released, released.value)


def _with_keyless(output: EdgeBatch, places: Int64, keyless: EdgeBatch, rows: Int64) -> EdgeBatch:
    """What goes on, and records without a key, by the places of the stream's records."""
    if not len(keyless):
        return output
    both = appended([output, keyless]) if len(output) else keyless
    at = np.concatenate([places, rows]) if len(output) else rows
    return both.take(np.argsort(at, kind="stable"))
