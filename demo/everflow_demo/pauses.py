"""Measures pauses: the longest time between two committed batches while there was work.

Asked of the broker, of nobody else: the offsets that the group has committed, and the ends of the
partitions it reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from everflow.errors import EverflowError
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition

_PERIOD_S = 0.05
_ANSWER_S = 10.0


class PartitionPause(NamedTuple):
    """A partition with waiting records and no commit; times in s, on the caller's clock."""

    since_s: float
    until_s: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.until_s - self.since_s


class Pauses:
    """Looks at offsets -> pauses. Pure. A commit ends a pause and begins the next one; where
    nothing waits there is none."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, float] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._pauses: dict[TopicPartition, list[PartitionPause]] = {}
        self._looked_s = 0.0

    def add(
        self,
        at_s: float,
        committed: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Take one look: offsets committed (0 where there is none), and the ends of the same
        partitions, read after them."""
        for tp, end in ends.items():
            offset = committed.get(tp, 0)
            since = self._since.setdefault(tp, at_s)
            if offset > self._committed.get(tp, 0):
                self._pauses.setdefault(tp, []).append(PartitionPause(since, at_s))
                self._since[tp] = at_s
            elif offset >= end:
                self._since[tp] = at_s
            self._committed[tp] = offset
        self._looked_s = at_s

    def longest(self, since_s: float, until_s: float) -> dict[TopicPartition, PartitionPause]:
        """The longest pause of each partition that reaches into the time between; none for one that
        never had work."""
        found = {}
        for tp, since in list(self._since.items()):
            pauses = [*self._pauses.get(tp, ()), PartitionPause(since, self._looked_s)]
            within = [
                pause
                for pause in pauses
                if pause.seconds > 0 and pause.until_s > since_s and pause.since_s < until_s
            ]
            if within:
                found[tp] = max(within, key=lambda pause: pause.seconds)
        return found


class PauseWatch:
    """Feeds `Pauses` from the broker, twenty times a second, from a thread of its own.

    ``pauses`` may be asked at any time from other threads. A look that fails is left out: the pause
    it would have ended only gets longer.
    """

    def __init__(
        self, admin: Mapping[str, Any], group: str, partitions: Iterable[TopicPartition]
    ) -> None:
        self.pauses = Pauses()
        self._settings = dict(admin)
        self._group = group
        self._partitions = list(partitions)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-pauses", daemon=True)

    def __enter__(self) -> Pauses:
        self._thread.start()
        return self.pauses

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        admin = ClusterAdmin(self._settings)
        while not self._stop.wait(_PERIOD_S):
            try:
                # Not stable ones: asked this often, a transaction is nearly always under way.
                found = admin.committed(self._group, self._partitions, _ANSWER_S, stable=False)
                at_s = time.monotonic()
                committed = {tp: one.offset for tp, one in found.items()}
                ends = admin.end_offsets(self._partitions, "read_committed")
                self.pauses.add(at_s, committed, ends)
            except EverflowError:
                continue
        admin.close()
