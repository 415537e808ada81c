"""What a notebook shows of a topology and an instance: complete, escaped, with nothing loaded."""

import json
import math
import re
from dataclasses import replace
from html import escape

import pyarrow as pa
import pytest

from everflow import KafkaStreams, serdes
from everflow.errors import EverflowError
from everflow.instance.client_state import ClientState
from everflow.instance.describe import TaskStatus
from everflow.instance.tasks.task import TaskRole, TaskState
from everflow.instance.thread.retry_policy import Trouble
from everflow.metrics import RECORDS_CONSUMED
from everflow.operators.table import TableSpec
from everflow.records import TaskId
from everflow.state.store import StoreSpec
from everflow.topology.describe import as_mermaid, drawing_json
from everflow.topology.graph import EdgeType, FunctionNode, SinkNode, SourceNode, StatefulNode
from everflow.topology.program import Topology

TEXTS = EdgeType(pa.string(), pa.string())
S = serdes.string()


def topology() -> Topology:
    """Two topics -> a filter with a name that HTML would take for its own -> two stores -> a
    topic."""
    store = StoreSpec(name="counts", kind="key_value", key_serde=S, value_serde=S)
    other = replace(store, name="times")
    return Topology(
        (
            SourceNode("source", (), TEXTS, ("orders", "returns"), S, S, where="a.py:1"),
            FunctionNode(
                "<b>large & small</b>", ("source",), TEXTS, "FILTER", "filter", len, where="a.py:2"
            ),
            StatefulNode(
                "count",
                ("<b>large & small</b>",),
                TEXTS,
                "AGGREGATE",
                TableSpec("large", store.key_serde, store.value_serde),
                (store, other),
                where="a.py:3",
            ),
            SinkNode("sink", ("count",), TEXTS, "totals", S, S, where="a.py:4"),
        )
    )


ODD = "#60;b#62;large #38; small#60;#47;b#62;"


def test_a_topology_draws_its_topics_nodes_and_stores() -> None:
    lines = [line.strip() for line in as_mermaid(topology()).splitlines()]
    assert lines == [
        "flowchart TD",
        'subgraph sub0["Sub-topology 0"]',
        'n0_0["source"]',
        f'n0_1["{ODD}"]',
        'n0_2["count"]',
        'n0_2 --- store0_0[("counts")]',
        'n0_2 --- store0_1[("times")]',
        'n0_3["sink"]',
        "end",
        'topic0>"orders"]',
        'topic1>"returns"]',
        'topic2>"totals"]',
        "n0_0 --> n0_1",
        "topic0 --> n0_0",
        "topic1 --> n0_0",
        "n0_1 --> n0_2",
        "n0_2 --> n0_3",
        "n0_3 --> topic2",
    ]


def test_the_page_finds_nodes_topics_and_sub_topologies() -> None:
    found = json.loads(drawing_json(topology()))
    assert found["text"] == as_mermaid(topology())
    tips = {
        box["node"]: box.pop("tip").splitlines() for box in found["boxes"].values() if "tip" in box
    }
    assert found["boxes"] == {
        "sub0": {"sub": "0"},
        "n0_0": {"node": "source"},
        "n0_1": {"node": "<b>large & small</b>"},
        "n0_2": {"node": "count"},
        "n0_3": {"node": "sink"},
        "topic0": {"topic": "orders"},
        "topic1": {"topic": "returns"},
        "topic2": {"topic": "totals"},
    }
    assert tips["count"] == ["count", "string -> string", "at a.py:3"]


def test_a_notebook_gets_a_drawing_or_a_text() -> None:
    assert topology()._repr_mimebundle_() == {
        "text/vnd.mermaid": as_mermaid(topology()),
        "text/plain": repr(topology()),
    }


def test_a_topology_is_short_at_a_prompt() -> None:
    assert repr(topology()) == "Topology(reads orders, returns; keeps counts, times; writes totals)"


