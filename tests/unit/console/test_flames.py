"""`everflow flame`: which of the user's lines a worker spends its time in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app
from everflow.console.flames import flame_at, flame_lines, folded, token_in
from everflow.errors import ConfigError, RetriableError
from everflow.observe.page.flame import flame
from unit.observe.page.test_flame import TOLD, Desk
from unit.observe.page.test_letter_routes import TOKEN
from unit.observe.page.test_page_routes import served

FOUND = flame(TOLD, "t9-0")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def address(desk: Desk) -> Iterator[str]:
    with served(tokens=[TOKEN], workers=desk) as address:
        yield address


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "token"
    made.write_text(f"{TOKEN}\n")
    return made


def test_lines_have_their_part_of_the_time() -> None:
    """Of the threads' time; the seconds are those that were looked, however many they are."""
    assert flame_lines({**FOUND, "ms": 5_000.0}) == [
        "t9-0: 10 looks in 5.0 s. Your lines, by their part of the time:",
        "80.0%  price (shop.py:7)",
    ]
    assert flame_lines({**FOUND, "lines": []})[1:] == ["none of your lines ran"]


def test_stacks_are_folded_for_viewers() -> None:
    assert folded(FOUND) == [
        "run;price (shop.py:7) 20",
        "run;price (shop.py:7);round 60",
        "run;wait 20",
    ]


def test_the_first_worker_is_asked_unless_one_is_named(address: str, desk: Desk) -> None:
    assert flame_at(address, TOKEN, "", 2.0) == FOUND
    assert flame_at(f"http://{address}/", TOKEN, "t10-0", 3.0)["worker"] == "t10-0"
    assert desk.asked == [("t9-0", 2.0), ("t10-0", 3.0)]


def test_what_is_refused_says_why(address: str, desk: Desk) -> None:
    with pytest.raises(ConfigError, match="is not one that the page knows"):
        flame_at(address, "not-the-one-that-is-asked-for", "", 1.0)
    with pytest.raises(ConfigError, match="no worker t7-7"):
        flame_at(address, TOKEN, "t7-7", 1.0)
    desk.fails = True
    with pytest.raises(RetriableError, match="it has ended"):
        flame_at(address, TOKEN, "t9-0", 1.0)
    with pytest.raises(RetriableError, match=r"http\.listen"):
        flame_at("127.0.0.1:1", TOKEN, "t9-0", 1.0)
    with served(workers=Desk()) as open_, pytest.raises(ConfigError, match=r"query\.token\.file"):
        flame_at(open_, TOKEN, "", 1.0)


def test_a_file_without_a_token_is_said(tmp_path: Path, file: Path) -> None:
    assert token_in(file) == TOKEN
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="no token"):
        token_in(tmp_path / "empty")
    with pytest.raises(ConfigError, match="cannot be read"):
        token_in(tmp_path / "none")


def test_the_command(address: str, file: Path) -> None:
    given = ["flame", address, "--token-file", str(file)]
    said = CliRunner().invoke(app, [*given, "--seconds", "1"])
    assert (said.exit_code, said.output.splitlines()) == (0, flame_lines(FOUND))
    said = CliRunner().invoke(app, [*given, "--folded"])
    assert said.output.splitlines() == folded(FOUND)
    said = CliRunner().invoke(app, [*given, "--output", "json"])
    assert json.loads(said.output) == FOUND
