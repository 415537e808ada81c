"""What two instances say of their rebalances: over HTTP and in files, and as the bench joins it."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from bench.rebalances import migrations, rebalance_lines, records_in
from everflow import KafkaStreams
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, counting, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PARTITIONS = 4
TASKS = [f"0_{number}" for number in range(PARTITIONS)]
WAIT_S = 90.0
Record = dict[str, Any]


@contextmanager
def written(cluster: Cluster, topic: str) -> Iterator[None]:
    """Some records a second in each partition, until the end."""
    stop = threading.Event()

    def write() -> None:
        count = 0
        while not stop.wait(0.1):
            count += 1
            cluster.write(topic, [text(f"k{p}", "v", 1_000 + count, p) for p in range(PARTITIONS)])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def told(streams: KafkaStreams) -> list[Record]:
    with urlopen(f"http://{streams.http_address}/rebalances", timeout=10.0) as answer:
        found: list[Record] = json.load(answer)
    return found


def active(streams: KafkaStreams) -> list[str]:
    found = streams.all_tasks().items()
    return sorted(str(task) for task, seen in found if seen.role.value == "active")


def test_a_join_and_a_leave_are_told_with_reason_tasks_gaps_and_bytes(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    source, out = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    cluster.write(source, [text(f"k{n}", "v", n, n % PARTITIONS) for n in range(400)])
    topology = counting(source, out)
    folders = [tmp_path / name for name in ("one", "two")]
    settings: dict[str, Any] = {
        "http_listen": "127.0.0.1:0",
        "probing_rebalance_interval_ms": 60_000,
        "acceptable_recovery_lag": 50,  # of 100: less than all, more than what comes meanwhile
    }
    with ExitStack() as running:
        first = running.enter_context(app.running(topology, state_dir=str(folders[0]), **settings))
        app.until_processed(first, source)
        running.enter_context(written(cluster, source))
        with app.running(topology, state_dir=str(folders[1]), **settings) as second:
            wait_until(
                lambda: len(active(first)) == len(active(second)) == PARTITIONS // 2,
                WAIT_S,
                "two tasks each",
                lambda: [active(first), active(second)],
            )
            moved = active(second)
            stayed = active(first)
            wait_until(
                lambda: all(one["outcome"] == "complete" for one in told(second)), WAIT_S, "records"
            )
            of_second = told(second)
        wait_until(
            lambda: told(first)[-1]["outcome"] == "complete" and active(first) == TASKS,
            WAIT_S,
            "the tasks to come back",
            lambda: [told(first)[-1]],
        )
        of_first = told(first)
    check_first(of_first, moved, stayed)
    check_second(of_second, moved)
    records = records_in(folders)
    kept = [one for one in records if one["instance"] == of_first[0]["instance"]]
    assert kept[: len(of_first)] == of_first, "the file has what HTTP has"
    found = migrations(records)
    assert sorted(one.task for one in found) == sorted(moved * 2), "there and back"
    for one in found:
        assert one.gap_s is not None
        assert 0.0 < one.gap_s < WAIT_S
    lines = rebalance_lines(records, records[0]["began_ms"] / 1000)
    assert len(lines) == 1 + len(found)


def check_first(records: list[Record], moved: list[str], stayed: list[str]) -> None:
    start, joined, *_ = records
    assert start["reason"] == "start"
    assert (start["gained"], start["lost"]) == (TASKS, [])
    assert joined["reason"] == "joined"
    assert (len(joined["before"]), len(joined["members"])) == (1, 2)
    handed = next(one for one in records if one["lost"])
    assert handed["lost"] == moved
    assert handed["kept"] == stayed
    assert sorted(handed["last_commits"]) == moved
    for task in stayed:
        # The next rebalance may come before a commit: it then has the gap.
        gaps = [one["gaps_ms"].get(task) for one in records[records.index(handed) :]]
        known = [gap for gap in gaps if gap is not None]
        assert known
        assert all(0.0 < gap < WAIT_S * 1000 for gap in known)
    withheld = [one["decision"]["withheld"] for one in records if one["decision"]]
    assert moved in withheld
    back = next(
        one for one in records if one["generation"] > handed["generation"] and one["gained"]
    )
    assert back["gained"] == moved
    assert sorted(back["first_commits"]) == moved
    times = [one["began_ms"] for one in records]
    assert times == sorted(times)
    for one in records:
        assert one["outcome"] == "complete"
        assert 0.0 <= one["joined_ms"] <= one["duration_ms"]


def check_second(records: list[Record], moved: list[str]) -> None:
    assert records[0]["reason"] == "start"
    warmed = [task for one in records for task in one["warmups"]]
    assert sorted(set(warmed)) == moved, "acceptable.recovery.lag=0: each is followed first"
    gained = next(one for one in records if one["gained"])
    assert (gained["gained"], gained["promoted"]) == (moved, moved)
    assert sum(one["restored_records"] for one in records) >= 50 * len(moved)
    assert sum(one["restored_bytes"] for one in records) > 0
