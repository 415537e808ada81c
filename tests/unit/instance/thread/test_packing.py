"""What a program's variables hold when the instance starts decides, not what they held when the
topology was built."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from everflow import serdes
from everflow.dsl.graph_builder import GraphBuilder
from everflow.errors import TopologyError
from everflow.instance.thread.columns import packed
from everflow.topology.graph import EdgeType, FunctionNode, SourceNode
from everflow.topology.plan import PhysicalPlan, plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut

EDGE = EdgeType(pa.string(), pa.string())
CLIENT: Any = None


def ask(key: str, value: str) -> str:
    return f"{CLIENT}{value}"


def planned() -> PhysicalPlan:
    graph = GraphBuilder()
    graph.add(
        SourceNode("in", (), EDGE, ("in",), serdes.string(), serdes.string(), where="app.py:1")
    )
    graph.add(FunctionNode("ASK", ("in",), EDGE, "PEEK", "peek", ask, where="app.py:2"))
    topology: Topology = graph.build()
    return plan(topology, cut(topology).index_of, "app")


def test_a_variable_that_went_bad_is_told_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    program = planned()
    assert packed(program.ops, program).copy() is not None
    monkeypatch.setitem(globals(), "CLIENT", threading.Lock())
    with pytest.raises(
        TopologyError,
        match=r"peek: the function `ask` .* the variable `CLIENT`, of type lock, .*\n  at app.py:2",
    ):
        packed(program.ops, program)
