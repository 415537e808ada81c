"""Calls of the user's functions side by side, in micro-batches, which they may outlive (note 070).

`Calls` decides which call begins, is made again and is over, on any event loop. `EventLoop`, one
per process, and `CallThreads` are the effects around it. Users' coroutines all run on that loop,
whose thread goes on between batches, so that connections stay alive.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import inspect
import math
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from everflow.errors import RetriableError
from everflow.handlers import is_outage
from everflow.protocol.messages import BatchRequest
from everflow.records import TopicPartition
from everflow.retry import pauses_ms
from everflow.topology.graph import CallLimits

# --- which call begins, and what becomes of it ----------------------------------------------------


class Called(NamedTuple):
    """What calls gave, and on what they failed, by row. A row in neither was not called, or not to
    its end. ``more``: nothing can be committed yet, and records have come meanwhile whose calls may
    begin."""

    results: dict[int, Any]
    failed: dict[int, BaseException]
    more: bool = False


Taken = Callable[[Any], Any]
"""What is made of a result at once, so that an error of it belongs to its record."""
Place = tuple[TopicPartition, int, int]
"""A record's log and offset, and which of the rows that it has become."""


class Named(NamedTuple):
    """Whose calls they are, in whichever batch: the operator's ``slot``, the place of each row, and
    what the function gets. ``firsts``: the first row of each log; ``ready``: an answer before one
    of them is there."""

    slot: int
    places: Sequence[Place]
    seen: Sequence[Any]
    firsts: frozenset[int]
    ready: bool = False


class MakesCalls(Protocol):
    """Calls ``ask`` for the ``rows``, which begin in this order, and makes ``taken`` of each
    answer. Unless ``every`` failure is wanted, none begins behind the first. Those of rows that are
    ``named`` may outlive the batch."""

    def __call__(
        self,
        ask: Callable[[int], Any],
        taken: Taken | None,
        rows: Sequence[int],
        limits: CallLimits,
        every: bool,
        named: Named | None = None,
    ) -> Called: ...


@dataclass(eq=False)
class Call:
    """One record's. ``seen``: what the function gets; ``began_s``: when, by the loop's clock.
    ``outcome``: its answer, or its error."""

    began_s: float
    seen: Any = None
    task: asyncio.Task[None] | None = None
    outcome: tuple[Any, BaseException | None] | None = None
    dropped: bool = False

    def drop(self) -> None:
        """Cancel it: nobody takes its answer."""
        self.dropped = True
        if self.task is not None:
            self.task.cancel()


COMPANY_S = 0.005
"""Calls that began so close together may well end so: a batch that can be committed waits so long
for them."""


