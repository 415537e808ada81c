"""How a program reads and writes change data: which serde stands where, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from everflow import KTable, Materialized, StreamsBuilder, TopologyError, serdes
from everflow.operators.optimization import REUSE_SOURCE_TOPICS, optimized
from everflow.operators.table import Changes, TableSpec
from everflow.serdes.debezium_serde import DebeziumSerde
from everflow.topology.graph import SinkNode, SourceNode, StatefulNode

COLUMNS = "id bigint, name string"
ROW = serdes.json(COLUMNS)
ENVELOPE = serdes.json(
    f"before struct<{COLUMNS}>, after struct<{COLUMNS}>, op string, ts_ms bigint"
)
TEXT = serdes.string()


def nodes(builder: StreamsBuilder, class_: type) -> list[Any]:
    return [node for node in builder.build().nodes if isinstance(node, class_)]


def table(builder: StreamsBuilder, **more: Any) -> KTable:
    given = {"key": TEXT, "value": serdes.debezium(COLUMNS), "store": "rows", **more}
    return builder.table("shop.public.people", **given)


def test_a_table_reads_changes_and_keeps_rows() -> None:
    builder = StreamsBuilder()
    table(builder)
    (source,) = nodes(builder, SourceNode)
    (kept,) = nodes(builder, StatefulNode)
    assert isinstance(source.value_serde, DebeziumSerde)
    assert (source.value_serde.table, source.value_serde.completes) == (True, True)
    assert (kept.stores[0].value_serde, kept.operator.partial) == (ROW, True)
    (kept,) = [
        node
        for node in optimized(builder.build(), REUSE_SOURCE_TOPICS).nodes
        if isinstance(node, StatefulNode)
    ]
    assert kept.stores[0].source_topic is None


def test_keys_meet_those_of_other_streams() -> None:
    builder = StreamsBuilder()
    rows = table(builder, key=serdes.debezium("id bigint", form="row"))
    orders = builder.stream("orders", key=serdes.json("id bigint"), value=TEXT)
    orders.join(rows).to("both")
    dated = serdes.debezium("day date", form="row")
    days = builder.table("days", key=dated, value=serdes.debezium(COLUMNS), store="days")
    builder.stream("dates", key=dated, value=TEXT).join(days).to("dated")
    wrong = builder.stream("texts", key=serdes.json("day date"), value=TEXT)
    with pytest.raises(TopologyError, match="debezium"):
        wrong.join(days)


def test_a_table_with_a_history_leaves_nothing_to_be_filled_in() -> None:
    builder = StreamsBuilder()
    table(builder, store=Materialized("rows", history="1 hour"))
    (source,) = nodes(builder, SourceNode)
    assert (source.value_serde.table, source.value_serde.completes) == (True, False)


def test_a_stream_reads_envelopes() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=serdes.debezium(COLUMNS)).to("out")
    (source,), (sink,) = (nodes(builder, one) for one in (SourceNode, SinkNode))
    assert not source.value_serde.table
    assert sink.value_serde == source.value_serde == serdes.debezium(COLUMNS)


def test_a_table_is_written_as_upserts_or_changes() -> None:
    builder = StreamsBuilder()
    rows = table(builder)
    rows.to("plain")
    rows.to("upserts", as_="upserts")
    rows.to("changes", as_="changes")
    rows.to("precise", as_="changes", value=serdes.debezium(COLUMNS))
    sinks = {node.topic: node.value_serde for node in nodes(builder, SinkNode)}
    assert sinks == {
        "plain": ROW,
        "upserts": ROW,
        "changes": ENVELOPE,
        "precise": serdes.debezium(COLUMNS),
    }
    operators = [type(node.operator) for node in nodes(builder, StatefulNode)]
    assert operators == [TableSpec, Changes, Changes]


def test_of_a_history_the_latest_updates_are_the_changes() -> None:
    builder = StreamsBuilder()
    table(builder, store=Materialized("rows", history=5)).to("changes", as_="changes")
    names = [type(node.operator).__name__ for node in nodes(builder, StatefulNode)]
    assert names == ["VersionedTableSpec", "LatestUpdates", "Changes"]


def avro(form: str = "envelope") -> Any:
    pytest.importorskip("fastavro")
    return serdes.debezium(COLUMNS, form=form, registry="http://localhost:1")


def test_avro_is_behind_a_source_as_json() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=avro()).to("out")
    (sink,) = nodes(builder, SinkNode)
    assert sink.value_serde == ENVELOPE


REFUSED: dict[str, tuple[Callable[[StreamsBuilder], object], str]] = {
    "an envelope as a key": (lambda b: table(b, key=serdes.debezium("id bigint")), "form='row'"),
    "Avro as a key": (lambda b: table(b, key=avro("row")), "serdes.avro"),
    "a global table": (
        lambda b: b.global_table("in", key=TEXT, value=serdes.debezium(COLUMNS), store="g"),
        "global_table",
    ),
    "Avro out": (lambda b: table(b).to("out", as_="changes", value=avro()), "registry="),
    "another form": (lambda b: table(b).to("out", as_="rows"), "as_"),
    "a row as an envelope": (lambda b: table(b).to("out", as_="changes", value=ROW), "value"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_at_its_line(case: str) -> None:
    build, word = REFUSED[case]
    with pytest.raises(TopologyError, match=word) as caught:
        build(StreamsBuilder())
    assert "test_dsl_change_data.py" in str(caught.value)
