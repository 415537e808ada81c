"""A fleet in a standalone cluster: it grows, loses a host, shrinks and ends; each record counts
once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.fleet.spark_cluster import SparkCluster
from everflow.fleet.decision import STOP_S
from everflow.testing import wait_until
from integration.fleet.fleet_command import FleetCommand, fleet, until_hosts_are_idle
from integration.lifecycle.lifecycle_cluster import Application, Cluster
from integration.observed.paced_load import SLOW_COUNT, PacedLoad

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1200)]

PARTITIONS = 6


def written_program(cluster: Cluster, folder: Path, pause_s: float = 0.0) -> tuple[Path, str, str]:
    source, sink = cluster.topic("in", PARTITIONS), cluster.topic("out", 1)
    program = folder / "fleet_app.py"
    program.write_text(SLOW_COUNT.format(source=source, sink=sink, pause_s=pause_s))
    return program, source, sink


def counts(cluster: Cluster, topic: str) -> dict[bytes | None, int]:
    """The last count of each key."""
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
    assert "stopping: 1 instances end in order" in said
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
            assert "and stays in the group for a restart (SIGTERM" in text, text
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
    assert "error: [EF-FATAL] 3 instances ended by themselves" in said
    assert said.splitlines()[-2].endswith("ValueError: invalid literal for int() with base 10: 'x'")
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
