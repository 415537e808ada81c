"""A standalone Spark cluster whose hosts are groups of processes of this machine."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from everflow.autoscale import free_port
from everflow.jvm import find_java
from everflow.testing import wait_until

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
MARK = "EVERFLOW_TEST_HOST"
FOLDER = "EVERFLOW_TEST_FOLDER"
"""In a host's environment: the folder that is its disk."""
START_S = 120.0


class SparkCluster:
    """A master; hosts are added and lost. A host is everything that a worker started: its
    environment says so. ``environment``: of the hosts, above this process's own. Used by one
    thread."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder, self._id = folder, uuid.uuid4().hex[:8]
        self._environment = environment or {}
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

    def lose_host(self, name: str) -> float:
        """As if its power was cut; at which moment, in s since the epoch."""
        processes = self.processes_of(name)
        lost_s = time.time()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not self.processes_of(name), START_S, f"the end of {name}")
        return lost_s

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
            **self._environment,
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
