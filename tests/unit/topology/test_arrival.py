"""The order in which a record reaches nodes: depth first, children as they were added."""

import pyarrow as pa
import pytest

from everflow.topology.arrival import hands_on_first, reaches_first
from everflow.topology.graph import EdgeType, MergeNode, Node

EDGE = EdgeType(pa.string(), pa.string())


def graph(**inputs: str) -> list[Node]:
    """Nodes in the order in which they were added; each with its inputs."""
    return [MergeNode(name, tuple(given.split()), EDGE) for name, given in inputs.items()]


@pytest.mark.parametrize(
    ("nodes", "first", "second", "reaches", "hands_on"),
    [
        # s -> a, s -> b
        (graph(s="", a="s", b="s"), "a", "b", True, True),
        (graph(s="", a="s", b="s"), "b", "a", False, False),
        # b is behind a: what is added to a now comes after it
        (graph(s="", a="s", b="a"), "a", "b", True, False),
        (graph(s="", a="s", b="a"), "b", "a", True, True),
        # all that is behind a comes before b, added earlier or not
        (graph(s="", a="s", b="s", c="a"), "c", "b", True, True),
        (graph(s="", a="s", b="s", c="a"), "b", "c", False, False),
        (graph(s="", a="s"), "a", "a", True, True),
        # nothing reaches both
        (graph(s="", t="", a="s", b="t"), "b", "a", True, True),
    ],
)
def test_a_record_goes_depth_first(
    nodes: list[Node], first: str, second: str, reaches: bool, hands_on: bool
) -> None:
    assert reaches_first(nodes, first, second) is reaches
    assert hands_on_first(nodes, first, second) is hands_on
