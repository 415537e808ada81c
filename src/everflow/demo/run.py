"""The demo end to end: broker, records, instance, results, comparison. Leaves nothing behind."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from everflow import KafkaStreams
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.console.terminal import Progress
from everflow.console.watch import LagReader, input_topics
from everflow.demo import batch, data, elastic, report, results, topology
from everflow.demo.feed import Feed, send_all
from everflow.demo.instance_process import InstanceProcess
from everflow.demo.moves import Moves
from everflow.demo.results import Record
from everflow.errors import FatalError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import LogReader
from everflow.logs import lines_to
from everflow.records import TaskId, TopicPartition
from everflow.runtime.client_state import ENDED
from everflow.runtime.task_words import summary
from everflow.spark.session import get_context
from everflow.stop_signals import owned
from everflow.testing.broker import EmbeddedBroker
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut
from everflow.waits import shown_by

APPLICATION_ID = "flights-demo"
PARTITIONS = 4
CHANGELOG_RETENTION_MS = 100 * 365 * 86_400_000
TIMEOUT_S = 900.0
_POLL_S = 0.25


def run_demo(
    *,
    guarantee: str,
    threads: int | None,
    limit: int | None,
    json_file: Path | None,
    console: Console,
    debug: bool = False,
    instances: int = 1,
) -> report.Outcome:
    """Run the demo and print it; the caller turns ``matches_batch`` into an exit code.

    With two ``instances`` the flights come at a pace, and a second instance joins and leaves
    meanwhile (`everflow.demo.elastic`). Broker, state folders and instances end with this call,
    also when it is interrupted (SIGINT, SIGTERM: raises KeyboardInterrupt). Call it from the main
    thread.

    Raises:
        SetupError: no Java, no jars, no data package. FatalError: an instance stopped, or was not
        done in 15 minutes.
    """
    with ExitStack() as stack:
        stack.enter_context(owned())
        status = stack.enter_context(StatusLine(console))
        stack.enter_context(lines_to(status.say, verbose=debug))
        stack.enter_context(shown_by(status.waiting))
        flights = data.load_flights(limit)
        broker = _broker(stack, status)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everflow-demo-")))
        settings = _settings(
            broker.bootstrap_servers, guarantee, threads, folder / "state", instances
        )
        moves, elapsed_s = _stream(settings, data.to_records(flights), folder, instances, status)
        streamed = results.to_figures(_read_results(StreamsConfig(**settings)))
    outcome = report.Outcome(
        records_in=flights.num_rows,
        guarantee=guarantee,
        elapsed_s=elapsed_s,
        streamed=streamed,
        differences=batch.differences(streamed, batch.figures(flights)),
        moves=moves,
    )
    report.show(outcome, console)
    if json_file is not None:
        json_file.write_text(json.dumps(outcome.to_json(), indent=2) + "\n")
    return outcome


def _stream(
    settings: dict[str, Any],
    records: data.FlightRecords,
    folder: Path,
    instances: int,
    status: StatusLine,
) -> tuple[Moves | None, float]:
    """Send the flights and process them: what moved between two instances, and the seconds that the
    processing took."""
    servers = settings["bootstrap.servers"]
    if instances == 1:
        send_all(records, servers)
        status.say(
            f"{len(records):,} flights are in topic {topology.FLIGHTS_TOPIC} ({PARTITIONS} "
            f"partitions)"
        )
    get_context()
    program = topology.build()
    config = StreamsConfig(**settings)
    started = time.monotonic()
    moves = None
    if instances == 1:
        _process(config, program, status)
    else:
        feed = Feed(records, servers, elastic.pace(len(records)))
        second = InstanceProcess(
            {**settings, "state.dir": str(folder / "2" / "state")}, folder / "2"
        )
        moves = _process_elastic(config, program, feed, second, status)
    return moves, time.monotonic() - started


def _broker(stack: ExitStack, status: StatusLine) -> EmbeddedBroker:
    """A broker with the demo's topics; it ends with ``stack``."""
    broker = stack.enter_context(EmbeddedBroker(progress=status.say))
    for topic in (topology.FLIGHTS_TOPIC, *topology.RESULT_TOPICS):
        broker.create_topic(topic, PARTITIONS)
    return broker


