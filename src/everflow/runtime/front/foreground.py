"""Runs an instance in the foreground: starts it, watches it, ends it by SIGINT, SIGTERM or SIGHUP.

`KafkaStreams.run` and the commands share it. docs/STOPPING.md has the table of moments and signals.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from everflow.config import StreamsConfig
from everflow.errors import EverflowError
from everflow.logs import LogFile, moves
from everflow.retry import waiting
from everflow.runtime.client_state import STOPPING, ClientState
from everflow.runtime.front.bounded_run import BoundedRun
from everflow.runtime.life import DRAIN_SHARE, InstanceLife, leaves
from everflow.stop_signals import owned

log = logging.getLogger("everflow")

TICK_S = 0.1
END_S = 30.0
"""Beyond the time for handing over, an end may take so long before it goes on in the background."""


class RunsInForeground(Protocol):
    """What is run here of a `KafkaStreams`, which itself runs here: `KafkaStreams.run`."""

    config: StreamsConfig
    _life: InstanceLife
    _joined: bool
    _log_file: LogFile | None
    _told_by_caller: bool

    @property
    def state(self) -> ClientState: ...

    @property
    def error(self) -> EverflowError | None: ...

    def start(self) -> None: ...

    def _begin_close(self, timeout: float, leave_group: bool | None) -> None: ...


@dataclass(kw_only=True)
class Foreground:
    """``signal``: the number of the first one, None without; ``joined``: whether the start had gone
    through by then; ``bound``: when it ends by itself."""

    streams: RunsInForeground
    leave_group: bool | None
    signal: int | None = None
    joined: bool = False
    bound: BoundedRun | None = None
    _told_at_s: float = math.inf

    @property
    def timeout_s(self) -> float:
        """How long an end may take."""
        return self.streams.config.drain_timeout_ms / 1000 / DRAIN_SHARE + END_S

    @property
    def ending(self) -> str:
        """What its end is at, in words; empty before it."""
        return self.streams._life.ending

    @property
    def log_file(self) -> Path | None:
        """Where its log is; None where it has had none."""
        return None if self.streams._log_file is None else self.streams._log_file.path

    def run(self) -> None:
        """Start it and return when it has ended. Raises what stopped it, if that was no signal;
        whoever calls tells it."""
        streams = self.streams
        streams._told_by_caller = True
        with owned() as signals, signals.told_to(self._on_signal):
            if self.bound is not None:
                self.bound.open()
            streams.start()
            if self.bound is not None:
                self.bound.started()
            over = False
            with waiting("joining the group"):
                while not over and streams.state is ClientState.REBALANCING:
                    over = self._is_over()
            while not over:
                over = self._is_over()
        if streams.error is not None:
            raise streams.error

    def _is_over(self) -> bool:
        """After a tick, whether nothing is left to wait for."""
        self._end_if_reached()
        return self.streams._life.states.wait_ended(TICK_S) or self._overdue()

    def _end_if_reached(self) -> None:
        """Begin the end of a run that has done what it was asked for."""
        if self.bound is None or self.streams.state in STOPPING:
            return
        why = self.bound.reached()
        if why is not None:
            self._told_at_s = time.monotonic()
            moves.info("stopping: %s", why)
            self.streams._begin_close(self.timeout_s, self.leave_group)

    def _overdue(self) -> bool:
        """Whether the end takes too long; it then goes on in the background for as long as this
        process lives."""
        if self._told_at_s == math.inf:
            return False
        over = time.monotonic() - self._told_at_s > self.timeout_s
        if over:
            log.warning("The end takes longer than %.0f s, it is not waited for", self.timeout_s)
        return over

    def _on_signal(self, count: int, number: int) -> None:
        """On a thread of its own."""
        streams = self.streams
        if count == 1:
            self.signal, self.joined, self._told_at_s = number, streams._joined, time.monotonic()
            hurry = "SIGTERM" if number == signal.SIGHUP else "a second one"
            moves.info(
                "stopping: %s (%s; %s does not wait)",
                self._what(),
                signal.Signals(number).name,
                hurry,
            )
            streams._begin_close(self.timeout_s, self.leave_group)
        elif count == 2:
            moves.info(
                "stopping now: batches in flight have a second to end, nothing more is handed over"
            )
            streams._life.hurry.set()
        else:
            moves.info(
                "still stopping: nothing can make it quicker but kill -9, which loses nothing that "
                "was committed"
            )

    def _what(self) -> str:
        if self.streams.state in STOPPING:
            return "its end has begun already"
        if not self.joined:
            return "it had not joined its group yet"
        if leaves(self.leave_group, static=self.streams.config.group_instance_id is not None):
            return "it commits, hands its tasks over, leaves the group"
        return "it commits, and stays in the group for a restart"
