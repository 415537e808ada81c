"""What restore, batch and follow choose: which tap, how far, and what they do where one cannot go
on. Over the fake tap of the contract."""

from __future__ import annotations

import pytest

from contracts.fake_tap import FakeLog, FakeTap
from everflow.errors import ConfigError, RetriableError
from everflow.kafka.reading.copy_follower import BULK_AGAIN_S, CopyFollower
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.taps import Taps
from everflow.records import OffsetRange, TopicPartition

ONE, TWO, THREE = (TopicPartition("log", partition) for partition in range(3))
FAR = 10


class World:
    """Both taps over the same logs, with one clock."""

    def __init__(self, *ends: int) -> None:
        partitions = (ONE, TWO, THREE)[: len(ends)]
        self.logs = {
            tp: FakeLog({at: b"%d" % at for at in range(end)}, end)
            for tp, end in zip(partitions, ends, strict=True)
        }
        self.own = FakeTap(self.logs)
        self.client = FakeTap(self.logs, client=True)
        self.taps = Taps(self.own, self.client)

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: log.end for tp, log in self.logs.items()}


# --- restore --------------------------------------------------------------------------------------


def restored(reader: LogReader, tp: TopicPartition, start: int, end: int) -> list[bytes | None]:
    return [value for chunk in reader.read(tp, start, end) for value in chunk.values]


def numbers(start: int, end: int) -> list[bytes | None]:
    return [b"%d" % at for at in range(start, end)]


def test_librdkafka_reads_on_behind_the_last_chunk_and_has_the_log_from_then_on() -> None:
    world = World(9, 9)
    world.logs[ONE].unsuited_from = 4
    reader = LogReader({}, taps=world.taps)
    assert restored(reader, ONE, 2, 9) == numbers(2, 9)
    assert world.client.asked == [{ONE: (4, 9)}]
    assert restored(reader, ONE, 0, 3) == numbers(0, 3)
    assert world.client.asked == [{ONE: (4, 9)}, {ONE: (0, 3)}]
    assert restored(reader, TWO, 0, 9) == numbers(0, 9)
    assert len(world.client.asked) == 2
    assert restored(reader, TWO, 9, 9) == []
    assert world.own.positions == world.client.positions == {}


def test_security_that_kafka_python_cannot_be_told_is_refused() -> None:
    world = World(9)
    with pytest.raises(ConfigError, match=r"ssl\.engine\.id cannot be said"):
        LogReader({"bootstrap.servers": "b:1", "ssl.engine.id": "x"})
    assert LogReader({"bootstrap.servers": "b:1"})._taps.own() is not None
    assert restored(LogReader({}, taps=Taps(None, world.client)), ONE, 2, 9) == numbers(2, 9)


# --- batch ----------------------------------------------------------------------------------------


def reader_of(world: World) -> RangeReader:
    return RangeReader({}, "g", True, tail_records=2, taps=world.taps)


def values(reader: RangeReader, tp: TopicPartition, start: int, end: int) -> list[bytes | None]:
    return list(reader.read({tp: OffsetRange(start, end)}, 1.0).columns[tp].values.to_pylist())


def test_small_ranges_are_librdkafkas_and_the_first_of_them_behind_large_ones_is_not() -> None:
    world = World(20)
    reader = reader_of(world)
    for start, end, own in (
        (0, 2, False),
        (2, 7, True),
        (7, 12, True),
        (12, 13, True),
        (13, 15, False),
    ):
        asked = len(world.own.asked)
        assert values(reader, ONE, start, end) == numbers(start, end)
        assert (len(world.own.asked) > asked) == own, (start, end)
        assert (world.own.positions == {ONE: end}) == (own and end != 13)
        assert (world.client.positions == {ONE: end}) == (not own or end == 13), (
            "it fetches ahead already"
        )


def test_a_large_range_that_only_librdkafka_reads_is_read_by_it_from_its_start() -> None:
    world = World(20, 20)
    world.logs[ONE].unsuited_from = 4
    reader = reader_of(world)
    assert values(reader, ONE, 0, 9) == numbers(0, 9)
    assert world.client.asked == [{ONE: (0, 9)}]
    assert values(reader, ONE, 9, 19) == numbers(9, 19)
    assert world.client.asked[1:] == [{ONE: (9, 19)}]
    assert values(reader, TWO, 0, 19) == numbers(0, 19)
    assert len(world.client.asked) == 2


def test_what_one_partition_does_not_use_of_the_bytes_another_gets() -> None:
    world = World(3, 100)
    read = reader_of(world).read({ONE: OffsetRange(0, 3), TWO: OffsetRange(0, 100)}, 1.0, 60)
    assert read.ends[ONE] == 3
    # A record has two bytes or three. Half are for each; the first takes six.
    assert 30 <= sum(1 + len(value or b"") for value in numbers(0, read.ends[TWO])) <= 63
    with pytest.raises(RetriableError, match=r"1.*though.*log-0.*5"):
        reader_of(world).read({ONE: OffsetRange(3, 5)}, 1.0)


# --- follow ---------------------------------------------------------------------------------------


