"""Finds logs that end before what was read of them: another topic, or records that were lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from everflow.clock import Clock
from everflow.errors import EverflowError, FatalError, read_again, start_over
from everflow.records import TopicPartition

PERIOD_MS = 1_000.0
"""Between two looks: after a change of leader an end may lie behind for a moment."""


class ShrunkLogs:
    """Compares positions with ends that were asked for after them. Owned by the poller of the ends.

    Args:
        positions: of the running tasks; called from the poller's thread.
        log_ends: asks the brokers, read_uncommitted: after a change from at-least-once to
        exactly-once a position may lie beyond
            the last stable offset while a transaction of another application is open. May raise
            RetriableError.
        topic_ids: of a topic, at the start and now; "" for one that is not known. May raise
            EverflowError.
    """

    def __init__(
        self,
        application_id: str,
        positions: Callable[[], Mapping[TopicPartition, int]],
        log_ends: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]],
        clock: Clock,
        topic_ids: Callable[[str], tuple[str, str]],
    ) -> None:
        self._application_id = application_id
        self._positions, self._log_ends, self._clock = positions, log_ends, clock
        self._topic_ids = topic_ids
        self._suspects: frozenset[TopicPartition] = frozenset()
        self._next_ms = 0.0

    def held(self) -> Mapping[TopicPartition, int]:
        """The positions now, for `require`; none while the last look is not a second old."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return {}
        self._next_ms = now_ms + PERIOD_MS
        return self._positions()

    def require(
        self, held: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """FatalError for positions that lie beyond the end of their log, now and at the look
        before."""
        beyond = _beyond(held, ends)
        again = sorted(tp for tp in beyond if tp in self._suspects)
        self._suspects = frozenset(beyond)
        if not again:
            return
        log_ends = self._log_ends(again)
        shrunk = sorted(_beyond({tp: held[tp] for tp in again}, log_ends))
        if shrunk:
            listed = "; ".join(
                f"{tp} ends at {log_ends[tp]}, the position is {held[tp]}" for tp in shrunk[:5]
            )
            raise FatalError(
                f"The log ends before what was read of it: "
                f"{listed}{'; ...' if len(shrunk) > 5 else ''}. {self._why(shrunk[0].topic)} "
                f"New records before the position would never be read. "
                f"{read_again(self._application_id, shrunk[0].topic)} "
                f"{start_over(self._application_id)}"
            )

    def _why(self, topic: str) -> str:
        """What has become of the topic: its ids tell."""
        try:
            before, now = self._topic_ids(topic)
        except EverflowError as error:
            return f"The brokers do not say whether {topic} is still the same topic ({error})."
        if not before or not now:
            return f"The brokers do not say whether {topic} is still the same topic."
        if before != now:
            return (
                f"Topic {topic} was deleted and created again while the application ran (topic id "
                f"{before} -> {now})."
            )
        return (
            f"Topic {topic} is still the same (topic id {now}), so its log lost records: the "
            f"replica that leads it now does not have them."
        )


def _beyond(
    positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    return [tp for tp, position in positions.items() if ends.get(tp, position) < position]
