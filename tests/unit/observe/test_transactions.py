"""Each thread's transactions, and the partitions that somebody's open one holds back."""

from __future__ import annotations

from everflow.observe.observation import ObservedThread, StableLag
from everflow.observe.status import transactions
from unit.observe.observations import FULL, changed


def test_a_thread_has_its_writer_its_last_commit_and_its_aborts_by_cause() -> None:
    found = transactions(FULL)
    assert found["threads"] == [
        {
            "thread": 0,
            "transactional_id": "orders-p-0",
            "state": "Ongoing",
            "open_s": 1.5,
            "committed_ms": 1_789_999_995_000,
            "aborted": {"generation": 1, "worker": 3},
            "fenced": 2,
            "renewed": 4,
        }
    ]
    assert (found["told_s"], found["ended_of_others"]) == (1.0, 0.0)


def test_one_that_has_committed_nothing_and_of_which_nothing_is_told_has_no_numbers() -> None:
    seen = changed(threads=[ObservedThread(number=3, alive=True, tasks=0)], told_s=None)
    (row,) = transactions(seen)["threads"]
    assert (row["open_s"], row["state"], row["committed_ms"]) == (None, None, None)
    assert (row["aborted"], row["fenced"], row["renewed"]) == ({}, 0.0, 0.0)


def test_what_is_held_back_for_the_longest_time_is_first_and_what_is_not_is_left_out() -> None:
    held = {
        ("b", 0): StableLag(5, 10, 3.0),
        ("a", 0): StableLag(9, 20, 3.0),
        ("c", 1): StableLag(1, 30, 60.0),
        ("d", 0): StableLag(0, 40, 0.0),
    }
    rows = transactions(changed(held_back=held))["held_back"]
    assert [(row["topic"], row["records"], row["stable"]) for row in rows] == [
        ("c", 1, 30),
        ("a", 9, 20),
        ("b", 5, 10),
    ]
