"""Which sources move time while silent (note 025), and topics whose equal keys cannot meet."""

from collections.abc import Callable

import pytest

from everflow import (
    JoinWindows,
    KStream,
    Materialized,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    serdes,
)
from everflow.topology.idle_sources import IdleSource, room_for_layouts
from everflow.topology.plan import PhysicalPlan, plan
from everflow.topology.subtopologies import cut, internal_topics

TEXT = serdes.string()


def planned(builder: StreamsBuilder) -> PhysicalPlan:
    topology = builder.build()
    return plan(topology, cut(topology).index_of, "app")


def moved_by(found: PhysicalPlan) -> dict[str, tuple[str, ...]]:
    return {op.stores[0].name: op.idle for op in found.stateful if op.stores}


def test_an_operator_is_moved_by_the_sources_whose_records_reach_it() -> None:
    builder = StreamsBuilder()
    one = builder.stream("one", key=TEXT, value=TEXT, name="one", idle_advance="30 seconds")
    two = builder.stream(["two", "too"], key=TEXT, value=TEXT, name="two", idle_advance=2_000)
    three = builder.stream("three", key=TEXT, value=TEXT)
    one.filter(lambda value: True).group_by_key().count(store="first")
    one.merge(two).merge(three).group_by_key().count(store="all")
    three.group_by_key().count(store="third")
    found = planned(builder)
    seconds = {"two": "two/two/idle", "too": "two/too/idle"}
    assert found.idle == {
        0: {
            "one": IdleSource("one/idle", 30_000),
            **{topic: IdleSource(kept, 2_000) for topic, kept in seconds.items()},
        }
    }
    every = {"one/idle", *seconds.values()}
    moved = moved_by(found)
    assert (moved["first"], moved["third"]) == (("one/idle",), ())
    assert set(moved["all"]) == every


@pytest.mark.parametrize(("other", "after_ms"), [("1 minute", 60_000), (None, None)])
def test_it_waits_for_the_longest_of_its_feeders(other: str | None, after_ms: int | None) -> None:
    builder = StreamsBuilder()
    one = builder.stream("one", key=TEXT, value=TEXT, idle_advance="30 seconds")
    two = builder.stream("two", key=TEXT, value=TEXT, idle_advance=other)
    keyed = one.merge(two).select_key(lambda key, value: value, returns="string")
    windowed = keyed.group_by_key(name="by").windowed_by(TimeWindows.of_size("1 minute"))
    windowed.count(store="n")
    topic, fed_by = "app-by-repartition", frozenset({"one", "two"})
    behind = [topics[topic] for topics in planned(builder).idle.values() if topic in topics]
    assert [(one.after_ms, one.fed_by) for one in behind] == (
        [] if after_ms is None else [(after_ms, fed_by)]
    )


def test_nothing_is_kept_where_no_source_says_so() -> None:
    rooms = []
    for idle in (None, "30 seconds"):
        builder = StreamsBuilder()
        stream = builder.stream("one", key=TEXT, value=TEXT, name="one", idle_advance=idle)
        stream.group_by_key().count(store="n")
        rooms.append(room_for_layouts(builder.build()))
        assert bool(planned(builder).idle) is (idle is not None)
    assert rooms[0] - rooms[1] == len(',"one/idle":1700000000000')


@pytest.mark.parametrize("wrong", [0, "999 ms", "-1 s", "soon"])
def test_less_than_a_second_is_refused(wrong: object) -> None:
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match="test_idle_sources"):
        builder.stream("one", key=TEXT, value=TEXT, idle_advance=wrong)  # type: ignore[arg-type]


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
def test_a_join_tells_sides_and_cure(join: Join, generated: str, name: str | None) -> None:
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
