"""When a member asks for a rebalance: gathered, never within one, not what the join said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.membership.member import AGAIN_MS, AT_ONCE_GAP_MS, GATHER_MS, FollowUps
from everflow.records import TaskId

A, B = TaskId(0, 0), TaskId(0, 1)


@pytest.fixture
def follow_ups() -> FollowUps:
    return FollowUps()


def test_without_a_reason_nothing_is_asked(follow_ups: FollowUps) -> None:
    follow_ups.completed({A}, {B}, None, 0.0)
    assert follow_ups.due(10.0**9, False) is None
    assert not follow_ups.pending


def test_hot_warm_ups_are_gathered_from_the_first(follow_ups: FollowUps) -> None:
    follow_ups.became_hot(A, 100.0)
    follow_ups.became_hot(B, 900.0)
    assert follow_ups.due(99.0 + GATHER_MS, False) is None
    assert follow_ups.due(100.0 + GATHER_MS, False) == "2 warm-ups caught up (0_0, 0_1)"
    assert follow_ups.pending
    assert follow_ups.due(101.0 + GATHER_MS, False) is None, "once per join"


def test_a_rebalance_asks_nothing_and_forgets_what_it_settled(follow_ups: FollowUps) -> None:
    follow_ups.joining()
    follow_ups.became_hot(A, 0.0)
    follow_ups.became_hot(B, 0.0)
    assert follow_ups.due(5_000.0, rebalancing=True) is None
    follow_ups.completed((), {B}, None, 5_000.0)  # A became active here, or went elsewhere
    assert follow_ups.due(5_000.0, False) == "1 warm-up caught up (0_1)"


def test_what_the_join_said_is_asked_again_if_the_leader_left_it(follow_ups: FollowUps) -> None:
    follow_ups.became_hot(A, 0.0)
    follow_ups.became_hot(B, 0.0)
    follow_ups.joining()
    assert follow_ups.due(10_000.0, False) is None
    follow_ups.completed(
        (), {A}, None, 10_000.0
    )  # its end sums were not at hand: A is a warm-up still
    follow_ups.became_hot(A, 10_001.0)
    assert follow_ups.due(9_999.0 + AGAIN_MS, False) is None
    assert follow_ups.due(10_000.0 + AGAIN_MS, False) == "1 warm-up caught up (0_0)"
    follow_ups.joining()
    follow_ups.completed((), {A}, None, 20_000.0)
    assert follow_ups.due(19_999.0 + 2 * AGAIN_MS, False) is None
    assert follow_ups.due(20_000.0 + 2 * AGAIN_MS, False)


def test_standbys_that_fell_behind_in_a_bounce_cost_no_rebalance(follow_ups: FollowUps) -> None:
    """Under load each bounce of a static member with lagging standbys made a generation."""
    follow_ups.joining()
    follow_ups.completed({A}, {B}, None, 0.0, stale=True)
    follow_ups.became_hot(A, 10.0)
    assert follow_ups.due(10.0**9, False) is None
    follow_ups.became_hot(B, 10.0)
    assert follow_ups.due(10.0 + GATHER_MS, False) == "1 warm-up caught up (0_1)", (
        "a warm-up is waited for, bounce or not"
    )
    follow_ups.joining()
    follow_ups.completed({A}, (), None, 5_000.0)
    follow_ups.became_hot(A, 5_000.0)
    assert follow_ups.due(5_000.0 + GATHER_MS, False), "the leader may wait"


def test_standbys_are_not_called_warm_ups(follow_ups: FollowUps) -> None:
    follow_ups.joining()
    follow_ups.completed({A}, {B}, None, 0.0)
    follow_ups.became_hot(A, 0.0)
    assert follow_ups.due(GATHER_MS, False) == "1 standby caught up (0_0)"
    follow_ups.joining()
    follow_ups.completed({A}, {B}, None, 10_000.0)
    follow_ups.became_hot(A, 10_000.0)
    follow_ups.became_hot(B, 10_000.0)
    assert (
        follow_ups.due(10_000.0 + GATHER_MS, False)
        == "1 warm-up caught up (0_1); 1 standby caught up (0_0)"
    )


def test_what_is_asked_at_once_waits_for_the_end_of_a_rebalance_only(follow_ups: FollowUps) -> None:
    follow_ups.joining()
    follow_ups.ask("this member drains")
    assert follow_ups.due(0.0, rebalancing=True) is None
    follow_ups.completed((), (), None, 0.0)
    assert follow_ups.due(0.0, False) == "this member drains"
    follow_ups.joining()
    assert not follow_ups.pending


def test_a_told_follow_up_comes_unless_a_rebalance_was_before(follow_ups: FollowUps) -> None:
    follow_ups.completed((), (), 600_000, 50.0)
    assert follow_ups.due(600_049.0, False) is None
    assert follow_ups.due(600_050.0, False) == "the leader wanted a follow-up"
    follow_ups.joining()
    follow_ups.completed((), (), None, 600_060.0)
    assert follow_ups.due(2_000_000.0, False) is None


def test_follow_ups_at_once_do_not_spin(follow_ups: FollowUps) -> None:
    follow_ups.completed((), (), 0, 100.0)
    assert follow_ups.due(100.0, False)
    follow_ups.joining()
    follow_ups.completed((), (), 0, 101.0)
    assert follow_ups.due(99.0 + AT_ONCE_GAP_MS, False) is None
    assert follow_ups.due(100.0 + AT_ONCE_GAP_MS, False)


def test_a_lost_membership_forgets_its_copies(follow_ups: FollowUps) -> None:
    follow_ups.became_hot(A, 0.0)
    follow_ups.completed((), {A}, 1, 0.0)
    follow_ups.lost()
    assert follow_ups.due(10.0**9, False) is None


@given(st.lists(st.tuples(st.sampled_from("hjca"), st.floats(0, 3_000)), max_size=60))
def test_asked_once_per_join_and_every_hot_warm_up_is_told(steps: list[tuple[str, float]]) -> None:
    """In any order: one question between two joins, a hot task told within the gathering time."""
    follow_ups, now, asked, hot = FollowUps(), 0.0, 0, False
    for what, wait in steps:
        now += wait
        if what == "h":
            follow_ups.became_hot(A, now)
            hot = True
        elif what == "j":
            follow_ups.joining()
            asked, hot = 0, False
            follow_ups.completed((), (), None, now)
        elif what == "a":
            follow_ups.ask("why")
            asked = 0
        asked += follow_ups.due(now, False) is not None
        assert asked <= 1
    if hot:
        assert asked or follow_ups.due(now + GATHER_MS, False)
