"""What `everflow status`, `tasks` and `lag` show."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app
from everflow.cli.watching.group_lag import lag_table
from everflow.console.observed import status_at, task_rows, tasks_table
from everflow.errors import RetriableError
from everflow.observe.http_server import HttpServer, application
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
        f"2 instances in the group · 3 desired\n",
    )
    code, said = command("status", *servers)
    assert code == 1
    assert "not ready (active tasks that do not run yet: 1_1)" in said
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


def test_nobody_there_is_told_with_the_cure(servers: list[str]) -> None:
    with pytest.raises(RetriableError, match=r"no instance answered at .*http\.listen"):
        status_at("127.0.0.1:1")
    code, said = command("status", "127.0.0.1:1")
    assert code == 1
    assert "http.listen" in said


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
