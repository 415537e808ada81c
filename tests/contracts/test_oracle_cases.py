"""Cases that the oracle is not left to draw: scenarios, and where the original is at fault."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from pyspark.sql import SparkSession

from everflow import serdes
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import VersionsView, record_as_of
from everflow.testing import TopologyTestDriver
from oracle.cuts import Records, batches
from oracle.processors import TEXT
from oracle.programs import BAD, KEYS, ODD, Program, built, script
from oracle.streams import kafka_streams, times_asked, told_by_both

pytestmark = pytest.mark.spark

RAW = serdes.bytes_()
FOUND = json.loads(Path(__file__).with_name("found_cases.json").read_text())
Told = Callable[[Program, list[list[Records]]], list[Any]]


@pytest.fixture(scope="module")
def told(spark: SparkSession) -> Iterator[Told]:
    """What both make of a program's scripts."""
    with kafka_streams() as ask:
        yield lambda program, cuts: told_by_both(program, built(program), cuts, ask)


def _versions(history: int, **more: Any) -> Program:
    table = {"op": "table", "id": "n0", "topic": "in0", "store": "versions", "history": history}
    nodes = [
        {**table, **more},
        {"op": "to_stream", "id": "n1", "in": "n0"},
        {"op": "sink", "id": "n2", "in": "n1", "topic": "out0"},
    ]
    return Program(nodes, inputs=["in0"], outputs=["out0"], versioned=["versions"])


def _one_by_one(*records: tuple[str | None, int]) -> list[Records]:
    return [[["in0", "a", value, time, []]] for value, time in records]


def test_a_deletion_at_the_time_of_the_latest_version_is_a_version(told: Told) -> None:
    """Kafka Streams forgets it, where the key has no version before: what is older and comes later
    is the latest. The oracle's Java program gives its stores each deletion twice, which mends it;
    the first half of the test is what the original does by itself."""
    cut = _one_by_one(("x", 100), (None, 100), ("y", 96))
    [(ours, theirs)] = told(_versions(5, as_it_is=True), [cut])
    assert ours["stores"]["versions"] == []
    assert {value for _, _, value, _ in theirs["stores"]["versions"]} == {"y"}
    [(ours, theirs)] = told(_versions(5), [cut])
    assert ours == theirs


@pytest.mark.parametrize("case", FOUND, ids=lambda case: case["name"])
def test_a_case_that_once_differed_is_equal(case: dict[str, Any], told: Told) -> None:
    [(ours, theirs)] = told(Program(**case["program"]), [case["cut"]])
    assert ours == theirs
    assert {topic: len(found) for topic, found in ours["outputs"].items()} == case["results"]


@pytest.mark.parametrize("second", ["in0", "in1"], ids=["with itself", "with another"])
def test_a_stream_merged_with_itself_comes_once(second: str, told: Told) -> None:
    """A node of Kafka Streams has each of its parents once, and equal streams are one source."""
    program = Program(
        [
            {"op": "stream", "id": "n0", "topic": "in0"},
            {"op": "stream", "id": "n1", "topic": second},
            {"op": "merge", "id": "n2", "left": "n0", "right": "n1"},
            {"op": "merge", "id": "n3", "left": "n2", "right": "n2"},
            {"op": "sink", "id": "n4", "in": "n3", "topic": "out0"},
        ],
        inputs=sorted({"in0", second}),
        outputs=["out0"],
    )
    cut: list[Records] = [[["in0", "a", "x", 100, []]], [[second, "a", "y", 110, []]]]
    [(ours, theirs)] = told(program, [cut])
    assert ours == theirs
    assert [value for _, value, *_ in ours["outputs"]["out0"]] == ["x", "y"]


