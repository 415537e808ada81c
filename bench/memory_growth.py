"""Memory: what an instance's processes hold over thousands of small micro-batches, driver, JVM and
Python workers apart.

The instance runs in this process, over keys that do not grow in number: first a plain count, then a
topology with Columns, a Python function, a repartition topic and a window. One record a partition
is sent and waited for, again and again. At regular intervals both garbage collectors run and the
proportional set size of every process is taken, mapped files left out, and of the JVM also what is
live in it; growth is the straight line through those after the warm-up, over the rest of the run.
Collected first, so that what is found is held and not merely garbage.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.memory import MemoryPeak, process_memory_bytes
from bench.results import Measurement
from bench.topics import create_topics, delete_topics
from everflow import KafkaStreams, StreamsBuilder, TimeWindows, Topology, metrics, serdes
from everflow.instance.client_state import ClientState
from everflow.spark.launch.daemon import MODULE
from everflow.testing import wait_until

KINDS = ("driver", "jvm", "jvm live", "workers")
PARTITIONS = 2
KEYS = 500
COLLECTIONS = 3
"""What a collection sets free by finalizers and cleaners, the next one takes."""
VALUE = "n bigint, word string"
ROUND_TIMEOUT_S = 60.0
BOUNDS_MIB_PER_1000 = {"driver": 4.0, "jvm": 16.0, "jvm live": 8.0, "workers": 6.0}
"""Growth in MiB per 1,000 micro-batches above which the bench fails: a kilobyte kept per batch is 1
MiB. For long the JVM touches ever more of the heap that it has reserved (at most 1 GiB), which says
little; what is live there says if it keeps something."""


class MemoryGrowsError(RuntimeError):
    """Memory went on growing after the warm-up."""


@dataclass(frozen=True)
class MemoryPlan:
    """What to run. ``warm_up`` is the share of the micro-batches before growth counts, ``samples``
    how often is measured."""

    guarantees: Sequence[str] = ("exactly_once_v2",)
    batches: int = 2_000
    threads: int = 2
    warm_up: float = 0.3
    samples: int = 20


@dataclass(frozen=True)
class Sample:
    """MiB of each kind of process after so many micro-batches."""

    batches: int
    mib: Mapping[str, float]


def count(source: str, output: str) -> Topology:
    """A plain count."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json(VALUE))
    stream.group_by_key().count(store="by-key").to_stream().to(output)
    return builder.build()


def every_part(source: str, output: str) -> Topology:
    """Every way through the engine: Catalyst, a Python function, a repartition, a plain and a
    windowed store."""
    from pyspark.sql import functions as F

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json(VALUE))
    mapped = stream.filter(F.col("value.n") >= 0).map_values(
        lambda value: value["word"].upper(), returns="string"
    )
    mapped.group_by_key().count(store="by-key").to_stream().to(output)
    grouped = mapped.group_by(F.col("value"), name="by-word")
    grouped.windowed_by(TimeWindows.of_size("1 hour")).count(store="by-word").to_stream().to(output)
    return builder.build()


TOPOLOGIES = (("count", count, 1), ("every part", every_part, 2))
"""Name, topology, and how often each record is read (from the source, and once more from a
repartition topic)."""


def measure(plan: MemoryPlan, bootstrap_servers: str, folder: Path) -> Iterator[Measurement]:
    """Run every guarantee and topology; MemoryGrowsError after all figures if something grows."""
    grown: list[str] = []
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for guarantee, (name, topology, reads) in itertools.product(plan.guarantees, TOPOLOGIES):
        application = f"bench-memory-{guarantee}-{name}".replace("_", "-").replace(" ", "-")
        source, output = f"{application}-input", f"{application}-output"
        create_topics(admin, [source, output], PARTITIONS)
        try:
            streams = KafkaStreams(
                topology(source, output),
                application_id=application,
                bootstrap_servers=bootstrap_servers,
                processing_guarantee=guarantee,
                num_stream_threads=plan.threads,
                state_dir=str(folder),
                repartition_purge_interval_ms=1_000,
            )
            peak = MemoryPeak(os.getpid())
            samples = _run(streams, plan, bootstrap_servers, source, reads)
            peak.stop()
            yield from _figures(plan, guarantee, name, samples, peak.peak_mib, grown)
        finally:
            delete_topics(admin, application)
    if grown:
        raise MemoryGrowsError(f"memory grew after the warm-up: {'; '.join(grown)}")


