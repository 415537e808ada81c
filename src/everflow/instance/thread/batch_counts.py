"""Counts what committed batches read, wrote and dropped; logs drops at once, then each minute."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from everflow import metrics as names
from everflow.clock import Clock, Running, on_thread
from everflow.logs import counted, rebalance_log
from everflow.metrics import Labels, Metrics, Seen
from everflow.protocol.messages import ABORTED, RENEWED, BatchResult, Printed
from everflow.records import LATE, LATE_UNMATCHED, KeyPlaces

PRINTED_EVERY_S = 0.5
HEAD_EVERY = 40


@dataclass
class TableText:
    """Lines of tables, with columns that keep their widths as long as they do. Not thread-safe."""

    _last: tuple[str, Sequence[str]] | None = None
    _since_head: int = 0
    _widths: list[int] = field(default_factory=list)

    def lines(self, printed: Printed) -> list[str]:
        columns = zip(printed.columns, *printed.rows, strict=True)
        needed = [max(map(len, cells)) for cells in columns]
        this = printed.title, tuple(printed.columns)
        found, widths = [], needed
        if this == self._last:
            widths = [max(pair) for pair in zip(needed, self._widths, strict=True)]
        if this != self._last or widths != self._widths or self._since_head >= HEAD_EVERY:
            self._last, self._widths, self._since_head = this, widths, 0
            found = [f"--- {printed.title}", self._line(printed.columns)]
        found += [self._line(row) for row in printed.rows]
        self._since_head += len(printed.rows)
        if printed.left_out:
            found.append(f"... and {printed.left_out:,} more")
        return found

    def _line(self, cells: Sequence[str]) -> str:
        padded = (text.ljust(width) for text, width in zip(cells, self._widths, strict=True))
        return "  ".join(padded).rstrip()


class TablePrinter:
    """Prints tables from a thread of its own. Any thread may call `add`, which never waits."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._text = TableText()
        self._pending: dict[tuple[str, tuple[str, ...]], Printed] = {}
        self._guard, self._writing = threading.Lock(), threading.Lock()
        self._some = threading.Event()
        self._running: Running | None = None

    def add(self, printed: Iterable[Printed]) -> None:
        with self._guard:
            for one in printed:
                place = one.title, tuple(one.columns)
                before = self._pending.get(place)
                self._pending[place] = one if before is None else before.with_later(one)
            if self._pending and (self._running is None or self._running.join(0)):
                self._running = on_thread("everflow-print-table", self._run)
        self._some.set()

    def flush(self) -> None:
        """Print what is there, now; it may wait for the terminal."""
        with self._writing:
            with self._guard:
                pending, self._pending = self._pending, {}
            lines = [line for one in pending.values() for line in self._text.lines(one)]
            if lines:
                self._write("\n".join(lines) + "\n")

    @contextmanager
    def written_by(self, write: Callable[[str], object]) -> Iterator[None]:
        """While the block runs, a live line owns the terminal, and ``write`` writes the rows."""
        before = self._swap(write)
        try:
            yield
        finally:
            self.flush()
            self._swap(before)

    def _swap(self, write: Callable[[str], object]) -> Callable[[str], object]:
        with self._writing:
            before, self._write = self._write, write
        return before

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._some.wait()
            self._some.clear()
            self.flush()
            pause.wait(PRINTED_EVERY_S)


def _to_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError):
        return  # closed, or nobody reads it any more


tables = TablePrinter(_to_stdout)
"""One printer per process: its instances share one terminal."""


COMMIT_PHASES = ("gate", "offsets", "delivery", "commit", "apply")
GATE = "gate"
"""The phase that a batch without a commit does not have."""

LOGGED_EVERY_MS = 60_000.0
MOST_REMARKS = 3
NOTHING: Mapping[str, Mapping[str, int]] = {}

COUNTS = {
    "in": names.RECORDS_CONSUMED,
    "out": names.RECORDS_PRODUCED,
    "changelog": names.CHANGELOG_RECORDS,
    "dead_letters": names.DEAD_LETTERS,
}

WHY = {
    "failed": "that failed, as their exception handler decided",
    LATE_UNMATCHED: (
        "without a match: they came after the join's window and grace, by the newest record time "
        "of the task (docs/guide/joins.md)"
    ),
    LATE: (
        "too late: the window's grace was over, by the newest record time of the task "
        "(docs/guide/time.md)"
    ),
    "negative-timestamp": "without a time: theirs, or the value of timestamp=, is negative",
    "null-foreign-key": "without a foreign key",
    "null-key": "without a key",
    "null-value": "without a value",
    "punctuation": "that failed, as the processing exception handler decided",
}
NOUNS = {"punctuation": "clock's call"}
VERBS = {LATE_UNMATCHED: "emitted"}


