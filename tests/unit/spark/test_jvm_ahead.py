"""The JVM that was launched ahead is taken by the very launch that PySpark would make."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext, java_gateway

from everflow.instance.thread.worker_processes import alive
from everflow.spark.launch import jvm_launch
from everflow.spark.launch.jvm_launch import jvm_ends_with_failure

LAUNCHED = """#!/bin/sh
echo launched >> {log}
printf 'told' > "$_PYSPARK_DRIVER_CONN_INFO_PATH"
exec cat > /dev/null
"""
DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Spark whose JVM tells where it listens, and lives as long as its standard input; the file
    has a line for each launch."""
    written = tmp_path / "log"
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(LAUNCHED.format(log=written))
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    yield written
    jvm_launch.discard()
    assert vars(java_gateway)["Popen"] is subprocess.Popen


def settings(slots: int = 32, name: str = "everflow", memory: str = "1g") -> SparkConf:
    chosen = {
        "spark.master": f"local[{slots}]",
        "spark.app.name": name,
        "spark.driver.memory": memory,
    }
    return SparkConf(False).setAll(list(chosen.items()))


def launch(conf: SparkConf) -> tuple[subprocess.Popen[bytes], str]:
    """As `launch_gateway` does, up to its connection: the process, and what it told."""
    found: list[tuple[subprocess.Popen[bytes], str]] = []
    launcher: Any = java_gateway  # which names for itself what it uses
    before = launcher.read_int

    def read(stream: object) -> int:
        raise FoundError(Path(stream.name).read_text())  # type: ignore[attr-defined]

    with jvm_ends_with_failure():
        real = launcher.Popen

        def noted(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
            found.append((real(*arguments, **options), ""))
            return found[-1][0]

        launcher.Popen, launcher.read_int = noted, read
        try:
            launcher.launch_gateway(conf)
        except FoundError as told:
            return found[0][0], str(told)
        finally:
            launcher.read_int = before
    raise AssertionError("nothing was told")


class FoundError(Exception):
    """What the launched process told."""


def ended(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(DEADLINE_S)


def the_one_ahead() -> subprocess.Popen[bytes]:
    (found,) = jvm_launch._ahead
    return found.process


def test_the_launch_takes_what_was_launched_ahead(log: Path) -> None:
    jvm_launch.launch_ahead(settings())
    jvm_launch.launch_ahead(settings())  # once is enough
    ahead = the_one_ahead()
    folder = jvm_launch._ahead[0].folder
    process, told = launch(settings())
    assert (process, told) == (ahead, "told")
    assert log.read_text().splitlines() == ["launched"]
    assert not folder.exists(), "the secret of the connection stays on the disk"
    jvm_launch.discard()
    assert alive(process.pid), "it is not ours any more"
    ended(process)


def test_master_and_name_are_no_matter_of_the_jvm() -> None:
    jvm_launch.launch_ahead(settings())
    ahead = the_one_ahead()
    process, _ = launch(settings(slots=99, name="own"))
    assert process is ahead
    ended(process)


def set_variable(monkeypatch: pytest.MonkeyPatch, _: Path) -> SparkConf:
    monkeypatch.setenv("OF_THE_PROGRAM", "1")
    return settings()


def change_folder(monkeypatch: pytest.MonkeyPatch, path: Path) -> SparkConf:
    monkeypatch.chdir(path)
    return settings()


def other_setting(_: pytest.MonkeyPatch, __: Path) -> SparkConf:
    return settings(memory="4g")


def it_died(_: pytest.MonkeyPatch, __: Path) -> SparkConf:
    the_one_ahead().kill()
    the_one_ahead().wait(DEADLINE_S)
    return settings()


@pytest.mark.parametrize("change", [set_variable, change_folder, other_setting, it_died])
def test_where_anything_is_different_another_one_is_launched(
    change: Callable[[pytest.MonkeyPatch, Path], SparkConf],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    jvm_launch.launch_ahead(settings())
    ahead, folder = the_one_ahead(), jvm_launch._ahead[0].folder
    process, _ = launch(change(monkeypatch, tmp_path))
    assert process is not ahead
    assert (alive(ahead.pid), alive(process.pid)) == (False, True)
    assert not folder.exists()
    ended(process)


def test_what_nobody_took_ends() -> None:
    jvm_launch.launch_ahead(settings())
    ahead, folder = the_one_ahead(), jvm_launch._ahead[0].folder
    jvm_launch.discard()
    jvm_launch.discard()
    assert not alive(ahead.pid)
    assert not folder.exists()


def test_it_ends_with_a_process_that_is_killed() -> None:
    jvm_launch.launch_ahead(settings())
    ahead = the_one_ahead()
    assert ahead.stdin is not None
    ahead.stdin.close()  # as the system does
    ahead.wait(DEADLINE_S)


def test_what_cannot_be_launched_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    jvm_launch.launch_ahead(settings())
    assert not jvm_launch._ahead
    with pytest.raises(FileNotFoundError):
        launch(settings())


def test_the_terminals_signals_are_not_for_it() -> None:
    jvm_launch.launch_ahead(settings())
    assert os.getsid(the_one_ahead().pid) == the_one_ahead().pid
