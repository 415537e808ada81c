"""A program as the migrator needs it: what it stores, where, and how keys are spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from everflow.assignment.cluster_state import inputs_of, number_of_tasks
from everflow.columns.key_partitions import MURMUR2
from everflow.operators.joins.lookup_join import GlobalLookupJoin, LookupJoin
from everflow.operators.joins.stream_stream import StreamStreamJoin
from everflow.operators.joins.stream_table import GraceBuffer
from everflow.operators.joins.table_table import Subscriptions
from everflow.operators.optimization import optimized
from everflow.operators.processors.process import ProcessSpec
from everflow.operators.suppress import SuppressSpec
from everflow.operators.table import DeduplicateSpec
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.protocol.messages import MARK_BYTES
from everflow.records import TaskId, TopicPartition
from everflow.serdes import Serde
from everflow.serdes.windowed import KEY_SUFFIX_BYTES
from everflow.state.store import StoreSpec
from everflow.topology.compatibility import layouts_to_keep
from everflow.topology.graph import Graph, SinkNode, StatefulNode
from everflow.topology.idle_sources import (
    MOST_BYTES,
    ProgramTimes,
    bytes_for_layouts,
    program_times,
    sources_of,
)
from everflow.topology.partitioners import (
    assumed_of_stores,
    key_partitioners,
    partitioner_name,
)
from everflow.topology.patterns import with_topics
from everflow.topology.program import Topology
from everflow.topology.program_facts import ProgramFacts, facts_of
from everflow.topology.store_layouts import fingerprint, kept_text
from everflow.topology.subtopologies import (
    InternalTopics,
    cut,
    fixed_tasks,
    internal_names,
    internal_topics,
)


class Form(str, Enum):
    """Where in a store's key the key of its record is; of `OWN` keys nobody knows."""

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
    by name; ``changelogs``: whole name and partitions, of these; ``unlogged``: without one.
    ``inputs``: whole names of topics by sub-topology; ``partitions``: of each; ``fixed``: the tasks
    of sub-topologies with state (`fixed_tasks`). ``forms``: by store, with the bytes of windows
    behind the key by which its partition was chosen; ``inside``: the serdes of the records in the
    entries of one whose bytes are an operator's. ``repartition``: whole names; ``writers``: the
    sub-topologies that write each of these; ``spread``: those whose keys are not where Java puts
    them, and by what; ``assumed``: by what those of stores are that have no topic of the
    application's in front (`assume_partitioned`). ``layouts``: the text beside offsets, which fits
    there with a mark or with the times."""

    application_id: str
    facts: ProgramFacts
    lines: tuple[str, ...]
    stores: Mapping[str, StoreSpec]
    unlogged: frozenset[str]
    forms: Mapping[str, tuple[Form, int]]
    inside: Mapping[str, tuple[Serde, ...]]
    changelogs: Mapping[str, tuple[str, int]]
    inputs: Mapping[int, tuple[str, ...]]
    partitions: Mapping[str, int]
    fixed: Mapping[int, int]
    repartition: frozenset[str]
    writers: Mapping[str, frozenset[int]]
    spread: Mapping[str, str]
    assumed: Mapping[str, str]
    internal: InternalTopics
    layouts: str
    times: ProgramTimes

    def tasks(self) -> dict[TaskId, tuple[TopicPartition, ...]]:
        """Each task with its inputs."""
        return {
            task: inputs_of(task, topics, self.partitions, self.fixed)
            for index, topics in self.inputs.items()
            for number in range(number_of_tasks(index, topics, self.partitions, self.fixed))
            for task in (TaskId(index, number),)
        }

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
    """``topics``: partitions by topic of the cluster; internal ones that are there keep their
    numbers, as at a start. TopologyError as a start's."""
    subs = cut(with_topics(optimized(topology, optimization), topics, application_id))
    counts = {name: topics[name] for name in subs.topics if name in topics}
    own = internal_names(subs, application_id)
    internal = internal_topics(
        subs,
        counts,
        application_id,
        existing={name: topics[name] for name in own if name in topics},
        topic_config=topic_config,
        additional_retention_ms=additional_retention_ms,
    )
    inputs = {sub.index: sub.inputs(application_id) for sub in subs.subtopologies}
    read = {topic for sub in subs.subtopologies for topic in sub.source_topics}
    partitions = {name: counts[name] for name in read}
    partitions |= {name: count for name, (count, _) in internal.repartition.items()}
    made = {n: p for n, (p, _) in (*internal.repartition.items(), *internal.changelog.items())}
    fixed = fixed_tasks(subs, made, application_id)
    changelogs = {
        store.name: (
            store.changelog_topic(application_id),
            number_of_tasks(sub.index, inputs[sub.index], partitions, fixed),
        )
        for sub in subs.subtopologies
        for store in sub.stores
        if store.logging
    }
    graph = subs.topology
    stateful = [node for node in graph.nodes if isinstance(node, StatefulNode)]
    most = min(bytes_for_layouts(graph), MOST_BYTES - MARK_BYTES)
    layouts = kept_text(layouts_to_keep(application_id, graph, []), subs, [], most)
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
        unlogged=frozenset(
            store.name for sub in subs.subtopologies for store in sub.stores if not store.logging
        ),
        forms={
            store.name: (form_of(node, at), _window_bytes(graph, node, at))
            for node in stateful
            for at, store in enumerate(node.stores)
        },
        inside={
            store.name: inside(node, at)
            for node in stateful
            for at, store in enumerate(node.stores)
        },
        changelogs=changelogs,
        inputs=inputs,
        partitions=partitions,
        fixed=fixed,
        repartition=frozenset(internal.repartition),
        writers={
            name: frozenset(
                subs.index_of[node.name]
                for node in graph.nodes
                if isinstance(node, SinkNode)
                and node.kind == "repartition"
                and f"{application_id}-{node.topic}" == name
            )
            for name in internal.repartition
        },
        spread={f"{application_id}-{name}": by for name, by in _spread(graph).items()},
        assumed=assumed_of_stores(graph),
        internal=internal,
        layouts=layouts,
        times=program_times(graph, subs.index_of, layouts),
    )


