"""Reads exact ranges of several partitions into columns: the resident step's source (note 004)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from everflow.errors import FatalError, LogTruncatedError, RetriableError
from everflow.kafka.reading.log_fetcher import AHEAD_BYTES, LogFetcher
from everflow.kafka.reading.record_columns import Columns, LogChunk, LogColumns
from everflow.records import UNBOUNDED_BYTES, OffsetRange, TopicPartition

SLICE_S = 0.5
"""How long a log that is silent may keep those from being read that are not."""


class Read(NamedTuple):
    """Records of ranges by partition, and the offset behind them: the range's end, behind it
    (``latest_ends``), or before it at the bound on bytes. ``silent``: partitions of which more was
    wanted and nothing came."""

    columns: Mapping[TopicPartition, LogColumns]
    ends: Mapping[TopicPartition, int]
    silent: tuple[TopicPartition, ...] = ()


class _Back(NamedTuple):
    """Records from ``start`` on, that were read; the log's position is behind them."""

    start: int
    columns: LogColumns
    position: int


class RangeReader:
    """Connections over the partitions it is asked for; owned by one thread."""

    def __init__(
        self,
        client: Mapping[str, Any],
        read_committed: bool,
        headers: bool = False,
        *,
        ahead_bytes: int = AHEAD_BYTES,
        fetcher: LogFetcher | None = None,
    ) -> None:
        """``client``: librdkafka's; ``fetcher`` in place of its; ``ahead_bytes``: `LogFetcher`."""
        self._fetcher = fetcher or LogFetcher.over(
            client, read_committed=read_committed, ahead=True, ahead_bytes=ahead_bytes
        )
        self._headers = headers
        self._back: dict[TopicPartition, _Back] = {}

    def read(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        timeout_s: float,
        most_bytes: int = UNBOUNDED_BYTES,
        quiet_s: float | None = None,
        latest_ends: Mapping[TopicPartition, int] = {},
        ids: Mapping[str, str] = {},
    ) -> Read:
        """The records of ``ranges`` in offset order, by partition; ranges follow one another except
        after a failure. A range that is in ``latest_ends`` may end there, or before: with the last
        record that came together with those of the range.

        It ends early at about ``most_bytes`` of keys and values, with a record at least of each
        range that has one; with ``quiet_s`` also once no record has come for so many seconds.

        Raises RetriableError if none comes for ``timeout_s`` seconds (an end beyond the last stable
        offset never comes), LogStartMovedError if a range begins outside the log, OtherTopicError
        if a log is not of the topic with the id in ``ids``, FatalError; after any of them, `close`
        and make another reader.
        """
        try:
            back = {tp: one for tp, one in self._back.items() if _begins(ranges.get(tp), one)}
            self._back = {}
            starts = {tp: wanted.start for tp, wanted in ranges.items()}
            starts |= {tp: one.position for tp, one in back.items()}
            self._fetcher.go_to(starts, timeout_s, ids)
            parts: dict[TopicPartition, list[LogColumns]] = {tp: [] for tp in ranges}
            ends: dict[TopicPartition, int] = {}
            left = most_bytes
            for tp, one in back.items():
                bound = max(ranges[tp].end, latest_ends.get(tp, -1))
                parts[tp].append(one.columns.before(bound))
                left -= parts[tp][0].nbytes if most_bytes < UNBOUNDED_BYTES else 0
                if bound < one.position:
                    ends[tp] = bound
                    self._back[tp] = _Back(bound, one.columns.behind(bound), one.position)
            pending = {tp: wanted.end for tp, wanted in ranges.items() if wanted.end > starts[tp]}
            waited_s = 0.0
            while pending:
                # With 1, a partition gets one record; what one does not use, the others get.
                share = max(1, left // len(pending))
                patience_s = timeout_s if quiet_s is None else quiet_s
                wait_s = min(SLICE_S, patience_s - waited_s) if len(pending) > 1 else patience_s
                found = self._fetcher.take(pending, wait_s, share, latest=latest_ends)
                waited_s = 0.0 if found else waited_s + wait_s
                if waited_s >= patience_s and quiet_s is not None:
                    break
                if waited_s >= patience_s:
                    missing = ", ".join(f"{tp} to {end}" for tp, end in sorted(pending.items()))
                    raise RetriableError(
                        f"no records for {timeout_s:g} s though the log says there are: {missing}",
                        pending,
                    )
                # What has just come is asked first: a silent log keeps nobody waiting again.
                pending = dict(sorted(pending.items(), key=lambda one: one[0] not in found))
                for tp, columns in self._columns(found).items():
                    parts[tp].append(columns)
                for tp, chunk in found.items():
                    used = chunk.bytes if most_bytes < UNBOUNDED_BYTES else 0
                    left -= used
                    if chunk.next_position >= pending[tp] or used >= share:
                        del pending[tp]
            return Read(
                {tp: LogColumns.concat(found) for tp, found in parts.items()},
                {**self._fetcher.positions, **ends},
                tuple(sorted(pending)),
            )
        except LogTruncatedError as lost:
            raise _lost(lost) from lost

    def further(self, ends: Mapping[TopicPartition, int], most_bytes: int) -> Read:
        """What has come of these logs behind what was read, before ``ends``; waits for nothing.
        Raises as `read`."""
        try:
            found = self._fetcher.take(ends, 0.0, most_bytes, latest=ends)
        except LogTruncatedError as lost:
            raise _lost(lost) from lost
        return Read(
            self._columns(found),
            {tp: chunk.next_position for tp, chunk in found.items()},
        )

    def _columns(
        self, found: Mapping[TopicPartition, LogChunk]
    ) -> dict[TopicPartition, LogColumns]:
        parts = Columns.arrow_together([chunk.raw for chunk in found.values()], self._headers)
        return dict(zip(found, parts, strict=True))

    def give_back(
        self, read: Mapping[TopicPartition, LogColumns], starts: Mapping[TopicPartition, int]
    ) -> int:
        """What was ``read`` last, and is to be read again from ``starts`` on: a range that begins
        there has it without another fetch. Returns the number of records."""
        positions, count = self._fetcher.positions, 0
        for tp, start in starts.items():
            if tp in read and start < positions.get(tp, -1):
                parts = [read[tp].behind(start)]
                parts += [self._back[tp].columns] if tp in self._back else []
                self._back[tp] = _Back(start, LogColumns.concat(parts), positions[tp])
                count += len(self._back[tp].columns)
        return count

    def warm_up(self, topics: Iterable[str], timeout_s: float) -> None:
        """Connect now instead of at the first range; RetriableError as `LogFetcher.warm_up`."""
        self._fetcher.warm_up(topics, timeout_s)

    def close(self) -> None:
        self._fetcher.close()


def _begins(wanted: OffsetRange | None, back: _Back) -> bool:
    return wanted is not None and wanted.start == back.start


def _lost(lost: LogTruncatedError) -> FatalError:
    """Read anew, nobody would know any more that this is another log."""
    return FatalError(
        f"{lost}. What was made of the lost records is in the outputs and stores. To go on with "
        "the log as it is, start again."
    )
