"""How busy threads were, batches that have not ended included."""

from __future__ import annotations

import pytest

from everflow.instance.observer import BusyShares


def test_a_thread_in_a_batch_that_has_not_ended_is_busy() -> None:
    shares = BusyShares()
    for at in range(0, 45_000, 5_000):
        shares.note(at, {0: 0.0, 1: 0.0}, {0: 0.0, 1: None})
    assert (shares.of(0), shares.of(1)) == (1.0, 0.0)


def test_a_first_batch_of_which_no_figure_tells_is_one_too() -> None:
    shares = BusyShares()
    for at in (0, 5_000, 10_000):
        shares.note(at, {}, {0: 5_000.0})
    assert shares.of(0) == pytest.approx(0.5)


def test_its_end_is_counted_once() -> None:
    shares = BusyShares()
    shares.note(0, {0: 0.0}, {0: 0.0})
    shares.note(20_000, {0: 20.0}, {0: 0.0})  # it ends while one looks: it is in both
    shares.note(25_000, {0: 20.0}, {0: None})
    shares.note(40_000, {0: 20.0}, {0: None})
    assert shares.of(0) == pytest.approx(0.5)


def test_what_is_older_than_half_a_minute_is_forgotten() -> None:
    shares = BusyShares()
    for at in range(0, 100_000, 5_000):
        shares.note(at, {0: min(at, 20_000) / 1000}, {0: None})
    assert shares.of(0) == 0.0
