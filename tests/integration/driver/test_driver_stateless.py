"""Stateless operators, each with a Column and a Python function, through the real segments and
steps (reference 1.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.dsl.streams import KStream
from everflow.errors import RecordError
from everflow.testing import TestRecord, TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()
VALUE = serdes.json("a string, n int")
RECORDS = [
    ("k", {"a": "x", "n": 1}),
    (None, {"a": "y", "n": None}),
    ("z", None),
    ("k", {"a": None, "n": 3}),
]

Build = Callable[[KStream], KStream]
CASES: dict[str, tuple[Build, Build, Any, list[tuple[Any, Any]]]] = {
    "filter": (
        lambda s: s.filter(F.col("value.n") > 0),
        lambda s: s.filter(lambda v: v and v["n"]),
        VALUE,
        [RECORDS[0], RECORDS[3]],
    ),
    "filter_not": (
        lambda s: s.filter_not(F.col("value.n") > 0),
        lambda s: s.filter_not(lambda k, v: v and v["n"]),
        VALUE,
        [RECORDS[1], RECORDS[2]],
    ),
    "map_values": (
        lambda s: s.map_values(F.col("value.a")),
        lambda s: s.map_values(lambda v: v and v["a"], returns="string"),
        TEXT,
        [("k", "x"), (None, "y"), ("z", None), ("k", None)],
    ),
    "map": (
        lambda s: s.map(key=F.col("value.a"), value=F.col("key")),
        lambda s: s.map(lambda k, v: (v and v["a"], k), returns=("string", "string")),
        TEXT,
        [("x", "k"), ("y", None), (None, "z"), (None, "k")],
    ),
    "select_key": (
        lambda s: s.select_key(F.col("value.a")),
        lambda s: s.select_key(lambda v: v and v["a"], returns="string"),
        VALUE,
        [("x", RECORDS[0][1]), ("y", RECORDS[1][1]), (None, None), (None, RECORDS[3][1])],
    ),
    "flat_map_values": (
        lambda s: s.flat_map_values(F.when(F.col("value.n") > 0, F.array_repeat("value.a", 2))),
        lambda s: s.flat_map_values(
            lambda v: [v["a"]] * 2 if v and v["n"] else None, returns="string"
        ),
        TEXT,
        [("k", "x"), ("k", "x"), ("k", None), ("k", None)],
    ),
    "flat_map": (
        lambda s: s.flat_map(
            F.array(F.struct(F.col("value.a").alias("key"), F.col("key").alias("value")))
        ),
        lambda s: s.flat_map(lambda k, v: [(v and v["a"], k)], returns=("string", "string")),
        TEXT,
        [("x", "k"), ("y", None), (None, "z"), (None, "k")],
    ),
    "branch": (
        lambda s: s.branch(one=F.col("value.n") == 1, default="rest")["rest"],
        lambda s: s.branch(one=lambda v: v and v["n"] == 1, default="rest")["rest"],
        VALUE,
        RECORDS[1:],
    ),
    "merge": (
        lambda s: s.filter(F.col("value.n") == 1).merge(s.filter(F.col("value.n") == 3)),
        lambda s: s.filter(lambda v: v and v["n"] == 1).merge(s.filter(F.col("value.n") == 3)),
        VALUE,
        [RECORDS[0], RECORDS[3]],
    ),
    "repartition": (
        lambda s: s.repartition(name="r"),
        lambda s: s.repartition(name="r").peek(lambda v: None),
        VALUE,
        [RECORDS[0], RECORDS[2], RECORDS[3]],
    ),
    "column behind function": (
        lambda s: s.map_values(lambda v: v and v["a"], returns="string").filter(
            F.col("value") == "x"
        ),
        lambda s: s.map_values(F.col("value.a")).filter(lambda v: v == "x"),
        TEXT,
        [("k", "x")],
    ),
}


@pytest.mark.parametrize("variant", [0, 1], ids=["column", "function"])
def test_operators(variant: int) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE)
    for name, (*builds, serde, _) in CASES.items():
        builds[variant](stream).to(name.replace(" ", "-"), value=serde)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, VALUE).pipe_batch(
            [(k, v, 5 + i) for i, (k, v) in enumerate(RECORDS)]
        )
        for name, (*_, serde, expected) in CASES.items():
            records = driver.create_output_topic(name.replace(" ", "-"), TEXT, serde).read_records()
            assert [record[:2] for record in records] == expected, name
            times = [record.timestamp for record in records]
            assert times == sorted(times), name


def test_records_keep_headers_and_time_record_by_record() -> None:
    headers = (("h", b"1"), ("h", None))
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE)
    stream.map_values(F.col("value.a")).to("column")
    stream.map_values(lambda v: v["a"], returns="string").repartition(name="r").to("function")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        topic.pipe_input("k", {"a": "x", "n": 1}, 77, headers)
        topic.pipe_input("k", {"a": "y", "n": 1}, 76)
        expected = [TestRecord("k", "x", 77, headers), TestRecord("k", "y", 76)]
        for name in ("column", "function"):
            assert driver.create_output_topic(name, TEXT, TEXT).read_records() == expected


@pytest.mark.parametrize("target", [F.concat, None], ids=["column", "function"])
def test_topics_chosen_by_record(target: Any) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE)
    stream.to(
        F.concat(F.lit("out-"), F.col("value.a"))
        if target
        else (lambda v: f"out-{v['a']}" if v["a"] else None)
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        topic.pipe_batch(
            [("k", {"a": "x", "n": 1}), ("l", {"a": "y", "n": 2}), ("m", {"a": "x", "n": 3})]
        )
        assert driver.produced_topics() == {"out-x", "out-y"}
        out = driver.create_output_topic("out-x", TEXT, VALUE)
        assert out.read_key_values() == [("k", {"a": "x", "n": 1}), ("m", {"a": "x", "n": 3})]
        with pytest.raises(RecordError, match="not a name") as failure:
            topic.pipe_batch([("k", {"a": "x", "n": 1}), ("l", {"a": None, "n": 2})])
        assert (failure.value.topic, failure.value.offset) == ("in", 4)
        assert out.is_empty(), "nothing of the batch has an effect"


def test_a_failing_function_names_its_record_and_nothing_happens() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=LONG).map_values(lambda v: 10 // v, returns="bigint").to(
        "out"
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic, out = (
            driver.create_input_topic("in", TEXT, LONG),
            driver.create_output_topic("out", TEXT, LONG),
        )
        with pytest.raises(RecordError, match="ZeroDivisionError") as failure:
            topic.pipe_batch([("a", 1), ("b", 0), ("c", 5)])
        assert (failure.value.topic, failure.value.partition, failure.value.offset) == ("in", 0, 1)
        assert out.is_empty()
        topic.pipe_input("c", 5)
        assert out.read_key_values() == [("c", 2)]


BAD = [
    b"{",
    b'{"a":1',
    b"",
    b'{"a":"x"} {',
    b'{"a":"\xff"}',
    b"[1]",
    b'{"n":"text"}',
    b"{'a':'x'}",
    b'{"n":NaN}',
]


def test_json_that_is_none_becomes_a_dead_letter_behind_any_number_of_hops() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE).map_values(
        lambda v: v["a"], returns="string"
    )
    stream.map_values(F.upper("value")).to("out")
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        for raw in BAD:
            topic.pipe_raw(b"k", raw)
        topic.pipe_raw(b"k", b' {"n":3,"a":"x","other":[{}]} ')
        dead = driver.create_output_topic("dead", serdes.bytes_(), serdes.bytes_()).read_records()
        assert [(record.key, record.value) for record in dead] == [(b"k", raw) for raw in BAD]
        assert driver.create_output_topic("out", TEXT, TEXT).read_key_values() == [("k", "X")]


def test_bytes_that_are_no_long_stop_the_driver_unless_dead_letters_are_wanted() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=LONG).map_values(F.col("value") + 1).to("out")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(RecordError, match="not a valid") as failure,
    ):
        driver.create_input_topic("in", TEXT, LONG).pipe_raw(b"k", b"short")
    assert failure.value.offset == 0
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        driver.create_input_topic("in", TEXT, LONG).pipe_raw(b"k", b"short")
        assert driver.create_output_topic("dead", TEXT, TEXT).read_key_values() == [("k", "short")]


class Asked:
    """A predicate that gives another answer at each call about a record, as a random split does.
    The workers have copies of it, so it tells a file."""

    def __init__(self, log: Path, below: float) -> None:
        self.log, self.below = str(log), below

    def __call__(self, value: dict[str, int]) -> bool:
        with open(self.log, "a+") as file:
            file.write(f"{value['n']}\n")
            file.seek(0)
            times = file.read().split().count(str(value["n"]))
        return (value["n"] + times) % 4 / 4 < self.below


def read_branches(branches: dict[str, KStream], builder: StreamsBuilder, n: int) -> dict[str, Any]:
    """The records of each branch, by their ``n``."""
    for name, stream in branches.items():
        stream.to(name, value=VALUE)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, VALUE).pipe_batch(
            [("k", {"n": i, "a": "x"}, i) for i in range(n)]
        )
        read = {name: driver.create_output_topic(name, TEXT, VALUE) for name in branches}
        return {name: [r.value["n"] for r in topic.read_records()] for name, topic in read.items()}


def test_a_predicate_is_asked_once_about_each_record_that_no_branch_before_took(
    tmp_path: Path,
) -> None:
    """A random split neither loses nor doubles, and nobody is asked about a record that a branch
    before took."""
    log = tmp_path / "asked"
    builder = StreamsBuilder()
    branches = (
        builder.stream("in", key=TEXT, value=VALUE)
        .split()
        .branch(F.col("value.n") >= 90, name="column")
        .branch(Asked(log, 0.25), name="first")
        .branch(F.col("value.n") >= 80, name="between")
        .branch(Asked(log, 0.25), name="second")
        .branch(F.col("value.n") < 40, name="few")
        .branch(Asked(log, 0.25), name="third")
        .default_branch(name="rest")
    )
    found = read_branches(branches, builder, 100)
    assert sorted(n for listed in found.values() for n in listed) == list(range(100))
    assert found["column"] == list(range(90, 100))
    times = Counter(map(int, log.read_text().split()))
    assert not times.keys() & set(found["column"])
    for name, asked in {"first": 1, "between": 1, "second": 2, "few": 2, "third": 3}.items():
        assert found[name]
        assert {times[n] for n in found[name]} == {asked}, name
    assert {times[n] for n in found["rest"]} == {3}


def test_a_python_function_in_a_column_divides_a_stream_too(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    asked = Asked(log, 0.5)
    builder = StreamsBuilder()
    branches = (
        builder.stream("in", key=TEXT, value=VALUE)
        .split()
        .branch(F.udf(lambda n: asked({"n": n}), "boolean")(F.col("value.n")), name="first")
        .branch(F.col("value.n") > 5, name="large")
        .default_branch(name="rest")
    )
    found = read_branches(branches, builder, 9)
    assert found == {"first": [0, 3, 4, 7, 8], "large": [6], "rest": [1, 2, 5]}
    assert Counter(log.read_text().split()) == {str(n): 1 for n in range(9)}
