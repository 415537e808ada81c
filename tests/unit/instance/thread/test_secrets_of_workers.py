"""What is packed for workers: variables as at the start, and no secret, which Spark would show."""

import base64
import inspect
import threading
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from everflow import serdes
from everflow.config import StreamsConfig
from everflow.dsl.graph_builder import GraphBuilder
from everflow.errors import TopologyError
from everflow.instance.assembly import ClusterPorts, Dependencies, job_opener
from everflow.instance.thread.batching import PlannedBatch
from everflow.instance.thread.columns import packed
from everflow.protocol.messages import BatchRequest, as_line
from everflow.topology.graph import EdgeType, FunctionNode, SourceNode
from everflow.topology.plan import PhysicalPlan, plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut
from everflow.worker.serve import BatchUnwantedError, clients_of
from unit.instance.thread.stream_thread_world import World

SECRET = "hunter2-of-this-test"
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


@pytest.fixture
def dependencies() -> Dependencies:
    config = StreamsConfig(
        {
            "application.id": "app",
            "bootstrap.servers": "b:1",
            "processing.guarantee": "exactly_once_v2",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": SECRET,
        }
    )
    nothing = cast(Any, None)
    return Dependencies(
        config=config,
        clock=nothing,
        admin=nothing,
        blueprint=cast(
            Any, SimpleNamespace(plan=planned(), layouts="", partitions={}, inputs={0: ()})
        ),
        directory=cast(Any, SimpleNamespace(process_id="p", transactional_ids=["app-p-0"])),
        changelogs=nothing,
    )


def ports_of(dependencies: Dependencies) -> ClusterPorts:
    ports = ClusterPorts.__new__(ClusterPorts)
    ports._dependencies, ports._gate_path = dependencies, "/nobody/gate.sock"
    ports._config, ports._directory = dependencies.config, dependencies.directory
    return ports


def request_of(dependencies: Dependencies) -> BatchRequest:
    world = World()
    world.thread.settings = ports_of(dependencies).thread_settings(0)
    return world.thread._request("i.0.0", PlannedBatch(ranges={}, log_ends={}))


def test_what_is_packed_for_workers_has_no_secret(dependencies: Dependencies) -> None:
    assert SECRET in dependencies.main_reader.values()
    job: Any = job_opener(None, dependencies)(0)
    work = inspect.getclosurevars(job._serve).nonlocals["work"]
    assert SECRET.encode() not in work.data
    assert SECRET not in repr(work.copy())


def test_a_request_has_no_secret_and_a_transaction_s_timeout(dependencies: Dependencies) -> None:
    request = request_of(dependencies)
    assert SECRET not in repr(request)
    sent = base64.b64decode(as_line(request))
    assert SECRET.encode() not in sent
    assert base64.b64encode(SECRET.encode())[:20] not in sent
    assert request.transaction_timeout_ms == dependencies.config.transaction_timeout_ms


def test_a_worker_without_driver_asks_in_vain_writes_nothing(dependencies: Dependencies) -> None:
    with pytest.raises(BatchUnwantedError, match="driver gone"):
        clients_of(request_of(dependencies).gate)
