"""Stream times go with what they are of, when a change of the program shifts nodes' names."""

import json

import pytest

from everflow import (
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    UsePartitionTimeOnInvalidTimestamp,
    serdes,
)
from everflow.protocol.messages import format_metadata
from everflow.topology.compatibility import layouts_to_keep
from everflow.topology.idle_sources import MOST_BYTES, bytes_for_layouts, program_times
from everflow.topology.store_layouts import TIMES, from_json, kept_text
from everflow.topology.stream_times import shared_by, timed_by, times_now, times_text
from everflow.topology.subtopologies import cut

TEXT = serdes.string()
BY_PARTITION = UsePartitionTimeOnInvalidTimestamp()


def counted(*, inserted: bool, stores: tuple[str, ...] = ("a", "b")) -> Topology:
    builder = StreamsBuilder()
    for store in stores:
        words = builder.stream(f"in-{store}", key=TEXT, value=TEXT, timestamp=BY_PARTITION)
        if inserted:
            words = words.filter(lambda key, value: True)
        windows = words.group_by_key().windowed_by(TimeWindows.of_size("10 seconds"))
        windows.count(store=store)
    return builder.build()


def node_of_store(topology: Topology, store: str) -> str:
    return next(node for node, what in timed_by(topology).items() if what == store)


def test_a_time_follows_its_store_and_none_takes_another_s() -> None:
    old, new = counted(inserted=False), counted(inserted=True)
    a, b = (node_of_store(old, store) for store in ("a", "b"))
    found = {a: 100, f"{a}/tick": 7, b: 200}
    now = times_now(found, times_text(timed_by(old)), timed_by(new))
    here = node_of_store(new, "a")
    assert now == {here: 100, f"{here}/tick": 7, node_of_store(new, "b"): 200}
    assert here != a
    assert times_now(now, times_text(timed_by(new)), timed_by(old)) == found, "and back"


def test_a_store_that_is_new_has_no_time() -> None:
    old, new = counted(inserted=False, stores=("b",)), counted(inserted=False)
    b = node_of_store(old, "b")
    assert node_of_store(new, "a") == b, "the name is another's now"
    now = times_now({b: 200}, times_text(timed_by(old)), timed_by(new))
    assert now == {node_of_store(new, "b"): 200}


def test_a_source_s_time_follows_its_topic() -> None:
    old, new = counted(inserted=False, stores=("b",)), counted(inserted=False)
    sources = {what: node for node, what in timed_by(new).items()}
    of_b = next(what for what in sources if what.endswith("in-b"))
    before = {what: node for node, what in timed_by(old).items()}[of_b]
    found = {before: 5, f"{before}/in-b/idle": 6}
    now = times_now(found, times_text(timed_by(old)), timed_by(new))
    assert now == {sources[of_b]: 5, f"{sources[of_b]}/in-b/idle": 6}


def noted(*, by: int, inserted: bool = False) -> Topology:
    """So many processors that use one store, each with a stream time."""
    builder, seen = StreamsBuilder(), Stores.key_value("seen", key=TEXT, value=TEXT)
    words = builder.stream("in", key=TEXT, value=TEXT)
    if inserted:
        words = words.filter(lambda key, value: True)
    for _ in range(by):
        words.process(lambda record, context: None, stores=[seen])
    return builder.build()


@pytest.mark.parametrize("inserted", [False, True])
def test_the_time_of_a_store_that_two_have_shared_goes_to_the_one_that_has_it(
    inserted: bool,
) -> None:
    old, new = noted(by=2), noted(by=1, inserted=inserted)
    first, second = shared_by(old)
    assert shared_by(old) == {first: "seen", second: "seen"}
    assert not shared_by(new)
    found = {first: 100, f"{first}/tick": 7, second: 200, f"{second}/tick": 5}
    kept = from_json(json.loads(kept_text({}, cut(old), [], 3_000)))
    here = node_of_store(new, "seen")
    assert times_now(found, kept[TIMES], timed_by(new)) == {here: 200, f"{here}/tick": 7}
    assert times_now(found, kept[TIMES], timed_by(old)) == found, "shared ones go by their names"


