"""Sources outside Kafka in the test driver (note 073)."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

import everflow.sources.files
from everflow import StreamsBuilder, TopologyError, serdes
from everflow.errors import EverflowError, RecordError, RetriableError
from everflow.spark.session import get_session
from everflow.testing import TopologyTestDriver

TEXT = serdes.string()
ROW = serdes.json("part int, n bigint")


class Numbers(DataSource):
    """``parts`` partitions of ``rows`` rows."""

    def schema(self) -> str:
        return "part int, n bigint"

    def reader(self, schema: Any) -> "NumbersReader":
        return NumbersReader(int(self.options["parts"]), int(self.options.get("rows", 3)))


class NumbersReader(DataSourceReader):
    def __init__(self, parts: int, rows: int) -> None:
        self.parts, self.rows = parts, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        for n in range(self.rows):
            yield partition.value, n


def driven(builder: StreamsBuilder, polls: int = 3, **more: Any) -> TopologyTestDriver:
    driver = TopologyTestDriver(builder.build(), **more)
    for _ in range(polls):
        driver.advance_wall_clock_time(1_000)
    return driver


def read_rows(driver: TopologyTestDriver, topic: str = "rows") -> list[tuple[Any, Any]]:
    return [
        (one.key, one.value)
        for one in driver.create_output_topic(topic, serdes.int_(), ROW).read_records()
    ]


def test_a_batch_reader_s_partitions_become_rows_once() -> None:
    builder = StreamsBuilder()
    builder.read(Numbers, name="numbers", parts=5, key="part").to("rows")
    with driven(builder) as driver:
        rows = read_rows(driver)
        driver.advance_wall_clock_time(10_000)
        assert read_rows(driver) == []
    assert sorted((key, row["n"]) for key, row in rows) == [
        (part, n) for part in range(5) for n in range(3)
    ]


def test_a_split_that_is_larger_than_a_batch_is_read_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("everflow.operators.read.PIECE_ROWS", 10)
    monkeypatch.setattr("everflow.sources.data_source.BATCH_ROWS", 4)
    builder = StreamsBuilder()
    rows = builder.read(Numbers, name="numbers", key="part", tasks=1, parts=2, rows=25)
    rows.to("rows")
    counts = rows.group_by_key(name="by-part").count(store="counts").to_stream()
    counts.to("counts", value=serdes.long())
    with driven(builder) as driver:
        assert [row["n"] for _, row in read_rows(driver)] == [*range(25), *range(25)]
        table = driver.create_output_topic("counts", serdes.int_(), serdes.long())
        counted = [(one.key, one.value) for one in table.read_records()]
    assert counted == [(0, 10), (0, 20), (0, 25), (1, 5), (1, 15), (1, 25)]


class Ticks(DataSource):
    """As many numbers as a file says."""

    def schema(self) -> str:
        return "part int, n bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TicksReader(self.options["path"])


class TicksReader(DataSourceStreamReader):
    def __init__(self, path: str) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"at": int(Path(self.path).read_text())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(at) for at in range(start["at"], end["at"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        yield 0, partition.value


def test_a_stream_reader_is_asked_for_its_latest_offset(tmp_path: Path) -> None:
    until = tmp_path / "until"
    until.write_text("2")
    builder = StreamsBuilder()
    builder.read_stream(Ticks, name="ticks", path=until, key="part").to("rows")
    with driven(builder) as driver:
        assert [row["n"] for _, row in read_rows(driver)] == [0, 1]
        until.write_text("5")
        driver.advance_wall_clock_time(1_000)
        assert [row["n"] for _, row in read_rows(driver)] == [2, 3, 4]
        driver.advance_wall_clock_time(1_000)
        assert read_rows(driver) == []


class Simple(DataSource):
    """Two numbers more for each question."""

    def schema(self) -> str:
        return "part int, n bigint"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return SimpleReader()


class SimpleReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        end = {"at": min(6, start["at"] + 2)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:
        return iter([(0, n) for n in range(start["at"], end["at"])])


def test_a_simple_stream_reader_is_read_between_its_offsets() -> None:
    builder = StreamsBuilder()
    builder.read_stream(Simple, name="simple", key="part").to("rows")
    with driven(builder, polls=8) as driver:
        assert [row["n"] for _, row in read_rows(driver)] == [0, 1, 2, 3, 4, 5]


# --- files ----------------------------------------------------------------------------------------


def files(builder: StreamsBuilder, folder: Path, form: str = "parquet", **more: Any) -> None:
    rows = builder.read_stream(
        form, name="files", schema="part int, n bigint", key="part", path=folder, **more
    )
    rows.to("rows")


def parquet(folder: Path, name: str, *ns: int) -> None:
    pq.write_table(pa.table({"n": list(ns), "other": ["x"] * len(ns)}), folder / name)


def test_files_that_come_are_read_once(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    files(builder, tmp_path)
    parquet(tmp_path, "a.parquet", 1, 2)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "later").mkdir()
    with driven(builder) as driver:
        assert read_rows(driver) == [(None, {"part": None, "n": 1}), (None, {"part": None, "n": 2})]
        parquet(tmp_path / "later", "b.parquet", 3)
        driver.advance_wall_clock_time(1_000)
        assert [row["n"] for _, row in read_rows(driver)] == [3]


@pytest.mark.parametrize(
    ("form", "text", "options"),
    [
        ("csv", "n,part\n7,1\n8,\n", {}),
        ("csv", "1;7\n;8\n", {"header": False, "delimiter": ";"}),
        ("json", '{"n": 7, "part": 1, "more": 0}\n{"n": 8}\n', {}),
    ],
)
def test_texts(tmp_path: Path, form: str, text: str, options: dict[str, Any]) -> None:
    (tmp_path / "one").write_text(text)
    (tmp_path / "empty").touch()
    builder = StreamsBuilder()
    files(builder, tmp_path, form, **options)
    with driven(builder) as driver:
        assert read_rows(driver) == [(1, {"part": 1, "n": 7}), (None, {"part": None, "n": 8})]


def test_a_folder_that_is_read_once_takes_no_more(tmp_path: Path) -> None:
    parquet(tmp_path, "a.parquet", 1)
    builder = StreamsBuilder()
    builder.read("parquet", name="files", schema="n bigint", path=tmp_path).to("rows")
    with driven(builder) as driver:
        assert len(read_rows(driver)) == 1
        parquet(tmp_path, "b.parquet", 2)
        driver.advance_wall_clock_time(1_000)
        assert read_rows(driver) == []


def grown(folder: Path) -> None:
    parquet(folder, "bad.parquet", 1, 2, 3, 4)


def vanished(folder: Path) -> None:
    (folder / "bad.parquet").unlink()


def no_parquet(folder: Path) -> None:
    path = folder / "bad.parquet"
    found = path.stat()
    path.write_bytes(b"x" * found.st_size)
    os.utime(path, ns=(found.st_mtime_ns, found.st_mtime_ns))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (grown, "has grown: it had"),
        (vanished, "is gone"),
        (no_parquet, "the file is no Parquet"),
    ],
)
def test_a_file_that_changes_after_it_was_planned_is_a_bad_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, words: str
) -> None:
    parquet(tmp_path, "bad.parquet", 1)
    parquet(tmp_path, "good.parquet", 2)
    builder = StreamsBuilder()
    files(builder, tmp_path)
    planned = everflow.sources.files._split

    def split(path: str, *arguments: Any) -> Any:
        found = planned(path, *arguments)
        if path.endswith("good.parquet"):
            fault(tmp_path)
        return found

    monkeypatch.setattr("everflow.sources.files._split", split)
    with driven(builder, polls=1) as driver:
        with pytest.raises(RecordError, match=words) as failed:
            driver.advance_wall_clock_time(1_000)
        assert f"split {tmp_path}/bad.parquet of source 'files'" in str(failed.value)
        assert "files-splits-repartition-0@0" in str(failed.value)
    parquet(tmp_path, "bad.parquet", 1)
    with driven(builder, polls=2, dead_letter_topic="dlq") as driver:
        assert [row["n"] for _, row in read_rows(driver)] == [2]
        assert driver.create_output_topic("dlq", serdes.bytes_(), serdes.bytes_()).queue_size() == 1


def test_a_file_that_changes_after_it_was_read_is_told(tmp_path: Path) -> None:
    parquet(tmp_path, "a.parquet", 1)
    builder = StreamsBuilder()
    files(builder, tmp_path)
    with driven(builder, dead_letter_topic="dlq") as driver:
        parquet(tmp_path, "a.parquet", 1, 2, 3, 4, 5)
        driver.advance_wall_clock_time(1_000)
        driver.advance_wall_clock_time(1_000)
        assert [row["n"] for _, row in read_rows(driver)] == [1]
        assert driver.create_output_topic("dlq", serdes.bytes_(), serdes.bytes_()).queue_size() == 1


def test_a_folder_that_is_not_there_stops_the_plan(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    files(builder, tmp_path / "none")
    with driven(builder, polls=1) as driver, pytest.raises(EverflowError, match="no folder"):
        driver.advance_wall_clock_time(1_000)


# --- what may pass, and what never works ----------------------------------------------------------


class Away(Numbers):
    def reader(self, schema: Any) -> NumbersReader:
        return AwayReader(int(self.options["parts"]), 3)


class AwayReader(NumbersReader):
    def partitions(self) -> list[InputPartition]:
        if not self.parts:
            raise ConnectionRefusedError("plan")
        return super().partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        yield 0, 0
        raise TimeoutError("no answer")


@pytest.mark.parametrize("parts", [0, 1])
def test_an_outage_is_retried_and_no_record_is_at_fault(parts: int) -> None:
    builder = StreamsBuilder()
    builder.read(Away, name="away", parts=parts).to("rows")
    with driven(builder, polls=1, dead_letter_topic="dlq") as driver:
        with pytest.raises(RetriableError) as away:
            driver.advance_wall_clock_time(1_000)
        topic = "away-splits-repartition" if parts else "away-plan-repartition"
        assert [tp.topic.removeprefix("topology-test-driver-") for tp in away.value.partitions] == [
            topic
        ]


def test_a_row_that_does_not_fit_names_its_split() -> None:
    builder = StreamsBuilder()
    builder.read(Numbers, name="numbers", schema="part int", parts=1).to("rows")
    with driven(builder, polls=1) as driver, pytest.raises(RecordError, match="InputPartition"):
        driver.advance_wall_clock_time(1_000)


def test_rows_in_pieces_go_to_a_sink_by_way_of_a_topic(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    rows = builder.read(Numbers, name="numbers", parts=2, key="part")
    rows.write_stream("parquet", name="straight", path=str(tmp_path))
    with pytest.raises(TopologyError, match=r"\.repartition\(name="):
        TopologyTestDriver(builder.build())
    builder = StreamsBuilder()
    rows = builder.read(Numbers, name="numbers", parts=2, key="part")
    rows.repartition(name="between").write_stream("parquet", name="out", path=str(tmp_path))
    with driven(builder):
        assert pq.ParquetDataset(tmp_path).read().num_rows == 6


def test_times_come_from_a_column() -> None:
    builder = StreamsBuilder()
    builder.read(Numbers, name="numbers", parts=1, timestamp="n").to("rows")
    with driven(builder, initial_wall_clock_ms=50_000) as driver:
        found = driver.create_output_topic("rows", serdes.bytes_(), ROW).read_records()
    assert [one.timestamp for one in found] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"format": "parket", "schema": "n int"}, "did you mean 'parquet'"),
        ({"format": "parquet", "schema": "n int"}, "needs path"),
        ({"format": "parquet"}, "needs schema="),
        ({"format": "parquet", "schema": "n", "path": "x"}, "schema="),
        ({"format": "csv", "schema": "n int", "path": "x", "head": True}, "'header'"),
        ({"format": "csv", "schema": "n int", "path": "x", "key": "m"}, "key names a column of n"),
        ({"format": "csv", "schema": "n int", "path": "x", "timestamp": "n"}, "timestamp"),
        ({"format": Numbers, "tasks": 0}, "tasks is from 1"),
        ({"format": DataSource}, "does not say its schema"),
    ],
)
def test_wrong_calls(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        StreamsBuilder().read(name="in", **arguments)


@pytest.mark.spark
def test_a_dataframe_goes_by_way_of_its_files(tmp_path: Path) -> None:
    session = get_session()
    frame = session.range(20).selectExpr("id AS n", "CAST(id % 3 AS int) AS part")
    frame.repartition(3).write.parquet(str(tmp_path / "handed-over"))
    builder = StreamsBuilder()
    rows = builder.read(
        "parquet", name="frame", schema="part int, n bigint", key="part", path=tmp_path
    )
    rows.to("rows")
    with driven(builder) as driver:
        assert sorted(row["n"] for _, row in read_rows(driver)) == list(range(20))
