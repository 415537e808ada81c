"""At-least-once: what a rebalancing group refused goes with the next commit, and never over another
owner's offsets."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from everflow.clock import ManualClock
from everflow.records import CommittedOffset, TopicPartition
from everflow.runtime.commit.commit_gate import Offset
from everflow.runtime.commit.deferred_offsets import DeferredOffsets
from everflow.runtime.tasks.recovery import CommittedLowerBounds

A, B = TopicPartition("in", 0), TopicPartition("in", 1)
Asked = Mapping[TopicPartition, tuple[int, str]]


def test_what_was_refused_goes_with_the_next_commit_unless_it_was_forgotten() -> None:
    asked: list[Asked] = []
    answers = iter([False, True])

    def commit(offsets: Asked) -> bool:
        asked.append(offsets)
        return next(answers)

    told: list[dict[TopicPartition, int]] = []
    deferred = DeferredOffsets(commit, lambda offsets: told.append(dict(offsets)))
    assert not deferred.commit([Offset("in", 0, 5, "m"), Offset("in", 1, 7, "m")])
    assert deferred.held() == {A, B}
    deferred.forget([A])
    assert deferred.commit([Offset("in", 1, 9, "m")])
    assert asked[1] == {B: (9, "m")}
    assert told == [{B: 9}], "what waits is not committed"
    assert deferred.held() == frozenset()


def test_forgetting_does_not_wait_for_a_commit_and_counts_for_it() -> None:
    """The loss of partitions is told on the thread that the commit under way needs to end."""

    def commit(offsets: Asked) -> bool:
        group_client = threading.Thread(target=lambda: deferred.forget([A]), daemon=True)
        group_client.start()
        group_client.join(5)
        assert not group_client.is_alive()
        return False

    deferred = DeferredOffsets(commit, lambda offsets: None)
    deferred.commit([Offset("in", 0, 5, "m"), Offset("in", 1, 7, "m")])
    assert deferred.held() == {B}


def test_a_task_that_was_recovered_while_its_offsets_waited_goes_back_rightly() -> None:
    """It was told 100, its 150 goes with another thread's commit, and it commits 120 behind that:
    another recovery is told no less than is true (note 064)."""
    lower_bounds, answers = CommittedLowerBounds(ManualClock()), iter([False, True, True])
    deferred = DeferredOffsets(lambda offsets: next(answers), lower_bounds.replaced)
    assert not deferred.commit([Offset("in", 0, 150, "m")])
    lower_bounds.raised({A: 100})
    assert deferred.commit([Offset("in", 1, 9, "m")])
    assert lower_bounds.went_back({A: CommittedOffset(149, "")}, [A])
    assert deferred.commit([Offset("in", 0, 120, "m")])
    assert lower_bounds.went_back({A: CommittedOffset(120, "")}, [A]) == {}
    assert lower_bounds.went_back({A: CommittedOffset(119, "")}, [A])
