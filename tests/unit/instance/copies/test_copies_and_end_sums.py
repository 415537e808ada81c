"""What a member tells of its copies, and the ends a leader compares them with."""

import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from everflow.errors import RetriableError
from everflow.instance.copies.known_copies import AtRest, Copies
from everflow.instance.copies.state_updater import FollowedTask
from everflow.instance.restore.restore_plan import ChangelogState, restore_plan
from everflow.instance.tasks.task import TaskRole, TaskStore
from everflow.instance.topics.end_offsets import EndSums
from everflow.records import StoreChanges, TaskId, TopicPartition
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.store_meta import Owner
from everflow.state.task_directory import StateDirectory
from unit.builders import store_spec
from unit.manual_clock import ManualClock

A, B, C = (TaskId(0, p) for p in range(3))
COUNTS = store_spec("counts")
TOTALS = store_spec("totals")


def changelog(task: TaskId, spec: StoreSpec) -> TopicPartition:
    return TopicPartition(f"app-{spec.changelog}", task.partition)


def write(
    directory: StateDirectory, task: TaskId, spec: StoreSpec, position: int, topic_id: str = "t"
) -> None:
    store = LmdbStore.open(directory.store_path(task, spec.name), kind=spec.kind)
    store.bind("c", topic_id)
    store.load_chunk([b"k"], [b"v"], np.zeros(1, np.int64), position, now_ms=1_000)
    store.close()


def scanned(
    directory: StateDirectory,
    specs: Iterable[StoreSpec],
    end: int = 100,
    clock: ManualClock | None = None,
) -> Copies:
    followed: dict[TaskId, FollowedTask] = {}
    copies = Copies(lambda: followed, list, list, dict, clock=clock or ManualClock(2_000))

    def states(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, ChangelogState]:
        return {
            tp: ChangelogState(start=0, end=end, cluster_id="c", topic_id="t") for tp in partitions
        }

    copies.scan(directory, lambda subtopology: specs, changelog, states)
    return copies


def test_folders_that_are_nobodys_are_reported_with_the_sum_of_their_stores(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path, "app", boot_id="x")
    write(directory, A, COUNTS, 10)
    write(directory, A, TOTALS, 5)
    write(directory, B, COUNTS, 7)
    assert scanned(directory, [COUNTS, TOTALS]).offset_sums() == {A: 15, B: 7}
    directory.close()


def test_a_copy_that_would_be_rebuilt_is_none(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path, "app", boot_id="x")
    write(directory, A, COUNTS, 500)  # beyond the end
    write(directory, B, COUNTS, 7, topic_id="of a topic deleted since")
    write(directory, C, COUNTS, 7)
    directory.distrust(directory.store_path(C, "counts"), "a power cut")
    assert scanned(directory, [COUNTS]).offset_sums() == {}
    directory.close()


def test_copies_know_what_was_committed_of_topics_that_are_still_read(tmp_path: Path) -> None:
    """The user may be forbidden to ask for others, and then no task could be recovered."""
    directory = StateDirectory.open(tmp_path, "app", boot_id="x")
    write(directory, A, COUNTS, 10)
    store = LmdbStore.open(directory.store_path(A, "counts"))
    store.apply(
        StoreChanges("counts", [], [], np.empty(0, np.int64)),
        position=None,
        expected=Owner("", ""),
        batch="i.0.0",
        inputs={"in-0": 7, "dropped-since-0": 9},
    )
    store.close()
    copies = scanned(directory, [COUNTS])
    assert copies.applied({"in", "another"}) == {TopicPartition("in", 0): 7}
    directory.close()


HOUR_MS = 3_600_000


