"""The parts of the demo: records, the plain figures and their comparison, pauses, what it shows."""

import io
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from everflow import Windowed, serdes
from everflow.instance.describe import TaskStatus
from everflow.instance.tasks.task import TaskRole, TaskState
from everflow.records import TaskId, TopicPartition
from everflow.serdes import SerdeError
from everflow_demo.batch import CarrierDay, Figures, MeanDelay, differences, figures, to_figures
from everflow_demo.data import FLIGHTS_TOTAL, TopicRecords, load_flights, to_records
from everflow_demo.elastic import Pauses, copies, matrix, roles, shared
from everflow_demo.feed import Pace
from everflow_demo.instance import decode, encode
from everflow_demo.report import (
    DIFFERENCES_SHOWN,
    Moves,
    Outcome,
    busiest_routes,
    moves_text,
    pauses,
    verdict,
    worst_carriers,
)
from everflow_demo.topology import BY_CARRIER_DAY_TOPIC, BY_CARRIER_TOPIC, DAY_MS, ROUTES_TOPIC

FLIGHTS = pa.table(
    {
        "carrier": ["UA", "UA", "UA", "AA"],
        "origin": ["EWR", "EWR", "EWR", "JFK"],
        "dest": ["ORD", "ORD", "SFO", "MIA"],
        "dep_delay": pa.array([10.0, -4.0, None, 1.0]),
        "time": pa.array([0, DAY_MS - 1, DAY_MS, DAY_MS], pa.int64()),
    }
)
EXPECTED = Figures(
    carriers={"UA": MeanDelay(2, 3.0), "AA": MeanDelay(1, 1.0)},
    carrier_days={
        CarrierDay("UA", 0): MeanDelay(2, 3.0),
        CarrierDay("AA", DAY_MS): MeanDelay(1, 1.0),
    },
    routes={"EWR-ORD": 2, "EWR-SFO": 1, "JFK-MIA": 1},
)


def test_figures_leave_cancelled_flights_out_of_carriers_but_not_of_routes() -> None:
    assert figures(FLIGHTS) == EXPECTED


def test_means_may_differ_by_rounding_only() -> None:
    nearly = Figures(
        {**EXPECTED.carriers, "UA": MeanDelay(2, 3.0 * (1 + 1e-10))},
        EXPECTED.carrier_days,
        EXPECTED.routes,
    )
    off = Figures(
        {**EXPECTED.carriers, "UA": MeanDelay(2, 3.0 * (1 + 1e-8))},
        EXPECTED.carrier_days,
        EXPECTED.routes,
    )
    assert differences(nearly, EXPECTED) == []
    assert len(differences(off, EXPECTED)) == 1


@pytest.mark.parametrize(
    ("streamed", "line"),
    [
        (
            Figures({"UA": MeanDelay(2, 3.0)}, EXPECTED.carrier_days, EXPECTED.routes),
            "carrier AA: streamed nothing, batch 1 flights, mean 1.0",
        ),
        (
            Figures(
                EXPECTED.carriers,
                {**EXPECTED.carrier_days, CarrierDay("UA", 0): MeanDelay(3, 3.0)},
                EXPECTED.routes,
            ),
            "carrier and day UA on 1970-01-01: streamed 3 flights, mean 3.0, batch 2 flights, "
            "mean 3.0",
        ),
        (
            Figures(EXPECTED.carriers, EXPECTED.carrier_days, {**EXPECTED.routes, "EWR-LAX": 1}),
            "route EWR-LAX: streamed 1, batch nothing",
        ),
    ],
)
def test_a_difference_names_result_and_key(streamed: Figures, line: str) -> None:
    assert differences(streamed, EXPECTED) == [line]


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return load_flights()


def test_all_flights_are_there_with_their_cancelled_ones(flights: pa.Table) -> None:
    assert flights.num_rows == FLIGHTS_TOTAL
    assert flights["dep_delay"].null_count == 8_255


