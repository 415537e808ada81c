"""A project of `everflow new` passes its own test."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from everflow.cli.app import app
from everflow.testing import SchemaRegistry

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("more", [(), ("--schema", "avro")])
def test_a_new_project_passes_its_own_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession, more: tuple[str, ...]
) -> None:
    name = "avro-views" if more else "fresh-views"  # modules of two names
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["new", name, *more]).exit_code == 0
    monkeypatch.chdir(tmp_path / name)
    with SchemaRegistry() as registry:
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url)
        # pytest within pytest, so that the Spark session is this run's and need not be started
        done = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist"])
        assert (done, registry.asked) == (pytest.ExitCode.OK, [])
