"""The demo from end to end: broker, records, instance, results, comparison. Leaves nothing behind."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from everflow import KafkaStreams
from everflow.cli.run import banner
from everflow.cli.spark_log import spark_log
from everflow.cli.status import StatusLine
from everflow.cli.tasks import summary
from everflow.cli.terminal import Progress
from everflow.cli.watch import LagReader, input_topics
from everflow.config import StreamsConfig
from everflow.demo import batch, data, report, results, topology
from everflow.demo.interrupts import Interrupts
from everflow.demo.results import Record
from everflow.errors import FatalError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.log_reader import LogReader
from everflow.kafka.producer import RecordWriter
from everflow.records import TopicPartition
from everflow.runtime.client_state import ENDED
from everflow.spark.session import get_session
from everflow.testing.broker import EmbeddedBroker
from everflow.topology.graph import Topology

APPLICATION_ID = "flights-demo"
PARTITIONS = 4
TIMEOUT_S = 900.0
_POLL_S = 0.25
_CHUNK = 50_000  # records handed to the producer at a time


def run_demo(
    *,
    guarantee: str,
    threads: int | None,
    limit: int | None,
    json_file: Path | None,
    console: Console,
    debug: bool = False,
) -> report.Outcome:
    """Run the demo and print it; the caller turns ``matches_batch`` into an exit code.

    Broker, state folder and instance end with this call, also when it is interrupted (SIGINT, SIGTERM: raises
    KeyboardInterrupt). Call it from the main thread.

    Raises:
        SetupError: no Java, no jars, no data package. FatalError: the instance stopped, or was not done in
        15 minutes.
    """
    with ExitStack() as stack, Interrupts() as interrupts:
        start_session = stack.enter_context(spark_log(get_session, show=debug))
        status = stack.enter_context(StatusLine(console))
        flights = data.load_flights(limit)
        status.show("starting a Kafka broker")
        broker = stack.enter_context(EmbeddedBroker(progress=status.say))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="everflow-demo-"))
        for topic in (topology.FLIGHTS_TOPIC, *topology.RESULT_TOPICS):
            broker.create_topic(topic, PARTITIONS)
        _produce(flights, broker.bootstrap_servers)
        status.say(f"{flights.num_rows:,} flights are in topic {topology.FLIGHTS_TOPIC} ({PARTITIONS} partitions)")

        status.show("starting Spark")
        config = StreamsConfig(
            application_id=APPLICATION_ID,
            bootstrap_servers=broker.bootstrap_servers,
            processing_guarantee=guarantee,
            num_stream_threads=threads or 0,
            state_dir=folder,
        )
        with interrupts.held():
            start_session()
        program = topology.build()
        status.say(banner(config, program).text())
        started = time.monotonic()
        _process(config, program, status)
        elapsed_s = time.monotonic() - started
        streamed = results.to_figures(_read_results(config))
    outcome = report.Outcome(
        records_in=flights.num_rows,
        guarantee=guarantee,
        elapsed_s=elapsed_s,
        streamed=streamed,
        differences=batch.differences(streamed, batch.figures(flights)),
    )
    console.print(report.worst_carriers(streamed), report.busiest_routes(streamed))
    console.print(
        f"{outcome.records_in:,} flights in {elapsed_s:.1f} s, {guarantee}, start and stop included\n" + report.verdict(outcome),
        markup=False,
        highlight=False,
    )
    if json_file is not None:
        json_file.write_text(json.dumps(outcome.to_json(), indent=2) + "\n")
    return outcome


def _produce(flights: pa.Table, bootstrap_servers: str) -> None:
    records = data.to_records(flights)
    writer = RecordWriter.get({"bootstrap.servers": bootstrap_servers}, None)
    writer.begin()
    for start in range(0, len(records), _CHUNK):
        part = slice(start, start + _CHUNK)
        writer.write(topology.FLIGHTS_TOPIC, records.keys[part], records.values[part], records.timestamps[part])
    writer.flush(60.0)
    writer.close()


def _process(config: StreamsConfig, program: Topology, status: StatusLine) -> None:
    """Run an instance until everything it reads is consumed and committed, then close it."""
    streams = KafkaStreams(program, config)
    streams.set_state_listener(lambda new, old: status.say(f"state {old.name} -> {new.name}"))
    topics = input_topics(program, config.application_id)
    progress = Progress()
    deadline = time.monotonic() + TIMEOUT_S
    try:
        streams.start()
        with closing(ClusterAdmin(config.admin())) as admin:
            reader = LagReader(admin, config.application_id, topics)
            while progress.lag != 0:
                if streams.state in ENDED:
                    raise streams.error or FatalError("the instance stopped before all flights were processed")
                if time.monotonic() > deadline:
                    raise FatalError(f"not done after {TIMEOUT_S:.0f} s: {progress.line()}")
                sample = reader.sample(time.monotonic(), summary(streams.all_tasks()))
                if sample is not None:
                    progress.add(sample)
                    status.show(progress.line())
                time.sleep(_POLL_S)
    finally:
        streams.close()


def _read_results(config: StreamsConfig) -> dict[str, list[Record]]:
    """Committed records of the result topics, partition after partition."""
    partitions = [TopicPartition(topic, p) for topic in topology.RESULT_TOPICS for p in range(PARTITIONS)]
    records: dict[str, list[Record]] = {topic: [] for topic in topology.RESULT_TOPICS}
    with closing(ClusterAdmin(config.admin())) as admin, LogReader(config.consumer()) as reader:
        starts = admin.list_offsets(partitions, "earliest", "read_committed")
        ends = admin.list_offsets(partitions, "latest", "read_committed")
        for partition in partitions:
            for chunk in reader.read(partition, starts[partition], ends[partition]):
                records[partition.topic].extend(
                    (key, value) for key, value in zip(chunk.keys, chunk.values, strict=True) if key is not None
                )
    return records