def test_record_time_is_the_scheduled_departure_in_utc(flights: pa.Table) -> None:
    first = flights.slice(0, 1).to_pylist()[0]
    # UA 1545 was scheduled for 05:15 in New York, 10:15 UTC, on 2013-01-01.
    assert (first["carrier"], first["flight"], first["time"]) == ("UA", 1545, 1_357_035_300_000)


def test_records_are_out_of_order_by_less_than_a_day(flights: pa.Table) -> None:
    time = np.asarray(flights["time"])
    lateness = np.maximum.accumulate(time) - time
    assert 0 < lateness.max() < DAY_MS


def test_a_limit_takes_the_first_flights(flights: pa.Table) -> None:
    assert load_flights(10).equals(flights.slice(0, 10))


def test_records_are_keyed_by_carrier_with_json_values() -> None:
    records: TopicRecords = to_records(load_flights(1))
    assert records.keys == [b"UA"]
    assert json.loads(records.values[0]) == {
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "dep_delay": 2.0,
        "arr_delay": 11.0,
        "distance": 1400,
    }
    assert records.timestamps.tolist() == [1_357_035_300_000]


def sent_after(pace: Pace, seconds: float, sent: int = 0, tick_s: float = 0.05) -> int:
    for _ in range(round(seconds / tick_s)):
        sent += pace.due(sent, tick_s)
    return sent


def test_far_from_its_limit_the_rate_is_kept() -> None:
    assert abs(sent_after(Pace(1_000.0, limit=1_000_000), 3.0) - 3_000) <= 1


def test_a_stretch_that_takes_long_slows_down_and_never_passes_its_limit() -> None:
    pace = Pace(1_000.0, limit=20_000)
    after_30_s = sent_after(pace, 30.0)
    after_90_s = sent_after(pace, 60.0, after_30_s)
    assert 10_000 < after_30_s < after_90_s < 20_000
    pace.limit = 60_000
    assert sent_after(pace, 5.0, after_90_s) - after_90_s > 4_000


def test_nothing_is_due_while_the_instances_are_behind() -> None:
    pace = Pace(1_000.0, limit=1_000_000, behind=True)
    assert sent_after(pace, 5.0) == 0
    pace.behind = False
    assert pace.due(0, 0.05) == 50


TP = TopicPartition("flights", 0)


def looks(*found: tuple[float, int, int]) -> Pauses:
    """(time, committed offset, end) of one partition."""
    pauses = Pauses()
    for at_s, committed, end in found:
        pauses.add(at_s, {TP: committed} if committed else {}, {TP: end})
    return pauses


def longest(pauses: Pauses, since_s: float = 0.0, until_s: float = 100.0) -> float:
    found = pauses.longest(since_s, until_s)
    return found[TP].seconds if TP in found else 0.0


def test_the_longest_time_between_two_commits_counts() -> None:
    pauses = looks((0.0, 0, 10), (0.1, 10, 20), (0.5, 20, 30), (0.6, 30, 40))
    assert longest(pauses) == pytest.approx(0.4)


def test_time_without_waiting_records_is_no_pause() -> None:
    pauses = looks((0.0, 10, 10), (5.0, 10, 10), (5.1, 10, 20), (5.3, 20, 20), (9.0, 20, 20))
    assert longest(pauses) == pytest.approx(0.3)  # from the last look that saw nothing waiting


def test_a_pause_that_goes_on_counts_up_to_the_last_look() -> None:
    assert longest(looks((0.0, 10, 20), (1.0, 10, 20), (3.0, 10, 20))) == pytest.approx(3.0)


def test_pauses_belong_to_the_time_that_they_reach_into() -> None:
    pauses = looks((0.0, 10, 20), (1.0, 20, 30), (4.0, 30, 40), (4.2, 40, 50))
    assert longest(pauses, 0.0, 0.9) == pytest.approx(1.0)
    assert longest(pauses, 2.0, 3.0) == pytest.approx(3.0)
    assert longest(pauses, 4.1, 5.0) == pytest.approx(0.2)
    assert longest(pauses, 4.3, 5.0) == 0.0


