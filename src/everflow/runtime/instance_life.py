"""Starts an instance once and ends it once, whoever asks for that and when.

Any thread asks, at any moment: one thread ends the instance, once. While the start is still under
way that thread only sets the flag that every wait of a start looks at, and begins when the start
has given up: nothing is then made behind its back. `KafkaStreams` has one of these, and so has
every simulated instance.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack

from everflow.clock import Clock
from everflow.config import StreamsConfig
from everflow.errors import EverflowError, without_history
from everflow.runtime.client_state import STOPPING, ClientState, StateMachine
from everflow.runtime.instance import Instance
from everflow.runtime.instance_end import InstanceEnd
from everflow.threads import Spawn

log = logging.getLogger("everflow")

START_GIVES_UP_MS = 30_000.0
LOOK_MS = 1_000.0


class InstanceLife:
    """See the module. ``ended``: called once, behind the end, on its thread."""

    def __init__(self, clock: Clock, spawn: Spawn, ended: Callable[[], None]) -> None:
        self._clock, self._spawn, self._ended = clock, spawn, ended
        self.states = StateMachine()
        self.error: EverflowError | None = None
        """Why it is in state ERROR, or what its end could not do."""
        self.instance: Instance | None = None
        """Once the cluster was looked at, for good."""
        self.held = ExitStack()
        """What a start has opened: closed at the end, the last one first, whatever became of the
        start."""
        self.stop = threading.Event()
        """Set once everything has to give up what it waits for."""
        self.hurry = threading.Event()
        """Set by who does not want to wait for the draining and for batches in flight."""
        self.ending = ""
        """What the end is at, in words; empty before it."""
        self._lock = threading.Lock()
        self._start_over = threading.Event()
        """Set while no start is under way."""
        self._start_over.set()
        self._end_over = threading.Event()

    def start(self, begin: Callable[[], None]) -> BaseException | None:
        """Run ``begin`` in state REBALANCING. What its caller is told: nothing where it went
        through, or was closed meanwhile."""
        with self._lock:
            if not self.states.to(ClientState.REBALANCING):
                return None  # closed this moment
            self._start_over.clear()
        try:
            begin()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            self._start_over.set()
            return self._given_up(error)
        finally:
            self._start_over.set()
        return None

    def close(self, leave_group: bool | None, drain_s: float) -> None:
        """Begin to end it; both as `InstanceEnd` has them."""
        with self._lock:
            never_ran = self.states.state is ClientState.CREATED
            if never_ran:
                self.states.to(ClientState.PENDING_SHUTDOWN)
                self.states.to(ClientState.NOT_RUNNING)
        if never_ran:
            self._ended()
        else:
            self._begin_end(ClientState.PENDING_SHUTDOWN, leave_group, drain_s)

    def fail(self, error: EverflowError) -> None:
        """It cannot go on: begin to end it, in state ERROR, unless it ends already."""
        if self.states.state not in STOPPING:
            self.error = self.error or without_history(error)
            self._begin_end(ClientState.PENDING_ERROR)

    def note_end(self, at: str) -> None:
        """What the end is at."""
        self.ending = at

    def _given_up(self, error: BaseException) -> BaseException | None:
        """A start did not go through: end what it has begun."""
        told: BaseException | None = _interrupt(error) or error
        if not isinstance(told, Exception):  # Ctrl-C
            self._begin_end(ClientState.PENDING_SHUTDOWN)
        elif self.stop.is_set():  # the wish of somebody else, or the failure of another thread
            told = self.error
        else:
            self.error = (
                error
                if isinstance(error, EverflowError)
                else EverflowError(f"The start failed: {error!r}")
            )
            self._begin_end(ClientState.PENDING_ERROR)
        self._clock.wait(self._end_over, START_GIVES_UP_MS)
        return told

    def _begin_end(
        self, state: ClientState, leave_group: bool | None = None, drain_s: float = 0.0
    ) -> None:
        with self._lock:
            if self.states.to(state):  # the first of all who ask
                self._spawn("everflow-shutdown", lambda: self._end(leave_group, drain_s))

    def _end(self, leave_group: bool | None, drain_s: float) -> None:
        failed = self.states.state is ClientState.PENDING_ERROR
        if not self._start_over.is_set():
            self.note_end("waiting for its start to give up")
            self.stop.set()
            while not self._clock.wait(self._start_over, LOOK_MS):
                pass
        try:
            self._end_all(leave_group, drain_s)
        except Exception as error:  # the state must still say that it is over
            log.error(
                "The shutdown did not go through: %s",
                error,
                exc_info=not isinstance(error, EverflowError),
            )
            if not isinstance(error, EverflowError):
                error = EverflowError(f"The shutdown did not go through: {error!r}")
            self.error = self.error or without_history(error)
        self.states.to(ClientState.ERROR if failed else ClientState.NOT_RUNNING)
        self._ended()
        self._end_over.set()

    def _end_all(self, leave_group: bool | None, drain_s: float) -> None:
        """The instance ends; then connections end, and the folder is released."""
        with self.held:
            try:
                if self.instance is not None:
                    InstanceEnd(
                        instance=self.instance,
                        leave_group=leave_group,
                        drain_s=drain_s,
                        hurry=self.hurry,
                        told=self.note_end,
                    ).run()
            finally:
                self.note_end("closing its connections")


class Living:
    """A part of `KafkaStreams` that knows its life."""

    config: StreamsConfig
    _life: InstanceLife

    @property
    def state(self) -> ClientState:
        """The instance's `ClientState` at this moment; any thread may ask."""
        return self._life.states.state

    @property
    def error(self) -> EverflowError | None:
        """Why the instance is in state ERROR; in state NOT_RUNNING, what its end could not do (a
        batch that hung for longer than is waited for, say)."""
        return self._life.error


def _interrupt(error: BaseException) -> BaseException | None:
    """The interrupt behind an error: one that comes inside a client's C code surfaces as a
    SystemError."""
    seen: BaseException | None = error
    while seen is not None and isinstance(seen, Exception):
        seen = seen.__cause__ or seen.__context__
    return seen
