"""Ends an instance once, whoever asks for it and when.

`InstanceShutdown` is a part of `KafkaStreams`. Whoever asks, from whatever thread and at whatever moment: one thread ends the
instance, once. While `KafkaStreams.start` is still under way that thread only sets the flag that every wait of a start looks
at, and begins when the start has given up: nothing is then made behind its back.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from everflow.errors import EverflowError
from everflow.runtime.client_state import ClientState, StateMachine
from everflow.runtime.drain import DRAIN_SHARE
from everflow.runtime.instance_end import InstanceEnd
from everflow.runtime.unclosed import close_at_exit

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.logs import LogFile
    from everflow.runtime.instance import Instance
    from everflow.state.task_directory import StateDirectory

log = logging.getLogger("everflow")

START_GIVES_UP_S = 30.0

_Instance = TypeVar("_Instance", bound="InstanceShutdown")


class InstanceShutdown:
    """These methods of `KafkaStreams` may be called from any thread; see the module."""

    config: StreamsConfig
    error: EverflowError | None
    _states: StateMachine
    _stop: threading.Event
    _log_file: LogFile | None
    _instance: Instance | None

    def __init__(self) -> None:
        self._closing = threading.Lock()
        self._shutdown: threading.Thread | None = None
        self._start_over = threading.Event()
        """Set while no start is under way."""
        self._start_over.set()
        self._leave_group: bool | None = None
        self._drain_s = 0.0
        self._hurry = threading.Event()
        self._ending = ""
        """What the end is at, in words; empty before it."""
        self._held = ExitStack()
        """What a start has opened: closed at the end, the last one first, whatever became of the start."""

    @property
    def state(self) -> ClientState:
        """The state now."""
        return self._states.state

    def __enter__(self: _Instance) -> _Instance:
        """``with KafkaStreams(...) as streams:`` closes at the end of the block; `start` is still called inside."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """`close`. If the block itself ended well and the instance did not, raises what stopped it."""
        self.close()
        if kind is None and self.error is not None:
            raise self.error

    def close(self, timeout: float = 60.0, leave_group: bool | None = None) -> bool:
        """Hand the tasks over, finish the batches in flight, commit, leave the group, release the folder; False if that took more
        than ``timeout`` seconds (it goes on in the background).

        ``leave_group`` None: a dynamic member drains (every task is processed here until another instance has a hot copy of it,
        at most ``drain.timeout.ms`` and most of ``timeout``) and leaves; a static one (``group.instance.id``) stays in the group,
        silently: its tasks wait for its return. True: drain and leave, also a static one. False: stay silent, also a dynamic one
        (KIP-812).

        During `start`, from another thread: the start gives up what it waits for and returns, the state is NOT_RUNNING.
        """
        self._begin_close(timeout, leave_group)
        return self._states.wait_ended(timeout)

    def _hurry_up(self, timeout_s: float) -> bool:
        """Wait for an end that has begun: from now on it hands nothing over and cuts batches in flight off after a second."""
        self._hurry.set()
        return self._states.wait_ended(timeout_s)

    def _begin_close(self, timeout: float, leave_group: bool | None) -> None:
        """`close` without the waiting."""
        with self._closing:
            if self._states.state is ClientState.CREATED:
                self._states.to(ClientState.PENDING_SHUTDOWN)
                self._states.to(ClientState.NOT_RUNNING)
                return
        leaves = self.config.group_instance_id is None if leave_group is None else leave_group
        drain_s = min(self.config.drain_timeout_ms / 1000, DRAIN_SHARE * timeout) if leaves else 0.0
        self._begin_shutdown(ClientState.PENDING_SHUTDOWN, leave_group, drain_s)

    def _begin_start(self) -> None:
        """From CREATED to REBALANCING, unless it is being closed this moment."""
        with self._closing:
            if self._states.to(ClientState.REBALANCING):
                self._start_over.clear()
                close_at_exit(self)

    def _end_start(self, error: BaseException) -> BaseException | None:
        """A start did not go through: end what it has begun. What its caller is told: nothing where the instance was closed."""
        self._start_over.set()
        told: BaseException | None = _interrupt(error) or error
        if not isinstance(told, Exception):  # Ctrl-C
            self._begin_shutdown(ClientState.PENDING_SHUTDOWN)
        elif self._stop.is_set():  # the wish of somebody else, or the failure of another thread
            told = self.error
        else:
            self.error = error if isinstance(error, EverflowError) else EverflowError(f"The start failed: {error!r}")
            self._begin_shutdown(ClientState.PENDING_ERROR)
        self._states.wait_ended(START_GIVES_UP_S)
        return told

    def _begin_shutdown(self, state: ClientState, leave_group: bool | None = None, drain_s: float = 0.0) -> None:
        with self._closing:
            if self._shutdown is not None or not self._states.to(state):
                return
            self._leave_group, self._drain_s = leave_group, drain_s
            self._shutdown = threading.Thread(target=self._run_shutdown, name="everflow-shutdown", daemon=True)
            self._shutdown.start()

    def _run_shutdown(self) -> None:
        failed = self._states.state is ClientState.PENDING_ERROR
        if not self._start_over.is_set():
            self._ending = "waiting for its start to give up"
            self._stop.set()
            self._start_over.wait()
        try:
            self._shut_down()
        except Exception as error:  # the state must still say that it is over
            log.error("The shutdown did not go through: %s", error, exc_info=not isinstance(error, EverflowError))
            failed = True
        self._states.to(ClientState.ERROR if failed else ClientState.NOT_RUNNING)
        if self._log_file is not None:
            self._log_file.close()

    def _shut_down(self) -> None:
        """The instance ends; then connections end, and the folder is released."""
        with self._held:
            try:
                if self._instance is not None:
                    InstanceEnd(self._instance, self._leave_group, self._drain_s, self._hurry, self._note_end).run()
            finally:
                self._note_end("closing its connections")

    def _note_end(self, at: str) -> None:
        self._ending = at

    def _release(self, directory: StateDirectory, clean: bool) -> None:
        self._note_end("writing the stores to disk")
        directory.close(clean=clean)


def _interrupt(error: BaseException) -> BaseException | None:
    """The interrupt behind an error: one that comes inside a client's C code surfaces as a SystemError."""
    seen: BaseException | None = error
    while seen is not None and isinstance(seen, Exception):
        seen = seen.__cause__ or seen.__context__
    return seen
