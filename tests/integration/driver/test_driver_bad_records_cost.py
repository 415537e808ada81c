"""What records that fail cost: in calls of the user's code, k of n cost the n and O(k log n)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from everflow import StreamsBuilder, Topology, serdes
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
N = 2_000
BAD = frozenset({0, 1, 400, 401, 999, 1_500, N - 1})
TEXT, NUMBERS = serdes.string(), serdes.json("n bigint")


def noted(path: Path, what: str) -> bool:
    """Functions travel, so what they are called with is written down beside them."""
    with path.open("a") as file:
        return file.write(f"{what}\n") > 0


def calls(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def failing(path: Path, result: Callable[[int], Any] = lambda n: n) -> Callable[[Any], Any]:
    def function(value: dict[str, int]) -> Any:
        noted(path, f"f {value['n']}")
        return result(value["n"] // (value["n"] not in BAD))

    return function


def run(program: Topology, count: int = N) -> tuple[list[Any], list[int]]:
    """Output values, and the n of the dead letters; all in one micro-batch."""
    with TopologyTestDriver(program, dead_letter_topic="dead") as driver:
        records = [(f"k{n % 7}", {"n": n}) for n in range(count)]
        driver.create_input_topic("in", TEXT, NUMBERS).pipe_batch(records)
        out = driver.create_output_topic("out", TEXT, serdes.long()).read_records()
        return [one.value for one in out], left_out(driver)


def left_out(driver: TopologyTestDriver) -> list[int]:
    """The n of the dead letters."""
    dead = driver.create_output_topic("dead", TEXT, NUMBERS).read_records()
    return sorted(one.value["n"] for one in dead)


def built(make: Callable[[Any], Any]) -> Topology:
    builder = StreamsBuilder()
    make(builder.stream("in", key=TEXT, value=NUMBERS)).to("out")
    return builder.build()


ROWS: dict[str, Callable[[Path], Callable[[Any], Any]]] = {
    "map_values": lambda path: lambda s: s.map_values(failing(path), returns="bigint"),
    "filter": lambda path: (
        lambda s: s.filter(failing(path, lambda n: n >= 0)).map_values(F.col("value.n"))
    ),
    "flat_map_values": lambda path: (
        lambda s: s.flat_map_values(failing(path, lambda n: [n]), returns="bigint")
    ),
    "behind a function that does not fail": lambda path: (
        lambda s: s.map_values(
            lambda value: value if noted(path, f"g {value['n']}") else None, returns="n bigint"
        ).map_values(failing(path), returns="bigint")
    ),
    "behind another function's failures, and a Column": lambda path: (
        lambda s: (
            s.map_values(lambda value: {"n": value["n"] // (value["n"] != 77)}, returns="n bigint")
            .map_values(F.struct((F.col("value.n") + 0).alias("n")))
            .map_values(failing(path), returns="bigint")
        )
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_no_function_of_a_record_is_called_again_for_the_records_that_do_not_fail(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "calls"
    out, dead = run(built(ROWS[name](path)))
    assert dead == sorted(BAD | ({77} if "another" in name else set()))
    assert out == [n for n in range(N) if n not in dead]
    called = calls(path)
    assert len(called) == len(set(called)), "for no record twice"
    assert len(called) in (N, N - 1, 2 * N)


def test_a_state_before_the_function_does_not_make_it_called_again(tmp_path: Path) -> None:
    """The trial on stores that are checked calls it for those that fail, and no others."""
    path = tmp_path / "calls"
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=NUMBERS, store="t")
    stream = builder.stream("in", key=TEXT, value=NUMBERS)
    joined = stream.left_join(table, lambda left, right: left, returns="n bigint")
    joined.map_values(failing(path), returns="bigint").to("out")
    out, dead = run(builder.build())
    assert (out, dead) == ([n for n in range(N) if n not in BAD], sorted(BAD))
    assert len(calls(path)) == N + len(BAD)


def test_results_of_another_type_than_declared_are_found_in_one_pass(tmp_path: Path) -> None:
    path = tmp_path / "calls"

    def function(value: dict[str, int]) -> Any:
        noted(path, f"f {value['n']}")
        return "no number" if value["n"] in BAD else value["n"]

    out, dead = run(built(lambda stream: stream.map_values(function, returns="bigint")))
    assert (len(out), dead) == (N - len(BAD), sorted(BAD))
    assert len(calls(path)) == N


def test_a_batch_of_which_all_fail_calls_the_function_once_for_each(tmp_path: Path) -> None:
    path = tmp_path / "calls"

    def function(value: dict[str, int]) -> int:
        noted(path, f"f {value['n']}")
        raise ZeroDivisionError

    out, dead = run(built(lambda stream: stream.map_values(function, returns="bigint")), 500)
    assert (out, dead) == ([], list(range(500)))
    assert len(calls(path)) == 500


@pytest.mark.parametrize("what", ["topic", "partitioner", "timestamp"])
def test_other_functions_of_records_tell_all_that_they_fail_on_at_once(
    tmp_path: Path, what: str
) -> None:
    path = tmp_path / "calls"

    def gives(result: Any) -> Callable[..., Any]:
        def function(*given: Any) -> Any:
            value = next(one for one in reversed(given) if isinstance(one, dict))
            noted(path, f"f {value['n']}")
            return result if value["n"] not in BAD else 1 // 0

        return function

    builder = StreamsBuilder()
    time = gives(5) if what == "timestamp" else None
    stream = builder.stream("in", key=TEXT, value=NUMBERS, timestamp=time)
    if what == "topic":
        topic = gives("out")
        stream.to(lambda key, value: topic(value))
    elif what == "partitioner":
        stream.to("out", partitioner=gives(0))
    else:
        stream.to("out")
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        records = [(f"k{n % 7}", {"n": n}) for n in range(N)]
        driver.create_input_topic("in", TEXT, NUMBERS).pipe_batch(records)
        assert len(driver.create_output_topic("out", TEXT, NUMBERS).read_records()) == N - len(BAD)
        assert left_out(driver) == sorted(BAD)
    assert len(calls(path)) <= 2 * N


def test_a_vectorised_function_is_halved_to_all_records_that_it_fails_on(tmp_path: Path) -> None:
    path = tmp_path / "calls"

    def inverted(numbers: pd.Series) -> pd.Series:
        noted(path, f"f {len(numbers)}")
        if numbers.isin(BAD).any():
            raise ZeroDivisionError
        return numbers

    make: Any = pandas_udf  # its types know no pd.Series
    vectorised = make(inverted, "bigint")
    out, dead = run(built(lambda stream: stream.map_values(vectorised(F.col("value.n")))))
    assert (out, dead) == ([n for n in range(N) if n not in BAD], sorted(BAD))
    most = 2 + 2 * len(BAD) * math.ceil(math.log2(N))
    sizes = [int(line.split()[1]) for line in calls(path)]
    assert len(sizes) <= most
    assert sum(size >= N - len(BAD) for size in sizes) == 2, "the batch, and once without them"
