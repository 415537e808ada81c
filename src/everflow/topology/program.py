"""The user's `Topology`: the graph of the whole program, which shows itself."""

from __future__ import annotations

from dataclasses import dataclass

from everflow.errors import TopologyError
from everflow.foreign_names import Telling
from everflow.topology.describe import as_mermaid, as_text, physical_text
from everflow.topology.graph import (
    GlobalTableNode,
    Graph,
    SinkNode,
    SourceNode,
    StatefulNode,
    WholeTableNode,
    WriteNode,
)
from everflow.topology.plan import plan
from everflow.topology.subtopologies import cut
from everflow.user_program import user_line


@dataclass(frozen=True, repr=False)
class Topology(Graph, Telling):
    """A frozen program, as `StreamsBuilder.build` returns it. ``nodes``: each after its inputs."""

    def describe(self) -> str:
        """Returns the topology in Kafka Streams' text format. Review it before an upgrade."""
        return as_text(self)

    def describe_physical(self) -> str:
        """Returns, by sub-topology, a line of text for each node: its execution path, its name, the
        reason, and its line in the program. The path is ``Arrow`` (in columns), ``Catalyst`` (code
        that Spark generates) or ``Python`` (your function). It assumes a Spark
        version that everflow supports; ``everflow describe --physical`` looks at the installed
        one."""
        index_of = cut(self).index_of
        return physical_text(plan(self, index_of, ""), index_of)

    @property
    def in_memory(self) -> frozenset[str]:
        """The names of the stores that are not on disk, but in memory."""
        stores = [spec for node in self.nodes for spec in getattr(node, "stores", ())]
        stores += [node.store for node in self.nodes if isinstance(node, WholeTableNode)]
        return frozenset(spec.name for spec in stores if spec.in_memory)

    def __repr__(self) -> str:
        parts = [f"{verb} {', '.join(names)}" for verb, names in flows_of(self).items() if names]
        return f"Topology({'; '.join(parts)})"

    def _repr_mimebundle_(
        self,
        include: object = None,
        exclude: object = None,
    ) -> dict[str, str]:
        """For JupyterLab 4.1 or Notebook 7.1, which draw Mermaid; others show the text."""
        return {"text/vnd.mermaid": as_mermaid(self), "text/plain": repr(self)}


def flows_of(topology: Graph) -> dict[str, list[str]]:
    """The topics that the program reads, the stores that it keeps, and the topics and sinks that it
    writes."""
    parts: dict[str, list[str]] = {"reads": [], "keeps": [], "writes": []}
    whole = [node for node in topology.nodes if isinstance(node, WholeTableNode)]
    for node in topology.nodes:
        if isinstance(node, SourceNode) and node.kind != "repartition":
            parts["reads"] += node.topics
        elif isinstance(node, SinkNode) and node.kind != "repartition":
            named = isinstance(node.topic, str)
            parts["writes"].append(str(node.topic) if named else "a topic per record")
        elif isinstance(node, WriteNode):
            parts["writes"].append(f"sink {node.name}")
        elif isinstance(node, StatefulNode):
            parts["keeps"] += [spec.name for spec in node.stores]
    parts["reads"] += [node.topic for node in whole if isinstance(node, GlobalTableNode)]
    parts["keeps"] += [node.store.name for node in whole]
    return parts


def checked_topology(candidate: object, taker: str) -> Topology:
    """``candidate`` if it is a topology, else TopologyError: what the class ``taker`` takes."""
    if isinstance(candidate, Topology):
        return candidate
    builder = not isinstance(candidate, type) and callable(getattr(candidate, "build", None))
    what = (
        f"the {type(candidate).__name__} itself: call .build() on it"
        if builder
        else f"{candidate!r:.100}"
    )
    raise TopologyError(
        f"{taker} takes the topology that builder.build() gives, found {what}", where=user_line()
    )
