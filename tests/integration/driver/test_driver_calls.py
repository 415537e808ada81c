"""Calls side by side in the test driver (note 070): results in order, one loop for all batches, bad
records, several operators in a row, merged inputs."""

import asyncio
import functools
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from everflow import KStream, StreamsBuilder, serdes
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()


def noted(path: Path, what: object) -> None:
    with path.open("a") as file:
        file.write(f"{what}\n")


def notes(path: Path) -> Counter[str]:
    return Counter(path.read_text().split())


async def pause(ms: float) -> None:
    """Of a service that takes its time."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(ms / 1000, passed.set)
    await passed.wait()


@functools.cache
def loops() -> set[int]:
    return set()


def numbers(builder: StreamsBuilder, topic: str = "in") -> KStream:
    return builder.stream(topic, key=TEXT, value=LONG)


def test_results_come_in_order_and_all_batches_share_a_loop() -> None:
    async def asked(value: int) -> int:
        loops().add(id(asyncio.get_running_loop()))
        await pause(value % 5)
        return value * 100 + len(loops())

    builder = StreamsBuilder()
    numbers(builder).map_values(asked, returns="bigint", concurrency=8).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        source, out = (
            driver.create_input_topic("in", TEXT, LONG),
            driver.create_output_topic("out", TEXT, LONG),
        )
        for begin in (0, 20):
            source.pipe_batch([(f"k{n}", n) for n in range(begin, begin + 20)])
        found = out.read_key_values()
    assert found == [(f"k{n}", n * 100 + 1) for n in range(40)]


def test_who_fails_is_a_dead_letter_and_nobody_else_is_asked_again(tmp_path: Path) -> None:
    asks, path = tmp_path / "asks", tmp_path / "begun"

    async def asked(key: str, value: int) -> int:
        noted(asks, value)
        if value % 4 == 1:
            raise LookupError(value)
        if value == 6:
            await asyncio.Event().wait()
        if value == 7 and notes(asks)["7"] < 3:
            raise ConnectionError
        return value

    def plain(value: int) -> bool:
        noted(path, value)
        if value == 8:
            raise KeyError(value)
        return value != 10

    builder = StreamsBuilder()
    (
        numbers(builder)
        .map_values(asked, returns="bigint", concurrency=4, timeout=100, retries=2)
        .filter(plain, concurrency=3)
        .map_values(F.col("value") + 1000)
        .to("out")
    )
    with TopologyTestDriver(builder.build(), dead_letter_topic="letters") as driver:
        driver.create_input_topic("in", TEXT, LONG).pipe_batch([(f"k{n}", n) for n in range(12)])
        found = driver.create_output_topic("out", TEXT, LONG).read_key_values()
        letters = driver.create_output_topic("letters", TEXT, LONG).read_key_values()
    assert [value for _, value in found] == [n + 1000 for n in (0, 2, 3, 4, 7, 11)]
    assert sorted(value for _, value in letters) == [1, 5, 6, 8, 9]
    assert notes(asks) == Counter({str(n): 3 if n in (6, 7) else 1 for n in range(12)})
    assert set(notes(path).values()) == {1}


def test_several_values_of_merged_streams_and_effects(tmp_path: Path) -> None:
    path = tmp_path / "effects"

    async def spread(value: int):  # type: ignore[no-untyped-def]
        for number in range(value):
            await pause(0)
            yield f"{value}.{number}"

    async def effect(key: str, value: str) -> None:
        noted(path, value)

    builder = StreamsBuilder()
    both = numbers(builder, "a").merge(numbers(builder, "b"))
    spread_out = both.flat_map_values(spread, returns="string", concurrency=4)
    spread_out.peek(effect, concurrency=2).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        for topic, value in (("a", 2), ("b", 0), ("b", 3)):
            driver.create_input_topic(topic, TEXT, LONG).pipe_batch([("k", value)])
        found = driver.create_output_topic("out", TEXT, TEXT).read_key_values()
    assert [value for _, value in found] == ["2.0", "2.1", "3.0", "3.1", "3.2"]
    assert notes(path) == Counter(value for _, value in found)
