"""How far the demo is: committed offsets and the ends of its inputs say, as for Kafka's own lag
tools, so that the answer holds for all instances together. Times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from everflow.records import TopicPartition

if TYPE_CHECKING:
    from everflow.kafka.admin import ClusterAdmin
    from everflow.topology.program import Topology


@dataclass(frozen=True)
class Sample:
    """One look at an application and at the instance here.

    ``consumed`` and ``log_end`` are the application's: committed offsets and ends summed over all
    input partitions, repartition topics included. ``tasks`` says what the tasks of this instance do
    (`everflow.instance.describe.summary`).
    """

    at_s: float
    consumed: int
    log_end: int
    tasks: str = ""


@dataclass
class Progress:
    """Samples -> the progress line. Rates are taken over the last ``window_s`` seconds. Not
    thread-safe."""

    window_s: float = 10.0
    _samples: deque[Sample] = field(default_factory=deque)

    def add(self, sample: Sample) -> None:
        """Take a sample; times must not go back."""
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.at_s - self._samples[0].at_s > self.window_s:
            self._samples.popleft()

    @property
    def records_per_s(self) -> float:
        """Records a second over the window; 0 before the second sample."""
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        elapsed = last.at_s - first.at_s
        return max(0, last.consumed - first.consumed) / elapsed if elapsed > 0 else 0.0

    @property
    def lag(self) -> int | None:
        """Records not yet committed; None before the first sample."""
        last = self._samples[-1] if self._samples else None
        return None if last is None else max(0, last.log_end - last.consumed)

    def line(self) -> str:
        """``45,120 records/s · lag 12,345 · here: 6 active, 2 standby``; rate and lag are of all
        instances together."""
        lag = self.lag
        parts = [
            f"{self.records_per_s:,.0f} records/s",
            "lag unknown" if lag is None else f"lag {lag:,}",
        ]
        if self._samples and self._samples[-1].tasks:
            parts.append(f"here: {self._samples[-1].tasks}")
        return " · ".join(parts)


def input_topics(topology: Topology, application_id: str) -> list[str]:
    """Full names of all topics that the application reads, its repartition topics included."""
    from everflow.topology.subtopologies import cut

    return list(
        dict.fromkeys(
            topic for sub in cut(topology).subtopologies for topic in sub.inputs(application_id)
        )
    )


class LagReader:
    """Reads samples of one application. Owned by one thread; the admin client is the caller's.

    Partitions are looked up once, at the first sample after all topics exist; until then nothing is
    known.
    """

    def __init__(self, admin: ClusterAdmin, application_id: str, topics: Sequence[str]) -> None:
        self._admin = admin
        self._group = application_id
        self._topics = list(topics)
        self._partitions: list[TopicPartition] = []

    def sample(self, at_s: float, tasks: str = "") -> Sample | None:
        """Committed and end offsets now, with what the tasks do; None while topics are missing.

        Committed offsets are read first: records that a commit made visible downstream are then in
        the ends read after it, so a lag of zero over all topics means that nothing is on its way
        between sub-topologies either.

        Raises:
            RetriableError: the brokers did not answer.
        """
        if not self._partitions:
            self._partitions = self._find_partitions()
            if not self._partitions:
                return None
        committed = self._admin.committed(self._group, self._partitions, stable=False)
        ends = self._admin.list_offsets(self._partitions, "latest", "read_uncommitted")
        consumed = {tp: committed[tp].offset if tp in committed else -1 for tp in self._partitions}
        # Where nothing is left, nothing that retention has deleted can be ahead of the commit: an
        # idle application is asked for two offsets of each partition, not for three.
        behind = [tp for tp, offset in consumed.items() if offset < ends[tp]]
        if behind:
            starts = self._admin.list_offsets(behind, "earliest", "read_uncommitted")
            consumed |= {tp: max(consumed[tp], min(starts[tp], ends[tp])) for tp in behind}
        return Sample(at_s, sum(consumed.values()), sum(ends.values()), tasks)

    def _find_partitions(self) -> list[TopicPartition]:
        described = self._admin.describe_topics(self._topics)
        if any(topic not in described for topic in self._topics):
            return []
        return [
            TopicPartition(topic, partition)
            for topic in self._topics
            for partition in range(described[topic].partitions)
        ]
