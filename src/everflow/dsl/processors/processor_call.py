"""A call of the processor API, lowered to a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from everflow.dsl.expressions import Edge, predicate
from everflow.dsl.graph_builder import check_name
from everflow.dsl.joins import Side
from everflow.dsl.processors.connected_stores import connected
from everflow.dsl.processors.suppliers import PROCESSORS, TRANSFORMERS, Form, supplier
from everflow.errors import TopologyError
from everflow.operators.processors.forwarding import tagged
from everflow.operators.processors.process import ProcessSpec
from everflow.operators.processors.processor import punctuations
from everflow.spark.expressions import analyse
from everflow.topology.graph import CHILD, EdgeType, Part, ProjectNode, StatefulNode

if TYPE_CHECKING:
    from everflow.dsl.kstream import KStream
    from everflow.dsl.processing import Processing


@dataclass(frozen=True)
class ProcessorCall:
    """A call of the processor API while it is lowered."""

    operator: str
    given: object
    stores: Iterable[object]
    name: str | None
    where: str | None

    @property
    def named(self) -> Callable[..., Any]:
        """What a message calls by its name."""
        return self.given if callable(self.given) else type(self.given)

    def made(
        self, stream: Processing, edge: Edge, children: tuple[str, ...], *, keeps_key: bool
    ) -> Any:
        """The streams behind the processor."""
        for child in children:
            check_name("child", child, self.where)
        if len(set(children)) < len(children):
            raise TopologyError(
                f"{self.operator}: two children have one name: {', '.join(children)}",
                where=self.where,
            )
        prefix = "KSTREAM-PROCESSVALUES-" if keeps_key else "KSTREAM-PROCESSOR-"
        name = stream.graph.node_name(self.name, prefix, self.where)
        node = self.node(stream, name, edge, PROCESSORS, children, keeps_key=keeps_key)
        if not children:
            return stream.derived(node.name, edge, changes_key=not keeps_key)
        return {
            child: self._child(stream, node.name, Edge(node.out, None, None), edge, number, child)
            for number, child in enumerate(children)
        }

    def node(
        self,
        given: Side | Processing,
        name: str,
        edge: Edge,
        form: Form,
        children: tuple[str, ...] = (),
        *,
        keeps_key: bool,
        label: str = "PROCESSOR",
    ) -> StatefulNode:
        """Adds the processor's node, behind a stream or a table; ``edge``: of its results."""
        made_by, kind = supplier(form, self.given, self.operator, self.where)
        kept = connected(given.graph, given.node, self.stores, self.operator, self.where)
        spec = ProcessSpec(
            supplier=made_by,
            specs=tuple(kept.specs),
            tables=tuple(kept.tables),
            looks_up=tuple(kept.global_tables),
            out=edge.type,
            children=children,
            keeps_key=keeps_key,
            punctuations=punctuations(kind),
            key_serde=given.edge.key_serde,
            transforms=form is TRANSFORMERS,
        )
        node = StatefulNode(
            name,
            (given.node, *kept.nodes),
            EdgeType(edge.type.key, tagged(edge.type.value, children)),
            self.where,
            label,
            spec,
            spec.specs,
            reads=kept.reads,
            parts=(Part(name, (given.node,), kept.names),) if kept.nodes else (),
        )
        given.graph.add(node)
        return node

    def _child(
        self, stream: Processing, node: str, out: Edge, edge: Edge, number: int, child: str
    ) -> KStream:
        chosen = F.coalesce(F.col("value.child") == F.lit(number), F.lit(True))
        made = stream.graph.add(
            ProjectNode(
                name=f"{node}-{child}",
                inputs=(node,),
                out=edge.type,
                where=self.where,
                label=CHILD,
                predicate=predicate(chosen, out, self.where),
                value=analyse(F.col("value.value"), out.type, self.where),
            )
        )
        return stream.derived(made, edge, changes_key=True)
