"""A program as the migrator needs it: what it stores, where, and how keys are spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from everflow.columns.key_partitions import MURMUR2
from everflow.operators.joins.lookup_join import GlobalLookupJoin, LookupJoin
from everflow.operators.joins.stream_stream import StreamStreamJoin
from everflow.operators.joins.stream_table import GraceBuffer
from everflow.operators.joins.table_table import Subscriptions
from everflow.operators.optimization import optimized
from everflow.operators.processors.process import ProcessSpec
from everflow.operators.suppress import SuppressSpec
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.records import TaskId, TopicPartition
from everflow.serdes.windowed import KEY_SUFFIX_BYTES
from everflow.state.store import StoreSpec
from everflow.topology.compatibility import layouts_to_keep
from everflow.topology.graph import StatefulNode
from everflow.topology.idle_sources import bytes_for_layouts
from everflow.topology.partitioners import key_partitioners, partitioner_name
from everflow.topology.patterns import with_topics
from everflow.topology.program import Topology
from everflow.topology.program_facts import ProgramFacts, facts_of
from everflow.topology.store_layouts import fingerprint, kept_text
from everflow.topology.subtopologies import InternalTopics, cut, internal_topics


class Form(str, Enum):
    """Where in a store's key the key of its record is."""

    KEY = "key"
    WINDOW = "window"
    SESSION = "session"
    SUPPRESSED = "suppressed"
    WAITING = "waiting"
    GRACE = "grace"
    SUBSCRIPTIONS = "subscriptions"
    ENDS = "ends"
    LOOKUPS = "lookups"
    OWN = "own"


@dataclass(frozen=True, kw_only=True)
class Program:
    """Picklable, as `PickledObjects` are. ``lines``: its fingerprint. ``stores``: with a changelog,
    by name; ``changelogs``: whole name and partitions, of these. ``inputs``: whole names of topics
    by sub-topology; ``partitions``: of each. ``forms``: by store, with the bytes of a window behind
    the record's key. ``repartition``: whole names; ``spread``: those whose
    keys are not where Java puts them, and by what. ``layouts``: the text beside offsets."""

    application_id: str
    facts: ProgramFacts
    lines: tuple[str, ...]
    stores: Mapping[str, StoreSpec]
    forms: Mapping[str, tuple[Form, int]]
    changelogs: Mapping[str, tuple[str, int]]
    inputs: Mapping[int, tuple[str, ...]]
    partitions: Mapping[str, int]
    repartition: frozenset[str]
    spread: Mapping[str, str]
    internal: InternalTopics
    layouts: str

    def tasks(self) -> dict[TaskId, tuple[TopicPartition, ...]]:
        """Each task with its inputs."""
        found = {}
        for index, topics in self.inputs.items():
            for number in range(max(self.partitions[topic] for topic in topics)):
                read = [topic for topic in topics if number < self.partitions[topic]]
                found[TaskId(index, number)] = tuple(TopicPartition(one, number) for one in read)
        return found

    def between(self) -> frozenset[int]:
        """Sub-topologies that read repartition topics alone."""
        return frozenset(i for i, topics in self.inputs.items() if self.repartition >= {*topics})


def program_of(
    topology: Topology,
    *,
    application_id: str,
    topics: Mapping[str, int],
    optimization: str,
    topic_config: Mapping[str, str],
    additional_retention_ms: int,
) -> Program:
    """``topics``: partitions by topic of the cluster. TopologyError as a start's."""
    subs = cut(with_topics(optimized(topology, optimization), topics, application_id))
    counts = {name: topics[name] for name in subs.topics if name in topics}
    internal = internal_topics(
        subs,
        counts,
        application_id,
        topic_config=topic_config,
        additional_retention_ms=additional_retention_ms,
    )
    inputs = {sub.index: sub.inputs(application_id) for sub in subs.subtopologies}
    read = {topic for sub in subs.subtopologies for topic in sub.source_topics}
    partitions = {name: counts[name] for name in read}
    partitions |= {name: count for name, (count, _) in internal.repartition.items()}
    changelogs = {
        store.name: (
            store.changelog_topic(application_id),
            max(partitions[topic] for topic in inputs[sub.index]),
        )
        for sub in subs.subtopologies
        for store in sub.stores
        if store.logging
    }
    graph = subs.topology
    spread = {
        f"{application_id}-{name}": partitioner_name(by)
        for name, by in key_partitioners(graph).items()
        if by != MURMUR2
    }
    own = {one.name for one in graph.repartition_topics} - key_partitioners(graph).keys()
    spread |= {f"{application_id}-{name}": "a function of the record" for name in own}
    stateful = [node for node in graph.nodes if isinstance(node, StatefulNode)]
    kept = layouts_to_keep(application_id, graph, [])
    return Program(
        application_id=application_id,
        facts=facts_of(subs),
        lines=fingerprint(subs),
        stores={
            store.name: store
            for sub in subs.subtopologies
            for store in sub.stores
            if store.name in changelogs
        },
        forms={
            store.name: (form_of(node, at), _window_bytes(node, store))
            for node in stateful
            for at, store in enumerate(node.stores)
        },
        changelogs=changelogs,
        inputs=inputs,
        partitions=partitions,
        repartition=frozenset(internal.repartition),
        spread=spread,
        internal=internal,
        layouts=kept_text(kept, subs, [], bytes_for_layouts(graph)),
    )


def form_of(node: StatefulNode, at: int) -> Form:
    """Of the store number ``at`` of an operator."""
    operator, store = node.operator, node.stores[at]
    if isinstance(operator, ProcessSpec):
        return Form.OWN
    if isinstance(operator, SuppressSpec):
        return Form.SUPPRESSED
    if isinstance(operator, Subscriptions):
        return Form.SUBSCRIPTIONS
    if isinstance(operator, LookupJoin | GlobalLookupJoin):
        return Form.LOOKUPS
    if isinstance(operator, StreamStreamJoin) and at == 2:
        return Form.WAITING
    if isinstance(operator, TimeToLiveSpec) and store.name == operator.index:
        return Form.ENDS
    buffer = getattr(operator, "buffer", None)
    if isinstance(buffer, GraceBuffer) and buffer.store.name == store.name:
        return Form.GRACE
    return Form(store.kind) if store.expires else Form.KEY


def _window_bytes(node: StatefulNode, store: StoreSpec) -> int:
    """Of keys whose windows are not the store's own."""
    serde = node.operator.key_serde if isinstance(node.operator, SuppressSpec) else store.key_serde
    return 0 if store.expires else KEY_SUFFIX_BYTES.get(serde.kind, 0)
