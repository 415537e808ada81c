"""Cuts a topology at its repartition topics; finds internal topics, partitions and tasks. Pure.

Numbers are Kafka Streams': groups of nodes that are connected or share a store, in the order of
their sources' *names*, so a Java application with the same names has the same task ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

from everflow.errors import TopologyError
from everflow.records import TaskId
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    GlobalTableNode,
    Graph,
    Node,
    RepartitionTopic,
    SinkNode,
    SourceNode,
    StatefulNode,
    WholeTableNode,
)

WINDOW_STORE_ADDITIONAL_RETENTION_MS = 86_400_000
VERSIONED_ADDITIONAL_LAG_MS = 86_400_000
_CREATE_TIME = {"message.timestamp.type": "CreateTime"}
_REPARTITION_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": str(50 * 1024 * 1024),
}

TopicSpec = tuple[int, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class SubTopology:
    """One connected part: every partition of its source topics is a task, or each of the first
    ones, where its stores have fewer (`fixed_tasks`).

    ``source_topics``: the user's; the others: internal ones, without the application id.
    """

    index: int
    nodes: tuple[Node, ...]
    source_topics: tuple[str, ...]
    repartition_sources: tuple[str, ...]
    repartition_sinks: tuple[str, ...]
    stores: tuple[StoreSpec, ...]

    def inputs(self, application_id: str) -> tuple[str, ...]:
        return (
            *self.source_topics,
            *(f"{application_id}-{name}" for name in self.repartition_sources),
        )


@dataclass(frozen=True)
class GlobalSubTopology:
    """Keeps a global table on every instance: it has a number, and none of the group's tasks."""

    index: int
    node: WholeTableNode


