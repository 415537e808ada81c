"""What the checkers of `./run chaos` see in hand-made logs, and what its program gives: they must
find each breach, and nothing in a clean log; the schedule is the seed's alone."""

import json
from collections.abc import Mapping, Sequence

import pytest

from chaos.rounds.analyses import (
    Analysis,
    Finding,
    Read,
    by_customer,
    by_pair,
    by_row,
    kept_order,
    list_members,
    listed,
    members,
    numbers,
    pairs,
    read_again,
    versions,
    window_of,
    written_once,
)
from chaos.rounds.books import (
    Report,
    Visible,
    check_changelogs,
    check_dropped,
    check_files,
    fold,
    letter_number,
)
from chaos.rounds.follower import Follower
from chaos.rounds.orders import (
    BEGAN_MS,
    DEAD_KINDS,
    KEYS,
    POISON,
    STEP_MS,
    Kind,
    Order,
    Orders,
    Truth,
    row,
    truth_of,
    version_of,
)
from chaos.rounds.orders import SHOPS as ALL_SHOPS
from chaos.rounds.program import (
    COPIES,
    DEAD,
    INPUTS,
    LISTS,
    ORDERS,
    ORDERS_STORE,
    OUTPUTS,
    PAIRS,
    PAYMENTS,
    PAYMENTS_STORE,
    REGIONS,
    SHOPS,
    SHOPS_STORE,
    WINDOWS_STORE,
    program,
    topic,
)
from chaos.rounds.schedule import AT_A_POINT, NEED_OTHERS, RECORDS, STRIKES, FaultKind, draw
from everflow import serdes
from everflow.state.changelog import pack_value
from everflow.testing import TopologyTestDriver

SHOP = b"shop-1" + (1_000).to_bytes(8, "big")


def kinds(findings: Sequence[Finding]) -> list[Analysis]:
    return [finding.analysis for finding in findings]


def lists(*values: str) -> Mapping[int, Sequence[Read]]:
    return {0: [Read(0, at, SHOP, value.encode(), 1) for at, value in enumerate(values)]}


def copies(*orders: int) -> Mapping[int, Sequence[Read]]:
    return {0: [Read(0, at, b"k", b'{"n": %d}' % n, 1) for at, n in enumerate(orders)]}


def test_a_clean_log_has_no_findings() -> None:
    assert members("out", {1, 2, 3}, [1, 2, 3], lambda n: n % 2) == []
    assert versions("lists", lists("1", "1,2", "1,2,3,4"), window_of)[1] == []
    assert kept_order("out", copies(1, 2, 1 + KEYS, 2 + KEYS)) == []
    assert written_once("log", {0: [Read(0, 1, b"a", b"", 1), Read(0, 2, b"b", b"", 1)]}) == []


@pytest.mark.parametrize(
    ("found", "breach"),
    [
        ([1, 2, 3, 9], Analysis.ABORTED_READ),
        ([1, 3], Analysis.LOST),
        ([1, 2, 2, 3], Analysis.DUPLICATE),
        ([1, 2], Analysis.UNSEEN),
    ],
)
def test_each_breach_of_a_set(found: list[int], breach: Analysis) -> None:
    assert kinds(members("out", {1, 2, 3}, found, lambda n: "line")) == [breach]


def test_a_missing_one_is_lost_only_behind_what_keeps_its_order() -> None:
    assert kinds(members("out", {1, 2}, [2], lambda n: n)) == [Analysis.UNSEEN]


@pytest.mark.parametrize(
    ("values", "breach"),
    [
        (("1,2", "1,3"), Analysis.CYCLE),
        (("1,2", "1,3,2"), Analysis.CYCLE),
        (("1,2", "1"), Analysis.INVERSION),
        (("1,2", "1,2"), Analysis.DUPLICATE),
        ((f"1,{1 + KEYS}", f"1,{1 + KEYS},2,{2 + KEYS},2"), Analysis.INVERSION),
    ],
)
def test_each_breach_of_versions(values: Sequence[str], breach: Analysis) -> None:
    assert breach in kinds(versions("lists", lists(*values), window_of)[1])