class Shown(KafkaStreams):
    """An instance with tasks and figures of the test's choice."""

    tasks: dict[TaskId, TaskStatus] = {}
    records = 0

    def all_tasks(self) -> dict[TaskId, TaskStatus]:
        return self.tasks

    def metrics(self) -> dict[str, float | str]:
        return {**super().metrics(), RECORDS_CONSUMED: self.records}


def instance() -> Shown:
    streams = Shown(topology(), application_id="shop", bootstrap_servers="localhost:1")
    streams.tasks = {
        TaskId(0, 0): TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RUNNING, lag=1234),
        TaskId(0, 1): TaskStatus(
            role=TaskRole.WARMUP, state=TaskState.RUNNING, lag=50, rate=10.0, copied=50
        ),
        TaskId(0, 2): TaskStatus(
            role=TaskRole.ACTIVE,
            state=TaskState.RUNNING,
            lag=0,
            trouble=Trouble(0, 3, "ValueError: <oops>"),
        ),
    }
    return streams


def test_an_instance_shows_state_tasks_lag_and_graph() -> None:
    html = instance()._repr_html_()
    assert "<b>shop</b> &nbsp; CREATED" in html
    shown, described = re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)
    rows = [line.split(maxsplit=2) for line in shown.splitlines()]
    assert [row[:2] for row in rows] == [["0_2", "failing"], ["0_1", "warm-up"], ["0_0", "active"]]
    assert rows[0][2].startswith("ValueError: &lt;oops&gt; (3 times in ")
    assert rows[1][2].startswith("50 %, 10 records/s")
    assert rows[2][2] == "lag 1,234"
    assert described == escape(topology().describe())


def test_nothing_of_the_page_comes_from_the_network_or_runs() -> None:
    html = instance()._repr_html_()
    assert re.findall(r"<script|<link|<img|@import|url\(|on\w+=", html) == []
    assert "://" not in html


def test_what_stopped_an_instance_is_shown_with_its_code() -> None:
    streams = instance()
    streams._life.error = EverflowError("the broker is <gone>\nstart it")
    assert (
        "<b>[EF-ERROR]</b> <pre>the broker is &lt;gone&gt;\nstart it</pre>" in streams._repr_html_()
    )
    assert "error [EF-ERROR] the broker is <gone>)" in repr(streams)


def test_an_instance_is_one_line_at_a_prompt() -> None:
    streams = instance()
    streams.tasks.popitem()
    assert repr(streams) == (
        "KafkaStreams(shop: state CREATED, 1 active, 1 warm-up · warm-up 50 %, 10 records/s, "
        "lag 1,234)"
    )


def test_a_lag_is_unknown_until_every_active_task_knows_its_own() -> None:
    streams = instance()
    for status in (
        TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RUNNING, lag=None),
        TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=0),
        TaskStatus(role=TaskRole.ACTIVE, state=TaskState.CREATED, lag=None),
    ):
        streams.tasks[TaskId(0, 2)] = status
        assert math.isnan(float(streams.metrics()["records-lag"])), status
        assert repr(streams).endswith("lag unknown)")
        assert "lag unknown" in streams._repr_html_()
    streams.tasks[TaskId(0, 2)] = TaskStatus(
        role=TaskRole.ACTIVE, state=TaskState.SUSPENDED, lag=None
    )  # another's from now on
    assert streams.metrics()["records-lag"] == 1234
    streams.tasks = {}
    assert repr(streams) == "KafkaStreams(shop: state CREATED, lag unknown)", (
        "its tasks have not come yet"
    )
    streams.close()
    assert repr(streams) == "KafkaStreams(shop: state NOT_RUNNING)", "it has none any more"


def test_with_closes_and_raises_what_stopped_the_instance() -> None:
    with instance() as streams:
        assert streams.state is ClientState.CREATED
    assert streams.state is ClientState.NOT_RUNNING
    broken = instance()
    broken._life.error = EverflowError("it failed meanwhile")
    with pytest.raises(EverflowError, match="it failed meanwhile"), broken:
        pass
