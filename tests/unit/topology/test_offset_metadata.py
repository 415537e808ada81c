"""What is kept beside committed offsets fits, or is refused while the program is built."""

from __future__ import annotations

import pytest

from everflow import Processor, Record, StreamsBuilder, punctuate, serdes
from everflow.errors import TopologyError
from everflow.operators.processors.processor import PunctuationType
from everflow.protocol.messages import format_metadata
from everflow.topology.graph import StatefulNode
from everflow.topology.idle_sources import MOST_BYTES, room_for_layouts
from everflow.topology.program import Topology
from everflow.worker.stateful import clock_name

MS = 1_764_000_000_000


def counted(operators: int, *, cut_at: int | None = None, name: str | None = None) -> Topology:
    """Operators with a state in one sub-topology, or in two."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.long())
    for number in range(operators):
        if number == cut_at:
            stream = stream.repartition(name="half")
        given = None if name is None else f"{name}{number}"
        stream.group_by_key().count(store=f"a-store-with-a-long-name-{number}", name=given)
    return builder.build()


class Ticking(Processor):
    def process(self, record: Record) -> None:
        """Nothing."""

    @punctuate("1 minute", PunctuationType.WALL_CLOCK_TIME)
    def each_minute(self, time: int) -> None:
        """Nothing."""


def written(program: Topology, layouts: str) -> str:
    """What stands beside an offset of a program that is one sub-topology."""
    nodes = [node.name for node in program.nodes if isinstance(node, StatefulNode)]
    return format_metadata("0123456789ab-999-999", dict.fromkeys(nodes, MS), layouts)


@pytest.mark.parametrize("operators", [1, 30, 80])
def test_times_and_layouts_fit_together(operators: int) -> None:
    program = counted(operators)
    room = room_for_layouts(program)
    assert MOST_BYTES - 200 < len(written(program, "x" * room)) <= MOST_BYTES


def test_too_many_operators_in_one_sub_topology_are_refused_with_the_cure() -> None:
    with pytest.raises(
        TopologyError, match=r"sub-topology 0.*100 operators.*4,096.*repartition\(name="
    ) as caught:
        counted(100)
    assert "test_offset_metadata.py" in str(caught.value)
    counted(100, cut_at=50)
    counted(100, name="n")


def test_the_clocks_of_processors_are_counted() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.long())
    stream.process(Ticking, name="ticking").to("out")
    clock = {clock_name("ticking", "each_minute"): MS, "ticking": MS}
    room = room_for_layouts(builder.build())
    assert len(format_metadata("0123456789ab-999-999", clock, "x" * room)) <= MOST_BYTES
