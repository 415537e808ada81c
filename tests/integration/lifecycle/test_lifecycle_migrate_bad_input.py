"""What `everflow migrate` refuses, and what it meets in the middle: the old version goes on."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.rounds.surroundings import SmallDisk
from everflow.errors import StateDiskError
from everflow.migration.copying import SENT
from everflow.migration.migrator import FOLLOWED
from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from integration.lifecycle.lifecycle_cluster import Cluster, text, until_failed, until_running
from integration.lifecycle.migrating import Migration

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNTS = """
again = words.repartition(name="again", partitions=4)
again.group_by_key().count(store="counts").to_stream().to("{out}")
again.group_by_key().windowed_by(TimeWindows.of_size_and_grace("10 seconds", "0 seconds")) \\
    .count(store=Materialized("windows", retention="1 day"))
"""
RENAMED = COUNTS.replace('"counts"', '"totals"')
FULL_MB = 24
BROKER_MB = 160
"""Indexes of segments are files with holes, but the broker writes its own topics, too."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if not SmallDisk.possible(tmp_path):
        pytest.skip("no leave to mount a tmpfs")
    with closing(SmallDisk(tmp_path / "disk", FULL_MB)) as made:
        yield made


@pytest.fixture
def migration(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> Iterator[Migration]:
    with closing(Migration(cluster, tmp_path, COUNTS, RENAMED)) as made:
        yield made


def test_what_cannot_be_carried_is_refused_while_the_old_version_runs(
    migration: Migration,
) -> None:
    found = migration
    found.words(20)
    between = f"{found.before.id}-again-repartition"
    right = (found.folder / "new.py").read_text()
    (found.folder / "broken.py").write_text("import there_is_no_such_module\n")
    fewer = right.replace("partitions=4", "partitions=2")
    shorter = right.replace("1 day", "1 minute")
    wider = right.replace("10 seconds", "20 seconds")
    with found.old_running("again") as old:
        for program, options, code, ending, word in (
            (fewer, (), "EF-MIGRATION-PLAN", 1, "fewer"),
            (shorter, (), "EF-MIGRATION-PLAN", 1, "--shorten windows"),
            (wider, (), "EF-MIGRATION-PLAN", 1, "windows"),
            (right, ("--values", "totals=broken:value"), "EF-PROGRAM", 2, "there_is_no_such"),
            (right, ("--values", "totals=json:nothing"), "EF-PROGRAM", 2, "nothing"),
        ):
            (found.folder / "new.py").write_text(program)
            ended, said = found.told(*options)
            assert ended == ending, said
            assert code in said
            assert word in said
            assert not found.cluster.committed(found.after.id, found.source)
            assert not [name for name in found.cluster.topics() if name.startswith(found.after.id)]
        found.words(20)
        found.before.until_processed(old, found.source, between)
        found.require_counted_once()


def test_a_full_disk_of_an_instance_that_follows_ends_that_instance_alone(
    migration: Migration, disk: SmallDisk
) -> None:
    found, between = migration, "again-repartition"
    sent = [text(f"key-{n}", "v", 1_000 + n, n % 4) for n in range(200)]
    found.write(sent)
    with found.old_running("again") as old:
        found.arm(FOLLOWED)
        found.launch()
        found.until_marked()
        new = found.after.instance(found.topology(RENAMED), state_dir=str(disk.path))
        try:
            new.start()
            until_running(new)
            found.until_reached(FOLLOWED)
            disk.fill()
            more = [text(f"another-{n}" + "-" * 200, "v", 2_000 + n, n % 4) for n in range(4_000)]
            found.write(more)
            found.before.until_processed(old, found.source, f"{found.before.id}-{between}")
            found.go(FOLLOWED)
            failed = until_failed(new)
        finally:
            with pytest.raises(StateDiskError):
                new.close(60.0)
        assert failed.code == "EF-STATE-DISK"
        found.until_switched()
    disk.empty()
    with found.after.running(found.topology(RENAMED), state_dir=str(disk.path)) as again:
        found.write([text("key-0", "v", 3_000, 0)])
        found.after.until_processed(again, found.source, f"{found.after.id}-{between}")
    wanted = {record.key: 1 for record in (*sent, *more)} | {b"key-0": 2}
    assert found.cluster.longs(found.out) == wanted


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_full_disk_of_the_broker_in_the_middle_of_the_copy(
    spark: SparkSession, tmp_path: Path
) -> None:
    if not SmallDisk.possible(tmp_path):
        pytest.skip("no leave to mount a tmpfs")
    with (
        closing(SmallDisk(tmp_path / "disk", BROKER_MB)) as disk,
        EmbeddedBroker(disk.path / "broker") as broker,
        closing(Cluster(broker.bootstrap_servers, "full")) as cluster,
        closing(Migration(cluster, tmp_path, COUNTS, RENAMED)) as found,
    ):
        found.words(60)
        between = f"{found.before.id}-again-repartition"
        with found.old_running("again") as old:
            found.arm(SENT)
            found.launch("--instances", "0", "--set", "task.timeout.ms=20000")
            found.until_reached(SENT)
            disk.fill()
            found.go(SENT)
            assert found.until_ended() == 1, found.said()
            assert "EF-" in found.said()
            wait_until(lambda: not broker.running, 60.0, "the broker to give up its disk")
            disk.empty()
            broker.start()
            found.words(60)
            found.before.until_processed(old, found.source, between)
            found.require_counted_once()
            found.launch("--instances", "0")
            found.until_switched()
            until_failed(old)
        with found.after.running(found.topology(RENAMED)) as new:
            found.words(20)
            found.after.until_processed(new, found.source, f"{found.after.id}-again-repartition")
        found.require_counted_once()
