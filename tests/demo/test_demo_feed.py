"""When flights are due."""

from __future__ import annotations

from everflow_demo.feed import Pace


def sent_after(pace: Pace, seconds: float, sent: int = 0, tick_s: float = 0.05) -> int:
    for _ in range(round(seconds / tick_s)):
        sent += pace.due(sent, tick_s)
    return sent


def test_far_from_its_limit_the_rate_is_kept() -> None:
    assert abs(sent_after(Pace(1_000.0, limit=1_000_000), 3.0) - 3_000) <= 1


def test_less_than_a_record_a_tick_is_not_lost() -> None:
    assert abs(sent_after(Pace(3.0, limit=1_000_000), 10.0) - 30) <= 1


def test_a_stretch_that_takes_long_slows_down_and_never_passes_its_limit() -> None:
    pace = Pace(1_000.0, limit=20_000)
    after_30_s = sent_after(pace, 30.0)
    after_90_s = sent_after(pace, 60.0, after_30_s)
    assert 10_000 < after_30_s < after_90_s < 20_000
    pace.limit = 60_000
    assert sent_after(pace, 5.0, after_90_s) - after_90_s > 4_000


def test_nothing_is_due_while_the_instances_are_behind() -> None:
    pace = Pace(1_000.0, limit=1_000_000, behind=True)
    assert sent_after(pace, 5.0) == 0
    pace.behind = False
    assert pace.due(0, 0.05) == 50
