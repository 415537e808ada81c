"""What `everflow status`, `tasks` and `lag` show."""

import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from everflow.cli.app import app
from everflow.cli.watch import (
    answered,
    ask,
    lag_rows,
    lag_table,
    status_at,
    task_rows,
    tasks_table,
)
from everflow.errors import ApplicationMigratedError, ConfigError, RetriableError
from everflow.migration.migrator import text_of_gone
from everflow.observe.http_server import HttpServer, application
from everflow.observe.observation import Observation, status_of
from everflow.observe.requests import answer
from everflow.protocol.messages import COPIED, Mark, format_metadata
from everflow.records import CommittedOffset, TopicPartition
from unit.builders import streams_config
from unit.observe.observations import FULL, WHOLE, changed


@pytest.fixture
def servers() -> Iterator[list[str]]:
    """Two instances: one that is well, one that restores."""
    made = [HttpServer("127.0.0.1:0", application(lambda s=s: s, "")) for s in (WHOLE, FULL)]  # type: ignore[misc]
    yield [server.address for server in made]
    for server in made:
        server.close()


def command(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(app, arguments)
    return ran.exit_code, ran.output


def test_status_says_who_is_ready_and_fails_where_one_is_not(servers: list[str]) -> None:
    assert command("status", servers[0]) == (
        0,
        f"{servers[0]} · orders · RUNNING · ready · lag 3 · 1 active, 1 standby · busy 25% · "
        f"2 instances in the group · 3 desired · everflow 1.0 · topology 0123456789abcdef · "
        f"app.py:3\n",
    )
    code, said = command("status", *servers)
    assert code == 1
    assert re.search(r"not ready \(active .*: 1_1\)", said)
    code, said = command("status", *servers, "--output", "json")
    assert code == 1
    assert [one["address"] for one in json.loads(said)] == servers


def test_tasks_in_trouble_come_first(servers: list[str]) -> None:
    rows = task_rows([status_at(servers[1])])
    assert [row["task"] for row in rows] == ["1_0", "1_1", "1_2", "1_3", "2_0"]
    lines = tasks_table(rows)
    assert lines[0].split() == [
        *("task", "role", "state", "lag", "rate", "left", "disk", "instance", "trouble")
    ]
    assert "ValueError: bad" in lines[1]
    code, said = command("tasks", servers[1], "--output", "json")
    assert code == 0
    assert [row["task"] for row in json.loads(said)] == [row["task"] for row in rows]


def test_the_rate_of_a_slow_task_is_no_zero() -> None:
    row = {**status_of(WHOLE)["tasks"][0], "address": "a:1"}
    shown = [tasks_table([{**row, "rate": rate}])[1] for rate in (0.4, 1_234.5, 0.0)]
    assert [" 0.4/s " in shown[0], " 1,234/s " in shown[1], "/s" in shown[2]] == [True, True, False]


def test_nobody_there_is_told_with_the_cure(servers: list[str]) -> None:
    with pytest.raises(RetriableError, match=r"answered.*http\.listen"):
        status_at("127.0.0.1:1")
    code, said = command("status", "127.0.0.1:1")
    assert code == 1
    assert "http.listen" in said
    assert "(Connection refused)" in said


def test_one_that_stands_still_is_told_from_an_absent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everflow.cli.watch.ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        port = stopped.getsockname()[1]
        with pytest.raises(RetriableError, match="stands"):
            status_at(f"127.0.0.1:{port}")


@pytest.mark.parametrize("order", [1, -1])
def test_who_answers_is_shown_beside_one_that_does_not(servers: list[str], order: int) -> None:
    asked = [servers[0], "127.0.0.1:1"][::order]
    code, said = command("status", *asked)
    assert code == 1
    lines = said.splitlines()[::order]
    assert lines[0].startswith(f"{servers[0]} · orders · RUNNING")
    assert lines[1].startswith("127.0.0.1:1 · no instance answered ")
    code, said = command("status", *asked, "--output", "json")
    found = json.loads(said)
    assert code == 1
    assert [one["address"] for one in found] == asked
    silent = found[::order][1]
    assert silent["code"] == "EF-RETRIABLE"
    assert "http.listen" in silent["error"]


def test_tasks_of_who_answers_are_listed_beside_one_that_does_not(servers: list[str]) -> None:
    code, said = command("tasks", "127.0.0.1:1", servers[0])
    assert code == 1
    lines = said.splitlines()
    assert [line.split()[0] for line in lines] == ["task", "1_0", "1_2", "127.0.0.1:1"]
    assert "no instance answered" in lines[-1]
    code, said = command("tasks", "127.0.0.1:1", servers[0], "--output", "json")
    assert code == 1
    rows = json.loads(said)
    assert [row.get("task") for row in rows] == ["1_0", "1_2", None]
    assert rows[-1]["address"] == "127.0.0.1:1"
    assert "no instance answered" in rows[-1]["error"]


def test_one_that_hangs_does_not_hold_up_the_question_to_the_next() -> None:
    both = threading.Barrier(2, timeout=10)

    def look() -> Observation:
        both.wait()
        return changed()

    servers = [HttpServer("127.0.0.1:0", application(look, "")) for _ in range(2)]
    try:
        assert all(map(answered, ask([server.address for server in servers])))
    finally:
        for server in servers:
            server.close()


def test_brokers_that_are_away_are_told() -> None:
    away = changed(silent_s=34.2, members=1)
    server = HttpServer("127.0.0.1:0", application(lambda: away, ""))
    try:
        code, said = command("status", server.address)
        assert code == 1
        assert re.search(" · ready · .*brokers .* 34 s · lag 3 · ", said)
        assert " · 1 instance in" in said
        assert command("status", server.address, "--output", "json")[0] == 1
        code, said = command("tasks", server.address)
        assert code == 0
        assert re.match(f"{server.address} · .*brokers .* 34 s: ", said.splitlines()[-1])
    finally:
        server.close()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("localhost:abc", "no number"),
        ("localhost:70000", "no number"),
        ("127.0.0.1", "no port"),
        ("[::1", "its host"),
        (":9464", "no host"),
    ],
)
def test_what_is_no_address_is_told(servers: list[str], address: str, why: str) -> None:
    for name in ("status", "tasks"):
        code, said = command(name, servers[0], address)
        assert code == 2
        assert f"[EF-CONFIG] '{address}' is no address" in said
        assert why in said
        assert "HOST:PORT" in said


