"""An instance under faults: on the wire, in the user's code, of a schema registry that is away."""

import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from everflow import (
    KafkaStreams,
    StreamsBuilder,
    StreamThreadExceptionResponse,
    TaskId,
    Topology,
    serdes,
)
from everflow.errors import EverflowError, RecordError, ShutdownRequestedError, TaskTimeoutError
from everflow.instance.client_state import ClientState
from everflow.testing import wait_until
from everflow.testing.kafka_proxy import KafkaProxy, WireFault
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    closed,
    counting,
    text,
    until_failed,
    until_running,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PARTITIONS = 2
WAIT_S = 60.0


def failing(source: str, output: str, flag: Path) -> Topology:
    """While the file is there, each record of key ``bad`` fails."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    there = str(flag)

    def check(key: str, value: str) -> str:
        if key == "bad" and Path(there).exists():
            raise ValueError("the service is away")
        return value

    stream.map_values(check, returns=serdes.string()).to(output)
    return builder.build()


def test_an_instance_counts_once_whatever_happens_on_the_wire(
    own_proxy: KafkaProxy, cluster: Cluster, tmp_path: Path
) -> None:
    source, output = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    behind = Cluster(own_proxy.bootstrap_servers, cluster.prefix)
    app = Application(behind, tmp_path, {"heartbeat_interval_ms": 500})
    sent = 0
    with app.running(counting(source, output)) as streams:

        def process() -> None:
            nonlocal sent
            batch = [text(f"k{n % 7}", "v", n, n % 7 % PARTITIONS) for n in range(sent, sent + 40)]
            cluster.write(source, batch)
            sent += 40
            app.until_processed(streams, source)

        process()
        faults: tuple[Callable[[], WireFault], ...] = (
            lambda: own_proxy.lose_answer("EndTxn"),
            lambda: own_proxy.drop("EndTxn"),
            lambda: own_proxy.lose_answer("Produce", topic=output),
            lambda: own_proxy.refuse("TxnOffsetCommit", KafkaError.ILLEGAL_GENERATION),
            lambda: own_proxy.refuse("TxnOffsetCommit", KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 3),
            lambda: own_proxy.refuse("TxnOffsetCommit", KafkaError.NOT_COORDINATOR, 2),
            lambda: own_proxy.refuse("EndTxn", KafkaError.NOT_COORDINATOR, 2),
            lambda: own_proxy.refuse("Produce", KafkaError.NOT_LEADER_FOR_PARTITION, 3),
            lambda: own_proxy.refuse("EndTxn", KafkaError.PRODUCER_FENCED),
            lambda: own_proxy.hold("EndTxn", breaks=True),
        )
        for fault in faults:
            set_ = fault()
            process()
            set_.wait()
            if set_.act == "hold":
                set_.release()
        own_proxy.cut()
        cluster.write(source, [text("k0", "v", sent, 0)])
        sent += 1
        own_proxy.mend()
        app.until_processed(streams, source)
    counts = cluster.longs(output)
    wanted = Counter(b"k%d" % (n % 7) for n in range(sent - 1))
    wanted[b"k0"] += 1
    assert counts == wanted
    behind.close()


def test_a_failing_task_rests_alone(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    source, output = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    flag = tmp_path / "service-is-away"
    flag.touch()
    streams = app.instance(failing(source, output, flag))
    met: list[EverflowError] = []

    def handler(error: EverflowError) -> StreamThreadExceptionResponse:
        met.append(error)
        return StreamThreadExceptionResponse.REPLACE_THREAD

    streams.set_uncaught_exception_handler(handler, most=50, within="1 hour")
    bad, good = TaskId(0, 0), TaskId(0, 1)
    try:
        streams.start()
        until_running(streams)
        cluster.write(source, [text("bad", "1", 1, 0), text("good", "1", 1, 1)])
        wait_until(lambda: met, WAIT_S, "the handler to be called")
        assert isinstance(met[0], RecordError)
        wait_until(lambda: len(cluster.read(output)) == 1, WAIT_S, "the other task's record")
        cluster.write(source, [text("good", "2", 2, 1)])
        wait_until(lambda: len(cluster.read(output)) == 2, WAIT_S, "its next one")
        trouble = streams.all_tasks()[bad].trouble
        assert trouble is not None
        assert "the service is away" in trouble.text
        assert streams.all_tasks()[good].trouble is None
        flag.unlink()
        app.until_processed(streams, source)
        assert streams.all_tasks()[bad].trouble is None
    finally:
        assert streams.close(WAIT_S)
    assert streams.error is None
    assert Counter(record.value for record in cluster.read(output)) == {b"1": 2, b"2": 1}


def test_a_handler_ends_the_application(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    source, output = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    flag = tmp_path / "service-is-away"
    flag.touch()
    topology = failing(source, output, flag)
    both: list[KafkaStreams] = []
    for number in range(2):
        streams = app.instance(topology, state_dir=str(tmp_path / str(number)))
        streams.set_uncaught_exception_handler(
            lambda _: StreamThreadExceptionResponse.SHUTDOWN_APPLICATION
        )
        both.append(streams)
    try:
        for streams in both:
            streams.start()
        wait_until(lambda: cluster.members(app.id) == 2, WAIT_S, "both to be members")
        for streams in both:
            until_running(streams)
        cluster.write(source, [text("bad", "1", 1, 0)])
        errors = [until_failed(streams) for streams in both]
    finally:
        for streams in both:
            streams.close(WAIT_S)
    assert {type(error) for error in errors} == {RecordError, ShutdownRequestedError}
    assert [streams.state for streams in both] == [ClientState.ERROR] * 2
    assert cluster.members(app.id) == 0


OUTAGE_S = 120.0
GOOD = TaskId(0, 0)
BAD = TaskId(1, 0)


@dataclass
class Registry:
    status: int = 200
    asked: int = 0
    url: str = ""


@pytest.fixture
def registry() -> Iterator[Registry]:
    standing = Registry()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            standing.asked += 1
            self.send_response(standing.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not to the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        standing.url = f"http://127.0.0.1:{server.server_port}/schemas/ids/1"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield standing
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class Registered:
    """Text whose schema a registry is asked for, as clients of one do it."""

    url: str
    type = pa.string()

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        with urllib.request.urlopen(self.url, timeout=10):
            return data.decode()


def program(cluster: Cluster, registry: Registry) -> Topology:
    """Two sub-topologies that have nothing in common but their thread."""
    builder = StreamsBuilder()
    given: dict[str, Any] = {"a": serdes.string(), "b": Registered(registry.url)}
    for name, serde in given.items():
        stream = builder.stream(f"{cluster.prefix}-in-{name}", key=serdes.string(), value=serde)
        stream.map_values(lambda value: value, returns="string").to(f"{cluster.prefix}-out-{name}")
    return builder.build()


@pytest.mark.slow
def test_an_outage_skips_no_record(app: Application, cluster: Cluster, registry: Registry) -> None:
    *_, dead = (cluster.topic(name, 1) for name in ("in-a", "in-b", "out-a", "out-b", "dead"))

    def written(name: str) -> list[bytes | None]:
        return [record.value for record in cluster.read(f"{cluster.prefix}-out-{name}")]

    with app.running(
        program(cluster, registry),
        task_timeout_ms=300_000,
        errors_dead_letter_queue_topic_name=dead,
        deserialization_exception_handler="continue",
    ) as streams:
        until_running(streams)
        registry.status = 503
        cluster.write(f"{cluster.prefix}-in-b", [text("k", "one"), text("k", "two")])
        wait_until(lambda: registry.asked, OUTAGE_S, "the registry to be asked")
        cluster.write(f"{cluster.prefix}-in-a", [text("k", "other")])
        wait_until(lambda: written("a") == [b"other"], OUTAGE_S, "the other task's record")
        wait_until(lambda: streams.all_tasks()[BAD].trouble, OUTAGE_S, "its trouble to be shown")
        assert "503" in str(streams.all_tasks()[BAD].trouble)
        assert streams.all_tasks()[GOOD].trouble is None
        assert written("b") == []
        registry.status = 200
        wait_until(lambda: written("b") == [b"one", b"two"], OUTAGE_S, "the records to be read")
        assert streams.error is None
    assert cluster.read(dead) == []


@pytest.mark.slow
def test_a_long_outage_names_a_cause(cluster: Cluster, registry: Registry, tmp_path: Path) -> None:
    *_, dead = (cluster.topic(name, 1) for name in ("in-a", "in-b", "out-a", "out-b", "dead"))
    app = Application(
        cluster,
        tmp_path,
        {
            "task_timeout_ms": 10_000,
            "errors_dead_letter_queue_topic_name": dead,
            "deserialization_exception_handler": "continue",
        },
    )
    registry.status = 503
    streams = app.instance(program(cluster, registry))
    try:
        streams.start()
        until_running(streams)
        cluster.write(f"{cluster.prefix}-in-b", [text("k", "one")])
        late = until_failed(streams, OUTAGE_S)
    finally:
        closed(streams)
    assert isinstance(late, TaskTimeoutError)
    assert late.task == BAD
    assert f"Task {BAD} made no progress for" in str(late)
    assert "503" in str(late)
    assert "gets no answer that would tell whether a record can be read" in str(late)
    assert cluster.read(f"{cluster.prefix}-out-b") == cluster.read(dead) == []
    assert cluster.committed(app.id, f"{cluster.prefix}-in-b").get(0, (0, ""))[0] == 0
