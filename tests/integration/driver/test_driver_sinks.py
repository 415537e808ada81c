"""Rows for sinks in the test driver (note 072)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from everflow import RefusedRows, Response, SinkBatch, StreamsBuilder, TopologyError, agg, serdes
from everflow.errors import EverflowError, RecordError
from everflow.testing import TopologyTestDriver

TEXT, ORDERS = serdes.string(), serdes.json("item string, n bigint")


@pytest.fixture
def builder(tmp_path: Path) -> StreamsBuilder:
    """Orders as they are, and totals by item, in files."""
    made = StreamsBuilder()
    orders = made.stream("orders", key=TEXT, value=ORDERS)
    orders.write_stream("parquet", name="orders-files", key="id", path=str(tmp_path / "orders"))
    totals = orders.group_by(F.col("value.item"), name="by-item")
    counted = totals.aggregate(n=agg.sum("value.n"), store="totals").to_stream()
    counted.write_stream("parquet", name="totals-files", key="item", path=str(tmp_path / "totals"))
    return made


def pipe(driver: TopologyTestDriver, *records: tuple[str, Any]) -> None:
    driver.create_input_topic("orders", TEXT, ORDERS).pipe_batch(list(records))


def test_rows_have_the_fields_of_values_and_the_key(builder: Any, tmp_path: Path) -> None:
    with TopologyTestDriver(builder.build()) as driver:
        pipe(driver, ("o1", {"item": "tea", "n": 3}), ("o2", {"item": "tea", "n": 4}))
    orders = pq.ParquetDataset(tmp_path / "orders").read().to_pylist()
    assert orders == [{"id": "o1", "item": "tea", "n": 3}, {"id": "o2", "item": "tea", "n": 4}]
    totals = pq.ParquetDataset(tmp_path / "totals").read().to_pylist()
    assert totals == [{"item": "tea", "n": 7}]


def test_a_program_says_which_sinks_it_writes(builder: Any) -> None:
    said = repr(builder.build())
    assert all(f"sink {name}" in said for name in ("orders-files", "totals-files"))


def test_a_function_takes_the_place_of_a_sink(builder: Any, tmp_path: Path) -> None:
    rows: list[pa.Table] = []
    batches: list[SinkBatch] = []
    places: dict[str, Callable[..., object]] = {
        "totals-files": rows.append,
        "orders-files": lambda _, batch: batches.append(batch),
    }
    with TopologyTestDriver(builder.build(), application_id="shop", sinks=places) as driver:
        pipe(driver, ("o1", {"item": "tea", "n": 3}))
        pipe(driver, ("o2", {"item": "cup", "n": 4}))
    assert [table.to_pylist() for table in rows] == [
        [{"item": "tea", "n": 3}],
        [{"item": "cup", "n": 4}],
    ]
    assert [batch.id for batch in batches] == [
        f"shop/orders-files/orders-0@{at}" for at in range(2)
    ]
    assert not (tmp_path / "orders").exists()
    with pytest.raises(TopologyError, match="totals-files"):
        TopologyTestDriver(builder.build(), sinks={"totals": rows.append})


def test_a_table_s_deletion_is_a_row_that_says_so() -> None:
    builder = StreamsBuilder()
    table = builder.table("orders", key=TEXT, value=ORDERS, store="orders")
    table.to_stream().write_stream("parquet", name="out", key="id", path="nowhere")
    seen: list[SinkBatch] = []
    keep = {"out": lambda rows, batch: seen.append(batch)}
    with TopologyTestDriver(builder.build(), sinks=keep) as driver:
        pipe(driver, ("o1", {"item": "tea", "n": 3}))
        pipe(driver, ("o1", None))
    first, last = seen
    assert first.deletes is None
    assert last.deletes == pa.array([True])
    assert (last.keys, last.rows.to_pylist()) == (("id",), [{"id": "o1", "item": None, "n": None}])


def fails_on_frames(rows: pd.DataFrame) -> None:
    raise ZeroDivisionError(list(rows.columns))


def test_a_function_that_fails_names_its_line() -> None:
    builder = StreamsBuilder()
    builder.stream("orders", key=TEXT, value=ORDERS).for_each_batch(fails_on_frames)
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(EverflowError) as failed:
        pipe(driver, ("o1", {"item": "tea", "n": 3}))
    assert "value.item" in str(failed.value)
    assert "fails_on_frames" in str(failed.value)


def refuse_large(rows: pa.Table) -> None:
    large = [at for at, n in enumerate(rows["value.n"].to_pylist()) if n > 9]
    if large:
        raise RefusedRows({at: ValueError("too large") for at in large})


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_row_that_is_refused_is_its_record_s_fault(goes_on: bool) -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=TEXT, value=ORDERS)
    orders.for_each_batch(refuse_large)
    orders.to("out")
    answer = Response.CONTINUE if goes_on else Response.FAIL
    handlers = {"production": lambda context, error: answer}
    with TopologyTestDriver(builder.build(), exception_handlers=handlers) as driver:
        out = driver.create_output_topic("out", TEXT, ORDERS)
        records = [
            ("o1", {"item": "a", "n": 1}),
            ("o2", {"item": "b", "n": 10}),
            ("o3", {"item": "c", "n": 3}),
        ]
        if goes_on:
            pipe(driver, *records)
            assert [key for key, _ in out.read_key_values()] == ["o1", "o3"]
            return
        with pytest.raises(RecordError) as failed:
            pipe(driver, *records)
        assert (failed.value.topic, failed.value.offset) == ("orders", 1)