def _run(
    streams: KafkaStreams, plan: MemoryPlan, bootstrap_servers: str, source: str, reads: int
) -> list[Sample]:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
    samples: list[Sample] = []
    try:
        streams.start()
        wait_until(
            lambda: streams.error or streams.state is ClientState.RUNNING,
            ROUND_TIMEOUT_S,
            "RUNNING",
        )
        sent, every = 0, max(1, plan.batches // plan.samples)
        while (done := _committed(streams)) < plan.batches:
            if done >= every * len(samples):
                samples.append(Sample(done, _settled()))
            for partition in range(PARTITIONS):
                value = f'{{"n": {sent}, "word": "word-{sent % KEYS}"}}'
                producer.produce(source, value, f"key-{sent % KEYS}", partition)
                sent += 1
            producer.flush()
            consumed = partial(_has_consumed, streams, reads * sent)
            wait_until(consumed, ROUND_TIMEOUT_S, "the round to be committed")
            if streams.error is not None:
                raise streams.error
        samples.append(Sample(_committed(streams), _settled()))
        return samples
    finally:
        streams.close()


def _committed(streams: KafkaStreams) -> int:
    return int(streams.metrics().get(metrics.COMMITS, 0))


def _has_consumed(streams: KafkaStreams, records: int) -> bool:
    """Or has failed."""
    return (
        streams.error is not None
        or int(streams.metrics().get(metrics.RECORDS_CONSUMED, 0)) >= records
    )


def _settled() -> dict[str, float]:
    """MiB of each kind of process, after both garbage collectors have run."""
    from pyspark import SparkContext

    gc.collect()
    live = min(_live_in_jvm_mib(SparkContext._jvm) for _ in range(COLLECTIONS))
    me = psutil.Process()
    mib = {**dict.fromkeys(KINDS, 0.0), "jvm live": live}
    for process in (me, *me.children(recursive=True)):
        kind = kind_of(process, me.pid)
        if kind is not None:
            mib[kind] += process_memory_bytes(process, own=True) / 2**20
    return mib


def _live_in_jvm_mib(jvm: Any) -> float:
    """MiB of heap that a full collection leaves, and of classes. Compiled code is left out: the
    compilers go on for thousands of micro-batches, up to a bound of their own."""
    jvm.java.lang.System.gc()
    used = 0
    for pool in jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans():
        collected = pool.getCollectionUsage()
        if collected is not None:
            used += int(collected.getUsed())
        elif "CodeHeap" not in pool.getName():
            used += int(pool.getUsage().getUsed())
    return used / 2**20


_ABOVE_WORKERS = ("SparkSubmit", MODULE)
"""A daemon that was started ahead is a child of the driver."""


def kind_of(process: psutil.Process, driver: int) -> str | None:
    """Which of `KINDS` a process of the tree is; None for a broker that this process started."""
    if process.pid == driver:
        return "driver"
    try:
        command = process.cmdline()
        above = [parent.cmdline() for parent in process.parents()]
    except psutil.Error:
        return None
    if _has(command, "SparkSubmit"):
        return "jvm"
    lineage = (command, *above)
    return "workers" if any(_has(one, name) for one in lineage for name in _ABOVE_WORKERS) else None


def _has(command: Sequence[str], name: str) -> bool:
    return any(part.endswith(name) for part in command)


def slope(samples: Sequence[Sample], kind: str) -> float:
    """MiB per 1,000 micro-batches, by least squares."""
    batches = np.array([sample.batches for sample in samples], dtype=float)
    mib = np.array([sample.mib[kind] for sample in samples])
    return float(np.polyfit(batches, mib, 1)[0] * 1_000)


def _figures(
    plan: MemoryPlan,
    guarantee: str,
    name: str,
    samples: Sequence[Sample],
    peak_mib: float,
    grown: list[str],
) -> Iterator[Measurement]:
    """The figures; what grows beyond its bound is added to ``grown``."""
    warm = [sample for sample in samples if sample.batches >= plan.warm_up * plan.batches]
    case = f"{name}, {plan.batches} micro-batches"
    yield Measurement("memory", case, "everflow", guarantee, "memory_peak", "MiB", peak_mib)
    for kind in KINDS:
        start, after, end = samples[0].mib[kind], warm[0].mib[kind], samples[-1].mib[kind]
        per_thousand = slope(warm, kind)
        growth = per_thousand * (warm[-1].batches - warm[0].batches) / 1_000
        print(
            f"{guarantee}, {name}, {kind}: start {start:,.1f} MiB, after warm-up {after:,.1f}, end "
            f"{end:,.1f}; "
            f"{per_thousand:+.2f} MiB per 1,000 micro-batches (bound "
            f"{BOUNDS_MIB_PER_1000[kind]:.0f})",
            flush=True,
        )
        if per_thousand > BOUNDS_MIB_PER_1000[kind]:
            grown.append(
                f"{guarantee}, {name}, {kind} by {per_thousand:.1f} MiB per 1,000 micro-batches"
            )
        yield Measurement(
            "memory", f"{case}, {kind}", "everflow", guarantee, "memory_growth", "MiB", growth
        )