@dataclass
class DroppedRecords:
    """Drops of one stream thread that have not been logged yet. Pure; times are monotonic ms."""

    _drops: dict[tuple[str, str], int] = field(default_factory=dict)
    _logged_ms: dict[tuple[str, str], float] = field(default_factory=dict)

    def lines(self, dropped: Mapping[str, Mapping[str, int]], now_ms: float) -> list[str]:
        for node, reasons in dropped.items():
            for reason, count in reasons.items():
                self._drops[node, reason] = self._drops.get((node, reason), 0) + count
        last = self._logged_ms
        due = [key for key in self._drops if now_ms - last.get(key, -math.inf) >= LOGGED_EVERY_MS]
        self._logged_ms.update(dict.fromkeys(due, now_ms))
        return [
            f"{node} {VERBS.get(why, 'dropped')} "
            f"{counted(self._drops.pop((node, why)), NOUNS.get(why, 'record'))} {WHY.get(why, why)}"
            for node, why in due
        ]


def misplaced_keys(keys: Iterable[KeyPlaces]) -> dict[str, str]:
    return {one.topic: _misplaced(one) for one in keys if one.misplaced}


def _misplaced(keys: KeyPlaces) -> str:
    if keys.fits:
        lie = f"All {keys.checked:,} are where {keys.fits} puts them. "
        cure = f"partitioner={keys.fits!r}"
    else:
        lie = ""
        cure = "partitioner= ('crc32' for confluent-kafka, 'fnv1a', or a function)"
    return (
        f"{keys.topic}: {keys.misplaced:,} of {keys.checked:,} checked keys are not in the "
        f"partition where {keys.by} puts them ({keys.sample}). {lie}Equal keys of this topic and "
        f"of others do not meet in one task: joins lose matches, and a query may ask the wrong "
        f"instance. Give the source {keys.node} {cure}, or put .repartition(name='a-name') behind "
        f"it, or let its producer write by murmur2 (docs/guide/joins.md)"
    )


