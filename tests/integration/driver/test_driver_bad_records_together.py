"""Records that fail together in an operator that keeps something: all are found in one run, and
none is left out for what another one did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, Topology, serdes
from everflow.testing import TopologyTestDriver
from everflow.windows import TimeWindows

pytestmark = pytest.mark.spark
N = 2_000
BAD = frozenset({0, 1, 400, 401, 999, 1_500, N - 1})
TEXT, NUMBERS = serdes.string(), serdes.json("n bigint")


def noted(path: Path, n: int) -> int:
    """Functions travel, so what they are called with is written down beside them."""
    with path.open("a") as file:
        file.write(f"{n}\n")
    return n


def calls(path: Path) -> int:
    return len(path.read_text().splitlines())


def run(
    program: Topology, sent: list[tuple[str, int]], *, every: bool = True
) -> tuple[list[tuple[Any, Any]], list[int]]:
    """Output keys and values, and the n of the dead letters; all in one micro-batch."""
    with TopologyTestDriver(program, dead_letter_topic="dead", emit_every_update=every) as driver:
        topic = driver.create_input_topic("in", TEXT, NUMBERS)
        topic.pipe_batch([(key, {"n": n}) for key, n in sent])
        out = driver.create_output_topic("out", TEXT, serdes.long()).read_records()
        dead = driver.create_output_topic("dead", TEXT, NUMBERS).read_records()
        return [(one.key, one.value) for one in out], sorted(one.value["n"] for one in dead)


def aggregated(aggregator: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda grouped: grouped.aggregate(
        initializer=lambda: 0, aggregator=aggregator, returns="bigint", store="totals"
    )


def built(make: Callable[[Any], Any]) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=TEXT, value=NUMBERS).group_by_key()
    make(grouped).to_stream().to("out")
    return builder.build()


def numbered(count: int = N) -> list[tuple[str, int]]:
    return [(f"k{n % 7}", n) for n in range(count)]


def test_all_records_on_which_an_aggregator_fails_are_found_in_one_run(tmp_path: Path) -> None:
    path = tmp_path / "calls"

    def function(key: str, value: dict[str, int], total: int) -> int:
        n = noted(path, value["n"])
        return total + n // (n not in BAD)

    out, dead = run(built(aggregated(function)), numbered())
    assert dead == sorted(BAD)
    totals: dict[str, int] = {}
    expected = []
    for key, n in numbered():
        if n not in BAD:
            totals[key] = totals.get(key, 0) + n
            expected.append((key, totals[key]))
    assert out == expected
    assert calls(path) <= 2.2 * N


def test_a_batch_of_which_all_fail_calls_the_aggregator_once_for_each(tmp_path: Path) -> None:
    path = tmp_path / "calls"

    def function(key: str, value: dict[str, int], total: int) -> int:
        raise ValueError(noted(path, value["n"]))

    out, dead = run(built(aggregated(function)), numbered(500))
    assert (out, dead) == ([], list(range(500)))
    assert calls(path) <= 501


@pytest.mark.parametrize("first_bad", [0, N // 2])
def test_a_reducer_and_its_aggregates_in_place(tmp_path: Path, first_bad: int) -> None:
    """What a function that fails has changed before is not there for the records behind."""
    path = tmp_path / "calls"
    bad = {n for n in BAD if n >= first_bad} | {first_bad + 50}

    def function(one: dict[str, int], two: dict[str, int]) -> dict[str, int]:
        n = noted(path, two["n"])
        one["n"] += n
        if n in bad:
            raise ValueError
        return one

    builder = StreamsBuilder()
    grouped = builder.stream("in", key=TEXT, value=NUMBERS).group_by_key()
    sums = grouped.reduce(function, store="sums").to_stream()
    sums.map_values(F.col("value.n")).to("out")
    out, dead = run(builder.build(), [("k", n) for n in range(-1, N)])
    assert dead == sorted(bad)
    assert out[-1] == ("k", sum(n for n in range(-1, N) if n not in bad))
    assert calls(path) <= 3.2 * N


def test_a_cogroup_and_windows_that_overlap(tmp_path: Path) -> None:
    """A record is in several windows."""
    path = tmp_path / "calls"

    def function(key: str, value: dict[str, int], total: int) -> int:
        n = noted(path, value["n"])
        if n in BAD and total >= 0 and n % 2 == 0:
            raise ValueError
        return total + n

    builder = StreamsBuilder()
    grouped = builder.stream("in", key=TEXT, value=NUMBERS).group_by_key()
    windows = TimeWindows.of_size("10 seconds").advance_by("5 seconds")
    cogrouped = grouped.cogroup(function).windowed_by(windows)
    table = cogrouped.aggregate(initializer=lambda: 0, returns="bigint", store="totals")
    table.to_stream().map(lambda key, value: (key.key, value), returns=("string", "bigint")).to(
        "out"
    )
    out, dead = run(builder.build(), numbered())
    left = [n for n in sorted(BAD) if n % 2 == 0]
    assert dead == left
    assert len(out) % (N - len(left)) == 0
    last = dict(out)
    assert sum(last.values()) == sum(n for n in range(N) if n not in left)
    assert calls(path) <= 2 * len(out) + 2 * len(BAD) + N


def test_no_record_is_left_out_for_what_another_one_left_in_a_store() -> None:
    """100 makes the sum too large for the function, and so it does behind it: they stay."""

    def small(total: int) -> int:
        if total >= 100:
            raise ValueError(total)
        return total

    program = built(
        lambda grouped: aggregated(lambda key, value, total: total + value["n"])(
            grouped
        ).map_values(small, returns="bigint")
    )
    sent = [("a", 1), ("a", 100), ("a", 2), ("b", 200), ("a", 3), ("b", 4), ("c", 300)]
    out, dead = run(program, sent)
    assert dead == [100, 200, 300]
    assert out == [("a", 1), ("a", 3), ("a", 6), ("b", 4)]


def test_nor_in_an_aggregate_behind_one() -> None:
    def count(key: str, total: int, found: int) -> int:
        if total >= 100:
            raise ValueError(total)
        return found + 1

    def make(grouped: Any) -> Any:
        totals = aggregated(lambda key, value, total: total + value["n"])(grouped)
        again = totals.to_stream().group_by_key()
        return again.aggregate(
            initializer=lambda: 0, aggregator=count, returns="bigint", store="counts"
        )

    sent = [("a", 1), ("a", 100), ("a", 2), ("b", 200), ("a", 3), ("b", 4), ("c", 300)]
    out, dead = run(built(make), sent)
    assert dead == [100, 200, 300]
    assert out == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_nor_in_the_filter_of_a_table() -> None:
    """A change has the value before, too: the records behind 100 and 200 are in order."""
    builder = StreamsBuilder()
    table = builder.table("in", key=TEXT, value=NUMBERS, store="t")
    table.filter(lambda value: value["n"] // (value["n"] % 100) >= 0).map_values(
        F.col("value.n")
    ).to_stream().to("out")
    sent = [("a", 1), ("a", 100), ("a", 2), ("b", 200), ("b", 5), ("c", 300), ("c", 300), ("a", 7)]
    out, dead = run(builder.build(), sent)
    assert dead == [100, 200, 300, 300]
    assert out == [("a", 1), ("a", 2), ("b", 5), ("a", 7)]


def test_a_record_that_became_several_takes_all_of_them_with_it() -> None:
    """Of 100 come 100 and -1, which fails; without it 50 is no trouble."""

    def function(key: str, value: int, total: int) -> int:
        if value < 0 or (total >= 100 and value == 50):
            raise ValueError(value)
        return total + value

    builder = StreamsBuilder()
    split = builder.stream("in", key=TEXT, value=NUMBERS).flat_map_values(
        lambda value: [100, -1] if value["n"] == 100 else [value["n"]], returns="bigint"
    )
    aggregated(function)(split.group_by_key()).to_stream().to("out")
    out, dead = run(builder.build(), [("x", 1), ("x", 100), ("x", 50), ("y", 3)])
    assert dead == [100]
    assert out == [("x", 1), ("x", 51), ("y", 3)]
