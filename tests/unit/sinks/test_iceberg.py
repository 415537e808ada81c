"""Rows in a table of Iceberg, of a catalog in SQLite (note 072)."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from everflow import SinkBatch
from everflow.errors import SinkError
from everflow.sinks import iceberg
from everflow.sinks.batch import SinkAhead, fitting
from everflow.sinks.iceberg import IcebergSink
from unit.sinks.test_sinks import IN, batch, created_again


@pytest.fixture
def sink(tmp_path: Path) -> IcebergSink:
    return table_at(tmp_path, tmp_path / "warehouse")


def table_at(folder: Path, warehouse: Path, options: str = "") -> IcebergSink:
    """Of a table that is made here. ``options``: of SQLite, which has the catalog."""
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db{options}",
        "warehouse": f"file://{warehouse}",
    }
    catalog = load_catalog("tests", **properties)
    catalog.create_namespace("shop")
    catalog.create_table("shop.rows", schema=batch(0, 1).rows.schema)
    return IcebergSink(table="shop.rows", catalog="tests", properties=properties)


def values(sink: IcebergSink) -> list[int]:
    table = load_catalog(sink.catalog, **sink.properties).load_table(sink.table)
    return sorted(table.scan().to_arrow().column("v").to_pylist())


def of(start: int, end: int) -> SinkBatch:
    return batch(start, end)


def test_rows_are_there_once_however_the_batch_is_cut_again(sink: IcebergSink) -> None:
    sink.write(of(0, 4))
    other = pickle.loads(pickle.dumps(sink))
    other.write(of(0, 4))
    with pytest.raises(SinkAhead) as ahead:
        other.write(of(2, 6))
    assert ahead.value.ends == {IN: 4}
    other.write(of(4, 6))
    assert values(sink) == list(range(6))


@pytest.mark.parametrize("end", [6, 8])
def test_another_commit_in_between_is_met_by_the_next_attempt(
    sink: IcebergSink, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a process that was taken for dead land between the look at the position and the
    commit. pyiceberg itself would append all the same."""
    sink.write(of(0, 4))
    others = [pickle.loads(pickle.dumps(sink))]

    def fitting_late(*given: Any) -> pa.Table:
        while others:
            others.pop().write(of(4, 6))
        return fitting(*given)

    monkeypatch.setattr(iceberg, "fitting", fitting_late)
    if end == 6:
        sink.write(of(4, end))
    else:
        with pytest.raises(SinkAhead) as ahead:
            sink.write(of(4, end))
        assert ahead.value.ends == {IN: 6}
    assert values(sink) == list(range(6))
    table = load_catalog(sink.catalog, **sink.properties).load_table(sink.table)
    assert "commit.retry.num-retries" not in table.properties, "a setting of theirs"
    assert len(table.snapshots()) == 2, "the catalog keeps the history that a commit leaves out"


def test_a_commit_of_another_s_rows_in_between_loses_nothing(
    sink: IcebergSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = pickle.loads(pickle.dumps(sink))
    waiting = [replace(of(4, 6), sink="theirs")]

    def fitting_late(*given: Any) -> pa.Table:
        while waiting:
            other.write(waiting.pop())
        return fitting(*given)

    monkeypatch.setattr(iceberg, "fitting", fitting_late)
    sink.write(of(0, 4))
    assert values(sink) == list(range(6))


def test_no_such_table_and_another_schema_are_named(sink: IcebergSink) -> None:
    with pytest.raises(SinkError, match=r"shop\.none"):
        IcebergSink(table="shop.none", catalog="tests", properties=sink.properties).write(of(0, 1))
    with pytest.raises(SinkError, match="'v'"):
        sink.write(batch(0, 1, rows=pa.table({"k": ["a"], "v": ["b"]})))


def test_a_topic_that_was_created_again_is_noticed(sink: IcebergSink) -> None:
    created_again(sink, values)
