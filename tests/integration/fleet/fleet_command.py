"""A fleet in a standalone Spark cluster, as a process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bench.fleet.spark_cluster import FOLDER, SPARK_CLASS, SparkCluster
from everflow.testing import wait_until

EVERFLOW = (sys.executable, "-c", "from everflow.cli import main; main()")
LONG_S = 300.0


class FleetCommand:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def driver(self) -> psutil.Process:
        """The Python process; `spark-submit` has one below it."""
        found = psutil.Process(self.process.pid)
        for one in found.children():
            with suppress(psutil.NoSuchProcess):  # a shell of spark-submit that has ended
                if "everflow_main.py" in " ".join(one.cmdline()):
                    return one
        return found

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def address(self) -> str:
        found = re.search(r"everflow scale (\S+) ", self.said())
        assert found is not None, self.said()
        return found.group(1)

    def places(self) -> list[dict[str, Any]]:
        """Its slots, as it shows them."""
        with urllib.request.urlopen(f"http://{self.address}/fleet", timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["slots"]
            return found

    def until_running(self, number: int) -> None:
        """Wait for so many instances that process all that is their own, and no other."""

        def running() -> bool:
            assert self.process.poll() is None, self.said()
            if "everflow scale" not in self.said():
                return False
            places = self.places()
            return len(places) == number and all(
                one.get("state") == "RUNNING" and one["ready"] and not one["without_place_s"]
                for one in places
            )

        try:
            wait_until(running, LONG_S, f"{number} running instances")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None

    def until_said(self, words: str, timeout_s: float = LONG_S) -> None:
        """Wait for what matches the regular expression."""

        def found() -> bool:
            text = self.said()
            assert self.process.poll() is None or re.search(words, text), text
            return re.search(words, text) is not None

        try:
            wait_until(found, timeout_s, f"the fleet to say {words!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None

    def scale(self, number: int) -> None:
        done = subprocess.run(
            [*EVERFLOW, "scale", self.address, "--instances", str(number)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert f"{number} instances" in done.stdout


def submitted(spark: SparkCluster, folder: Path) -> list[str]:
    """The command as `spark-submit` runs it."""
    main = folder / "everflow_main.py"
    shutil.copy(Path(sys.executable).with_name("everflow"), main)
    return [str(SPARK_CLASS.with_name("spark-submit")), "--master", spark.master, str(main)]


@contextmanager
def fleet(
    spark: SparkCluster,
    program: Path,
    application_id: str,
    bootstrap: str,
    instances: int,
    *options: str,
    submit: bool = False,
) -> Iterator[FleetCommand]:
    """A fleet of the program's ``builder``, with a folder per host; ended in order. ``options``:
    more of its command line; ``submit``: by `spark-submit`."""
    settings = ("processing.guarantee=exactly_once_v2", "num.standby.replicas=1")
    conf = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.memory=512m")
    command = [
        *(submitted(spark, program.parent) if submit else EVERFLOW),
        *("fleet", f"{program.stem}:builder"),
        *("--application-id", application_id, "--bootstrap-servers", bootstrap),
        *("--instances", str(instances), *([] if submit else ["--master", spark.master])),
        *("--folder", f"${FOLDER}/fleet"),
        *(part for one in settings for part in ("--set", one)),
        *(part for one in conf for part in ("--conf", one)),
        *options,
    ]
    log = program.parent / "fleet.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            command,
            cwd=program.parent,
            stdout=said,
            stderr=said,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
    started = FleetCommand(process, log)
    try:
        yield started
    finally:
        with suppress(psutil.NoSuchProcess):
            started.driver().send_signal(signal.SIGTERM)
        try:
            process.wait(180)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
            raise


def until_hosts_are_idle(spark: SparkCluster, bound_s: float) -> float:
    """Wait until no keeper and no process of an instance is left on any host; the seconds."""
    began_s = time.monotonic()

    def idle() -> bool:
        return not any(spark.keepers_and_instances(name) for name in spark.hosts())

    wait_until(
        idle,
        bound_s,
        "the hosts to be idle",
        lambda: [line for name in spark.hosts() for line in spark.keepers_and_instances(name)],
    )
    return time.monotonic() - began_s
