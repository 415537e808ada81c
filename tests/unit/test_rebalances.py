"""The records of an instance's rebalances: reason, tasks, durations, gaps, when each is whole."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from everflow.rebalances import (
    AROUND_MS,
    COMPLETE,
    ENDED,
    FOLLOW_UP,
    IN_PROGRESS,
    KEPT,
    OVERTAKEN,
    Decision,
    Join,
    Rebalance,
    RebalanceBook,
    Restored,
    Route,
    reason_of,
)
from everflow.records import TaskId
from unit.manual_clock import ManualClock

T0, T1, T2 = (TaskId(0, partition) for partition in range(3))
BEGAN_MS = 100_000


class Kept:
    """An instance's book, the clock that the test moves, and what was written."""

    def __init__(self) -> None:
        self.clock, self.written = ManualClock(BEGAN_MS), list[Rebalance]()
        self.restored = Restored()
        self.book = RebalanceBook(
            clock=self.clock, restored=lambda: self.restored, write=self.written.append
        )
        self.generation = 0

    def answered(self, *owned: TaskId, copies: Sequence[TaskId] = (), **join: Any) -> None:
        """The join went out 50 ms ago."""
        self.generation += 1
        began_ms = self.clock.monotonic_ms() - 50.0
        made = Join(member="one", generation=self.generation, began_ms=began_ms, **join)
        self.book.answered(made, owned, copies)

    def after(self, milliseconds: float) -> None:
        self.clock.advance(milliseconds)
        self.book.turn()

    def settled(self, *owned: TaskId, **join: Any) -> None:
        """A rebalance that is over, its record written, with a commit of each task right now."""
        self.answered(*owned, **join)
        self.book.running()
        self.book.committed(owned)
        self.book.turn()
        self.written.clear()


@pytest.fixture
def kept() -> Kept:
    return Kept()


def decided(before: Mapping[str, Sequence[str]] | None, *members: str, **more: Any) -> Decision:
    return Decision(tasks=3, members=members, before=before, **more)


ALONE = {"one": ["0_0", "0_1", "0_2"]}
BOTH = {"one": ["0_0"], "two": ["0_1", "0_2"]}


def test_an_instance_s_first_record_says_that_it_joined(kept: Kept) -> None:
    kept.answered(T0, T1)
    (present,) = kept.book.records()
    assert (present.outcome, present.duration_ms) == (IN_PROGRESS, None)
    kept.after(450)
    kept.book.running()
    kept.after(100)
    assert kept.written == []
    kept.book.committed([T0, T1])
    kept.after(0)
    (record,) = kept.written
    assert (record.reason, record.outcome, record.instance) == ("start", COMPLETE, "one")
    assert (record.gained, record.kept, record.lost) == (["0_0", "0_1"], [], [])
    assert (record.began_ms, record.joined_ms, record.duration_ms) == (BEGAN_MS - 50, 50.0, 500.0)
    assert record.gaps_ms == {"0_0": 550.0, "0_1": 550.0}
    assert record.first_commits == {"0_0": BEGAN_MS + 550, "0_1": BEGAN_MS + 550}
    assert kept.book.records() == [record]


def test_a_join_moves_a_task_which_two_records_tell_together(kept: Kept) -> None:
    """The owner's has the last commit, the newcomer's the first."""
    kept.settled(T0, T1, T2)
    kept.after(1_000)
    decision = decided(ALONE, "one", "two", withheld=["0_2"], warmups={"two": ["0_1"]})
    kept.answered(T0, T1, decision=decision)
    kept.after(30)
    kept.book.committed([T0, T1, T2])  # the batch in flight
    kept.after(20)
    kept.book.running()
    kept.book.committed([T0, T1])
    kept.after(0)
    (record,) = kept.written
    assert (record.reason, record.why) == ("joined", "joined: two")
    assert (record.before, record.members) == (["one"], ["one", "two"])
    assert (record.lost, record.kept, record.gained) == (["0_2"], ["0_0", "0_1"], [])
    assert record.last_commits == {"0_2": BEGAN_MS + 1_030}
    assert record.gaps_ms == {"0_0": 1_030.0, "0_1": 1_030.0}
    assert record.duration_ms == 100.0
    assert record.decision is decision

    newcomer = Kept()
    newcomer.settled()
    newcomer.answered(T2, copies=[T2], asked="1 warm-up caught up (0_2)")
    newcomer.after(40)
    newcomer.book.running()
    newcomer.book.committed([T2])
    newcomer.after(0)
    (record,) = newcomer.written
    assert (record.reason, record.promoted) == ("asked", ["0_2"])
    assert record.why == "this instance asked: 1 warm-up caught up (0_2)"
    assert record.first_commits == {"0_2": BEGAN_MS + 40}


