"""What may be asked of a running instance: threads more and fewer, a pause, clean-up, calls of the
clock, an end while a batch hangs; and how it runs in Spark, with little memory too (note 045)."""

import logging
import os
import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from everflow import (
    KafkaStreams,
    Materialized,
    Processor,
    ProcessorContext,
    PunctuationType,
    RestoreProgress,
    Stores,
    StreamsBuilder,
    StreamThreadExceptionResponse,
    TaskId,
    TimeWindows,
    Topology,
    memory,
    punctuate,
    serdes,
)
from everflow import Record as ProcessorRecord
from everflow.errors import (
    EverflowError,
    PunctuatorError,
    RecordError,
    ShutdownRequestedError,
    TaskTimeoutError,
)
from everflow.instance import assembly, kafka_streams, life
from everflow.instance.client_state import ClientState
from everflow.instance.thread.stream_thread import StreamThread
from everflow.memory import MIB, WORKER_BYTES, BatchMemory, MemoryBudget, least_budget
from everflow.metrics import ALIVE_STREAM_THREADS, LAG
from everflow.state.disk import MEMORY_DIR, MemoryFolder
from everflow.testing import wait_until
from everflow.testing.kafka_proxy import KafkaProxy, WireFault
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    closed,
    counting,
    in_json,
    last_by_key,
    long,
    text,
    until_failed,
    until_running,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PARTITIONS = 4
WAIT_S = 60.0


def keyed(first: int, count: int) -> list[Record]:
    return [
        text(f"p{n % PARTITIONS}-{n % 12}", "v", n, n % PARTITIONS)
        for n in range(first, first + count)
    ]


class Restores:
    """How many began, and what they had to read."""

    def __init__(self) -> None:
        self.begun, self.offsets = 0, 0

    def restore_start(self, progress: RestoreProgress) -> None:
        self.begun += 1
        self.offsets += progress.end - progress.start

    def batch_restored(self, progress: RestoreProgress, records: int) -> None: ...
    def restore_end(self, progress: RestoreProgress) -> None: ...
    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None: ...


def threads_of(streams: KafkaStreams) -> list[StreamThread]:
    assert streams._life.instance is not None
    return streams._life.instance.threads