def test_orders_of_a_customer_keep_their_order() -> None:
    assert kinds(kept_order("out", copies(1 + KEYS, 2, 1))) == [Analysis.INVERSION]


def paired(*found: tuple[int, int]) -> Mapping[int, Sequence[Read]]:
    return {
        0: [
            Read(0, at, b"k", b'{"order": %d, "payment": %d}' % pair, 1)
            for at, pair in enumerate(found)
        ]
    }


def test_pairs_keep_the_order_of_either_side() -> None:
    one, two, three = 4, 4 + KEYS, 4 + 2 * KEYS
    clean = paired((one, one), (two, one), (one, two), (two, two), (three, two), (two, three))
    assert kept_order("pairs", clean, by_pair) == []
    for breach in (paired((two, one), (one, one)), paired((one, two), (one, one))):
        assert kinds(kept_order("pairs", breach, by_pair)) == [Analysis.INVERSION]


def test_a_row_of_the_table_does_not_go_back() -> None:
    def joined(*versions: int) -> Mapping[int, Sequence[Read]]:
        return {
            0: [
                Read(
                    0, at, b"shop-1", b'{"n": %d, "region": "south %d"}' % (1 + 12 * at, version), 1
                )
                for at, version in enumerate(versions)
            ]
        }

    assert kept_order("regions", joined(0, 0, 3, 15), by_row) == []
    assert kinds(kept_order("regions", joined(0, 15, 3), by_row)) == [Analysis.INVERSION]


def written(store: str, *records: tuple[bytes, bytes]) -> dict[str, Mapping[int, Sequence[Read]]]:
    log = "a-shops" if store == SHOPS_STORE else f"a-{store}-changelog"
    return {log: {0: [Read(0, at, key, value, 1) for at, (key, value) in enumerate(records)]}}


def entry(n: int) -> tuple[bytes, bytes]:
    return b"customer-%d%d" % (n % KEYS, n), b'{"n": %d}' % n


def listed_at(*values: str) -> list[tuple[bytes, bytes]]:
    return [(SHOP + bytes(4), value.encode()) for value in values]


def of_changelog(
    truth: Truth,
    early: dict[str, Mapping[int, Sequence[Read]]],
    late: dict[str, Mapping[int, Sequence[Read]]] | None = None,
) -> Mapping[str, int]:
    report = Report(1, 1)
    check_changelogs("a", truth, early, early if late is None else late, report)
    return report.findings


TWO = [1, 1 + KEYS]


@pytest.mark.parametrize(
    ("found", "breach"),
    [
        (TWO, None),
        ([*TWO, 5], Analysis.ABORTED_READ),
        (TWO[1:], Analysis.LOST),
        (TWO[:1], Analysis.UNSEEN),
        ([*TWO, TWO[1]], Analysis.DUPLICATE),
        (TWO[::-1], Analysis.INVERSION),
    ],
)
@pytest.mark.parametrize("store", [ORDERS_STORE, PAYMENTS_STORE])
def test_a_join_store_s_changelog(store: str, found: list[int], breach: Analysis | None) -> None:
    orders = {n: Order(n, Kind.GOOD) for n in TWO}
    truth = Truth(joined=orders) if store == ORDERS_STORE else Truth(paid=orders)
    told = of_changelog(truth, written(store, *map(entry, found)))
    assert breach is None or breach.value in told
    assert bool(told) == (breach is not None)


@pytest.mark.parametrize(
    ("values", "breach"),
    [
        (["1", "1,2"], None),
        (["1", "1,2,9"], Analysis.ABORTED_READ),
        (["1"], Analysis.UNSEEN),
        (["1", "1,2,2"], Analysis.DUPLICATE),
        (["1", "2,1"], Analysis.CYCLE),
        (["1,2", "1"], Analysis.INVERSION),
    ],
)
def test_the_changelog_of_windows(values: list[str], breach: Analysis | None) -> None:
    truth = Truth(lists={("shop-1", 1_000): {1, 2}})
    told = of_changelog(truth, written(WINDOWS_STORE, *listed_at(*values)))
    assert breach is None or breach.value in told
    assert bool(told) == (breach is not None)


