"""What was left out of a reused topic is known before the topic is followed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from everflow.errors import RetriableError
from everflow.instance.restore.changelogs import LeftOutLogs
from everflow.records import TopicPartition
from everflow.state.left_out import CorrectedChunk, KeptEntry

IN, LOG = TopicPartition("in", 0), TopicPartition("app-t-left-out-changelog", 0)


class Cluster:
    """One log of what was left out. ``open``: offsets of a transaction that has not ended."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, KeptEntry]] = []
        self.open = 0
        self.asked = 0

    def end_offsets(
        self, partitions: Iterable[TopicPartition], isolation: str
    ) -> dict[TopicPartition, int]:
        self.asked += 1
        behind = self.open if isolation == "read_uncommitted" else 0
        return {tp: len(self.records) + behind for tp in partitions}

    def list_offsets(self, partitions: Iterable[TopicPartition], *_: str) -> Any:
        return dict.fromkeys(partitions, 0)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        """It is no connection."""

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[CorrectedChunk]:
        found = self.records[start:end]
        yield CorrectedChunk(
            keys=[key for key, _ in found],
            values=[one.packed() for _, one in found],
            timestamps=np.array([one.time for _, one in found], np.int64),
            offsets=np.arange(start, end),
            next_position=end,
            records=len(found),
        )


def logs_of(cluster: Cluster) -> LeftOutLogs:
    admin: Any = cluster
    return LeftOutLogs(admin, {"in": LOG.topic}, lambda: cluster)


def test_a_copy_follows_as_far_as_is_known_what_was_left_out() -> None:
    cluster = Cluster()
    logs = logs_of(cluster)
    assert logs.covered({IN: 5}) == {IN: 5}
    cluster.open = 2
    assert logs.covered({IN: 9}) == {IN: 5}, "a transaction that committed 9 may be among them"
    with pytest.raises(RetriableError, match=r"transaction.*app-t-left-out"):
        logs.before(IN, 9)
    cluster.records.append((b"a", KeptEntry(7, b"v", 1)))
    cluster.open = 0
    assert logs.before(IN, 9) == {b"a": KeptEntry(7, b"v", 1)}
    cluster.records.append((b"b", KeptEntry(11, None, 2)))
    assert logs.before(IN, None).keys() == {b"a"}, "no more than was asked for is known"
    assert logs.before(IN, 12).keys() == {b"a", b"b"}


def test_where_nothing_new_was_committed_nobody_is_asked() -> None:
    cluster = Cluster()
    logs = logs_of(cluster)
    logs.covered({IN: 5})
    asked = cluster.asked
    assert logs.covered({IN: 5}) == {IN: 5}
    assert logs.before(TopicPartition("other", 0), 3) == {}
    assert cluster.asked == asked
