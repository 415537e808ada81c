"""Partition of a key, and which topics' keys a store holds."""

import pyarrow as pa
import pytest

from everflow import serdes
from everflow.instance.query.queries import default_partitioner
from everflow.operators.table import TableSpec
from everflow.state.store import StoreSpec
from everflow.topology.graph import EdgeType, MergeNode, SinkNode, SourceNode, StatefulNode
from everflow.topology.partitioners import topics_into_stores
from everflow.topology.program import Topology


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # Kafka's own test vectors of Utils.murmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_partitioned_as_java_does(key: bytes, hashed: int) -> None:
    for partitions in (1, 7, 1000):
        assert default_partitioner(key, partitions) == (hashed & 0x7FFFFFFF) % partitions


def test_a_store_holds_the_keys_of_the_topics_that_reach_it() -> None:
    """Not those of its whole sub-topology, which may have a wider topic that its keys never
    meet."""
    edge, data = EdgeType(pa.binary(), pa.binary()), serdes.bytes_()
    topology = Topology(
        (
            SourceNode("S1", (), edge, ("narrow", "narrow-too"), data, data),
            SourceNode("S2", (), edge, ("wide",), data, data),
            StatefulNode(
                "counts",
                ("S1",),
                edge,
                "AGGREGATE",
                TableSpec("counts", data, data),
                (StoreSpec(name="counts", kind="key_value", key_serde=data, value_serde=data),),
            ),
            MergeNode("M", ("counts", "S2"), edge),
            SinkNode("R", ("M",), edge, "by-value-repartition", data, data, "repartition"),
            SourceNode("S3", (), edge, ("by-value-repartition",), data, data, "repartition"),
            StatefulNode(
                "again",
                ("S3",),
                edge,
                "AGGREGATE",
                TableSpec("counts", data, data),
                (StoreSpec(name="by-value", kind="key_value", key_serde=data, value_serde=data),),
            ),
        )
    )
    assert topics_into_stores(topology, "app") == {
        "counts": {"narrow", "narrow-too"},
        "by-value": {"app-by-value-repartition"},
    }
