"""`KStream.deduplicate` through the real segments and steps, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import KStream, StreamsBuilder, serdes
from everflow.errors import RecordError, TopologyError
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT = serdes.string()
VALUE = serdes.json("id string, n int")
ROWS: list[tuple[str | None, dict[str, Any] | None, int]] = [
    ("k", {"id": "x", "n": 1}, 1_000),
    ("k", {"id": "x", "n": 2}, 2_000),
    ("k", {"id": "y", "n": 3}, 2_000),
    ("k", {"id": "x", "n": 4}, 2_001),
    (None, {"id": "x", "n": 5}, 2_000),
    ("k", {"id": None, "n": 6}, 2_000),
    ("k", None, 2_000),
    ("k", {"id": "x", "n": 7}, 4_000),
]


def run(build: Callable[[KStream], KStream], apart: bool = False) -> list[int | None]:
    """The ``n`` of the records that go on, in one micro-batch, or in one each."""
    builder = StreamsBuilder()
    build(builder.stream("in", key=TEXT, value=VALUE)).to("out", value=VALUE)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        for rows in [[row] for row in ROWS] if apart else [ROWS]:
            topic.pipe_batch(rows)
        records = driver.create_output_topic("out", TEXT, VALUE).read_records()
    return [None if record.value is None else record.value["n"] for record in records]


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        pytest.param(lambda s: s.deduplicate("1 second", store="s"), [1, 4, 5, 7], id="key"),
        pytest.param(
            lambda s: s.deduplicate("1 second", by=F.col("value.id"), store="s"),
            [1, 3, 4, 6, None, 7],
            id="column",
        ),
        pytest.param(
            lambda s: s.deduplicate(
                "1 second", by=lambda v: v and v["id"], returns="string", store="s"
            ),
            [1, 3, 4, 6, None, 7],
            id="function",
        ),
        pytest.param(
            lambda s: s.select_key(F.col("value.id")).deduplicate("1 second", store="s"),
            [1, 3, 4, 7],  # behind a re-key null keys are dropped
            id="re-key",
        ),
    ],
)
def test_the_first_of_each_id_goes_on(
    build: Callable[[KStream], KStream], expected: list[int | None], apart: bool
) -> None:
    assert run(build, apart) == expected


def test_what_is_late_is_dropped_and_counted() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.deduplicate("10 seconds", grace="1 second", store="s").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, TEXT)
        for time in (10_000, 9_000, 8_999, 20_001, 19_001):
            topic.pipe_input(str(time), "v", timestamp=time)
        records = driver.create_output_topic("out", TEXT, TEXT).read_records()
        found = [record.key for record in records]
        store = driver.get_window_store("s")
        kept = [time for time in (9_000, 19_001) if store.fetch(str(time), time) is not None]
    assert found == ["10000", "9000", "20001", "19001"]
    assert kept == [19_001], "9,000 is more than 11 s behind stream time"


def test_a_function_that_fails_names_the_record() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE)
    stream.deduplicate("1 second", by=lambda v: v["nothing"], returns="string", store="s").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        with pytest.raises(RecordError, match=r"KeyError: 'nothing'"):
            topic.pipe_input("k", {"id": "x", "n": 1}, timestamp=1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.deduplicate("1 second"), "deduplicate keeps"),
        (lambda s: s.deduplicate("0 s", store="s"), r"within='0 s' is 0 ms; it is 1 ms at least"),
        (
            lambda s: s.deduplicate("1 s", grace=-1, store="s"),
            r"grace=-1.*-1.*0.*least",
        ),
        (lambda s: s.deduplicate("1 s", by="value.id", store="s"), r"write F\.col\('value\.id'\)"),
        (
            lambda s: s.deduplicate("1 s", by=lambda v: v["id"], store="s"),
            r"deduplicate.*returns=",
        ),
        (
            lambda s: s.deduplicate("1 s", by=lambda a, b, c: a, returns="string", store="s"),
            r"deduplicate.*function",
        ),
        (
            lambda s: s.deduplicate("1 s", by=F.col("value.nothing"), store="s"),
            r"nothing",
        ),
    ],
)
def test_what_cannot_work_is_refused(build: Callable[[KStream], KStream], message: str) -> None:
    stream = StreamsBuilder().stream("in", key=TEXT, value=VALUE)
    with pytest.raises(TopologyError, match=message):
        build(stream)
