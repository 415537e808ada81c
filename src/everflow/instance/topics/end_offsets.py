"""Reads where the input partitions end, and wakes the stream threads that have new records (D1).
While one waits, the brokers are asked to report new ones (`Growth`); else the ends are polled."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol

from everflow.clock import Clock, on_thread
from everflow.errors import EverflowError, FatalError, RetriableError, read_again, start_over
from everflow.logs import some
from everflow.records import Offsets, TaskId, TopicPartition
from everflow.retry import StoppedRequest

log = logging.getLogger("everflow")

FRESH_MS = 3.0
"""An answer that was asked for within this time is as good as another one."""
REPORTED_FRESH_MS = 10.0
"""As `FRESH_MS`, for ends that the brokers reported by themselves."""
BUSY_PERIOD_MS = 5_000.0
"""The ends are asked for so often if no thread waits, or the brokers report new records."""
LOG_PERIOD_MS = 20.0
"""With many logs that time is longer: so long for each log, as a question costs 20 us for each. A
log that has shrunk is noticed by the second question, or at once where brokers report."""
FOLLOW_AFTER_MS = 1_000.0
"""The start has other work to do first."""
OTHERS_PAUSE_MS = 10.0
"""Pause after new records for which no thread waits."""
SILENT_PERIOD_MS = 1_000.0
"""Between two questions about logs whose leaders do not answer."""
NAMED = 5
FOLLOW_S = 1.0


class Growth(Protocol):
    """`everflow.kafka.reading.fetch_connection.TailWatch`."""

    def wait(self, ends: Offsets, timeout_s: float) -> Offsets:
        """Ends beyond ``ends``, once there are some. Raises EverflowError."""

    def close(self) -> None: ...


@dataclass
class EndOffsets:
    """Ends of all watched partitions: last stable offsets under exactly-once, else high watermarks.
    ``read`` asks the brokers: its answer lacks logs whose leaders do not answer; RetriableError if
    no broker does. ``check`` None: an end before a position is no error. ``stopping``: set once
    ``read`` may fail because the instance ends. ``open_growth`` None: the ends are polled every
    ``period_ms`` while a thread waits. `watch`, `unwatch`, `ends`, `idle`: any thread."""

    read: Callable[[Sequence[TopicPartition]], Offsets]
    clock: Clock
    period_ms: float
    check: ShrunkLogs | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    open_growth: Callable[[], Growth] | None = None
    reports: bool = False
    """The brokers' last report of new records succeeded: they report them at once."""
    failure: EverflowError | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[frozenset[TopicPartition], threading.Event]] = {}
        self._all_watched: frozenset[TopicPartition] = frozenset()
        self._ends: Offsets = {}
        """Replaced as a whole, never changed, so a reader may keep it."""
        self._idle: set[int] = set()
        self._live = False
        """The brokers are asked to report new records of all watched partitions."""
        self._grown: dict[TopicPartition, int] = {}
        """Ends that the brokers reported since the last question."""
        self._stop = threading.Event()
        self._question_due = threading.Event()
        self._answered = threading.Condition(self._lock)
        self._awaited = threading.Condition(self._lock)
        """A thread waits for new records, and the ends may be known."""
        self._asked = self._answers = 0
        """Questions so far, and the last one with an answer."""
        self._fresh_ms = -math.inf
        """Until when no other answer is wanted."""
        self._polls = False
        self._failing_since_ms: float | None = None
        self._silent: dict[TopicPartition, float] = {}
        """Logs whose leaders do not answer, and since when; asked about by themselves."""
        self._asks_silent = False
        self._asked_ms: float | None = None
        """Since when a question is unanswered, the retries inside it included."""

    def watch(
        self, thread: int, partitions: Sequence[TopicPartition], wake: threading.Event
    ) -> None:
        """A thread's partitions, in place of earlier ones; ``wake`` is set when one has grown."""
        with self._lock:
            self._watched[thread] = (frozenset(partitions), wake)
            self._watch_all()
        self._question_due.set()

    def unwatch(self, thread: int) -> None:
        with self._lock:
            self._watched.pop(thread, None)
            self._watch_all()
            self._idle.discard(thread)

    def _watch_all(self) -> None:
        mine = (partitions for partitions, _ in self._watched.values())
        self._all_watched = frozenset[TopicPartition]().union(*mine)

    def idle(self, thread: int, waiting: bool) -> None:
        with self._lock:
            first = not self._idle
            (self._idle.add if waiting else self._idle.discard)(thread)
            if waiting:
                self._awaited.notify_all()
        if waiting and first and not self.reports:
            self._question_due.set()

    def ends(self) -> Offsets:
        """The ends as last read; a partition that was never read is missing."""
        return self._ends

    def refresh(self, timeout_ms: float) -> bool:
        """Have the ends read now, unless they just were or the brokers report them, and wait at
        most ``timeout_ms``. True if there was a question; without `start` there is none."""
        with self._answered:
            fresh = self._live or self.clock.monotonic_ms() < self._fresh_ms
            if not self._polls or fresh:
                return False
            wanted = self._asked + 1
            self._question_due.set()
            self._answered.wait_for(lambda: self._answers >= wanted, timeout_ms / 1000)
            return True

    def failing_ms(self) -> float:
        """For how long the brokers have not answered; 0 if they do."""
        waiting = [since for since in (self._failing_since_ms, self._asked_ms) if since is not None]
        return self.clock.monotonic_ms() - min(waiting) if waiting else 0.0

    @property
    def any_silent(self) -> bool:
        return bool(self._silent)

    def silent_ms(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """The ``partitions`` whose leaders do not answer though others do, and for how long."""
        now_ms, silent = self.clock.monotonic_ms(), dict(self._silent)
        return {tp: now_ms - silent[tp] for tp in partitions if tp in silent}

    def poll_silent(self) -> None:
        with self._lock:
            watched, wanted = list(self._watched.values()), self._all_watched
            self._silent = {tp: since for tp, since in self._silent.items() if tp in wanted}
            asked = sorted(self._silent)
        if not asked:
            return
        try:
            now = self.read(asked)
        except RetriableError:
            return
        with self._answered:
            self._silent = {tp: since for tp, since in self._silent.items() if tp not in now}
            self._ends = {**self._ends, **now}
        log.info("The leaders of %s answer again", some(sorted(now), NAMED))
        for mine, wake in watched:
            if not mine.isdisjoint(now):
                wake.set()

    def poll_once(self) -> None:
        """Read all ends and wake the threads that have new ones. FatalError for a shrunk log."""
        with self._lock:
            watched = dict(self._watched)
            self._grown = {}
            self._asked = number = self._asked + 1
        partitions = sorted(
            {tp for mine, _ in watched.values() for tp in mine if tp not in self._silent}
        )
        if not partitions:
            return
        # Before the ends: what was read until now cannot lie beyond an end that is asked for later.
        positions = {} if self.check is None else self.check.positions()
        self._asked_ms = began_ms = self.clock.monotonic_ms()
        try:
            now = self.read(partitions)
            if self.check is not None and positions:
                self.check.require(positions, now)
        except RetriableError as error:
            # The client of an instance that ends refuses: that is no trouble with the brokers.
            if self._failing_since_ms is None and not self.stopping.is_set():
                self._failing_since_ms = self._asked_ms
                log.warning("The brokers do not answer where the input topics end: %s", error)
            return
        finally:
            self._asked_ms = None
        if self._failing_since_ms is not None:
            log.info("The brokers answer again")
            self._failing_since_ms = None
        silent = [tp for tp in partitions if tp not in now]
        if silent:
            leaders = some(silent, NAMED)
            log.warning("The leaders of %s do not answer; other partitions go on", leaders)
        with self._answered:
            self._silent = {**self._silent, **dict.fromkeys(silent, began_ms)}
            if silent and self._polls and not self._asks_silent:
                self._asks_silent = True
                on_thread("everflow-silent-logs", self._ask_silent)
            # Ends that were reported since are newer.
            later = {tp: end for tp, end in self._grown.items() if end > now.get(tp, end)}
            kept = {tp: self._ends[tp] for tp in self._silent if tp in self._ends}
            before, self._ends = self._ends, {**kept, **now, **later}
            self._answers, self._fresh_ms = number, began_ms + FRESH_MS
            self._answered.notify_all()
            if self._idle:
                self._awaited.notify_all()
        for mine, wake in watched.values():
            if any(self._ends[tp] != before.get(tp) for tp in mine if tp in self._ends):
                wake.set()

    def start(self) -> None:
        """Poll from a thread of its own until `close`."""
        self._polls = True
        on_thread("everflow-end-offsets", self._run)
        if self.open_growth is not None:
            on_thread("everflow-tails", self._follow)

    def close(self) -> None:
        """End the polling; returns at once."""
        self._stop.set()
        self._question_due.set()
        with self._lock:
            self._answered.notify_all()
            self._awaited.notify_all()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll_once()
            except EverflowError as error:  # not retriable: the stream threads raise it
                self.failure = error
                log.error("The ends of the input topics cannot be read any more: %s", error)
                return
            except Exception as error:
                text = f"The ends of the input topics cannot be read: {error!r}"
                self.failure = EverflowError(text)
                log.exception("The ends of the input cannot be read")
                return
            with self._lock:
                waiting = bool(self._idle) and not self._live
                rest_ms = max(BUSY_PERIOD_MS, len(self._all_watched) * LOG_PERIOD_MS)
            self.clock.wait(self._question_due, self.period_ms if waiting else rest_ms)
            self._question_due.clear()

    def _ask_silent(self) -> None:
        """On a thread of its own, as each question takes a second; it ends with the last answer."""
        while not self.clock.wait(self._stop, SILENT_PERIOD_MS):
            try:
                self.poll_silent()
            except EverflowError as error:  # not retriable
                self.failure = error
                return
            with self._lock:
                if not self._silent:
                    self._asks_silent = False
                    return

    def _follow(self) -> None:
        try:
            self.clock.wait(self._stop, FOLLOW_AFTER_MS)
            self._follow_growth()
        except Exception:  # a defect: the questions go on without it
            log.exception("Waiting for new input records failed; the ends are polled instead")
            self._ask_instead()

    def _follow_growth(self) -> None:
        """Wait for new records of all partitions while a thread waits for some."""
        assert self.open_growth is not None
        growth: Growth | None = None
        while (ends := self._ends_to_follow()) is not None:
            try:
                growth = growth or self.open_growth()
                grown = growth.wait(ends, FOLLOW_S)
            except EverflowError as error:
                log.debug("Waiting for new input records failed: %s", error)
                self._ask_instead()
                self.clock.wait(self._stop, FOLLOW_AFTER_MS)
            else:
                if self._take_growth(grown):
                    self.clock.wait(self._stop, OTHERS_PAUSE_MS)
        if growth is not None:
            growth.close()

    def _ask_instead(self) -> None:
        self.reports = self._live = False
        self._question_due.set()

    def _ends_to_follow(self) -> Offsets | None:
        """All ends, once a thread waits and they are known; None at the end."""
        with self._lock:
            while not self._stop.is_set():
                watched = self._all_watched.difference(self._silent)
                self._live = bool(watched and self._idle and watched <= self._ends.keys())
                if self._live:
                    if len(self._ends) == len(watched):
                        return self._ends
                    return {tp: self._ends[tp] for tp in watched}
                self._awaited.wait()
        return None

    def _take_growth(self, grown: Offsets) -> bool:
        """True if there are new records for which no thread waits."""
        with self._answered:
            self.reports, self._live = True, False
            new = {tp: end for tp, end in grown.items() if end > self._ends.get(tp, -1)}
            self._ends = {**self._ends, **new}
            self._grown |= new
            if new:
                self._fresh_ms = self.clock.monotonic_ms() + REPORTED_FRESH_MS
            watched = self._watched.items()
            woken = {at: wake for at, (mine, wake) in watched if not mine.isdisjoint(new)}
            waited = not self._idle.isdisjoint(woken)
        for wake in woken.values():
            wake.set()
        # An end that is known already came with a delayed fetch.
        return bool(new) and not waited


# --- logs that end before the position: of another topic, or with lost records --------------------

PERIOD_MS = 1_000.0
"""Between two checks: after a change of leader an end may be behind for a moment."""


@dataclass
class ShrunkLogs:
    """Compares positions with ends that were asked for after them. Owned by the poller of the ends.
    ``log_ends``: read_uncommitted; RetriableError. ``topic_ids``: at the start and now, or ""."""

    application_id: str
    running_positions: Callable[[], Offsets]
    log_ends: Callable[[Sequence[TopicPartition]], Offsets]
    clock: Clock
    topic_ids: Callable[[str], tuple[str, str]]
    _suspects: frozenset[TopicPartition] = frozenset()
    _next_ms: float = 0.0

    def positions(self) -> Offsets:
        """The positions now, for `require`; none within a second of the last check."""
        now_ms = self.clock.monotonic_ms()
        if now_ms < self._next_ms:
            return {}
        self._next_ms = now_ms + PERIOD_MS
        return self.running_positions()

    def require(self, positions: Offsets, ends: Offsets) -> None:
        """FatalError for positions beyond the end of their log, now and at the check before."""
        beyond = _beyond(positions, ends)
        again = sorted(tp for tp in beyond if tp in self._suspects)
        self._suspects = frozenset(beyond)
        if not again:
            return
        log_ends = self.log_ends(again)
        shrunk = sorted(_beyond({tp: positions[tp] for tp in again}, log_ends))
        if shrunk:
            listed = "; ".join(
                f"{tp} ends at {log_ends[tp]}, the position is {positions[tp]}" for tp in shrunk[:5]
            )
            raise FatalError(
                f"The log ends before what was read of it: "
                f"{listed}{'; ...' if len(shrunk) > 5 else ''}. {self._why(shrunk[0].topic)} "
                f"New records before the position would never be read. "
                f"{read_again(self.application_id, shrunk[0].topic)} "
                f"{start_over(self.application_id)}"
            )

    def _why(self, topic: str) -> str:
        try:
            before, now = self.topic_ids(topic)
        except EverflowError as error:
            return f"The brokers do not report whether {topic} is still the same topic ({error})."
        if not before or not now:
            return f"The brokers do not report whether {topic} is still the same topic."
        if before != now:
            return (
                f"Topic {topic} was deleted and created again while the application ran (topic id "
                f"{before} -> {now})."
            )
        return (
            f"Topic {topic} is still the same (topic id {now}), so its log lost records: the "
            f"replica that leads it now does not have them."
        )


def _beyond(positions: Offsets, ends: Offsets) -> list[TopicPartition]:
    return [tp for tp, position in positions.items() if ends.get(tp, position) < position]


# --- ends of the changelogs, summed per task, for the leader (note 005) ---------------------------

SUMS_FRESH_MS = 5_000.0
"""Older ends are none: a position beyond the end counts as no copy (X1)."""
WAIT_S = 0.5


@dataclass
class EndSums:
    """`membership.assignor.EndSums` on the cluster; any thread. ``read``: last stable offsets,
    blocking. ``partitions``: the changelogs of every task. ``stopping``: as for `EndOffsets`."""

    read: Callable[[Collection[TopicPartition]], Offsets]
    partitions: Mapping[TaskId, Sequence[TopicPartition]]
    clock: Clock
    stopping: threading.Event = field(default_factory=threading.Event)
    _next: Future[None] | None = None
    """The question that has not begun."""
    _found: tuple[Mapping[TaskId, int] | None, float] = (None, 0.0)
    _closed: bool = False

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="everflow-end-sums")
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read the ends; returns at once. Only leaders need them."""
        self._ask()

    def latest(self) -> Mapping[TaskId, int] | None:
        """End sums read after this call, or at most 5 s old ones if the brokers take longer than
        0.5 s; None without any (X2). Older ones could lie behind the members' positions (X1)."""
        asked = self._ask()
        if asked is not None:
            wait([asked], WAIT_S)
        sums, read_ms = self._found
        return None if self.clock.monotonic_ms() - read_ms > SUMS_FRESH_MS else sums

    def _ask(self) -> Future[None] | None:
        with self._lock:
            if self._next is None and not self._closed:
                self._next = self._pool.submit(self._read_once)
            return self._next

    def _read_once(self) -> None:
        with self._lock:
            self._next = None
        sums: dict[TaskId, int] | None = None
        try:
            ends = self.read({tp for listed in self.partitions.values() for tp in listed})
            sums = {task: sum(ends[tp] for tp in tps) for task, tps in self.partitions.items()}
        except EverflowError as error:
            if not self.stopping.is_set():
                log.warning("The ends of the changelogs cannot be read: %s", error)
        except Exception as error:  # a defect
            log.exception("The ends of the changelogs cannot be read: %r", error)
        self._found = sums, self.clock.monotonic_ms()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)


# --- racks of the partitions (KIP-925) ------------------------------------------------------------

RACKS_PERIOD_MS = 60_000.0


@dataclass
class PartitionRacks:
    """For `membership.assignor`. `refresh` blocks; `racks` does not."""

    read: Callable[[Collection[str]], Mapping[TopicPartition, frozenset[str]]]
    topics: Collection[str]
    clock: Clock
    _racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)
    _read_ms: float = -math.inf

    def racks(self) -> Mapping[TopicPartition, frozenset[str]]:
        """As of the last refresh; what is not known is left out."""
        return self._racks

    def refresh(self) -> None:
        """Ask anew, if the last answer is older than a minute: replicas move seldom."""
        now_ms = self.clock.monotonic_ms()
        if not self.topics or now_ms - self._read_ms < RACKS_PERIOD_MS:
            return
        self._read_ms = now_ms
        try:
            self._racks = self.read(self.topics)
        except StoppedRequest:
            return
        except EverflowError as error:
            log.warning("The racks of the partitions cannot be read: %s", error)
