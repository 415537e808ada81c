"""Asks the user's uncaught exception handler what becomes of a stream thread (KIP-671).

Kafka Streams replaces a thread as often as the handler says so. A cause that does not pass then
costs a recovery and a batch again and again, for ever, and nobody sees it. So `RetryPolicy`
replaces a thread for causes that may pass, after longer and longer rests, and a limited number of
times within a window.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from everflow.errors import EverflowError
from everflow.runtime.thread.retry_policy import ReplacementLimits

log = logging.getLogger("everflow")


class StreamThreadExceptionResponse(enum.Enum):
    """What a handler of uncaught exceptions answers: REPLACE_THREAD, SHUTDOWN_CLIENT (this
    instance) or SHUTDOWN_APPLICATION (all of them)."""

    REPLACE_THREAD = "REPLACE_THREAD"
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"
    SHUTDOWN_APPLICATION = "SHUTDOWN_APPLICATION"


UncaughtExceptionHandler: TypeAlias = "Callable[[EverflowError], StreamThreadExceptionResponse]"
"""Called with what ends a stream thread, on that thread."""


@dataclass(frozen=True)
class Uncaught:
    """The user's handler with its limits; without one every uncaught error ends the instance.
    ``shut_down_all``: asks every instance to end."""

    shut_down_all: Callable[[EverflowError], None]
    handler: UncaughtExceptionHandler | None = None
    limits: ReplacementLimits = field(default_factory=ReplacementLimits)

    def limits_for(self, error: EverflowError) -> ReplacementLimits | None:
        """Ask the handler, on the thread that failed: within which limits that thread is replaced;
        None: the instance ends."""
        response = self._answer(error)
        if response is StreamThreadExceptionResponse.SHUTDOWN_APPLICATION:
            self.shut_down_all(error)
        return self.limits if response is StreamThreadExceptionResponse.REPLACE_THREAD else None

    def _answer(self, error: EverflowError) -> StreamThreadExceptionResponse:
        if self.handler is None:
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        try:
            response: object = self.handler(error)
        except Exception:  # the user's code
            log.exception("The uncaught exception handler failed; this instance ends")
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        if not isinstance(response, StreamThreadExceptionResponse):
            log.error(
                "The uncaught exception handler answered %r, which is no "
                "StreamThreadExceptionResponse; this instance ends",
                response,
            )
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        return response
