"""What `everflow autoscale` hands to its instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from everflow.autoscale import loop
from everflow.cli.app import app


class Kept:
    """The loop that would run: what it was made with."""

    made: dict[str, Any]

    def __init__(self, **given: Any) -> None:
        Kept.made = given

    def run(self, stop: object) -> None:
        """At once over."""


def test_settings_that_are_secret_stay_in_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command line is read by everybody on the host."""
    monkeypatch.setattr(loop, "Autoscaler", Kept)
    monkeypatch.chdir(tmp_path)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "sasl.password").write_text("hidden")
    given = ["autoscale", "app:builder", "--application-id", "orders", "--set", "a=b"]
    done = CliRunner().invoke(app, [*given, "--settings-folder", "secrets"])
    assert done.exit_code == 0, done.output
    options = Kept.made["options"]
    assert options[-3:] == ["--set", "a=b", f"--settings-folder={secrets}"]
    assert "hidden" not in " ".join(options)
    missing = CliRunner().invoke(app, [*given, "--settings-folder", "nowhere"])
    assert missing.exit_code == 2
    assert "--settings-folder nowhere cannot be read" in missing.output