def test_what_compaction_keeps_is_enough() -> None:
    truth = Truth(lists={("shop-1", 1_000): {1, 2}})
    early = written(WINDOWS_STORE, *listed_at("1", "1,2"))
    ((log, found),) = early.items()
    assert of_changelog(truth, early, {log: {0: found[0][1:]}}) == {}
    assert of_changelog(truth, early, {log: {0: found[0][:1]}}) == {"unseen": 1}


def test_the_table_has_its_last_rows() -> None:
    rows = [(shop.encode(), row(shop, 0).encode()) for shop in ALL_SHOPS]
    again, back = (b"shop-1", b"south 13"), (b"shop-1", b"south 1")
    truth = Truth()
    assert of_changelog(truth, written(SHOPS_STORE, *rows)) == {}
    assert of_changelog(truth, written(SHOPS_STORE, *rows, again)) == {"unseen": 1}
    truth.rows["shop-1"] = "south 13"
    assert of_changelog(truth, written(SHOPS_STORE, *rows, again)) == {}
    assert of_changelog(truth, written(SHOPS_STORE, *rows, again, back)) == {
        "inversion": 1,
        "unseen": 1,
    }


def test_what_is_in_a_list_twice_or_not_at_all() -> None:
    window = ("shop-1", 1_000)
    found = list_members("lists", {window: {1, 2, 3}}, {window: [1, 1, 3]})
    assert sorted(kinds(found), key=str) == [Analysis.DUPLICATE, Analysis.UNSEEN]
    assert kinds(list_members("lists", {window: {1}}, {})) == [Analysis.UNSEEN]


def test_an_offset_has_one_value() -> None:
    early, late = copies(1, 2), copies(1, 3)
    assert kinds(read_again("out", early, late)) == [Analysis.TWO_VALUES]
    assert kinds(read_again("out", {0: [*early[0], early[0][0]]}, early)) == [Analysis.INVERSION]


@pytest.mark.parametrize("left", [[1], []], ids=["behind", "at the end"])
def test_what_is_gone_was_not_committed_unless_its_topic_is_compacted(left: list[int]) -> None:
    early = copies(7, 8)
    late = {0: [early[0][at] for at in left]}
    found = read_again("out", early, late)
    assert kinds(found) == [Analysis.ABORTED_READ] * (2 - len(left))
    assert "0@0" in found[0].text
    assert read_again("log", early, late, compacted=True) == []


def test_a_key_that_is_written_twice() -> None:
    reads = {0: [Read(0, 1, b"a", b"", 1), Read(0, 2, b"a", b"", 1)]}
    assert kinds(written_once("log", reads)) == [Analysis.DUPLICATE]


def test_a_changelog_is_folded_up_to_a_position() -> None:
    log = [
        Read(0, 0, b"a", b"1", 5),
        Read(0, 2, b"a", b"2", 6),
        Read(0, 3, b"b", b"3", 7),
        Read(0, 5, b"b", None, 8),
    ]
    assert fold(log, 4) == {b"a": pack_value(6, b"2"), b"b": pack_value(7, b"3")}
    assert fold(log, 6) == {b"a": pack_value(6, b"2")}


def test_a_store_that_is_another_one_was_wiped() -> None:
    report = Report(1, 1)
    check_files({(1, "0_0", "s"): ("s-0", 7)}, {(1, "0_0", "s"): ("s-0", 7)}, report)
    assert report.clean
    check_files({(1, "0_0", "s"): ("s-0", 7)}, {(1, "0_0", "s"): ("s-1", 9)}, report)
    assert (report.stores_wiped, report.clean) == (1, False)


@pytest.mark.parametrize(
    ("probed", "total", "wrong"), [(4, 6, 0), (4, 3, 0), (3, 6, 1), (4, 7, 1), (5, 6, 1)]
)
def test_what_the_counters_of_dropped_records_may_say(probed: int, total: int, wrong: int) -> None:
    """Those of an instance that was killed may be lost; none counts twice."""
    truth = truth_of([Order(n, Kind.LATE) for n in range(3)])
    report = Report(1, 1)
    check_dropped(truth, probed, 4, total, report)
    assert report.dropped_wrong == wrong


