"""Waits for logs to grow, at next to no cost while they do not.

A fetch from where the logs ended is held back by the broker until one of them has more. Asking for
the ends again and again costs each time what all partitions cost: 1,000 of them took most of a
core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from everflow.errors import RetriableError
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.reading.fetch_connection import FetchConnection, Place
from everflow.kafka.reading.fetch_tap import CONNECT_S
from everflow.records import TopicPartition

HELD_BACK_MS = 500
"""How long a broker holds a fetch back (Java's fetch.max.wait.ms)."""
_LATE_S = 5.0
"""An answer that comes so much later than that is none."""


class TailWatch:
    """Owned by one thread; a connection to each broker that leads one of the logs, until closed."""

    def __init__(
        self, connection: FetchConnection, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._clock = clock

    @staticmethod
    def opens(config: Mapping[str, Any], *, read_committed: bool) -> Callable[[], TailWatch]:
        """A function that opens one, of librdkafka's settings. It raises RetriableError where none
        answers, FatalError if a broker refuses this client."""
        settings = connection_settings(config)
        settings.pop("client_rack", None)  # leaders know best where a log ends

        def open_one() -> TailWatch:
            return TailWatch(
                FetchConnection.opened(
                    settings,
                    "everflow-tail-watch",
                    CONNECT_S,
                    HELD_BACK_MS,
                    read_committed=read_committed,
                    # One batch at the most: it is the ends that are wanted.
                    log_bytes=1,
                    answer_bytes=1,
                    late_s=_LATE_S,
                )
            )

        return open_one

    def wait(
        self, ends: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Wait until one of the logs is longer than in ``ends``, for ``timeout_s`` seconds at most;
        the ends that brokers reported meanwhile, last stable offsets where read committed, high
        watermarks otherwise. A fetch that is held back goes on behind it: in the next wait it may
        report logs that are no longer asked for.

        Raises RetriableError: a broker cannot be reached or does not lead its logs any more; the
        next wait begins anew.
        """
        until_s = self._clock() + timeout_s
        places = {tp: Place(end) for tp, end in ends.items()}
        grown: dict[TopicPartition, int] = {}
        left_s = timeout_s
        while not grown and left_s > 0:
            failures = dict(self._connection.fetch(places))
            for tp, answer in self._connection.answers(left_s).items():
                if answer.failure is not None:
                    failures[tp] = answer.failure
                elif answer.end > answer.offset:
                    grown[tp] = answer.end
            for tp in failures:
                self._connection.forget(tp)
            if failures:
                tp, failure = next(iter(failures.items()))
                raise RetriableError(f"the ends of the logs are not known: {tp}: {failure}")
            left_s = until_s - self._clock()
        return grown

    def close(self) -> None:
        self._connection.close()