class Followed:
    """What came of each log, and which were seen far behind."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.follower = CopyFollower({}, clock=lambda: world.own.now, bulk_lag=FAR, taps=world.taps)
        self.values: dict[TopicPartition, list[bytes | None]] = {}
        self.bulk: list[TopicPartition] = []
        self.gone: dict[TopicPartition, str] = {}

    def poll(self, rounds: int = 1) -> Followed:
        for _ in range(rounds):
            found = self.follower.poll(100, 1 << 20, self.world.ends(), 0.05)
            self.bulk += [
                tp for tp in found.chunks if any(tp in asked for asked in self.world.own.asked)
            ]
            self.gone.update(found.gone)
            for tp, chunk in found.chunks.items():
                assert chunk.next_position == self.follower.positions[tp]
                self.values.setdefault(tp, []).extend(chunk.values)
            self.world.own.asked.clear()
        return self


def test_far_behind_the_shortest_that_begins_is_first_and_nobody_who_waits_is_overtaken() -> None:
    world = World(30, 20, 15)
    followed = Followed(world)
    followed.follower.follow({ONE: 0, TWO: 0})
    followed.follower.poll(100, 1, {}, 0.0)
    assert followed.follower.far_behind == {}, "their ends are not known"
    followed.follower.follow({ONE: 1, TWO: 1})
    followed.poll()
    followed.follower.follow({THREE: 1})
    followed.poll(3)
    assert followed.bulk == [TWO, ONE, THREE]
    assert followed.follower.far_behind == {}
    assert world.client.positions == {ONE: 30, TWO: 20, THREE: 15}, (
        "the consumer goes on behind them"
    )


def test_near_their_ends_the_consumer_has_them_and_one_that_falls_behind_is_read_in_bulk() -> None:
    world = World(5, 5)
    followed = Followed(world)
    followed.follower.follow({ONE: 0, TWO: 3})
    assert followed.poll().values == {ONE: numbers(0, 5), TWO: numbers(3, 5)}
    assert followed.bulk == []
    world.logs[TWO] = FakeLog({at: b"%d" % at for at in range(50)}, 50)
    world.own.logs = world.client.logs = world.logs
    followed.poll()
    assert followed.bulk == [TWO]
    followed.follower.unfollow([TWO])
    assert followed.follower.positions == {ONE: 5}


def test_what_is_taken_away_in_the_middle_is_not_read_on() -> None:
    world = World(20, 30)
    followed = Followed(world)
    followed.follower.follow({ONE: 0, TWO: 0})
    followed.follower.poll(100, 1, world.ends(), 0.05)
    assert followed.follower.far_behind == {ONE: 1, TWO: 0}
    followed.follower.unfollow([ONE])
    assert followed.poll(2).values == {TWO: [b"29"]}, "folded: all have one key"
    assert followed.follower.positions == {TWO: 30}


def test_a_log_with_foreign_batches_is_the_consumers_until_it_is_followed_anew() -> None:
    world = World(30)
    world.logs[ONE].unsuited_from = 20
    followed = Followed(world)
    followed.follower.follow({ONE: 0})
    followed.poll(2)
    assert world.client.positions == {ONE: 20}
    world.logs[ONE].unsuited_from = 1 << 62
    followed.follower.unfollow([])
    assert followed.poll().values[ONE][-10:] == numbers(20, 30)
    followed.follower.follow({ONE: 2})
    followed.poll()
    assert followed.bulk[-1] == ONE, "it is tried again"


def test_after_a_fault_the_consumer_has_everything_for_a_while() -> None:
    world = World(30, 40)
    followed = Followed(world)
    world.own.faults.append(RetriableError("no broker"))
    followed.follower.follow({ONE: 0, TWO: 0})
    followed.poll()
    assert followed.follower.far_behind == {}
    assert world.client.positions == {ONE: 0, TWO: 0}
    followed.poll()
    assert followed.values == {ONE: numbers(0, 30), TWO: numbers(0, 40)}
    followed.follower.follow({ONE: 0})
    followed.poll()
    assert followed.bulk == []
    world.own.now += BULK_AGAIN_S
    followed.follower.follow({ONE: 0})
    followed.poll()
    assert followed.bulk == [ONE]


def test_a_log_near_its_end_that_cannot_be_read_does_not_hold_up_those_far_behind() -> None:
    world = World(5, 30)
    followed = Followed(world)
    followed.follower.follow({ONE: 0, TWO: 0})
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
    followed = Followed(world)
    followed.follower.follow({ONE: 0})
    followed.follower.poll(100, 1, {ONE: 30}, 0.05)
    world.logs[ONE].end = 1
    while world.own.now < 9:
        assert followed.follower.poll(100, 1 << 20, {ONE: 30}, 0.05).chunks == {}
    assert followed.follower.far_behind == {ONE: 1}
    world.own.now += 2
    followed.follower.poll(100, 1 << 20, {ONE: 30}, 0.05)
    assert followed.follower.far_behind == {}
    assert world.client.positions == {ONE: 1}


@pytest.mark.parametrize("ends", [{}, {ONE: 30, TWO: 30}])
def test_logs_that_were_cut_are_named_one_by_one_and_the_others_go_on(
    ends: dict[TopicPartition, int],
) -> None:
    world = World(30, 30, 5)
    world.logs[ONE].start = world.logs[TWO].start = 4
    followed = Followed(world)
    followed.follower.follow({ONE: 1, TWO: 2, THREE: 0})
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
    followed = Followed(world)
    followed.follower.follow({ONE: 0})
    followed.poll(2)
    assert world.own.open
    world.own.now += 31.0
    followed.poll()
    assert not world.own.open


@pytest.mark.parametrize("records", [2, 30], ids=["librdkafka", "own fetches"])
def test_a_silent_log_ends_a_read_with_what_the_others_had(records: int) -> None:
    world = World(records, 0, records)
    taps = world.taps if records > 2 else Taps(None, world.client)
    tap = world.own if records > 2 else world.client
    reader = RangeReader({}, "g", True, tail_records=2, taps=taps)
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
