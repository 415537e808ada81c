"""Which sources move time while they are silent, and which operators (note 025)."""

from __future__ import annotations

import pytest

from everflow import StreamsBuilder, TimeWindows, serdes
from everflow.errors import TopologyError
from everflow.topology.idle_sources import IdleSource, room_for_layouts
from everflow.topology.plan import PhysicalPlan, plan
from everflow.topology.subtopologies import cut

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
def test_a_repartition_topic_waits_for_the_longest_of_those_that_feed_it(
    other: str | None, after_ms: int | None
) -> None:
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
