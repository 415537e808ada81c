"""Reads exact ranges of several partitions into columns: the resident step's source (note 004).

Two ways, batch by batch: librdkafka for small ranges, because it fetches ahead and has the records
of the tail here already when the driver asks for them; our own fetches for large ones, because an
object per record costs more than everything that is done with the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from everflow.errors import FatalError, LogTruncatedError, RetriableError
from everflow.kafka.reading.client_tap import ClientTap
from everflow.kafka.reading.fetch_tap import AHEAD_BYTES, FetchTap
from everflow.kafka.reading.log_columns import LogColumns
from everflow.kafka.reading.record_batches import UnsupportedBatchError
from everflow.kafka.reading.taps import Tap, Taps
from everflow.kafka.reading.topic_ids import TopicIds
from everflow.records import UNBOUNDED_BYTES, OffsetRange, TopicPartition

TAIL_RECORDS = 20_000
"""Up to here librdkafka's messages cost less than the switch: 30 ms."""
FETCHING: Mapping[str, Any] = {
    # A tail of transaction markers is only reported by an empty fetch; a fetch with records returns
    # at once whatever this says. It is also how often an idle reader asks, until it rests. (Pausing
    # it was tried: librdkafka takes a second to fetch again.)
    "fetch.wait.max.ms": 20,
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16_384,
    # One answer may be larger than the queue.
    "fetch.max.bytes": 16 << 20,
}


SLICE_S = 0.5
"""How long a log that is silent may keep those from being read that are not."""


class Read(NamedTuple):
    """What was read of some ranges: the records of each partition, and the offset behind them,
    which is the range's end or, where the bound on bytes was reached, before it. ``silent``:
    partitions of which more was wanted and nothing came."""

    columns: Mapping[TopicPartition, LogColumns]
    ends: Mapping[TopicPartition, int]
    silent: tuple[TopicPartition, ...] = ()


class RangeReader:
    """Connections over the partitions it is asked for; owned by one thread."""

    def __init__(
        self,
        client: Mapping[str, Any],
        group: str,
        read_committed: bool,
        headers: bool = False,
        *,
        tail_records: int = TAIL_RECORDS,
        ahead_bytes: int = AHEAD_BYTES,
        taps: Taps | None = None,
        ids: TopicIds | None = None,
    ) -> None:
        """``client``: librdkafka properties. ``group``: a group id, never joined. ``headers``:
        whether records' headers are read.
        ``tail_records``: up to so many offsets, librdkafka reads. ``ahead_bytes``: see
        `FetchTap`. ``taps``, ``ids``: in place of those of
        ``client``."""
        self._taps = taps or Taps(
            FetchTap.over(
                client, read_committed=read_committed, ahead=True, ahead_bytes=ahead_bytes
            ),
            ClientTap(client, group, FETCHING, read_committed=read_committed, patient=False),
        )
        self._ids = ids or TopicIds.over(client)
        self._headers = headers
        self._tail_records = tail_records

    def read(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        timeout_s: float,
        most_bytes: int = UNBOUNDED_BYTES,
        quiet_s: float | None = None,
    ) -> Read:
        """The records of ``ranges`` in offset order, by partition; ranges follow one another except
        after a failure.

        It ends early where keys and values have about ``most_bytes`` bytes, with one record at
        least of each range that has one: then the next range begins where the read ended. With
        ``quiet_s`` it ends, too, once no record has come for so many seconds, with what there is.

        Raises RetriableError if none comes for ``timeout_s`` seconds (an end beyond the last stable
        offset never comes), LogStartMovedError if a range begins outside the log, FatalError as
        classified in `everflow.kafka.errors`; after any of them, `close` and make another reader.
        """
        own, client = self._taps.own(ranges), self._taps.client
        large = (
            sum(max(0, wanted.end - wanted.start) for wanted in ranges.values())
            > self._tail_records
        )
        if own is None or not (large or own.positions):
            return self._taken(client, ranges, timeout_s, most_bytes, quiet_s)
        try:
            read = self._taken(own, ranges, timeout_s, most_bytes, quiet_s)
        except LogTruncatedError as lost:
            # Read anew, nobody would know any more that this is another log.
            raise FatalError(
                f"{lost}. What was made of the lost records is in the outputs and stores. To go on "
                "with the log as it is, start again."
            ) from lost
        except UnsupportedBatchError as reason:
            own.go_to({})
            self._taps.leave({tp: wanted.start for tp, wanted in ranges.items()}, reason)
            return self._taken(client, ranges, timeout_s, most_bytes, quiet_s)
        if large:
            client.go_to({})
        else:
            # The first small one after large ones was under way; librdkafka begins behind it.
            own.go_to({})
            client.go_to(read.ends)
        return read

    def warm_up(self, topics: Iterable[str], timeout_s: float) -> None:
        """Connect now instead of at the first range of these topics. Raises RetriableError if no
        broker answers within ``timeout_s`` s."""
        self._taps.client.warm_up(topics, timeout_s)
        own = self._taps.own()
        if own is not None:
            own.warm_up(topics, timeout_s)
        self._ids.warm_up(topics)

    def ask_ids(self, logs: Iterable[TopicPartition], ids: Mapping[str, str]) -> None:
        """Begin to ask whether these logs, which were just read, are of the topics with these ids;
        `require_ids` takes the answer. Raises RetriableError or FatalError where it has to connect
        first."""
        self._ids.ask(logs, ids)

    def require_ids(self, timeout_s: float) -> None:
        """RetriableError where a log that `ask_ids` was given is of another topic by now, or where
        no broker says so within ``timeout_s`` seconds. At once where nothing is asked."""
        self._ids.require(timeout_s)

    def rest(self) -> None:
        """Nothing was asked for in a while: librdkafka, which otherwise asks the brokers for more
        some dozen times a second, lets go of the logs. They are taken up again within
        milliseconds (unlike paused ones), at the next range."""
        self._taps.client.go_to({})

    def close(self) -> None:
        """Drop the connections."""
        self._taps.close()
        self._ids.close()

    def _taken(
        self,
        tap: Tap,
        ranges: Mapping[TopicPartition, OffsetRange],
        timeout_s: float,
        most_bytes: int,
        quiet_s: float | None,
    ) -> Read:
        tap.go_to({tp: wanted.start for tp, wanted in ranges.items()}, timeout_s)
        parts: dict[TopicPartition, list[LogColumns]] = {tp: [] for tp in ranges}
        pending = {tp: wanted.end for tp, wanted in ranges.items() if wanted.end > wanted.start}
        left = most_bytes
        waited_s = 0.0
        while pending:
            # With 1, a partition gets one record; what one does not use, the others get.
            share = max(1, left // len(pending))
            patience_s = timeout_s if quiet_s is None else quiet_s
            wait_s = min(SLICE_S, patience_s - waited_s) if len(pending) > 1 else patience_s
            found = tap.take(pending, wait_s, share)
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
            for tp, chunk in found.items():
                parts[tp].append(chunk.columns(self._headers))
                used = chunk.bytes if most_bytes < UNBOUNDED_BYTES else 0
                left -= used
                if chunk.next_position >= pending[tp] or used >= share:
                    del pending[tp]
        return Read(
            {tp: LogColumns.concat(found) for tp, found in parts.items()},
            tap.positions,
            tuple(sorted(pending)),
        )
