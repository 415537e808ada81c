"""Calls of `write_stream` and `for_each_batch`: what they refuse, and what they make."""

import threading
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource

from everflow import KStream, SetupError, StreamsBuilder, TopologyError, serdes
from everflow.dsl.lowering import sinks
from everflow.sinks.data_source import DataSourceSink
from everflow.sinks.function import BatchFunction
from everflow.sinks.postgresql import PostgresSink
from everflow.topology.graph import StatefulNode, WriteNode
from everflow.topology.plan import WriteOp, plan
from everflow.topology.subtopologies import cut

VALUE = serdes.json(pa.struct([("item", pa.string()), ("n", pa.int64())]))
POSTGRESQL = {"format": "postgresql", "dsn": "", "table": "t"}


def stream() -> KStream:
    return StreamsBuilder().stream("in", key=serdes.string(), value=VALUE)


def written(made: KStream) -> WriteNode:
    (node,) = [one for one in made.graph.nodes.values() if isinstance(one, WriteNode)]
    return node


class Source(DataSource):
    """Nobody calls it here."""


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"format": "postgres", "name": "out"}, "postgresql"),
        ({"format": 3, "name": "out"}, "format"),
        ({**POSTGRESQL, "name": "a sink"}, "sink"),
        ({**POSTGRESQL, "name": "out", "tabel": "t"}, "table"),
        ({"format": "postgresql", "name": "out", "dsn": ""}, "table"),
        ({**POSTGRESQL, "name": "out", "mode": "overwrite"}, "append"),
        ({**POSTGRESQL, "name": "out", "mode": "upsert"}, "key="),
        ({**POSTGRESQL, "name": "out", "mode": "scd2"}, "key="),
        ({**POSTGRESQL, "name": "out", "key": "n"}, "bigint"),
        ({**POSTGRESQL, "name": "out", "key": ["a", "b"]}, "key="),
    ],
)
def test_a_wrong_call_is_refused_at_its_line(arguments: dict[str, Any], word: str) -> None:
    made = stream()
    with pytest.raises(TopologyError, match=word) as refused:
        made.write_stream(**arguments)
    assert refused.value.where is not None
    assert not any(isinstance(one, WriteNode) for one in made.graph.nodes.values())


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"everflow\[delta\]"):
        stream().write_stream("delta", name="out", path="/t")


def test_an_upsert_has_the_columns_of_the_key() -> None:
    made = stream()
    made.write_stream(**POSTGRESQL, name="out", key="id", mode="upsert")
    node = written(made)
    assert isinstance(node.sink, PostgresSink)
    assert (node.name, node.key, node.sink.mode) == ("out", ("id",), "upsert")


@pytest.mark.parametrize(
    "arguments",
    [
        *({**POSTGRESQL, "mode": mode} for mode in ("append", "upsert", "scd2")),
        {"format": "parquet", "path": "p"},
        {"format": "delta", "path": "p"},
        {"format": "iceberg", "table": "t"},
        {"format": "http", "url": "http://h"},
        {"format": Source},
    ],
    ids=lambda one: str(one["format"]) + one.get("mode", ""),
)
def test_a_field_that_is_called_as_the_key_is_a_copy_of_it(arguments: dict[str, Any]) -> None:
    made = stream()
    made.write_stream(**arguments, name="out", key="item")
    assert written(made).key == ("item",)
    with pytest.raises(TopologyError, match=r"column n .*string.*bigint"):
        stream().write_stream(**arguments, name="out", key="n")


def test_a_value_that_is_called_as_the_key_is_no_copy_of_it() -> None:
    text = StreamsBuilder().stream("in", key=serdes.string(), value=serdes.string())
    with pytest.raises(TopologyError, match="two columns are called value"):
        text.write_stream("parquet", name="out", key="value", path="p")
    pair = StreamsBuilder().stream("in", key=serdes.json("a string, b string"), value=VALUE)
    with pytest.raises(TopologyError, match="two columns are called x"):
        pair.write_stream("parquet", name="out", key=["x", "x"], path="p")


def test_versions_have_columns_of_their_own_and_are_made_of_each_update() -> None:
    value = serdes.json("n bigint, valid_to timestamp")
    dated = StreamsBuilder().stream("in", key=serdes.string(), value=value)
    with pytest.raises(TopologyError, match="valid_to"):
        dated.write_stream(**POSTGRESQL, name="out", key="id", mode="scd2")
    table = StreamsBuilder().table("in", key=serdes.string(), value=VALUE, store="t")
    table.to_stream().write_stream(**POSTGRESQL, name="out", key="id", mode="scd2")
    kept = [one for one in table.graph.nodes.values() if isinstance(one, StatefulNode)]
    assert [getattr(one.operator, "emit_every_update", None) for one in kept] == [True]


def test_options_of_a_data_source_are_texts_as_sparks_are() -> None:
    made = stream()
    made.write_stream(Source, name="out", url="u", retries=3, strict=True)
    sink = written(made).sink
    assert isinstance(sink, DataSourceSink)
    assert sink.options == {"url": "u", "retries": "3", "strict": "true"}


def test_a_data_source_whose_task_reads_two_topics_is_refused_before_it_runs() -> None:
    builder = StreamsBuilder()
    one, other = (builder.stream(name, key=serdes.string(), value=VALUE) for name in "ab")
    one.merge(other).write_stream(Source, name="out")
    topology = builder.build()
    with pytest.raises(TopologyError, match="repartition") as refused:
        plan(topology, cut(topology).index_of, "app")
    assert refused.value.where is not None


def test_a_sink_runs_in_its_sub_topology_and_is_described() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string(), value=VALUE).for_each_batch(len, name="counted")
    topology = builder.build()
    planned = plan(topology, cut(topology).index_of, "app")
    (op,) = [one for one in planned.ops if isinstance(one, WriteOp)]
    assert (op.name, op.subtopology) == ("counted", 0)
    assert "counted" in str(topology.describe())


def of_table(rows: pa.Table) -> None: ...
def of_both(rows: pa.Table, batch: object) -> None: ...
def of_pandas(rows: pd.DataFrame) -> None: ...
def of_text(rows: "pd.DataFrame") -> None: ...
def bare(rows): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("fn", "takes", "frame"),
    [
        (of_table, 1, False),
        (of_both, 2, False),
        (of_pandas, 1, True),
        (of_text, 1, True),
        (bare, 1, False),
        (lambda rows, batch: None, 2, False),
    ],
)
def test_a_function_gets_what_its_parameters_say(
    fn: Callable[..., Any], takes: int, frame: bool
) -> None:
    made = stream()
    made.for_each_batch(fn)
    sink = written(made).sink
    assert isinstance(sink, BatchFunction)
    assert (sink.takes, sink.frame) == (takes, frame)


def of_spark(rows: DataFrame) -> None: ...
def of_three(rows: pa.Table, batch: object, third: object) -> None: ...
async def awaited(rows: pa.Table) -> None: ...


@pytest.mark.parametrize(
    ("fn", "word"),
    [(of_spark, "session"), (of_three, "3 arguments"), (awaited, "async"), ("text", "function")],
)
def test_what_is_no_function_of_rows_is_refused(fn: Any, word: str) -> None:
    with pytest.raises(TopologyError, match=word):
        stream().for_each_batch(fn)


def test_a_function_that_cannot_travel_is_refused_at_its_line() -> None:
    lock = threading.Lock()
    with pytest.raises(TopologyError, match="lock") as refused:
        stream().for_each_batch(lambda rows: lock.acquire())
    assert refused.value.code == "EF-NOT-PORTABLE"
    assert refused.value.where is not None
