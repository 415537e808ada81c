"""A standalone Spark cluster whose hosts are groups of processes of this machine, and a fleet in
it."""

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
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark

from everflow.autoscale.processes import free_port
from everflow.jvm.java import find_java
from everflow.testing import wait_until

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
MARK = "EVERFLOW_TEST_HOST"
FOLDER = "EVERFLOW_TEST_FOLDER"
EVERFLOW = (sys.executable, "-c", "from everflow.cli import main; main()")
START_S = 120.0
LONG_S = 300.0


class SparkCluster:
    """A master; hosts are added and lost. A host is everything that a worker started: its
    environment says so."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._id = folder, uuid.uuid4().hex[:8]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._start("master", "master.Master", ["--port", str(port), "--webui-port", "0"])
        self._until_said("master", "I have been elected leader")

    def add_host(self, name: str) -> None:
        """A worker with room for one executor of one core."""
        self._start(
            name,
            "worker.Worker",
            [
                *("--cores", "1", "--memory", "1g", "--webui-port", "0"),
                *("--work-dir", str(self.folder_of(name) / "work"), self.master),
            ],
        )
        self._until_said(name, "Successfully registered with master")

    def lose_host(self, name: str) -> None:
        """As if its power was cut."""
        for process in self.processes_of(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not self.processes_of(name), START_S, f"the end of {name}")

    def processes_of(self, name: str) -> list[psutil.Process]:
        """All that run on a host."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ended = process.status() == psutil.STATUS_ZOMBIE
                if not ended and process.environ().get(MARK) == f"{self._id}/{name}":
                    found.append(process)
        return found

    def keepers_and_instances(self, name: str) -> list[str]:
        """Command lines of those that belong to instances."""
        lines = []
        for process in self.processes_of(name):
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if DEPLOY not in line and "CoarseGrainedExecutorBackend" not in line:
                    lines.append(line)
        return lines

    def folder_of(self, name: str) -> Path:
        """The disk of a host."""
        return self._folder / name

    def hosts(self) -> list[str]:
        """All that were ever there."""
        return [name for name in self._processes if name != "master"]

    def close(self) -> None:
        """End everything."""
        for name in [*self.hosts(), "master"]:
            for process in self.processes_of(name):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._processes[name].wait(60)

    def _start(self, name: str, what: str, arguments: Sequence[str]) -> None:
        folder = self.folder_of(name)
        folder.mkdir()
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().resolve().parent.parent),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(folder / "scratch"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            MARK: f"{self._id}/{name}",
            FOLDER: str(folder),
        }
        with (folder / "log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [str(SPARK_CLASS), f"{DEPLOY}.{what}", "--host", "127.0.0.1", *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def _until_said(self, name: str, words: str) -> None:
        log = self.folder_of(name) / "log"

        def said() -> bool:
            text = log.read_text(errors="replace")
            assert self._processes[name].poll() is None, text
            return words in text

        wait_until(said, START_S, f"{name} to say {words!r}")


class FleetCommand:
    """`everflow fleet` as a process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    def driver(self) -> psutil.Process:
        """The Python process; `spark-submit` has one below it."""
        found = psutil.Process(self.process.pid)
        below = [one for one in found.children() if "everflow_main.py" in " ".join(one.cmdline())]
        return below[0] if below else found

    def said(self) -> str:
        """All that it has said."""
        return self._log.read_text(errors="replace")

    @property
    def address(self) -> str:
        """Where it is resized."""
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
        """`everflow scale`."""
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
