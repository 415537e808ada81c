"""The routes, and an address that cannot be had."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from everflow.errors import ConfigError
from everflow.observe.http_server import HttpServer, application
from everflow.observe.observation import Observation
from unit.observe.observations import FULL, WHOLE, changed


class Shown:
    """What the server looks at; a test changes it."""

    seen: Observation = WHOLE

    def look(self) -> Observation:
        return self.seen


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def server(shown: Shown) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", application(shown.look, "Topologies:\n"))
    yield server
    server.close()


def get(server: HttpServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_routes(server: HttpServer, shown: Shown) -> None:
    assert get(server, "/live")[0] == get(server, "/ready")[0] == 200
    assert "everflow_ready" in get(server, "/metrics")[1]
    assert get(server, "/topology") == (200, "Topologies:\n")
    assert "/status" in get(server, "/")[1]
    assert get(server, "/nothing")[0] == 404
    shown.seen = FULL
    assert get(server, "/ready") == (
        503,
        '{"ok":false,"why":"active tasks that do not run yet: 1_1"}',
    )


def test_the_status_is_json_with_null_for_what_is_not_known(
    server: HttpServer, shown: Shown
) -> None:
    shown.seen = changed(FULL, counters={}, members=None)
    status = json.loads(get(server, "/status")[1])
    assert status["lag"] is None
    assert status["members"] is None
    assert [task["task"] for task in status["tasks"]] == ["1_0", "1_1", "1_2", "1_3", "2_0"]
    assert status["tasks"][0]["stores"] == [{"name": "counts", "bytes": 4096}]


def test_a_look_that_fails_is_an_error_of_that_request(server: HttpServer, shown: Shown) -> None:
    shown.look = lambda: 1 / 0  # type: ignore[method-assign,return-value,assignment]
    app = HttpServer("127.0.0.1:0", application(lambda: shown.look(), ""))
    try:
        assert get(app, "/metrics")[0] == 500
        assert get(app, "/topology")[0] == 200
    finally:
        app.close()


def test_an_address_that_is_taken_is_named_with_the_cure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"http\.listen = .* cannot be listened at .* port 0"):
            HttpServer(address, application(lambda: WHOLE, ""))


def test_after_its_end_nobody_answers(shown: Shown) -> None:
    server = HttpServer("127.0.0.1:0", application(shown.look, ""))
    server.close()
    with pytest.raises(urllib.error.URLError):
        get(server, "/live")
