"""Workers find what the driver finds, also where the driver's path names its current folder by
nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from everflow.spark.job import worker_environment
from everflow.spark.launch.daemon import program_last, without_archives


def test_the_current_folder_and_relative_folders_reach_the_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "lib", str(tmp_path / "app.zip")])
    found = worker_environment()["EVERFLOW_PROGRAM_PATH"].split(os.pathsep)
    assert found == [str(tmp_path), str(tmp_path / "lib"), str(tmp_path / "app.zip")]


def test_what_is_installed_comes_first_and_in_its_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "target" / "shop-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "spark" / "pyspark").mkdir(parents=True)
    installed = [
        str(tmp_path / "target"),
        str(tmp_path / "spark"),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
    ]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *installed])
    found = worker_environment()
    assert found["PYTHONPATH"].split(os.pathsep) == installed
    assert found["EVERFLOW_PROGRAM_PATH"] == str(tmp_path)


def test_a_worker_takes_modules_of_libraries_before_those_of_the_program() -> None:
    assert program_last(
        ["/srv/shop", "", "/usr/lib/python3", "/srv"], ["/srv/shop", "/srv/two"], "/srv"
    ) == ["/usr/lib/python3", "/srv/shop", "/srv/two"]


def test_a_worker_takes_pyspark_as_it_is_installed_not_its_sources_in_an_archive() -> None:
    lib = "/site/pyspark/python/lib"
    path = [f"{lib}/pyspark.zip", f"{lib}/py4j-0.10-src.zip", "/site/pyspark/jars/core.jar"]
    assert without_archives([*path, "/stdlib", "/site"]) == [path[2], "/stdlib", "/site"]
    # Spark's own distribution: its Python is nowhere else.
    spark = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python", "/site"]
    assert without_archives(spark) == spark
    assert without_archives(path) == path


def test_a_program_with_a_queue_of_its_own_does_not_break_the_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("queue", "types", "json"):
        (tmp_path / f"{name}.py").write_text("ITEMS = []\n")
    (tmp_path / "beside.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    show = (
        "import pyspark.daemon\n"
        "def manager():\n"
        "    import json, queue, types, beside, os\n"
        "    print([json.dumps, queue.Queue, types.ModuleType, beside.__file__, "
        "os.environ.get('PYTHONSAFEPATH')])\n"
        "pyspark.daemon.manager = manager\n"
        "from everflow.spark.launch import daemon\n"
        "daemon.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", show],
        env={**os.environ, **worker_environment()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"{str(tmp_path / 'beside.py')!r}, None]" in done.stdout
