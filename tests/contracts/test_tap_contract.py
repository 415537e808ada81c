"""Every tap: where it reads, what it hands out, and that its position is right behind that."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from contracts.fake_tap import FakeLog, FakeTap
from contracts.transactional_log import write_transactions
from everflow.errors import FatalError, LogStartMovedError, RetriableError
from everflow.kafka.reading.fetch_tap import FetchTap
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import fence_all
from everflow.records import TopicPartition

FAR = 1 << 40
WHOLE = {0: b"a", 1: b"b", 2: b"c", 7: b"d", 8: b"e", 9: None}
END = 14


@dataclass
class Case:
    """Two partitions, each: 0-2 committed, 3 marker, 4-5 aborted, 6 marker, 7-9 committed, 10
    marker, 11-12 aborted, 13 marker."""

    tap: FetchTap
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
        "fetches": lambda: FetchTap.over(client),
        "small fetches": lambda: FetchTap.over(client, fetch_bytes=1),
        "fetches ahead": lambda: FetchTap.over(client, ahead=True),
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

    stand_in: Any = FakeTap(logs)
    return Case(stand_in, one, two, cut, lambda tp: None)


REAL = [
    pytest.param(kind, marks=pytest.mark.broker)
    for kind in ("fetches", "small fetches", "fetches ahead")
]


@pytest.fixture(params=[*REAL, "fake"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    found = fake() if request.param == "fake" else real(request, request.param)
    yield found
    found.tap.close()


def taken(
    tap: FetchTap, ends: dict[TopicPartition, int], most_bytes: int = FAR, most_records: int = FAR
) -> dict[TopicPartition, list[bytes | None]]:
    """All up to the ends, in as many takes as it needs; checks each position."""
    found: dict[TopicPartition, list[bytes | None]] = {tp: [] for tp in ends}
    while any(tap.positions[tp] < end for tp, end in ends.items()):
        before = tap.positions
        chunks = tap.take(ends, 10, most_bytes, most_records)
        assert chunks, "a take in time brings something"
        assert {tp: at for tp, at in tap.positions.items() if at != before[tp]} == {
            tp: c.next_position for tp, c in chunks.items()
        }
        for tp, chunk in chunks.items():
            assert before[tp] < chunk.next_position <= ends[tp]
            parts = (chunk, chunk.keys, chunk.values, chunk.timestamps)
            assert {len(part) for part in parts} == {chunk.records}
            got = [value for at, value in WHOLE.items() if before[tp] <= at < chunk.next_position]
            assert chunk.values == got == chunk.held.arrow(False).values.to_pylist()
            assert chunk.bytes == sum(len(part or b"") for part in chunk.keys + chunk.values)
            assert len(chunk) <= most_records
            found[tp] += chunk.values
    return found


def within(start: int, end: int) -> list[bytes | None]:
    return [value for at, value in WHOLE.items() if start <= at < end]


def test_every_range_holds_its_records_and_ends_where_asked(case: Case) -> None:
    for start in range(END + 1):
        for end in range(start, END + 1):
            case.tap.go_to({case.one: start})
            assert taken(case.tap, {case.one: end}) == {case.one: within(start, end)}, (start, end)
            assert case.tap.positions == {case.one: end}


def test_a_log_is_read_on_in_pieces_whose_ends_were_not_known_before(case: Case) -> None:
    case.tap.go_to({case.one: 0, case.two: 1})
    for end in (1, 2, 5, 8, 9, 14):
        before = case.tap.positions
        expected = {tp: within(before[tp], end) for tp in before}
        assert (
            taken(
                case.tap,
                {case.one: max(end, before[case.one]), case.two: max(end, before[case.two])},
            )
            == expected
        )


def test_what_came_together_is_taken_up_to_the_latest_end(case: Case) -> None:
    for latest in (2, 3, 8, END, FAR):
        case.tap.go_to({case.one: 0, case.two: 0})
        asked = {case.one: 2, case.two: 1}
        while any(case.tap.positions[tp] < end for tp, end in asked.items()):
            case.tap.take(asked, 10, latest={case.one: latest})
        assert 2 <= case.tap.positions[case.one] <= latest
        assert case.tap.positions[case.two] == 1
    case.tap.go_to({case.one: 0})
    (chunk,) = case.tap.take({case.one: 1}, 10, latest={case.one: 8}).values()
    assert chunk.values == within(0, chunk.next_position)
    assert taken(case.tap, {case.one: END}) == {case.one: within(chunk.next_position, END)}


def test_bounds_cut_a_chunk_behind_one_record_at_least_and_lose_nothing(case: Case) -> None:
    for bound in ({"most_bytes": 1}, {"most_bytes": 4}, {"most_records": 1}, {"most_records": 2}):
        case.tap.go_to({})
        case.tap.go_to({case.one: 0, case.two: 0})
        assert taken(case.tap, {case.one: END, case.two: END}, **bound) == dict.fromkeys(
            (case.one, case.two), within(0, END)
        )


def test_what_goes_on_goes_on_when_others_come_and_go(case: Case) -> None:
    one, two = case.one, case.two
    case.tap.go_to({one: 0})
    assert taken(case.tap, {one: 2}) == {one: [b"a", b"b"]}
    case.tap.go_to({one: 2, two: 8})
    assert taken(case.tap, {one: 8, two: 9}) == {one: [b"c", b"d"], two: [b"e"]}
    case.tap.go_to({two: 0})
    assert case.tap.positions == {two: 0}
    assert taken(case.tap, {two: 2}) == {two: [b"a", b"b"]}
    case.tap.go_to({two: 2, one: 1})
    assert taken(case.tap, {one: 2, two: 3}) == {one: [b"b"], two: [b"c"]}


def test_only_what_is_asked_for_is_taken(case: Case) -> None:
    case.tap.go_to({case.one: 0, case.two: 0})
    assert taken(case.tap, {case.one: 3}) == {case.one: [b"a", b"b", b"c"]}
    assert case.tap.positions[case.two] == 0
    assert case.tap.take({}, 0) == {}
    assert case.tap.take({case.one: 3, case.two: 0}, 0) == {}, "ends that are reached"
    assert taken(case.tap, {case.two: 1}) == {case.two: [b"a"]}


def test_at_its_end_a_log_gives_nothing_nor_does_an_open_transaction(case: Case) -> None:
    case.tap.go_to({case.one: END})
    assert case.tap.take({case.one: FAR}, 0.3) == {}
    case.open_transaction(case.one)
    assert case.tap.take({case.one: FAR}, 0.3) == {}
    assert case.tap.positions == {case.one: END}


def test_a_log_that_starts_later_is_named_and_the_others_go_on(case: Case) -> None:
    case.cut(case.one, 4)
    case.tap.go_to({case.one: 1, case.two: 0})
    seen: list[bytes | None] = []

    def read_both() -> None:
        for _ in range(20):
            found = case.tap.take({case.two: END, case.one: END}, 10)
            assert list(found) == [case.two]
            seen.extend(found[case.two].values)

    for _ in range(2):
        with pytest.raises(LogStartMovedError, match="outside the log") as moved:
            read_both()
        assert moved.value.partition == case.one
        assert case.tap.positions[case.one] == 1
    case.tap.go_to({case.two: case.tap.positions[case.two]})
    assert seen + taken(case.tap, {case.two: END})[case.two] == within(0, END), "none lost"
    case.tap.go_to({case.one: 4})
    assert taken(case.tap, {case.one: END}) == {case.one: within(4, END)}


def test_an_unknown_topic_brings_nothing(case: Case) -> None:
    absent = TopicPartition(f"{case.one.topic}-absent", 0)
    case.tap.go_to({absent: 0})
    with suppress(RetriableError, FatalError):
        assert case.tap.take({absent: 1}, 0.5) == {}
    assert case.tap.positions == {absent: 0}


def test_a_closed_tap_may_be_used_again(case: Case) -> None:
    case.tap.warm_up({case.one.topic}, 10)
    assert case.tap.positions == {}
    case.tap.go_to({case.one: 0})
    assert taken(case.tap, {case.one: 2}) == {case.one: [b"a", b"b"]}
    case.tap.close()
    assert case.tap.positions == {}
    case.tap.go_to({case.one: 2})
    assert taken(case.tap, {case.one: END}) == {case.one: within(2, END)}