@pytest.mark.parametrize("count", [150, pytest.param(1_000, marks=pytest.mark.slow)])
def test_scenario_16_streams_of_different_pace_in_one_batch(count: int, told: Told) -> None:
    """1,000 records each, in one batch; the original takes 10 ms for a record."""
    join = {"op": "join", "id": "n2", "left": "n0", "right": "n1", "kind": "outer", "store": "s"}
    program = Program(
        [
            {"op": "stream", "id": "n0", "topic": "in0"},
            {"op": "stream", "id": "n1", "topic": "in1"},
            {**join, "windows": {"before": 4_000, "after": 4_000, "grace": 1_000}},
            {"op": "sink", "id": "n3", "in": "n2", "topic": "out0"},
        ],
        inputs=["in0", "in1"],
        outputs=["out0"],
        unordered=["out0"],
    )
    pace = {"in0": 60, "in1": 3_600}
    records = [
        [topic, KEYS[at % 2], f"{topic}-{at}", 10_000 + at * step, []]
        for topic, step in pace.items()
        for at in range(count)
    ]
    end = [["in0", "z", "last", 10**7, []]], [["in1", "z", "last", 10**7, []]]
    # The order in which a task takes them: of both topics the earlier record.
    in_order = sorted(records, key=lambda record: (record[3], record[0]))
    [(ours, theirs)] = told(program, [[in_order, *end]])
    assert ours == theirs
    met = {value.split("&")[0] for _, value, _, _ in ours["outputs"]["out0"]}
    assert met >= {f"in0-{at}" for at in range(count)}


@pytest.mark.parametrize("history", [5, 40])
def test_scenario_28_versions_survive_a_restore(history: int, told: Told, tmp_path: Path) -> None:
    drawn, program = random.Random(28), _versions(history)
    topology = built(program)
    cuts = [
        batches(
            [
                one
                for one in script(program, drawn, 60)
                if one[3] >= 0 and not {one[1], one[2]} & {BAD, ODD}
            ],
            drawn,
            topology,
        )
        for _ in range(8)
    ]
    for at, (cut, (_, theirs)) in enumerate(zip(cuts, told(program, cuts), strict=True)):
        changelog, size = _changelog(program, cut), drawn.randint(8, 60)
        store = LmdbStore.open(tmp_path / str(at), kind="versioned", retention_ms=history)
        store.claim("i")
        for start in range(0, len(changelog), size):
            chunk = changelog[start : start + size]
            times = np.array([one.timestamp for one in chunk], np.int64)
            keys, values = [one.key for one in chunk], [one.value for one in chunk]
            store.load_chunk(keys, values, times, start + len(chunk))
        with store.snapshot() as snapshot:
            view = cast(VersionsView, snapshot)
            found = [
                [key, time, kept.value, kept.timestamp]
                for key in KEYS
                for time in times_asked([record for batch in cut for record in batch])
                if (kept := record_as_of(view, key.encode(), time, history, bytes.decode))
            ]
        store.close()
        assert found == theirs["stores"]["versions"]


def _changelog(program: Program, cut: list[Records]) -> Any:
    with TopologyTestDriver(built(program), application_id="app") as driver:
        given = driver.create_input_topic("in0", TEXT, TEXT)
        for records in cut:
            driver.pipe_batch({given: [(key, value, time) for _, key, value, time, _ in records]})
        return list(driver.create_output_topic("app-versions-changelog", RAW, RAW).read_records())


def test_streams_of_one_topic_are_one_source(told: Told) -> None:
    """What comes of each record, in its order, is Kafka Streams', which merges such sources."""
    windows = {"before": 20, "after": 20, "grace": 100_000}  # no record is late
    join = {"op": "join", "id": "n2", "left": "n1", "right": "n0", "kind": "inner", "store": "s"}
    program = Program(
        [
            {"op": "stream", "id": "n0", "topic": "in0"},
            {"op": "stream", "id": "n1", "topic": "in0"},
            {**join, "windows": windows},
            {"op": "sink", "id": "n3", "in": "n2", "topic": "out0"},
        ],
        inputs=["in0"],
        outputs=["out0"],
    )
    drawn = random.Random(13)
    cuts = [batches(script(program, drawn, 30), drawn, built(program)) for _ in range(4)]
    for ours, theirs in told(program, cuts):
        assert ours == theirs
        assert ours["outputs"]["out0"]