def test_a_partition_that_never_had_work_is_left_out() -> None:
    assert looks((0.0, 0, 0), (9.0, 0, 0)).longest(0.0, 10.0) == {}


def day_key(carrier: str, day: int) -> bytes:
    return carrier.encode() + (day * DAY_MS).to_bytes(8, "big")


def test_the_last_value_of_a_key_wins_and_null_deletes() -> None:
    figures = to_figures(
        {
            BY_CARRIER_TOPIC: [
                (b"UA", b'{"flights":1,"mean_dep_delay":9.0}'),
                (b"AA", b'{"flights":1,"mean_dep_delay":0.5}'),
                (b"UA", b'{"flights":2,"mean_dep_delay":3.0}'),
            ],
            BY_CARRIER_DAY_TOPIC: [(day_key("UA", 3), b'{"flights":2,"mean_dep_delay":3.0}')],
            ROUTES_TOPIC: [
                (b"EWR-ORD", (1).to_bytes(8, "big")),
                (b"EWR-SFO", (7).to_bytes(8, "big")),
                (b"EWR-SFO", None),
            ],
        }
    )
    assert figures == Figures(
        carriers={"UA": MeanDelay(2, 3.0), "AA": MeanDelay(1, 0.5)},
        carrier_days={CarrierDay("UA", 3 * DAY_MS): MeanDelay(2, 3.0)},
        routes={"EWR-ORD": 1},
    )


def test_the_day_key_is_what_the_serde_writes() -> None:
    key = serdes.time_windowed(serdes.string(), DAY_MS).encode(
        Windowed("UA", 3 * DAY_MS, 4 * DAY_MS)
    )
    assert key == day_key("UA", 3)


def test_foreign_bytes_are_an_error_not_a_figure() -> None:
    with pytest.raises(SerdeError):
        to_figures({ROUTES_TOPIC: [(b"EWR-ORD", b"12")]})


A = TaskId(0, 0)
B = TaskId(1, 0)


def running(role: TaskRole, lag: int | None, rate: float, left_s: float | None, **more: Any) -> Any:
    return TaskStatus(
        role=role, state=TaskState.RUNNING, lag=lag, rate=rate, remaining_s=left_s, **more
    )


ACTIVE = running(TaskRole.ACTIVE, 3, 0.0, 0.0)
RESTORING = TaskStatus(
    role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=60, rate=100.0, remaining_s=0.6, copied=40
)
STANDBY = running(TaskRole.STANDBY, 0, 5.0, 0.0, copied=70)
WARM_UP = running(TaskRole.WARMUP, 60, 100.0, 0.6, copied=40)


def test_a_status_line_comes_through_and_other_lines_are_nobodys() -> None:
    tasks = {
        A: ACTIVE,
        B: WARM_UP,
        TaskId(12, 345): TaskStatus(role=TaskRole.ACTIVE, state=TaskState.CREATED, lag=None),
    }
    assert decode(encode("RUNNING", tasks) + "\n") == ("RUNNING", tasks)
    assert decode("OpenJDK 64-Bit Server VM warning\n") is None


def test_the_matrix_has_a_row_for_each_instance() -> None:
    instances = {"first": {A: ACTIVE, B: RESTORING}, "second": {B: STANDBY}}
    rows = ["        0_0      1_0", "first   active   restore", "second           standby"]
    assert matrix(instances, [A, B], {}) == rows
    assert matrix(instances, [A, B], {A: 0.25, B: 12.0}) == [*rows, "pause   0.25 s   12.00 s"]


def test_what_is_waited_for_is_told_with_its_progress() -> None:
    beginning = running(TaskRole.WARMUP, None, 0.0, None, copied=0)
    assert copies({"first": {A: ACTIVE, B: STANDBY}, "second": {A: beginning, B: WARM_UP}}) == [
        "second: warm-up of 1_0 40 %, 100 records/s, 0.6 s left"
    ]


