"""A join whose records wait for their entry, under any cut, against a model."""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.joins import JoinKind
from everflow.operators.joins.lookup_join import LookupJoin, WaitingRoom
from everflow.state.store import InMemoryStore
from everflow.topology.graph import Inputs
from properties.operators.operator_batches import apply_all
from properties.operators.test_joins import (
    CUTS,
    KEY,
    ROWS,
    TASKS,
    VALUE,
    Result,
    Row,
    Table,
    batches,
    results,
    side,
)
from unit.builders import store_spec

WAITING = store_spec("w", key=serdes.bytes_(), value=serdes.bytes_())


def room(grace_ms: int | None, most: int | None, timeout_ms: int | None = None) -> WaitingRoom:
    return WaitingRoom(
        store=WAITING,
        key_serde=KEY,
        value_serde=VALUE,
        grace_ms=grace_ms,
        most=most,
        timeout_ms=timeout_ms,
    )


def looked_up(
    kind: JoinKind, own: WaitingRoom, rows: Sequence[Row], cuts: Sequence[int]
) -> tuple[list[Result], dict[str, int], int]:
    """Results, what was dropped, and how many entries are left in the store."""
    table = Table("t")
    stores = {task: InMemoryStore(WAITING) for task in TASKS}
    join = LookupJoin(table=table.joined, kind=kind, room=own)
    times, found, dropped = dict.fromkeys(TASKS, -1), list[Result](), Counter[str]()
    for batch in batches(rows, cuts):
        updates, apply = table.changed(side(batch, left=False))
        views = {task: {"t": table.stores[task], "w": stores[task]} for task in TASKS}
        done = join.run(Inputs([side(batch, left=True), updates], views, times, {}, 0))
        apply()
        times = done.stream_times
        apply_all(done, stores)
        dropped.update(done.dropped)
        found += results(done.output)
    left = sum(1 for store in stores.values() for key, _ in store.range(None, None) if key != b"n")
    return found, dropped, left


def model(
    kind: JoinKind, own: WaitingRoom, rows: Sequence[Row]
) -> tuple[list[Result], dict[str, int], int]:
    held = dict[tuple[int, str], int]()
    waiting: dict[int, list[Row]] = {task: [] for task in TASKS}
    latest, found, dropped = dict.fromkeys(TASKS, -1), list[Result](), Counter[str]()
    grace_ms = own.grace_ms or 0
    keeps = kind is JoinKind.LEFT

    def drop(reason: str) -> None:
        dropped[reason] = dropped.get(reason, 0) + 1

    def over(row: Row) -> None:
        if keeps:
            found.append(Result(row.partition, row.key, (row.value, None), row.time))
        else:
            drop("not-found")

    for row in rows:
        task, mine = row.partition, waiting[row.partition]
        if not row.left:
            if row.key is None:
                continue
            held.pop((task, row.key), None)
            if row.value is not None:
                held[task, row.key] = row.value
                for one in [one for one in mine if one.key == row.key]:
                    found.append(Result(task, one.key, (one.value, row.value), one.time))
                    mine.remove(one)
            continue
        if row.value is None:
            drop("null-value")
            continue
        latest[task] = max(latest[task], row.time)
        due = [one for one in mine if one.time + grace_ms < latest[task]]
        for one in sorted(due, key=lambda one: one.time):
            over(one)
            mine[:] = [other for other in mine if other is not one]
        if row.key is None:
            if keeps:
                over(row)
            else:
                drop("null-key")
        elif (task, row.key) in held:
            value = (row.value, held[task, row.key])
            found.append(Result(task, row.key, value, row.time))
        elif row.time + grace_ms < latest[task]:
            over(row)
        else:
            mine.append(row)
            same = [one for one in mine if one.key == row.key]
            if own.most is not None and len(same) > own.most:
                over(same[0])
                mine[:] = [other for other in mine if other is not same[0]]
    return found, dropped, 2 * sum(map(len, waiting.values()))


def unique(rows: Sequence[Row]) -> list[Row]:
    """Rows that are objects of their own, each with a value of its own."""
    return [
        row._replace(value=None if row.value is None else row.value + 10 * at)
        for at, row in enumerate(rows)
    ]


@given(
    st.sampled_from([JoinKind.INNER, JoinKind.LEFT]),
    st.sampled_from([0, 3, 10, 100]),
    st.sampled_from([None, 1, 2]),
    ROWS,
    CUTS,
)
def test_a_record_waits_for_its_entry_as_one_record_after_the_other_would(
    kind: JoinKind, grace_ms: int, most: int | None, rows: list[Row], cuts: list[int]
) -> None:
    own, records = room(grace_ms, most), unique(rows)
    assert looked_up(kind, own, records, cuts) == model(kind, own, records)


def test_an_empty_batch_gives_nothing() -> None:
    table, own = Table("t"), room(5, None)
    join = LookupJoin(table=table.joined, kind=JoinKind.LEFT, room=own)
    views = {task: {"t": table.stores[task], "w": InMemoryStore(WAITING)} for task in TASKS}
    updates, _ = table.changed(side([], left=False))
    times = dict.fromkeys(TASKS, -1)
    done = join.run(Inputs([side([], left=True), updates], views, times, {}, 0))
    assert (len(done.output), done.changes, done.dropped) == (0, {}, {})
    assert done.output.value.type == pa.struct([("left", pa.int64()), ("right", pa.int64())])
