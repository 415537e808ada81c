"""The pure parts of the benches with several instances: gaps, balance, restored records, and
whether the counts are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.elastic import check_counts
from bench.events import Event, EventFile, View, balanced, balanced_since, first_restores, restored
from bench.gaps import longest_gap
from bench.load.steady_sender import key_index, times_sent
from bench.results import Measurement, summarise, write_json
from bench.topics import key_of
from bench.verify import WrongOutputError


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
def test_balanced_means_even_and_no_copy_too_many_or_too_few(
    views: list[View], standbys: int, is_balanced: bool
) -> None:
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
    write_json(rows, tmp_path / "rows.json")
    written = json.loads((tmp_path / "rows.json").read_text())
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
