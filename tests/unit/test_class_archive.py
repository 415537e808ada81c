"""That a class archive is made once, whole, or not at all; and that a JVM starts from the one that
set-up made."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from everflow import jvm
from everflow.jvm import find_java, jars_folder, make_archive, start_options

TRAINING = """
import os, re
with open("runs", "a") as runs:
    runs.write("run\\n")
path = re.search(r"-XX:ArchiveClassesAtExit=(\\S+)", os.environ["TRAINED_WITH"]).group(1)
open(path, "w").write("classes")
"""


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which the training of "broker" is a module called ``trained``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(jvm._TRAININGS, "broker", ("trained", "TRAINED_WITH"))
    (tmp_path / "trained.py").write_text(TRAINING)
    jars_folder("broker").mkdir(parents=True)
    (jars_folder("broker") / "a.jar").touch()
    return tmp_path / "everflow" / "class-archives"


def test_without_an_archive_a_jvm_starts_as_ever(archives: Path) -> None:
    assert start_options("broker") == []


def test_many_callers_make_one_archive(archives: Path) -> None:
    problems: list[str | None] = []
    callers = [
        threading.Thread(target=lambda: problems.append(make_archive("broker"))) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert problems == [None] * 4
    assert (archives / "runs").read_text() == "run\n"
    [archive] = archives.glob("*.jsa")
    assert start_options("broker")[0] == f"-XX:SharedArchiveFile={archive}"


def test_another_class_path_has_another_archive(archives: Path) -> None:
    assert make_archive("broker") is None
    (jars_folder("broker") / "b.jar").touch()
    assert start_options("broker") == []


def test_jars_that_were_installed_again_have_a_new_archive_in_place_of_the_old(
    archives: Path,
) -> None:
    assert make_archive("broker") is None
    [before] = archives.glob("*.jsa")
    # Java refuses an archive whose jars have another time of change, without a word.
    os.utime(jars_folder("broker") / "a.jar", ns=(0, 0))
    assert start_options("broker") == []
    assert make_archive("broker") is None
    [after] = archives.glob("*.jsa")
    assert after != before


def test_a_training_that_fails_leaves_nothing_and_says_why(archives: Path, tmp_path: Path) -> None:
    (tmp_path / "trained.py").write_text(TRAINING + "raise SystemExit('no place on the disk')\n")
    assert make_archive("broker") == "no place on the disk"
    assert list(archives.glob("*.jsa*")) == []
    assert start_options("broker") == []


def test_a_broker_starts_from_the_archive_that_set_up_made() -> None:
    options = _made("broker")
    class_path = os.pathsep.join(map(str, sorted(jars_folder("broker").glob("*.jar"))))
    command = [
        str(find_java()),
        *options,
        "-Xlog:class+load:stdout",
        "-cp",
        class_path,
        "kafka.Kafka",
        "--version",
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    assert "kafka.Kafka source: shared objects file (top)" in told


def test_spark_starts_from_the_archive_that_set_up_made(spark: SparkSession) -> None:
    archive = _made("spark")[0].partition("=")[2]
    gateway: Any = spark.sparkContext._gateway
    assert archive in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


def _made(conf: str) -> list[str]:
    options = start_options(conf)
    assert options, "there is no archive: run `everflow setup --broker`, as `./run test` does"
    return options
