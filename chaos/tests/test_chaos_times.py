"""The truth of `./run chaos times`, its comparison, and a slice of it."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from chaos.times import (
    DRAIN,
    HIGHEST,
    KILL,
    KINDS,
    LOWEST,
    OUT,
    PAUSE,
    SLOW,
    Draw,
    Event,
    base_of,
    draw,
    run,
)
from chaos.times_one_thread import one_thread
from chaos.times_truth import (
    ALL,
    BANK,
    BEHIND_MS,
    CLOSING,
    MINUTE,
    PARTITIONS,
    TRUTHS,
    Books,
    Seen,
    differences,
    sessions,
    sliding,
)

BASE_MS = 1_760_000_400_000
"""A full hour."""


@pytest.mark.parametrize("name", TRUTHS)
def test_a_seed_draws_the_same_records_and_each_has_a_time_of_its_own(name: str) -> None:
    truth = TRUTHS[name]
    records = truth.records(600, BASE_MS, random.Random("1"))
    assert records == truth.records(600, BASE_MS, random.Random("1"))
    assert records != truth.records(600, BASE_MS, random.Random("2"))
    assert len({one.time for one in records}) == len(records)
    assert {one.topic for one in records} == set(truth.topics)


@pytest.mark.parametrize(("name", "topic"), [("windows", "sales"), ("chain", "visits")])
def test_some_records_are_out_of_order_within_their_grace(name: str, topic: str) -> None:
    behind = []
    highest = [0] * PARTITIONS
    for one in TRUTHS[name].records(6_000, BASE_MS, random.Random("1")):
        if one.topic == topic and not one.key.startswith(CLOSING):
            assert one.partition is not None
            behind.append(highest[one.partition] - one.time)
            highest[one.partition] = max(highest[one.partition], one.time)
    late = [ms for ms in behind if ms > 0]
    assert 0.05 * len(behind) < len(late) < 0.11 * len(behind)
    assert BEHIND_MS / 2 < max(late) <= BEHIND_MS


def test_sessions_end_behind_a_gap() -> None:
    assert sessions([0, 5, 10, 16, 40], 5) == [(10, 3), (16, 1), (40, 1)]


def test_sliding_windows_are_those_of_the_documentation_of_kafka_streams() -> None:
    found = sliding([(12, 1), (18, 1), (23, 1)], 10)
    assert found == {2: (1, 1, 12), 13: (2, 2, 23), 8: (2, 2, 18), 19: (1, 1, 23)}


@pytest.mark.spark
@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize("batch", [1, 100])
def test_the_truth_is_what_one_thread_gives_in_order_of_time(name: str, batch: int) -> None:
    truth = TRUTHS[name]
    records = truth.records(240, BASE_MS, random.Random("1"))
    seen = one_thread(name, truth, records, batch)
    assert differences(truth.results(records), seen)[:3] == []
    assert seen.rows


def seen_of(name: str) -> tuple[Any, Seen]:
    """The results of a program, all of which were seen."""
    truth = TRUTHS[name]
    expected = truth.results(truth.records(300, BASE_MS, random.Random("1")))
    seen = Seen(truth)
    for (output, key), value in expected.items():
        seen.add(output, key, value)
    return expected, seen


@pytest.mark.parametrize("name", TRUTHS)
def test_the_comparison_finds_what_is_missing_more_or_changed(name: str) -> None:
    expected, seen = seen_of(name)
    assert not differences(expected, seen)
    (output, key), other = next(iter(expected)), list(expected)[-1]
    seen.rows[other] = {**seen.rows[other], "n": -1}
    del seen.rows[output, key]
    seen.rows[output, "nobody"] = {"n": 1}
    found = {(one.kind, one.key) for one in differences(expected, seen)}
    if other == (output, key):
        assert found == {("missing", key), ("extra", "nobody")}
    else:
        assert found == {("missing", key), ("changed", other[1]), ("extra", "nobody")}


def test_a_result_that_comes_once_must_not_come_again() -> None:
    expected, seen = seen_of("windows")
    (output, key), value = next(iter(expected.items()))
    seen.add(output, key, value)
    assert [(one.kind, one.key) for one in differences(expected, seen)] == [("again", key)]


def test_of_a_table_the_last_row_counts_and_a_tombstone_deletes() -> None:
    expected, seen = seen_of("bank")
    seen.add("balances", "stranger", {"balance": 1, "branch": "b"})
    assert [one.kind for one in differences(expected, seen)] == ["extra"]
    seen.add("balances", "stranger", None)
    assert not differences(expected, seen)


def test_what_closes_windows_is_no_result() -> None:
    expected, seen = seen_of("windows")
    seen.add("totals", f"{CLOSING}3@{BASE_MS + 40 * MINUTE}", {"n": 1, "total": 1})
    assert not differences(expected, seen)


def books_of() -> Books:
    """Two accounts of a window have moved, and their total is final."""
    books = Books()
    books.add("nets", "eur/a@5", {"n": 1, "net": 7})
    books.add("nets", "eur/b@5", {"n": 1, "net": -7})
    books.add("currencies", "eur@5", {"accounts": 2, "n": 2, "total": 0})
    return books


def test_a_final_total_that_is_not_0_is_found_as_it_is_read() -> None:
    books = books_of()
    assert (books.zeros, books.wrong) == (1, [])
    books.add("currencies", "eur@10", {"accounts": 1, "n": 1, "total": 3})
    assert [(one.kind, one.output, one.key) for one in books.wrong] == [
        ("not zero", "currencies", "eur@10")
    ]


def test_accounts_of_a_final_total_are_all_there_and_sum_up_to_0() -> None:
    books = books_of()
    assert books.begin()
    books.look()
    assert (books.zeros, books.wrong) == (2, [])
    assert not books.begin()
    books.add("nets", "usd/a@5", {"n": 1, "net": 7})
    books.add("currencies", "usd@5", {"accounts": 2, "n": 2, "total": 0})
    assert books.begin()
    books.look()
    assert [(one.kind, one.output, one.key) for one in books.wrong] == [
        ("not zero", "nets", "usd@5"),
        ("unseen", "nets", "usd@5"),
    ]


def test_the_books_of_a_bank_look_at_no_other_program() -> None:
    others = {output for name, truth in TRUTHS.items() if name != BANK for output in truth.outputs}
    assert not others & set(TRUTHS[BANK].outputs)


def test_the_total_without_windows_is_0_at_rest_only() -> None:
    books = Books()
    books.rest()
    books.add("bank", ALL, {"total": 5})
    assert not books.wrong
    books.rest()
    assert [(one.kind, one.output) for one in books.wrong] == [("not zero", "bank")]
    books.add("bank", ALL, {"total": 0})
    books.rest()
    assert (books.zeros, books.on_the_way, len(books.wrong)) == (1, 2, 1)


def test_a_seed_draws_the_same_way_and_many_draw_each_kind() -> None:
    names = list(TRUTHS)
    draws = [draw(seed, names, 6_000) for seed in range(200)]
    assert draws == [draw(seed, names, 6_000) for seed in range(200)]
    assert {one.program for one in draws} == set(TRUTHS)
    assert {event.kind for one in draws for event in one.events} == set(KINDS)
    assert {len(one.events) for one in draws} >= {0, 1, 2, len(KINDS)}
    assert all(KILL in {event.kind for event in one.events} for one in draws if one.program == BANK)
    assert all(list(one.events) == sorted(one.events, key=lambda e: e.at) for one in draws)
    assert {(one.threads, one.instances) for one in draws} == {
        (threads, instances) for threads in (1, 2, 4) for instances in (1, 2, 3)
    }
    assert {one.live for one in draws} == {True, False}
    assert (min(one.batch for one in draws), max(one.batch for one in draws)) == (1, 500_000)


def drawn(program: str, threads: int, **other: Any) -> Draw:
    """A backlog for one instance that takes all in large batches."""
    plain = Draw(7, program, threads, 1, 500_000, 6_000, False, ())
    return plain._replace(**other)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_with_the_highest_time_two_threads_lose_what_one_keeps(tmp_path: Path) -> None:
    draws = [drawn("windows", 1), drawn("windows", 2, seed=8)]
    one, two = run(draws, HIGHEST, tmp_path, base_of(time.time()))
    assert one.clean, one.told()
    assert not two.failure
    assert two.dropped > 1_000
    assert {difference.kind for difference in two.found} == {"changed", "missing"}


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_with_the_highest_time_final_totals_of_the_bank_are_not_0(tmp_path: Path) -> None:
    (outcome,) = run([drawn(BANK, 2)], HIGHEST, tmp_path, base_of(time.time()))
    assert not outcome.failure
    wrong = [(one.kind, one.output) for one in outcome.found]
    assert ("not zero", "currencies") in wrong
    assert ("not zero", "nets") in wrong
    assert ("not zero", "bank") not in wrong


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("name", TRUTHS)
def test_with_the_lowest_time_there_is_one_answer(name: str, tmp_path: Path) -> None:
    all_of_them = tuple(map(Event, (SLOW, OUT, KILL, PAUSE, DRAIN), (0.1, 0.2, 0.4, 0.6, 0.7)))
    draws = [
        drawn(name, 2),
        drawn(name, 1, instances=2, batch=500, events=(Event(KILL, 0.3),), seed=8),
        drawn(name, 4, instances=2, live=True, events=all_of_them, seed=9),
    ]
    outcomes = run(draws, LOWEST, tmp_path, base_of(time.time()))
    assert all(one.clean for one in outcomes), [one.told() for one in outcomes]
