"""Early results of windows, and windows over record numbers, equal a plain loop's."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everflow import (
    CountWindows,
    EmitStrategy,
    KTable,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    serdes,
)
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()
SIZE, ADVANCE, GRACE = 10, 5, 4
Record = tuple[Any, Any, int]
Result = tuple[Any, int, int, Any, int]
"""Key, window start and end, value, time."""
RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 9), st.integers(0, 40)),
    min_size=1,
    max_size=25,
)
CUTS = st.lists(st.integers(1, 8), min_size=25, max_size=25)
HOPPING = TimeWindows.of_size(SIZE).advance_by(ADVANCE).grace(GRACE)


def reduced(aggregate: int, value: int) -> int:
    return aggregate * 3 + value


def results(windowed: Callable[[Any], KTable], cuts: list[list[Record]]) -> list[Result]:
    builder = StreamsBuilder()
    groups = builder.stream("in", key=TEXT, value=LONG).group_by_key()
    windowed(groups).to_stream().map(
        lambda window, value: (window.key, [window.start, window.end, value]),
        returns=("string", "array<bigint>"),
    ).to("out", key=TEXT, value=serdes.json("array<bigint>"))
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", TEXT, LONG)
        for batch in cuts:
            source.pipe_batch(batch)
        out = driver.create_output_topic("out", TEXT, serdes.json("array<bigint>"))
        return [(one.key, *one.value, one.timestamp) for one in out.read_records()]


def cut(records: list[Record], sizes: list[int]) -> list[list[Record]]:
    found, at = [], 0
    for size in sizes:
        found.append(records[at : at + size])
        at += size
    return [batch for batch in found if batch]


class Early:
    """A count per window, by hand: one record after the other."""

    def __init__(self, every: int | None, wait_ms: int | None) -> None:
        self.every, self.wait_ms = every, wait_ms
        self.stream_time = -1
        self.counts: dict[Any, tuple[int, int]] = {}
        self.held: dict[Any, list[int]] = {}
        """Window -> updates that were not shown, and when it is shown at the latest."""
        self.given: list[Result] = []

    def take(self, key: Any, _: Any, time: int) -> None:
        if key is None:
            return
        self.stream_time = max(self.stream_time, time)
        first = max(0, time - SIZE + ADVANCE) // ADVANCE * ADVANCE
        for start in range(first, time + 1, ADVANCE):
            closes = start + SIZE + GRACE
            if closes <= self.stream_time:
                continue
            window = (key, start, start + SIZE)
            count, latest = self.counts.get(window, (0, -1))
            self.counts[window] = count + 1, max(latest, time)
            due = closes if self.wait_ms is None else min(closes, self.stream_time + self.wait_ms)
            held = self.held.setdefault(window, [0, due])
            held[0] += 1
            self.show_due()
            if window in self.held and held[0] == self.every:
                self.show(window)

    def show_due(self) -> None:
        due = [(at, window) for window, (_, at) in self.held.items() if at <= self.stream_time]
        for _, window in sorted(due, key=lambda one: (one[0], one[1][0], one[1][1])):
            self.show(window)

    def show(self, window: Any) -> None:
        del self.held[window]
        self.given.append((*window, *self.counts[window]))


@settings(max_examples=30)
@given(
    records=RECORDS,
    sizes=CUTS,
    strategy=st.one_of(
        st.integers(1, 4).map(lambda n: (n, None)), st.integers(1, 12).map(lambda ms: (None, ms))
    ),
)
def test_early_and_final_results_are_those_of_a_loop(
    records: list[Record], sizes: list[int], strategy: tuple[int | None, int | None]
) -> None:
    every, wait_ms = strategy
    emit = EmitStrategy.every(every if every is not None else f"{wait_ms} ms")
    model = Early(every, wait_ms)
    for record in records:
        model.take(*record)
    found = results(
        lambda groups: groups.windowed_by(HOPPING).emit_strategy(emit).count(store="n"),
        cut(records, sizes),
    )
    assert found == model.given


@settings(max_examples=20)
@given(records=RECORDS, sizes=CUTS, amount=st.sampled_from([2, 3, "3 ms"]))
def test_sliding_windows_under_cuts(records: list[Record], sizes: list[int], amount: Any) -> None:
    windows = SlidingWindows.of_time_difference_and_grace(SIZE, GRACE)
    emit = EmitStrategy.every(amount)

    def windowed(groups: Any) -> KTable:
        table: KTable = groups.windowed_by(windows).emit_strategy(emit).reduce(reduced, store="n")
        return table

    assert results(windowed, cut(records, sizes)) == results(windowed, [[one] for one in records])


def counted(records: list[Record], size: int, step: int, early: int) -> list[Result]:
    """Count windows by hand; ``early`` 0: complete windows alone."""
    seen: dict[Any, list[Record]] = {}
    given = []
    for key, value, time in records:
        if key is None:
            continue
        mine = seen.setdefault(key, [])
        mine.append((key, value, time))
        number = len(mine) - 1
        for start in range(0, number + 1, step):
            if not start <= number < start + size:
                continue
            inside = mine[start:]
            if len(inside) == size or (early and len(inside) % early == 0):
                latest = max(one[2] for one in inside)
                given.append((key, start, start + size, len(inside), latest))
    return given


@settings(max_examples=30)
@given(
    records=RECORDS,
    sizes=CUTS,
    size=st.integers(1, 5),
    less=st.integers(0, 4),
    early=st.sampled_from([0, 2, 3]),
)
def test_count_windows_are_those_of_a_loop(
    records: list[Record], sizes: list[int], size: int, less: int, early: int
) -> None:
    step = max(1, size - less)
    windows = CountWindows.of_size(size).advance_by(step)
    emit = EmitStrategy.every(early) if early else EmitStrategy.on_window_close()
    found = results(
        lambda groups: groups.windowed_by(windows).emit_strategy(emit).count(store="n"),
        cut(records, sizes),
    )
    assert found == counted(records, size, step, early)


@settings(max_examples=20)
@given(records=RECORDS, sizes=CUTS, size=st.integers(1, 5))
def test_count_functions_under_any_cut(records: list[Record], sizes: list[int], size: int) -> None:
    windows = CountWindows.of_size(size).advance_by(max(1, size // 2))
    full = [(key, value or 0, time) for key, value, time in records]

    def windowed(groups: Any) -> KTable:
        closing = groups.windowed_by(windows).emit_strategy(EmitStrategy.on_window_close())
        table: KTable = closing.reduce(reduced, store="n")
        return table

    assert results(windowed, cut(full, sizes)) == results(windowed, [[one] for one in full])
