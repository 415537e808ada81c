"""Reads logs in columns, by own fetch requests, the next one under way while records are parsed."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from typing import Any

import kafka.errors as client_errors

from everflow.errors import (
    EverflowError,
    FatalError,
    LogStartMovedError,
    LogTruncatedError,
    OtherTopicError,
    RetriableError,
)
from everflow.kafka.connection_settings import CHECK_CRCS, connection_settings
from everflow.kafka.errors import LinkLostError, RefusedError, classify_member
from everflow.kafka.reading import record_batches
from everflow.kafka.reading.fetch_connection import (
    CONNECT_S,
    FETCH_BYTES,
    Answer,
    DivergedError,
    FetchConnection,
    FetchPlace,
)
from everflow.kafka.reading.record_batches import Portion
from everflow.kafka.reading.record_columns import Columns, CorruptBatchError, LogChunk
from everflow.records import UNBOUNDED_BYTES, TopicPartition

AHEAD_BYTES = 64 << 20
UNBOUNDED_RECORDS = 1 << 62
WAIT_MS = 20
"""How long a broker delays a fetch at the end of a log, where not said otherwise."""
_LEAST_BYTES = 64 << 10
_NOTHING = record_batches.columns(b"", [])
_TOGETHER_BYTES = 64 << 10
"""Record batches of several logs are taken apart in one call up to so many bytes: they are copied
for it."""
_OTHER_TOPIC = (client_errors.UnknownTopicIdError, client_errors.InconsistentTopicIdError)
_PAUSE_S = 0.05
"""After a passing fault a log is fetched again so much later."""
_DAMAGED_AGAIN_S = 10.0
"""After a damaged batch; another broker may lead the log by then."""


@dataclass(eq=False, repr=False)
class LogFetcher:
    """Logs read forward from positions of its own, without a group. Owned by one thread; connects
    when first used.

    Holds a connection to each broker that leads one of the logs until closed, and at most two
    fetches of each log, and the columns of a third: the more logs, the smaller they are.
    """

    settings: Mapping[str, Any]
    """From `connection_settings`."""
    _: KW_ONLY
    read_committed: bool = True
    ahead: bool = False
    """Fetch beyond the ends that were asked for, as far as records are known to be there."""
    ahead_bytes: int = AHEAD_BYTES
    """The next fetches of all logs together."""
    fetch_bytes: int = FETCH_BYTES
    parsed_bytes: int = FETCH_BYTES
    wait_ms: int = WAIT_MS
    check_crcs: bool = True
    """Compute each batch's checksum."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    trouble: str = field(default="", init=False)
    """The passing fault that was met last, if no answer came since."""
    _connection: FetchConnection | None = field(default=None, init=False)
    _streams: dict[TopicPartition, _Stream] = field(default_factory=dict, init=False)

    @staticmethod
    def over(config: Mapping[str, Any], **values: Any) -> LogFetcher:
        """Of librdkafka's settings; ``check.crcs`` is true by default. Raises as
        `connection_settings`."""
        check_crcs = str(config.get(CHECK_CRCS, True)).lower() != "false"
        return LogFetcher(connection_settings(config), check_crcs=check_crcs, **values)

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The offset behind what was taken, of each log."""
        return {tp: stream.position for tp, stream in self._streams.items()}

    def go_to(
        self,
        starts: Mapping[TopicPartition, int],
        timeout_s: float = CONNECT_S,
        ids: Mapping[str, str] = {},
    ) -> None:
        """Read these logs from these offsets on, and no others; one that is there goes on
        undisturbed (I4). ``ids``: `FetchConnection.use_ids`. RetriableError where it connects."""
        if not starts:
            self._streams = {}
            return
        connection = self._connected(timeout_s)
        connection.use_ids(ids)
        share = max(_LEAST_BYTES, self.ahead_bytes // len(starts))
        connection.log_bytes = min(self.fetch_bytes, share)
        parsed_bytes = min(self.parsed_bytes, share)
        kept = {
            tp: stream for tp, stream in self._streams.items() if starts.get(tp) == stream.position
        }
        self._streams = {
            tp: kept.get(tp) or _Stream(tp, start, parsed_bytes, self.check_crcs)
            for tp, start in starts.items()
        }

    def take(
        self,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
        most_bytes: int = UNBOUNDED_BYTES,
        most_records: int = UNBOUNDED_RECORDS,
        latest: Mapping[TopicPartition, int] = {},
    ) -> dict[TopicPartition, LogChunk]:
        """Take what is there of these logs before their ends, waiting up to ``timeout_s`` seconds
        for the first of it, and move the positions behind it. Of a log in ``latest``, what came
        with it is taken too, up to that offset. A log whose position did not move is not in the
        result, one that moved over markers or aborted records has an empty chunk. A chunk has about
        ``most_bytes`` bytes of keys and values, or one record; all together have ``most_records``
        records at most. A broker that is away is asked again meanwhile.

        Raises:
            LogStartMovedError: the position of the named log lies outside it; the others can be
                taken from on. LogTruncatedError: it has other records by now.
            OtherTopicError: the named log is of another topic than ``ids`` says, or its topic is
            gone.
            CorruptBatchError: a batch of the named log is damaged; the others can be taken from on.
            FatalError: refused for good, as classified in `everflow.kafka.errors`.
        """
        until_s = self.clock() + timeout_s
        wanted = [self._streams[tp] for tp, end in ends.items() if self._streams[tp].position < end]
        for one in wanted:
            one.bound = ends[one.tp]
            one.latest = latest.get(one.tp, one.bound)
        over = False
        while True:
            self._fetch()
            found = self._here(wanted, most_bytes, most_records)
            if found:
                if self._fetch():
                    self._connected(CONNECT_S).push()
                return found
            self._raise_fault(wanted, over=over)
            if over:
                return {}
            left_s = until_s - self.clock()
            over = left_s <= 0
            self._receive(wanted, max(0.0, left_s))

    def warm_up(self, topics: Iterable[str], timeout_s: float) -> None:
        """Connect to these topics now; gives up what was read ahead. RetriableError as `go_to`."""
        self._streams = {}
        self._connected(timeout_s).connect(topics, timeout_s)

    def close(self) -> None:
        """Go to no log, and drop the connections; another `go_to` makes new ones."""
        self._streams = {}
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self, timeout_s: float) -> FetchConnection:
        if self._connection is None:
            self._connection = FetchConnection.opened(
                self.settings,
                "everflow-log-reader",
                timeout_s,
                self.wait_ms,
                read_committed=self.read_committed,
            )
        return self._connection

    def _fetch(self) -> bool:
        """Ask for what comes next of all logs; False if there is nothing to ask for."""
        now_s = self.clock()
        places = {
            tp: one.next_place
            for tp, one in self._streams.items()
            if one.again_s <= now_s and one.wants(self.ahead)
        }
        if not places:
            return False
        for tp, failure in self._connected(CONNECT_S).fetch(places).items():
            self._failed(self._streams[tp], failure)
        return True

    def _here(
        self, wanted: Collection[_Stream], most_bytes: int, most_records: int
    ) -> dict[TopicPartition, LogChunk]:
        found: dict[TopicPartition, LogChunk] = {}
        _parse_together(wanted)
        for one in wanted:
            if most_records <= 0:
                break
            try:
                chunk = one.chunk(most_bytes, most_records)
            except EverflowError as failure:
                self._failed(one, failure)
                continue
            if chunk is not None:
                found[one.tp] = chunk
                most_records -= chunk.records
        return found

    def _receive(self, wanted: Iterable[_Stream], wait_s: float) -> None:
        now_s = self.clock()
        again = [one.again_s - now_s for one in wanted if one.again_s > now_s]
        for tp, answer in self._connected(CONNECT_S).answers(min([wait_s, *again])).items():
            one = self._streams.get(tp)
            if one is None or one.next_place.offset != answer.offset:
                continue
            if answer.failure is not None:
                self._failed(one, answer.failure)
                continue
            self.trouble = ""
            try:
                one.add(answer)
            except EverflowError as failure:
                self._failed(one, failure)

    def _failed(self, one: _Stream, failure: Exception) -> None:
        assert self._connection is not None
        tp, at = one.tp, one.next_place.offset
        one.again_s = self.clock() + _PAUSE_S
        if isinstance(failure, LinkLostError) and failure.__cause__ is not None:
            failure = failure.__cause__  # type: ignore[assignment]
        if isinstance(failure, CorruptBatchError):
            one.again_s = self.clock() + _DAMAGED_AGAIN_S
            one.fault = CorruptBatchError(
                f"{tp}, offset {at}: the record batch cannot be read: {failure}. If it stays, the "
                "disk of the broker that leads the partition is damaged: let another replica lead "
                "it, or delete the records up to behind that offset.",
                [tp],
            )
            one.start_over()
        elif isinstance(failure, EverflowError):
            one.fault = FatalError(f"{tp}: {failure}")
        elif isinstance(failure, DivergedError):
            one.fault = LogTruncatedError(
                f"{tp}: the log was cut at offset {failure.end_offset} by an election of a leader "
                f"that lacked records, which were read up to {at}; it has other records since",
                tp,
            )
        elif self._connection.forget(tp):
            pass  # another replica than the leader may be behind; the leader decides
        elif isinstance(failure, client_errors.OffsetOutOfRangeError):
            one.fault = LogStartMovedError(f"{tp}: offset {at} is outside the log", tp)
        elif isinstance(failure, _OTHER_TOPIC):
            one.fault = OtherTopicError(
                f"{tp}: the leader answers {failure.message}: the log is not of the topic with the "
                f"id that the application started with. Nothing of it is read from {at} on. The "
                f"instance ends once the brokers confirm that the topic was deleted, or deleted "
                f"and created again.",
                [tp],
            )
        elif isinstance(failure, client_errors.KafkaError):
            problem = classify_member(failure, f"reading {tp}, at {at}")
            if not isinstance(problem, RetriableError) or isinstance(
                failure, client_errors.SaslAuthenticationFailedError
            ):
                one.fault = problem
            self.trouble = str(problem)
        elif isinstance(failure, LinkLostError | RefusedError):
            self.trouble = f"reading {tp}, at {at}: {failure}"
        else:
            raise failure

    def _raise_fault(self, wanted: Collection[_Stream], *, over: bool) -> None:
        """``over``: the time of the `take`; until then a damaged batch waits for other logs."""
        faults = [(one, one.fault) for one in wanted if one.fault is not None]
        for one, fault in faults:
            damaged = isinstance(fault, CorruptBatchError)
            if damaged and not over and len(faults) < len(wanted):
                continue
            if not damaged or one.again_s <= self.clock():
                one.fault, one.again_s = None, 0.0
            raise fault


def _parse_together(streams: Collection[_Stream]) -> None:
    """Take the next records of several logs apart at once, if they are few: it costs by the call.
    What is damaged is left to its log."""
    portions = [(one, portion) for one in streams if (portion := one.next_portion()) is not None]
    size = sum(batches[-1].end - batches[0].begin for _, (_, batches) in portions)
    if len(portions) < 2 or size > _TOGETHER_BYTES:
        return
    try:
        found = record_batches.columns_together([portion for _, portion in portions])
    except EverflowError:
        return
    for (one, (_, batches)), columns in zip(portions, found, strict=True):
        one.parsed(columns, len(batches))


class _Stream:
    """One log: what was received and not yet taken."""

    def __init__(
        self,
        tp: TopicPartition,
        start: int,
        parsed_bytes: int,
        check_crcs: bool,
    ) -> None:
        self.tp = tp
        self._parsed_bytes = parsed_bytes
        self._check_crcs = check_crcs
        self._fetched = start
        self._epoch = -1
        self._end = -1
        self._unparsed: deque[Portion] = deque()
        self._parsed: Columns | None = None
        self.position = start
        self.bound = -1
        """The end that was asked for last."""
        self.latest = -1
        """Nothing from this offset on is taken, though it is here."""
        self.fault: EverflowError | None = None
        """Why nothing more comes."""
        self.again_s = 0.0
        """Not fetched before."""

    @property
    def next_place(self) -> FetchPlace:
        return FetchPlace(self._fetched, self._epoch)

    def wants(self, ahead: bool) -> bool:
        """True if a fetch is due: of records asked for, or (``ahead``) known to be there, while at
        most one fetch waits here."""
        if self._fetched >= (max(self.bound, self._end) if ahead else self.bound):
            return False
        unparsed = self._unparsed
        return not unparsed or unparsed[0][0] is unparsed[-1][0]

    def chunk(self, most_bytes: int, most_records: int) -> LogChunk | None:
        """The received records that may be taken, or the first of them; None if they do not move
        the position."""
        end = self.latest
        if self._parsed is None and not self._unparsed and self._fetched == self.position:
            return None
        while (portion := self.next_portion()) is not None:
            self.parsed(record_batches.columns(*portion), len(portion[1]))
        parsed = _NOTHING if self._parsed is None else self._parsed
        part = parsed.between(0, end).up_to(most_bytes)
        if len(part.offsets) > most_records:
            part = part.of(slice(0, most_records))
        count = len(part.offsets)
        if count:
            self._parsed = parsed.of(slice(count, None)) if count < len(parsed.offsets) else None
        behind = self._fetched
        if self._parsed is not None:
            behind = int(self._parsed.offsets[0])
        elif self._unparsed:
            behind = self._unparsed[0][1][0].base_offset
        behind = min(end, behind)
        if behind == self.position:
            return None
        self.position = behind
        return LogChunk(part, behind, count)

    def start_over(self) -> None:
        self._unparsed.clear()
        self._parsed = None
        self._fetched, self._epoch = self.position, -1

    def add(self, answer: Answer) -> None:
        """Take in an answer. Raises CorruptBatchError and FatalError."""
        self._end = answer.end
        data = record_batches.modern(answer.records)
        found = record_batches.batches(data)
        if data and not found:
            # A broker always sends the first batch whole, however large (KIP-74).
            raise CorruptBatchError(
                f"the record batch at offset {self._fetched} is longer than what was sent of it"
            )
        if self._check_crcs:
            record_batches.check(data, found)
        behind = found[-1].next_offset if found else self._fetched
        if behind <= self._fetched:
            return
        self.fault = None
        seen = record_batches.committed(data, found, answer.aborted)
        wanted = [batch for batch in seen if batch.next_offset > self._fetched]
        self._unparsed += [
            (data, portion) for portion in record_batches.portions(wanted, self._parsed_bytes)
        ]
        self._fetched, self._epoch = behind, found[-1].epoch

    def next_portion(self) -> Portion | None:
        """The record batches to be taken apart next; None while records are here, or nothing that
        may be taken."""
        if self._parsed is not None or not self._unparsed:
            return None
        data, portion = self._unparsed[0]
        count = bisect_left(portion, self.latest, key=attrgetter("base_offset"))
        return (data, portion[:count]) if count else None

    def parsed(self, whole: Columns, count: int) -> None:
        """The first ``count`` batches of the next portion, taken apart."""
        found = whole.between(self.position, sys.maxsize)
        self._parsed = found if len(found.offsets) else None
        data, portion = self._unparsed[0]
        if count < len(portion):
            self._unparsed[0] = (data, portion[count:])
        else:
            self._unparsed.popleft()
