"""Calls of the user's functions side by side, within a micro-batch (note 070).

`Calls` decides which call begins, is made again and is over, on any event loop. `EventLoop`, one
per process, and `CallThreads` are the effects around it. Users' coroutines all run on that loop,
whose thread goes on between batches, so that connections stay alive.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from everflow.errors import RetriableError
from everflow.handlers import is_outage
from everflow.protocol.messages import BatchRequest
from everflow.retry import pauses_ms
from everflow.topology.graph import CallLimits

# --- which call begins, and what becomes of it ----------------------------------------------------


class Called(NamedTuple):
    """What calls gave, and on what they failed, by row. A row in neither was not called, or not to
    its end."""

    results: dict[int, Any]
    failed: dict[int, BaseException]


Taken = Callable[[Any], Any]
"""What is made of a result at once, so that an error of it belongs to its record."""


class MakesCalls(Protocol):
    """Calls ``ask`` for the ``rows``, which begin in this order, and makes ``taken`` of each
    answer. Unless ``every`` failure is wanted, none begins behind the first."""

    def __call__(
        self,
        ask: Callable[[int], Any],
        taken: Taken | None,
        rows: Sequence[int],
        limits: CallLimits,
        every: bool,
    ) -> Called: ...


@dataclass(kw_only=True)
class Calls:
    """The calls of one operator in one micro-batch. ``answer(row)`` is one attempt. Further calls
    begin for ``begin_ms`` (None: until all have) and while ``may_begin()``. For the event loop's
    thread alone."""

    answer: Callable[[int], Awaitable[Any]]
    rows: Iterator[int]
    limits: CallLimits
    begin_ms: float | None = None
    every: bool = True
    may_begin: Callable[[], bool] = lambda: True
    found: Called = field(default_factory=lambda: Called({}, {}))
    ended: bool = False
    _makers: list[asyncio.Task[None]] = field(default_factory=list)
    _until_s: float = 0.0

    async def run(self, most: int) -> Called:
        """``most``: the number of rows."""
        loop = asyncio.get_running_loop()
        self._until_s = loop.time() + (self.begin_ms or 0.0) / 1000
        width = min(self.limits.concurrency, most)
        self._makers = [loop.create_task(self._make()) for _ in range(width)]
        if self.ended:  # asked for before it began
            self.end()
        await asyncio.gather(*self._makers, return_exceptions=True)
        for maker in self._makers:
            if not maker.cancelled() and (error := maker.exception()) is not None:
                raise error
        return self.found

    def end(self) -> None:
        """Cancel what is under way: those rows count as not called."""
        self.ended = True
        for maker in self._makers:
            maker.cancel()

    async def _make(self) -> None:
        time = asyncio.get_running_loop().time
        first = True
        while first or self.begin_ms is None or time() < self._until_s:
            first = False
            if self.ended or not self.may_begin() or (self.found.failed and not self.every):
                return
            row = next(self.rows, None)
            if row is None:
                return
            await self._one(row)

    async def _one(self, row: int) -> None:
        pauses = pauses_ms()
        for left in range(self.limits.retries, -1, -1):
            try:
                self.found.results[row] = await self._attempt(row)
                return
            except BaseException as error:  # SystemExit, too, would end the loop
                if self.ended:
                    return
                if left == 0 or not is_outage(error) or not self.may_begin():
                    self.found.failed[row] = error
                    return
            await asyncio.sleep(next(pauses) / 1000)

    async def _attempt(self, row: int) -> Any:
        maker = asyncio.current_task()
        assert maker is not None
        late = False

        def cancel() -> None:
            nonlocal late
            late = True
            maker.cancel()

        timeout_s = self.limits.timeout_ms / 1000
        timer = asyncio.get_running_loop().call_later(timeout_s, cancel)
        try:
            return await self.answer(row)
        except asyncio.CancelledError as cancelled:
            if not late or self.ended:
                raise
            if hasattr(maker, "uncancel"):  # Python 3.11
                maker.uncancel()
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
CLOSE_S = 2.0


class EventLoop:
    """An event loop on a thread of its own, until `close`. Any thread but its own may use it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._threads = CallThreads(self._loop)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="everflow-calls", daemon=True)
        self._thread.start()

    def call(
        self,
        begin_ms: float | None,
        wanted: Callable[[], bool],
        ask: Callable[[int], Any],
        taken: Taken | None,
        rows: Sequence[int],
        limits: CallLimits,
        every: bool,
    ) -> Called:
        """As `MakesCalls`; ends early once it is not ``wanted`` any more. RetriableError if the
        threads of this process are all taken by calls that timed out."""
        threads = self._threads

        def room() -> bool:
            return limits.awaited or len(threads.late) < limits.concurrency

        if not room():
            raise RetriableError(
                f"{len(threads.late)} calls have timed out and still run: their worker process is "
                f"replaced. Give the function's requests a time-out of their own"
            )
        answer = partial(_awaited, ask, taken)
        calls = Calls(
            answer=answer,
            rows=iter(rows),
            limits=limits,
            begin_ms=begin_ms,
            every=every,
            may_begin=room,
        )
        if not limits.awaited:
            calls.answer = partial(_threaded, threads, lambda: calls.ended, ask, taken)
        running = asyncio.run_coroutine_threadsafe(calls.run(len(rows)), self._loop)
        try:
            while not _done(running):
                if not calls.ended and not wanted():
                    self._loop.call_soon_threadsafe(calls.end)
        except BaseException:  # Ctrl-C in a test driver
            self._loop.call_soon_threadsafe(calls.end)
            raise
        return running.result()

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


def _done(running: concurrent.futures.Future[Called]) -> bool:
    """Waits a moment for it."""
    return bool(concurrent.futures.wait([running], ASK_EVERY_S).done)


async def _awaited(ask: Callable[[int], Any], taken: Taken | None, row: int) -> Any:
    return await _of_awaitable(ask(row), taken)


async def _threaded(
    threads: CallThreads,
    ended: Callable[[], bool],
    ask: Callable[[int], Any],
    taken: Taken | None,
    row: int,
) -> Any:
    def call() -> tuple[bool, Any]:
        made = ask(row)
        if inspect.isawaitable(made) or hasattr(made, "__aiter__"):  # of a lambda, say
            return True, made
        return False, made if taken is None else taken(made)

    awaits, made = await threads.run(call, ended)
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


# --- for a step -----------------------------------------------------------------------------------


def _made(
    begin_ms: float | None,
    wanted: Callable[[], bool],
    ask: Callable[[int], Any],
    taken: Taken | None,
    rows: Sequence[int],
    limits: CallLimits,
    every: bool,
) -> Called:
    if not rows:
        return Called({}, {})
    return event_loop().call(begin_ms, wanted, ask, taken, rows, limits, every)


def always(*_: object) -> bool:
    """``wanted`` where nobody ends a batch early."""
    return True


AT_LEISURE: MakesCalls = partial(_made, None, always)
"""Until all calls are made."""


@dataclass(frozen=True)
class SideBySide:
    """Makes the calls of a step's operators; picklable. ``wanted(request)``: whether the batch may
    still take its time, asked while calls are under way."""

    wanted: Callable[[BatchRequest], bool] = always

    def of(self, request: BatchRequest, begin_ms: float | None) -> MakesCalls:
        """For an operator in this batch, whose calls begin within ``begin_ms``."""
        return partial(_made, begin_ms, partial(self.wanted, request))
