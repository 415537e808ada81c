"""The restored share over several stores."""

from __future__ import annotations

import dataclasses

from everflow.cli.restoring import RestoreWatch
from everflow.records import TaskId, TopicPartition
from everflow.runtime.restoration import RestoreProgress


def progress(store: str, end: int) -> RestoreProgress:
    return RestoreProgress(TaskId(0, 1), store, TopicPartition(f"{store}-changelog", 1), 10, end, 10, 0, 0.0)


def test_the_share_is_weighted_by_offsets_and_forgets_finished_stores() -> None:
    watch, small, large = RestoreWatch(), progress("small", 110), progress("large", 310)
    assert watch.share() is None
    watch.restore_start(small)
    watch.restore_start(large)
    assert watch.share() == 0.0
    watch.batch_restored(dataclasses.replace(small, position=110), 100)
    assert watch.share() == 0.25
    watch.restore_end(dataclasses.replace(small, position=110))
    assert watch.share() == 0.0
    watch.restore_suspended(large, "the task went away")
    assert watch.share() is None
