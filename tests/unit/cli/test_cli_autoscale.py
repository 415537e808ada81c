"""What `everflow autoscale` hands to its instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from everflow import autoscale
from everflow.cli.app import app


class Kept:
    """The loop that would run: what it was made with."""

    made: ClassVar[dict[str, Any]] = {}

    def __init__(self, **given: Any) -> None:
        Kept.made = given

    def run(self, stop: object) -> None:
        """At once over."""


COMMAND = ("autoscale", "scaled_program:builder", "--application-id", "orders")


@pytest.fixture(autouse=True)
def in_a_folder_with_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscale, "Autoscaler", Kept)
    monkeypatch.setattr(Kept, "made", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "scaled_program.py").write_text("builder = len('')\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["autoscale", "scaled_program:bulider", *COMMAND[2:]], "has no 'bulider'"),
        (["autoscale", "no_such_program:x", *COMMAND[2:]], "no module 'no_such_program'"),
        (["autoscale", "scaled_program", *COMMAND[2:]], "write it as module:name"),
        ([*COMMAND, "--set", "comit.interval.ms=5"], "comit.interval.ms"),
        ([*COMMAND, "--set", "http.listen=0.0.0.0:9464"], "each has an address of its own"),
        ([*COMMAND, "--set", "group.instance.id=a"], "no two may have the same"),
        ([*COMMAND, "--set", "state.dir=/x"], "--folder says where"),
    ],
)
def test_what_no_instance_could_run_with_is_refused(arguments: list[str], says: str) -> None:
    """Three of them would have failed first; an address would have been left out in silence."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert says in done.output
    assert not Kept.made


def test_settings_that_are_secret_stay_in_their_folder(tmp_path: Path) -> None:
    """A command line is read by everybody on the host."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "security.protocol").write_text("SASL_PLAINTEXT")
    (secrets / "sasl.mechanism").write_text("PLAIN")
    (secrets / "sasl.username").write_text("orders")
    (secrets / "sasl.password").write_text("hidden")
    given = [*COMMAND, "--set", "commit.interval.ms=50"]
    done = CliRunner().invoke(app, [*given, "--settings-folder", "secrets"])
    assert done.exit_code == 0, done.output
    options = Kept.made["options"]
    assert options[-3:] == ["--set", "commit.interval.ms=50", f"--settings-folder={secrets}"]
    assert "hidden" not in " ".join(options)
    missing = CliRunner().invoke(app, [*given, "--settings-folder", "nowhere"])
    assert missing.exit_code == 2
    assert "--settings-folder nowhere cannot be read" in missing.output
