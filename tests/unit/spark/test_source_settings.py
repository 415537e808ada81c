"""Settings of the Kafka readers that each cost data or time when they were others (scenarios 29, 40
and 41)."""

from __future__ import annotations

from everflow.spark.source import FETCH, POLL_TIMEOUT_MS, SourceSettings


def settings(read_committed: bool) -> SourceSettings:
    return SourceSettings(
        bootstrap_servers="broker:9092", group="app", read_committed=read_committed, headers=False
    )


def test_each_isolation_level_has_a_reader_group_of_its_own() -> None:
    """Scenario 29: Spark caches consumers by group and partition, whatever their isolation."""
    committed, uncommitted = settings(True), settings(False)
    assert (committed.isolation, uncommitted.isolation) == ("read_committed", "read_uncommitted")
    assert committed.reader_group != uncommitted.reader_group
    assert "app" not in {
        committed.reader_group,
        uncommitted.reader_group,
    }  # the application's own group has the offsets


def test_a_fetch_at_the_tail_of_a_topic_does_not_wait() -> None:
    """Scenario 40: the default waits 500 ms for every partition of every micro-batch."""
    assert FETCH["fetch.max.wait.ms"] == "0"


def test_an_end_that_does_not_exist_fails_within_seconds() -> None:
    """Scenario 41: the default hangs for two minutes; the transaction's time-out is ten seconds."""
    assert POLL_TIMEOUT_MS <= 5_000
