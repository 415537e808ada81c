"""By which partitioner the keys of each topic are spread; topics whose keys meet have one. Pure.

A repartition topic has that of the topics that it meets in a stateful operator, so that equal keys
meet in one task, from every producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.columns.key_partitions import MURMUR2, key_partitions
from everflow.errors import TopologyError
from everflow.records import Int64
from everflow.serdes import Serde
from everflow.serdes.windowed import KEY_SUFFIX_BYTES, without_windows
from everflow.topology.graph import (
    AssumedNode,
    FunctionExpr,
    Graph,
    Node,
    SinkNode,
    SourceNode,
    StatefulNode,
)


@dataclass(frozen=True)
class KeyFunction:
    """A user's function of (topic, key, None, number of partitions), called with one of the
    source's ``topics``, whatever topic is written. Raises what that raises, and ValueError for an
    answer that is no partition."""

    fn: Callable[..., Any]
    topics: tuple[str, ...]

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int:
        topic = topic if topic in self.topics else self.topics[0]
        answer = self.fn(topic, key, None, partitions)
        whole = isinstance(answer, int | np.integer) and not isinstance(answer, bool)
        if not whole or not 0 <= answer < partitions:
            raise ValueError(
                f"partitioner= gave {answer!r:.100} for a key; {topic} has the partitions 0 to "
                f"{partitions - 1}"
            )
        return int(answer)


@dataclass(frozen=True)
class KeyField:
    """The ``field`` of a key, as ``serde`` writes it, says the partition, ``by`` a hash or a
    function. Keys with an equal field are in one partition."""

    field: str
    serde: Serde
    by: str | KeyFunction

    @property
    def function(self) -> KeyFunction | None:
        return self.by if isinstance(self.by, KeyFunction) else None


OF_WINDOWS = "windowed"
"""Of windowed keys: by murmur2, without windows (Kafka Streams' ``WindowedStreamPartitioner``)."""
KeyPartitioner = str | KeyFunction | KeyField
"""One of `everflow.columns.key_partitions.BY_HASH`, or `OF_WINDOWS`, or a function, or a field."""


def partitioner_name(partitioner: KeyPartitioner) -> str:
    if partitioner == OF_WINDOWS:
        return "murmur2 of the keys without their windows"
    if isinstance(partitioner, str):
        return partitioner
    if isinstance(partitioner, KeyField):
        return f"the key's field {partitioner.field} by {partitioner_name(partitioner.by)}"
    return f"the function {getattr(partitioner.fn, '__name__', repr(partitioner.fn))}"


def partitions_of(
    partitioner: KeyPartitioner, topic: str, keys: pa.Array, serde: Serde, partitions: int
) -> Int64:
    """The partition of each key (bytes, for a function no nulls); raises what that raises."""
    if partitioner == OF_WINDOWS:
        return key_partitions(without_windows(keys, serde), partitions, MURMUR2)
    if isinstance(partitioner, str):
        return key_partitions(keys, partitions, partitioner)
    if isinstance(partitioner, KeyField):
        fields = pc.struct_field(serde.decode_array(keys), partitioner.field)
        inner = partitioner.serde
        return partitions_of(partitioner.by, topic, inner.encode_array(fields), inner, partitions)
    found = [
        partitioner(
            topic,
            serde.decode(key),
            None,
            partitions,
        )
        for key in keys.to_pylist()
    ]
    return np.array(found, np.int64)


def key_partitioners(graph: Graph) -> dict[str, KeyPartitioner]:
    """The partitioner of each user topic that a task reads, and of each repartition topic (without
    the application id) without its own. TopologyError for topics that meet and have several."""
    found: dict[str, KeyPartitioner] = {
        topic: key_partitioner(node.reading.partitioner or usual(node.key_serde), node.topics)
        for node in graph.nodes
        if isinstance(node, SourceNode) and node.kind != "repartition"
        for topic in node.topics
    }
    sinks = [n for n in graph.nodes if isinstance(n, SinkNode) and n.kind == "repartition"]
    found |= {str(n.topic): n.partitioner for n in sinks if isinstance(n.partitioner, str)}
    spread = {str(n.topic) for n in sinks if n.partitioner} - found.keys()
    meetings = [(node, topics - spread) for node, topics in _meetings(graph)]
    assumed = [one for one in assumptions(graph) if one.node.spread_alone]
    while True:
        _spread_to_meetings(meetings, assumed, found)
        unknown = [one for one in assumed if one.node.spread_alone not in found]
        if not unknown:
            break
        front = unknown[0].topics - spread - found.keys()
        if not front:
            raise _not_known(unknown[0])
        found.update(dict.fromkeys(front, MURMUR2))
    for topic in graph.repartition_topics:
        if topic.name not in spread:
            found.setdefault(topic.name, MURMUR2)
    return found


def _spread_to_meetings(
    meetings: list[tuple[StatefulNode, frozenset[str]]],
    assumed: list[Assumption],
    found: dict[str, KeyPartitioner],
) -> None:
    """Adds to ``found`` what follows from it: a topic takes that of what it meets, an assumption
    does not."""
    own = {one.node.spread_alone for one in assumed}
    grew = True
    while grew:
        grew = False
        for node, topics in meetings:
            known = {topic: found[topic] for topic in sorted(topics & found.keys())}
            if len({_id(one) for one in known.values()}) > 1:
                raise _differing(node, known)
            for one in list(known.values())[:1]:
                fresh = dict.fromkeys(topics - own - found.keys(), one)
                found.update(fresh)
                grew = grew or bool(fresh)
        for assumption in assumed:
            name, by = assumption.node.spread_alone, assumption.partitioner(found)
            if by is not None and name not in found:
                found[name], grew = by, True


@dataclass(frozen=True)
class Assumption:
    """An `AssumedNode`, and the topics in front of it."""

    node: AssumedNode
    topics: frozenset[str]

    def partitioner(self, known: Mapping[str, KeyPartitioner]) -> KeyPartitioner | None:
        """By which its keys are spread, where the topics' partitioners are ``known``; None: not
        known."""
        said, front = self.node.partitioner, self.topics & known.keys()
        whole = known[min(front)] if front else None
        if said is not None:
            whole = key_partitioner(said, tuple(sorted(self.topics)))
        if whole is None or self.node.by is None:
            return whole
        if isinstance(whole, KeyField):
            return None
        field, serde = self.node.by
        return KeyField(field, serde, MURMUR2 if whole == OF_WINDOWS else whole)


def assumptions(graph: Graph) -> Iterator[Assumption]:
    """Of all nodes that assume a partitioning."""
    topics_of = topics_in_front(graph)
    for node in graph.nodes:
        if isinstance(node, AssumedNode):
            yield Assumption(node, topics_of[node.name])


def assumed_partitioners(graph: Graph) -> dict[str, KeyPartitioner]:
    """By the names of the nodes that assume one. TopologyError where it is not known."""
    known, found = key_partitioners(graph), dict[str, KeyPartitioner]()
    for one in assumptions(graph):
        by = known.get(one.node.spread_alone) or one.partitioner(known)
        if by is None:
            raise _not_known(one)
        found[one.node.name] = by
    return found


def topics_in_front(graph: Graph) -> dict[str, frozenset[str]]:
    """Of each node, the topics whose records reach it within its sub-topology."""
    found: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        own = node.topics if isinstance(node, SourceNode) else ()
        found[node.name] = frozenset(own).union(*(found[name] for name in node.inputs))
    return found


def partitioners_of_stores(graph: Graph) -> dict[str, KeyPartitioner]:
    """Of each store, by what its keys are spread, where that is known."""
    by, found = key_partitioners(graph), dict[str, KeyPartitioner]()
    for node, topics in _meetings(graph):
        for topic in sorted(topics & by.keys())[:1]:
            for store in node.stores:
                found.setdefault(store.name, by[topic])
    return found


def spread_otherwise(graph: Graph) -> dict[str, str]:
    """Stores whose keys the program itself does not spread as Java does it, behind a repartition
    topic or an `AssumedNode`, and by what they are."""
    own = {one.name for one in graph.repartition_topics} | _said_alone(graph)
    return {
        store: partitioner_name(by) for store, by in _of_stores(graph, own).items() if by != MURMUR2
    }


def assumed_of_stores(graph: Graph) -> dict[str, str]:
    """Stores behind an `AssumedNode` that says itself by what its keys are spread, and by what."""
    return {
        store: partitioner_name(by) for store, by in _of_stores(graph, _said_alone(graph)).items()
    }


def _said_alone(graph: Graph) -> set[str]:
    return {node.spread_alone for node in graph.nodes if isinstance(node, AssumedNode)}


def _of_stores(graph: Graph, own: set[str]) -> dict[str, KeyPartitioner]:
    """Of the stores behind a topic of ``own``."""
    by, found = key_partitioners(graph), dict[str, KeyPartitioner]()
    for node, topics in _meetings(graph):
        for topic in sorted(topics & own & by.keys()):
            found.update(dict.fromkeys((store.name for store in node.stores), by[topic]))
    return found


def keyed_sources(graph: Graph) -> frozenset[str]:
    """The sources whose keys a store relies on: equal ones have to be in one task."""
    reach: dict[str, frozenset[str]] = {}
    found = frozenset[str]()
    for node in graph.nodes:
        sources = frozenset[str]().union(*(reach.get(name, frozenset()) for name in node.inputs))
        if isinstance(node, SourceNode):
            sources = frozenset({node.name})
        elif getattr(node, "changes_key", False):
            sources = frozenset()
        elif isinstance(node, StatefulNode) and (node.stores or node.reads):
            found |= sources
        reach[node.name] = sources
    return found


def usual(key_serde: Serde) -> str:
    """The partitioner that Kafka Streams, and so everflow, has for a topic that others read."""
    return OF_WINDOWS if key_serde.kind in KEY_SUFFIX_BYTES else MURMUR2


def key_partitioner(partitioner: str | FunctionExpr, topics: tuple[str, ...]) -> KeyPartitioner:
    return (
        KeyFunction(partitioner.fn, topics)
        if isinstance(partitioner, FunctionExpr)
        else partitioner
    )


def _id(partitioner: KeyPartitioner) -> object:
    """Equal functions are the same one."""
    if isinstance(partitioner, KeyField):
        return partitioner.field, repr(partitioner.serde), _id(partitioner.by)
    return partitioner if isinstance(partitioner, str) else id(partitioner.fn)


def _meetings(graph: Graph) -> list[tuple[StatefulNode, frozenset[str]]]:
    """Stateful operators, and the topics behind the inputs and tables that each reads."""
    topics_of: dict[str, frozenset[str]] = {}
    of_store: dict[str, frozenset[str]] = {}
    found = []
    for node in graph.nodes:
        own = node.topics if isinstance(node, SourceNode) else ()
        topics = frozenset(own).union(*(topics_of[name] for name in node.inputs))
        if isinstance(node, StatefulNode):
            topics = topics.union(*(of_store.get(one.name, frozenset()) for one in node.reads))
            for store in node.stores:
                of_store[store.name] = of_store.get(store.name, frozenset()) | topics
            if node.stores or node.reads:
                found.append((node, topics))
        if isinstance(node, AssumedNode) and node.spread_alone:
            topics = frozenset({node.spread_alone})
        topics_of[node.name] = topics
    return found


def _not_known(assumption: Assumption) -> TopologyError:
    listed = ", ".join(sorted(assumption.topics))
    return TopologyError(
        f"assume_partitioned: in front of it are {listed}, whose records are spread by a function "
        f"of the record, or by a part of another key; say partitioner=, a function of (topic, key, "
        f"value, partitions) that gives the partition of a key",
        where=assumption.node.where,
        code="EF-COPARTITION",
    )


def _differing(node: StatefulNode, known: Mapping[str, KeyPartitioner]) -> TopologyError:
    listed = ", ".join(f"{topic}: {partitioner_name(one)}" for topic, one in known.items())
    return TopologyError(
        f"{node.name} reads topics whose keys are spread by different partitioners ({listed}), so "
        f"equal keys would not meet in one task; give each source the partitioner= of whoever "
        f"writes its topic, and where they do differ put .repartition(name='a-name') behind one "
        f"of them",
        where=node.where,
        code="EF-COPARTITION",
    )


def topics_into_stores(topology: Graph, application_id: str) -> dict[str, frozenset[str]]:
    """Store -> full names of the topics whose keys it holds, which are co-partitioned."""
    nodes: dict[str, Node] = {node.name: node for node in topology.nodes}
    reach: dict[str, frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for node in topology.nodes:  # inputs come before those that read them
        topics = frozenset[str]().union(*(reach[name] for name in node.inputs if name in nodes))
        if isinstance(node, SourceNode):
            topics |= {
                f"{application_id}-{topic}" if node.kind == "repartition" else topic
                for topic in node.topics
            }
        reach[node.name] = topics
        if isinstance(node, StatefulNode):
            for store in node.stores:
                found[store.name] = found.get(store.name, frozenset()) | topics
    return found
