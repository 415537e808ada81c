"""`everflow check`: what it asks for, what it says of programs, and of brokers that are away."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from everflow.cli import commands
from everflow.cli.app import app
from everflow.spark.session import get_context

PROGRAM = """
from everflow import StreamsBuilder, serdes
print("a program may print")
builder = StreamsBuilder()
words = builder.stream("in", key=serdes.string(), value=serdes.string())
words.group_by_key().count(store={store!r}).to_stream().to("out")
"""


COLUMNS = """
from pathlib import Path
from pyspark import SparkContext
from pyspark.sql import functions as F
from everflow import StreamsBuilder, agg, serdes
builder = StreamsBuilder()
views = builder.stream("in", key=serdes.string(), value=serdes.json("page string, ms {type}"))
by_page = views.group_by(F.lower("value.page"), name="by-page")
by_page.aggregate(ms=agg.max("value.ms"), store="views").to_stream().to("out")
Path(__file__).with_suffix(".spark").write_text(SparkContext._active_spark_context.applicationId)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for version in ("old", "new"):
        (tmp_path / version).mkdir()
        text = PROGRAM.format(store="counts" if version == "old" else "totals")
        (tmp_path / version / "app.py").write_text(text)
    (tmp_path / "broken.py").write_text("import there_is_no_such_module\nbuilder = 1\n")
    return tmp_path


def check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", *arguments])


def test_two_versions_of_one_module_are_compared() -> None:
    same = check("old/app.py:builder", "old/app.py:builder")
    lines = same.stdout.splitlines()
    assert (same.exit_code, lines[0]) == (0, "same")
    assert "topic out" in lines[-1]
    other = check("old/app.py:builder", "new/app.py:builder", "--output", "json")
    assert other.exit_code == 1
    data = json.loads(other.stdout)
    assert data["verdict"] == "migration"
    assert [(one["name"], one["after"]) for one in data["changes"]] == [("counts", "totals")]
    assert [(one["output"], one["same"]) for one in data["results"]] == [("topic out", False)]


def test_programs_with_columns_share_one_spark(folder: Path) -> None:
    for version, kind in (("old", "int"), ("new", "bigint")):
        (folder / version / "app.py").write_text(COLUMNS.format(type=kind))
    found = check("old/app.py:builder", "new/app.py:builder", "--output", "json")
    assert found.exit_code == 1, found.output
    stores = [one for one in json.loads(found.stdout)["changes"] if one["kind"] == "store"]
    assert [(one["name"], one["before"], one["after"]) for one in stores] == [
        ("views", "value ms int (max)", "value ms bigint (max)")
    ]
    asked = {(folder / name / "app.spark").read_text() for name in ("old", "new")}
    assert asked == {get_context().applicationId}


@pytest.mark.parametrize(
    "arguments",
    [
        ("new/app.py:builder",),
        ("old/app.py:builder", "new/app.py:builder", "--application-id", "shop"),
    ],
)
def test_one_program_has_an_application_and_two_have_none(arguments: tuple[str, ...]) -> None:
    refused = check(*arguments)
    assert refused.exit_code == 2
    assert "EF-USAGE" in refused.output
    assert "--application-id" in refused.output


def test_a_program_that_does_not_import_is_told_with_its_line() -> None:
    refused = check("old/app.py:builder", "broken.py:builder")
    assert refused.exit_code == 2
    assert "EF-PROGRAM" in refused.output
    assert "there_is_no_such_module" in refused.output
    assert "broken.py:1" in refused.output


def test_brokers_that_are_away_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "REACH_S", 0.5)
    asked = ["new/app.py:builder", "--application-id", "shop"]
    refused = check(*asked, "--bootstrap-servers", "localhost:1")
    assert refused.exit_code == 1
    assert "localhost:1" in refused.output
