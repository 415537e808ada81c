"""What `everflow run` says of its options: under the names that were typed, and before anything
starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everflow import __version__
from everflow.cli.app import app
from everflow.cli.cluster import assignments, merged_settings, named_as_typed, renamed
from everflow.errors import ConfigError, FatalError

GIVEN = ["--application-id", "a", "--bootstrap-servers", "localhost:1"]


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flights.py").write_text("builder = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERFLOW_BOOTSTRAP_SERVERS", raising=False)


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_the_version_is_an_option_and_a_command(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.output) == (0, f"{__version__}\n")


def test_settings_keep_equal_signs_of_the_value() -> None:
    found = assignments("--set", ["a.b=1", "sasl.config=x=y", "a.b=2"])
    assert found == {"a.b": "2", "sasl.config": "x=y"}


@pytest.mark.parametrize("wrong", ["commit.interval.ms", "=5"])
def test_a_setting_without_key_or_value_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(ConfigError, match="key=value") as caught:
        assignments("--set", [wrong])
    assert repr(wrong) in str(caught.value)


def test_options_win_over_settings_and_missing_ones_do_not() -> None:
    given = ["application.id=a", "bootstrap.servers=h:1", "state.dir=/a"]
    options = {"application.id": "b", "state.dir": None}
    assert merged_settings(given, None, options) == {
        "application.id": "b",
        "bootstrap.servers": "h:1",
        "state.dir": "/a",
    }


def test_what_is_missing_is_named_as_it_is_typed_all_at_once() -> None:
    done = CliRunner().invoke(app, ["run", "flights:builder"])
    assert done.exit_code == 2
    assert "--application-id is missing" in done.output
    assert (
        "--bootstrap-servers is missing: host:port of a broker, or set EVERFLOW_BOOTSTRAP_SERVERS"
        in done.output
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--application-id", "a b", "--bootstrap-servers", "b:1"],
            "--application-id = 'a b' may hold letters",
        ),
        (
            ["--set", "application.id=a b", "--bootstrap-servers", "b:1"],
            "application.id = 'a b' may hold letters",
        ),
        ([*GIVEN, "--state-dir", "flights.py"], "flights.py"),
        ([*GIVEN, "--set", "num.stream.threads=many"], "num.stream.threads"),
        ([*GIVEN, "--set", "sesion.timeout.ms=1"], "did you mean session.timeout.ms"),
        ([*GIVEN, "--set", "x"], "--set 'x': write it as key=value"),
    ],
)
def test_a_wrong_setting_is_named_as_it_was_given(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["run", "flights:builder", *arguments])
    assert done.exit_code != 0
    assert says in done.output
    assert "starting Spark" not in done.output


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("flihgts:builder", "no module 'flihgts'"),
        ("flights:bulider", "has no 'bulider'"),
        ("flights", "write it as module:name"),
        ("flights.py:bulider", "has no 'bulider'"),
    ],
)
@pytest.mark.parametrize("command", ["run", "describe"])
def test_a_wrong_module_or_name_is_told_before_spark_starts(
    command: str, target: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "flights", raising=False)  # of another folder
    done = CliRunner().invoke(app, [command, target, *(GIVEN if command == "run" else [])])
    assert done.exit_code == 2
    assert says in done.output
    assert "[EF-PROGRAM]" in done.output
    assert "starting Spark" not in done.output


def test_a_form_that_a_description_does_not_have_is_refused() -> None:
    done = CliRunner().invoke(app, ["describe", "a:b", "--physical", "--format", "mermaid"])
    assert done.exit_code == 2
    assert "--physical is shown as text or json, not as mermaid" in done.output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("state.dir = 'x' is wrong.", "--state-dir = 'x' is wrong."),
        ("Check state.dir.", "Check --state-dir."),
        ("(state.dir)", "(--state-dir)"),
        (
            "my.state.dir and state.dir.other, state.dirs",
            "my.state.dir and state.dir.other, state.dirs",
        ),
    ],
)
def test_only_whole_keys_are_renamed(text: str, shown: str) -> None:
    assert renamed(text, {"state.dir": "--state-dir"}) == shown


def test_an_error_stays_what_it_is() -> None:
    with (
        pytest.raises(FatalError, match=r"^--threads is 5$") as caught,
        named_as_typed({"num.stream.threads": "--threads"}),
    ):
        raise FatalError("num.stream.threads is 5", code="EF-ANY")
    assert caught.value.code == "EF-ANY"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["run", "flights:builder", "--guarantee", "exactly_once"],
            "'--guarantee': 'exactly_once' is not one of 'at_least_on",
        ),
        (["run", "flights:builder", "--threads", "many"], "Invalid value for '--threads': "),
        (["run", "flights:builder", "--threds", "3"], "--threds"),
        (["run"], "Missing argument 'MODULE:NAME'"),
        (["topic", "remove"], "No such command 'remove'"),
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
    ],
)
def test_a_line_that_cannot_be_read_is_told_as_all_errors_are(
    arguments: list[str], says: str
) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    first, last = done.output.splitlines()
    assert first.startswith("error: [EF-USAGE] ")
    assert says in first
    assert last.startswith(("  everflow", "  root"))
    assert last.endswith(" --help shows how it is written")


@pytest.mark.parametrize("arguments", [[], ["topic"]])
def test_a_group_without_a_command_shows_its_help(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "Usage: " in done.output
    assert "error: " not in done.output
