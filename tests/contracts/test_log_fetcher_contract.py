"""Every fetcher: where it reads, what it hands out, and that its position is right behind that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from contracts.fake_log_fetcher import FakeLog, FakeLogFetcher
from contracts.transactional_log import write_transactions
from everflow.errors import ConfigError, FatalError, LogStartMovedError, RetriableError
from everflow.kafka.reading.copy_follower import BULK_AGAIN_S, CopyFollower
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import fence_all
from everflow.records import OffsetRange, TopicPartition

FAR = 1 << 40
WHOLE = {0: b"a", 1: b"b", 2: b"c", 7: b"d", 8: b"e", 9: None}
END = 14


@dataclass
class Case:
    """Two partitions, each: 0-2 committed, 3 marker, 4-5 aborted, 6 marker, 7-9 committed, 10
    marker, 11-12 aborted, 13 marker."""

    fetcher: LogFetcher
    one: TopicPartition
    two: TopicPartition
    cut: Callable[[TopicPartition, int], None]
    """Delete what is before an offset."""
    open_transaction: Callable[[TopicPartition], None]


def real(request: pytest.FixtureRequest, kind: str) -> Case:
    bootstrap, admin, name = (
        request.getfixturevalue(given) for given in ("bootstrap", "admin", "name")
    )
    one = TopicPartition(request.getfixturevalue("topic")(2), 0)
    two = TopicPartition(one.topic, 1)
    rounds: list[tuple[bool, list[bytes | None]]] = [
        (True, [b"a", b"b", b"c"]),
        (False, [b"x", b"x"]),
    ]
    rounds += [(True, [b"d", b"e", None]), (False, [b"x", b"x"])]
    write_transactions(bootstrap, admin, name, [one, two], rounds)

    def open_transaction(tp: TopicPartition) -> None:
        writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
        request.addfinalizer(lambda: fence_all({"bootstrap.servers": bootstrap}, [name], 10))
        request.addfinalizer(writer.close)
        writer.begin()
        writer.write(tp.topic, [b"k"], [b"open"], np.ones(1, np.int64), tp.partition)
        writer.flush(10)

    client = {"bootstrap.servers": bootstrap}
    kinds: dict[str, Callable[[], Any]] = {
        "fetches": lambda: LogFetcher.over(client),
        "small fetches": lambda: LogFetcher.over(client, fetch_bytes=1),
        "fetches ahead": lambda: LogFetcher.over(client, ahead=True),
    }
    return Case(
        kinds[kind](),
        one,
        two,
        lambda tp, before: admin.delete_records({tp: before}),
        open_transaction,
    )


def fake() -> Case:
    one, two = TopicPartition("log", 0), TopicPartition("log", 1)
    logs = {tp: FakeLog(dict(WHOLE), END) for tp in (one, two)}

    def cut(tp: TopicPartition, before: int) -> None:
        logs[tp].start = before

    stand_in: Any = FakeLogFetcher(logs)
    return Case(stand_in, one, two, cut, lambda tp: None)


REAL = [
    pytest.param(kind, marks=pytest.mark.broker)
    for kind in ("fetches", "small fetches", "fetches ahead")
]


@pytest.fixture(params=[*REAL, "fake"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    found = fake() if request.param == "fake" else real(request, request.param)
    yield found
    found.fetcher.close()


def taken(
    fetcher: LogFetcher,
    ends: dict[TopicPartition, int],
    most_bytes: int = FAR,
    most_records: int = FAR,
) -> dict[TopicPartition, list[bytes | None]]:
    """All up to the ends, in as many takes as it needs; checks each position."""
    found: dict[TopicPartition, list[bytes | None]] = {tp: [] for tp in ends}
    while any(fetcher.positions[tp] < end for tp, end in ends.items()):
        before = fetcher.positions
        chunks = fetcher.take(ends, 10, most_bytes, most_records)
        assert chunks, "a take in time brings something"
        assert {tp: at for tp, at in fetcher.positions.items() if at != before[tp]} == {
            tp: c.next_position for tp, c in chunks.items()
        }
        for tp, chunk in chunks.items():
            assert before[tp] < chunk.next_position <= ends[tp]
            parts = (chunk, chunk.keys, chunk.values, chunk.timestamps)
            assert {len(part) for part in parts} == {chunk.records}
            got = [value for at, value in WHOLE.items() if before[tp] <= at < chunk.next_position]
            assert chunk.values == got == chunk.raw.arrow(False).values.to_pylist()
            assert chunk.bytes == sum(len(part or b"") for part in chunk.keys + chunk.values)
            assert len(chunk) <= most_records
            found[tp] += chunk.values
    return found


def within(start: int, end: int) -> list[bytes | None]:
    return [value for at, value in WHOLE.items() if start <= at < end]


def test_every_range_holds_its_records_and_ends_where_asked(case: Case) -> None:
    for start in range(END + 1):
        for end in range(start, END + 1):
            case.fetcher.go_to({case.one: start})
            assert taken(case.fetcher, {case.one: end}) == {case.one: within(start, end)}, (
                start,
                end,
            )
            assert case.fetcher.positions == {case.one: end}


def test_a_log_is_read_on_in_pieces_whose_ends_were_not_known_before(case: Case) -> None:
    case.fetcher.go_to({case.one: 0, case.two: 1})
    for end in (1, 2, 5, 8, 9, 14):
        before = case.fetcher.positions
        expected = {tp: within(before[tp], end) for tp in before}
        assert (
            taken(
                case.fetcher,
                {case.one: max(end, before[case.one]), case.two: max(end, before[case.two])},
            )
            == expected
        )


def test_what_came_together_is_taken_up_to_the_latest_end(case: Case) -> None:
    for latest in (2, 3, 8, END, FAR):
        case.fetcher.go_to({case.one: 0, case.two: 0})
        asked = {case.one: 2, case.two: 1}
        while any(case.fetcher.positions[tp] < end for tp, end in asked.items()):
            case.fetcher.take(asked, 10, latest={case.one: latest})
        assert 2 <= case.fetcher.positions[case.one] <= latest
        assert case.fetcher.positions[case.two] == 1
    case.fetcher.go_to({case.one: 0})
    (chunk,) = case.fetcher.take({case.one: 1}, 10, latest={case.one: 8}).values()
    assert chunk.values == within(0, chunk.next_position)
    assert taken(case.fetcher, {case.one: END}) == {case.one: within(chunk.next_position, END)}


def test_bounds_cut_a_chunk_behind_one_record_at_least_and_lose_nothing(case: Case) -> None:
    for bound in ({"most_bytes": 1}, {"most_bytes": 4}, {"most_records": 1}, {"most_records": 2}):
        case.fetcher.go_to({})
        case.fetcher.go_to({case.one: 0, case.two: 0})
        assert taken(case.fetcher, {case.one: END, case.two: END}, **bound) == dict.fromkeys(
            (case.one, case.two), within(0, END)
        )


def test_what_goes_on_goes_on_when_others_come_and_go(case: Case) -> None:
    one, two = case.one, case.two
    case.fetcher.go_to({one: 0})
    assert taken(case.fetcher, {one: 2}) == {one: [b"a", b"b"]}
    case.fetcher.go_to({one: 2, two: 8})
    assert taken(case.fetcher, {one: 8, two: 9}) == {one: [b"c", b"d"], two: [b"e"]}
    case.fetcher.go_to({two: 0})
    assert case.fetcher.positions == {two: 0}
    assert taken(case.fetcher, {two: 2}) == {two: [b"a", b"b"]}
    case.fetcher.go_to({two: 2, one: 1})
    assert taken(case.fetcher, {one: 2, two: 3}) == {one: [b"b"], two: [b"c"]}


def test_only_what_is_asked_for_is_taken(case: Case) -> None:
    case.fetcher.go_to({case.one: 0, case.two: 0})
    assert taken(case.fetcher, {case.one: 3}) == {case.one: [b"a", b"b", b"c"]}
    assert case.fetcher.positions[case.two] == 0
    assert case.fetcher.take({}, 0) == {}
    assert case.fetcher.take({case.one: 3, case.two: 0}, 0) == {}, "ends that are reached"
    assert taken(case.fetcher, {case.two: 1}) == {case.two: [b"a"]}


def test_at_its_end_a_log_gives_nothing_nor_does_an_open_transaction(case: Case) -> None:
    case.fetcher.go_to({case.one: END})
    assert case.fetcher.take({case.one: FAR}, 0.3) == {}
    case.open_transaction(case.one)
    assert case.fetcher.take({case.one: FAR}, 0.3) == {}
    assert case.fetcher.positions == {case.one: END}


def test_a_log_that_starts_later_is_named_and_the_others_go_on(case: Case) -> None:
    case.cut(case.one, 4)
    case.fetcher.go_to({case.one: 1, case.two: 0})
    seen: list[bytes | None] = []

    def read_both() -> None:
        for _ in range(20):
            found = case.fetcher.take({case.two: END, case.one: END}, 10)
            assert list(found) == [case.two]
            seen.extend(found[case.two].values)

    for _ in range(2):
        with pytest.raises(LogStartMovedError, match="outside the log") as moved:
            read_both()
        assert moved.value.partition == case.one
        assert case.fetcher.positions[case.one] == 1
    case.fetcher.go_to({case.two: case.fetcher.positions[case.two]})
    assert seen + taken(case.fetcher, {case.two: END})[case.two] == within(0, END), "none lost"
    case.fetcher.go_to({case.one: 4})
    assert taken(case.fetcher, {case.one: END}) == {case.one: within(4, END)}


def test_an_unknown_topic_brings_nothing(case: Case) -> None:
    absent = TopicPartition(f"{case.one.topic}-absent", 0)
    case.fetcher.go_to({absent: 0})
    with suppress(RetriableError, FatalError):
        assert case.fetcher.take({absent: 1}, 0.5) == {}
    assert case.fetcher.positions == {absent: 0}


def test_a_closed_tap_may_be_used_again(case: Case) -> None:
    case.fetcher.warm_up({case.one.topic}, 10)
    assert case.fetcher.positions == {}
    case.fetcher.go_to({case.one: 0})
    assert taken(case.fetcher, {case.one: 2}) == {case.one: [b"a", b"b"]}
    case.fetcher.close()
    assert case.fetcher.positions == {}
    case.fetcher.go_to({case.one: 2})
    assert taken(case.fetcher, {case.one: END}) == {case.one: within(2, END)}


# What restore, batch and follow choose, over the fake fetcher.


ONE, TWO, THREE = (TopicPartition("log", partition) for partition in range(3))
POLICY_FAR = 10


class World:
    """A fetcher over logs, with a clock."""

    def __init__(self, *ends: int) -> None:
        partitions = (ONE, TWO, THREE)[: len(ends)]
        self.logs = {
            tp: FakeLog({at: b"%d" % at for at in range(end)}, end)
            for tp, end in zip(partitions, ends, strict=True)
        }
        self.fetcher: Any = FakeLogFetcher(self.logs)

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: log.end for tp, log in self.logs.items()}


def numbers(start: int, end: int) -> list[bytes | None]:
    return [b"%d" % at for at in range(start, end)]


def test_a_restore_reads_a_range_and_nothing_behind_it() -> None:
    world = World(9, 9)
    reader = LogReader({}, fetcher=world.fetcher)
    for start, end in ((2, 9), (0, 3), (9, 9)):
        found = [value for chunk in reader.read(ONE, start, end) for value in chunk.values]
        assert found == numbers(start, end)
        assert world.fetcher.positions == {}


def test_security_that_kafka_python_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.engine\.id"):
        LogReader({"bootstrap.servers": "b:1", "ssl.engine.id": "x"})


def reader_of(world: World) -> RangeReader:
    return RangeReader({"bootstrap.servers": "b:1"}, True, fetcher=world.fetcher)


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
        self.follower = CopyFollower(
            {}, clock=lambda: world.fetcher.now, bulk_lag=POLICY_FAR, fetcher=world.fetcher
        )
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
    assert world.fetcher.positions == {ONE: 30, TWO: 20, THREE: 15}, "it goes on behind them"


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
    world.fetcher.faults.append(RetriableError("no broker"))
    followed.poll()
    assert followed.follower.far_behind == {}
    followed.poll()
    assert followed.values == {ONE: numbers(1, 30), TWO: numbers(0, 40)}
    followed.follower.follow({ONE: 0})
    followed.poll()
    assert followed.bulk == []
    world.fetcher.now += BULK_AGAIN_S
    followed.follower.follow({ONE: 0})
    followed.poll()
    assert followed.bulk == [ONE]


def test_a_broker_that_cannot_be_reached_loses_no_log() -> None:
    world = World(30, 5)
    followed = Followed(world, {ONE: 0, TWO: 0})
    world.fetcher.faults.append(RetriableError("no broker"))
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
    while world.fetcher.now < 9:
        assert followed.follower.poll(100, 1 << 20, {ONE: 30}, 0.05).chunks == {}
    assert followed.follower.far_behind == {ONE: 1}
    world.fetcher.now += 2
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
    assert {tp: text.split(" in ")[0] for tp, text in gone.items()} == {
        ONE: "offset 1 is no longer",
        TWO: "offset 2 is no longer",
    }
    assert chunks == {THREE: numbers(0, 5)}
    assert followed.follower.positions == {THREE: 5}


def test_a_connection_that_nobody_uses_is_dropped() -> None:
    world = World(30)
    followed = Followed(world, {ONE: 0})
    followed.poll(2)
    assert world.fetcher.open
    world.fetcher.now += 31.0
    followed.follower.rest()
    assert world.fetcher.open, "it follows a log"
    followed.follower.unfollow([ONE])
    followed.follower.rest()
    assert not world.fetcher.open


def test_a_silent_log_ends_a_read_with_what_the_others_had() -> None:
    records = 30
    world = World(records, 0, records)
    fetcher, reader = world.fetcher, reader_of(world)
    wanted = {tp: OffsetRange(0, records) for tp in (TWO, ONE, THREE)}
    read = reader.read(wanted, 30.0, quiet_s=3.0)
    assert read.silent == (TWO,)
    assert {tp: len(read.columns[tp]) for tp in wanted} == {ONE: records, TWO: 0, THREE: records}
    assert read.ends == {ONE: records, TWO: 0, THREE: records}
    assert fetcher.now == 3.0
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
