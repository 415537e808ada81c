"""The records of a stream that is joined to a versioned table with a grace: they wait (KIP-923)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from everflow.operators.fold import valid
from everflow.operators.grouping import stream_times as running_times
from everflow.operators.joins.held_back import HeldBack, Released, TimeMakers, come_out
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.topology.graph import Inputs, Operator
from everflow.topology.hops import appended


@dataclass(frozen=True)
class GraceWait(Operator):
    """A record goes on when the stream's own stream time has reached its time and the grace; one
    that is later than that at once, and so does one without a key, where those are ``kept``. It
    goes on at the place of the record that brings it out, with its own time and headers;
    `StreamTableJoin` then looks up what the table holds as of its time.
    """

    held: HeldBack
    kept: bool

    @property
    def takes_null_keys(self) -> bool:
        return self.kept

    def run(self, inputs: Inputs) -> TasksResult:
        (stream,) = inputs.sides
        keyed, valued = valid(stream.key), valid(stream.value)
        rows = np.flatnonzero(keyed & valued)
        asking = stream.take(rows)
        running, after = running_times(asking.timestamp, asking.partition, inputs.stream_times)
        released = self.held.release(
            asking,
            np.arange(len(rows), dtype=np.int64),
            TimeMakers(asking.partition, running),
            inputs.stream_times,
            inputs.stores,
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

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult:
        none = np.empty(0, np.int64)
        clock = TimeMakers(ticks.partition, ticks.timestamp)
        released = self.held.release(
            ticks.take(none), none, clock, inputs.stream_times, inputs.stores
        )
        return TasksResult(_out(ticks.take(released.at), released), released.changes, {}, {})


def _out(by: EdgeBatch, released: Released) -> EdgeBatch:
    return come_out(by, released, released.value)


def _with_keyless(output: EdgeBatch, places: Int64, keyless: EdgeBatch, rows: Int64) -> EdgeBatch:
    """What goes on, and records without a key, by the places of the stream's records."""
    if not len(keyless):
        return output
    both = appended([output, keyless]) if len(output) else keyless
    at = np.concatenate([places, rows]) if len(output) else rows
    return both.take(np.argsort(at, kind="stable"))
