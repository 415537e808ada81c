"""Runs an instance in the foreground: starts it, watches it, ends it by SIGINT, SIGTERM or SIGHUP.

`KafkaStreams.run` and the commands share it. docs/STOPPING.md has the table of moments and signals.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from everflow.config import StreamsConfig
from everflow.errors import EverflowError, TopologyError
from everflow.instance.client_state import STOPPING, ClientState
from everflow.instance.life import DRAIN_SHARE, InstanceLife, leaves
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import RawWritten, WrittenRecords
from everflow.logs import LogFile, moves
from everflow.records import TopicPartition
from everflow.retry import waiting
from everflow.serdes import SerdeError
from everflow.stop_signals import owned
from everflow.topology.graph import SinkNode
from everflow.topology.program import Topology
from everflow.user_program import user_line
from everflow.windows import duration_ms

log = logging.getLogger("everflow")


# --- a run with a bound: a number of records, or a time -------------------------------------------

READ_ALL_S = 20.0
"""After the end, reading what was written last."""


class WrittenRecord(NamedTuple):
    """A record that was written while a run lasted, decoded; the time in ms."""

    key: Any
    value: Any
    timestamp: int


@dataclass(kw_only=True)
class BoundedRun:
    """``sinks``: the topics to follow, and what writes them; ``single``: whether one topic was
    asked for by its name. Made by `bounded_run`."""

    config: StreamsConfig
    count: int | None
    timeout_s: float | None
    sinks: Mapping[str, SinkNode]
    collects: bool
    single: bool
    _ends_at_s: float = math.inf
    _reader: WrittenRecords | None = field(default=None, repr=False)

    def open(self) -> None:
        """Called before the instance starts: note where the topics end."""
        if not self.sinks:
            return
        admin = ClusterAdmin(self.config.admin())
        try:
            found = admin.describe_topics(list(self.sinks))
            missing = sorted(self.sinks.keys() - found.keys())
            if missing:
                raise TopologyError(
                    f"run: output topic {missing[0]} does not exist, so its records cannot be "
                    f"counted or collected; create it before, everflow topic create {missing[0]}",
                    where=self.sinks[missing[0]].where,
                )
            parts = [
                TopicPartition(topic, number)
                for topic, description in found.items()
                for number in range(description.partitions)
            ]
            starts = admin.end_offsets(parts, "read_uncommitted")
        finally:
            admin.close()
        self._reader = WrittenRecords(self.config.consumer(), starts)

    def started(self) -> None:
        """Called after the start: the time begins."""
        if self.timeout_s is not None:
            self._ends_at_s = time.monotonic() + self.timeout_s

    def reached(self) -> str | None:
        """Why the run is over, in words; None while it is not."""
        if self._reader is not None:
            self._reader.read()
            if self.count is not None and self._reader.count >= self.count:
                return f"{self._reader.count} records were written"
        if time.monotonic() >= self._ends_at_s:
            return f"{self.timeout_s:g} s are over"
        return None

    def result(self) -> list[WrittenRecord] | dict[str, list[WrittenRecord]] | None:
        """The collected records, after the end."""
        if not self.collects or self._reader is None:
            return None
        admin = ClusterAdmin(self.config.admin())
        try:
            ends = admin.end_offsets(list(self._reader.records), "read_committed")
        finally:
            admin.close()
        if not self._reader.read_to(ends, READ_ALL_S):
            log.warning("The last output records were not read within %.0f s", READ_ALL_S)
        found: dict[str, list[WrittenRecord]] = {topic: [] for topic in self.sinks}
        for tp in sorted(self._reader.records):
            sink = self.sinks[tp.topic]
            found[tp.topic] += [_decoded(tp, raw, sink) for raw in self._reader.records[tp]]
        return next(iter(found.values())) if self.single else found

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def bounded_run(
    topology: Topology,
    config: StreamsConfig,
    count: object,
    timeout: object,
    collect: object,
) -> BoundedRun | None:
    """The bounds that `KafkaStreams.run` was called with; None without any. TopologyError for wrong
    ones."""
    if count is None and timeout is None and collect is None:
        return None
    where = user_line()
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise TopologyError(
            f"run: count is a number of records, 1 at least, found {count!r}", where=where
        )
    sinks = {
        node.topic: node
        for node in topology.nodes
        if isinstance(node, SinkNode) and node.kind == "sink" and isinstance(node.topic, str)
    }
    known = ", ".join(sinks) or "none by name"
    asked = _topics(collect, where)
    for topic in asked or ():
        if topic not in sinks:
            raise TopologyError(
                f"run: collect={topic!r} is no topic that the program writes; it writes {known}",
                where=where,
            )
    if count is not None and not sinks:
        raise TopologyError(
            "run: count counts records of output topics, and the program writes none by name; "
            "write .to('topic'), or end the run with timeout='30 seconds'",
            where=where,
        )
    followed = list(sinks if asked is None and count is not None else asked or ())
    return BoundedRun(
        config=config,
        count=count,
        timeout_s=_seconds(timeout, where),
        sinks={topic: sinks[topic] for topic in followed},
        collects=asked is not None,
        single=isinstance(collect, str),
    )


def _topics(collect: object, where: str | None) -> list[str] | None:
    if collect is None:
        return None
    topics = [collect] if isinstance(collect, str) else collect
    if isinstance(topics, Iterable):
        named = list(topics)
        if named and all(isinstance(topic, str) for topic in named):
            return named
    raise TopologyError(
        f"run: collect is the name of an output topic or a list of names, found {collect!r}",
        where=where,
    )


def _seconds(timeout: object, where: str | None) -> float | None:
    if timeout is None:
        return None
    found = math.nan
    if isinstance(timeout, str | timedelta):
        found = duration_ms(timeout) / 1000
    elif isinstance(timeout, int | float) and not isinstance(timeout, bool):
        found = float(timeout)
    if not 0 < found < math.inf:
        raise TopologyError(
            f"run: timeout is above 0, '30 seconds', a number of seconds or a timedelta, found "
            f"{timeout!r}",
            where=where,
        )
    return found


def _decoded(tp: TopicPartition, raw: RawWritten, sink: SinkNode) -> WrittenRecord:
    try:
        key, value = sink.key_serde.decode(raw.key), sink.value_serde.decode(raw.value)
    except SerdeError as error:
        raise EverflowError(
            f"run: the record {tp}@{raw.offset} is not of the output's types, another program "
            f"wrote it: {error}"
        ) from None
    return WrittenRecord(key, value, raw.timestamp)


TICK_S = 0.1
END_S = 30.0
"""Beyond the time for handing over, an end may take so long before it goes on in the background."""


class RunsInForeground(Protocol):
    """The part of `KafkaStreams` that is needed here."""

    config: StreamsConfig
    _life: InstanceLife
    _joined: bool
    _log_file: LogFile | None
    _caller_raises: bool

    @property
    def state(self) -> ClientState: ...

    @property
    def error(self) -> EverflowError | None: ...

    def start(self) -> None: ...

    def _begin_close(self, timeout: float, leave_group: bool | None) -> None: ...


@dataclass(kw_only=True)
class Foreground:
    """``signal``: the number of the first one, None without; ``joined``: whether the start had gone
    through by then; ``bound``: when it ends by itself."""

    streams: RunsInForeground
    leave_group: bool | None
    signal: int | None = None
    joined: bool = False
    bound: BoundedRun | None = None
    _ending_since_s: float = math.inf

    @property
    def timeout_s(self) -> float:
        return self.streams.config.drain_timeout_ms / 1000 / DRAIN_SHARE + END_S

    @property
    def ending(self) -> str:
        return self.streams._life.ending

    @property
    def log_file(self) -> Path | None:
        return None if self.streams._log_file is None else self.streams._log_file.path

    def run(self) -> None:
        """Start the instance and return when it has ended. Raises the error that stopped it, if it
        was not a signal; the caller reports it."""
        streams = self.streams
        streams._caller_raises = True
        with owned() as signals, signals.told_to(self._on_signal):
            if self.bound is not None:
                self.bound.open()
            streams.start()
            if self.bound is not None:
                self.bound.started()
            over = False
            with waiting("joining the group"):
                while not over and streams.state is ClientState.REBALANCING:
                    over = self._is_over()
            while not over:
                over = self._is_over()
        if streams.error is not None:
            raise streams.error

    def _is_over(self) -> bool:
        """Wait a tick; True if the instance has ended or its shutdown takes too long."""
        self._end_if_reached()
        return self.streams._life.states.wait_ended(TICK_S) or self._overdue()

    def _end_if_reached(self) -> None:
        """Begin the end of a run that has reached its bound."""
        if self.bound is None or self.streams.state in STOPPING:
            return
        why = self.bound.reached()
        if why is not None:
            self._ending_since_s = time.monotonic()
            moves.info("stopping: %s", why)
            self.streams._begin_close(self.timeout_s, self.leave_group)

    def _overdue(self) -> bool:
        """True if the shutdown takes too long. It then goes on in the background for as long as
        this process lives."""
        if self._ending_since_s == math.inf:
            return False
        over = time.monotonic() - self._ending_since_s > self.timeout_s
        if over:
            log.warning(
                "The shutdown takes longer than %.0f s and goes on in the background",
                self.timeout_s,
            )
        return over

    def _on_signal(self, count: int, number: int) -> None:
        streams = self.streams
        if count == 1:
            self.signal, self.joined = number, streams._joined
            self._ending_since_s = time.monotonic()
            hurry = "SIGTERM" if number == signal.SIGHUP else "a second one"
            moves.info(
                "stopping: %s (%s; %s does not wait)",
                self._what(),
                signal.Signals(number).name,
                hurry,
            )
            streams._begin_close(self.timeout_s, self.leave_group)
        elif count == 2:
            moves.info(
                "stopping now: batches in flight have a second to end, nothing more is handed over"
            )
            streams._life.hurry.set()
        else:
            moves.info(
                "still stopping: nothing can make it quicker but kill -9, which loses nothing that "
                "was committed"
            )

    def _what(self) -> str:
        if self.streams.state in STOPPING:
            return "its end has begun already"
        if not self.joined:
            return "it had not joined its group yet"
        if leaves(self.leave_group, static=self.streams.config.group_instance_id is not None):
            return "it commits, hands its tasks over, leaves the group"
        return "it commits, and stays in the group for a restart"