def test_a_time_waits_for_an_operator_that_comes_back() -> None:
    old, new = counted(inserted=False), counted(inserted=False, stores=("b",))
    found = {node_of_store(old, "a"): 100, node_of_store(old, "b"): 200}
    first = times_text(timed_by(old))
    now = times_now(found, first, timed_by(new))
    a, b = (now.get(node_of_store(old, store)) for store in ("a", "b"))
    assert (a, b) == (200, None), "the name of a's node is that of b's now, so its time is gone"
    old, new = counted(inserted=False, stores=("b", "a")), counted(inserted=False, stores=("b",))
    found = {node_of_store(old, "a"): 100, node_of_store(old, "b"): 200}
    second = times_text(timed_by(new), times_text(timed_by(old)))
    now = times_now(found, times_text(timed_by(old)), timed_by(new))
    assert times_now(now, second, timed_by(old)) == found
    other = counted(inserted=False, stores=("b", "c"))
    assert node_of_store(other, "c") == node_of_store(old, "a")
    assert times_now(now, second, timed_by(other)) == {node_of_store(other, "b"): 200}


def test_a_source_keeps_the_times_of_the_topics_that_it_still_reads() -> None:
    old, new = {"S": "stream a\nb"}, {"S": "stream b\nc"}
    found = {"S/a": 1, "S/b": 2, "S/b+4/idle": 3}
    assert times_now(found, times_text(old), new) == {"S/b": 2, "S/b+4/idle": 3}


def test_times_of_nodes_that_are_gone_leave_room_for_what_is_beside_an_offset() -> None:
    topology = counted(inserted=False, stores=tuple(f"a-long-name-{n:030d}" for n in range(30)))
    room = bytes_for_layouts(topology)
    stores = layouts_to_keep("app", topology, [])
    layouts = kept_text(stores, cut(topology), [], room)
    own = {node_of_store(topology, f"a-long-name-{7:030d}"): 1_700_000_000_000}
    gone = {f"GONE-{n:010d}": 1_700_000_000_000 for n in range(300)}
    (name,) = own
    places = cut(topology).index_of
    times = program_times(topology, places, layouts)
    wide = times.fitting({**gone, **own}, places[name])
    assert own.items() <= wide.items()
    assert 0 < len(wide) - len(own) < 300
    elsewhere = times.fitting({**gone, **own}, places[name] + 1)
    assert len(elsewhere) < len(wide), "a node of another sub-topology takes room as one that went"
    assert len(format_metadata("0123456789abcdef-123456-0", wide, layouts)) <= MOST_BYTES


def test_without_the_text_of_this_release_names_are_taken_as_they_are() -> None:
    new = timed_by(counted(inserted=True))
    for text in (None, "", ["foreign"]):
        assert times_now({"X-0000000001": 3}, text, new) == {"X-0000000001": 3}
    assert times_now({"gone": 3}, times_text(new), new) == {"gone": 3}
    assert times_now({"gone": 3}, "cut", new) == {"gone": 3}


def test_the_text_is_beside_offsets_where_there_is_room() -> None:
    topology = counted(inserted=False)
    kept = from_json(json.loads(kept_text({}, cut(topology), [], 3_000)))
    assert kept[TIMES] == times_text(timed_by(topology))


def test_the_text_goes_on_with_the_names_of_earlier_programs() -> None:
    old, new = counted(inserted=False, stores=("b", "a")), counted(inserted=False, stores=("b",))
    before = from_json(json.loads(kept_text({}, cut(old), [], 3_000)))
    kept = from_json(json.loads(kept_text({}, cut(new), [before], 3_000)))
    assert kept[TIMES] == times_text(timed_by(new), before[TIMES])
    assert kept[TIMES] != times_text(timed_by(new))