def test_an_instance_that_has_handed_over_left(kept: Kept) -> None:
    kept.settled(T0, T1, T2)
    kept.answered(T0, T1, T2, decision=decided({**ALONE, "two": []}, "one"))
    record = kept.book.records()[-1]
    assert (record.reason, record.why) == ("left", "left: two")
    assert (record.before, record.members, record.gained) == (["one", "two"], ["one"], [])


def test_rebalances_around_held_tasks_are_a_migration_s(kept: Kept) -> None:
    """The migrator joins and holds, the owner gives up and says so, the migrator leaves."""
    kept.settled(T0, T1, decision=decided(None, "one"))
    holding = {"held_back": ["0_0", "0_1"], "held": ["0_0", "0_1"]}
    kept.answered(decision=decided({"one": ["0_0", "0_1"]}, "one", "migrator", **holding))
    both: Mapping[str, Sequence[str]] = {"one": [], "migrator": []}
    kept.answered(
        asked="revoked tasks are closed", decision=decided(both, "one", "migrator", **holding)
    )
    kept.answered(T0, T1, decision=decided(both, "one"))
    kept.answered(T0, T1, decision=decided({"one": ["0_0", "0_1"], "two": []}, "one"))
    found = kept.book.records()[1:]
    assert [one.reason for one in found] == ["migration", "migration", "migration", "left"]
    assert [one.decision.held for one in found if one.decision] == [["0_0", "0_1"]] * 2 + [()] * 2
    assert "joined: migrator" in found[0].why
    assert "revoked tasks are closed" in found[1].why
    assert "left: migrator" in found[2].why


def test_an_instance_that_vanished_with_its_tasks_is_lost(kept: Kept) -> None:
    kept.settled(T0)
    routes = [Route(tasks=["0_1", "0_2"], origin="two", to="one")]
    kept.answered(T0, T1, T2, decision=decided(BOTH, "one", moved=routes))
    kept.restored = Restored(7_000, 140_000)
    kept.after(2_000)
    kept.book.running()
    kept.book.committed([T0, T1, T2])
    kept.after(0)
    (record,) = kept.written
    assert (record.reason, record.why) == ("lost", "gone with its tasks: two (it ran 0_1, 0_2)")
    assert (record.gained, record.duration_ms) == (["0_1", "0_2"], 2_050.0)
    assert (record.restored_records, record.restored_bytes) == (7_000, 140_000)
    row = json.loads(json.dumps(asdict(record), allow_nan=False))
    assert row["decision"]["moved"] == [{"tasks": ["0_1", "0_2"], "origin": "two", "to": "one"}]
    kept.answered(T0, T1, T2)
    assert kept.book.records()[-1].restored_records == 0


def test_a_follow_up_that_changes_nothing_is_complete_at_once(kept: Kept) -> None:
    kept.settled(T0)
    kept.answered(T0, asked=FOLLOW_UP, decision=decided({"one": ["0_0"]}, "one"))
    kept.book.running()
    kept.after(10)
    kept.book.committed([T0])
    kept.after(0)
    (record,) = kept.written
    assert (record.reason, record.outcome, record.duration_ms) == ("follow-up", COMPLETE, 50.0)
    assert (record.gained, record.lost, record.kept) == ([], [], ["0_0"])


def test_a_rebalance_whose_tasks_never_ran_is_overtaken(kept: Kept) -> None:
    kept.settled(T0)
    kept.answered(T0, T1)
    kept.after(300)
    kept.answered(T0)
    first, second = kept.book.records()[-2:]
    assert (first.outcome, first.duration_ms, first.gaps_ms["0_1"]) == (OVERTAKEN, None, None)
    assert (second.generation, second.outcome) == (first.generation + 1, IN_PROGRESS)
    assert (second.lost, second.last_commits) == (["0_1"], {})
    kept.after(0)
    assert kept.written == [first]


