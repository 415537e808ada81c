"""Reads the state of changelog partitions from the cluster, for `restore_plan.restore_plan`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from everflow.errors import InternalTopicError, RetriableError
from everflow.instance.restore.restore_plan import DEFAULT_DELETE_RETENTION_MS, ChangelogState
from everflow.kafka.admin import ClusterAdmin
from everflow.records import Offsets, TopicPartition
from everflow.state.left_out import Chunk, KeptEntry, unpacked


@dataclass
class Changelogs:
    """Any thread may ask. ``left_out``: the records that processing skipped (note 065) of reused
    topics: copies follow these up to committed offsets, as tables have processed records only."""

    admin: ClusterAdmin
    cluster_id: str
    group: str
    left_out: LeftOutLogs
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _delete_retention: dict[str, int] = field(default_factory=dict)

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """read_uncommitted, always: the last stable offset may lag behind (KAFKA-10167)."""
        return self.admin.end_offsets(partitions, "read_uncommitted")

    def stable_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self.admin.end_offsets(partitions, "read_committed")

    def followed_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Up to where copies follow: last stable offsets; of reused topics committed ones, or 0."""
        return self._own(partitions, self.stable_ends) | self._followed(partitions)

    def answered_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """As `followed_ends`, for the logs whose leaders answer within a second."""

        def known(own: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
            return self.admin.list_offsets(own, "latest", "read_committed", whole=False)

        return self._own(partitions, known) | self._followed(partitions)

    def _own(
        self,
        partitions: Collection[TopicPartition],
        read: Callable[[list[TopicPartition]], Offsets],
    ) -> dict[TopicPartition, int]:
        own = [tp for tp in partitions if tp.topic not in self.left_out.topics]
        return dict(read(own)) if own else {}

    def _followed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self.left_out.covered(self._read_offsets(partitions))

    def _read_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        read = [tp for tp in partitions if tp.topic in self.left_out.topics]
        committed = self.admin.committed(self.group, read) if read else {}
        return {tp: committed[tp].offset if tp in committed else 0 for tp in read}

    def states(
        self, partitions: Collection[TopicPartition], ends: Offsets | None = None
    ) -> dict[TopicPartition, ChangelogState]:
        """``ends``: log ends read before. InternalTopicError (no such topic), RetriableError."""
        if not partitions:
            return {}
        asked = sorted(partitions)
        # Both questions at once: a task that is handed over is not processed meanwhile.
        with ThreadPoolExecutor(1) as beside:
            describing = beside.submit(self.admin.describe_topics, {tp.topic for tp in asked})
            starts = self.admin.list_offsets(asked, "earliest", "read_uncommitted")
            if ends is None:
                ends = self._own(asked, self.log_ends) | self._read_offsets(asked)
            topics = describing.result()
        states = {}
        for tp in asked:
            described = topics.get(tp.topic)
            if described is None:
                raise InternalTopicError(f"The changelog {tp.topic} is missing.")
            states[tp] = ChangelogState(
                start=starts[tp],
                end=ends[tp],
                cluster_id=self.cluster_id,
                topic_id=described.topic_id,
                delete_retention_ms=self._delete_retention_ms(tp.topic),
            )
        return states

    def known_delete_retention_ms(self, topic: str) -> int:
        """As `states` has read it, else the brokers' default; without I/O."""
        with self._lock:
            return self._delete_retention.get(topic, DEFAULT_DELETE_RETENTION_MS)

    def _delete_retention_ms(self, topic: str) -> int:
        with self._lock:
            known = self._delete_retention.get(topic)
        if known is None:
            config = self.admin.topic_configs([topic]).get(topic, {})
            known = int(config.get("delete.retention.ms", DEFAULT_DELETE_RETENTION_MS))
            with self._lock:
                self._delete_retention[topic] = known
        return known


# --- records that processing skipped (note 065) ---------------------------------------------------


class RangeReader(Protocol):
    def read(self, tp: TopicPartition, start: int, end: int) -> Iterable[Chunk]: ...


@dataclass
class _Log:
    """``covered``: all skipped records before this offset are in ``found``."""

    covered: int = 0
    position: int | None = None
    found: Mapping[bytes, KeptEntry] = field(default_factory=dict)


@dataclass
class LeftOutLogs:
    """``topics``: reused topic -> the log of its skipped records. Any thread may ask. A batch
    writes to that log in the transaction that commits its offsets: it is complete up to a committed
    offset if it has no open transaction after the offset was read (KAFKA-10167)."""

    admin: ClusterAdmin
    topics: Mapping[str, str]
    open_reader: Callable[[], AbstractContextManager[RangeReader]]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _logs: dict[TopicPartition, _Log] = field(default_factory=dict)

    def covered(self, committed: Offsets) -> dict[TopicPartition, int]:
        """How far copies may follow reused topics: to ``committed``, or an open transaction."""
        with self._lock:
            behind = {
                tp: end for tp, end in committed.items() if self._logs.get(tp, _Log()).covered < end
            }
            if behind:
                self._read(behind)
            return {
                tp: min(end, self._logs.get(tp, _Log()).covered) for tp, end in committed.items()
            }

    def before(self, tp: TopicPartition, end: int | None) -> Mapping[bytes, KeptEntry]:
        """The records before ``end`` (None: before the last `Changelogs.answered_ends`) that
        processing skipped, none of a topic that is not reused. RetriableError while unknown."""
        if tp.topic not in self.topics:
            return {}
        if end is not None and self.covered({tp: end})[tp] < end:
            log = self._log_of(tp)
            raise RetriableError(f"a transaction is still open on {log}", [log])
        with self._lock:
            return self._logs.get(tp, _Log()).found

    def _log_of(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(self.topics[tp.topic], tp.partition)

    def _read(self, committed: Offsets) -> None:
        asked = [self._log_of(tp) for tp in committed]
        ends = self.admin.end_offsets(asked, "read_uncommitted")
        stable = self.admin.end_offsets(asked, "read_committed")
        for tp, covered in committed.items():
            log, own = self._logs.setdefault(tp, _Log()), self._log_of(tp)
            if stable[own] < ends[own]:
                continue
            if log.position is None:
                starts = self.admin.list_offsets([own], "earliest", "read_uncommitted")
                log.position = starts[own]
            if log.position < ends[own]:
                with self.open_reader() as reader:
                    read = reader.read(own, log.position, ends[own])
                    log.found = {**log.found, **unpacked(read)}
                log.position = ends[own]
            log.covered = covered
