"""What makes two programs one application, and the difference in words."""

from dataclasses import replace

import pyarrow as pa

from everflow import serdes
from everflow.operators.table import TableSpec
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    EdgeType,
    ProjectNode,
    RepartitionTopic,
    SinkNode,
    SourceNode,
    StatefulNode,
)
from everflow.topology.program import Topology
from everflow.topology.store_layouts import differing_lines, fingerprint
from everflow.topology.subtopologies import cut
from unit.builders import store_spec

EDGE = EdgeType(pa.binary(), pa.binary())
BYTES = serdes.bytes_()
LONGS = serdes.long()
STORE = store_spec(
    "counts", "window", key=BYTES, value=LONGS, retention_ms=7_200_000, window_size_ms=3_600_000
)


def program(
    store: StoreSpec = STORE, topic: str = "flights", stateless: bool = False
) -> tuple[str, ...]:
    source = SourceNode("SRC", (), EDGE, (topic,), BYTES, BYTES, where="app.py:1")
    middle = (
        (ProjectNode(name="MAP", inputs=("SRC",), out=EDGE, where="app.py:2", label="MAPVALUES"),)
        if stateless
        else ()
    )
    sink = SinkNode(
        "OUT",
        ("MAP" if stateless else "SRC",),
        EDGE,
        "by-carrier-repartition",
        BYTES,
        BYTES,
        "repartition",
    )
    again = SourceNode("SRC2", (), EDGE, ("by-carrier-repartition",), BYTES, BYTES, "repartition")
    count = StatefulNode(
        "COUNT",
        ("SRC2",),
        EDGE,
        "AGGREGATE",
        TableSpec(store.name, BYTES, BYTES),
        (store,),
        where="app.py:3",
    )
    return fingerprint(
        cut(
            Topology(
                (source, *middle, sink, again, count), (RepartitionTopic("by-carrier-repartition"),)
            )
        )
    )


def test_the_lines_name_topics_stores_and_types() -> None:
    assert program() == (
        "sub-topology 0 reads topic flights",
        "sub-topology 0 writes repartition topic by-carrier-repartition",
        "sub-topology 1 has window store counts, retention 7200000 ms, window 3600000 ms, "
        "changelog counts-changelog "
        "(key binary, value bigint)",
        "sub-topology 1 reads repartition topic by-carrier-repartition (key binary, value binary)",
    )


def test_stateless_operators_may_change_in_a_rolling_upgrade() -> None:
    assert program(stateless=True) == program()


def test_the_difference_names_both_sides() -> None:
    other = program(replace(STORE, value_serde=BYTES, retention_ms=9), topic="trains")
    told = differing_lines(program(), other).splitlines()
    assert [line[:4] for line in told] == ["  + ", "  - ", "  + ", "  - "]
    assert "reads topic flights   (only here)" in told[0]
    assert "reads topic trains   (only there)" in told[1]
    assert "value bigint" in told[2]
    assert "retention 9 ms" in told[3]
    assert differing_lines(other, other) == ""


def test_what_counts_as_another_program() -> None:
    for store in (
        replace(STORE, name="sums"),
        replace(STORE, kind="key_value"),
        replace(STORE, retention_ms=1),
        replace(STORE, key_serde=LONGS),
        replace(STORE, value_serde=BYTES),
        replace(STORE, folds=("count",)),
        replace(STORE, logging=False),
    ):
        assert program(store) != program(), store


def test_a_long_difference_is_cut() -> None:
    told = differing_lines([f"line {n}" for n in range(40)], [])
    assert told.splitlines()[-1] == "  ... and 28 lines more"
