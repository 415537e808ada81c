"""Starts and ends stream threads (KIP-663); tasks that stay on theirs do not pause (I4).

A new thread gets tasks only once its workers run. Threads hand tasks over between two of their
batches, the store as it is; one that goes gives all it has to the others first. The group is told
of the number, as its balance is one per thread. Who has to run another plan gets threads in the
place of all (note 037), in the same way.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from everflow.clock import Clock, Deadline
from everflow.errors import TaskTimeoutError
from everflow.runtime.client_state import IllegalStateError
from everflow.runtime.start_up import WARM_UP_WAIT_S
from everflow.runtime.thread.stream_thread import StreamThread

LOOK_S = 0.1
SPARE_SLOTS = 1
"""Each thread may keep a task slot of Spark for good (design note 004); with none left, all other
work would wait for ever."""


@dataclass(frozen=True, kw_only=True)
class ThreadCountPorts:
    """Effects of a change.

    Attributes:
        open_thread: (number) -> a thread, not started; what it needs to be fenced after a crash is
        noted before.
        slots: task slots of the Spark session.
        post: runs a function on the instance's loop, after what was posted before.
        deal: on the loop: deals the tasks anew, none to the threads of these numbers until the next
        call.
        tell: the group is to count so many threads here.
        running: whether the instance is between start and close.
    """

    open_thread: Callable[[int], StreamThread]
    slots: Callable[[], int]
    post: Callable[[Callable[[], None]], None]
    deal: Callable[[frozenset[int]], None]
    tell: Callable[[int], None]
    running: Callable[[], bool]


class ThreadCount:
    """Changes ``threads``, the instance's own list: in place, and on its loop only. Safe from any
    thread; one change at a time."""

    def __init__(self, threads: list[StreamThread], ports: ThreadCountPorts, clock: Clock) -> None:
        self._threads = threads
        self._ports = ports
        self._clock = clock
        self._changing = threading.Lock()

    @property
    def may_change(self) -> bool:
        """Whether the instance is between start and close."""
        return self._ports.running()

    def add(self) -> str | None:
        """See `KafkaStreams.add_stream_thread`."""
        with self._changing:
            slots = self._ports.slots()
            if slots <= len(self._threads) + SPARE_SLOTS:
                raise IllegalStateError(
                    f"Spark has {slots} task slots, {len(self._threads)} stream threads use one "
                    f"each and {SPARE_SLOTS} has to stay "
                    f"free: start the instance with more num.stream.threads, or give it a Spark "
                    f"session with more slots (local[N])."
                )
            opened = self._opened(1)
            if not opened:
                return None
            (thread,) = opened
            self._on_loop(lambda: self._joined(thread))
            if thread not in self._threads:  # the instance ends
                thread.stop()
                return None
            return thread.name

    def replace_all(self, warmed: Callable[[], None], before: Callable[[], None]) -> bool:
        """Threads in the place of all: ``warmed`` runs once their workers do, and ``before`` on the
        loop, before they get tasks, which each thread gives up after its batch. Blocks. False, and
        nothing is done, where Spark has no slots for twice as many threads, where the new ones do
        not get warm, or where the instance ends."""
        with self._changing:
            going = list(self._threads)
            if self._ports.slots() < 2 * len(going) + SPARE_SLOTS:
                return False
            fresh = self._opened(len(going))
            if not fresh:
                return False
            empty = [threading.Event() for _ in going]
            try:
                warmed()
                self._on_loop(lambda: self._exchange(fresh, before, empty))
            finally:
                if fresh[0] not in self._threads:
                    _stop(fresh)
            if fresh[0] not in self._threads:
                return False
            for thread, given_up in zip(going, empty, strict=True):
                if self._wait(given_up, None):
                    thread.stop()
                    while not thread.join(LOOK_S) and self._ports.running():
                        pass
            self._on_loop(lambda: self._all_left(going))
            return True

    def _opened(self, count: int) -> list[StreamThread]:
        """So many new threads, whose workers run: the first task would stand still while Spark
        starts Python workers. None where they do not, in time or before the instance ends."""
        used = {thread.number for thread in self._threads}
        free = (number for number in itertools.count() if number not in used)
        opened = [self._ports.open_thread(number) for number in itertools.islice(free, count)]
        for thread in opened:
            thread.start()
        deadline = Deadline(self._clock, WARM_UP_WAIT_S * 1000)
        if not all(self._wait(thread.warm, deadline) for thread in opened):
            _stop(opened)
            return []
        return opened

    def remove(self, timeout_s: float | None) -> str | None:
        """See `KafkaStreams.remove_stream_thread`."""
        with self._changing:
            if len(self._threads) < 2:
                raise IllegalStateError(
                    "The last stream thread cannot be removed: close() the instance, or pause() it."
                )
            thread = self._threads[-1]
            empty = threading.Event()
            self._ports.tell(len(self._threads) - 1)
            self._ports.post(lambda: self._give_up(thread, empty))
            deadline = None if timeout_s is None else Deadline(self._clock, timeout_s * 1000)
            if not self._wait(empty, deadline):
                if not self._ports.running():
                    return None
                self._ports.tell(len(self._threads))
                self._on_loop(lambda: self._ports.deal(frozenset()))
                raise TaskTimeoutError(
                    f"{thread.name} did not give its tasks up within {timeout_s:g} s: a batch is "
                    f"still in flight. It stays."
                )
            thread.stop()
            while not thread.join(LOOK_S) and self._ports.running():
                pass
            self._on_loop(lambda: self._left(thread))
            return thread.name

    # --- on the instance's loop ------------------------------------------------------------------

    def _joined(self, thread: StreamThread) -> None:
        self._threads.append(thread)
        self._ports.tell(len(self._threads))
        self._ports.deal(frozenset())

    def _exchange(
        self,
        fresh: Sequence[StreamThread],
        before: Callable[[], None],
        empty: Sequence[threading.Event],
    ) -> None:
        going = list(self._threads)
        before()
        self._threads.extend(fresh)
        self._ports.deal(frozenset(thread.number for thread in going))
        for thread, given_up in zip(going, empty, strict=True):
            thread.drop((), lambda _, given_up=given_up: given_up.set())  # type: ignore[misc]

    def _all_left(self, threads: Collection[StreamThread]) -> None:
        for thread in threads:
            self._threads.remove(thread)
        self._ports.deal(frozenset())

    def _left(self, thread: StreamThread) -> None:
        self._threads.remove(thread)
        self._ports.deal(frozenset())

    def _give_up(self, thread: StreamThread, empty: threading.Event) -> None:
        self._ports.deal(frozenset({thread.number}))
        # Commands are taken in turn: what it had has been given up by then.
        thread.drop((), lambda _: empty.set())

    # ---------------------------------------------------------------------------------------------

    def _on_loop(self, change: Callable[[], None]) -> None:
        """Run it there, and return when it has run, or when the instance ends."""
        done = threading.Event()

        def run() -> None:
            try:
                change()
            finally:
                done.set()

        self._ports.post(run)
        self._wait(done, None)

    def _wait(self, event: threading.Event, deadline: Deadline | None) -> bool:
        while not event.wait(LOOK_S):
            if not self._ports.running() or (deadline is not None and deadline.expired()):
                return False
        return True


def _stop(threads: Sequence[StreamThread]) -> None:
    for thread in threads:
        thread.stop()
