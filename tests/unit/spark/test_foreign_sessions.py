"""What a Spark of the user's must be, and what `everflow.session` refuses."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from everflow.errors import SetupError
from everflow.spark.session import _reap, refuse_connect, require_local, wanted_settings
from everflow.testing import wait_until


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[8,1]", "local[*, 4]"])
def test_every_local_master_serves(master: str) -> None:
    require_local(master)


@pytest.mark.parametrize(
    "master", ["yarn", "spark://host:7077", "local-cluster[2,1,1024]", "k8s://https://host"]
)
def test_a_cluster_is_refused_with_what_to_start_instead(master: str) -> None:
    with pytest.raises(SetupError) as told:
        require_local(master)
    assert str(told.value).startswith(f"spark.master is {master!r}, but everflow")
    assert "everflow.session(slots=8)" in str(told.value)


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(SetupError, match=r"Spark Connect session.*Spark"):
        refuse_connect()


def test_spark_connect_is_refused_before_a_session_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    with pytest.raises(SetupError, match="without SPARK_REMOTE"):
        refuse_connect()


def test_settings_are_texts_as_spark_writes_them() -> None:
    found = wanted_settings("shop", 4, {"spark.ui.enabled": True, "spark.ui.port": 4050})
    assert found == {
        "spark.ui.enabled": "true",
        "spark.ui.port": "4050",
        "spark.app.name": "shop",
        "spark.master": "local[4,1]",
    }


@pytest.mark.parametrize(
    ("slots", "conf", "said"),
    [
        (4, {"spark.master": "local[2]"}, r"spark.master=local\[2\].*arguments"),
        (None, {"spark.master": "yarn"}, "spark.master is 'yarn'"),
        (0, {}, r"slots.*0"),
        (None, {"spark.remote": "sc://host"}, "classic session"),
        (None, {"spark.api.mode": "connect"}, "classic session"),
    ],
)
def test_contradictions_are_refused(slots: int | None, conf: dict[str, str], said: str) -> None:
    with pytest.raises(SetupError, match=said):
        wanted_settings(None, slots, conf)


def test_what_the_jvm_reads_first_is_refused_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", object())
    with pytest.raises(
        SetupError,
        match=r"spark.driver.memory: read when Spark's JVM starts.*also after spark.stop\(\)",
    ):
        wanted_settings(None, None, {"spark.driver.memory": "4g", "spark.ui.port": 1})


def test_the_jvm_of_a_session_of_the_users_leaves_no_dead_process_that_a_kernel_waits_for() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    running: Any = SimpleNamespace(_gateway=SimpleNamespace(proc=process))
    _reap(running)
    wait_until(lambda: process.returncode is not None, 30, "somebody to have waited for it", list)
