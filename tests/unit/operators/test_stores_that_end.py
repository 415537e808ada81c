"""A processor's store with a ttl: what it shows at a record, however the records are cut into
batches, and what is left of it in the end. Against a model that takes records one by one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from everflow import (
    ProcessorContext,
    Record,
    Stores,
    StreamsBuilder,
    Topology,
    TopologyError,
    serdes,
)
from everflow.testing import TopologyTestDriver
from everflow.topology.subtopologies import cut, internal_topics

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()
TTL = 10
Given = list[tuple[str, int, int]]
"""Key, value and time of records, in the order in which they come."""


def add(record: Record, context: ProcessorContext) -> None:
    """Adds to the key's sum (a 9 deletes it), and tells it and how many keys there are."""
    sums = context.store("sums")
    if record.value == 9:
        sums.delete(record.key)
    else:
        sums.put(record.key, sums.get(record.key, 0) + record.value)
    entries = list(sums.all())
    assert sums.approximate_num_entries() == len(entries)
    assert sums.get_all([key for key, _ in entries]) == [value for _, value in entries]
    context.forward(record.with_value(1000 * len(entries) + sums.get(record.key, 0)))


def model(records: Given) -> tuple[list[int], dict[str, int]]:
    """What `add` tells, and the sums in the end."""
    held: dict[str, tuple[int, int]] = {}
    told, now = [], -1
    for key, value, time in records:
        now = max(now, time)
        held = {one: found for one, found in held.items() if found[1] + TTL > now}
        if value == 9:
            held.pop(key, None)
        elif time + TTL > now:
            held[key] = (held.get(key, (0, 0))[0] + value, time)
        told.append(1000 * len(held) + held.get(key, (0, 0))[0])
    return told, {key: value for key, (value, _) in held.items()}


def summing(**options: bool) -> Topology:
    builder = StreamsBuilder()
    sums = Stores.key_value("sums", key=TEXT, value=LONG, ttl=TTL, **options)
    builder.stream("in", key=TEXT, value=LONG).process(add, stores=[sums]).to("out")
    return builder.build()


def drawn(seed: int, count: int = 80) -> Given:
    drawn_ = random.Random(seed)
    time, found = 0, []
    for _ in range(count):
        time += drawn_.choice((0, 0, 1, 2, 5, 15))
        early = drawn_.choice((0, 0, 0, 4, 11, 30))
        found.append((drawn_.choice("uvwxyz"), drawn_.randint(1, 9), max(0, time - early)))
    return found


@pytest.mark.parametrize("cut_at", [lambda at: True, lambda at: False, lambda at: at % 7 == 3])
def test_entries_end_at_the_same_record_however_records_are_cut(
    cut_at: Callable[[int], bool],
) -> None:
    for seed in range(3):
        records = drawn(seed)
        told, left = model(records)
        with TopologyTestDriver(summing()) as driver:
            topic, pending = driver.create_input_topic("in", TEXT, LONG), []
            for at, record in enumerate(records):
                pending.append(record)
                if cut_at(at) or at == len(records) - 1:
                    topic.pipe_batch(pending)
                    pending = []
            out = driver.create_output_topic("out", TEXT, LONG)
            assert [one.value for one in out.read_records()] == told
            assert dict(driver.get_key_value_store("sums").all()) == left
            ends = len(list(driver.get_key_value_store("sums-ttl").all()))
            assert ends >= len(left)
            topic.pipe_input("last", 1, 10_000)
            assert dict(driver.get_key_value_store("sums").all()) == {"last": 1}
            assert len(list(driver.get_key_value_store("sums-ttl").all())) == 1


def test_an_entry_that_is_put_out_of_order_is_taken_out_at_its_earlier_end() -> None:
    with TopologyTestDriver(summing()) as driver:
        topic = driver.create_input_topic("in", TEXT, LONG)
        for key, time in (("a", 10), ("a", 3), ("b", 13)):
            topic.pipe_input(key, 1, time)
        assert dict(driver.get_key_value_store("sums").all()) == {"b": 1}


def test_when_entries_end_is_kept_where_the_entries_are() -> None:
    logged = internal_topics(cut(summing()), {"in": 1}, "app").changelog
    assert set(logged) == {"app-sums-changelog", "app-sums-ttl-changelog"}
    topology = summing(logging=False, in_memory=True)
    assert topology.in_memory == {"sums", "sums-ttl"}
    assert internal_topics(cut(topology), {"in": 1}, "app").changelog == {}


def test_processors_share_a_store_whose_entries_end() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("sums", key=TEXT, value=LONG, ttl=TTL))
    for name in ("in", "more"):
        builder.stream(name, key=TEXT, value=LONG).process(add, stores=["sums"]).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        first, second = (driver.create_input_topic(name, TEXT, LONG) for name in ("in", "more"))
        first.pipe_input("a", 1, 1)
        second.pipe_input("b", 2, 10)
        second.pipe_input("a", 3, 11)
        out = driver.create_output_topic("out", TEXT, LONG)
        assert [one.value for one in out.read_records()] == [1001, 2002, 2003]


@pytest.mark.parametrize("ttl", [0, -1])
def test_a_ttl_is_above_zero(ttl: int) -> None:
    with pytest.raises(TopologyError, match=rf"above 0.*{ttl}"):
        Stores.key_value("sums", key=TEXT, value=LONG, ttl=ttl)
