"""What a member tells of its copies, and the ends a leader compares them with."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np

from everflow import serdes
from everflow.clock import ManualClock
from everflow.errors import RetriableError
from everflow.records import TaskId, TopicPartition
from everflow.runtime.copies import Copies
from everflow.runtime.end_sums import EndSums
from everflow.runtime.restoration import ChangelogState
from everflow.runtime.state_updater import FollowedTask
from everflow.runtime.task import TaskRole, TaskStore
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.task_directory import StateDirectory

A, B, C = (TaskId(0, p) for p in range(3))
COUNTS = StoreSpec("counts", "key_value", serdes.string(), serdes.long())
TOTALS = StoreSpec("totals", "key_value", serdes.string(), serdes.long())


def changelog(task: TaskId, spec: StoreSpec) -> TopicPartition:
    return TopicPartition(f"app-{spec.changelog}", task.partition)


def write(directory: StateDirectory, task: TaskId, spec: StoreSpec, position: int, topic_id: str = "t") -> None:
    store = LmdbStore.open(directory.store_path(task, spec.name), kind=spec.kind)
    store.bind("c", topic_id)
    store.load_chunk([b"k"], [b"v"], np.zeros(1, np.int64), position, now_ms=1_000)
    store.close()


def scanned(directory: StateDirectory, specs: Iterable[StoreSpec], end: int = 100) -> Copies:
    followed: dict[TaskId, FollowedTask] = {}
    copies = Copies(lambda: followed, list, list, dict)

    def states(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, ChangelogState]:
        return {tp: ChangelogState(0, end, "c", "t") for tp in partitions}

    copies.scan(directory, lambda subtopology: specs, changelog, states, ManualClock(2_000))
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


def test_followed_copies_count_as_they_are_now_and_running_tasks_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "s"
    LmdbStore.open(path, kind="key_value").load_chunk([b"k"], [b"v"], np.zeros(1, np.int64), 10)
    followed: dict[TaskId, FollowedTask] = {}
    running: set[TaskId] = set()
    recovering: set[TaskId] = set()
    copies = Copies(lambda: followed, lambda: running, lambda: recovering, lambda: {B: 3})
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
    assert sums.latest() == {A: 15, B: 8}, "ends older than the members' positions would make copies look corrupt"
    sums.close()


def test_ends_that_cannot_be_read_are_none() -> None:
    def fail(asked: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        raise RetriableError("away")

    sums = EndSums(fail, {A: [TopicPartition("x", 0)]}, ManualClock())
    assert sums.latest() is None
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
