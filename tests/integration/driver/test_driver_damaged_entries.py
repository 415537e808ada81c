"""An entry of a store that cannot be read is told as what it is: no record of the input is blamed,
searched or made a dead letter of (note 041)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from everflow import (
    Processor,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    agg,
    serdes,
)
from everflow.dsl.streams import KStream
from everflow.errors import DamagedEntryError
from everflow.records import StoreChanges
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()
VALUE = serdes.json("n bigint")
Program = Callable[[StreamsBuilder, KStream], object]


class Remembers(Processor):
    """Hides what its store raises, as user code does."""

    def init(self, context: Any) -> None:
        self.seen = context.store("s")

    def process(self, record: Any) -> None:
        try:
            before = self.seen.get(record.key, 0)
        except Exception as error:
            raise RuntimeError("cannot remember") from error
        self.seen.put(record.key, before + 1)
        self.context.forward(record)


def joined(builder: StreamsBuilder, stream: KStream) -> object:
    other = builder.table("other", key=TEXT, value=VALUE, store="s")
    return stream.join(other, lambda left, right: left["n"], returns="bigint")


def processed(builder: StreamsBuilder, stream: KStream) -> object:
    return stream.process(Remembers, stores=[Stores.key_value("s", key=TEXT, value=LONG)])


PROGRAMS: dict[str, Program] = {
    "count": lambda _, stream: stream.group_by_key().count(store="s"),
    "windows": lambda _, stream: (
        stream.group_by_key().windowed_by(TimeWindows.of_size("10 s")).count(store="s")
    ),
    "sessions": lambda _, stream: (
        stream.group_by_key().windowed_by(SessionWindows.of_inactivity_gap("10 s")).count(store="s")
    ),
    "built-in": lambda _, stream: stream.group_by_key().aggregate(
        mean=agg.avg("value.n"), names=agg.collect_list("value.n"), store="s"
    ),
    "function": lambda _, stream: stream.group_by_key().aggregate(
        initializer=lambda: 0,
        aggregator=lambda key, value, total: total + value["n"],
        returns="bigint",
        store="s",
    ),
    "join": joined,
    "processor": processed,
}
FEW = b"\1\2\3"


def damaged(driver: TopologyTestDriver, value: bytes) -> bytes:
    """Another value for what is stored of key ``bad``; the key."""
    store: Any = driver._stores["s"]
    key = next(key for key, _ in store.range(None, None) if key.startswith(b"bad"))
    store.apply(StoreChanges("s", [key], [value], np.array([1_500], np.int64)))
    return bytes(key)


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_record_is_blamed_for_what_a_store_holds(program: str) -> None:
    builder = StreamsBuilder()
    PROGRAMS[program](builder, builder.stream("in", key=TEXT, value=VALUE))
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        names = ["in", *(["other"] if program == "join" else [])]
        topics = [driver.create_input_topic(name, TEXT, VALUE) for name in names]
        for topic in topics:
            topic.pipe_batch([("bad", {"n": 1}, 1_000), ("good", {"n": 1}, 1_000)])
        key = damaged(driver, FEW)
        records = [("good", {"n": n}, 2_000 + n) for n in range(20)]
        records.insert(7, ("bad", {"n": 7}, 2_007))
        with pytest.raises(DamagedEntryError) as raised:
            topics[0].pipe_batch(records)
        error = raised.value
        assert (error.code, error.store, str(error.task)) == ("EF-DAMAGED-ENTRY", "s", "0_0")
        assert error.key == key
        assert "Store s of task 0_0 is damaged: the entry of key " in str(error)
        assert repr(FEW) in str(error)
        dead = driver.create_output_topic("dead", serdes.bytes_(), serdes.bytes_())
        assert dead.read_records() == []


def test_a_record_that_is_bad_is_blamed_where_stores_are_whole() -> None:
    builder = StreamsBuilder()

    def fails(key: str, value: Any, total: int) -> int:
        return total + 10 // int(value["n"])

    stream = builder.stream("in", key=TEXT, value=VALUE)
    stream.group_by_key().aggregate(
        initializer=lambda: 0, aggregator=fails, returns="bigint", store="s"
    )
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        topic.pipe_batch([("k", {"n": 1}), ("k", {"n": 0}), ("k", {"n": 2})])
        dead = driver.create_output_topic("dead", TEXT, VALUE)
        assert [record.value for record in dead.read_records()] == [{"n": 0}]
