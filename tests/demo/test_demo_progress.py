"""Lag from committed offsets and log ends, against a fake of the admin client."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pyarrow as pa

from everflow import serdes
from everflow.kafka.admin import ClusterAdmin, TopicDescription
from everflow.records import CommittedOffset, TopicPartition
from everflow.topology.graph import EdgeType, SourceNode
from everflow.topology.program import Topology
from everflow_demo.progress import LagReader, Progress, Sample, input_topics

FIRST, SECOND = TopicPartition("flights", 0), TopicPartition("flights", 1)


class FakeAdmin:
    """Answers from plain mappings and notes the order of questions."""

    def __init__(self) -> None:
        self.partitions = {"flights": 2}
        self.offsets = {FIRST: 30}
        self.starts = {FIRST: 10, SECOND: 5}
        self.ends = {FIRST: 100, SECOND: 20}
        self.asked: list[str] = []

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        known = self.partitions
        return {name: TopicDescription(name, known[name], "id") for name in names if name in known}

    def committed(
        self, group: str, partitions: Sequence[TopicPartition], *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        self.asked.append("committed")
        return {
            tp: CommittedOffset(offset, "")
            for tp, offset in self.offsets.items()
            if tp in partitions
        }

    def list_offsets(
        self, partitions: Iterable[TopicPartition], which: str, isolation: str
    ) -> dict[TopicPartition, int]:
        self.asked.append(f"{which} {isolation}")
        known = self.starts if which == "earliest" else self.ends
        return {tp: known[tp] for tp in partitions}


def reader(admin: FakeAdmin, *topics: str) -> LagReader:
    return LagReader(cast(ClusterAdmin, admin), "application", topics)


def test_partitions_without_a_commit_count_from_their_start() -> None:
    sample = reader(FakeAdmin(), "flights").sample(1.0, "2 active")
    assert sample is not None
    assert (sample.at_s, sample.consumed, sample.log_end, sample.tasks) == (
        1.0,
        30 + 5,
        120,
        "2 active",
    )


def test_purged_records_are_not_lag() -> None:
    admin = FakeAdmin()
    admin.offsets = {FIRST: 3, SECOND: 20}  # below the log's start: deleted by retention
    sample = reader(admin, "flights").sample(0.0)
    assert sample is not None
    assert sample.consumed == 10 + 20


def test_what_is_done_is_not_asked_where_it_starts() -> None:
    admin = FakeAdmin()
    admin.offsets = {FIRST: 100, SECOND: 20}
    sample = reader(admin, "flights").sample(0.0)
    assert sample is not None
    assert (sample.consumed, sample.log_end) == (120, 120)
    assert admin.asked == ["committed", "latest read_uncommitted"]


def test_what_is_purged_between_two_questions_makes_no_negative_lag() -> None:
    admin = FakeAdmin()
    admin.starts[FIRST] = 110
    sample = reader(admin, "flights").sample(0.0)
    assert sample is not None
    assert (sample.consumed, sample.log_end) == (100 + 5, 120)


def test_nothing_is_known_until_all_topics_exist() -> None:
    admin = FakeAdmin()
    lag = reader(admin, "flights", "routes")
    assert lag.sample(0.0) is None
    admin.partitions["routes"] = 0
    assert lag.sample(0.0) is not None


def test_input_topics_hold_repartition_topics_by_their_full_name() -> None:
    edge, text = EdgeType(pa.string(), pa.string()), serdes.string()
    nodes: Any = (
        SourceNode("a", (), edge, ("flights", "weather"), text, text),
        SourceNode("b", (), edge, ("by-route-repartition",), text, text, "repartition"),
    )
    assert input_topics(Topology(nodes), "app") == [
        "flights",
        "weather",
        "app-by-route-repartition",
    ]


def test_progress_rates_are_taken_over_the_window() -> None:
    progress = Progress(window_s=2.0)
    assert progress.line() == "0 records/s · lag unknown"
    for second in range(6):
        progress.add(Sample(float(second), consumed=second * second * 1_000, log_end=30_000))
    # 9,000 at 3 s, 25,000 at 5 s
    assert progress.line() == "8,000 records/s · lag 5,000"


def test_progress_ends_with_what_the_tasks_do() -> None:
    progress = Progress()
    progress.add(Sample(0.0, 0, 10, tasks="2 active"))
    assert progress.line() == "0 records/s · lag 10 · here: 2 active"
