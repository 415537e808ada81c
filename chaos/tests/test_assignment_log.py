"""What the checker of assignment logs sees in hand-made histories: it must find each breach, and
nothing in a clean one."""

import pytest

from bench.events import Event
from chaos.assignment_log import (
    EndSums,
    Life,
    Rules,
    cold_handovers,
    judge,
    overlaps,
    pauses,
    two_owners,
)

TASK = "0_0"
RULES = Rules(hot_lag=100, slack=20)
ENDS = EndSums([(0.0, {TASK: 1_000, "0_1": 1_000}), (50.0, {TASK: 2_000, "0_1": 2_000})])


def batch(began_s: float, ended_s: float, *tasks: str, committed: bool = True) -> Event:
    return Event(
        ended_s,
        "batch",
        {"tasks": tasks or (TASK,), "began_ms": began_s * 1000, "committed": committed},
    )


def assigned(at_s: float, generation: int, sums: dict[str, int], *tasks: str) -> Event:
    return Event(
        at_s, "assigned", {"generation": generation, "tasks": tasks or (TASK,), "sums": sums}
    )


def revoked(at_s: float, *tasks: str) -> Event:
    return Event(at_s, "revoked", {"tasks": tasks or (TASK,)})


def roles(at_s: float, generation: int, *owned: str) -> Event:
    return Event(
        at_s, "roles", {"generation": generation, "owned": owned, "standby": (), "warmup": ()}
    )


def copies(at_s: float, sums: dict[str, int], *running: str) -> Event:
    return Event(at_s, "copies", {"sums": sums, "running": running})


def life(
    instance: str, *events: Event, gone_s: float | None = None, started_s: float = 0.0
) -> Life:
    return Life(instance, 1, started_s, gone_s, events)


def test_a_clean_move_to_a_hot_copy_is_no_breach() -> None:
    before = (assigned(1, 1, {}), roles(1, 1, TASK), batch(2, 2.1), copies(9.8, {}, TASK))
    a = life("a", *before, revoked(9.9), roles(9.9, 2), roles(10, 3))
    b = life(
        "b", roles(9.9, 2), assigned(10, 3, {TASK: 950}), roles(10, 3, TASK), batch(10.1, 10.2)
    )
    verdict = judge([a, b], ENDS, RULES, (0.0, 100.0))
    assert (verdict.two_actives, verdict.cold_handovers, verdict.pauses) == ([], [], [])


def test_a_task_on_two_members_of_a_generation_is_seen() -> None:
    found = two_owners([life("a", roles(1, 4, TASK)), life("b", roles(1, 4, TASK, "0_1"))])
    assert found == ["generation 4: task 0_0 is on a, b"]


def test_a_static_member_that_came_back_owns_its_tasks_in_the_same_generation() -> None:
    assert (
        two_owners(
            [life("a", roles(1, 4, TASK), gone_s=2), life("a", roles(9, 4, TASK), started_s=5)]
        )
        == []
    )


def test_batches_of_two_instances_that_committed_at_overlapping_times_are_seen() -> None:
    """Also where a short one lies between."""
    a = life("a", batch(1, 5), batch(6, 7))
    assert overlaps([a, life("b", batch(2, 3))]) != []
    assert overlaps([a, life("b", batch(0, 0.5), batch(4.9, 5.5))]) != []
    assert overlaps([a, life("b", batch(5.1, 5.9))]) == []
    assert overlaps([a, life("b", batch(2, 3, committed=False))]) == []
    assert overlaps([a, life("b", batch(2, 3, "0_1"))]) == []


def test_a_cold_handover_while_a_member_of_the_generation_had_it_hot_is_seen() -> None:
    cold = life("b", assigned(10, 3, {TASK: 100}), roles(10, 3, TASK))
    for hot in (copies(9.5, {}, TASK), copies(9.5, {TASK: 905})):
        (text,) = cold_handovers([life("a", hot, roles(10, 3)), cold], ENDS, RULES)
        assert text == "generation 3: task 0_0 went to b.1, 900 behind, while a.1 had it hot"


def test_a_cold_handover_is_right_where_no_hot_copy_lived() -> None:
    cold = life("b", assigned(10, 3, {}), roles(10, 3, TASK))
    killed = life("a", copies(9.5, {}, TASK), roles(9, 3), gone_s=9.8)
    not_in_the_group = life("a", copies(9.5, {TASK: 990}), roles(9, 2))
    far_behind = life("a", copies(9.5, {TASK: 850}), roles(10, 3))
    silent = life("a", copies(3.0, {}, TASK), roles(10, 3))
    for other in (killed, not_in_the_group, far_behind, silent):
        assert cold_handovers([other, cold], ENDS, RULES) == []


def test_lag_is_judged_by_the_ends_of_that_moment() -> None:
    """950 was hot while the changelog ended at 1,000; later it is not."""
    hot = life("a", copies(9.5, {}, TASK), copies(59.5, {}, TASK), roles(60, 3))
    assert cold_handovers([hot, life("b", assigned(10, 3, {TASK: 950}))], ENDS, RULES) == []
    assert len(cold_handovers([hot, life("b", assigned(60, 3, {TASK: 950}))], ENDS, RULES)) == 1


def test_a_pause_of_a_task_that_stays_is_the_time_between_its_commits() -> None:
    a = life(
        "a",
        batch(1, 1.1),
        batch(1.2, 1.4, committed=False),
        batch(4.0, 4.1),
        batch(4.2, 4.3, "0_1"),
    )
    (found,) = pauses(a, 0.0, 100.0)
    assert (found.task, found.began_s, found.batches) == (TASK, 1.1, 2)
    assert (found.seconds, found.idle_s) == (pytest.approx(3.0), pytest.approx(2.7))
    verdict = judge([a], ENDS, RULES, (0.0, 100.0))
    assert len(verdict.pauses) == 1
    assert (verdict.longest, verdict.most_batches) == (found, 2)


@pytest.mark.parametrize(
    ("events", "breach"),
    [
        pytest.param(
            [batch(1.2, 4.0, committed=False), batch(4.1, 7.0)], False, id="two slow batches"
        ),
        pytest.param(
            [*(batch(at, at + 0.1, committed=False) for at in (1.2, 1.3)), batch(1.4, 1.5)],
            True,
            id="three batches",
        ),
        pytest.param([batch(2.5, 2.6)], True, id="nothing ran for it"),
        pytest.param([batch(1.2, 12.0)], True, id="a batch that hung"),
    ],
)
def test_a_task_that_stays_may_pause_two_micro_batches(events: list[Event], breach: bool) -> None:
    verdict = judge([life("a", batch(1, 1.1), *events)], ENDS, RULES, (0.0, 100.0))
    assert bool(verdict.pauses) == breach, verdict


def test_a_task_that_was_away_in_between_did_not_stay() -> None:
    for gone in (revoked(2.0), Event(2.0, "lost", {"tasks": (TASK,)})):
        a = life("a", batch(1, 1.1), gone, assigned(8, 5, {TASK: 1_000}), batch(9, 9.1))
        assert list(pauses(a, 0.0, 100.0)) == []


def test_no_pause_is_counted_where_there_was_no_load() -> None:
    a = life("a", batch(1, 1.1), batch(9, 9.1))
    assert list(pauses(a, 2.0, 100.0)) == []
    assert list(pauses(a, 0.0, 8.0)) == []
    assert len(list(pauses(a, 0.0, 100.0))) == 1