def _join_of_streams(kind: str) -> Program:
    windows = {"before": 5, "after": 5, "grace": 0}
    nodes: list[dict[str, Any]] = [
        {"op": "stream", "id": "n0", "topic": "in0"},
        {"op": "stream", "id": "n1", "topic": "in1"},
        {"op": "join", "id": "n2", "left": "n0", "right": "n1", "kind": kind, "windows": windows},
        {"op": "sink", "id": "n3", "in": "n2", "topic": "out0"},
    ]
    nodes[2]["store"] = "pairs"
    return Program(nodes, inputs=["in0", "in1"], outputs=["out0"])


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
def test_late_records_of_joined_streams_are_as_in_the_original(kind: str, told: Told) -> None:
    records: Records = [
        ["in1", "a", "r", 100, []],
        ["in0", "b", "x", 300, []],
        ["in0", "a", "l", 97, []],
        ["in0", "c", "y", 200, []],
        ["in1", "c", "s", 201, []],
        ["in1", "b", "t", 150, []],
    ]
    for topic in ("in0", "in1"):
        records.append([topic, "z", "last", 900, []])
    one_by_one = [[[record] for record in records]]
    [(ours, theirs)] = told(_join_of_streams(kind), one_by_one)
    for one in (ours, theirs):
        for row in one["outputs"]["out0"]:
            row[3] = []
    assert ours["outputs"] == theirs["outputs"]
    values = [row[1] for row in ours["outputs"]["out0"]]
    assert "l&r" in values
    assert ("y&_" in values) is (kind != "inner")


def test_a_cogrouped_record_that_is_behind_begins_its_window_anew_there(told: Told) -> None:
    windows = {"size": 10, "advance": 10, "grace": 0, "results": "each"}
    cogroup = {"op": "cogroup", "id": "n2", "left": "n0", "right": "n1", "store": "s"}
    program = Program(
        [
            {"op": "stream", "id": "n0", "topic": "in0"},
            {"op": "stream", "id": "n1", "topic": "in1"},
            {**cogroup, "windows": windows},
            {"op": "sink", "id": "n3", "in": "n2", "topic": "out0"},
        ],
        inputs=["in0", "in1"],
        outputs=["out0"],
    )
    records = [("in0", 1), ("in1", 4), ("in0", 10), ("in1", 5)]
    cut: list[Records] = [[[topic, "a", "x", time, []]] for topic, time in records]
    [(ours, theirs)] = told(program, [cut])
    here = [row[:2] for row in ours["outputs"]["out0"]]
    there = [row[:2] for row in theirs["outputs"]["out0"]]
    assert there[: len(here)] == here
    (last,) = there[len(here) :]
    assert last[0] == here[0][0]
    assert len(last[1]) < len(here[1][1])


def test_a_table_joined_with_its_own_map_values_keeps_what_was_deleted(told: Told) -> None:
    join = {"op": "join", "id": "n2", "left": "n0", "right": "n1", "kind": "inner"}
    program = Program(
        [
            {"op": "table", "id": "n0", "topic": "in0", "store": "t"},
            {"op": "map_values", "id": "n1", "in": "n0", "suffix": "q"},
            {**join, "tables": True},
            {"op": "to_stream", "id": "n3", "in": "n2"},
            {"op": "sink", "id": "n4", "in": "n3", "topic": "out0"},
        ],
        inputs=["in0"],
        outputs=["out0"],
    )
    cut: list[Records] = [[["in0", "a", value, time, []]] for value, time in (("x", 1), (None, 2))]
    [(ours, theirs)] = told(program, [cut])
    assert ours == theirs
    assert ours["outputs"]["out0"][-1][1] is not None
