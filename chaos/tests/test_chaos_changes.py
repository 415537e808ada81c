"""The events of `./run chaos changes`, what its comparison finds, and a slice of it."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from chaos.changes import ADD, CONNECTOR, DROP, INSTANCE, deal, run
from integration.debezium.shop import folded, transaction
from integration.debezium.shop_program import CHANGES, KEY
from integration.lifecycle.lifecycle_cluster import Record


@pytest.mark.parametrize("seed", range(20))
def test_each_victim_is_killed_as_often_as_was_asked(seed: int) -> None:
    events = deal(1_000, 10, seed)
    assert deal(1_000, 10, seed) == events
    assert [one.at for one in events] == sorted(one.at for one in events)
    victims = [one.victim for one in events]
    assert (victims.count(CONNECTOR), victims.count(INSTANCE)) == (10, 10)
    assert [one.sql for one in events if one.sql] == [ADD, DROP]


def test_transactions_are_those_of_the_seed() -> None:
    one, other = ([transaction(random.Random(seed)) for _ in range(50)] for seed in (1, 1))
    assert one == other
    assert all(text.startswith("BEGIN;\n") for text in one)


def row(id_: int, note: str) -> dict[str, Any]:
    empty = dict.fromkeys(field.name for field in CHANGES.type.field("after").type)
    return {**empty, "id": id_, "part": 0, "note": note}


def records(*changes: tuple[str | None, str | None] | None) -> list[Record]:
    """Of one key; None: a tombstone."""
    found = []
    for offset, change in enumerate(changes):
        value = None
        if change is not None:
            before, after = (note and row(1, note) for note in change)
            op = "d" if not after else "u" if before else "c"
            value = CHANGES.encode({"before": before, "after": after, "op": op, "ts_ms": 1})
        found.append(Record(KEY.encode({"id": 1, "part": 0}), value, offset=offset))
    return found


RIGHT = ((None, "a"), ("a", "b"), ("b", None), None, (None, "c"))


def test_changes_that_follow_from_each_other_lead_to_the_table() -> None:
    rows, wrong = folded(records(*RIGHT))
    assert not wrong
    assert [one["note"] for one in rows.values()] == ["c"]


@pytest.mark.parametrize("left", range(4))
def test_a_change_that_is_missing_is_found(left: int) -> None:
    _, wrong = folded(records(*(one for at, one in enumerate(RIGHT) if at != left)))
    assert set(wrong) == {(1, 0)}


@pytest.mark.parametrize("doubled", range(4))
def test_a_change_that_is_there_twice_is_found(doubled: int) -> None:
    twice = itertools.chain.from_iterable(
        [one] * (1 + (at == doubled)) for at, one in enumerate(RIGHT)
    )
    _, wrong = folded(records(*twice))
    assert set(wrong) == {(1, 0)}


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_slice_with_both_killed(tmp_path: Path) -> None:
    report = run(600, 1, 3, tmp_path)
    assert report.clean, report
    assert report.faults == {CONNECTOR: 1, INSTANCE: 1}
    assert report.rows
