"""Where a restore starts, and when a store must not be trusted (D5, scenarios 13 and 14)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from everflow.errors import RetriableError
from everflow.instance.restore.changelogs import LeftOutLogs
from everflow.instance.restore.restore_plan import ChangelogState, RestorePlan, restore_plan
from everflow.records import TopicPartition
from everflow.state.left_out import CorrectedChunk, KeptEntry
from everflow.state.store_meta import StoreMeta

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
LOG = ChangelogState(
    start=10, end=100, cluster_id="c1", topic_id="t1", delete_retention_ms=24 * HOUR_MS
)
META = StoreMeta(
    kind="key_value", position=60, topic_id="t1", cluster_id="c1", updated_ms=NOW_MS - HOUR_MS
)


def plan(meta: StoreMeta | None, log: ChangelogState = LOG, **changes: object) -> RestorePlan:
    return restore_plan(meta, log, **{"now_ms": NOW_MS, "kind": "key_value", **changes})  # type: ignore[arg-type]


def test_only_the_tail_is_replayed() -> None:
    assert plan(META) == RestorePlan(60, 100, False, "40 offsets behind")


def test_a_store_at_the_end_has_nothing_to_read() -> None:
    found = plan(replace(META, position=100))
    assert (found.start, found.end, found.rebuild, found.records_max) == (100, 100, False, 0)


@pytest.mark.parametrize("meta", [None, StoreMeta(kind="key_value")])
def test_a_new_store_reads_the_whole_log(meta: StoreMeta | None) -> None:
    assert plan(meta) == RestorePlan(10, 100, False, "new store")


@pytest.mark.parametrize(
    ("meta", "log", "reason"),
    [
        (replace(META, cluster_id="c0"), LOG, "cluster c0"),
        (replace(META, topic_id="t0"), LOG, "deleted and created again"),
        (replace(META, topic_id=None), LOG, "deleted and created again"),
        (replace(META, position=9), LOG, "outside"),
        (replace(META, position=101), LOG, "outside"),
        (replace(META, updated_ms=NOW_MS - 23 * HOUR_MS - 1), LOG, "delete.retention.ms"),
        (replace(META, updated_ms=-1), LOG, "an unknown time"),
        (replace(META, updated_ms=NOW_MS + HOUR_MS + 1), LOG, "ahead of this host's clock"),
        (META, replace(LOG, end=59), "outside"),
        (replace(META, kind="window"), LOG, "topology wants key_value"),
        (replace(META, retention_ms=5), LOG, "retention"),
    ],
)
def test_what_is_rebuilt_says_why(meta: StoreMeta, log: ChangelogState, reason: str) -> None:
    found = plan(meta, log)
    assert found.rebuild
    assert found.start == 10
    assert reason in found.reason


def test_the_folder_s_doubt_wins() -> None:
    assert plan(META, distrusted="power cut") == RestorePlan(10, 100, True, "power cut")


@pytest.mark.parametrize(
    ("meta", "log"),
    [
        (replace(META, updated_ms=NOW_MS + HOUR_MS), LOG),  # clocks of hosts differ
        (replace(META, updated_ms=NOW_MS - 23 * HOUR_MS), LOG),  # within retention less the margin
        (
            replace(META, position=100, updated_ms=-1),
            LOG,
        ),  # nothing was written since, so no delete was missed
        (META, replace(LOG, cluster_id=None, topic_id=None)),  # brokers that know no ids
        (replace(META, position=10), LOG),
        (META, replace(LOG, end=60)),
    ],
)
def test_what_can_be_trusted_is_not_rebuilt(meta: StoreMeta, log: ChangelogState) -> None:
    assert not plan(meta, log).rebuild


def test_nothing_is_read_of_a_reused_topic_that_begins_behind_its_committed_offset() -> None:
    assert plan(None, replace(LOG, end=3)) == RestorePlan(10, 10, False, "new store")


IN, REUSED = TopicPartition("in", 0), TopicPartition("app-t-left-out-changelog", 0)


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
    return LeftOutLogs(admin, {"in": REUSED.topic}, lambda: cluster)


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
