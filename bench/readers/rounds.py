"""The trades, exactly once, in rounds: an instance of this process rests while a round's records
are sent, then it drains them, and how fast is measured.

One instance serves all rounds, so that the JVM, the workers and the page cache are as warm in one
as in the other; it rests by `KafkaStreams.pause`.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.memory import process_tree
from bench.memory_growth import kind_of
from bench.programs.catalogue import BEGIN_MS, MINUTE_MS, PROGRAMS
from bench.programs.left import Leftovers
from bench.topics import (
    PARTITIONS,
    GroupProgress,
    create_topics,
    delete_topics,
    end_offsets,
    produce_all,
    warm_broker,
)
from bench.verify import WrongOutputError
from everflow import KafkaStreams
from everflow.client import QueryClient
from everflow.instance.client_state import ClientState
from everflow.testing import wait_until

PROGRAM = PROGRAMS["trades"]
STORE = "turnover"
WINDOWS = tuple(BEGIN_MS + minute * MINUTE_MS for minute in range(2))
"""Those that the records of a round lie in, and so the records of all rounds: none is late."""
DRAWN = 90_000
"""Records after which they repeat themselves, so that loading does not take longer than work."""
POLL_S = 0.05
TIMEOUT_S = 300.0
INSTANCE = ("driver", "jvm", "workers")

Arms = Mapping[str, Callable[["RunningTrades"], AbstractContextManager[object]]]


@dataclass(frozen=True)
class RoundFigures:
    """``processor_s``: of each kind of process of the instance while it drained."""

    records: int
    seconds: float
    processor_s: Mapping[str, float]

    @property
    def throughput(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def processor_us(self) -> float:
        """Of the whole instance, a record."""
        return sum(self.processor_s.values()) / self.records * 1e6


class RunningTrades:
    """The instance and its topics. Use as a context manager, on one thread."""

    def __init__(
        self, bootstrap_servers: str, application_id: str, settings: Mapping[str, Any], folder: Path
    ) -> None:
        self.bootstrap_servers, self.application_id = bootstrap_servers, application_id
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self._input, output = f"{application_id}-input", f"{application_id}-output"
        warm_broker(self._admin, bootstrap_servers)
        create_topics(self._admin, [self._input, output], PARTITIONS)
        os.environ[INPUT_TOPIC_VARIABLE], os.environ[OUTPUT_TOPIC_VARIABLE] = self._input, output
        from bench.programs.topologies import trades

        self.streams = KafkaStreams(
            trades().build(),
            application_id=application_id,
            bootstrap_servers=bootstrap_servers,
            state_dir=str(folder / application_id),
            http_listen="127.0.0.1:0",
            query_listen="127.0.0.1:0",
            **settings,
        )
        self._sent = 0

    def __enter__(self) -> RunningTrades:
        self.streams.start()
        wait_until(
            lambda: self.streams.error or self.streams.state is ClientState.RUNNING,
            TIMEOUT_S,
            "RUNNING",
        )
        self._check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.streams.close()
        delete_topics(self._admin, self.application_id)

    def load(self, records: int) -> None:
        """Send a round's records while the instance rests; it rests on."""
        self.streams.pause()
        rows = itertools.islice(itertools.cycle(map(PROGRAM.row, range(DRAWN))), records)
        produce_all(self.bootstrap_servers, self._input, rows, PROGRAM.times_ms(records))
        self._sent += records

    def drain(self, records: int) -> RoundFigures:
        """Let it work until nothing is left of the round that was loaded."""
        ends = end_offsets(self.bootstrap_servers, self._input)
        progress = GroupProgress(self.bootstrap_servers, self.application_id, self._input, ends)
        left = Leftovers(self.bootstrap_servers, self.application_id)
        with closing(progress), closing(left):
            total, before = progress.total_records(), processor_by_kind()
            began = time.monotonic()
            self.streams.resume()
            while progress.committed_records() < total or left.any():
                self._check()
                if time.monotonic() - began > TIMEOUT_S:
                    raise WrongOutputError(f"a round was not done after {TIMEOUT_S:.0f} s")
                time.sleep(POLL_S)
            seconds = time.monotonic() - began
        after = processor_by_kind()
        used = {kind: after[kind] - before[kind] for kind in INSTANCE}
        return RoundFigures(records, seconds, used)

    def verify(self, rounds: Sequence[int]) -> None:
        """WrongOutputError unless the store holds each record of the rounds (their sizes) once."""
        assert self.streams.query_address is not None
        expected = expected_turnover(rounds)
        with QueryClient(self.streams.query_address) as client:
            found = {
                (window.key, window.start): (value["amount"], value["shares"])
                for window, value in client.fetch_all(STORE)
            }
        if found != expected:
            wrong = sum(
                found.get(place) != expected.get(place) for place in found.keys() | expected.keys()
            )
            raise WrongOutputError(
                f"{wrong} of {len(expected)} windows of the trades differ from their records"
            )

    def _check(self) -> None:
        if self.streams.error is not None:
            raise self.streams.error


def expected_turnover(rounds: Sequence[int]) -> dict[tuple[str, int], tuple[float, int]]:
    """Symbol and window to the sums of amounts and shares of rounds of these sizes."""
    trades = [json.loads(PROGRAM.row(number)[1]) for number in range(DRAWN)]
    sums: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0])
    for records in rounds:
        for number, time_ms in enumerate(PROGRAM.times_ms(records)):
            trade = trades[number % DRAWN]
            if trade["price"] > 0:
                found = sums[trade["symbol"], time_ms - time_ms % MINUTE_MS]
                found[0] += trade["price"] * trade["size"]
                found[1] += trade["size"]
    return {place: (amount, int(shares)) for place, (amount, shares) in sums.items()}


def processor_by_kind() -> dict[str, float]:
    """Processor seconds of this process, its JVM and its workers; a broker that it started, and
    readers, are left out."""
    found = dict.fromkeys(INSTANCE, 0.0)
    for process in process_tree(os.getpid()):
        kind = kind_of(process, os.getpid())
        if kind in found:
            try:
                found[str(kind)] += sum(process.cpu_times()[:2])
            except psutil.Error:
                continue
    return found


def paired_rounds(
    trades: RunningTrades, arms: Arms, rounds: int, records: int
) -> dict[str, list[RoundFigures]]:
    """So many rounds of each arm, one beside the other, the first one now this and now that: what
    drifts meets them alike. An arm's context holds while its round is drained."""
    found: dict[str, list[RoundFigures]] = {name: [] for name in arms}
    trades.load(records)
    trades.drain(records)  # warms up
    for number in range(rounds):
        for name in list(arms)[:: 1 if number % 2 == 0 else -1]:
            trades.load(records)
            with arms[name](trades):
                figures = trades.drain(records)
            found[name].append(figures)
            print(
                f"round {number + 1}, {name}: {figures.throughput:,.0f} records/s, "
                f"{figures.processor_us:.2f} us of a processor a record",
                flush=True,
            )
    trades.verify([records] * (1 + rounds * len(arms)))
    return found
