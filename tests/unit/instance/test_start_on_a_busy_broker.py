"""A broker that has much to do knows no leader of a new topic for longer than a question waits: the
start asks again, for `task.timeout.ms`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everflow import StreamsBuilder
from everflow.clock import ManualClock
from everflow.config import StreamsConfig
from everflow.errors import RetriableError, TaskTimeoutError
from everflow.instance.start_up import prepare_cluster
from everflow.instance.tasks.blueprint import Blueprint
from everflow.records import TopicPartition
from everflow.state.task_directory import StateDirectory


class BusyCluster:
    """What a start asks of a `ClusterAdmin`; ``leaderless`` questions about offsets are in vain."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, Mapping[str, str]]] = {"a": (2, {}), "b": (2, {})}
        self.leaderless = 0

    def wait_until_reachable(self, *_: object, **__: object) -> str:
        return "cluster"

    def describe_topics(self, names: Iterable[str]) -> dict[str, Any]:
        found = {name: self.kept[name] for name in names if name in self.kept}
        return {
            name: SimpleNamespace(partitions=partitions, topic_id=name)
            for name, (partitions, _) in found.items()
        }

    def topic_configs(self, names: Iterable[str]) -> dict[str, Mapping[str, str]]:
        return {name: self.kept[name][1] for name in names}

    def list_topics(self) -> list[str]:
        return list(self.kept)

    def create_topics(self, wanted: Mapping[str, Any], *_: object, **__: object) -> None:
        self.kept.update(wanted)

    def committed(self, *_: object, **__: object) -> dict[TopicPartition, Any]:
        return {}

    def list_offsets(
        self, partitions: Iterable[TopicPartition], *_: object
    ) -> dict[TopicPartition, int]:
        if self.leaderless:
            self.leaderless -= 1
            raise RetriableError("asking for offsets of app-c-changelog-0: Not leader")
        return dict.fromkeys(partitions, 0)

    end_offsets = list_offsets


def started(cluster: BusyCluster, folder: Path, clock: ManualClock) -> Blueprint:
    builder = StreamsBuilder()
    builder.stream("a").group_by_key().count(store="c").to_stream().to("b")
    config = StreamsConfig(
        application_id="app", bootstrap_servers="nowhere:1", task_timeout_ms=60_000
    )
    directory = StateDirectory.open(folder, "app")
    admin: Any = cluster
    try:
        return prepare_cluster(builder.build(), config, admin, directory, clock, threading.Event())
    finally:
        directory.close()


def test_an_instance_waits_for_the_topics_that_another_one_has_just_created(tmp_path: Path) -> None:
    cluster, clock = BusyCluster(), ManualClock()
    first = started(cluster, tmp_path / "one", clock)
    assert "app-c-changelog" in cluster.kept
    cluster.leaderless = 4
    second = started(cluster, tmp_path / "two", clock)
    assert (second.inputs, cluster.leaderless) == (first.inputs, 0)


def test_but_not_for_ever(tmp_path: Path) -> None:
    cluster, clock = BusyCluster(), ManualClock()
    started(cluster, tmp_path / "one", clock)
    cluster.leaderless = 1_000_000
    with pytest.raises(TaskTimeoutError, match=r"preparing.*60.*app-c-changelog-0"):
        started(cluster, tmp_path / "two", clock)