@dataclass
class BatchCounts:
    """Owned by one stream thread."""

    metrics: Metrics
    clock: Clock
    number: int
    began_ms: float = 0.0
    _dropped: DroppedRecords = field(default_factory=DroppedRecords)

    def again(self, kind: str = ABORTED, reason: str = "") -> None:
        """It failed, or was aborted: then ``reason`` is a word for the kind, a colon, the rest."""
        self.metrics.add(names.COMMITS_ABORTED if kind == ABORTED else names.BATCHES_FAILED, 1)
        self._took()
        self.metrics.add_series(names.FAILED_BATCHES, {(str(self.number), kind): 1})
        if kind == ABORTED:
            cause = reason.partition(":")[0]
            self.metrics.add_series(names.REFUSED_COMMITS, {(str(self.number), cause): 1})

    def failed(self, connector: str, text: str) -> None:
        """A batch failed in this connector; ``text``: how and where, for people."""
        labels, metrics = (connector,), self.metrics
        metrics.add_series(names.CONNECTOR_ERRORS, {labels: 1})
        metrics.note(names.CONNECTOR_ERRORS, {labels: text})
        metrics.put_series(names.CONNECTOR_FAILED, {labels: self.clock.now_ms()})

    def add(self, result: BatchResult) -> None:
        dropped = result.dropped.items()
        drops = [(node, why, n) for node, reasons in dropped for why, n in reasons.items()]
        self._put_figures(result, drops)
        self.metrics.add(names.COMMITS, 1)
        for key, name in COUNTS.items():
            self.metrics.add(name, result.counts.get(key, 0))
        lost = sum(count for _, why, count in drops if why not in VERBS)
        self.metrics.add(names.DROPPED_RECORDS, lost)
        self.log_drops(self.clock.monotonic_ms(), result.dropped)
        self._log_misplaced(result)
        tables.add(result.printed)
        if result.left_out:
            rebalance_log.warning("records skipped in a batch: %s", "; ".join(result.left_out))
        if result.remarks:
            more = len(result.remarks) - MOST_REMARKS
            and_more = f"; and {more} more" if more > 0 else ""
            rebalance_log.warning("%s%s", "; ".join(result.remarks[:MOST_REMARKS]), and_more)

    def _log_misplaced(self, result: BatchResult) -> None:
        found = misplaced_keys(result.figures.keys)
        known = self.metrics.notes(names.KEYS_MISPLACED) if found else {}
        fresh: dict[tuple[str, ...], str] = {
            (topic,): line for topic, line in found.items() if (topic,) not in known
        }
        self.metrics.note(names.KEYS_MISPLACED, fresh)
        for line in fresh.values():
            rebalance_log.warning("%s", line)

    def log_drops(
        self,
        now_ms: float,
        dropped: Mapping[str, Mapping[str, int]] = NOTHING,
    ) -> None:
        """Tell what was dropped and is due; with ``math.inf`` all that is left, at the end."""
        for line in self._dropped.lines(dropped, now_ms):
            rebalance_log.warning("%s", line)
        if now_ms == math.inf:
            tables.flush()

    def _put_figures(
        self,
        result: BatchResult,
        drops: Sequence[tuple[str, str, int]],
    ) -> None:
        thread, now_ms = str(self.number), self.clock.monotonic_ms()
        elapsed_ms = self._took()
        self.metrics.add_series(names.BATCHES, {(thread,): 1})
        phases = {name: ms for name, ms in result.timings.items() if name != "began"}
        # The unmeasured rest is the plan's: in the driver, and to the worker and back.
        phases["plan"] = max(0.0, elapsed_ms - sum(phases.values()))
        self.metrics.add_series(
            names.BATCH_SECONDS, {(thread, phase): ms / 1000 for phase, ms in phases.items()}
        )
        commit_ms = sum(phases.get(phase, 0.0) for phase in COMMIT_PHASES)
        self.metrics.saw(names.BATCH_LATENCY, {(thread,): _seen(elapsed_ms)}, now_ms)
        self.metrics.saw(names.COMMIT_LATENCY, {(thread,): _seen(commit_ms)}, now_ms)
        renewed = result.counts.get(RENEWED, 0)
        self.metrics.add_series(names.RENEWED_PRODUCERS, {(thread,): renewed} if renewed else {})
        if GATE in result.timings:
            self.metrics.put_series(names.LAST_COMMIT, {(thread,): self.clock.now_ms()})
        self._put_records(result, drops, now_ms)

    def _took(self) -> float:
        elapsed_ms = self.clock.monotonic_ms() - self.began_ms
        self.metrics.add_series(names.BUSY_SECONDS, {(str(self.number),): elapsed_ms / 1000})
        return elapsed_ms

    def _put_records(
        self, result: BatchResult, drops: Sequence[tuple[str, str, int]], now_ms: float
    ) -> None:
        thread, wall_ms = str(self.number), self.clock.now_ms()
        ages, sent, puts, letters, keys, rows = result.figures
        read = [one for one in ages if one.task]
        add, saw = self.metrics.add_series, self.metrics.saw
        add(names.PROCESSED, _sums(((thread, one.task, one.node), one.records) for one in read))
        add(names.SENT, _sums(((one.node, one.topic), one.records) for one in sent))
        add(names.SENT_BYTES, _sums(((one.node, one.topic), one.bytes) for one in sent))
        add(names.CONNECTOR_ROWS, _sums(((one.connector,), one.rows) for one in rows))
        add(names.CONNECTOR_BYTES, _sums(((one.connector,), one.bytes) for one in rows))
        add(names.CONNECTOR_SECONDS, _sums(((one.connector,), one.ms / 1000) for one in rows))
        add(names.KEYS_CHECKED, _sums(((one.topic,), one.checked) for one in keys))
        add(names.KEYS_MISPLACED, _sums(((one.topic,), one.misplaced) for one in keys))
        add(names.STORE_PUTS, _sums(((one.task, one.store), one.changes) for one in puts))
        dropped = [one for one in drops if one[1] != LATE_UNMATCHED]
        add(names.DROPPED, _sums(((thread, node, why), count) for node, why, count in dropped))
        unmatched = [one for one in drops if one[1] == LATE_UNMATCHED]
        add(names.UNMATCHED_LATE, _sums(((thread, node), count) for node, _, count in unmatched))
        causes = {(one.exception, one.node, one.topic): one for one in letters}
        add(names.LEFT_OUT, {cause: one.records for cause, one in causes.items()})
        self.metrics.note(names.LEFT_OUT, {cause: one.sample for cause, one in causes.items()})
        latency = (((one.task, one.node), one.latency_ms(wall_ms)) for one in ages)
        saw(names.RECORD_LATENCY, _all(latency), now_ms)
        lateness = (((thread, one.task), one.lateness_ms) for one in read)
        saw(names.RECORD_LATENESS, _all(lateness), now_ms)


def _seen(value: float) -> Seen:
    return Seen(1, value, value, value)


def _sums(amounts: Iterable[tuple[Labels, float]]) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for labels, amount in amounts:
        found[labels] = found.get(labels, 0.0) + amount
    return found


def _all(values: Iterable[tuple[Labels, Seen]]) -> dict[Labels, Seen]:
    found: dict[Labels, Seen] = {}
    for labels, seen in values:
        found[labels] = found[labels].also(seen) if labels in found else seen
    return found