def test_progress_alone_is_no_change_of_roles() -> None:
    further = running(TaskRole.WARMUP, 10, 100.0, 0.1, copied=90)
    assert roles({"first": {A: WARM_UP}}) == roles({"first": {A: further}})
    assert roles({"first": {A: WARM_UP}}) != roles({"first": {A: STANDBY}})
    assert roles({"first": {A: ACTIVE}}) != roles({"second": {A: ACTIVE}})


def test_shared_means_that_all_work_and_nobody_waits() -> None:
    assert shared({"first": {A: ACTIVE, B: STANDBY}, "second": {B: ACTIVE}}, [A, B])
    assert not shared({"first": {A: ACTIVE, B: ACTIVE}, "second": {B: STANDBY}}, [A, B])
    assert not shared({"first": {A: ACTIVE}, "second": {B: RESTORING}}, [A, B])
    assert not shared({"first": {A: ACTIVE, B: WARM_UP}, "second": {B: ACTIVE}}, [A, B])
    assert not shared({"first": {A: ACTIVE}, "second": {A: ACTIVE}}, [A, B])


SHOWN = Figures(
    carriers={"UA": MeanDelay(2, 3.0), "F9": MeanDelay(1, 20.25)},
    carrier_days={CarrierDay("UA", 0): MeanDelay(2, 3.0)},
    routes={"EWR-ORD": 2, "JFK-LAX": 1_000},
)
MOVES = Moves(
    instances=2,
    rebalances=5,
    join_s=12.34567,
    leave_s=1.5,
    before={TaskId(0, 0): 0.25, TaskId(0, 1): 0.5},
    meanwhile={TaskId(0, 0): 0.75, TaskId(0, 1): 1.25},
    moved=frozenset({TaskId(0, 1)}),
)


def outcome(*differences: str, moves: Moves | None = None) -> Outcome:
    return Outcome(
        records_in=3,
        guarantee="exactly_once_v2",
        elapsed_s=1.23456,
        streamed=SHOWN,
        differences=differences,
        moves=moves,
    )


def test_differences_are_shown_and_the_rest_counted() -> None:
    lines = verdict(outcome(*(f"route {n}" for n in range(DIFFERENCES_SHOWN + 5)))).splitlines()
    assert lines[1] == "matches batch: no"
    assert lines[2] == "  route 0"
    assert lines[-1] == "  and 5 more differences"


def test_json_has_the_promised_keys() -> None:
    assert outcome("x").to_json() == {
        "records_in": 3,
        "guarantee": "exactly_once_v2",
        "matches_batch": False,
        "elapsed_s": 1.235,
        "carriers": {
            "F9": {"flights": 1, "mean_dep_delay": 20.25},
            "UA": {"flights": 2, "mean_dep_delay": 3.0},
        },
        "routes": {"EWR-ORD": 2, "JFK-LAX": 1_000},
    }


def test_json_of_two_instances_has_the_same_keys_and_more() -> None:
    alone, moved = outcome().to_json(), outcome(moves=MOVES).to_json()
    assert {key: moved[key] for key in alone} == alone
    assert {key: value for key, value in moved.items() if key not in alone} == {
        "instances": 2,
        "rebalances": 5,
        "join_s": 12.346,
        "leave_s": 1.5,
        "longest_pause_s": 0.75,
        "longest_pause_moved_s": 1.25,
        "longest_pause_alone_s": 0.5,
        "tasks_moved": ["0_1"],
    }


def test_pauses_tell_tasks_that_stayed_from_those_that_moved() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(pauses(MOVES))
    rows = [
        line.split("│")[1:5] for line in console.export_text().splitlines() if line.startswith("│")
    ]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["0_0", "0.25", "0.75", "stayed"],
        ["0_1", "0.50", "1.25", "moved there and back"],
    ]
    assert re.search(r"0\.50 s with one .*0\.75 s .* stayed, 1\.25 s .* moved", moves_text(MOVES))


def test_tables_rank_by_delay_and_by_flights() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(worst_carriers(SHOWN), busiest_routes(SHOWN))
    text = console.export_text()
    assert text.index("F9") < text.index("UA")
    assert text.index("JFK-LAX") < text.index("EWR-ORD")
    assert "20.25" in text
    assert "1,000" in text
