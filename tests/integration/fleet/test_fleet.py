"""A fleet in a cluster grows, loses a host, shrinks and ends; each record counts once."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.fleet.spark_cluster import FOLDER, SPARK_CLASS, SparkCluster
from everflow.fleet.decision import STOP_S
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster
from integration.observed.paced_load import SLOW_COUNT, PacedLoad

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1200)]

PARTITIONS = 6
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

        wait_until(running, LONG_S, f"{number} running instances", lambda: [self.said()])

    def until_said(self, words: str) -> None:
        def found() -> bool:
            text = self.said()
            assert self.process.poll() is None or re.search(words, text), text
            return re.search(words, text) is not None

        wait_until(found, LONG_S, f"the fleet to say {words!r}", lambda: [self.said()])

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
    """Wait until no supervisor and no process of an instance is left on any host; the seconds."""
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


@pytest.fixture
def app(cluster: Cluster, tmp_path: Path) -> Application:
    """Its name and its progress; no instance of it runs here."""
    return Application(cluster, tmp_path, {})


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    found = SparkCluster(tmp_path)
    yield found
    found.close()


def written_program(cluster: Cluster, folder: Path, pause_s: float = 0.0) -> tuple[Path, str, str]:
    source, sink = cluster.topic("in", PARTITIONS), cluster.topic("out", 1)
    program = folder / "fleet_app.py"
    program.write_text(SLOW_COUNT.format(source=source, sink=sink, pause_s=pause_s))
    return program, source, sink


def counts(cluster: Cluster, topic: str) -> dict[bytes | None, int]:
    return {one.key: int.from_bytes(one.value or b"", "big") for one in cluster.read(topic)}


def until_exact(cluster: Cluster, sink: str, written: Mapping[str, int]) -> None:
    wanted = {key.encode(): count for key, count in written.items()}
    wait_until(lambda: counts(cluster, sink) == wanted, 120, "every record to be counted once")
    changes = [int.from_bytes(one.value or b"", "big") for one in cluster.read(sink)]
    assert all(change > 0 for change in changes)


def host_of(ran: FleetCommand, slot: int) -> str:
    """The host that a slot's log lies on."""
    (log,) = [one["log"] for one in ran.places() if one["slot"] == slot]
    return Path(log).parents[3].name


def test_a_host_is_lost_under_load(
    app: Application, cluster: Cluster, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    program, source, sink = written_program(cluster, tmp_path)
    for name in ("h1", "h2", "h3"):
        spark_cluster.add_host(name)
    with fleet(spark_cluster, program, app.id, cluster.bootstrap, 1) as ran:
        ran.until_running(1)
        with PacedLoad(cluster, source, PARTITIONS, 200) as load:
            ran.scale(2)
            ran.until_running(2)
            assert host_of(ran, 1) != host_of(ran, 2)
            assert cluster.members(app.id) == 2
            lost = host_of(ran, 1)
            spark_cluster.lose_host(lost)
            ran.until_said(r"instance 1 lost its executor on \S+; it restarts on")
            ran.until_running(2)
            assert host_of(ran, 1) not in (lost, host_of(ran, 2))
            assert cluster.members(app.id) == 2, "the same two"
            ran.scale(1)
            ran.until_said("instance 2 has ended")
            ran.until_running(1)
            assert cluster.members(app.id) == 1
            load.stop()
        app.until_processed(None, source)
        until_exact(cluster, sink, load.written)
    said = ran.said()
    assert ran.process.returncode == 0, said
    assert "stopping: 1 instances end" in said
    assert re.search(r"1@\S+ \| .*RUNNING -> PENDING_SHUTDOWN", said), said
    until_hosts_are_idle(spark_cluster, 60)


def test_too_few_places_and_a_driver_that_dies(
    app: Application, cluster: Cluster, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    program, source, sink = written_program(cluster, tmp_path)
    spark_cluster.add_host("h1")
    with fleet(spark_cluster, program, app.id, cluster.bootstrap, 2) as ran:
        ran.until_said(r"of 2 instances have no executor \([12, ]+\): each takes")
        ran.until_said(r"@\S+ \| .*RUNNING")
        spark_cluster.add_host("h2")
        ran.until_running(2)
        logs = [Path(one["log"]) for one in ran.places()]
        with PacedLoad(cluster, source, PARTITIONS, 200) as load:
            wait_until(lambda: counts(cluster, sink), 120, "results")
            ran.process.kill()
            took_s = until_hosts_are_idle(spark_cluster, STOP_S + 90)
            load.stop()
        for log in logs:
            text = log.read_text()
            assert "for a restart (SIGTERM" in text, text
            assert "PENDING_SHUTDOWN -> NOT_RUNNING" in text, f"{took_s} s\n{text}"
    with fleet(spark_cluster, program, app.id, cluster.bootstrap, 2, submit=True) as ran:
        ran.until_running(2)
        app.until_processed(None, source)
        until_exact(cluster, sink, load.written)
    assert ran.process.returncode == 0, ran.said()
    until_hosts_are_idle(spark_cluster, 60)


def test_a_program_that_fails_everywhere_ends_the_fleet(
    app: Application, cluster: Cluster, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    program = tmp_path / "fleet_app.py"
    program.write_text("builder = int('x')\n")
    spark_cluster.add_host("h1")
    with fleet(spark_cluster, program, app.id, cluster.bootstrap, 1) as ran:
        wait_until(lambda: ran.process.poll() is not None, 300, "its end", lambda: [ran.said()])
    said = ran.said()
    assert ran.process.returncode == 1, said
    assert len(re.findall(r"instance 1 ended by itself \(exit code 2\)", said)) == 3
    assert "error: [EF-FATAL] 3 instances ended" in said
    assert re.search(r"ValueError: .*'x'$", said.splitlines()[-2])
    until_hosts_are_idle(spark_cluster, 60)


def test_it_follows_a_load_that_rises_and_falls(
    app: Application, cluster: Cluster, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    program, source, sink = written_program(cluster, tmp_path, pause_s=0.006)
    for name in ("h1", "h2", "h3"):
        spark_cluster.add_host(name)
    scale = ("scale.up.delay.ms=3000", "scale.down.delay.ms=6000", "scale.drain.ms=60000")
    options = ["--max", "3", *(part for one in scale for part in ("--set", one))]
    with fleet(spark_cluster, program, app.id, cluster.bootstrap, 1, *options) as ran:
        ran.until_running(1)
        with PacedLoad(cluster, source, PARTITIONS, 240) as load:
            wait_until(
                lambda: len(ran.places()) == 3 and cluster.members(app.id) == 3,
                300,
                "three instances",
                lambda: [ran.said()],
            )
            load.stop()
        ran.until_running(1)
        assert cluster.members(app.id) == 1
        app.until_processed(None, source)
        until_exact(cluster, sink, load.written)
    assert ran.process.returncode == 0, ran.said()
    until_hosts_are_idle(spark_cluster, 60)
