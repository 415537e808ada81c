"""What `everflow migrate` refuses, and what it meets in the middle: the old version goes on."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from chaos.rounds.surroundings import SmallDisk
from everflow.errors import MigrationError
from everflow.migration.copying import SENT
from everflow.migration.migrator import CAUGHT_UP, CREATED, FOLLOWED, MARKED, SWITCHING
from everflow.testing import EmbeddedBroker, wait_until
from everflow.testing.kafka_proxy import KafkaProxy
from integration.lifecycle.lifecycle_cluster import Cluster, text, until_failed, until_running
from integration.lifecycle.migrating import COMMAND, Migration

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNTS = """
again = words.repartition(name="again", partitions=4)
again.group_by_key().count(store="counts").to_stream().to("{out}")
again.group_by_key().windowed_by(TimeWindows.of_size_and_grace("10 seconds", "0 seconds")) \\
    .count(store=Materialized("windows", retention="1 day"))
"""
RENAMED = COUNTS.replace('"counts"', '"totals"')
FULL_MB = 24
BROKER_MB = 128


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    """Of `FULL_MB`, or as many as a test says."""
    if not SmallDisk.possible(tmp_path):
        pytest.skip("no leave to mount a tmpfs")
    with closing(SmallDisk(tmp_path / "disk", getattr(request, "param", FULL_MB))) as made:
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
    (found.folder / "broken.py").write_text("import there_is_no_such_module\ntopology = None\n")
    fewer = right.replace("partitions=4", "partitions=2")
    shorter = right.replace("1 day", "1 minute")
    wider = right.replace("10 seconds", "20 seconds")
    with found.old_running("again") as old:
        cure = f"{found.before.id} cannot be migrated", "application.id without a migration"
        for program, options, code, ending, words in (
            (fewer, (), "EF-MIGRATION-PLAN", 1, ("store totals", "2 partitions", "fewer", *cure)),
            (shorter, (), "EF-MIGRATION-PLAN", 1, ("store windows", "--shorten windows", *cure)),
            (wider, (), "EF-MIGRATION-PLAN", 1, ("store windows", "20000 ms", *cure)),
            (
                *(right, ("--values", "totals=broken:value"), "EF-PROGRAM", 2),
                ("totals=broken:value", "there_is_no_such_module"),
            ),
            (
                *(right, ("--values", "totals=json:nothing"), "EF-PROGRAM", 2),
                ("totals=json:nothing",),
            ),
        ):
            (found.folder / "new.py").write_text(program)
            ended, said = found.told(*options)
            assert ended == ending, said
            assert code in said
            for word in words:
                assert word in " ".join(said.split()), said
            assert not found.cluster.committed(found.after.id, found.source)
            assert not [name for name in found.cluster.topics() if name.startswith(found.after.id)]
        asked = ["check", "broken.py:topology", "--application-id", found.before.id]
        asked += ["--bootstrap-servers", found.cluster.bootstrap]
        checked = subprocess.run(
            [sys.executable, "-c", COMMAND, *asked],
            cwd=found.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 2
        for word in ("EF-PROGRAM", "broken.py:1", "there_is_no_such_module"):
            assert word in checked.stderr
        found.words(20)
        found.before.until_processed(old, found.source, between)
        found.require_counted_once()


def test_an_instance_with_a_full_disk_says_so_and_is_waited_for(
    migration: Migration, disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot follow, says so, and the old version goes on; with room again it follows."""
    found, between = migration, "again-repartition"
    sent = [text(f"key-{n}" + "-" * 200, "v", 1_000 + n, n % 4) for n in range(4_000)]
    first = "key-0" + "-" * 200
    found.write(sent)
    with found.old_running("again") as old:
        found.arm(CREATED)
        found.launch("--set", "acceptable.recovery.lag=0")
        found.until_reached(CREATED)
        tmpfs: dict[str, Any] = {"state_dir": str(disk.path), "acceptable_recovery_lag": 0}
        with found.after.running(found.topology(RENAMED), **tmpfs) as new:
            disk.fill()
            found.go(CREATED)
            wait_until(lambda: "[EF-STATE-DISK]" in caplog.text, 60.0, "the instance to say so")
            found.write([text(first, "v", 9_000, 0)])
            found.before.until_processed(old, found.source, f"{found.before.id}-{between}")
            assert found.process is not None
            assert found.process.poll() is None, "it waits for an instance that follows"
            disk.empty()
            found.until_switched()
            wait_until(lambda: found.runs(new), 60.0, "tasks of the new version")
            found.write([text(first, "v", 9_001, 0)])
            found.after.until_processed(new, found.source, f"{found.after.id}-{between}")
    wanted = {record.key: 1 for record in sent} | {sent[0].key: 3}
    assert found.cluster.longs(found.out) == wanted


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_instance_whose_disk_fills_after_it_has_followed_is_not_switched_to(
    migration: Migration, disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it is switched to, its error says what to do, and with room its next start goes on."""
    found, between = migration, "again-repartition"
    tmpfs: dict[str, Any] = {"state_dir": str(disk.path), "acceptable_recovery_lag": 0}
    program, wanted = found.topology(RENAMED), Counter[bytes | None]()

    def write(name: str, count: int) -> None:
        keys = [f"{name}-{n}" + "-" * 200 for n in range(count)]
        found.write(text(key, "v", 1_000 + n, n % 4) for n, key in enumerate(keys))
        wanted.update(key.encode() for key in keys)

    write("before", 400)
    with found.old_running("again") as old, ExitStack() as stack:
        found.arm(FOLLOWED)
        found.launch("--set", "acceptable.recovery.lag=0")
        found.until_marked()
        new = stack.enter_context(found.after.running(program, **tmpfs))
        found.until_reached(FOLLOWED)
        disk.fill()
        write("full", 4_000)
        found.before.until_processed(old, found.source, f"{found.before.id}-{between}")
        found.go(FOLLOWED)
        assert found.until_ended() == 1, found.said()
        assert "EF-MIGRATION-MEMBERS" in found.said()
        assert "1_0" in found.said()
        assert f"[EF-STATE-DISK] The state in {disk.path}" in caplog.text
        write("refused", 400)
        found.before.until_processed(old, found.source, f"{found.before.id}-{between}")
        assert found.cluster.longs(found.out) == wanted
        disk.empty()
        found.arm(SWITCHING)
        found.launch("--set", "acceptable.recovery.lag=0")
        found.until_reached(SWITCHING)
        disk.fill()
        found.go(SWITCHING)
        found.until_switched()
        until_failed(old)
        write("switched", 4_000)
        error = until_failed(new)
        assert error.code == "EF-STATE-DISK"
        assert str(disk.path) in str(error)
    disk.empty()
    with found.after.running(program, **tmpfs) as again:
        found.after.until_processed(again, found.source, f"{found.after.id}-{between}")
    assert found.cluster.longs(found.out) == wanted


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("disk", [BROKER_MB], indirect=True)
def test_a_broker_with_a_full_disk_ends_the_command_and_both_versions_go_on_with_room(
    disk: SmallDisk, spark: SparkSession, tmp_path: Path
) -> None:
    """Kafka halts when its log folder refuses a write, here in the middle of a copy's transaction.
    The old version waits as for any broker that is away."""
    with EmbeddedBroker(disk.path / "broker", heap="256m") as broker:
        cluster = Cluster(broker.bootstrap_servers, "full")
        waits = {"task_timeout_ms": 600_000}
        with (
            closing(cluster),
            closing(Migration(cluster, tmp_path, COUNTS, RENAMED, 4, waits)) as found,
        ):
            _meets_a_full_broker(found, broker, disk)


def _meets_a_full_broker(found: Migration, broker: EmbeddedBroker, disk: SmallDisk) -> None:
    between = "again-repartition"
    found.words(40)
    with found.old_running("again") as old:
        found.arm(SENT)
        found.launch("--instances", "0", "--set", "task.timeout.ms=10000")
        found.until_reached(SENT)
        disk.fill()
        wait_until(lambda: not broker.running, 60.0, "the broker to halt")
        found.go(SENT)
        assert found.until_ended() == 1, found.said()
        assert "EF-MIGRATION-BROKERS" in found.said()
        assert broker.bootstrap_servers in found.said()
        assert "Call the same command again" in " ".join(found.said().split())
        assert old.error is None
        disk.empty()
        broker.restart()
        found.words(20)
        found.before.until_processed(old, found.source, f"{found.before.id}-{between}")
        found.require_counted_once()
        assert found.told("--instances", "0")[0] == 0, found.said()
        until_failed(old)
    with found.after.running(found.topology(RENAMED)) as new:
        found.words(20)
        found.after.until_processed(new, found.source, f"{found.after.id}-{between}")
    found.require_counted_once()


def test_without_an_instance_that_would_go_on_nothing_is_switched(migration: Migration) -> None:
    found, between = migration, "again-repartition"
    found.words(20)
    with found.old_running("again") as old:
        found.arm(FOLLOWED)
        found.launch()
        found.until_marked()
        with found.after.running(found.topology(RENAMED)):
            found.until_reached(FOLLOWED)
        found.go(FOLLOWED)
        assert found.until_ended() == 1, found.said()
        assert "EF-MIGRATION-MEMBERS" in found.said()
        found.words(20)
        found.before.until_processed(old, found.source, f"{found.before.id}-{between}")
        found.require_counted_once()


def test_a_third_version_that_comes_in_the_middle_is_not_switched_away(
    migration: Migration,
) -> None:
    found = migration
    found.words(20)
    with found.old_running("again"):
        found.arm(CREATED)
        found.launch("--instances", "0")
        found.until_reached(CREATED)
    program = found.topology(COUNTS.replace('"counts"', '"third"'))
    with found.before.running(program, create_new_topics=True) as third:
        found.go(CREATED)
        assert found.until_ended() == 1, found.said()
        assert "EF-MIGRATION-MEMBERS" in found.said()
        assert found.before.id in found.said()
        assert "--from" in found.said()
        found.write([text("third", "v", 9_000, 0)])
        found.before.until_processed(third, found.source, f"{found.before.id}-again-repartition")
        assert found.cluster.longs(found.out)[b"third"] == 1


def test_a_new_version_that_is_started_too_early_waits_and_one_that_is_given_up_never_runs(
    migration: Migration, caplog: pytest.LogCaptureFixture
) -> None:
    """Its topics are not lost, as a start without them says otherwise; and without the mark it
    would be a first start, beside the old version."""
    found = migration
    found.words(20)
    with found.old_running("again"):
        pass
    for given_up in (True, False):
        found.arm(MARKED)
        found.launch("--instances", "0")
        found.until_reached(MARKED)
        new = found.after.instance(found.topology(RENAMED))
        caplog.clear()
        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(new.start)
            wait_until(lambda: "everflow migrate" in caplog.text, 60.0, "the start to wait")
            assert not started.done()
            found.kill()
            if not given_up:
                found.launch("--instances", "0")
                started.result(60.0)
                until_running(new)
                found.kill()
                assert new.close(60.0)
            else:
                assert found.told("--back")[0] == 0
                with pytest.raises(MigrationError):
                    started.result(60.0)


def test_a_migrator_misses_topics_that_a_back_that_was_cut_off_has_deleted(
    migration: Migration,
) -> None:
    found = migration
    found.words(20)
    with found.old_running("again"):
        found.arm(CAUGHT_UP)
        found.launch("--instances", "0")
        found.until_reached(CAUGHT_UP)
        found.kill()
        found.cluster.delete(f"{found.after.id}-totals-changelog")
        code, said = found.told("--instances", "0")
        assert code == 1, said
        assert "EF-MIGRATION-PLAN" in said
        assert found.told("--back")[0] == 0
        assert found.told("--instances", "0")[0] == 0


@pytest.mark.parametrize("option", ["--back", "--instances=0"])
def test_a_commit_on_its_way_of_a_killed_migrator_is_over_before_the_next_call_looks(
    migration: Migration, own_proxy: KafkaProxy, option: str
) -> None:
    """Without a fence `--back` deletes the new topics, and then the commit gives them the state."""
    found, between = migration, "again-repartition"
    found.words(40)
    with found.old_running("again") as old:
        found.arm(SWITCHING)
        found.launch("--instances", "0", "--bootstrap-servers", own_proxy.bootstrap_servers)
        found.until_reached(SWITCHING)
        sent = own_proxy.hold("EndTxn")
        found.go(SWITCHING)
        sent.wait()
        found.kill()
        code, said = found.told(option)
        assert code == 0, said
        sent.release()
        if option == "--back":
            found.words(20)
            found.before.until_processed(old, found.source, f"{found.before.id}-{between}")
            assert not found.cluster.committed(found.after.id, found.source)
            found.require_counted_once()
            return
        until_failed(old)
    with found.after.running(found.topology(RENAMED)) as new:
        found.words(20)
        found.after.until_processed(new, found.source, f"{found.after.id}-{between}")
    found.require_counted_once()