def test_a_task_that_two_rebalances_kept_waiting_has_the_whole_gap(kept: Kept) -> None:
    kept.settled(T0)
    kept.answered(T0, T1)
    kept.after(2 * AROUND_MS)
    kept.answered(T0, T1)
    kept.after(5_000)
    kept.book.running()
    kept.book.committed([T0, T1])
    kept.after(0)
    _, record = kept.written
    assert record.gaps_ms == {"0_0": 2 * AROUND_MS + 5_000, "0_1": 2 * AROUND_MS + 5_000}
    assert record.gained == []
    assert record.first_commits["0_1"] == BEGAN_MS + 2 * AROUND_MS + 5_000


def test_one_whose_tasks_ran_is_complete_though_the_next_came_before_a_commit(kept: Kept) -> None:
    kept.settled(T0)
    kept.answered(T0)
    kept.book.running()
    kept.answered(T0)
    assert kept.book.records()[-2].outcome == COMPLETE


def test_a_new_leader_does_not_know_who_came_or_went(kept: Kept) -> None:
    """Only the one that made the last decision does; end points tell where all have one."""
    kept.settled(T0)
    kept.answered(T0, T1, decision=decided(None, "one", "three"))
    record = kept.book.records()[-1]
    assert (record.reason, record.before) == ("other", None)
    assert record.members == ["one", "three"]
    kept.settled(T0, hosts={"h:1": ["0_0"], "h:2": ["0_1"]})
    kept.answered(T0, T1, hosts={"h:1": ["0_0", "0_1"]}, decision=decided(None, "one"))
    record = kept.book.records()[-1]
    assert (record.reason, record.before, record.members) == ("lost", ["h:1", "h:2"], ["h:1"])


def test_an_idle_task_has_no_gap_and_is_not_waited_for(kept: Kept) -> None:
    kept.settled(T0, T1)
    kept.after(AROUND_MS * 2)
    kept.answered(T0, T1)
    kept.book.running()
    kept.after(100)
    kept.book.committed([T0])
    kept.after(AROUND_MS - 101)
    assert kept.written == []
    kept.after(1)
    (record,) = kept.written
    assert record.gaps_ms == {"0_0": 150.0, "0_1": None}, "what was long before does not count"


def test_commits_after_a_task_has_settled_are_of_no_rebalance(kept: Kept) -> None:
    kept.settled(T0, T1)
    kept.answered(T0, T1)
    kept.book.running()
    kept.book.committed([T0])
    kept.after(5_000)
    kept.book.committed([T0, T1])
    kept.after(0)
    assert kept.written[0].gaps_ms == {"0_0": 0.0, "0_1": 5_000.0}


def test_an_instance_that_was_removed_returns(kept: Kept) -> None:
    kept.settled(T0)
    kept.answered(T0, T1)
    kept.book.evicted()
    kept.answered(T0)
    first, second = kept.book.records()[-2:]
    assert first.outcome == ENDED
    assert (second.reason, second.gained, second.kept) == ("returned", ["0_0"], [])


def test_the_end_writes_what_goes_on_and_the_oldest_are_dropped(kept: Kept) -> None:
    for _ in range(KEPT + 5):
        kept.answered(T0)
    kept.book.close()
    assert len(kept.written) == KEPT + 5
    assert kept.written[-1].outcome == ENDED
    assert [one.generation for one in kept.book.records()] == list(range(6, KEPT + 6))


@pytest.mark.parametrize(
    ("asked", "before", "now", "held", "code", "named"),
    [
        ("", None, None, (), "other", "another instance joined, left or asked"),
        ("", {"a": []}, {"a": []}, (), "other", "another instance asked"),
        ("this member drains", None, None, (), "asked", "this member drains"),
        ("", {"a": ["0_0"], "b": []}, {"c": []}, (), "lost", "left: b; joined: c"),
        (FOLLOW_UP, {"a": []}, {"a": [], "b": []}, (), "joined", f"joined: b; {FOLLOW_UP}"),
        ("", {"a": ["0_0"], "b": []}, {"c": []}, (True, True), "lost", "left: b; joined: c"),
        ("", {"a": []}, {"a": []}, (True, True), "migration", "holds tasks"),
        ("", {"a": [], "b": []}, {"a": []}, (True, False), "migration", "left: b"),
    ],
)
def test_the_gravest_cause_is_the_reason(
    asked: str, before: Any, now: Any, held: tuple[bool, bool] | tuple[()], code: str, named: str
) -> None:
    reason, why = reason_of(asked, before, now, held or (False, False))
    assert reason == code
    assert why.endswith(named)
