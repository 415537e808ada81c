"""Reads what processing has left out of topics that are changelogs, too (note 065)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from everflow.errors import RetriableError
from everflow.records import TopicPartition
from everflow.state.left_out import Chunk, KeptEntry, unpacked


class EndsAdmin(Protocol):
    """The part of `ClusterAdmin` that is needed."""

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        isolation: Literal["read_committed", "read_uncommitted"],
    ) -> Mapping[TopicPartition, int]: ...
    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        which: Literal["earliest", "latest"],
        isolation: Literal["read_committed", "read_uncommitted"],
    ) -> Mapping[TopicPartition, int]: ...


class RangeReader(Protocol):
    """The part of `LogReader` that is needed."""

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterable[Chunk]: ...


@dataclass
class _Log:
    """One partition. ``covered``: all that was left out of the reused topic before this offset is
    in ``found``."""

    covered: int = 0
    position: int | None = None
    found: Mapping[bytes, KeptEntry] = field(default_factory=dict)


class LeftOutLogs:
    """One per instance; any thread may ask. ``topics``: reused topic -> the topic that says what
    was left out of it.

    A batch writes there in the transaction that commits its offsets. So who knows a committed
    offset first, and finds no open transaction in the log after that, has all that was left out
    before the offset (markers of a transaction become visible partition by partition, KAFKA-10167).
    """

    def __init__(
        self,
        admin: EndsAdmin,
        topics: Mapping[str, str],
        open_reader: Callable[[], AbstractContextManager[RangeReader]],
    ) -> None:
        self._admin, self._topics, self._open_reader = admin, topics, open_reader
        self._lock = threading.Lock()
        self._logs: dict[TopicPartition, _Log] = {}

    def covered(self, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """How far partitions of reused topics may be followed that are ``committed`` up to there:
        less while a transaction is open."""
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
        """See `Changelogs.left_out`. ``end``: of committed offsets."""
        if tp.topic not in self._topics:
            return {}
        if end is not None and self.covered({tp: end})[tp] < end:
            log = self._log_of(tp)
            raise RetriableError(f"a transaction is still open on {log}", [log])
        with self._lock:
            return self._logs.get(tp, _Log()).found

    def _log_of(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(self._topics[tp.topic], tp.partition)

    def _read(self, committed: Mapping[TopicPartition, int]) -> None:
        asked = [self._log_of(tp) for tp in committed]
        ends = self._admin.end_offsets(asked, "read_uncommitted")
        stable = self._admin.end_offsets(asked, "read_committed")
        for tp, covered in committed.items():
            log, own = self._logs.setdefault(tp, _Log()), self._log_of(tp)
            if stable[own] < ends[own]:
                continue
            if log.position is None:
                starts = self._admin.list_offsets([own], "earliest", "read_uncommitted")
                log.position = starts[own]
            if log.position < ends[own]:
                with self._open_reader() as reader:
                    read = reader.read(own, log.position, ends[own])
                    log.found = {**log.found, **unpacked(read)}
                log.position = ends[own]
            log.covered = covered
