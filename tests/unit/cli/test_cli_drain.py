"""Which pods go for good, and what is asked of the API server."""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from starlette.applications import Starlette
from typer.testing import CliRunner

from everflow.cli import watch
from everflow.cli.app import app
from everflow.cli.watch import drained, goes_for_good, read_stateful_set, returns, write_rack
from everflow.errors import ConfigError, FatalError, RetriableError
from everflow.observe.http_server import HttpServer


def stateful_set(replicas: int, **metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "spec": {"replicas": replicas}}


@pytest.mark.parametrize(
    ("pod", "seen", "gone"),
    [
        ("orders-2", stateful_set(3), False),
        ("orders-2", stateful_set(2), True),
        ("orders-0", stateful_set(0), True),
        ("orders-0", stateful_set(3, deletionTimestamp="2026-01-01T00:00:00Z"), True),
        ("orders-0", None, True),
        ("my-orders-10", stateful_set(11), False),
        ("orders-5", {"metadata": {}, "spec": {"replicas": 2, "ordinals": {"start": 4}}}, False),
        ("orders-6", {"metadata": {}, "spec": {"replicas": 2, "ordinals": {"start": 4}}}, True),
        ("orders-1", {"metadata": {}, "spec": {}}, True),
    ],
)
def test_who_goes_for_good(pod: str, seen: dict[str, Any] | None, gone: bool) -> None:
    assert goes_for_good(pod, seen) is gone


@contextmanager
def api_server(folder: Path, code: int, body: Any) -> Iterator[tuple[dict[str, str], list[str]]]:
    """One that answers everything so; the environment of a pod, and what was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers['Authorization']}")
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None: ...

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "token").write_text("secret\n")
    (folder / "namespace").write_text("shop")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = str(server.server_address[1])
    yield ({"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}, asked)
    server.shutdown()
    server.server_close()


def test_the_api_server_is_asked_with_the_pods_token(tmp_path: Path) -> None:
    with api_server(tmp_path, 200, stateful_set(2)) as (environment, asked):
        assert read_stateful_set("orders", environment, tmp_path) == stateful_set(2)
    assert asked == ["/apis/apps/v1/namespaces/shop/statefulsets/orders Bearer secret"]


def test_a_set_that_is_gone_and_one_that_may_not_be_read(tmp_path: Path) -> None:
    with api_server(tmp_path, 404, {}) as (environment, _):
        assert read_stateful_set("orders", environment, tmp_path) is None
    with (
        api_server(tmp_path, 403, {}) as (environment, _),
        pytest.raises(RetriableError, match="HTTP 403"),
    ):
        read_stateful_set("orders", environment, tmp_path)


def test_a_nodes_zone_becomes_settings(tmp_path: Path) -> None:
    node = {"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}}
    folder = tmp_path / "settings"
    with api_server(tmp_path, 200, node) as (environment, asked):
        zone = "topology.kubernetes.io/zone"
        assert write_rack("n1", zone, folder, environment, tmp_path) == "b"
        with pytest.raises(FatalError, match=r"n1.*\bother\b"):
            write_rack("n1", "other", folder, environment, tmp_path)
    assert asked[0] == "/api/v1/nodes/n1 Bearer secret"
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "client.rack": "b",
        "client.tag.zone": "b",
    }


def test_where_nothing_can_be_found_out_the_pod_comes_back() -> None:
    assert returns("orders", {})
    nobody = {
        "HOSTNAME": "orders-0",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": "1",
    }
    assert returns("orders", nobody)


def test_nobody_to_drain_is_told() -> None:
    with pytest.raises(RetriableError, match=r"answered at 127.0.0.1:1 \(Connection refused\)"):
        drained("127.0.0.1:1", 1)
    with pytest.raises(ConfigError, match="names no port"):
        drained("127.0.0.1", 1)


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_proxies_are_not_asked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a pod that has one in its environment would stay silent at a scale-in, too."""
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    with api_server(tmp_path, 200, stateful_set(2)) as (environment, _):
        assert read_stateful_set("orders", environment, tmp_path) == stateful_set(2)


@contextmanager
def draining(*looks: dict[str, Any] | None) -> Iterator[tuple[str, list[str]]]:
    """An instance that says one after the other of itself, the last one again and again; None: it
    is too busy to answer. Behind an empty one nobody is there. Its address, and what was asked."""
    asked: list[str] = []
    left = list(looks)
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.answer({}, 202)

        def do_GET(self) -> None:
            look = left.pop(0) if len(left) > 1 else left[0]
            if look is None:
                over.wait()
            elif look:
                self.answer(look, 200)
            else:
                server.socket.close()

        def answer(self, content: Any, code: int) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}", asked
    over.set()
    server.shutdown()
    server.server_close()


def status(active: int, state: str = "RUNNING", error: str = "") -> dict[str, Any]:
    standby = {"role": "standby"}
    return {"state": state, "error": error, "tasks": [{"role": "active"}] * active + [standby]}


def test_a_drain_says_how_far_it_is_until_nobody_answers() -> None:
    said: list[str] = []
    looks = [status(2), status(1), status(0), status(0, "PENDING_SHUTDOWN"), {}]
    with draining(*looks) as (address, asked):
        assert drained(address, 60, said.append) == 0
    assert asked == ["/drain"]
    assert [line.rpartition(",")[0] for line in said] == [
        "migrating tasks: 2 active tasks left",
        "migrating tasks: 1 active task left",
        *["all tasks migrated: the instance leaves the group and ends"] * 2,
    ]


def test_tasks_that_were_not_handed_over_are_told() -> None:
    """Its time was over, or nobody could take them."""
    with draining(status(2), status(1, "PENDING_SHUTDOWN"), {}) as (address, _):
        done = CliRunner().invoke(app, ["drain", address])
    assert done.exit_code == 0, done.output
    assert "1 active task had not been migrated" in done.stdout


def test_a_busy_instance_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pod would be killed while it hands over, and the hook would say that all went well."""
    monkeypatch.setattr(watch, "ANSWER_S", 0.2)
    said: list[str] = []
    with draining(None, None, status(0, "NOT_RUNNING")) as (address, _):
        drained(address, 60, said.append)
    assert [line.rpartition(",")[0] for line in said] == ["waiting for an answer"] * 2


def test_a_drain_that_ends_with_an_error_is_no_drain() -> None:
    with (
        draining(status(1), status(1, "ERROR", "[EF-FATAL] a disk is full")) as (address, _),
        pytest.raises(FatalError, match=r"ended.*\[EF-FATAL\]"),
    ):
        drained(address, 60)


def test_one_that_does_not_end_in_time_is_told() -> None:
    with draining(status(1)) as (address, _), pytest.raises(RetriableError, match=r"runs.*1\.5"):
        drained(address, 1.5)


def test_what_does_not_drain_says_why() -> None:
    """A refusal is no instance that is not there."""
    server = HttpServer("127.0.0.1:0", Starlette())
    try:
        with pytest.raises(ConfigError, match=r"drain.*Found.*404"):
            drained(server.address, 1)
    finally:
        server.close()
