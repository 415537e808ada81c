"""Fairness: how long a small job's micro-batches take while every other stream thread runs full
ones.

One instance, one thread with a task that gets a record now and then, the others with a backlog
each. A record is sent some milliseconds after the micro-batch of the one before has ended, so each
has a micro-batch of its own; measured while every backlog lasts, and once more when all are done.
"""

from __future__ import annotations

import logging
import statistics
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.results import Measurement
from bench.topics import create_topics, delete_topics, load
from everflow import KafkaStreams, StreamsBuilder, Topology, metrics, serdes
from everflow.instance.client_state import ClientState
from everflow.testing import wait_until

TIMEOUT_S = 120.0
PAUSE_S = 0.02
KEYS = 100_000
WARM_UP_SAMPLES = 10
MINIMUM_SAMPLES = 20
SAMPLES_ALONE = 20
MEASURED_SHARE = 0.8
"""Measured until the slowest backlog is down to the rest of this: beyond it the others may have
ended."""
BOUND_MS = 200.0


class UnfairError(RuntimeError):
    """The small job's median was above the bound, or the backlog ended too early to tell."""


@dataclass(frozen=True)
class FairnessPlan:
    """What to run: ``records`` of backlog for each of the ``threads`` that run full batches."""

    guarantees: Sequence[str] = ("exactly_once_v2",)
    records: int = 2_000_000
    threads: int = 2
    bound_ms: float = BOUND_MS


def topology(small: str, big: str, output: str) -> Topology:
    """Two sub-topologies that count; the small one is number 0, and its task the first stream
    thread's."""
    builder = StreamsBuilder()
    for topic, store in ((small, "small"), (big, "big")):
        stream = builder.stream(topic, key=serdes.string(), value=serdes.string())
        stream.group_by_key().count(store=store).to_stream().to(output)
    return builder.build()


def measure(plan: FairnessPlan, bootstrap_servers: str, folder: Path) -> Iterator[Measurement]:
    """Run every guarantee; UnfairError after the figures of one that misses the bound."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for guarantee in plan.guarantees:
        application = f"bench-fairness-{guarantee.replace('_', '-')}"
        small, big, output = (f"{application}-{name}" for name in ("small", "big", "output"))
        create_topics(admin, [small], 1)
        create_topics(admin, [big], plan.threads)
        create_topics(admin, [output], plan.threads)
        try:
            streams = KafkaStreams(
                topology(small, big, output),
                application_id=application,
                bootstrap_servers=bootstrap_servers,
                processing_guarantee=guarantee,
                num_stream_threads=plan.threads + 1,
                state_dir=str(folder / guarantee),
            )
            load(bootstrap_servers, big, plan.records * plan.threads, KEYS)
            alone, beside = _run(streams, plan, bootstrap_servers, small)
            yield from _figures(plan, guarantee, alone, beside)
        finally:
            delete_topics(admin, application)


def _run(
    streams: KafkaStreams, plan: FairnessPlan, bootstrap_servers: str, small: str
) -> tuple[list[float], list[_Batch]]:
    """Times (ms) of the small thread's micro-batches when it is alone, and all micro-batches while
    the backlogs last."""
    batches = _Batches()
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
    pause = threading.Event()

    def send_one() -> float:
        """Send a record and wait for its micro-batch: the first stream thread's next one."""
        pause.wait(PAUSE_S)
        before = batches.count(0)
        producer.produce(small, "x", "key")
        producer.flush()
        wait_until(
            lambda: streams.error or batches.count(0) > before,
            TIMEOUT_S,
            "the small job's micro-batch",
        )
        if streams.error is not None:
            raise streams.error
        return batches.last_ms(0)

    logger = logging.getLogger("everflow")
    level = logger.level
    logger.addHandler(batches)
    logger.setLevel(logging.DEBUG)
    try:
        streams.start()
        wait_until(
            lambda: streams.error or streams.state is ClientState.RUNNING, TIMEOUT_S, "RUNNING"
        )
        total = plan.records * plan.threads
        while (
            min(batches.records(n + 1) for n in range(plan.threads))
            < total / plan.threads * MEASURED_SHARE
        ):
            send_one()
        beside = list(batches.all)
        wait_until(
            lambda: streams.error or not streams.metrics()[metrics.LAG],
            TIMEOUT_S,
            "the end of the backlogs",
        )
        return [send_one() for _ in range(SAMPLES_ALONE)], beside
    finally:
        streams.close()
        logger.removeHandler(batches)
        logger.setLevel(level)


class _Batch(NamedTuple):
    thread: int
    records: int
    took_ms: float


class _Batches(logging.Handler):
    """The micro-batches that the instance logs, as they end."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.all: list[_Batch] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take the line that a stream thread writes at the end of a micro-batch; its arguments, not
        its text."""
        if (
            record.levelno == logging.DEBUG
            and "records in" in record.msg
            and isinstance(record.args, tuple)
        ):
            thread, _, records, took_ms, *_ = record.args
            self.all.append(_Batch(int(str(thread)), int(str(records)), float(str(took_ms))))

    def count(self, thread: int) -> int:
        """Micro-batches with records of a stream thread."""
        return sum(1 for batch in self.all if batch.thread == thread and batch.records)

    def records(self, thread: int) -> int:
        """Records that a stream thread has processed."""
        return sum(batch.records for batch in self.all if batch.thread == thread)

    def last_ms(self, thread: int) -> float:
        """Time of the stream thread's last micro-batch."""
        return [batch.took_ms for batch in self.all if batch.thread == thread and batch.records][-1]


def _figures(
    plan: FairnessPlan, guarantee: str, alone: Sequence[float], beside: Sequence[_Batch]
) -> Iterator[Measurement]:
    small = [batch.took_ms for batch in beside if batch.thread == 0 and batch.records][
        WARM_UP_SAMPLES:
    ]
    full = [batch for batch in beside if batch.thread > 0 and batch.records]
    if len(small) < MINIMUM_SAMPLES:
        raise UnfairError(
            f"only {len(small)} micro-batches of the small job beside full ones; take more "
            f"--records"
        )
    largest = max(batch.records for batch in full)
    median = statistics.median(small)
    print(
        f"{guarantee}: small job's micro-batch {median:,.0f} ms (median of {len(small)}, longest "
        f"{max(small):,.0f} ms) beside "
        f"{plan.threads} threads with micro-batches of up to {largest:,} records and "
        f"{max(batch.took_ms for batch in full):,.0f} ms; alone {statistics.median(alone):,.0f} ms",
        flush=True,
    )
    cases = {"beside full threads": median, "alone": statistics.median(alone)}
    for case, value in cases.items():
        yield Measurement("fairness", case, "everflow", guarantee, "batch_time_median", "ms", value)
    yield Measurement(
        "fairness", "beside full threads", "everflow", guarantee, "batch_time_max", "ms", max(small)
    )
    yield Measurement(
        "fairness", "full threads", "everflow", guarantee, "batch_records_max", "records", largest
    )
    if median > plan.bound_ms:
        raise UnfairError(
            f"{guarantee}: the small job's median of {median:.0f} ms is above {plan.bound_ms:.0f} "
            f"ms"
        )
