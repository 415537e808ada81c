"""What ends a drain, named by the setting that a user can change."""

from __future__ import annotations

from everflow.instance.life import drain_limit, drained_or_ended


def test_the_smaller_limit_is_named() -> None:
    assert drain_limit(60.0, 60.0) == "drain.timeout.ms"
    assert drain_limit(48.0, 60.0) == "80% of close(timeout=60)"
    assert drain_limit(24.0, 60.0) == "80% of close(timeout=30)"


def test_a_drain_ends_with_the_first_reason_that_applies_or_well() -> None:
    answers = iter([False, False, True])
    assert drained_or_ended(lambda _: next(answers), {"late": lambda: False}) is None
    looks = iter([False, True])
    assert (
        drained_or_ended(lambda _: False, {"late": lambda: False, "evicted": lambda: next(looks)})
        == "evicted"
    )
