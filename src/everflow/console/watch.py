"""Shows how far an application is: its committed offsets against the ends of its inputs.

The same question as Kafka's own lag tools ask, so the answer does not depend on the instance being
healthy.
"""

from __future__ import annotations

from collections.abc import Sequence

from everflow.console.terminal import Sample
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut


def input_topics(topology: Topology, application_id: str) -> list[str]:
    """Full names of all topics that the application reads, its repartition topics included."""
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