def test_threads_change_a_pause_holds_a_start_restores(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    topology, restores, sent = counting(source, output), Restores(), 0
    streams = app.instance(topology)
    streams.set_global_state_restore_listener(restores)

    def write(count: int) -> None:
        nonlocal sent
        cluster.write(source, keyed(sent, count))
        sent += count

    try:
        write(100)
        streams.start()
        until_running(streams)
        app.until_processed(streams, source)
        assert (begun := restores.begun) == PARTITIONS
        # Threads: a task moves to the new one and back, and is not restored.
        assert streams.add_stream_thread() == "everflow-stream-1"
        until_running(streams)
        write(100)
        app.until_processed(streams, source)
        assert [len(thread.tasks) for thread in threads_of(streams)] == [2, 2]
        assert streams.metrics()[ALIVE_STREAM_THREADS] == 2
        assert streams.remove_stream_thread(WAIT_S) == "everflow-stream-1"
        until_running(streams)
        write(100)
        app.until_processed(streams, source)
        assert (streams.metrics()[ALIVE_STREAM_THREADS], restores.begun) == (1, begun)
        # A pause: the input waits, the instance is a member and answers.
        streams.pause()
        before = cluster.committed(app.id, source)
        write(100)
        wait_until(
            lambda: streams.metrics()[LAG] == 100,
            WAIT_S,
            "the records to wait",
            lambda: [streams.metrics()],
        )
        assert (
            streams.add_stream_thread() == "everflow-stream-1"
        )  # a rebalance, which the pause survives
        until_running(streams)
        assert (
            cluster.committed(app.id, source),
            cluster.members(app.id),
            streams.is_paused(),
        ) == (before, 1, True)
        assert streams.store("counts").get("p0-0") == len([n for n in range(300) if n % 12 == 0])
        streams.resume()
        app.until_processed(streams, source)
    finally:
        assert streams.close(WAIT_S)
    logged = sum(cluster.ends(f"{app.id}-counts-changelog").values())
    clean_up(app, streams)
    assert restored_by_the_next_start(app, topology, source, lambda: write(100)) >= logged > 0
    counts = cluster.longs(output)
    assert counts == Counter(record.key for record in keyed(0, sent))


def clean_up(app: Application, streams: KafkaStreams) -> None:
    assert list(app.state.glob("*/*/counts-*"))
    streams.clean_up()
    assert list(app.state.glob("*/*/counts-*")) == []


def restored_by_the_next_start(
    app: Application, topology: Topology, source: str, write: Callable[[], None]
) -> int:
    """After a clean-up it has all to restore: how many offsets it did."""
    again, restored = app.instance(topology), Restores()
    again.set_global_state_restore_listener(restored)
    try:
        again.start()
        write()
        until_running(again)
        app.until_processed(again, source)
    finally:
        assert again.close(WAIT_S)
    return restored.offsets


def test_one_worker_serves_all_batches(app: Application, cluster: Cluster) -> None:
    """Two would be two producers with one transactional id, and two views of a store."""
    source, workers, counts = (cluster.topic(name, 1) for name in ("in", "workers", "counts"))
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(lambda value: str(os.getpid()), returns=serdes.string()).to(workers)
    stream.group_by_key().count(store="counts").to_stream().to(counts)
    for start in range(2):
        with app.running(builder.build(), num_stream_threads=1) as streams:
            before = len(cluster.read(workers))
            for records in (5, 200):
                cluster.write(source, [text("k", "v")] * records)
                app.until_processed(streams, source)
            assert len({record.value for record in cluster.read(workers)[before:]}) == 1, start
    assert long(cluster.read(counts)[-1].value) == 410


def test_sparks_ui_names_the_parts(app: Application, cluster: Cluster, spark: SparkSession) -> None:
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    again = stream.group_by(lambda key, value: value, returns="string", name="again")
    again.count(store="counts").to_stream().to(output)
    with app.running(builder.build(), num_stream_threads=2) as streams:
        app.until_processed(streams, source)
        jobs: Any = spark.sparkContext._jsc
        listed = jobs.sc().statusStore().jobsList(None)
        running = [listed.apply(at) for at in range(listed.size())]
        names = {job.description().get() for job in running if job.status().toString() == "RUNNING"}
        for number in range(2):
            (name,) = [one for one in names if app.id in one and f"thread {number}:" in one]
            assert name.endswith("sub-topologies 0, 1")


TEXT = serdes.string()


class Ticking(Processor):
    """Counts records and calls of the wall clock, and tells the second."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.counts = context.store("counts")

    def process(self, record: ProcessorRecord) -> None:
        self._count("records")

    @punctuate("300 ms", PunctuationType.WALL_CLOCK_TIME)
    def tick(self, time: int) -> None:
        told = f"{self._count('ticks')} {self.counts.get('records', 0)}"
        self.context.forward(ProcessorRecord(str(self.context.task_id), told, time))

    def _count(self, name: str) -> int:
        count = int(self.counts.get(name, 0)) + 1
        self.counts.put(name, count)
        return count


def program(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    counts = Stores.key_value("counts", key=serdes.string(), value=serdes.long())
    (
        builder.stream(source, key=serdes.string(), value=serdes.string())
        .process(Ticking, stores=[counts], returns=("string", "string"))
        .to(output, key=serdes.string(), value=serdes.string())
    )
    return builder.build()


def ticks(cluster: Cluster, output: str) -> dict[str, tuple[int, int]]:
    """Task -> calls so far, and records."""
    found = last_by_key(cluster.read(output))
    told = {key: value.split() for key, value in found.items() if key and value}
    return {key.decode(): (int(calls), int(records)) for key, (calls, records) in told.items()}


def test_idle_tasks_are_called_and_a_restart_goes_on(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, [text("k", "v", partition=0)])
    topology = program(source, output)

    def called(at_least: int) -> bool:
        found = ticks(cluster, output)
        return set(found) == {"0_0", "0_1"} and min(n for n, _ in found.values()) >= at_least

    def seen() -> list[object]:
        return [ticks(cluster, output)]

    with app.running(topology) as streams:
        app.until_processed(streams, source)
        wait_until(lambda: called(4), 60, "four calls of each task", seen)
    before = ticks(cluster, output)
    assert {task: records for task, (_, records) in before.items()} == {"0_0": 1, "0_1": 0}
    with app.running(topology):
        wait_until(lambda: called(max(n for n, _ in before.values()) + 2), 60, "more calls", seen)
    every = [
        (record.key, int(record.value.split()[0]))
        for record in cluster.read(output)
        if record.value is not None
    ]
    for task in (b"0_0", b"0_1"):
        calls = [n for key, n in every if key == task]
        assert calls == list(range(1, len(calls) + 1)), "a call twice, or lost"


def in_memory_program(source: str, cities: str, output: str) -> Topology:
    """A table, a processor's store without a changelog and a global table, all in memory; and a
    window store on disk beside them."""
    builder = StreamsBuilder()
    visits = builder.stream(source, key=TEXT, value=TEXT)
    known = builder.global_table(
        cities, key=TEXT, value=TEXT, store=Materialized("cities", in_memory=True)
    )
    visits.group_by_key().count(store=Materialized("counts", in_memory=True))
    seen = Stores.key_value("seen", key=TEXT, value=TEXT, logging=False, in_memory=True)

    def first(record: ProcessorRecord, context: ProcessorContext) -> None:
        if context.store("seen").put_if_absent(record.key, record.value) is None:
            context.forward(record)

    firsts = visits.process(first, stores=[seen])
    firsts.join(known, on=F.col("value")).to(output, value=serdes.json("left string, right string"))
    hours = visits.group_by_key().windowed_by(TimeWindows.of_size("1 hour"))
    hours.count(store="hourly")
    return builder.build()


def test_stores_in_memory_end_with_the_instance_and_come_back_from_the_changelog(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    source, cities, output = cluster.topic("in"), cluster.topic("cities", 1), cluster.topic("out")
    cluster.write(cities, [text("b", "Berne")])
    topology = in_memory_program(source, cities, output)
    memory = MemoryFolder(Path(MEMORY_DIR)).place(app.state / app.id)
    wanted = {"k": 0, "m": 0}
    for _ in range(2):
        cluster.write(source, [text(key, "b", at) for at, key in enumerate("kkm")])
        with app.running(topology) as streams:
            app.until_processed(streams, source)
            wanted["k"] += 2
            wanted["m"] += 1
            assert {key: streams.store("counts").get(key) for key in wanted} == wanted
            lie = {path.name for path in memory.glob("*/*")}
            assert lie == {"cities-0", "counts-0", "seen-0"}
            lie = {path.name for path in (app.state / app.id).glob("*_*/*")}
            assert lie == {"hourly-0"}
        assert not memory.exists()
    # What had no changelog was forgotten: each key was a first one twice.
    assert sorted(one.key or b"" for one in cluster.read(output)) == [b"k", b"k", b"m", b"m"]


RECORDS = 300
LARGE = "x" * 60_000
COMMITTED = re.compile(r"Stream thread 0: batch \S+, (\d+) records .* memory (.*)$")
FIRST = BatchMemory()


def test_a_backlog_is_worked_off_in_batches_that_fit(
    app: Application,
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_back, shared = list[int](), list[bool]()
    monkeypatch.setattr(kafka_streams, "share_one_area", lambda: shared.append(True))
    monkeypatch.setattr(memory, "EVERY_S", 0.0)
    monkeypatch.setattr(assembly, "trim_of_libc", lambda: given_back.append)
    source, output = cluster.topic("in"), cluster.topic("out")
    written = [in_json(f"k{n % 7}", {"n": n, "text": LARGE}, n, n % 2) for n in range(RECORDS)]
    cluster.write(source, written)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json("n bigint, text string"))
    stream.map_values(n=F.col("value.n"), length=F.length("value.text")).to(output)
    total = least_budget(1)
    most = FIRST.most_bytes(256 * MIB, MemoryBudget(total).worker(1))
    assert most < RECORDS * len(LARGE) / 2
    with caplog.at_level(logging.DEBUG, "everflow"):
        app.run_through(
            builder.build(),
            source,
            num_stream_threads=1,
            max_memory_bytes=total,
            processing_guarantee="exactly_once_v2",
        )
    read = [COMMITTED.search(record.getMessage()) for record in caplog.records]
    batches = [(int(found[1]), found[2]) for found in read if found is not None]
    full = [count for count, _ in batches if count]
    assert sum(full) == RECORDS
    assert max(full) <= most * 2 // len(LARGE), "a worker learns, and may read more than at first"
    assert full[0] <= most // len(LARGE) + 2, "one of each partition may be more"
    assert f"idle={WORKER_BYTES}" not in batches[-1][1], "the worker has told what it takes"
    values = [serdes.json("n bigint, length bigint").decode(r.value) for r in cluster.read(output)]
    assert sorted(value["n"] for value in values) == list(range(RECORDS))
    assert {value["length"] for value in values} == {len(LARGE)}
    assert len(given_back) > 1
    assert shared


def test_a_shutdown_does_not_wait_for_a_batch_that_hangs(
    app: Application,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(life, "HANGS_MS", 2_000.0)
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text("k", "loop")])
    reached = tmp_path / "reached"

    def hangs(value: str) -> str:
        reached.touch()
        threading.Event().wait()  # for ever
        return value

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(hangs, returns="string").to(output)
    streams = app.instance(builder.build())
    streams.start()
    wait_until(reached.exists, 60, "the function to be called")
    began = time.monotonic()
    with caplog.at_level(logging.INFO):
        assert streams.close(timeout=60)
    assert time.monotonic() - began < 40
    assert cluster.members(app.id) == 0
    assert re.search(r"cut off \(.* 2 s\)", caplog.text)


# An instance under faults.


FAULT_PARTITIONS = 2


def failing(source: str, output: str, flag: Path) -> Topology:
    """While the file is there, each record of key ``bad`` fails."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    there = str(flag)

    def check(key: str, value: str) -> str:
        if key == "bad" and Path(there).exists():
            raise ValueError("the service is away")
        return value

    stream.map_values(check, returns=serdes.string()).to(output)
    return builder.build()


def failing_call(source: str, output: str, flag: Path) -> Topology:
    """While the file is there, each call of the first task's clock fails."""
    there = str(flag)

    class Calls(Processor):
        def process(self, record: ProcessorRecord) -> None:
            self.context.forward(record)

        @punctuate("1 ms")
        def tick(self, time: int) -> None:
            if self.context.task_id.partition == 0 and Path(there).exists():
                raise ValueError("the service is away")

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.process(Calls, returns=("string", "string")).to(
        output, key=serdes.string(), value=serdes.string()
    )
    return builder.build()


def test_an_instance_counts_once_whatever_happens_on_the_wire(
    own_proxy: KafkaProxy, cluster: Cluster, tmp_path: Path
) -> None:
    source, output = cluster.topic("in", FAULT_PARTITIONS), cluster.topic("out", FAULT_PARTITIONS)
    behind = Cluster(own_proxy.bootstrap_servers, cluster.prefix)
    app = Application(behind, tmp_path, {"heartbeat_interval_ms": 500})
    sent = 0
    with app.running(counting(source, output)) as streams:

        def process() -> None:
            nonlocal sent
            batch = [
                text(f"k{n % 7}", "v", n, n % 7 % FAULT_PARTITIONS) for n in range(sent, sent + 40)
            ]
            cluster.write(source, batch)
            sent += 40
            app.until_processed(streams, source)

        process()
        faults: tuple[Callable[[], WireFault], ...] = (
            lambda: own_proxy.lose_answer("EndTxn"),
            lambda: own_proxy.drop("EndTxn"),
            lambda: own_proxy.lose_answer("Produce", topic=output),
            lambda: own_proxy.refuse("TxnOffsetCommit", KafkaError.ILLEGAL_GENERATION),
            lambda: own_proxy.refuse("TxnOffsetCommit", KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 3),
            lambda: own_proxy.refuse("TxnOffsetCommit", KafkaError.NOT_COORDINATOR, 2),
            lambda: own_proxy.refuse("EndTxn", KafkaError.NOT_COORDINATOR, 2),
            lambda: own_proxy.refuse("Produce", KafkaError.NOT_LEADER_FOR_PARTITION, 3),
            lambda: own_proxy.refuse("EndTxn", KafkaError.PRODUCER_FENCED),
            lambda: own_proxy.hold("EndTxn", breaks=True),
        )
        for fault in faults:
            set_ = fault()
            process()
            set_.wait()
            if set_.act == "hold":
                set_.release()
        own_proxy.cut()
        cluster.write(source, [text("k0", "v", sent, 0)])
        sent += 1
        own_proxy.mend()
        app.until_processed(streams, source)
    counts = cluster.longs(output)
    wanted = Counter(b"k%d" % (n % 7) for n in range(sent - 1))
    wanted[b"k0"] += 1
    assert counts == wanted
    behind.close()


@pytest.mark.parametrize(
    ("build", "kind"), [(failing, RecordError), (failing_call, PunctuatorError)]
)
def test_a_failing_task_rests_alone(
    app: Application,
    cluster: Cluster,
    tmp_path: Path,
    build: Callable[[str, str, Path], Topology],
    kind: type[EverflowError],
) -> None:
    source, output = cluster.topic("in", FAULT_PARTITIONS), cluster.topic("out", FAULT_PARTITIONS)
    flag = tmp_path / "service-is-away"
    flag.touch()
    streams = app.instance(build(source, output, flag))
    met: list[EverflowError] = []

    def handler(error: EverflowError) -> StreamThreadExceptionResponse:
        met.append(error)
        return StreamThreadExceptionResponse.REPLACE_THREAD

    streams.set_uncaught_exception_handler(handler, most=50, within="1 hour")
    bad, good = TaskId(0, 0), TaskId(0, 1)
    try:
        streams.start()
        until_running(streams)
        cluster.write(source, [text("bad", "1", 1, 0), text("good", "1", 1, 1)])
        wait_until(lambda: met, WAIT_S, "the handler to be called")
        assert isinstance(met[0], kind)
        wait_until(lambda: len(cluster.read(output)) == 1, WAIT_S, "the other task's record")
        cluster.write(source, [text("good", "2", 2, 1)])
        wait_until(lambda: len(cluster.read(output)) == 2, WAIT_S, "its next one")
        trouble = streams.all_tasks()[bad].trouble
        assert trouble is not None
        assert "the service is away" in trouble.text
        # The broker shows a batch's records a moment before the instance says that it is well.
        wait_until(
            lambda: not streams.all_tasks()[good].trouble, WAIT_S, "the other one to be well"
        )
        flag.unlink()
        app.until_processed(streams, source)
        assert streams.all_tasks()[bad].trouble is None
    finally:
        assert streams.close(WAIT_S)
    assert streams.error is None
    assert Counter(record.value for record in cluster.read(output)) == {b"1": 2, b"2": 1}


def test_a_handler_ends_the_application(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    source, output = cluster.topic("in", FAULT_PARTITIONS), cluster.topic("out", FAULT_PARTITIONS)
    flag = tmp_path / "service-is-away"
    flag.touch()
    topology = failing(source, output, flag)
    both: list[KafkaStreams] = []
    for number in range(2):
        streams = app.instance(topology, state_dir=str(tmp_path / str(number)))
        streams.set_uncaught_exception_handler(
            lambda _: StreamThreadExceptionResponse.SHUTDOWN_APPLICATION
        )
        both.append(streams)
    try:
        for streams in both:
            streams.start()
        wait_until(lambda: cluster.members(app.id) == 2, WAIT_S, "both to be members")
        for streams in both:
            until_running(streams)
        cluster.write(source, [text("bad", "1", 1, 0)])
        errors = [until_failed(streams) for streams in both]
    finally:
        for streams in both:
            streams.close(WAIT_S)
    assert {type(error) for error in errors} == {RecordError, ShutdownRequestedError}
    assert [streams.state for streams in both] == [ClientState.ERROR] * 2
    assert cluster.members(app.id) == 0


OUTAGE_S = 120.0
GOOD = TaskId(0, 0)
BAD = TaskId(1, 0)


@dataclass
class Registry:
    status: int = 200
    asked: int = 0
    url: str = ""


@pytest.fixture
def registry() -> Iterator[Registry]:
    standing = Registry()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            standing.asked += 1
            self.send_response(standing.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not to the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        standing.url = f"http://127.0.0.1:{server.server_port}/schemas/ids/1"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield standing
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class Registered:
    """Text whose schema a registry is asked for, as clients of one do it."""

    url: str
    type = pa.string()

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        with urllib.request.urlopen(self.url, timeout=10):
            return data.decode()


def fault_program(cluster: Cluster, registry: Registry) -> Topology:
    """Two sub-topologies that have nothing in common but their thread."""
    builder = StreamsBuilder()
    given: dict[str, Any] = {"a": serdes.string(), "b": Registered(registry.url)}
    for name, serde in given.items():
        stream = builder.stream(f"{cluster.prefix}-in-{name}", key=serdes.string(), value=serde)
        stream.map_values(lambda value: value, returns="string").to(f"{cluster.prefix}-out-{name}")
    return builder.build()


@pytest.mark.slow
def test_an_outage_skips_no_record(app: Application, cluster: Cluster, registry: Registry) -> None:
    *_, dead = (cluster.topic(name, 1) for name in ("in-a", "in-b", "out-a", "out-b", "dead"))

    def written(name: str) -> list[bytes | None]:
        return [record.value for record in cluster.read(f"{cluster.prefix}-out-{name}")]

    with app.running(
        fault_program(cluster, registry),
        task_timeout_ms=300_000,
        errors_dead_letter_queue_topic_name=dead,
        deserialization_exception_handler="continue",
    ) as streams:
        until_running(streams)
        registry.status = 503
        cluster.write(f"{cluster.prefix}-in-b", [text("k", "one"), text("k", "two")])
        wait_until(lambda: registry.asked, OUTAGE_S, "the registry to be asked")
        cluster.write(f"{cluster.prefix}-in-a", [text("k", "other")])
        wait_until(lambda: written("a") == [b"other"], OUTAGE_S, "the other task's record")
        wait_until(lambda: streams.all_tasks()[BAD].trouble, OUTAGE_S, "its trouble to be shown")
        assert "503" in str(streams.all_tasks()[BAD].trouble)
        wait_until(lambda: streams.all_tasks()[GOOD].trouble is None, OUTAGE_S, "no trouble")
        assert written("b") == []
        registry.status = 200
        wait_until(lambda: written("b") == [b"one", b"two"], OUTAGE_S, "the records to be read")
        assert streams.error is None
    assert cluster.read(dead) == []


@pytest.mark.slow
def test_a_long_outage_names_a_cause(cluster: Cluster, registry: Registry, tmp_path: Path) -> None:
    *_, dead = (cluster.topic(name, 1) for name in ("in-a", "in-b", "out-a", "out-b", "dead"))
    app = Application(
        cluster,
        tmp_path,
        {
            "task_timeout_ms": 10_000,
            "errors_dead_letter_queue_topic_name": dead,
            "deserialization_exception_handler": "continue",
        },
    )
    registry.status = 503
    streams = app.instance(fault_program(cluster, registry))
    try:
        streams.start()
        until_running(streams)
        cluster.write(f"{cluster.prefix}-in-b", [text("k", "one")])
        late = until_failed(streams, OUTAGE_S)
    finally:
        closed(streams)
    assert isinstance(late, TaskTimeoutError)
    assert late.task == BAD
    assert f"Task {BAD} made no progress" in str(late)
    assert "503" in str(late)
    assert "gets no answer" in str(late)
    assert cluster.read(f"{cluster.prefix}-out-b") == cluster.read(dead) == []
    assert cluster.committed(app.id, f"{cluster.prefix}-in-b").get(0, (0, ""))[0] == 0
