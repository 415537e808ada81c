"""Topics whose equal keys would not meet: who is told, and which side has which number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everflow import JoinWindows, KStream, Materialized, StreamsBuilder, TopologyError, serdes
from everflow.topology.subtopologies import cut, internal_topics

TEXT = serdes.string()
SIDES = r"\(left l: 2; right r: 3\)"

Join = Callable[[StreamsBuilder, KStream, str | None], object]


def _stream(builder: StreamsBuilder) -> KStream:
    return builder.stream("r", key=TEXT, value=TEXT)


def _streams(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    windows = JoinWindows.of_time_difference(5)
    return left.join(_stream(builder), windows=windows, store="p", name=name)


def _stream_table(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    return left.left_join(builder.table("r", key=TEXT, value=TEXT, store="t"), name=name)


def _tables(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    right = builder.table("r", key=TEXT, value=TEXT, store="t")
    return left.to_table(store="l").outer_join(right, name=name)


def _as_of(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    return left.join_asof(_stream(builder), tolerance=10, store="q", name=name)


def _looked_up(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    right = builder.table("r", key=TEXT, value=TEXT, store="t")
    return left.lookup_join(right, grace=5, store=Materialized("w"), name=name)


@pytest.mark.parametrize(
    ("join", "generated"),
    [
        (_streams, "KSTREAM-MERGE-"),
        (_stream_table, "KSTREAM-LEFTJOIN-"),
        (_tables, "KTABLE-MERGE-"),
        (_as_of, "KSTREAM-ASOFJOIN-"),
        (_looked_up, ""),
    ],
)
@pytest.mark.parametrize("name", [None, "with-rates"])
def test_a_join_tells_its_sides_its_line_and_what_to_write(
    join: Join, generated: str, name: str | None
) -> None:
    builder = StreamsBuilder()
    join(builder, builder.stream("l", key=TEXT, value=TEXT), name)
    called = "the join " + (generated if name is None else name)
    with pytest.raises(TopologyError, match=SIDES) as caught:
        internal_topics(cut(builder.build()), {"l": 2, "r": 3}, "app")
    assert str(caught.value).startswith(called)
    assert ".repartition(name='a-name', partitions=3) before it, on the side" in str(caught.value)
    assert caught.value.code == "EF-COPARTITION"
    assert caught.value.where is not None
    assert caught.value.where.partition(":")[0] == __file__


def test_a_side_of_several_topics_lists_them() -> None:
    builder = StreamsBuilder()
    _streams(builder, builder.stream(["l", "m"], key=TEXT, value=TEXT), None)
    with pytest.raises(TopologyError, match="l: 2, m: 4; right r: 4"):
        internal_topics(cut(builder.build()), {"l": 2, "m": 4, "r": 4}, "app")


def test_what_is_no_join_is_called_by_its_name() -> None:
    builder = StreamsBuilder()
    both = builder.stream("l", key=TEXT, value=TEXT).merge(_stream(builder))
    both.group_by_key().count(store="n")
    with pytest.raises(TopologyError, match=r"^KSTREAM-AGGREGATE-.*\(l: 2, r: 3\)"):
        internal_topics(cut(builder.build()), {"l": 2, "r": 3}, "app")
