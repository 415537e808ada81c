"""The pure parts of the benches: medians and rows, gaps and balance, bounds, and matching a count
with the record that caused it."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import run
from bench.backlog.measure import BacklogPlan, figures
from bench.backlog.peaks import MIB
from bench.backlog.program import rows
from bench.elastic import check_counts
from bench.events import Event, EventFile, View, balanced, balanced_since, first_restores, restored
from bench.fleet.worker_lost import address_of, note_of, ready, resumed_after, view_of
from bench.gaps import Gap, longest_gap
from bench.latency import _latencies
from bench.load.latency_schedule import Phase, key_at, number_of, schedule
from bench.load.steady_sender import key_index, times_sent
from bench.programs.catalogue import PROGRAMS
from bench.readers.measure import ReadersPlan, served_badly, silent
from bench.readers.measure import figures as reader_figures
from bench.readers.reading import Counted, Exchange, report_of
from bench.readers.rounds import WINDOWS, RoundFigures, expected_turnover
from bench.rebalances import Migration, migrations, rebalance_lines, records_in
from bench.results import Measurement, Results, read_json, summarise, write_json
from bench.systems import EVERFLOW_UNGUARDED, Job, everflow_launch, turns
from bench.topics import json_value, key_of
from bench.verify import WrongOutputError
from everflow.config import StreamsConfig
from everflow.memory import least_budget
from everflow.metrics import Metrics


def measurement(value: float, system: str = "everflow") -> Measurement:
    return Measurement(
        "throughput", "count", system, "exactly_once_v2", "throughput", "records/s", value
    )


def test_a_row_holds_the_median_and_all_runs_of_one_figure() -> None:
    rows = summarise(
        [measurement(3.0), measurement(9.0, "kafka-streams"), measurement(1.0), measurement(2.0)]
    )
    assert [(row.system, row.value, row.runs) for row in rows] == [
        ("everflow", 2.0, (3.0, 1.0, 2.0)),
        ("kafka-streams", 9.0, (9.0,)),
    ]


def rebalance(instance: str, began_ms: int, **more: Any) -> dict[str, Any]:
    tasks: dict[str, Any] = {"gained": [], "lost": []}
    times: dict[str, Any] = {"gaps_ms": {}, "first_commits": {}, "last_commits": {}}
    return {
        "instance": instance,
        "began_ms": began_ms,
        "duration_ms": None,
        **tasks,
        **times,
        **more,
    }


def test_a_move_s_gap_is_between_the_records_of_two_instances(tmp_path: Path) -> None:
    gave = rebalance("one", 5_000, lost=["0_1", "0_2"], last_commits={"0_1": 5_100})
    took = rebalance(
        "two",
        5_200,
        gained=["0_1", "0_2", "0_3"],
        first_commits={"0_1": 5_350, "0_2": 5_400, "0_3": 5_400},
        gaps_ms={"0_1": 120.0, "0_2": None},
        duration_ms=180.0,
    )
    later = rebalance("two", 5_900, first_commits={"0_4": 6_000})
    assert migrations(
        [
            rebalance("one", 5_000, lost=["0_4"], last_commits={"0_4": 5_100}),
            rebalance("two", 5_200, gained=["0_4"]),
            later,
        ]
    ) == [Migration("0_4", "one", "two", 5.2, 0.9)]
    for name, record, torn in (("b", took, '{"half'), ("a", gave, "")):
        folder = tmp_path / name / "app" / "logs"
        folder.mkdir(parents=True)
        (folder / "rebalances.jsonl").write_text(json.dumps(record) + "\n" + torn)
    records = records_in([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
    assert [record["instance"] for record in records] == ["one", "two"]
    assert migrations(records) == [
        Migration("0_1", "one", "two", 5.2, 0.25),
        Migration("0_2", "one", "two", 5.2, None),
    ]
    first, *tasks = rebalance_lines(records, 5.1)
    assert "1 rebalance, the longest 0.18 s" in first
    assert first.endswith(" 0.12 s")
    assert tasks == [
        "  task 0_1: one to two, gap 0.25 s",
        "  task 0_2: one to two, gap not known",
    ]
    assert rebalance_lines([], 0.0) == []


@pytest.mark.parametrize("number", [0, 6, 7, 8, 700])
def test_key_and_count_name_the_record(number: int) -> None:
    keys = 7
    count = len([earlier for earlier in range(number + 1) if earlier % keys == number % keys])
    assert number_of(key_at(number, keys), count, keys) == number


@pytest.mark.parametrize("number", [0, 1_999_999])
def test_input_values_have_100_bytes(number: int) -> None:
    assert len(json_value(number)) == 100


def test_every_rate_is_warmed_up_and_idleness_comes_last() -> None:
    phases = schedule([100], warm_up_s=2.0, measured_s=3.0, idle_s=70.0)
    assert phases == [
        Phase(None, 200, 100),
        Phase("100", 300, 100),
        Phase("after 70 s idle", 10, 10.0, pause_before_s=70.0),
    ]


PHASES = [Phase(None, 1, 100), Phase("100", 2, 100)]
SENT_NS = np.array([1_000_000, 2_000_000, 3_000_000], dtype=np.int64)


def test_latencies_leave_the_warm_up_out() -> None:
    seen = np.array([[2, 9_000_000], [0, 5_000_000], [1, 6_000_000]], dtype=np.int64)
    assert [(case, list(ms)) for case, ms in _latencies(PHASES, SENT_NS, seen)] == [
        ("100", [4.0, 6.0])
    ]


@pytest.mark.parametrize(
    "seen", [[[0, 5], [1, 6]], [[0, 5], [1, 6], [2, 7], [2, 8]]], ids=["missing", "read twice"]
)
def test_a_missing_or_repeated_count_voids_the_figures(seen: list[list[int]]) -> None:
    with pytest.raises(WrongOutputError):
        list(_latencies(PHASES, SENT_NS, np.array(seen, dtype=np.int64)))


def test_without_guards_is_the_same_start_but_for_two_settings() -> None:
    job = Job("b:1", "app", "exactly_once_v2", 2, "in", "out", Path("state"))
    guarded, unguarded = everflow_launch(job), everflow_launch(job, EVERFLOW_UNGUARDED)
    assert unguarded.command[: len(guarded.command)] == guarded.command
    more = unguarded.command[len(guarded.command) :]
    assert more[::2] == ["--set", "--set"]
    settings = dict(one.split("=") for one in more[1::2])
    assert settings.keys() == {"consumer.check.crcs", "max.memory.bytes"}
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "b:1", **settings})
    assert config.max_memory_bytes > 1 << 40
    assert config.consumer()["check.crcs"] == "false"


def test_systems_take_turns_from_either_end() -> None:
    launchers = {"kafka-streams": everflow_launch, "everflow": everflow_launch}
    taken = [(guarantee, run, system) for guarantee, run, system, _ in turns("ab", 2, launchers)]
    assert taken == [
        ("a", 0, "kafka-streams"),
        ("a", 0, "everflow"),
        ("a", 1, "everflow"),
        ("a", 1, "kafka-streams"),
        ("b", 0, "kafka-streams"),
        ("b", 0, "everflow"),
        ("b", 1, "everflow"),
        ("b", 1, "kafka-streams"),
    ]


@pytest.mark.parametrize(
    ("arrivals", "gap"),
    [
        (
            [1.0, 9.0, 12.0, 19.0, 30.0],
            7.0,
        ),  # 1..9 ended before the start, 19..30 counts up to the end only
        ([9.5, 15.0, 18.0], 5.5),  # from the last one before the start
        ([9.5, 11.0], 9.0),  # up to the end
        ([12.0, 20.0], 8.0),
        ([], 10.0),
    ],
)
def test_the_longest_gap_reaches_into_the_span(arrivals: list[float], gap: float) -> None:
    found = longest_gap(arrivals, 10.0, 20.0)
    assert found.seconds == pytest.approx(gap)
    assert found.began_s in (10.0, *arrivals)


def view(active: str, standby: str = "", warmup: str = "", *, running: bool = True) -> View:
    return View(
        running, frozenset(active.split()), frozenset(standby.split()), frozenset(warmup.split())
    )


@pytest.mark.parametrize(
    ("views", "standbys", "is_balanced"),
    [
        ([view("a b"), view("c d")], 0, True),
        ([view("a b c"), view("d")], 0, False),
        ([view("a b"), view("c")], 0, False),
        ([view("a b"), view("b c")], 0, False),
        ([view("a b"), view("c d", running=False)], 0, False),
        ([view("a b"), view("c d", warmup="a")], 0, False),
        ([view("a b"), view("c d", standby="a")], 0, False),
        ([view("a b", "c d"), view("c d", "a b")], 1, True),
        ([view("a b", "c d"), view("c d", "a")], 1, False),
        ([view("a b", "a c"), view("c d", "b d")], 1, False),
    ],
)
def test_balanced_is_even_and_whole(views: list[View], standbys: int, is_balanced: bool) -> None:
    assert balanced(views, tasks=4, standbys=standbys) is is_balanced


def tasks(at_s: float, active: list[str], standby: list[str] | None = None) -> Event:
    return Event(at_s, "tasks", {"active": active, "standby": standby or [], "warmup": []})


def test_balanced_since_the_last_time_it_became_so() -> None:
    running = Event(1.0, "state", {"state": "RUNNING"})
    first = [
        running,
        tasks(2.0, ["0_0", "0_1"]),
        tasks(5.0, ["0_0"]),
        tasks(8.0, []),
        tasks(9.0, ["0_0"]),
    ]
    second = [running, tasks(3.0, []), tasks(6.0, ["0_1"]), Event(7.0, "lag", {"records": 3})]
    assert balanced_since([first[:3], second], 2, 0) == 6.0
    assert balanced_since([first[:4], second], 2, 0) is None
    assert balanced_since([first, second], 2, 0) == 9.0


def test_events_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "events"
    events = EventFile(path)
    assert events.read() == []
    line = json.dumps({"at_ms": 1500, "event": "lag", "records": 7}) + "\n"
    path.write_text(line + line[:10])
    assert [(event.at_s, event.kind, event.fields["records"]) for event in events.read()] == [
        (1.5, "lag", 7)
    ]
    with path.open("a") as file:
        file.write(line[10:])
    assert len(events.read()) == 2
    assert events.first("lag") is not events.last("lag")


def test_restored_from_the_first_start_to_the_last_end() -> None:
    events = [
        Event(1.0, "restore_start", {"partition": 0}),
        Event(2.0, "restore_end", {"partition": 0, "records": 10}),
        Event(2.0, "restore_start", {"partition": 1}),
        Event(5.0, "restore_end", {"partition": 1, "records": 20}),
    ]
    assert restored(events[:3], 2) is None
    assert restored(events, 2) == (30, 4.0)


def test_every_key_is_sent_once_before_one_is_sent_again() -> None:
    keys = 1_000
    assert sorted(key_index(number, keys) for number in range(keys)) == list(range(keys))
    sent = times_sent(keys + 3, keys)
    assert sent.sum() == keys + 3
    assert {key_index(number, keys) for number in range(3)} == set(
        (sent == 2).nonzero()[0].tolist()
    )


KEYS = 10
RIGHT = {key_of(index): count + 1 for index, count in enumerate(times_sent(13, KEYS).tolist())}


def test_right_counts_pass() -> None:
    check_counts(RIGHT, [], 13, KEYS, exactly=True)


@pytest.mark.parametrize("change", [-1, 1])
def test_lost_and_doubled_records_void_the_figures(change: int) -> None:
    wrong = {**RIGHT, key_of(4): RIGHT[key_of(4)] + change}
    with pytest.raises(WrongOutputError, match="1 counts are wrong"):
        check_counts(wrong, [], 13, KEYS, exactly=True)


def test_at_least_once_may_count_twice_but_not_lose() -> None:
    check_counts({**RIGHT, key_of(4): 99}, ["fell back"], 13, KEYS, exactly=False)
    with pytest.raises(WrongOutputError):
        check_counts({**RIGHT, key_of(4): 1}, [], 13, KEYS, exactly=False)
    with pytest.raises(WrongOutputError, match="fell back"):
        check_counts(RIGHT, ["fell back"], 13, KEYS, exactly=True)


def test_a_note_is_written_only_where_there_is_one(tmp_path: Path) -> None:
    figures = ("scaleout", "case", "kafka-streams", "exactly_once_v2")
    cut = Measurement(*figures, "time_to_balance", "s", 660.0, "a lower bound")
    rows = summarise([cut, cut, Measurement(*figures, "gap_max", "s", 1.0)])
    done = Results(
        "./run bench scaleout", "2026-11-29", {"loop_ms": 90.0}, {"spark": "4.3.0"}, rows
    )
    write_json(done, tmp_path / "rows.json")
    assert read_json(tmp_path / "rows.json") == done
    written = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert written[0]["note"] == "a lower bound"
    assert set(written[1]) == {
        "bench",
        "case",
        "system",
        "guarantee",
        "metric",
        "value",
        "unit",
        "runs",
    }


def test_of_a_task_warmed_up_and_taken_over_the_warm_up_counts() -> None:
    def event(at_s: float, kind: str, partition: int, records: int = 0) -> Event:
        return Event(at_s, f"restore_{kind}", {"partition": partition, "records": records})

    events = [event(1.0, "start", 0), event(1.0, "start", 1), event(2.0, "end", 0, 10)]
    events += [event(2.5, "start", 0), event(2.6, "end", 0)]
    assert restored(first_restores(events), 2) is None
    events += [event(3.0, "end", 1, 20), event(4.0, "start", 1), event(9.0, "end", 1)]
    assert restored(first_restores(events), 2) == (30, 2.0)


def status(
    active: str, standby: str, *, lag: int | None = 0, restoring: str = ""
) -> dict[str, Any]:
    roles = (("active", "RUNNING", active), ("active", "RESTORING", restoring))
    tasks = [
        {"task": task, "role": role, "state": state, "lag": 10**6}
        for role, state, names in roles
        for task in names.split()
    ]
    copies = [
        {"task": task, "role": "standby", "state": "RUNNING", "lag": lag}
        for task in standby.split()
    ]
    return {"state": "RUNNING", "tasks": tasks + copies}


FIRST, SECOND, THIRD = (
    status("0_0 0_1", "0_2 0_4"),
    status("0_2 0_3", "0_0 0_5"),
    status("0_4 0_5", "0_1 0_3"),
)


def test_ready_once_each_task_has_a_hot_standby() -> None:
    assert ready([FIRST, SECOND, THIRD], 6)
    assert not ready([FIRST, SECOND], 6), "one does not answer yet"
    for wrong in (
        status("0_4 0_5", "0_1"),
        status("0_4 0_5", "0_1 0_3", lag=10_001),
        status("0_4 0_5", "0_1 0_3", lag=None),
        status("0_4", "0_1 0_3", restoring="0_5"),
        {**THIRD, "state": "REBALANCING"},
        {"state": "STARTING"},
    ):
        assert not ready([FIRST, SECOND, wrong], 6)


def test_warm_ups_are_no_standbys() -> None:
    seen = view_of(
        {"state": "RUNNING", "tasks": [{"task": "0_1", "role": "warm-up", "state": "RUNNING"}]}
    )
    assert (seen.running, seen.warmup, seen.standby) == (True, {"0_1"}, frozenset())


def test_the_address_of_a_slot_is_on_its_command_line() -> None:
    line = ["python", "-c", "main", "run", "app:b", "--state-dir", "/h/fleet/app/slot-2/state"]
    assert address_of([*line, "--set", "http.listen=127.0.0.1:7"]) == "127.0.0.1:7"
    assert address_of(["java", "-Dhttp.listen=127.0.0.1:7"]) is None
    assert address_of(line) is None


def test_a_task_is_away_until_the_end_of_its_partitions_gap() -> None:
    """The gap begins with the last output before the loss, or the last that was on its way."""
    gaps = {0: Gap(7.5, 99.75), 1: Gap(6.0, 100.25), 2: Gap(0.25, 104.0)}
    assert resumed_after(gaps, 100.0, ["0_0", "0_1"]) == {"0_0": 7.25, "0_1": 6.25}


def test_a_busy_machine_is_told() -> None:
    assert note_of(0.3) == ""
    assert "1.9 s without" in note_of(1.87)


@pytest.mark.parametrize(
    ("given", "cases", "systems"),
    [
        ([], ("kill -9", "clean stop"), ("kafka-streams", "everflow")),
        (["--cases", "fleet-worker"], ("fleet-worker",), ("everflow",)),
        (
            ["--cases", "kill -9,fleet-worker"],
            ("kill -9", "fleet-worker"),
            ("kafka-streams", "everflow"),
        ),
    ],
)
def test_the_case_of_the_fleet_is_everflows_alone(
    given: list[str], cases: tuple[str, ...], systems: tuple[str, ...]
) -> None:
    options = run._options(["failover", *given])
    assert (options.cases, options.systems) == (cases, systems)


KINDS = ("driver", "jvm", "workers", "instance")


def test_a_process_that_took_more_than_its_bound_is_named_with_both() -> None:
    plan, beyond = BacklogPlan(memory=least_budget(2)), list[str]()
    within = {kind: plan.bounds.of(kind) for kind in KINDS}
    assert len(list(figures(plan, "records", "exactly_once_v2", within, beyond))) == len(KINDS)
    assert beyond == []
    peaks = {**within, "workers": within["workers"] + MIB}
    list(figures(plan, "records", "exactly_once_v2", peaks, beyond))
    bound = within["workers"] // MIB
    assert beyond == [f"records, exactly_once_v2, workers: {bound + 1:,} of {bound:,} MiB"]


def test_what_all_processes_may_take_is_the_whole() -> None:
    for memory in (least_budget(2), 2 * least_budget(2), 1 << 40):
        bounds = BacklogPlan(memory=memory).bounds
        parts = bounds.of("driver") + bounds.of("jvm") + 2 * bounds.of("workers")
        assert memory - 4 <= parts <= memory


def test_records_are_about_as_large_as_asked_for() -> None:
    for size in (200, 1_000, 20_000):
        for _, value in rows(3, size, 10):
            assert 0.8 * size < len(value) < 1.1 * size


def rounds(*seconds: float) -> list[RoundFigures]:
    used = {"driver": 1.0, "jvm": 0.5, "workers": 0.5}
    return [RoundFigures(1_000, one, used) for one in seconds]


def test_the_loss_is_the_median_of_the_pairs() -> None:
    def lost() -> Iterator[Measurement]:
        found = {"alone": rounds(1, 2, 4), "read": rounds(1, 2.5, 8)}
        share = yield from reader_figures("readers", "g", found)
        assert share == pytest.approx(0.2)

    rows = list(lost())
    losses = [row.value for row in rows if row.metric == "loss"]
    assert losses == pytest.approx([0.0, 20.0, 50.0])
    assert {row.case for row in rows if row.metric == "loss"} == {"read"}
    assert {row.value for row in rows if row.metric == "processor_per_record"} == {2_000.0}


def test_readers_that_were_not_served_are_told() -> None:
    plan = ReadersPlan(reads=2_000)
    assert served_badly(plan, [{"reads": 1_999.0, "errors": 0.0}]) == ""
    assert "only 1,200 of 2,000" in served_badly(plan, [{"reads": 1_200.0, "errors": 0.0}])
    assert "1 answers were errors" in served_badly(plan, [{"reads": 2_000.0, "errors": 1.0}])


def test_every_record_of_every_round_is_expected_once() -> None:
    records = 3_000
    trades = [json.loads(PROGRAMS["trades"].row(number)[1]) for number in range(records)]
    shares = sum(trade["size"] for trade in trades if trade["price"] > 0)
    found = expected_turnover([records, records])
    assert sum(of_window for _, of_window in found.values()) == 2 * shares
    assert {start for _, start in found} == set(WINDOWS)


def test_nothing_is_counted_while_it_is_silent() -> None:
    metrics = Metrics()
    with silent():
        metrics.add("a", 1.0)
        metrics.add_series("b", {("c",): 1.0})
    assert metrics.snapshot() == {}
    assert metrics.series() == {}
    metrics.add("a", 1.0)
    assert metrics.snapshot() == {"a": 1.0}


def test_an_answer_is_counted_when_it_is_whole() -> None:
    here, there = socket.socketpair()
    with here, there:
        exchange = Exchange(here)
        exchange.ask(b"GET / HTTP/1.1\r\n\r\n", 1.0)
        assert there.recv(100).startswith(b"GET /")
        there.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n")
        assert exchange.answered() == 0
        there.sendall(b"\r\nab")
        assert exchange.answered() == 0
        there.sendall(b"cd")
        assert exchange.answered() == 404
    counted = Counted(latencies_ms=[1.0, 2.0, 3.0], scrapes_ms=[5.0, 4.0], errors=2)
    report = report_of(counted)
    assert (report["read_p50"], report["scrape_max"], report["errors"]) == (2.0, 5.0, 2)