@dataclass(kw_only=True)
class Calls:
    """The calls of one operator in one micro-batch. ``answer(row, call)`` is one attempt. Further
    calls begin for ``begin_ms`` (None: until all have) and while ``may_begin()``. ``kept``: of
    earlier batches, and for later ones, if ``named``: then the batch is over once all calls have
    begun and a record's answer can be committed. For the event loop's thread alone, but for
    ``all_begun``."""

    answer: Callable[[int, Call], Awaitable[Any]]
    rows: Sequence[int]
    limits: CallLimits
    begin_ms: float | None = None
    every: bool = True
    may_begin: Callable[[], bool] = lambda: True
    named: Named | None = None
    kept: dict[Place, Call] = field(default_factory=dict)
    ended: bool = False
    all_begun: bool = False
    """Further records would not wait for a free place."""
    _calls: dict[int, Call] = field(default_factory=dict)
    _going: int = 0
    _failing: bool = False
    _interrupted: bool = False
    _due: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> Called:
        loop = asyncio.get_running_loop()
        waiting = deque(row for row in self.rows if not self._adopted(row))
        others = {id(call) for call in self._calls.values()}
        beside = [one for one in self.kept.values() if id(one) not in others]
        width = max(1, self.limits.concurrency - sum(one.outcome is None for one in beside))
        first, until_s = width, loop.time() + (self.begin_ms or 0.0) / 1000
        company: list[Call] | None = None
        gathering: asyncio.TimerHandle | None = None
        while True:
            stopped = self.ended or (self._failing and not self.every) or not self.may_begin()
            timely = self.begin_ms is None or loop.time() < until_s
            while waiting and not stopped and self._going < width and (first > 0 or timely):
                first -= 1
                self._begin(waiting.popleft())
            self.all_begun = not waiting and self._going < width
            if not self._going or self.ended or self._due:
                break
            resting = not waiting or stopped or not (first > 0 or timely)
            if resting and company is None and self._can_commit():
                company = self._in_company()
                gathering = loop.call_later(COMPANY_S, self._gathered)
            if company is None and self._interrupted:
                break
            if company is not None and not any(call.outcome is None for call in company):
                break
            await self._changed.wait()
            self._changed.clear()
        if gathering is not None:
            gathering.cancel()
        if self.ended:
            await self._dropped()
        return self._found()

    def end(self) -> None:
        """Cancel what is under way: those rows count as not called."""
        self.ended = True
        self._changed.set()

    def interrupt(self) -> None:
        """Records have come: unless something can be committed, the batch begins anew with them."""
        self._interrupted = True
        self._changed.set()

    def _in_company(self) -> list[Call]:
        """Those under way that began with the last of those that are over."""
        over = (call.began_s for call in self._calls.values() if call.outcome is not None)
        with_s = max(over, default=-math.inf)
        return [
            call
            for call in self._calls.values()
            if call.outcome is None and abs(call.began_s - with_s) <= COMPANY_S
        ]

    def _gathered(self) -> None:
        self._due = True
        self._changed.set()

    def _adopted(self, row: int) -> bool:
        """Whether the call of a row was made, or is under way, since an earlier batch."""
        if self.named is None:
            return False
        call = self.kept.get(self.named.places[row])
        if call is None:
            return False
        if call.seen != self.named.seen[row]:  # what stands in front made another value of it
            call.drop()
            return False
        self._take(row, call)
        return True

    def _begin(self, row: int) -> None:
        loop = asyncio.get_running_loop()
        call = Call(loop.time())
        if self.named is not None:
            call.seen = self.named.seen[row]
            self.kept[self.named.places[row]] = call
        call.task = loop.create_task(self._one(row, call))
        self._take(row, call)

    def _take(self, row: int, call: Call) -> None:
        self._calls[row] = call
        if call.outcome is not None:
            self._failing |= call.outcome[1] is not None
        elif call.task is not None:
            self._going += 1
            call.task.add_done_callback(partial(self._over, call))

    def _over(self, call: Call, task: asyncio.Task[None]) -> None:
        self._going -= 1
        self._failing |= call.outcome is not None and call.outcome[1] is not None
        self._changed.set()

    def _can_commit(self) -> bool:
        if self.named is None or self.named.ready:
            return self.named is not None
        found = (self._calls.get(row) for row in self.named.firsts)
        return any(call is not None and call.outcome is not None for call in found)

    async def _dropped(self) -> None:
        under_way = [*self._calls.values(), *self.kept.values()]
        left = {call.task for call in under_way if call.outcome is None and call.task is not None}
        for call in under_way:
            if call.outcome is None:
                call.drop()
        self.kept.clear()
        await asyncio.gather(*left, return_exceptions=True)

    def _found(self) -> Called:
        results: dict[int, Any] = {}
        failed: dict[int, BaseException] = {}
        for row, call in self._calls.items():
            if call.outcome is None or call.dropped:
                continue
            result, error = call.outcome
            if error is None:
                results[row] = result
            else:
                failed[row] = error
        more = self._interrupted and not self.ended and not failed and not self._can_commit()
        return Called(results, failed, more and self._going > 0)

    async def _one(self, row: int, call: Call) -> None:
        pauses = pauses_ms()
        for left in range(self.limits.retries, -1, -1):
            try:
                call.outcome = await self._attempt(row, call), None
                return
            except BaseException as error:  # SystemExit, too, would end the loop
                if call.dropped:
                    return
                if left == 0 or not is_outage(error) or not self.may_begin():
                    call.outcome = None, error
                    return
            await asyncio.sleep(next(pauses) / 1000)

    async def _attempt(self, row: int, call: Call) -> Any:
        own = asyncio.current_task()
        assert own is not None
        late = False

        def cancel() -> None:
            nonlocal late
            late = True
            own.cancel()

        timeout_s = self.limits.timeout_ms / 1000
        timer = asyncio.get_running_loop().call_later(timeout_s, cancel)
        try:
            return await self.answer(row, call)
        except asyncio.CancelledError as cancelled:
            if not late or call.dropped:
                raise
            if hasattr(own, "uncancel"):  # Python 3.11
                own.uncancel()
            raise TimeoutError(f"no answer within {timeout_s:g} s (timeout=)") from cancelled
        finally:
            timer.cancel()


