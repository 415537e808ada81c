"""What comes by several ways comes as Kafka Streams forwards it: depth first (note 031)."""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.records import EdgeBatch
from everflow.topology.graph import (
    EdgeType,
    FunctionNode,
    Graph,
    MergeNode,
    Node,
    SinkNode,
    SourceNode,
)
from everflow.topology.plan import NodeOp, PhysicalPlan, SinkOp, plan
from everflow.worker.failures import Failures
from everflow.worker.order import Order
from everflow.worker.task_step import run_function
from unit.builders import edge_batch

TEXT = serdes.string()
EDGE = EdgeType(pa.string(), pa.string())
RECORDS = ("r0", "r1", "r2")


def one(name: str) -> FunctionNode:
    return FunctionNode(name, (), EDGE, "MAP", "map_values", lambda _, v: f"{v}>{name}")


def several(name: str) -> FunctionNode:
    """Gives two results, or three for every other one, or none."""

    def fn(_: object, value: str) -> list[str]:
        return [f"{value}>{name}{number}" for number in range((len(value) + 1) % 4)]

    return FunctionNode(name, (), EDGE, "FLAT", "flat_map_values", fn)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A source, operators and merges of what there is already, and a sink behind all of them."""
    nodes: list[Node] = [SourceNode("n0", (), EDGE, ("in",), TEXT, TEXT)]
    for number in range(1, draw(st.integers(2, 9))):
        name, before = f"n{number}", st.sampled_from([node.name for node in nodes])
        merges = len(nodes) > 1 and draw(st.integers(0, 2)) == 0
        if merges:
            both = draw(st.lists(before, min_size=2, max_size=2, unique=True))
            nodes.append(MergeNode(name, tuple(both), EDGE))
        else:
            made = draw(st.sampled_from([one, several]))(name)
            nodes.append(replace(made, inputs=(draw(before),)))
    read = {name for node in nodes for name in node.inputs}
    for node in [node for node in nodes if node.name not in read]:
        nodes.append(SinkNode(f"to-{node.name}", (node.name,), EDGE, node.name, TEXT, TEXT))
    return Graph(tuple(nodes))


def forwarded(graph: Graph) -> dict[str, list[str]]:
    """What each sink gets if every node hands each result to its children at once."""
    found: dict[str, list[str]] = {n.name: [] for n in graph.nodes if isinstance(n, SinkNode)}

    def reach(node: Node, value: str) -> None:
        results: Iterable[str] = [value]
        if isinstance(node, SinkNode):
            found[node.name].append(value)
        elif isinstance(node, FunctionNode):
            made = node.fn(None, value)
            results = [made] if node.op == "map_values" else made
        for result in results:
            for child in (one for one in graph.nodes if node.name in one.inputs):
                reach(child, result)

    for record in RECORDS:
        reach(graph.nodes[0], record)
    return found


def records() -> EdgeBatch:
    return edge_batch(RECORDS, RECORDS)


def ran(found: PhysicalPlan) -> dict[str, list[str]]:
    """What the sinks get of a plan's operators."""
    slots = {found.sources[0].slot: records()}
    order = Order(slots, found.ways)
    results = {}
    for op in found.ops:
        if isinstance(op, SinkOp):
            results[op.name] = order.read(op).value.to_pylist()
        else:
            assert isinstance(op, NodeOp)
            assert isinstance(op.node, FunctionNode)
            order.keep(op, run_function(op.node, Failures(op, (), order.read(op))))
    return results


def planned(graph: Graph) -> PhysicalPlan:
    return plan(graph, {node.name: 0 for node in graph.nodes}, "app")


@given(graph=graphs())
def test_results_come_as_nodes_forward_them(graph: Graph) -> None:
    assert ran(planned(graph)) == forwarded(graph)


def test_where_one_result_goes_two_ways_nothing_is_kept_of_the_ways() -> None:
    """Branches of a stream that are merged again, behind whatever: the usual program."""
    fn = one("a").fn
    nodes = [
        SourceNode("in", (), EDGE, ("in",), TEXT, TEXT),
        FunctionNode("a", ("in",), EDGE, "MAP", "map_values", fn),
        FunctionNode("b", ("in",), EDGE, "MAP", "map_values", fn),
        MergeNode("both", ("b", "a"), EDGE),
        FunctionNode("many", ("both",), EDGE, "FLAT", "flat_map_values", several("m").fn),
        SinkNode("out", ("many",), EDGE, "out", TEXT, TEXT),
    ]
    assert planned(Graph(tuple(nodes))).ways == {}
    again = FunctionNode("again", ("many",), EDGE, "MAP", "map_values", fn)
    merged = MergeNode("all", ("again", "many"), EDGE)
    out = SinkNode("out", ("all",), EDGE, "out", TEXT, TEXT)
    assert set(planned(Graph((*nodes[:-1], again, merged, out))).ways) == {
        "a",
        "b",
        "many",
        "again",
        "out",
    }