def test_a_port_that_is_not_http_listen_is_told_from_nobody_there() -> None:
    async def asks(_: Request) -> Response:
        return PlainTextResponse("a token", 401)

    server = HttpServer("127.0.0.1:0", Starlette(routes=[Route("/status", asks)]))
    other = HttpServer("127.0.0.1:0", Starlette())
    try:
        with pytest.raises(ConfigError, match=r"token.*401.*query\.listen\?"):
            status_at(server.address)
        with pytest.raises(RetriableError, match=r"404.*http\.listen\?"):
            status_at(other.address)
    finally:
        server.close()
        other.close()


def test_an_instance_without_tasks_is_shown() -> None:
    server = HttpServer("127.0.0.1:0", application(lambda: changed(tasks=[], threads=[]), ""))
    try:
        assert "no tasks" in command("status", server.address)[1]
    finally:
        server.close()


def test_lag_is_listed_with_its_sum() -> None:
    rows = [
        {"topic": "in", "partition": 1, "committed": 5, "end": 1_005, "lag": 1_000},
        {"topic": "in", "partition": 0, "committed": 5, "end": 5, "lag": 0},
    ]
    assert lag_table(rows) == [
        "topic  partition  committed  end    lag",
        "in     1          5          1,005  1,000",
        "in     0          5          5      0",
        "together 1,000 records behind",
    ]


def test_a_refusal_is_said_in_its_words() -> None:
    async def refused(scope: Any, _: Any, send: Any) -> None:
        await answer(send, 421, "EF-HOST", "not by this name")

    server = HttpServer("127.0.0.1:0", refused)  # type: ignore[arg-type]
    try:
        code, said = command("status", server.address)
        assert code == 2
        assert "not by this name" in said
        assert "{" not in said
    finally:
        server.close()


class Offsets:
    """The committed offsets of a group; each log has 100 records."""

    def __init__(self, found: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.found = found

    def committed(self, *_: object, **__: object) -> Mapping[TopicPartition, CommittedOffset]:
        return self.found

    def list_offsets(
        self, logs: Sequence[TopicPartition], *_: object
    ) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(logs, 100)


def lag_of(found: Mapping[TopicPartition, CommittedOffset]) -> list[dict[str, Any]]:
    admin: Any = Offsets(found)
    return lag_rows(streams_config(application_id="shop"), admin, "shop")


def test_the_lag_of_an_application_that_was_migrated_says_where_it_went() -> None:
    gone = CommittedOffset(7, text_of_gone("shop-2", CommittedOffset(7, "")))
    with pytest.raises(ApplicationMigratedError, match="everflow lag shop-2") as raised:
        lag_of({TopicPartition("in", 0): gone})
    assert raised.value.to == "shop-2"


def test_positions_of_a_migration_in_the_old_changelogs_are_no_lag() -> None:
    copied = format_metadata(Mark(COPIED, "shop-1").batch_id, {})
    rows = lag_of(
        {
            TopicPartition("in", 0): CommittedOffset(90, ""),
            TopicPartition("shop-1-c-changelog", 0): CommittedOffset(3, copied),
        }
    )
    assert [(row["topic"], row["lag"]) for row in rows] == [("in", 10)]