# --- the process's event loop, and threads for plain functions ------------------------------------


@dataclass
class CallThreads:
    """Daemon threads that call plain functions; as many as there are calls under way, and one more
    for each call that timed out and still runs (``late``). For the loop's thread alone."""

    loop: asyncio.AbstractEventLoop
    late: set[asyncio.Future[Any]] = field(default_factory=set)
    _work: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = field(
        default_factory=SimpleQueue
    )
    _idle: int = 0

    async def run(self, call: Callable[[], Any], ended: Callable[[], bool]) -> Any:
        """``call``'s result. One that is cancelled runs on, and is late, unless all ``ended``."""
        answered = self.loop.create_future()
        if self._idle:
            self._idle -= 1
        else:
            threading.Thread(target=self._serve, name="everflow-call", daemon=True).start()
        self._work.put((call, answered))
        try:
            result, error = await answered
        except asyncio.CancelledError:
            if not ended():
                self.late.add(answered)
            raise
        if error is not None:
            raise error
        return result

    def _serve(self) -> None:
        while True:
            call, answered = self._work.get()
            result: Any = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            try:
                self.loop.call_soon_threadsafe(self._answered, answered, (result, error))
            except RuntimeError:  # the loop has been closed
                return
            call, answered, result, error = None, None, None, None  # type: ignore[assignment]

    def _answered(self, answered: asyncio.Future[Any], found: Any) -> None:
        self._idle += 1
        self.late.discard(answered)
        if not answered.done():
            answered.set_result(found)


ASK_EVERY_S = 0.1
"""Whether a batch whose calls are under way is wanted at leisure."""
_ARRIVED_EVERY_S = 0.005
"""Whether records have come meanwhile."""
CLOSE_S = 2.0


