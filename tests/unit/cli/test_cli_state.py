"""`everflow state`: what it refuses before it asks a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from everflow.cli.app import app

PROGRAM = """
from everflow import StreamsBuilder, serdes

builder = StreamsBuilder()
stream = builder.stream("in", key=serdes.string(), value=serdes.string())
stream.group_by_key().count(store="counts")
"""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--at", "yesterday"], 2, "not a time: 'yesterday'"),
        (["--diff", "0=1", "0="], 2, "0=120,1=98; or end"),
        (["--diff", "end", "end", "--at", "0=1"], 2, "--diff has its two points"),
        (["--format", "parquet"], 2, "--format parquet and --path FOLDER go together"),
        (["--path", "here"], 2, "--format parquet and --path FOLDER go together"),
        (["--format", "json", "--output", "json"], 2, "take one"),
        (["--format", "parquet", "--path", "here", "--limit", "3"], 2, "leave --limit out"),
        ([], 1, "The topology has no store 'cuonts'; it has: counts."),
    ],
)
def test_what_is_wrong_is_told_without_a_broker(
    arguments: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    where = ["--application-id", "app", "--bootstrap-servers", "localhost:1"]
    done = CliRunner().invoke(app, ["state", "state_program:builder", "cuonts", *where, *arguments])
    assert (done.exit_code, says in done.output) == (code, True), done.output
    assert not (tmp_path / "here").exists()
