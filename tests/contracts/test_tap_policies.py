"""What restore, batch and follow choose, over the fake tap: how far, in which order."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.fake_tap import FakeLog, FakeTap
from everflow.errors import ConfigError, RetriableError
from everflow.kafka.reading.copy_follower import BULK_AGAIN_S, CopyFollower
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.range_reader import RangeReader
from everflow.records import OffsetRange, TopicPartition

ONE, TWO, THREE = (TopicPartition("log", partition) for partition in range(3))
FAR = 10


class World:
    """A tap over logs, with a clock."""

    def __init__(self, *ends: int) -> None:
        partitions = (ONE, TWO, THREE)[: len(ends)]
        self.logs = {
            tp: FakeLog({at: b"%d" % at for at in range(end)}, end)
            for tp, end in zip(partitions, ends, strict=True)
        }
        self.tap: Any = FakeTap(self.logs)

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: log.end for tp, log in self.logs.items()}


def numbers(start: int, end: int) -> list[bytes | None]:
    return [b"%d" % at for at in range(start, end)]


def test_a_restore_reads_a_range_and_nothing_behind_it() -> None:
    world = World(9, 9)
    reader = LogReader({}, tap=world.tap)
    for start, end in ((2, 9), (0, 3), (9, 9)):
        found = [value for chunk in reader.read(ONE, start, end) for value in chunk.values]
        assert found == numbers(start, end)
        assert world.tap.positions == {}


def test_security_that_kafka_python_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.engine\.id"):
        LogReader({"bootstrap.servers": "b:1", "ssl.engine.id": "x"})


def reader_of(world: World) -> RangeReader:
    return RangeReader({"bootstrap.servers": "b:1"}, True, tap=world.tap)


def test_what_one_partition_does_not_use_of_the_bytes_another_gets() -> None:
    world = World(3, 100)
    read = reader_of(world).read({ONE: OffsetRange(0, 3), TWO: OffsetRange(0, 100)}, 1.0, 60)
    assert read.ends[ONE] == 3
    # A record has two bytes or three. Half are for each; the first takes six.
    assert 30 <= sum(1 + len(value or b"") for value in numbers(0, read.ends[TWO])) <= 63
    with pytest.raises(RetriableError, match=r"1.*though.*log-0.*5"):
        reader_of(world).read({ONE: OffsetRange(3, 5)}, 1.0)


class Followed:
    """What came of each log, and which were seen far behind."""

    def __init__(self, world: World, positions: dict[TopicPartition, int]) -> None:
        self.world = world
        self.follower = CopyFollower({}, clock=lambda: world.tap.now, bulk_lag=FAR, tap=world.tap)
        self.follower.follow(positions)
        self.values: dict[TopicPartition, list[bytes | None]] = {}
        self.bulk: list[TopicPartition] = []
        self.gone: dict[TopicPartition, str] = {}

    def poll(self, rounds: int = 1) -> Followed:
        for _ in range(rounds):
            found = self.follower.poll(100, 1 << 20, self.world.ends(), 0.05)
            self.bulk += [tp for tp, one in found.chunks.items() if len(one) < one.records]
            self.gone.update(found.gone)
            for tp, chunk in found.chunks.items():
                assert chunk.next_position == self.follower.positions[tp]
                self.values.setdefault(tp, []).extend(chunk.values)
        return self


def test_far_behind_the_shortest_that_begins_is_first_and_nobody_who_waits_is_overtaken() -> None:
    world = World(30, 20, 15)
    followed = Followed(world, {ONE: 0, TWO: 0})
    followed.follower.poll(100, 1, {}, 0.0)
    assert followed.follower.far_behind == {}, "their ends are not known"
    followed.follower.follow({ONE: 1, TWO: 1})
    followed.poll()
    followed.follower.follow({THREE: 1})
    followed.poll(3)
    assert followed.bulk == [TWO, ONE, THREE]
    assert followed.follower.far_behind == {}
    assert world.tap.positions == {ONE: 30, TWO: 20, THREE: 15}, "it goes on behind them"


def test_near_their_ends_they_are_read_together_and_one_that_falls_behind_in_bulk() -> None:
    world = World(5, 5)
    followed = Followed(world, {ONE: 0, TWO: 3})
    assert followed.poll().values == {ONE: numbers(0, 5), TWO: numbers(3, 5)}
    assert followed.bulk == []
    world.logs[TWO] = FakeLog({at: b"%d" % at for at in range(50)}, 50)
    followed.poll()
    assert followed.bulk == [TWO]
    followed.follower.unfollow([TWO])
    assert followed.follower.positions == {ONE: 5}


def test_what_is_taken_away_in_the_middle_is_not_read_on() -> None:
    world = World(20, 30)
    followed = Followed(world, {ONE: 0, TWO: 0})
    followed.follower.poll(100, 1, world.ends(), 0.05)
    assert followed.follower.far_behind == {ONE: 1, TWO: 0}
    followed.follower.unfollow([ONE])
    assert followed.poll(2).values == {TWO: [b"29"]}, "folded: all have one key"
    assert followed.follower.positions == {TWO: 30}


def test_after_a_fault_in_bulk_all_are_read_together_for_a_while() -> None:
    world = World(30, 40)
    followed = Followed(world, {ONE: 0, TWO: 0})
    followed.follower.poll(100, 1, world.ends(), 0.05)
    assert followed.follower.far_behind == {ONE: 1, TWO: 0}
    world.tap.faults.append(RetriableError("no broker"))
    followed.poll()
    assert followed.follower.far_behind == {}
    followed.poll()
    assert followed.values == {ONE: numbers(1, 30), TWO: numbers(0, 40)}
    followed.follower.follow({ONE: 0})
    followed.poll()
    assert followed.bulk == []
    world.tap.now += BULK_AGAIN_S
    followed.follower.follow({ONE: 0})
    followed.poll()
    assert followed.bulk == [ONE]


def test_a_broker_that_cannot_be_reached_loses_no_log() -> None:
    world = World(30, 5)
    followed = Followed(world, {ONE: 0, TWO: 0})
    world.tap.faults.append(RetriableError("no broker"))
    with pytest.raises(RetriableError, match="no broker"):
        followed.poll()
    assert followed.follower.positions == {ONE: 0, TWO: 0}
    followed.poll(2)
    assert followed.follower.positions == {ONE: 30, TWO: 5}


def test_a_log_near_its_end_that_cannot_be_read_does_not_hold_up_those_far_behind() -> None:
    world = World(5, 30)
    followed = Followed(world, {ONE: 0, TWO: 0})
    world.logs[ONE].damage = RetriableError("log-0, offset 0: the record batch cannot be read")
    followed.follower.poll(100, 1, world.ends(), 0.05)
    assert followed.follower.far_behind == {TWO: 1}
    followed.follower.poll(100, 1 << 20, world.ends(), 0.05)
    assert followed.follower.positions == {ONE: 0, TWO: 30}
    with pytest.raises(RetriableError, match="log-0, offset 0"):
        followed.poll()
    world.logs[ONE].damage = None
    assert followed.poll().values == {ONE: numbers(0, 5)}


def test_a_broker_that_does_not_answer_is_given_up_after_a_while() -> None:
    world = World(30)
    followed = Followed(world, {ONE: 0})
    followed.follower.poll(100, 1, {ONE: 30}, 0.05)
    world.logs[ONE].end = 1
    while world.tap.now < 9:
        assert followed.follower.poll(100, 1 << 20, {ONE: 30}, 0.05).chunks == {}
    assert followed.follower.far_behind == {ONE: 1}
    world.tap.now += 2
    followed.follower.poll(100, 1 << 20, {ONE: 30}, 0.05)
    assert followed.follower.far_behind == {}
    assert followed.follower.positions == {ONE: 1}


@pytest.mark.parametrize("ends", [{}, {ONE: 30, TWO: 30}])
def test_logs_that_were_cut_are_named_and_the_others_go_on(ends: dict[TopicPartition, int]) -> None:
    world = World(30, 30, 5)
    world.logs[ONE].start = world.logs[TWO].start = 4
    followed = Followed(world, {ONE: 1, TWO: 2, THREE: 0})
    gone: dict[TopicPartition, str] = {}
    chunks: dict[TopicPartition, list[bytes | None]] = {}
    for _ in range(4):
        found = followed.follower.poll(100, 1 << 20, ends, 0.05)
        gone.update(found.gone)
        chunks.update({tp: chunk.values for tp, chunk in found.chunks.items()})
    assert {tp: text.split(" (")[0] for tp, text in gone.items()} == {
        ONE: "offset 1 is no longer in the changelog",
        TWO: "offset 2 is no longer in the changelog",
    }
    assert chunks == {THREE: numbers(0, 5)}
    assert followed.follower.positions == {THREE: 5}


def test_a_connection_that_nobody_uses_is_dropped() -> None:
    world = World(30)
    followed = Followed(world, {ONE: 0})
    followed.poll(2)
    assert world.tap.open
    world.tap.now += 31.0
    followed.follower.rest()
    assert world.tap.open, "it follows a log"
    followed.follower.unfollow([ONE])
    followed.follower.rest()
    assert not world.tap.open


def test_a_silent_log_ends_a_read_with_what_the_others_had() -> None:
    records = 30
    world = World(records, 0, records)
    tap, reader = world.tap, reader_of(world)
    wanted = {tp: OffsetRange(0, records) for tp in (TWO, ONE, THREE)}
    read = reader.read(wanted, 30.0, quiet_s=3.0)
    assert read.silent == (TWO,)
    assert {tp: len(read.columns[tp]) for tp in wanted} == {ONE: records, TWO: 0, THREE: records}
    assert read.ends == {ONE: records, TWO: 0, THREE: records}
    assert tap.now == 3.0
    with pytest.raises(RetriableError, match="log-1 to") as error:
        reader.read(wanted, 30.0)
    assert error.value.partitions == {TWO}
    only = reader.read({TWO: OffsetRange(0, 9)}, 30.0, quiet_s=3.0)
    assert only.silent == (TWO,)


def test_what_comes_is_asked_first_and_a_bound_on_bytes_is_no_silence() -> None:
    world = World(2, 2)
    read = reader_of(world).read({ONE: OffsetRange(0, 2), TWO: OffsetRange(0, 2)}, 30.0, 1, 3.0)
    assert read.silent == ()
    assert read.ends == {ONE: 1, TWO: 1}
