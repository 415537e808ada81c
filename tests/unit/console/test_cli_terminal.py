"""Banner, progress line and error texts."""

import math
from importlib.metadata import version

import pyarrow as pa

from everflow import metrics as names
from everflow import serdes
from everflow.cli.commands import error_text
from everflow.cli.run import RATE_S, Progress, StateWait
from everflow.config import StreamsConfig
from everflow.instance.client_state import ClientState
from everflow.instance.describe import banner, topology_lines
from everflow.operators.table import TableSpec
from everflow.state.store import StoreSpec
from everflow.topology.graph import EdgeType, SinkNode, SourceNode, StatefulNode
from everflow.topology.program import Topology

TEXT, NUMBER = serdes.string(), serdes.long()
EDGE = EdgeType(pa.string(), pa.int64())


def source(name: str, *topics: str, kind: str = "stream") -> SourceNode:
    return SourceNode(name, (), EDGE, topics, TEXT, NUMBER, kind)


def sink(name: str, topic: str, kind: str = "sink") -> SinkNode:
    return SinkNode(name, ("a",), EDGE, topic, TEXT, NUMBER, kind)


def counted(name: str, store: str) -> StatefulNode:
    return StatefulNode(
        name,
        ("a",),
        EDGE,
        "AGGREGATE",
        TableSpec(store, TEXT, NUMBER),
        (StoreSpec(name=store, kind="key_value", key_serde=TEXT, value_serde=NUMBER),),
    )


def test_topology_lines_say_what_is_read_kept_and_written() -> None:
    topology = Topology(
        (
            source("a", "flights", "weather"),
            counted("b", "by-carrier"),
            sink("c", "by-route-repartition", "repartition"),
            source("d", "by-route-repartition", kind="repartition"),
            counted("e", "by-route"),
            sink("f", "delays"),
            sink("g", "delays"),
        )
    )
    assert topology_lines(topology) == (
        "reads  flights, weather",
        "keeps  by-carrier, by-route; re-keys through 1 repartition topic",
        "writes delays",
    )


def test_banner_has_everything_and_the_topology_in_three_lines() -> None:
    config = StreamsConfig(
        application_id="delays", bootstrap_servers="host:9092", state_dir="/var/x"
    )
    topology = Topology((source("a", "flights"), sink("f", "delays")))
    assert banner(config, topology, "app.py").splitlines() == [
        f"application  delays   (everflow {version('everflow')})",
        "program      app.py",
        "brokers      host:9092",
        "guarantee    at_least_once, 2 stream threads",
        "topology     reads  flights",
        "             keeps  nothing (stateless)",
        "             writes delays",
        "computed     Arrow 2 nodes",
        "state        /var/x/delays",
        "log          /var/x/delays/logs/everflow.log",
    ]


def test_progress_is_of_this_instance_with_rates_of_the_last_seconds() -> None:
    progress = Progress()

    def line(at_s: float, consumed: float, lag: float = math.nan, tasks: str = "") -> str:
        figures: dict[str, float | str] = {names.RECORDS_CONSUMED: consumed, names.LAG: lag}
        return progress.line(at_s, figures, tasks)

    assert line(0.0, 10) == "0 records/s · lag unknown"
    assert line(5.0, 5_010, 12_345) == "1,000 records/s · lag 12,345"
    assert line(10.0, 5_010, 0, "2 active") == "500 records/s · lag 0 · 2 active"
    assert line(5.0 + RATE_S + 1, 5_010, 0).startswith("0 records/s")


def test_error_text_indents_what_follows_the_first_line() -> None:
    assert error_text(ValueError("bad\n  at x.py:3"), "EF-X") == "error: [EF-X] bad\n  at x.py:3"
    assert (
        error_text(ValueError("bad"), "EF-X", ["More is in the log"])
        == "error: [EF-X] bad\n  More is in the log"
    )


def test_a_state_that_lasts_is_told_with_its_seconds_and_with_what_was_said_last() -> None:
    waits = StateWait(ClientState.CREATED, 0.0)
    assert waits.text(ClientState.REBALANCING, 10.0, said="Joining the group") == ""
    assert (
        waits.text(ClientState.REBALANCING, 13.0, said="Joining the group")
        == "REBALANCING for 3 s: Joining the group"
    )
    assert waits.text(ClientState.REBALANCING, 14.0, said="") == "REBALANCING for 4 s"
    assert waits.text(ClientState.RUNNING, 15.0, said="Assigned 4 tasks") == ""
    assert waits.text(ClientState.RUNNING, 99.0, said="Assigned 4 tasks") == ""
    assert waits.text(ClientState.PENDING_SHUTDOWN, 100.0, said="stopping") == ""
    ending = "waiting for the batches in flight"
    assert (
        waits.text(ClientState.PENDING_SHUTDOWN, 107.2, said=ending)
        == f"PENDING_SHUTDOWN for 7 s: {ending}"
    )
