"""`everflow migrate`: what it refuses before it asks a broker."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from everflow.cli import commands
from everflow.cli.app import app
from everflow.cli.migrate import Carrying
from everflow.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_values.py").write_text("import there_is_no_such_module\n")
    (tmp_path / "own_values.py").write_text("constant = 7\ndef value(old):\n    return old\n")
    (tmp_path / "ending_values.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "loud_values.py").write_text(
        "print('at the import')\ndef value(old):\n    print('at a value')\n    return old\n"
    )
    return tmp_path


def migrate(*options: str) -> Result:
    asked = ["migrate", "shop", "new.py:builder", "--from", "old.py:builder"]
    return CliRunner().invoke(app, [*asked, "--application-id", "shop-2", *options])


@pytest.mark.parametrize(
    ("values", "code", "says"),
    [
        ("counts=broken_values:value", "EF-PROGRAM", "there_is_no_such_module"),
        ("counts=own_values:missing", "EF-PROGRAM", "missing"),
        ("counts=own_values:constant", "EF-USAGE", "no function"),
        ("counts=own_values", "EF-USAGE", "module:function"),
        ("counts", "EF-USAGE", "STORE=module:function"),
        ("counts=ending_values:value", "EF-PROGRAM", "SystemExit"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused(values: str, code: str, says: str) -> None:
    refused = migrate("--values", values)
    assert refused.exit_code == 2
    assert code in refused.output
    assert says in " ".join(refused.output.split())


@pytest.mark.parametrize("option", ["--rename", "--values"])
def test_a_store_has_one_answer(option: str) -> None:
    """A line that was copied and half changed."""
    twice = Carrying(**{option[2:]: ["counts=own_values:value", "counts=own_values:other"]})
    with pytest.raises(ConfigError, match="own_values:other") as refused:
        twice.asked()
    assert refused.value.code == "EF-USAGE"


def test_what_a_function_prints_is_not_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    function = Carrying(values=["counts=loud_values:value"]).functions()["counts"]
    assert function(5) == 5
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.split("\n")[:2] == ["at the import", "at a value"]


def test_both_programs_and_the_new_application_have_to_be_named() -> None:
    refused = CliRunner().invoke(app, ["migrate", "shop", "new.py:builder"])
    assert refused.exit_code == 2
    assert "EF-USAGE" in refused.output


def test_brokers_that_are_away_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "REACH_S", 0.5)
    refused = migrate("--bootstrap-servers", "localhost:1")
    assert refused.exit_code == 1
    assert "EF-TASK-TIMEOUT" in refused.output