def _settings(
    bootstrap_servers: str, guarantee: str, threads: int | None, state: Path, instances: int
) -> dict[str, Any]:
    return {
        "application.id": APPLICATION_ID,
        "bootstrap.servers": bootstrap_servers,
        "processing.guarantee": guarantee,
        **({} if threads is None else {"num.stream.threads": threads}),
        "state.dir": str(state),
        # Brokers delete by record time: the windows' changelog of flights of 2013 would be gone
        # before a second instance reads it.
        "windowstore.changelog.additional.retention.ms": CHANGELOG_RETENTION_MS,
        **(elastic.SETTINGS if instances > 1 else {}),
    }


@contextmanager
def _instance(
    config: StreamsConfig, program: Topology, status: StatusLine
) -> Iterator[KafkaStreams]:
    """An instance, not started; closed at the end."""
    streams = KafkaStreams(program, config)
    status.say(streams._introduction())
    try:
        yield streams
    except BaseException:
        # Nobody is there to hand anything over to, or nobody waits for it.
        streams.close(leave_group=False)
        raise
    streams.close()


def _process(config: StreamsConfig, program: Topology, status: StatusLine) -> None:
    """Run an instance until everything it reads is consumed and committed, then close it."""
    topics = input_topics(program, config.application_id)
    progress = Progress()
    deadline = time.monotonic() + TIMEOUT_S
    with (
        _instance(config, program, status) as streams,
        closing(ClusterAdmin(config.admin())) as admin,
    ):
        streams.start()
        reader = LagReader(admin, config.application_id, topics)
        while progress.lag != 0:
            if streams.state in ENDED:
                raise streams.error or FatalError(
                    "the instance stopped before all flights were processed"
                )
            if time.monotonic() > deadline:
                raise FatalError(f"not done after {TIMEOUT_S:.0f} s: {progress.line()}")
            sample = reader.sample(time.monotonic(), summary(streams.all_tasks()))
            if sample is not None:
                progress.add(sample)
                status.show(progress.line())
            time.sleep(_POLL_S)


def _process_elastic(
    config: StreamsConfig,
    program: Topology,
    feed: Feed,
    second: InstanceProcess,
    status: StatusLine,
) -> Moves:
    """The same while the flights come in, and a second instance comes and goes."""
    inputs = {
        TaskId(sub.index, partition): tuple(
            TopicPartition(topic, partition) for topic in sub.inputs(config.application_id)
        )
        for sub in cut(program).subtopologies
        for partition in range(PARTITIONS)
    }
    with _instance(config, program, status) as streams:
        return elastic.ElasticRun(
            elastic.Ports(
                streams=streams,
                config=config,
                inputs=inputs,
                feed=feed,
                second=second,
                status=status,
            )
        ).work()


def _read_results(config: StreamsConfig) -> dict[str, list[Record]]:
    """Committed records of the result topics, partition after partition."""
    partitions = [
        TopicPartition(topic, p) for topic in topology.RESULT_TOPICS for p in range(PARTITIONS)
    ]
    records: dict[str, list[Record]] = {topic: [] for topic in topology.RESULT_TOPICS}
    with closing(ClusterAdmin(config.admin())) as admin, LogReader(config.consumer()) as reader:
        starts = admin.list_offsets(partitions, "earliest", "read_committed")
        ends = admin.list_offsets(partitions, "latest", "read_committed")
        for partition in partitions:
            for chunk in reader.read(partition, starts[partition], ends[partition]):
                records[partition.topic].extend(
                    (key, value)
                    for key, value in zip(chunk.keys, chunk.values, strict=True)
                    if key is not None
                )
    return records