class EventLoop:
    """An event loop on a thread of its own, until `close`. Any thread but its own may use it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._threads = CallThreads(self._loop)
        self._kept: dict[int, dict[Place, Call]] = {}
        """Calls that may outlive their batch, by operator."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="everflow-calls", daemon=True)
        self._thread.start()

    def call(
        self,
        how: CallsBatch,
        ask: Callable[[int], Any],
        taken: Taken | None,
        rows: Sequence[int],
        limits: CallLimits,
        every: bool,
        named: Named | None = None,
    ) -> Called:
        """As `MakesCalls`; ends early once the batch is not wanted any more. RetriableError if the
        threads of this process are all taken by calls that timed out."""
        threads = self._threads

        def room() -> bool:
            return limits.awaited or len(threads.late) < limits.concurrency

        if not room():
            raise RetriableError(
                f"{len(threads.late)} calls have timed out and still run: their worker process is "
                f"replaced. Give the function's requests a time-out of their own"
            )
        outliving = named is not None and how.arrived is not None
        calls = Calls(
            answer=partial(_awaited, ask, taken)
            if limits.awaited
            else partial(_threaded, threads, ask, taken),
            rows=rows,
            limits=limits,
            begin_ms=how.begin_ms,
            every=every,
            may_begin=room,
            named=named if outliving else None,
            kept=self._kept.setdefault(named.slot, {}) if named and outliving else {},
        )
        running = asyncio.run_coroutine_threadsafe(calls.run(), self._loop)
        try:
            self._watch(running, calls, how)
        except BaseException:  # Ctrl-C in a test driver
            self._loop.call_soon_threadsafe(calls.end)
            raise
        return running.result()

    def _watch(
        self, running: concurrent.futures.Future[Called], calls: Calls, how: CallsBatch
    ) -> None:
        outliving = calls.named is not None and how.arrived is not None
        wait_s = _ARRIVED_EVERY_S if outliving else ASK_EVERY_S
        asked_s = time.monotonic()
        while not _done(running, wait_s):
            now_s = time.monotonic()
            if now_s - asked_s >= ASK_EVERY_S:
                asked_s = now_s
                if not calls.ended and not how.wanted():
                    self._loop.call_soon_threadsafe(calls.end)
            if outliving and calls.all_begun and how.arrived is not None and how.arrived():
                self._loop.call_soon_threadsafe(calls.interrupt)

    def keep(self, starts: Mapping[TopicPartition, int]) -> None:
        """Of the calls that have outlived a batch keep those of records that the next one, which
        begins at ``starts``, may have; cancel the others."""
        if any(self._kept.values()):
            asyncio.run_coroutine_threadsafe(self._keep(starts), self._loop).result()

    async def _keep(self, starts: Mapping[TopicPartition, int]) -> None:
        for kept in self._kept.values():
            for place in [one for one in kept if one[1] < starts.get(one[0], one[1] + 1)]:
                kept.pop(place).drop()

    def close(self) -> None:
        """Cancel what users' code has left on it, and end it; idempotent."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closing:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # of a task that a function has begun
                continue
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_S / 2))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def _done(running: concurrent.futures.Future[Called], wait_s: float) -> bool:
    """Waits a moment for it."""
    return bool(concurrent.futures.wait([running], wait_s).done)


async def _awaited(ask: Callable[[int], Any], taken: Taken | None, row: int, call: Call) -> Any:
    return await _of_awaitable(ask(row), taken)


async def _threaded(
    threads: CallThreads,
    ask: Callable[[int], Any],
    taken: Taken | None,
    row: int,
    own: Call,
) -> Any:
    def call() -> tuple[bool, Any]:
        made = ask(row)
        if inspect.isawaitable(made) or hasattr(made, "__aiter__"):  # of a lambda, say
            return True, made
        return False, made if taken is None else taken(made)

    awaits, made = await threads.run(call, lambda: own.dropped)
    return await _of_awaitable(made, taken) if awaits else made


async def _of_awaitable(made: Any, taken: Taken | None) -> Any:
    if hasattr(made, "__aiter__"):
        made = [one async for one in made]
    elif inspect.isawaitable(made):
        made = await made
    return made if taken is None else taken(made)


_loops: dict[int, EventLoop] = {}
"""By process: a fork has none of its threads."""


def event_loop() -> EventLoop:
    """This process's, begun with its first call; for one thread."""
    if os.getpid() not in _loops:
        _loops.clear()
        _loops[os.getpid()] = EventLoop()
        atexit.register(close_event_loop)
    return _loops[os.getpid()]


def close_event_loop() -> None:
    """End this process's loop, if it has one."""
    found = _loops.pop(os.getpid(), None)
    if found is not None:
        found.close()


def keep_calls(starts: Mapping[TopicPartition, int]) -> None:
    """See `EventLoop.keep`; nothing where this process has no loop."""
    found = _loops.get(os.getpid())
    if found is not None:
        found.keep(starts)


# --- for a step -----------------------------------------------------------------------------------


def always(*_: object) -> bool:
    """``wanted`` where nobody ends a batch early."""
    return True


class CallsBatch(NamedTuple):
    """How a batch waits for calls, which begin within ``begin_ms`` (None: until all have).
    ``wanted()``: whether it may still take its time. ``arrived()``: whether records have come
    behind its own; None: calls do not outlive it."""

    begin_ms: float | None = None
    wanted: Callable[[], bool] = always
    arrived: Callable[[], bool] | None = None


def _made(
    how: CallsBatch,
    ask: Callable[[int], Any],
    taken: Taken | None,
    rows: Sequence[int],
    limits: CallLimits,
    every: bool,
    named: Named | None = None,
) -> Called:
    if not rows:
        return Called({}, {})
    return event_loop().call(how, ask, taken, rows, limits, every, named)


AT_LEISURE: MakesCalls = partial(_made, CallsBatch())
"""Until all calls are made."""


@dataclass(frozen=True)
class SideBySide:
    """Makes the calls of a step's operators; picklable without ``arrived``. ``wanted(request)``:
    whether the batch may still take its time, asked while calls are under way. ``arrived``: see
    `CallsBatch`."""

    wanted: Callable[[BatchRequest], bool] = always
    arrived: Callable[[], bool] | None = None

    def of(self, request: BatchRequest, begin_ms: float | None) -> MakesCalls:
        """For an operator in this batch, whose calls begin within ``begin_ms``."""
        return partial(_made, CallsBatch(begin_ms, partial(self.wanted, request), self.arrived))