@dataclass(frozen=True)
class SubTopologies:
    """All sub-topologies, also of global tables, by their numbers; ``index_of``: by node name."""

    topology: Graph
    subtopologies: tuple[SubTopology, ...]
    index_of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    global_tables: tuple[GlobalSubTopology, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        read = {topic for sub in self.subtopologies for topic in sub.source_topics}
        return tuple(sorted(read | set(self.global_topics)))

    @property
    def global_topics(self) -> tuple[str, ...]:
        nodes = [one.node for one in self.global_tables]
        return tuple(node.topic for node in nodes if isinstance(node, GlobalTableNode))


@dataclass(frozen=True)
class InternalTopics:
    """Topics that the application creates: full name -> (partitions, topic configuration)."""

    repartition: Mapping[str, TopicSpec]
    changelog: Mapping[str, TopicSpec]
    left_out: frozenset[str] = frozenset()
    """Topics of ``changelog`` that record what was left out of a reused topic (note 065)."""


def cut(topology: Graph) -> SubTopologies:
    root_of = _groups(topology)
    sources = [(node.name, node) for node in topology.nodes if isinstance(node, SourceNode)]
    kept = [(node.source, node) for node in topology.nodes if isinstance(node, WholeTableNode)]
    in_order: list[tuple[str, Node]] = sorted([*sources, *kept], key=lambda named: named[0])
    roots = list(dict.fromkeys(root_of[node.name] for _, node in in_order))
    subtopologies, global_tables = [], []
    for index, root in enumerate(roots):
        nodes = tuple(node for node in topology.nodes if root_of[node.name] == root)
        if isinstance(nodes[0], WholeTableNode):
            global_tables.append(GlobalSubTopology(index, nodes[0]))
        else:
            subtopologies.append(_subtopology(index, nodes))
    index_of = {node.name: sub.index for sub in subtopologies for node in sub.nodes}
    index_of |= {one.node.name: one.index for one in global_tables}
    return SubTopologies(
        topology, tuple(subtopologies), MappingProxyType(index_of), tuple(global_tables)
    )


def internal_topics(
    subs: SubTopologies,
    partition_counts: Mapping[str, int],
    application_id: str,
    *,
    existing: Mapping[str, int] = MappingProxyType({}),
    topic_config: Mapping[str, str] = MappingProxyType({}),
    additional_retention_ms: int = WINDOW_STORE_ADDITIONAL_RETENTION_MS,
) -> InternalTopics:
    """Names, partition counts and configurations of the internal topics.

    ``partition_counts`` holds the user's source topics, ``existing`` the internal ones that there
    are: they keep their numbers, as far as the program does not say another one, whatever an input
    has now (`everflow.topology.grown_topics`). ``topic_config``, from the ``topic.`` prefix, wins
    over Kafka Streams' values and loses against a store's or repartition's own. TopologyError for a
    missing source topic and for partition counts that keep equal keys apart.
    """
    _check_sources_exist(subs, partition_counts)
    fixed = fixed_tasks(subs, existing, application_id)
    counts = _resolve_counts(
        subs,
        {**partition_counts, **_not_above(subs, partition_counts, fixed)},
        _kept(subs, existing, fixed, application_id),
    )
    declared = {topic.name: topic for topic in subs.topology.repartition_topics}
    repartition = {
        f"{application_id}-{name}": (
            counts[name],
            {**_CREATE_TIME, **_REPARTITION_CONFIG, **topic_config, **declared[name].config},
        )
        for name in declared
    }
    changelog: dict[str, TopicSpec] = {}
    left_out: set[str] = set()
    for sub in subs.subtopologies:
        partitions = max(counts[name] for name in (*sub.source_topics, *sub.repartition_sources))
        for store in sub.stores:
            if store.logging:
                config = _changelog_config(store, topic_config, additional_retention_ms)
                name = store.left_out_topic(application_id)
                if name is not None:
                    left_out.add(name)
                changelog[name or store.changelog_topic(application_id)] = (partitions, config)
    return InternalTopics(repartition, changelog, frozenset(left_out))


def internal_names(subs: SubTopologies, application_id: str) -> list[str]:
    """The full names of the internal topics, whatever partitions they have."""
    between = [f"{application_id}-{topic.name}" for topic in subs.topology.repartition_topics]
    return between + [name for sub in subs.subtopologies for name in _logs(sub, application_id)]


def _logs(sub: SubTopology, application_id: str) -> list[str]:
    return [
        store.left_out_topic(application_id) or store.changelog_topic(application_id)
        for store in sub.stores
        if store.logging
    ]


def fixed_tasks(
    subs: SubTopologies, existing: Mapping[str, int], application_id: str
) -> dict[int, int]:
    """The number of tasks of sub-topologies whose stores were made for it: that of the partitions
    of an ``existing`` changelog, else of a repartition topic beside a store. Not of those for which
    the program says another number."""
    said = {topic.name: topic.partitions for topic in subs.topology.repartition_topics}
    found = {}
    for sub in subs.subtopologies:
        names = _logs(sub, application_id)
        if sub.stores:
            names += [f"{application_id}-{name}" for name in sub.repartition_sources]
        numbers = [existing[name] for name in names if name in existing]
        if numbers and {said[name] for name in sub.repartition_sources} <= {None, numbers[0]}:
            found[sub.index] = numbers[0]
    return found


def _not_above(
    subs: SubTopologies, counts: Mapping[str, int], fixed: Mapping[int, int]
) -> dict[str, int]:
    return {
        topic: min(counts[topic], fixed[sub.index])
        for sub in subs.subtopologies
        if sub.index in fixed
        for topic in sub.source_topics
    }


def _kept(
    subs: SubTopologies, existing: Mapping[str, int], fixed: Mapping[int, int], application_id: str
) -> dict[str, int]:
    """Partitions of repartition topics (without prefix) that are there, or meet what is there."""
    of = {
        name: fixed.get(sub.index) for sub in subs.subtopologies for name in sub.repartition_sources
    }
    found = {name: of.get(name) or existing.get(f"{application_id}-{name}") for name in of}
    return {name: number for name, number in found.items() if number is not None}


def tasks(
    subs: SubTopologies, partition_counts: Mapping[str, int], application_id: str
) -> list[TaskId]:
    """All tasks, in order: of a sub-topology as many as its widest input has partitions.
    ``partition_counts`` holds every input topic by its full name (KeyError otherwise)."""
    return [
        TaskId(sub.index, partition)
        for sub in subs.subtopologies
        for partition in range(max(partition_counts[topic] for topic in sub.inputs(application_id)))
    ]


# --- grouping -------------------------------------------------------------------------------------


def _groups(topology: Graph) -> dict[str, str]:
    """Node -> representative of its group: edges and shared stores connect nodes."""
    parent = {node.name: node.name for node in topology.nodes}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    user_of_store: dict[str, str] = {}
    for node in topology.nodes:
        for other in node.inputs:
            parent[root(other)] = root(node.name)
        if isinstance(node, StatefulNode):
            for store in (*node.stores, *node.reads):
                first = user_of_store.setdefault(store.name, node.name)
                parent[root(first)] = root(node.name)
    return {name: root(name) for name in parent}


def _subtopology(index: int, nodes: tuple[Node, ...]) -> SubTopology:
    sources = [node for node in nodes if isinstance(node, SourceNode)]
    sinks = [node for node in nodes if isinstance(node, SinkNode) and node.kind == "repartition"]
    stateful = [node for node in nodes if isinstance(node, StatefulNode)]
    stores = {store.name: store for node in stateful for store in node.stores}

    def topics(internal: bool) -> tuple[str, ...]:
        read = (node.topics for node in sources if (node.kind == "repartition") is internal)
        return tuple(dict.fromkeys(chain.from_iterable(read)))

    return SubTopology(
        index=index,
        nodes=nodes,
        source_topics=topics(internal=False),
        repartition_sources=topics(internal=True),
        repartition_sinks=tuple(dict.fromkeys(str(node.topic) for node in sinks)),
        stores=tuple(stores.values()),
    )


# --- partition counts -----------------------------------------------------------------------------


def _check_sources_exist(subs: SubTopologies, partition_counts: Mapping[str, int]) -> None:
    for node in subs.topology.nodes:
        topics = node.topics if isinstance(node, SourceNode) else ()
        if isinstance(node, GlobalTableNode):
            topics = (node.topic,)
        elif isinstance(node, SourceNode) and node.kind == "repartition":
            continue
        missing = [topic for topic in topics if topic not in partition_counts]
        if missing:
            raise TopologyError(
                f"source topic {', '.join(missing)} does not exist; create it before the "
                f"application starts, e.g.\n"
                f"  everflow topic create {missing[0]}:4 --bootstrap-servers ...",
                where=node.where,
                code="EF-SOURCE-TOPIC",
            )


@dataclass(frozen=True)
class _Meeting:
    """A stateful operator that is fed by several topics, those behind each of its ``inputs``."""

    node: StatefulNode
    inputs: tuple[frozenset[str], ...]

    @property
    def topics(self) -> frozenset[str]:
        return frozenset[str]().union(*self.inputs)

    def require_equal(self, known: Mapping[str, int]) -> None:
        """TopologyError, which tells a join's sides apart, unless ``known`` counts are the same."""
        numbers = {known[topic] for topic in self.topics if topic in known}
        if len(numbers) < 2:
            return
        join = self.node.label == "JOIN" and len(self.inputs) == 2
        words = ("left ", "right ") if join else ("",) * len(self.inputs)
        listed = "; ".join(
            word + ", ".join(f"{topic}: {known[topic]}" for topic in sorted(topics & known.keys()))
            for word, topics in zip(words, self.inputs, strict=True)
            if topics & known.keys()
        )
        subject, which = ("the join ", ", on the side that has another count") if join else ("", "")
        raise TopologyError(
            f"{subject}{self.node.name} reads topics with different partition counts ({listed}), "
            f"so equal keys would not meet in one task; give the topics equal counts, or put "
            f".repartition(name='a-name', partitions={max(numbers)}) before it{which}",
            where=self.node.where,
            code="EF-COPARTITION",
        )


def _meetings(subs: SubTopologies) -> list[_Meeting]:
    topics_of: dict[str, frozenset[str]] = {}
    found = []
    for node in subs.topology.nodes:
        own = frozenset(node.topics) if isinstance(node, SourceNode) else frozenset[str]()
        inputs = tuple(topics_of[name] for name in node.inputs)
        topics_of[node.name] = own.union(*inputs)
        if isinstance(node, StatefulNode) and len(topics_of[node.name]) > 1:
            found.append(_Meeting(node, inputs))
    return found


def _resolve_counts(
    subs: SubTopologies, partition_counts: Mapping[str, int], kept: Mapping[str, int]
) -> dict[str, int]:
    """Partition counts of all source and repartition topics (without prefix): the enforced number,
    else the one ``kept``, else that of the user's topics it meets in a stateful operator, else the
    largest of the topics its writers read, through other repartition topics too."""
    declared = {topic.name: topic for topic in subs.topology.repartition_topics}
    external = {
        topic: partition_counts[topic] for sub in subs.subtopologies for topic in sub.source_topics
    }
    meetings = _meetings(subs)
    fixed = _fixed_by_copartitioning(meetings, external, declared, kept)
    resolved = {**external, **fixed}
    writers = {
        name: [sub for sub in subs.subtopologies if name in sub.repartition_sinks]
        for name in declared
    }

    def count(name: str, visiting: frozenset[str]) -> int:
        if name not in resolved:
            upstream = {
                topic
                for sub in writers[name]
                for topic in (*sub.source_topics, *sub.repartition_sources)
            } - (visiting | {name})
            resolved[name] = max((count(topic, visiting | {name}) for topic in upstream), default=1)
        return resolved[name]

    for name in declared:
        count(name, frozenset())
    changed = True
    # Groups of internal topics only share the largest count, which may widen topics behind them.
    while changed:
        changed = False
        for meeting in meetings:
            widest = max(resolved[name] for name in meeting.topics)
            for name in meeting.topics:
                if name in declared and name not in fixed and resolved[name] != widest:
                    resolved[name], changed = widest, True
    return resolved


def _fixed_by_copartitioning(
    meetings: list[_Meeting],
    external: Mapping[str, int],
    declared: Mapping[str, RepartitionTopic],
    kept: Mapping[str, int],
) -> dict[str, int]:
    """Counts that are enforced or ``kept``, or those of topics that are met; TopologyError for
    several."""
    counts = {name: topic.partitions or kept.get(name) for name, topic in declared.items()}
    fixed = {name: count for name, count in counts.items() if count is not None}
    for meeting in meetings:
        known = {**fixed, **external}
        meeting.require_equal(known)
        numbers = {known[name] for name in meeting.topics if name in known}
        if numbers and any(name in external for name in meeting.topics):
            fixed.update({name: next(iter(numbers)) for name in meeting.topics if name in declared})
    return fixed


def _changelog_config(
    store: StoreSpec, topic_config: Mapping[str, str], additional_retention_ms: int
) -> dict[str, str]:
    config = {**_CREATE_TIME, "cleanup.policy": "compact"}
    if store.expires:
        assert store.retention_ms is not None, f"{store.kind} store {store.name} without retention"
        config["cleanup.policy"] = "compact,delete"
        config["retention.ms"] = str(store.retention_ms + additional_retention_ms)
    if store.versioned:
        # Compaction keeps the last record of a key only, and the history is its records.
        assert store.retention_ms is not None, f"versioned store {store.name} without history"
        config["min.compaction.lag.ms"] = str(store.retention_ms + VERSIONED_ADDITIONAL_LAG_MS)
    return {**config, **topic_config, **store.topic_config}
