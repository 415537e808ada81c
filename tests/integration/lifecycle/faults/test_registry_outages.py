"""A schema registry that is away: the records of its serde are waited for and never skipped,
whatever the handler says; the other task goes on; and what ends the instance names the task and the
cause."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everflow import StreamsBuilder, TaskId, Topology, serdes
from everflow.errors import TaskTimeoutError
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    closed,
    text,
    until_failed,
    until_running,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]
WAIT_S = 120.0
GOOD, BAD = TaskId(0, 0), TaskId(1, 0)


@dataclass
class Registry:
    status: int = 200
    asked: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


@pytest.fixture
def registry() -> Iterator[Registry]:
    standing = Registry()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with standing.lock:
                standing.asked += 1
            self.send_response(standing.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not to the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    standing.url = f"http://127.0.0.1:{server.server_port}/schemas/ids/1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield standing
    server.shutdown()
    thread.join()
    server.server_close()


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


@pytest.mark.parametrize("status", [503, 401])
def test_an_outage_is_waited_for_and_no_record_is_skipped(
    app: Application, cluster: Cluster, registry: Registry, status: int
) -> None:
    for name in ("in-a", "in-b", "out-a", "out-b"):
        cluster.topic(name, 1)
    dead = cluster.topic("dead", 1)

    def written(name: str) -> list[bytes | None]:
        return [record.value for record in cluster.read(f"{cluster.prefix}-out-{name}")]

    with app.running(
        program(cluster, registry),
        task_timeout_ms=300_000,
        errors_dead_letter_queue_topic_name=dead,
        deserialization_exception_handler="continue",
    ) as streams:
        until_running(streams)
        registry.status = status
        cluster.write(f"{cluster.prefix}-in-b", [text("k", "one"), text("k", "two")])
        wait_until(lambda: registry.asked, WAIT_S, "the registry to be asked")
        cluster.write(f"{cluster.prefix}-in-a", [text("k", "other")])
        wait_until(lambda: written("a") == [b"other"], WAIT_S, "the other task's record")
        wait_until(lambda: streams.all_tasks()[BAD].trouble, WAIT_S, "its trouble to be shown")
        assert str(status) in str(streams.all_tasks()[BAD].trouble)
        assert streams.all_tasks()[GOOD].trouble is None
        assert written("b") == []
        registry.status = 200
        wait_until(lambda: written("b") == [b"one", b"two"], WAIT_S, "the records to be read")
        assert streams.error is None
    assert cluster.read(dead) == []


def test_an_outage_that_lasts_names_the_task_and_the_cause(
    cluster: Cluster, registry: Registry, tmp_path: Path
) -> None:
    for name in ("in-a", "in-b", "out-a", "out-b"):
        cluster.topic(name, 1)
    dead = cluster.topic("dead", 1)
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
        late = until_failed(streams, WAIT_S)
    finally:
        closed(streams)
    assert isinstance(late, TaskTimeoutError)
    assert late.task == BAD
    assert f"Task {BAD} made no progress for" in str(late)
    assert "503" in str(late)
    assert "gets no answer that would tell whether a record can be read" in str(late)
    assert cluster.read(f"{cluster.prefix}-out-b") == cluster.read(dead) == []
    assert cluster.committed(app.id, f"{cluster.prefix}-in-b").get(0, (0, ""))[0] == 0
