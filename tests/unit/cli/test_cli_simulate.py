"""`everflow simulate`: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app

SMALL = ("simulate", "--members", "2", "--tasks", "6", "--state-records", "50000")


def test_it_shows_the_rounds_and_writes_json_and_history(tmp_path: Path) -> None:
    result, history = tmp_path / "out.json", tmp_path / "history.txt"
    done = CliRunner().invoke(
        app, [*SMALL, "--add", "1", "--json", str(result), "--history", str(history)]
    )
    assert done.exit_code == 0, done.output
    for word in ("moves", "rebalances", "paused", "balanced", "warm-ups"):
        assert word in done.output
    assert any(
        line.startswith("2 instances") and len(line) > 80 for line in done.output.splitlines()
    ), "prose is wrapped"
    written = json.loads(result.read_text())
    assert written["step"]["members"] == 2
    assert written["moves"] == 2
    assert len(written["rounds"]) == written["rebalances"]
    assert "i3" in history.read_text()


def measured(file: Path, **rates: float) -> Path:
    """What `./run bench restore --json` writes."""
    rows = [
        {"bench": "restore", "system": "everflow", "metric": metric, "value": value}
        for metric, value in rates.items()
    ]
    file.write_text(
        json.dumps([*({**row, "system": "kafka-streams", "value": 1.0} for row in rows), *rows])
    )
    return file


def test_both_rates_may_come_from_a_bench(tmp_path: Path) -> None:
    file = measured(tmp_path / "restore.json", restore=3_123_456.0, follow=654_321.0)
    done = CliRunner().invoke(app, [*SMALL, "--add", "1", "--measured", str(file)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "Restoring 3,123,456 records/s" in said
    assert "warming up 654,321 records/s" in said


def test_warm_ups_take_the_time_of_their_own_rate(tmp_path: Path) -> None:
    """A new instance's tasks are warmed up: how fast active tasks are restored has nothing to do
    with it."""
    balanced = {}
    for name, restore, follow in (
        ("even", 20_000, 20_000),
        ("restore", 2_000_000, 20_000),
        ("follow", 20_000, 2_000_000),
    ):
        result = tmp_path / f"{name}.json"
        rates = ["--restore-rate", str(restore), "--follow-rate", str(follow)]
        done = CliRunner().invoke(
            app, [*SMALL, "--state-records", "400000", "--add", "1", *rates, "--json", str(result)]
        )
        assert done.exit_code == 0, done.output
        balanced[name] = json.loads(result.read_text())["balanced_after_s"]
    assert balanced["follow"] < balanced["even"] / 2, balanced
    assert balanced["restore"] > balanced["even"] / 2, balanced


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--add, --remove or --crash"),
        (("--crash", "2"), "Nobody would be left"),
        (("--add", "1", "--restore-rate", "5", "--measured", "x"), "give one of them"),
        (("--add", "1", "--follow-rate", "5", "--measured", "x"), "give one of them"),
        (("--add", "1", "--follow-rate", "0"), "--follow-rate"),
        (("--add", "1", "--measured", "missing.json"), "run bench restore"),
        (("--add", "1", "--json", "no/such/folder/x.json"), "does not exist"),
        (("--add", "1", "--json", "/"), "that is a folder"),
        (("--add", "1", "--history", "/"), "that is a folder"),
        (("--add", "1", "--restore-rate", "nan"), "--restore-rate nan"),
        (("--add", "1", "--restore-rate", "inf"), "--restore-rate inf"),
        (("--add", "1", "--follow-rate", "nan"), "--follow-rate nan"),
        (("--add", "1", "--input-rate", "nan"), "--input-rate nan: must be from 0 to 1,000,000"),
        (("--add", "1", "--input-rate", "-5"), "--input-rate -5"),
        (("--add", "1", "--session-timeout", "nan"), "--session-timeout nan"),
        (("--add", "1", "--session-timeout", "0.5"), "--session-timeout 0.5: must be from 1 to"),
        (("--add", "1", "--state-records", "9" * 23), "--state-records 99,999"),
        (("--add", "1", "--state-records", "1" + "0" * 13), "one task alone takes 289.4 days"),
    ],
)
def test_wrong_values_are_named(arguments: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(app, [*SMALL, *arguments])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
    assert "EF-CONFIG" in done.output


def test_a_file_without_a_rate_of_warm_ups_is_refused(tmp_path: Path) -> None:
    file = measured(tmp_path / "restore.json", restore=3_000_000.0)
    done = CliRunner().invoke(app, [*SMALL, "--add", "1", "--measured", str(file)])
    assert done.exit_code == 2
    assert "no follow rate" in " ".join(done.output.split())