def test_a_copy_that_nobody_follows_is_offered_until_it_means_a_rebuild(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    store = LmdbStore.open(tmp_path / "s", kind="key_value")
    store.bind("c", "t")
    store.load_chunk([b"k"], [b"v"], np.zeros(1, np.int64), 10, now_ms=1_000)
    newer = LmdbStore.open(tmp_path / "newer", kind="key_value")
    newer.load_chunk([b"k"], [b"v"], np.zeros(1, np.int64), 5, now_ms=1_000 + HOUR_MS)
    retention_ms = {"log": 10 * HOUR_MS, "other": 20 * HOUR_MS}
    copies = Copies(dict, list, delete_retention_ms=retention_ms.__getitem__, clock=clock)
    places = [
        TaskStore("s", store.path, TopicPartition("log", 0)),
        TaskStore("newer", newer.path, TopicPartition("other", 0)),
        TaskStore("unlogged", tmp_path / "unlogged", None),
    ]
    copies.rest(A, places)
    offered = {}
    for _ in range(12):
        state = ChangelogState(
            start=0, end=12, cluster_id="c", topic_id="t", delete_retention_ms=10 * HOUR_MS
        )
        plan = restore_plan(store.meta(), state, now_ms=clock.now_ms(), kind="key_value")
        assert (copies.offset_sums() == {A: 15}) is not plan.rebuild, (clock.now_ms(), plan)
        offered[plan.rebuild] = copies.offset_sums()
        clock.advance(HOUR_MS)
    assert offered == {False: {A: 15}, True: {}}
    LmdbStore.close_at(store.path)
    LmdbStore.close_at(newer.path)


def test_a_copy_found_at_the_start_ages_too(tmp_path: Path) -> None:
    directory, clock = StateDirectory.open(tmp_path, "app", boot_id="x"), ManualClock(2_000)
    write(directory, A, COUNTS, 10)
    write(directory, B, COUNTS, 100)
    copies = scanned(directory, [COUNTS], clock=clock)
    clock.advance(23 * HOUR_MS - 1_000)
    assert copies.offset_sums() == {A: 10, B: 100}
    clock.advance(1)
    assert copies.offset_sums() == {B: 100}, (
        "one at the very end of its changelog has missed nothing before the scan"
    )
    clock.advance(1_000)
    assert copies.offset_sums() == {}
    directory.close()


def test_a_copy_forgotten_for_nothing_is_remembered_unless_it_is_newer(tmp_path: Path) -> None:
    directory = StateDirectory.open(tmp_path, "app", boot_id="x")
    write(directory, A, COUNTS, 10)
    copies = scanned(directory, [COUNTS])
    copy = copies.forget(A)
    assert (copy, copies.offset_sums()) == (AtRest(10, copy.until_ms if copy else 0), {})
    assert copy is not None
    copies.remember(A, copy)
    copies.remember(A, AtRest(9))
    assert copies.offset_sums() == {A: 10}
    directory.close()


def test_followed_copies_count_as_they_are_now_and_running_tasks_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "s"
    LmdbStore.open(path, kind="key_value").load_chunk(
        [b"k"], [b"v"], np.zeros(1, np.int64), 10, now_ms=1_000
    )
    followed: dict[TaskId, FollowedTask] = {}
    running: set[TaskId] = set()
    recovering: set[TaskId] = set()
    copies = Copies(
        lambda: followed,
        lambda: running,
        lambda: recovering,
        lambda: {B: 3},
        clock=ManualClock(2_000),
    )
    copies.rest(A, [TaskStore("s", path, TopicPartition("log", 0))])
    assert copies.offset_sums() == {A: 10}
    followed[A] = FollowedTask(TaskRole.STANDBY, 12, 0)
    assert copies.offset_sums() == {A: 12}
    del followed[A]
    recovering |= {A, B, C}
    assert copies.offset_sums() == {A: 10, B: 3, C: 0}, "what restores does not run yet"
    recovering -= {A, B, C}
    running.add(A)
    assert copies.offset_sums() == {}
    LmdbStore.close_at(path)


def test_end_sums_are_read_after_they_are_asked_for_and_summed_per_task() -> None:
    ends = {TopicPartition("x", 0): 10, TopicPartition("y", 0): 5, TopicPartition("x", 1): 7}
    changelogs = {A: [TopicPartition("x", 0), TopicPartition("y", 0)], B: [TopicPartition("x", 1)]}
    sums = EndSums(lambda asked: dict(ends), changelogs, ManualClock())
    assert sums.latest() == {A: 15, B: 7}
    ends[TopicPartition("x", 1)] = 8
    assert sums.latest() == {A: 15, B: 8}, "never older than positions"
    sums.close()


def test_ends_that_cannot_be_read_are_none(caplog: pytest.LogCaptureFixture) -> None:
    def fail(asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        raise RetriableError("away")

    stopping = threading.Event()
    sums = EndSums(fail, {A: [TopicPartition("x", 0)]}, ManualClock(), stopping)
    assert sums.latest() is None
    assert caplog.messages == ["The ends of the changelogs cannot be read: away"]
    stopping.set()
    assert sums.latest() is None
    assert len(caplog.messages) == 1, "an instance that ends is refused by its own client"
    sums.close()


def test_a_slow_answer_leaves_the_last_one_for_some_seconds() -> None:
    clock = ManualClock()
    quick = threading.Event()
    quick.set()

    def read(asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        quick.wait(30)
        return dict.fromkeys(asked, 1)

    sums = EndSums(read, {A: [TopicPartition("x", 0)]}, clock)
    assert sums.latest() == {A: 1}
    quick.clear()
    assert sums.latest() == {A: 1}
    clock.advance(10_000)
    assert sums.latest() is None
    quick.set()
    sums.close()
