"""What readers and metrics take of a program's throughput: paired rounds of the trades with and
without them (`bench.readers.rounds`)."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.readers.rounds import STORE, WINDOWS, Arms, RoundFigures, RunningTrades, paired_rounds
from bench.results import Measurement
from bench.systems import EVERFLOW, ROOT
from everflow.instance.observer import Observer
from everflow.metrics import Metrics

SYMBOLS = 500
READY_S = 120.0
SCRAPE_S = 1.0
RECORDING = ("add", "add_series", "note", "saw", "set")
"""Methods of `Metrics` that a running instance calls."""


class TooCostlyError(RuntimeError):
    """More throughput was lost than the mark allows, or readers were not served."""


@dataclass(frozen=True)
class ReadersPlan:
    """What to run. ``bound``: the share of throughput that may be lost; ``least_reads``: of the
    reads (keys) that were due, those that have to be answered; ``together``: keys of a request. A
    round lasts ten seconds: in three, what drifts is as much as what readers cost."""

    guarantees: Sequence[str] = ("exactly_once_v2",)
    records: int = 6_000_000
    threads: int = 2
    rounds: int = 5
    pages: int = 200
    reads: int = 2_000
    together: int = 50
    bound: float = 0.10
    least_reads: float = 0.98

    @property
    def case(self) -> str:
        """As the rows name it."""
        return f"{self.pages} pages, {self.reads:,} reads/s"


@dataclass(frozen=True)
class MetricsPlan:
    """See `ReadersPlan`."""

    guarantees: Sequence[str] = ("exactly_once_v2",)
    records: int = 2_000_000
    threads: int = 2
    rounds: int = 9
    bound: float = 0.01


def measure_readers(
    plan: ReadersPlan, bootstrap_servers: str, folder: Path
) -> Iterator[Measurement]:
    """Every guarantee; TooCostlyError after the figures of one that misses the mark."""
    for guarantee in plan.guarantees:
        reports: list[dict[str, float]] = []

        def reading(trades: RunningTrades, reports: list[dict[str, float]] = reports) -> Any:
            return readers(trades, plan, reports)

        arms: Arms = {"without readers": lambda _: nullcontext(), plan.case: reading}
        found = _rounds(plan, "readers", guarantee, arms, bootstrap_servers, folder)
        lost = yield from figures("readers", guarantee, found)
        for name, unit in (
            ("reads", "reads/s"),
            ("read_p50", "ms"),
            ("read_p99", "ms"),
            ("events", "events/s"),
            ("scrape_max", "ms"),
            ("errors", "answers"),
            ("processor", "processors"),
        ):
            for report in reports:
                yield Measurement(
                    "readers", plan.case, EVERFLOW, guarantee, name, unit, report[name]
                )
        problem = served_badly(plan, reports)
        if problem or lost > plan.bound:
            raise TooCostlyError(
                f"{guarantee}: {problem or f'{lost:.1%} of throughput lost to readers'}; the mark "
                f"is {plan.bound:.0%}"
            )


def measure_metrics(
    plan: MetricsPlan, bootstrap_servers: str, folder: Path
) -> Iterator[Measurement]:
    """As `measure_readers`: with figures taken and scraped each second, and with neither."""
    for guarantee in plan.guarantees:
        arms: Arms = {"without metrics": lambda _: silent(), "with metrics": scraped}
        found = _rounds(plan, "metrics", guarantee, arms, bootstrap_servers, folder)
        lost = yield from figures("metrics", guarantee, found)
        if lost > plan.bound:
            raise TooCostlyError(
                f"{guarantee}: {lost:.1%} of throughput lost to metrics; the mark is "
                f"{plan.bound:.0%}"
            )


def _rounds(
    plan: ReadersPlan | MetricsPlan,
    bench: str,
    guarantee: str,
    arms: Arms,
    bootstrap_servers: str,
    folder: Path,
) -> Mapping[str, Sequence[RoundFigures]]:
    application = f"bench-{bench}-{guarantee.replace('_', '-')}"
    settings = {"processing_guarantee": guarantee, "num_stream_threads": plan.threads}
    with RunningTrades(bootstrap_servers, application, settings, folder) as trades:
        return paired_rounds(trades, arms, plan.rounds, plan.records)


def figures(
    bench: str, guarantee: str, found: Mapping[str, Sequence[RoundFigures]]
) -> Generator[Measurement, None, float]:
    """Rows of both arms, the first of which is without; the share of throughput that is lost, as
    the median of the pairs."""
    (_, alone), (case, beside) = found.items()
    for name, rounds in found.items():
        for one in rounds:
            for metric, unit, value in (
                ("throughput", "records/s", one.throughput),
                ("processor_per_record", "us", one.processor_us),
            ):
                yield Measurement(bench, name, EVERFLOW, guarantee, metric, unit, value)
    losses = [1 - two.throughput / one.throughput for one, two in zip(alone, beside, strict=True)]
    for loss in losses:
        yield Measurement(bench, case, EVERFLOW, guarantee, "loss", "%", loss * 100)
    return statistics.median(losses)


def served_badly(plan: ReadersPlan, reports: Sequence[Mapping[str, float]]) -> str:
    """Why the readers were not served as they should be; empty where they were."""
    reads = statistics.median(report["reads"] for report in reports)
    if reads < plan.reads * plan.least_reads:
        return f"only {reads:,.0f} of {plan.reads:,} reads/s were answered"
    errors = sum(report["errors"] for report in reports)
    return f"{errors:.0f} answers were errors" if errors else ""


@contextmanager
def readers(
    trades: RunningTrades, plan: ReadersPlan, reports: list[dict[str, float]]
) -> Iterator[None]:
    """They read inside, in a process of their own, and their report follows."""
    streams = trades.streams
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "bench.readers.reading", "--report", str(report)]
        command += ["--query", str(streams.query_address), "--page", str(streams.http_address)]
        command += ["--rate", str(plan.reads), "--together", str(plan.together)]
        command += ["--pages", str(plan.pages)]
        command += [f"--path=/stores/{STORE}/window/{start}" for start in WINDOWS]
        command += [f"--key=S{symbol:03d}" for symbol in range(SYMBOLS)]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "READY":
                raise TooCostlyError("the readers ended before they were served")
            yield
            process.communicate(timeout=READY_S)
            reports.append(json.loads(report.read_text()))
        finally:
            process.kill()
            process.wait()


@contextmanager
def silent() -> Iterator[None]:
    """Nothing is counted and nobody looks."""
    with _without(Metrics, RECORDING), _without(Observer, ("sample",)):
        yield


@contextmanager
def _without(owner: type, names: Sequence[str]) -> Iterator[None]:
    kept: dict[str, Callable[..., Any]] = {name: getattr(owner, name) for name in names}
    for name in names:
        setattr(owner, name, lambda *_args, **_named: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(owner, name, method)


@contextmanager
def scraped(trades: RunningTrades) -> Iterator[None]:
    """`/metrics` is read each second, on a thread."""
    address, stopped = f"http://{trades.streams.http_address}/metrics", threading.Event()

    def scrape() -> None:
        while True:
            began = time.monotonic()
            with urllib.request.urlopen(address, timeout=SCRAPE_S * 10) as answer:
                answer.read()
            if stopped.wait(max(0.0, SCRAPE_S - (time.monotonic() - began))):
                return

    thread = threading.Thread(target=scrape, name="bench-scrapes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(SCRAPE_S * 20)
