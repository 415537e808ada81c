"""Which Java is taken; class paths and class archives are made once, whole, or not at all."""

import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from everflow import jvm
from everflow.errors import SetupError
from everflow.jvm import find_java, jars_folder, make_archive, start_options


def _java(
    folder: Path, version: str, modules: str | None = "java.base jdk.incubator.vector"
) -> Path:
    (folder / "bin").mkdir(parents=True)
    executable = folder / "bin" / "java"
    executable.write_text("#!/bin/sh\nexit 1\n")
    executable.chmod(0o755)
    listed = f'MODULES="{modules}"\n' if modules is not None else ""
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n{listed}')
    return executable


def _find(monkeypatch: pytest.MonkeyPatch, *candidates: Path) -> Path:
    monkeypatch.setattr(jvm, "_candidates", lambda java_home, path: iter(candidates))
    jvm._find_java.cache_clear()
    try:
        return jvm.find_java()
    finally:
        jvm._find_java.cache_clear()


def test_old_and_stripped_javas_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eight = _java(tmp_path / "8", "1.8.0_402")
    eleven = _java(tmp_path / "11", "11.0.22")
    stripped = _java(tmp_path / "stripped", "21.0.1", "java.base")
    seventeen = _java(tmp_path / "17", "17.0.15")
    assert _find(monkeypatch, eight, eleven, stripped, seventeen) == seventeen


def test_a_java_without_module_list_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlisted = _java(tmp_path / "21", "21", None)
    assert _find(monkeypatch, unlisted) == unlisted


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home, on_path = _java(tmp_path / "home", "17"), _java(tmp_path / "path", "21")
    first, second = list(jvm._candidates(str(tmp_path / "home"), str(on_path.parent)))[:2]
    assert (first, second) == (home, on_path)


def test_no_java_says_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _java(tmp_path / "11", "11.0.22")
    with pytest.raises(SetupError, match=r"version 11\.0\.22") as failure:
        _find(monkeypatch, old)
    assert failure.value.code == "EF-JAVA-NOT-FOUND"
    assert jvm.install_command() in str(failure.value)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "everflow"


def test_many_callers_make_one_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def ivy(conf: str, staging: Path) -> None:
        runs.append(conf)
        (staging / "b.jar").touch()
        (staging / "a.jar").touch()

    monkeypatch.setattr(jvm, "_run_ivy", ivy)
    told: list[str] = []
    answers: list[list[Path]] = []
    callers = [
        threading.Thread(
            target=lambda: answers.append(jvm.resolve_jars("broker", progress=told.append))
        )
        for _ in range(8)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    folder = jvm.jars_folder("broker")
    assert answers == [[folder / "a.jar", folder / "b.jar"]] * 8
    assert runs == ["broker"]
    assert len(told) == 1


def test_a_failed_download_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def ivy(conf: str, staging: Path) -> str:
        (staging / "half.jar").touch()
        tries.append(conf)
        return "module not found: kafka"

    monkeypatch.setattr(jvm, "_run_ivy", ivy)
    with pytest.raises(
        SetupError, match=r"module not found: kafka[\s\S]*EVERFLOW_IVY_SETTINGS"
    ) as failure:
        jvm.resolve_jars("broker")
    assert failure.value.code == "EF-JARS"
    assert len(tries) == 2
    assert list((cache / "jars").rglob("*.jar")) == []


def test_an_unknown_class_path_is_refused() -> None:
    with pytest.raises(ValueError, match="broker, streams"):
        jvm.resolve_jars("elsewhere")


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


def test_jars_that_were_installed_again_have_a_new_archive_instead(archives: Path) -> None:
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
