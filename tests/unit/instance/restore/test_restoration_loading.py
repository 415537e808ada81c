"""Loading stores in chunks from a log, suspending, going on, and what listeners see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everflow.errors import LogStartMovedError, RetriableError, StoreMismatchError
from everflow.instance.restore.changelogs import LeftOutLogs
from everflow.instance.restore.listeners import RestoreProgress
from everflow.instance.restore.restoration import (
    PreparedStore,
    RestoreJob,
    prepare_store,
    restore,
    restore_all,
)
from everflow.instance.restore.restore_plan import ChangelogState, RestorePlan, restore_plan
from everflow.records import Int64, StoreChanges, TaskId, TopicPartition
from everflow.state.changelog import pack_value
from everflow.state.left_out import CorrectedChunk, KeptEntry
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner, StoreMeta
from everflow.state.task_directory import StateDirectory
from unit.builders import store_spec
from unit.manual_clock import ManualClock

TASK = TaskId(0, 0)
CHANGELOG = TopicPartition("app-counts-changelog", 0)
SPEC = store_spec("counts")


@dataclass(frozen=True)
class Chunk:
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: Int64
    next_position: int

    @property
    def records(self) -> int:
        return len(self.keys)


@dataclass
class Log:
    """A changelog as a list of (key, value); a gap (None) is a transaction marker or a compacted
    record."""

    records: list[tuple[bytes | None, bytes | None] | None]
    clock: ManualClock
    chunk: int = 2
    reads: list[tuple[int, int]] = field(default_factory=list)

    def read(
        self, tp: TopicPartition, start: int, end: int, *, every: bool = False
    ) -> Iterator[Chunk]:
        self.reads.append((start, end))
        found = [(at, self.records[at]) for at in range(start, end) if self.records[at] is not None]
        for first in range(0, len(found), self.chunk):
            part = found[first : first + self.chunk]
            self.clock.advance(500)
            yield Chunk(
                [record[0] for _, record in part if record],
                [record[1] for _, record in part if record],
                np.array([at for at, _ in part], dtype=np.int64),
                part[-1][0] + 1,
            )


class Heard:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.seen: list[RestoreProgress] = []

    def restore_start(self, progress: RestoreProgress) -> None:
        self._note("start", progress)

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        self._note(f"batch {records}", progress)

    def restore_end(self, progress: RestoreProgress) -> None:
        self._note("end", progress)

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        self._note(f"suspended: {reason}", progress)

    def _note(self, event: str, progress: RestoreProgress) -> None:
        self.events.append(event)
        self.seen.append(progress)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    held = StateDirectory.open(tmp_path, "app")
    yield held
    held.close()


def prepared(
    directory: StateDirectory, log: ChangelogState, incarnation: str = "i1", now_ms: int = 1_000_000
) -> PreparedStore:
    return prepare_store(directory, TASK, SPEC, log, incarnation=incarnation, now_ms=now_ms)


def job_of(
    made: PreparedStore, incarnation: str = "i1", task: TaskId = TASK, name: str = "counts"
) -> RestoreJob:
    assert made.plan is not None
    return RestoreJob(
        task=task,
        store_name=name,
        store=made.store,
        changelog=CHANGELOG,
        plan=made.plan,
        incarnation=incarnation,
    )


def content(store: LmdbStore) -> dict[bytes, bytes]:
    with store.snapshot() as view:
        return dict(view.range(None, None))


def state(end: int, topic_id: str = "t1") -> ChangelogState:
    return ChangelogState(start=0, end=end, cluster_id="c1", topic_id=topic_id)


RECORDS: list[tuple[bytes | None, bytes | None] | None] = [
    (b"b", b"1"), (b"a", b"2"), None, (b"a", b"3"), (b"c", b"4"), (b"b", None), (None, b"x"), None,
]  # fmt: skip
FOLDED = {b"a": pack_value(3, b"3"), b"c": pack_value(4, b"4")}


def test_a_fresh_store_is_the_fold_of_a_log(directory: StateDirectory, clock: ManualClock) -> None:
    heard = Heard()
    made = prepared(directory, state(8))
    result = restore(job_of(made), Log(RECORDS, clock), clock=clock, listener=heard)
    assert result.done
    assert content(made.store) == FOLDED
    assert made.store.position == 8
    assert heard.events == ["start", "batch 2", "batch 2", "batch 2", "end"]
    assert [progress.position for progress in heard.seen] == [0, 2, 5, 7, 8]
    middle = heard.seen[2]
    assert (middle.records, middle.elapsed_s, middle.rate) == (4, 1.0, 4.0)
    assert middle.fraction == 5 / 8
    assert middle.remaining_s == pytest.approx(0.6)
    assert heard.seen[0].remaining_s is None
    assert made.store.meta().updated_ms == clock.now_ms()


def test_a_suspended_restore_goes_on_there(directory: StateDirectory, clock: ManualClock) -> None:
    heard, answers = Heard(), iter([False, True])
    made = prepared(directory, state(8))
    result = restore(
        job_of(made),
        Log(RECORDS, clock),
        clock=clock,
        listener=heard,
        stopped=lambda: next(answers),
    )
    assert not result.done
    assert heard.events[-1] == "suspended: stopped"
    log = Log(RECORDS, clock)
    again = prepared(directory, state(8), "i2")
    assert restore(job_of(again, "i2"), log, clock=clock).done
    assert log.reads == [(2, 8)]
    assert content(again.store) == FOLDED


def test_a_restore_cut_off_goes_on_short_of_forgotten_deletes(directory: StateDirectory) -> None:
    """By today's wall clock: nothing that is read from a log after it was begun misses a delete
    within its retention (D9)."""
    began_ms, hour_ms = 1_800_000_000_000, 3_600_000
    clock = ManualClock(began_ms)
    answers = iter([False, True])
    made = prepared(directory, state(8), now_ms=began_ms)
    assert not restore(
        job_of(made), Log(RECORDS, clock), clock=clock, stopped=lambda: next(answers)
    ).done
    again = prepared(directory, state(8), "i2", now_ms=began_ms + 23 * hour_ms)
    assert again.plan is not None
    assert (again.plan.rebuild, again.plan.start) == (False, 2)
    late = prepared(directory, state(8), "i3", now_ms=began_ms + 23 * hour_ms + 1)
    assert late.plan is not None
    assert late.plan.rebuild
    restore(job_of(late, "i3"), Log(RECORDS, clock), clock=clock)
    assert content(late.store) == FOLDED


def test_the_listener_knows_a_failed_read(directory: StateDirectory, clock: ManualClock) -> None:
    class Broken(Log):
        def read(
            self, tp: TopicPartition, start: int, end: int, *, every: bool = False
        ) -> Iterator[Chunk]:
            yield next(super().read(tp, start, end))
            raise OSError("broker away")

    heard = Heard()
    made = prepared(directory, state(8))
    with pytest.raises(OSError, match="broker away"):
        restore(job_of(made), Broken(RECORDS, clock), clock=clock, listener=heard)
    assert heard.events == ["start", "batch 2", "suspended: OSError: broker away"]
    assert made.store.position == 2


def test_another_owner_s_claim_ends_it(directory: StateDirectory, clock: ManualClock) -> None:
    made = prepared(directory, state(8))
    made.store.claim("someone else")
    with pytest.raises(StoreMismatchError):
        restore(job_of(made), Log(RECORDS, clock), clock=clock)
    assert content(made.store) == {}


def test_an_empty_log_sets_the_position(directory: StateDirectory, clock: ManualClock) -> None:
    made = prepared(directory, state(0))
    log = Log([], clock)
    assert restore(job_of(made), log, clock=clock).fraction == 1.0
    assert (made.store.position, log.reads) == (0, [])


def test_a_recreated_log_rebuilds_the_store(directory: StateDirectory, clock: ManualClock) -> None:
    made = prepared(directory, state(8))
    restore(job_of(made), Log(RECORDS, clock), clock=clock)
    again = prepared(directory, state(1, topic_id="t2"), "i2")
    assert again.plan is not None
    assert again.plan.rebuild
    assert again.store.path != made.store.path
    assert not made.store.path.exists()
    told = restore(job_of(again, "i2"), Log([(b"z", b"9")], clock), clock=clock)
    assert told.rebuild
    assert "created again" in told.reason
    assert content(again.store) == {b"z": pack_value(0, b"9")}


def test_a_damaged_store_is_rebuilt_and_told(directory: StateDirectory, clock: ManualClock) -> None:
    made = prepared(directory, state(8))
    made.store.close()
    (made.store.path / "data.mdb").write_bytes(b"\xff" * 8192)
    again = prepared(directory, state(8), "i2")
    assert again.plan is not None
    assert again.plan.rebuild
    assert "cannot be read" in again.plan.reason
    assert restore(job_of(again, "i2"), Log(RECORDS, clock), clock=clock).done
    assert content(again.store) == FOLDED


def test_a_claim_refuses_an_earlier_owner(directory: StateDirectory, clock: ManualClock) -> None:
    made = prepared(directory, state(8))
    restore(job_of(made), Log(RECORDS, clock), clock=clock)
    prepared(directory, state(8), "i2")
    late = StoreChanges("counts", [b"a"], [b"old"], np.array([1]))
    with pytest.raises(StoreMismatchError):
        made.store.apply(late, position=9, expected=Owner("i1", ""), batch="i1.1.0")
    assert content(made.store) == FOLDED


def test_the_shortest_is_first_till_a_stop(directory: StateDirectory, clock: ManualClock) -> None:
    jobs = []
    for task, end in ((TaskId(0, 0), 8), (TaskId(0, 1), 3)):
        made = prepare_store(directory, task, SPEC, state(end), incarnation="i1", now_ms=0)
        jobs.append(job_of(made, task=task))
    answers = iter([False, True])
    results = restore_all(jobs, Log(RECORDS, clock), clock=clock, stopped=lambda: next(answers))
    assert [(result.task.partition, result.done) for result in results] == [(1, True), (0, False)]


def test_a_window_store_is_what_is_kept(directory: StateDirectory, clock: ManualClock) -> None:
    spec = store_spec("daily", "window", retention_ms=120_000, window_size_ms=60_000)
    starts = [minute * 60_000 for minute in range(50)]
    records: list[tuple[bytes | None, bytes | None] | None] = [
        (b"k" + start.to_bytes(8, "big") + bytes(4), b"1") for start in starts
    ]
    made = prepare_store(directory, TASK, spec, state(50), incarnation="i1", now_ms=0)
    restore(job_of(made, name="daily"), Log(records, clock, chunk=7), clock=clock)
    assert [int.from_bytes(key[1:9], "big") for key in content(made.store)] == starts[-2:]


def test_a_log_whose_begin_is_deleted_under_a_restore_is_read_from_where_it_begins_now(
    directory: StateDirectory, clock: ManualClock
) -> None:
    """KAFKA-20876: where the log's begin goes while it is read, the same offset would be asked for
    for ever. What was loaded up to there is not gone on with: deletes may be missing in it."""

    class Deleted(Log):
        def read(
            self, tp: TopicPartition, start: int, end: int, *, every: bool = False
        ) -> Iterator[Chunk]:
            chunks = super().read(tp, start, end, every=every)
            yield next(chunks)
            raise LogStartMovedError("offset 2 is outside the log", tp)

    made = prepared(directory, state(8))
    with pytest.raises(LogStartMovedError):
        restore(job_of(made), Deleted(RECORDS, clock, chunk=2), clock=clock)
    loaded = content(made.store)
    assert loaded, "some of it was loaded"
    moved = replace(state(8), start=4)
    again = prepared(directory, moved)
    assert again.plan is not None
    assert again.plan.rebuild
    assert (again.plan.start, again.plan.end) == (4, 8)
    assert content(again.store) == {}
    done = restore(job_of(again), Log(RECORDS, clock, chunk=2), clock=clock)
    assert done.done
    assert content(again.store) == {b"c": pack_value(4, b"4")}


def test_starts_that_die_wipe_nothing(directory: StateDirectory, clock: ManualClock) -> None:
    """KAFKA-20753: a store that is marked as open by a crash is wiped, and so is the next one. Here
    a start only claims the store: what is in it, with its position, stays true."""
    made = prepared(directory, state(8))
    restore(job_of(made), Log(RECORDS, clock, chunk=2), clock=clock)
    path = made.store.path
    for life in ("i2", "i3"):  # each claims it and is gone before it has read anything
        again = prepared(directory, state(8), life)
        assert again.plan is not None
        assert not again.plan.rebuild
        assert (again.plan.start, again.store.path) == (8, path)
    assert content(again.store) == FOLDED


# Where a restore starts, and when a store must not be trusted (D5, scenarios 13 and 14).

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
        (replace(META, position=9), LOG, "position 9 "),
        (replace(META, position=101), LOG, "position 101 "),
        (replace(META, updated_ms=NOW_MS - 23 * HOUR_MS - 1), LOG, "delete.retention.ms"),
        (replace(META, updated_ms=-1), LOG, "an unknown time"),
        (replace(META, updated_ms=NOW_MS + HOUR_MS + 1), LOG, "ahead of this host's clock"),
        (META, replace(LOG, end=59), "10..59"),  # the end of a reused topic: what is committed
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