def test_the_input_is_its_seeds() -> None:
    first, again = (
        [orders.next(kind) for kind in (None, Kind.UNLUCKY, *[None] * 800)]
        for orders in (Orders(7), Orders(7))
    )
    assert first == again
    assert [order.n for order in first] == list(range(802))
    assert {order.kind for order in first} == {Kind.GOOD, Kind.FILTERED, Kind.LATE, Kind.UNLUCKY}
    assert first != [Orders(8).next(order.kind) for order in first]


def test_a_late_order_is_too_late_for_its_window_and_its_pairs() -> None:
    truth = truth_of([Order(0, Kind.GOOD), Order(KEYS, Kind.LATE)])
    assert truth.copies == {0, KEYS}
    assert truth.lists == {("shop-0", BEGAN_MS): {0}}
    assert (truth.pairs, truth.dropped) == ({(0, 0)}, 2)


def test_a_truth_that_grows_is_the_truth_of_all() -> None:
    drawn = Orders(11)
    orders = [drawn.next(kind) for kind in [*[None] * 700, *DEAD_KINDS, *[None] * 300]]
    grown = Truth()
    for order in orders:
        grown.add(order)
    assert grown == truth_of(orders)
    assert len(grown.pairs) > len(grown.copies) > 800
    assert {pair for pair in grown.pairs if pair[0] > pair[1]}, "an order behind its payment"
    assert {pair for pair in grown.pairs if pair[0] < pair[1]}, "and one before it"


def test_what_is_awaited_is_what_nobody_has_read() -> None:
    truth = truth_of([Order(n, Kind.GOOD) for n in range(3)])
    read: dict[str, dict[int, list[Read]]] = {topic("a", name): {0: []} for name in OUTPUTS}
    follower = Follower("nowhere:1", {})
    follower._reads.update(read)
    visible = Visible(follower, "a")
    missing = visible.awaited(truth)
    assert missing() == "3 of copies, 2 of pairs, 3 of regions, 3 of lists"
    copied, at = read[topic("a", COPIES)][0], visible.awaited(truth)
    copied += copies(0, 1)[0]
    assert missing() == at() == "1 of copies, 2 of pairs, 3 of regions, 3 of lists"
    copied += copies(2)[0]
    for n in range(3):
        window = b"shop-%d" % n + BEGAN_MS.to_bytes(8, "big")
        read[topic("a", LISTS)][0].append(Read(0, n, window, b"%d" % n, 1))
    assert missing() == "2 of pairs, 3 of regions"
    truth.add(Order(3, Kind.UNLUCKY))
    assert visible.awaited(truth)() == "2 of pairs, 3 of regions, 1 of dead"


def test_a_payment_meets_the_orders_of_its_customer_that_are_near() -> None:
    made = [Order(n, Kind.GOOD) for n in range(4 * KEYS)]
    of_the_first = {pair for pair in truth_of(made).pairs if pair[1] % KEYS == 0}
    assert KEYS * STEP_MS < 2_000 < 2 * KEYS * STEP_MS, "its neighbours are near, no others"
    # Numbers that are even are paid; those of one customer are KEYS apart.
    assert of_the_first == {
        (order, paid) for paid in (0, 2 * KEYS) for order in (paid - KEYS, paid, paid + KEYS)
    } - {(-KEYS, 0)}


def test_dead_letters_tell_their_orders() -> None:
    for kind in DEAD_KINDS:
        assert letter_number(Order(1234, kind).value()) == 1234
    assert letter_number(b'{"n":618,"shop":"shop-6"}') == 618
    assert letter_number(b"else") == -1


def test_the_schedule_is_its_seeds() -> None:
    assert draw(40, 5) == draw(40, 5)
    assert draw(40, 5) != draw(40, 6)
    assert draw(40, 5)[:10] == draw(10, 5), "a shorter run begins as a longer one"


