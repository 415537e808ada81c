"""Looks at offsets -> the longest time between two commits while records waited."""

from __future__ import annotations

import pytest

from everflow.records import TopicPartition
from everflow_demo.elastic import Pauses

TP = TopicPartition("flights", 0)


def looks(*found: tuple[float, int, int]) -> Pauses:
    """(time, committed offset, end) of one partition."""
    pauses = Pauses()
    for at_s, committed, end in found:
        pauses.add(at_s, {TP: committed} if committed else {}, {TP: end})
    return pauses


def longest(pauses: Pauses, since_s: float = 0.0, until_s: float = 100.0) -> float:
    found = pauses.longest(since_s, until_s)
    return found[TP].seconds if TP in found else 0.0


def test_the_longest_time_between_two_commits_counts() -> None:
    pauses = looks((0.0, 0, 10), (0.1, 10, 20), (0.5, 20, 30), (0.6, 30, 40))
    assert longest(pauses) == pytest.approx(0.4)


def test_time_without_waiting_records_is_no_pause() -> None:
    pauses = looks((0.0, 10, 10), (5.0, 10, 10), (5.1, 10, 20), (5.3, 20, 20), (9.0, 20, 20))
    assert longest(pauses) == pytest.approx(0.3)  # from the last look that saw nothing waiting


def test_a_pause_that_goes_on_counts_up_to_the_last_look() -> None:
    assert longest(looks((0.0, 10, 20), (1.0, 10, 20), (3.0, 10, 20))) == pytest.approx(3.0)


def test_pauses_belong_to_the_time_that_they_reach_into() -> None:
    pauses = looks((0.0, 10, 20), (1.0, 20, 30), (4.0, 30, 40), (4.2, 40, 50))
    assert longest(pauses, 0.0, 0.9) == pytest.approx(1.0)
    assert longest(pauses, 2.0, 3.0) == pytest.approx(3.0)
    assert longest(pauses, 4.1, 5.0) == pytest.approx(0.2)
    assert longest(pauses, 4.3, 5.0) == 0.0


def test_a_partition_that_never_had_work_is_left_out() -> None:
    assert looks((0.0, 0, 0), (9.0, 0, 0)).longest(0.0, 10.0) == {}
