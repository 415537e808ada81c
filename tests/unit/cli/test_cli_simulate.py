"""`everflow simulate`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app

SMALL = ("simulate", "--members", "2", "--tasks", "6", "--state-records", "50000")


def test_it_shows_the_rounds_and_writes_json_and_history(tmp_path: Path) -> None:
    result, history = tmp_path / "out.json", tmp_path / "history.txt"
    done = CliRunner().invoke(app, [*SMALL, "--add", "1", "--json", str(result), "--history", str(history)])
    assert done.exit_code == 0, done.output
    for word in ("moves", "rebalances", "paused", "balanced", "warm-ups"):
        assert word in done.output
    assert any(line.startswith("2 instances") and len(line) > 80 for line in done.output.splitlines()), "prose is wrapped"
    written = json.loads(result.read_text())
    assert written["step"]["members"] == 2
    assert written["moves"] == 2
    assert len(written["rounds"]) == written["rebalances"]
    assert "i3" in history.read_text()


def test_the_rate_may_come_from_a_bench(tmp_path: Path) -> None:
    rows = tmp_path / "restore.json"
    fast = {"bench": "restore", "system": "everflow", "metric": "restore", "value": 123_456.0}
    rows.write_text(json.dumps([{**fast, "system": "kafka-streams", "value": 1.0}, fast]))
    done = CliRunner().invoke(app, [*SMALL, "--add", "1", "--measured", str(rows)])
    assert done.exit_code == 0, done.output
    assert "123,456 records/s" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--add, --remove or --crash"),
        (("--crash", "2"), "Nobody would be left"),
        (("--add", "1", "--restore-rate", "5", "--measured", "x"), "give one of them"),
        (("--add", "1", "--measured", "missing.json"), "run bench restore"),
        (("--add", "1", "--json", "no/such/folder/x.json"), "does not exist"),
    ],
)
def test_wrong_values_are_named(arguments: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(app, [*SMALL, *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert "EF-CONFIG" in done.output
