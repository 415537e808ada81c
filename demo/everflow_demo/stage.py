"""What a demo runs on: a broker, an instance until all is processed, the committed results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from everflow import KafkaStreams
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.errors import FatalError
from everflow.instance.client_state import ENDED
from everflow.instance.describe import summary
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import LogReader
from everflow.records import TopicPartition
from everflow.testing.broker import EmbeddedBroker
from everflow.topology.program import Topology
from everflow_demo import feed
from everflow_demo.data import TopicRecords
from everflow_demo.progress import LagReader, Progress, input_topics

PARTITIONS = 4
CHANGELOG_RETENTION_MS = 100 * 365 * 86_400_000
TIMEOUT_S = 900.0
_POLL_S = 0.25
Record = tuple[bytes, bytes | None]


def broker_with(topics: Iterable[str], stack: ExitStack, status: StatusLine) -> EmbeddedBroker:
    """A broker with the topics; it ends with ``stack``."""
    broker = stack.enter_context(EmbeddedBroker(progress=status.say))
    for topic in topics:
        broker.create_topic(topic, PARTITIONS)
    return broker


def settings(
    application_id: str, bootstrap_servers: str, guarantee: str, threads: int | None, state: Path
) -> dict[str, Any]:
    """Those of an instance."""
    return {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "processing.guarantee": guarantee,
        **({} if threads is None else {"num.stream.threads": threads}),
        "state.dir": str(state),
        # Brokers delete by record time: the windows' changelog of flights of 2013 would be gone
        # before a second instance reads it.
        "windowstore.changelog.additional.retention.ms": CHANGELOG_RETENTION_MS,
    }


def send_all(listed: Iterable[TopicRecords], bootstrap_servers: str, status: StatusLine) -> None:
    """All records, now; returns when the broker has them."""
    for records in listed:
        feed.send_all(records, bootstrap_servers)
        status.say(
            f"{len(records):,} records are in topic {records.topic} ({PARTITIONS} partitions)"
        )


@contextmanager
def instance(
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


def process(config: StreamsConfig, program: Topology, status: StatusLine) -> None:
    """Run an instance until everything it reads is consumed and committed, then close it."""
    topics = input_topics(program, config.application_id)
    progress = Progress()
    deadline = time.monotonic() + TIMEOUT_S
    with (
        instance(config, program, status) as streams,
        closing(ClusterAdmin(config.admin())) as admin,
    ):
        streams.start()
        reader = LagReader(admin, config.application_id, topics)
        while progress.lag != 0:
            if streams.state in ENDED:
                raise streams.error or FatalError(
                    "the instance stopped before all records were processed"
                )
            if time.monotonic() > deadline:
                raise FatalError(f"not done after {TIMEOUT_S:.0f} s: {progress.line()}")
            sample = reader.sample(time.monotonic(), summary(streams.all_tasks()))
            if sample is not None:
                progress.add(sample)
                status.show(progress.line())
            time.sleep(_POLL_S)


def read_results(config: StreamsConfig, topics: Iterable[str]) -> dict[str, list[Record]]:
    """Committed records of the topics, partition after partition."""
    records: dict[str, list[Record]] = {topic: [] for topic in topics}
    partitions = [TopicPartition(topic, p) for topic in records for p in range(PARTITIONS)]
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


def latest(records: Iterable[Record]) -> dict[bytes, bytes]:
    """The last value of each key; a null value deletes it."""
    found: dict[bytes, bytes] = {}
    for key, value in records:
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found
