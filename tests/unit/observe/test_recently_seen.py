"""Values of the last 30 to 60 s."""

from __future__ import annotations

from everflow.metrics import Metrics, RecentlySeen, Seen


def test_values_go_after_a_minute_at_the_latest() -> None:
    recent = RecentlySeen()
    assert recent.at(0) is None
    recent.add(Seen(2, 6.0, 1.0, 5.0), 1_000)
    recent.add(Seen(1, 9.0, 9.0, 9.0), 31_000)
    assert recent.at(59_999) == Seen(3, 15.0, 1.0, 9.0)
    assert recent.at(60_000) == Seen(1, 9.0, 9.0, 9.0)
    assert recent.at(90_000) is None


def test_a_register_keeps_labels_apart() -> None:
    metrics = Metrics()
    metrics.saw("late", {("a",): Seen(1, 2.0, 2.0, 2.0), ("b",): Seen(1, 3.0, 3.0, 3.0)}, 0)
    metrics.saw("late", {("a",): Seen(1, 4.0, 4.0, 4.0)}, 10)
    assert metrics.recent("late", 20) == {
        ("a",): Seen(2, 6.0, 2.0, 4.0),
        ("b",): Seen(1, 3.0, 3.0, 3.0),
    }
    assert metrics.recent("late", 100_000) == {}
    metrics.add_series("n", {("a",): 1, ("b",): 2})
    metrics.add_series("n", {("a",): 1})
    assert metrics.series() == {"n": {("a",): 2, ("b",): 2}}
