"""wait_until returns as soon as the condition holds, and fails with what happened."""

from __future__ import annotations

import pytest

from everflow.testing.waiting import wait_until


def test_returns_the_first_true_value() -> None:
    answers = iter([None, 0, "ready"])
    assert wait_until(lambda: next(answers), 5, "the third answer") == "ready"


def test_looks_at_least_once_even_without_time() -> None:
    assert wait_until(lambda: 7, 0, "seven") == 7


def test_failure_names_the_wait_the_last_value_and_the_history() -> None:
    events: list[str] = []

    def condition() -> list[str]:
        events.append(f"look {len(events)}")
        return []

    with pytest.raises(AssertionError) as failure:
        wait_until(condition, 0.05, "a member to join", history=lambda: events)
    text = str(failure.value)
    assert "0.05 s for a member to join; last value: []" in text
    assert "look 0" in text
