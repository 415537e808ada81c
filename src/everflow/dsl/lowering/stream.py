"""`Stream`: what an operator is lowered behind."""

from __future__ import annotations

from dataclasses import dataclass

from everflow.dsl.expressions import Edge, fitting_serde
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.topics import Partitioner


@dataclass(frozen=True, eq=False)
class Stream:
    """The records of a stream, or the updates of a table, behind a node of the graph that is built.

    ``key_changed``: an operator before may have changed the key, so that a grouping has to
    repartition first.
    """

    graph: GraphBuilder
    node: str
    edge: Edge
    key_changed: bool = False

    def behind(self, node: str, edge: Edge, changes_key: bool = False) -> Stream:
        """The stream behind ``node``, which reads this one."""
        return Stream(self.graph, node, edge, self.key_changed or changes_key)

    def with_serdes(
        self, operator: str, key: object | None, value: object | None, where: str | None
    ) -> Stream:
        """The same, written with other serdes. TopologyError for those of other types."""
        key_serde = fitting_serde(key, self.edge.type.key, "key", operator, where)
        value_serde = fitting_serde(value, self.edge.type.value, "value", operator, where)
        return self.behind(self.node, self.edge.with_serdes(key_serde, value_serde))

    def repartitioned(
        self,
        name: str,
        where: str | None,
        operator: str,
        chosen: tuple[int | None, Partitioner | None] = (None, None),
    ) -> Stream:
        """This stream read back from the new repartition topic ``name`` (already checked)."""
        serdes = self.edge.serdes(operator, where)
        self.graph.burn(3)  # sink, null-key filter, source
        node = self.graph.repartition(name, self.node, self.edge.type, serdes, where, chosen)
        return Stream(self.graph, node, self.edge)
