"""kafka-python's event loop and transport, with fewer system calls and turns for each request.

A micro-batch of a few records is some five requests, and kafka-python 3.0 needs five turns, nine
calls of epoll and two of a wake-up socket for each: 570 us of processor, as much as the work of the
batch itself. Here a request is written where it is made, a connection stays registered for reading,
and one turn runs all that is ready: a send, a wait and a read.

With `broker_link`, the one place that reaches into kafka-python for this.
"""

from __future__ import annotations

import inspect
import logging
import selectors
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from types import CoroutineType, FunctionType, MethodType
from typing import Any

import kafka.errors as client_errors
from kafka.future import Future
from kafka.net.selector import KernelEvent, NetworkSelector, Task, TaskState

_log = logging.getLogger(__name__)
_SOCKET_READ_BYTES = 1 << 20
_STEPS_OF_A_TURN = 1_000
"""So that tasks which are always ready do not keep the connections waiting."""
_GIVES_A_COROUTINE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE
_OVER = (TaskState.DONE, TaskState.CANCELLED)


class QuickLoop(NetworkSelector):  # type: ignore[misc]
    """Owned by one thread, or by one of its own (``start``); tasks and their order as in
    kafka-python's loop, but that `started` begins at once."""

    _current: Task | None
    _poll_owner: threading.Thread | None

    def started(self, coroutine: Callable[[], Awaitable[Any]]) -> Future:
        """The outcome of ``coroutine``, which runs up to its first wait before this returns. Of the
        thread that turns the loop."""
        future = Future()

        async def run() -> None:
            try:
                future.success(await coroutine())
            except BaseException as failure:
                future.failure(failure)

        task = _QuickTask(run())
        self._pending_tasks.add(task)
        before, self._current = self._current, None
        try:
            self._step(task)
        finally:
            self._current = before
        return future

    def call_at(self, when: float, task: Any) -> Task:
        return super().call_at(when, _as_task(task))

    def call_soon(self, task: Any) -> Task:
        return super().call_soon(_as_task(task))

    def run_ready(self) -> bool:
        """Do all that can be done without the connections; False: there was nothing."""
        ready = self._ready
        if not ready:
            return False
        for _ in range(_STEPS_OF_A_TURN):
            self._step(ready.popleft())
            if not ready:
                break
        self._current = None
        return True

    def poll(self, timeout_ms: float | None = None, future: Future | None = None) -> None:
        """As kafka-python's: one turn, or turns until ``future`` is done or the time is over."""
        until_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        left_s = None if timeout_ms is None else timeout_ms / 1000
        if future is None:
            self._poll_once(left_s)
            return
        while not future.is_done:
            if self.run_ready() and future.is_done:
                return
            self._poll_once(left_s)
            if until_s is not None:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return

    def _poll_once(self, timeout: float | None = None) -> None:
        if not self._poll_lock.acquire(blocking=False):
            raise RuntimeError("the loop turns already")
        self._poll_owner = threading.current_thread()
        try:
            if self.run_ready():
                timeout = 0.0
            elif self._scheduled:
                due_s = self._scheduled[0][0] - time.monotonic()
                timeout = due_s if timeout is None else min(timeout, due_s)
            if timeout is not None and timeout < 0:
                timeout = 0.0
            self._process_events(self._selector.select(timeout))
            self._schedule_tasks()
            self.run_ready()
        finally:
            self._poll_owner = None
            self._poll_lock.release()

    def _step(self, task: Task) -> None:
        if task.state in _OVER:
            return
        self._current = task
        task.state = TaskState.RUNNING
        try:
            event = task()
        except StopIteration:
            self._task_done(task)
        except BaseException:
            _log.exception("A task of a connection to the brokers failed: %s", task)
            self._task_done(task)
        else:
            if task.state is TaskState.CANCELLED:
                self._pending_tasks.discard(task)
                task.close()
            elif isinstance(event, KernelEvent):
                try:
                    getattr(self, event.method)(*event.args)
                except BaseException as failure:
                    task.inject_exc(failure)
                    self._add_ready_task(task)
            else:
                task.state = TaskState.WAIT_FUTURE
                again = lambda _: self.call_soon(task)  # noqa: E731
                event._add_cb_eb(again, again)

    def _wait_arrival(self, socket: Any) -> None:
        """Park the current task until ``socket`` has bytes. It stays registered, with this task,
        until the transport is closed, which unregisters it."""
        task = self._current
        assert task is not None
        task.state = TaskState.WAIT_IO
        key = self._selector.get_map().get(socket.fileno())
        if key is None or key.data[0] is not task:
            self.register_event(socket, selectors.EVENT_READ, task)