def _spread(graph: Graph) -> dict[str, str]:
    """By what repartition topics have their keys, of those that Java would put elsewhere."""
    known = key_partitioners(graph)
    by_record = {one.name for one in graph.repartition_topics} - known.keys()
    return {
        **{name: partitioner_name(by) for name, by in known.items() if by != MURMUR2},
        **dict.fromkeys(by_record, "a function of the record"),
    }


def form_of(node: StatefulNode, at: int) -> Form:
    """Of the store number ``at`` of an operator."""
    operator, store = node.operator, node.stores[at]
    if isinstance(operator, ProcessSpec):
        return Form.OWN
    if isinstance(operator, DeduplicateSpec) and operator.beside:
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


def inside(node: StatefulNode, at: int) -> tuple[Serde, ...]:
    """The serdes of what is in the entries of a store whose own serdes are bytes, that of the
    record's key first; empty for all others."""
    operator, form = node.operator, form_of(node, at)
    if form is Form.SUPPRESSED:
        assert isinstance(operator, SuppressSpec)
        return operator.key_serde, operator.value_serde
    if form is Form.SUBSCRIPTIONS:
        assert isinstance(operator, Subscriptions)
        return operator.foreign_serde, operator.entry_serde
    if form is Form.LOOKUPS:
        assert isinstance(operator, LookupJoin | GlobalLookupJoin)
        return operator.pending.key_serde, operator.pending.value_serde
    if form is Form.WAITING:
        left, right = node.stores[:2]
        return left.key_serde, left.value_serde, right.value_serde
    if form is Form.ENDS:
        assert isinstance(operator, TimeToLiveSpec)
        return (operator.key_serde,)
    if form is Form.GRACE:
        buffer: GraceBuffer = operator.buffer  # type: ignore[attr-defined]  # `form_of` has seen it
        return buffer.key_serde, buffer.value_serde
    return ()


def _window_bytes(graph: Graph, node: StatefulNode, at: int) -> int:
    """Of windows in a key that came into it behind the topic which says the record's partition."""
    keys = inside(node, at)[:1] or (node.stores[at].key_serde,)
    by = key_partitioners(graph)
    sources = [
        _width(source.key_serde)
        for source in sources_of(graph, node)
        if any(by.get(topic) == MURMUR2 for topic in source.topics)
    ]
    return max(0, _width(keys[0]) - max(sources, default=0))


def _width(serde: Serde) -> int:
    """Bytes of the windows behind a key, also of windows of windowed keys."""
    inner = getattr(serde, "inner", None)
    if serde.kind not in KEY_SUFFIX_BYTES or inner is None:
        return 0
    return KEY_SUFFIX_BYTES[serde.kind] + _width(inner)
