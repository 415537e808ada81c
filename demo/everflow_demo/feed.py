"""Sends the flights to their topic: all at once, or paced, so that there is always load."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from everflow.errors import FatalError
from everflow.kafka.writing.record_writer import RecordWriter
from everflow_demo.data import TopicRecords

_CHUNK = 50_000  # records handed to the producer at a time
_TICK_S = 0.05
_EASE_S = 30.0
_BEHIND_S = 2.0


@dataclass
class Pace:
    """How many records are due. Pure; times in s.

    Each stretch of the demo has its share of the records: ``limit`` of them may be sent until
    somebody raises it. Until the limit comes near they are due at ``rate`` a second, then ever
    slower: a stretch that takes longer than expected (a slow machine starts Spark) never runs dry.
    While ``behind`` nothing is due: the load is what the machine can take.
    """

    rate: float
    limit: int = 0
    behind: bool = False
    _owed: float = 0.0

    def due(self, sent: int, elapsed_s: float) -> int:
        """Records to send now, ``elapsed_s`` after the last call, ``sent`` of them before it."""
        left = 0 if self.behind else max(0, self.limit - sent)
        self._owed += min(self.rate, left / _EASE_S) * elapsed_s
        now = min(int(self._owed), left)
        self._owed -= now
        return now


@dataclass
class _Progress:
    sent: int = 0
    at_once: bool = False
    error: Exception | None = None
    stop: threading.Event = field(default_factory=threading.Event)


class Feed:
    """Sends the records from a thread of its own, in order. The methods are for one other
    thread."""

    def __init__(self, records: TopicRecords, bootstrap_servers: str, pace: Pace) -> None:
        self._records = records
        self._servers = bootstrap_servers
        self._pace = pace
        self._progress = _Progress()
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop.set()
        self._thread.join()

    @property
    def sent(self) -> int:
        """Records that the broker has."""
        return self._progress.sent

    @property
    def done(self) -> bool:
        """Whether the broker has all. Raises FatalError if the feed broke down."""
        if self._progress.error is not None:
            raise FatalError(
                f"the flights could not be sent: {self._progress.error}"
            ) from self._progress.error
        return self.sent == len(self._records)

    def allow(self, share: float) -> None:
        """Up to this share of the records (0 to 1) may be sent from now on."""
        self._pace.limit = round(share * len(self._records))

    def lag(self, records: int) -> None:
        """So many of the records sent are not processed yet: with more than two seconds' worth of
        them the feed waits."""
        self._pace.behind = records > _BEHIND_S * self._pace.rate

    def all_at_once(self) -> None:
        """Send what is left as fast as it goes."""
        self._progress.at_once = True

    def _run(self) -> None:
        progress = self._progress
        try:
            writer = open_writer(self._servers)
            before = time.monotonic()
            while not progress.stop.wait(
                0.0 if progress.at_once else _TICK_S
            ) and progress.sent < len(self._records):
                now = time.monotonic()
                count = _CHUNK if progress.at_once else self._pace.due(progress.sent, now - before)
                before = now
                if count:
                    send(writer, self._records, progress.sent, progress.sent + count)
                    progress.sent = min(progress.sent + count, len(self._records))
            writer.close()
        except Exception as error:  # told by `done`, on the demo's own thread
            progress.error = error


def open_writer(bootstrap_servers: str) -> RecordWriter:
    """A writer without transactions; it belongs to the thread that opens it."""
    writer = RecordWriter.get({"bootstrap.servers": bootstrap_servers}, None)
    writer.begin()
    return writer


def send_all(records: TopicRecords, bootstrap_servers: str) -> None:
    """Everything now; returns when the broker has it."""
    writer = open_writer(bootstrap_servers)
    send(writer, records, 0, len(records))
    writer.close()


def send(writer: RecordWriter, records: TopicRecords, first: int, end: int) -> None:
    """Records ``first`` up to ``end``; returns when the broker has them."""
    for start in range(first, min(end, len(records)), _CHUNK):
        part = slice(start, min(start + _CHUNK, end))
        writer.write(
            records.topic, records.keys[part], records.values[part], records.timestamps[part]
        )
    writer.flush(60.0)
