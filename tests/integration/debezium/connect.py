"""Kafka Connect with Debezium's connector, in a process that a test kills and starts again."""

import json
import os
import subprocess
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from everflow.autoscale import free_port
from everflow.jvm import find_java, resolve_jars
from everflow.testing import wait_until

WAIT_S = 180.0
CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
NAME = "shop"


@dataclass
class Connect:
    """A worker with one connector. Its positions are in a file, so it goes on where its last
    commit was: what it had written behind that it writes again."""

    folder: Path
    bootstrap: str
    connector: dict[str, str]
    flush_ms: int = 1_000
    """How often it keeps its positions."""
    process: subprocess.Popen[bytes] | None = None
    port: int = field(default_factory=free_port)

    @property
    def log(self) -> Path:
        return self.folder / "connect.log"

    def history(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-40:]

    def start(self) -> None:
        self.launch()
        wait_until(self.runs, WAIT_S, "the connector to run", self.history)

    def launch(self) -> None:
        """Start it, and do not wait."""
        self.folder.mkdir(parents=True, exist_ok=True)
        worker = {
            "bootstrap.servers": self.bootstrap,
            "key.converter": CONVERTER,
            "value.converter": CONVERTER,
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "offset.flush.interval.ms": str(self.flush_ms),
            "listeners": f"http://127.0.0.1:{self.port}",
            "plugin.discovery": "service_load",
        }
        connector = {"name": NAME, "tasks.max": "1", **self.connector}
        files = []
        for name, settings in (("worker", worker), ("connector", connector)):
            files.append(self.folder / f"{name}.properties")
            lines = [f"{key}={value}" for key, value in settings.items()]
            files[-1].write_text("\n".join(lines) + "\n")
        jars = os.pathsep.join(map(str, resolve_jars("connect")))
        command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
        command += ["-cp", jars, "org.apache.kafka.connect.cli.ConnectStandalone"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *map(str, files)], cwd=self.folder, stdout=log, stderr=log
            )

    def runs(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "\n".join(self.history())
        url = f"http://127.0.0.1:{self.port}/connectors/{NAME}/status"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                status = json.load(answer)
        except OSError:
            return False
        states = [status["connector"]["state"], *(one["state"] for one in status["tasks"])]
        assert "FAILED" not in states, status
        return len(states) == 2 and set(states) == {"RUNNING"}

    def kill(self) -> None:
        """SIGKILL, as a machine that goes away."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None
