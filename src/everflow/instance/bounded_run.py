"""A `KafkaStreams.run` with a bound: a number of records, or a time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from everflow.config import StreamsConfig
from everflow.errors import EverflowError, TopologyError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import RawWritten, WrittenRecords
from everflow.records import TopicPartition
from everflow.serdes import SerdeError
from everflow.topology.graph import SinkNode
from everflow.topology.program import Topology
from everflow.user_program import user_line
from everflow.windows import duration_ms

log = logging.getLogger("everflow")

READ_ALL_S = 20.0


class WrittenRecord(NamedTuple):
    """A record that was written while a run lasted, decoded; the time in ms."""

    key: Any
    value: Any
    timestamp: int


@dataclass(kw_only=True)
class BoundedRun:
    """``sinks``: topic -> what writes it; ``single``: one topic was asked for by its name."""

    config: StreamsConfig
    count: int | None
    timeout_s: float | None
    sinks: Mapping[str, SinkNode]
    collects: bool
    single: bool
    _ends_at_s: float = math.inf
    _reader: WrittenRecords | None = field(default=None, repr=False)

    def open(self) -> None:
        if not self.sinks:
            return
        with closing(ClusterAdmin(self.config.admin())) as admin:
            found = admin.describe_topics(list(self.sinks))
            missing = sorted(self.sinks.keys() - found.keys())
            if missing:
                raise TopologyError(
                    f"run: output topic {missing[0]} does not exist, so its records cannot be "
                    f"counted or collected; create it before, everflow topic create {missing[0]}",
                    where=self.sinks[missing[0]].where,
                )
            counts = [(topic, described.partitions) for topic, described in found.items()]
            logs = [TopicPartition(topic, n) for topic, count in counts for n in range(count)]
            starts = admin.end_offsets(logs, "read_uncommitted")
        self._reader = WrittenRecords(self.config.consumer(), starts)

    def started(self) -> None:
        if self.timeout_s is not None:
            self._ends_at_s = time.monotonic() + self.timeout_s

    def reached(self) -> str | None:
        if self._reader is not None:
            self._reader.read()
            if self.count is not None and self._reader.count >= self.count:
                return f"{self._reader.count} records were written"
        if time.monotonic() >= self._ends_at_s:
            return f"{self.timeout_s:g} s are over"
        return None

    def result(self) -> list[WrittenRecord] | dict[str, list[WrittenRecord]] | None:
        if not self.collects or self._reader is None:
            return None
        with closing(ClusterAdmin(self.config.admin())) as admin:
            ends = admin.end_offsets(list(self._reader.records), "read_committed")
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
    topology: Topology, config: StreamsConfig, count: object, timeout: object, collect: object
) -> BoundedRun | None:
    """The bounds of a `KafkaStreams.run`; None without any. TopologyError for wrong ones."""
    if count is None and timeout is None and collect is None:
        return None
    where = user_line()

    def wrong(text: str) -> TopologyError:
        return TopologyError(f"run: {text}", where=where)

    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise wrong(f"count is a number of records, 1 at least, found {count!r}")
    nodes = [node for node in topology.nodes if isinstance(node, SinkNode) and node.kind == "sink"]
    sinks = {node.topic: node for node in nodes if isinstance(node.topic, str)}
    known = ", ".join(sinks) or "none by name"
    asked = _topics(collect, wrong)
    for topic in asked or ():
        if topic not in sinks:
            raise wrong(f"collect={topic!r} is no topic that the program writes; it writes {known}")
    if count is not None and not sinks:
        raise wrong(
            "count counts records of output topics, and the program writes none by name; "
            "write .to('topic'), or end the run with timeout='30 seconds'"
        )
    followed = list(sinks if asked is None and count is not None else asked or ())
    return BoundedRun(
        config=config,
        count=count,
        timeout_s=_seconds(timeout, wrong),
        sinks={topic: sinks[topic] for topic in followed},
        collects=asked is not None,
        single=isinstance(collect, str),
    )


Wrong = Callable[[str], TopologyError]


def _topics(collect: object, wrong: Wrong) -> list[str] | None:
    if collect is None:
        return None
    topics = [collect] if isinstance(collect, str) else collect
    if isinstance(topics, Iterable):
        named = list(topics)
        if named and all(isinstance(topic, str) for topic in named):
            return named
    raise wrong(f"collect is the name of an output topic or a list of names, found {collect!r}")


def _seconds(timeout: object, wrong: Wrong) -> float | None:
    if timeout is None:
        return None
    found = math.nan
    if isinstance(timeout, str | timedelta):
        found = duration_ms(timeout) / 1000
    elif isinstance(timeout, int | float) and not isinstance(timeout, bool):
        found = float(timeout)
    if not 0 < found < math.inf:
        raise wrong(
            f"timeout is above 0, '30 seconds', a number of seconds or a timedelta, found "
            f"{timeout!r}"
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
