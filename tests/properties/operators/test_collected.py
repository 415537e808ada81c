"""Lists, sets, orders, the n largest and sketches equal a model that keeps every value."""

import math
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators import AggregateSpec, SessionAggregateSpec, UserFunctionError, agg
from everflow.operators.aggregates.folds import pack, unpack
from everflow.serdes.base import decode_one
from everflow.state.store import InMemoryStore
from everflow.windows import SessionWindows, TimeWindows
from properties.operators import test_aggregates as groups
from properties.operators import test_session_windows as sessions
from properties.operators.operator_batches import done_by_one_task, edge_batch, split_of

AGGREGATES = {
    "n": agg.count(),
    "listed": agg.collect_list("x"),
    "begun": agg.collect_list("t", 3, when_full="keep_first"),
    "latest": agg.collect_list("t", 3, when_full="keep_last"),
    "distinct": agg.collect_set("x"),
    "texts": agg.collect_set("t", 2, when_full="keep_first"),
    "at_min": agg.min_by("t", "x"),
    "mean": agg.avg("x"),
    "at_max": agg.max_by("i", "t"),
    "top": agg.top_n("t", 2, by="x"),
    "low": agg.top_n("x", 3, largest=False),
    "best": agg.max_by("t", "i", 2),
    "about": agg.approx_count_distinct("h"),
    "last": agg.last("t"),
}
INPUT = pa.struct([("i", pa.int64()), ("x", pa.float64()), ("t", pa.string()), ("h", pa.int64())])
NOTHING = {"i": None, "x": None, "t": None, "h": None}

values = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(0, 3),
        "x": st.none() | st.sampled_from([-0.5, 1.0, 2.0, float("inf")]),
        "t": st.none() | st.text("ab\u00e9", max_size=2),
        "h": st.none() | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, -1]),
    }
)


class Shown(dict[str, Any]):
    def __init__(self, seen: list[dict[str, Any]]) -> None:
        super().__init__(shown(seen))
        self.seen = seen


def shown(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """The aggregates of all values of a key (and window), in order."""

    def there(name: str) -> list[Any]:
        return [value[name] for value in seen if value[name] is not None]

    def ordered(by: str, reverse: bool = False) -> list[dict[str, Any]]:
        known = [value for value in seen if value[by] is not None]
        return sorted(known, key=lambda value: written(value[by]), reverse=reverse)

    numbers = there("x")
    registers = {(hash_ >> 55) & 511 for hash_ in there("h")}
    largest = max((written(value["t"]) for value in seen if value["t"] is not None), default=None)
    at_max = [value["i"] for value in seen if value["t"] and written(value["t"]) == largest]
    if largest == b"":
        at_max = [value["i"] for value in seen if value["t"] == ""]
    at_min = [value["t"] for value in seen if value["x"] is not None and value["x"] == min(numbers)]
    return {
        "n": len(seen),
        "listed": numbers,
        "begun": there("t")[:3],
        "latest": there("t")[-3:],
        "distinct": list(dict.fromkeys(numbers)),
        "texts": list(dict.fromkeys(there("t")))[:2],
        "at_min": at_min[-1] if at_min else None,
        "mean": sum(numbers) / len(numbers) if numbers else None,
        "at_max": at_max[-1] if at_max else None,
        "top": [value["t"] for value in ordered("x", reverse=True)][:2],
        "low": [value["x"] for value in ordered("x")][:3],
        "best": [value["t"] for value in ordered("i", reverse=True)][:2],
        "about": round(512 * math.log(512 / (512 - len(registers)))),
        "last": seen[-1]["t"],
    }


def written(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def step(key: Any, value: Any, before: Shown | None) -> Shown:
    return Shown([*(before.seen if before is not None else []), value or NOTHING])


def spec_of(window: TimeWindows | None, every: bool) -> AggregateSpec:
    aggregators, names = list(AGGREGATES.values()), list(AGGREGATES)
    return AggregateSpec.of(
        "s", serdes.string(), aggregators, names, INPUT, window=window, emit_every_update=every
    )


records = st.tuples(st.none() | st.sampled_from(["", "a"]), st.none() | values, st.integers(0, 60))


@given(
    split=st.lists(st.lists(records, max_size=12), max_size=5),
    window=groups.windows,
    every=st.booleans(),
)
def test_of_groups_and_windows(split: Any, window: TimeWindows | None, every: bool) -> None:
    spec = spec_of(window, every)
    groups.check(spec, groups.Model(window, step), split, INPUT, partial(decode_one, spec.results))


@given(split=split_of(st.none() | values), windows=sessions.sessions, every=st.booleans())
def test_of_sessions(split: Any, windows: SessionWindows, every: bool) -> None:
    layout = spec_of(None, False)
    spec = SessionAggregateSpec(layout, windows, emit_every_update=every)
    model = sessions.Model(windows, step, lambda one, two: Shown(one.seen + two.seen))

    sessions.check(spec, model, split, INPUT, partial(decode_one, spec.results))


elements = st.none() | st.floats() | st.just(-0.0)


@given(st.lists(st.none() | st.lists(elements, max_size=4), max_size=6))
def test_lists_are_packed_and_unpacked_to_the_bit(lists: Any) -> None:
    column = pa.array([None, *lists, []], pa.list_(pa.float64())).slice(1)

    found = unpack(pack(column), column.type)

    assert repr(found.to_pylist()) == repr(column.to_pylist())


@given(st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4), max_size=6))
def test_lists_of_texts_are_packed_and_unpacked(lists: Any) -> None:
    column = pa.array(lists, pa.list_(pa.string()))

    assert unpack(pack(column), column.type).to_pylist() == lists


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("every", [False, True])
def test_a_full_list_fails_at_the_record_that_is_too_much(size: int, every: bool) -> None:
    spec = AggregateSpec.of(
        "s", serdes.string(), [agg.collect_list("x", 3)], ["item"], INPUT, emit_every_update=every
    )
    rows = [(key, NOTHING | {"x": float(at)}, at) for at, key in enumerate("abaabaaa")]
    store = InMemoryStore()

    def run_all() -> None:
        for seq in range(0, len(rows), size):
            batch = edge_batch(rows[seq : seq + size], INPUT, seq)
            for changes in done_by_one_task(spec, batch, store, -1).changes:
                store.apply(changes)

    with pytest.raises(UserFunctionError, match=r"holds 3.*'a'") as failed:
        run_all()

    assert failed.value.offset == 2 * 5
