"""The benches of readers and of metrics: what is lost, who was not served, what must come out."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from bench.programs.catalogue import PROGRAMS
from bench.readers.measure import ReadersPlan, figures, served_badly, silent
from bench.readers.reading import Counted, Exchange, report_of
from bench.readers.rounds import WINDOWS, RoundFigures, expected_turnover
from bench.results import Measurement
from everflow.metrics import Metrics


def rounds(*seconds: float) -> list[RoundFigures]:
    used = {"driver": 1.0, "jvm": 0.5, "workers": 0.5}
    return [RoundFigures(1_000, one, used) for one in seconds]


def test_the_loss_is_the_median_of_the_pairs() -> None:
    def lost() -> Iterator[Measurement]:
        found = {"alone": rounds(1, 2, 4), "read": rounds(1, 2.5, 8)}
        share = yield from figures("readers", "g", found)
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
