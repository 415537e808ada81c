"""Racks are asked for now and then, kept through faults, and not asked for where nobody wants
them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from everflow.clock import ManualClock
from everflow.errors import RetriableError
from everflow.instance.topics.end_offsets import RACKS_PERIOD_MS, PartitionRacks
from everflow.records import TopicPartition

TP = TopicPartition("in", 0)


def test_racks_are_read_once_a_minute_and_kept_where_nobody_answers() -> None:
    clock, asked = ManualClock(), list[Collection[str]]()

    def read(topics: Collection[str]) -> Mapping[TopicPartition, frozenset[str]]:
        asked.append(topics)
        if len(asked) > 1:
            raise RetriableError("away")
        return {TP: frozenset({"a", "b"})}

    racks = PartitionRacks(read, ["in"], clock)
    assert racks.racks() == {}
    racks.refresh()
    racks.refresh()
    assert len(asked) == 1
    clock.advance(RACKS_PERIOD_MS)
    racks.refresh()
    assert len(asked) == 2
    assert racks.racks() == {TP: frozenset({"a", "b"})}
    none = PartitionRacks(read, [], clock)
    none.refresh()
    assert len(asked) == 2
