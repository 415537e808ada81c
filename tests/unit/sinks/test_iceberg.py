"""Rows in a table of Iceberg, of a catalog in SQLite (note 072)."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from everflow import SinkBatch
from everflow.errors import RetriableError, SinkError
from everflow.sinks.batch import SinkAhead
from everflow.sinks.iceberg import IcebergSink
from unit.sinks.test_sinks import IN, batch


@pytest.fixture
def sink(tmp_path: Path) -> IcebergSink:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
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


def test_another_commit_in_between_is_met_by_the_next_attempt(sink: IcebergSink) -> None:
    sink.write(of(0, 4))
    other = pickle.loads(pickle.dumps(sink))
    other.write(of(4, 6))
    sink._opened.refresh = lambda: None  # it has looked already
    with pytest.raises(RetriableError):
        sink.write(of(4, 8))
    with pytest.raises(SinkAhead):
        sink.write(of(4, 8))
    assert values(sink) == list(range(6))


def test_no_such_table_and_another_schema_are_named(sink: IcebergSink) -> None:
    with pytest.raises(SinkError, match=r"shop\.none"):
        IcebergSink(table="shop.none", catalog="tests", properties=sink.properties).write(of(0, 1))
    with pytest.raises(SinkError, match="'v'"):
        sink.write(batch(0, 1, rows=pa.table({"k": ["a"], "v": ["b"]})))