class _QuickTask(Task):  # type: ignore[misc]
    """Of a coroutine or a plain function, which needs no look at what it is."""

    _stack: Any
    _res: Any
    _exc: BaseException | None

    def __init__(self, body: Any) -> None:
        self._stack = (body, None)
        self._res = self._exc = self.scheduled_at = None
        self.state = TaskState.CREATED

    def __call__(self, arg: Any = None) -> Any:
        stack = self._stack
        if self._exc is not None or stack is None or stack[1] is not None:
            return super().__call__(arg)
        body = stack[0]
        begun = type(body) is CoroutineType
        try:
            found = body.send(None) if begun else body()
        except StopIteration as end:
            self._stack, self._res = None, end.value
            raise
        except BaseException as failure:
            self._stack, self._exc = None, failure
            raise
        if begun and isinstance(found, (KernelEvent, Future)):
            return found
        if found is None and not begun:
            self._stack = None
            raise StopIteration
        self._stack = (_yielding(found), stack if begun else None)
        return super().__call__(arg)


def _yielding(found: Any) -> Generator[Any, Any, Any]:
    """Of what else a body gives: kafka-python's callbacks give coroutines."""
    return (yield found)


def _as_task(body: Any) -> Task:
    if isinstance(body, Task):
        return body
    function = body.__func__ if type(body) is MethodType else body
    plain = type(function) is FunctionType and not function.__code__.co_flags & _GIVES_A_COROUTINE
    return _QuickTask(body) if plain else Task(body)


def quicker(build: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """``build`` of kafka-python's transports, for a `QuickLoop`; what it builds reads and writes as
    described above. It also reads what came before an end of the connection, as that says why."""

    async def built(*arguments: Any, **named: Any) -> Any:
        transport = await build(*arguments, **named)
        transport._sock_recv = MethodType(_receive, transport)
        transport._read_from_sock = MethodType(_read, transport)
        transport.write = MethodType(_write, transport)
        return transport

    return built


async def _read(transport: Any) -> None:
    """In place of `KafkaTCPTransport._read_from_sock`."""
    while transport._read and not transport._closed:
        await KernelEvent("_wait_arrival", transport._sock)
        data, failure = transport._sock_recv()
        if failure is not None:
            transport.abort(error=failure)
            return
        transport.last_read = time.monotonic()
        try:
            transport._protocol.data_received(data)
        except client_errors.KafkaProtocolError as broken:
            transport.abort(error=broken)
            return


def _write(transport: Any, data: bytes) -> None:
    """In place of `KafkaTCPTransport.write`: what the socket takes goes at once."""
    if not transport._write or transport._closed:
        raise RuntimeError("Transport closed for writes")
    transport._write_buffer.append(data)
    if transport._writing:
        return
    _, failure = transport._sock_send()
    if failure is not None:
        transport._net.call_soon(lambda: transport.abort(failure))
        return
    transport.last_write = time.monotonic()
    if transport._write_buffer:
        transport._writing = True
        transport._write_task = transport._net.call_soon(transport._write_to_sock)


def _receive(transport: Any) -> tuple[bytes, Exception | None]:
    """In place of `KafkaTCPTransport._sock_recv`."""
    try:
        data: bytes = transport._sock.recv(_SOCKET_READ_BYTES)
        # Bytes that are decrypted already do not make the socket readable.
        if data and isinstance(transport._sock, ssl.SSLSocket) and transport._sock.pending():
            data += transport._sock.recv(transport._sock.pending())
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return b"", None
    except OSError as failure:
        return b"", client_errors.KafkaConnectionError(failure)
    return data, None if data else client_errors.KafkaConnectionError("socket disconnected")
