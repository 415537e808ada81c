"""Which Java is taken, and that a class path is downloaded once, whole, or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from everflow import jvm
from everflow.errors import SetupError


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


def test_old_and_stripped_javas_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eight = _java(tmp_path / "8", "1.8.0_402")
    eleven = _java(tmp_path / "11", "11.0.22")
    stripped = _java(tmp_path / "stripped", "21.0.1", "java.base")
    seventeen = _java(tmp_path / "17", "17.0.15")
    assert _find(monkeypatch, eight, eleven, stripped, seventeen) == seventeen


def test_a_java_without_module_list_counts_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlisted = _java(tmp_path / "21", "21", None)
    assert _find(monkeypatch, unlisted) == unlisted


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home, on_path = _java(tmp_path / "home", "17"), _java(tmp_path / "path", "21")
    first, second = list(jvm._candidates(str(tmp_path / "home"), str(on_path.parent)))[:2]
    assert (first, second) == (home, on_path)


def test_no_java_says_what_was_seen_and_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_failed_download_leaves_nothing_and_is_tried_twice(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        jvm.resolve_jars("connect")