def test_every_kind_comes_up_and_none_that_was_not_asked_for() -> None:
    met = {fault.kind for one in draw(30, 1) for fault in one.faults}
    assert met == set(FaultKind)
    asked = [FaultKind.CUT, FaultKind.POISON]
    assert {fault.kind for one in draw(30, 1, asked) for fault in one.faults} == set(asked)


def test_what_is_alone_meets_nothing_that_others_show() -> None:
    met = [fault for one in draw(90, 1, instances=1) for fault in one.faults]
    assert {fault.kind for fault in met} == set(FaultKind) - NEED_OTHERS
    assert not any(fault.early for fault in met)


@pytest.mark.parametrize("seed", range(5))
def test_a_round_meets_an_instance_once(seed: int) -> None:
    for one in draw(50, seed):
        victims = [fault.instance for fault in one.faults if fault.instance]
        assert len(victims) == len(set(victims))
        for fault in one.faults:
            assert bool(fault.records) == (fault.kind in RECORDS)
            assert fault.kind in RECORDS or fault.kind in STRIKES
            assert fault.point or fault.kind not in AT_A_POINT - {FaultKind.KILL_WORKER}


RAW = serdes.bytes_()


@pytest.mark.spark
def test_the_program_gives_what_the_checker_expects() -> None:
    drawn = Orders(3)
    orders = [drawn.next() for _ in range(600)]
    for kind in POISON:
        orders += [drawn.next(kind), *(drawn.next() for _ in range(5))]
    built = program("a")
    with TopologyTestDriver(
        built, emit_every_update=True, dead_letter_topic=topic("a", DEAD)
    ) as driver:
        inputs = {name: driver.create_input_topic(topic("a", name), RAW, RAW) for name in INPUTS}
        for shop in ALL_SHOPS:
            inputs[SHOPS].pipe_input(shop.encode(), row(shop, 0).encode(), 1)
        for order in orders:
            if order.written_row:
                shop, written = order.written_row
                inputs[SHOPS].pipe_input(shop.encode(), written.encode(), order.time_ms)
            inputs[ORDERS].pipe_input(order.key.encode(), order.value(), order.time_ms)
            if order.paid:
                inputs[PAYMENTS].pipe_input(order.key.encode(), order.payment(), order.payment_ms)
        joined, paid = (
            sorted(json.loads(value)["n"] for _, value in driver.get_window_store(store).all())
            for store in (ORDERS_STORE, PAYMENTS_STORE)
        )
        rows = dict(driver.get_key_value_store(SHOPS_STORE).all())
        found = {
            name: [
                Read(0, at, record.key, record.value, record.timestamp)
                for at, record in enumerate(
                    driver.create_output_topic(topic("a", name), RAW, RAW).read_records()
                )
            ]
            for name in OUTPUTS
        }
    truth = truth_of(orders)
    assert truth.late, "it is about something"
    assert len(truth.pairs) > len(truth.copies), "a payment meets several orders"
    assert sorted(numbers(found[COPIES])) == sorted(truth.copies)
    assert sorted(pairs(found[PAIRS])) == sorted(truth.pairs)
    assert sorted(numbers(found[REGIONS])) == sorted(truth.regions)
    for name, places in ((COPIES, by_customer), (REGIONS, by_customer), (PAIRS, by_pair)):
        assert kept_order(name, {0: found[name]}, places) == []
    assert kept_order(REGIONS, {0: found[REGIONS]}, by_row) == []
    versions = {version_of(json.loads(read.value or b"")["region"]) for read in found[REGIONS]}
    assert len(versions) > len(ALL_SHOPS), "rows of the table are written again and again"
    assert (joined, paid, rows) == (sorted(truth.joined), sorted(truth.paid), truth.rows)
    assert sorted(letter_number(read.value) for read in found[DEAD]) == sorted(truth.dead)
    last = {window_of(read.key or b""): listed(read.value or b"") for read in found[LISTS]}
    assert {window: sorted(orders) for window, orders in last.items()} == {
        window: sorted(orders) for window, orders in truth.lists.items()
    }
