"""As-of joins of two streams, under any cut, against a model of record after record."""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.joins import JoinKind
from everflow.operators.joins.stream_table import AsOfJoin, HeldBack
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
    batches,
    results,
    side,
)
from unit.builders import store_spec

KINDS = st.sampled_from([JoinKind.INNER, JoinKind.LEFT])
TOLERANCES, GRACES = st.sampled_from([0, 3, 10, 50]), st.sampled_from([0, 1, 5, 20])


def run(
    kind: JoinKind, tolerance: int, grace: int, rows: Sequence[Row], cuts: Sequence[int]
) -> tuple[list[Result], dict[str, int]]:
    right = store_spec("r", "window", key=KEY, value=VALUE, retention_ms=tolerance + grace + 1)
    waits = store_spec("w", key=serdes.bytes_(), value=serdes.bytes_())
    held = HeldBack(store=waits, key_serde=KEY, value_serde=VALUE, grace_ms=grace)
    join = AsOfJoin(
        kind=kind,
        right=right,
        type=pa.int64(),
        tolerance_ms=tolerance,
        held=held if grace else None,
    )
    stores = {task: {"r": InMemoryStore(right), "w": InMemoryStore(waits)} for task in TASKS}
    times, found, dropped = dict.fromkeys(TASKS, -1), list[Result](), Counter[str]()
    for batch in batches(rows, cuts):
        done = join.run(Inputs((side(batch, True), side(batch, False)), stores, times))
        times |= done.stream_times
        apply_all(done, stores)
        dropped.update(done.dropped)
        found += results(done.output)
    return found, dropped


def model(
    kind: JoinKind, tolerance: int, grace: int, rows: Sequence[Row]
) -> tuple[list[Result], dict[str, int]]:
    kept: dict[tuple[int, str], dict[int, int]] = {}
    waiting: list[tuple[int, int, str, int, int]] = []
    observed, found = dict.fromkeys(TASKS, -1), list[Result]()
    dropped = dict.fromkeys(("null-value", "null-key", "late"), 0)

    def joined(task: int, key: str | None, value: int, time: int, until: int) -> None:
        match = None
        if key is not None:
            first = max(time - tolerance, until - tolerance - grace)
            fits = {at: v for at, v in kept.get((task, key), {}).items() if first <= at <= time}
            match = fits[max(fits)] if fits else None
        if match is not None or kind is JoinKind.LEFT:
            found.append(Result(task, key, (value, match), time))

    for place, row in enumerate(rows):
        if row.value is None:
            dropped["null-value"] += 1
            continue
        if row.key is None:
            if row.left and kind is JoinKind.LEFT:
                joined(row.partition, None, row.value, row.time, 0)
            else:
                dropped["null-key"] += 1
            continue
        until = observed[row.partition]
        now = observed[row.partition] = max(until, row.time)
        if row.left:
            waiting.append((row.partition, row.time, row.key, place, row.value))
        elif row.time < now - tolerance - grace:
            dropped["late"] += 1
        else:
            kept.setdefault((row.partition, row.key), {})[row.time] = row.value
        due = [one for one in waiting if one[0] == row.partition and one[1] + grace <= now]
        for one in sorted(due, key=lambda one: one[1:4]):
            waiting.remove(one)
            joined(one[0], one[2], one[4], one[1], until)
    return found, {reason: count for reason, count in dropped.items() if count}


@given(KINDS, TOLERANCES, GRACES, ROWS, CUTS)
def test_each_record_meets_the_latest_that_is_not_later(
    kind: JoinKind, tolerance: int, grace: int, rows: list[Row], cuts: list[int]
) -> None:
    assert run(kind, tolerance, grace, rows, cuts) == model(kind, tolerance, grace, rows)


@given(TOLERANCES, st.lists(ROWS, min_size=1, max_size=1), st.randoms(use_true_random=False))
def test_in_grace_no_order_matters(tolerance: int, drawn: list[list[Row]], dice: object) -> None:
    """Of times that differ; behind them comes one that lets all out."""
    rows = list({(row.left, row.partition, row.key, row.time): row for row in drawn[0]}.values())
    last = [Row(True, task, "z", 1, 1_000) for task in TASKS]
    shuffled = list(rows)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    ordered = sorted(rows, key=lambda row: row.time)
    a, b = (run(JoinKind.LEFT, tolerance, 41, [*some, *last], [3]) for some in (shuffled, ordered))
    assert sorted(map(str, a[0])) == sorted(map(str, b[0]))
