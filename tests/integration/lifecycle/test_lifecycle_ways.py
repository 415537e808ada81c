"""The two ways of a stream thread (design note 004) within one instance: the resident step, and a
Spark job for a large batch."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from pyspark import TaskContext

from everflow import KafkaStreams, StreamsBuilder, serdes
from everflow.runtime.thread.thread_job import CHANNEL_PROPERTY
from integration.lifecycle.lifecycle_cluster import Application, Cluster, long, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RESIDENT, SPARK_JOB = "resident", "spark-job"


def way(_: str) -> str:
    """How, and in which process, this record is processed."""
    context = TaskContext.get()
    assert context is not None
    return f"{RESIDENT if context.getLocalProperty(CHANNEL_PROPERTY) else SPARK_JOB} {os.getpid()}"


def test_a_batch_too_large_for_the_resident_step_is_a_spark_job_in_the_same_worker(
    app: Application, cluster: Cluster
) -> None:
    """One worker: two would be two producers with one transactional id, and two views of a
    store."""
    source, ways, counts = (
        cluster.topic("in", 1),
        cluster.topic("ways", 1),
        cluster.topic("counts", 1),
    )
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(way, returns=serdes.string()).to(ways)
    stream.group_by_key().count(store="counts").to_stream().to(counts)

    def burst(streams: KafkaStreams, records: int) -> Sequence[str]:
        """What the burst's records say, which come in one batch."""
        before = len(cluster.read(ways))
        streams.pause()
        cluster.write(source, [text("k", "v")] * records)
        streams.resume()
        app.until_processed(streams, source)
        return [(record.value or b"").decode() for record in cluster.read(ways)[before:]]

    with app.running(builder.build(), resident_max_records=50, num_stream_threads=1) as streams:
        bursts = [burst(streams, records) for records in (5, 200, 5, 200, 5)]
        (count,) = [long(record.value) for record in cluster.read(counts)[-1:]]
    taken = [{said.split()[0] for said in burst} for burst in bursts]
    assert taken == [{RESIDENT}, {SPARK_JOB}, {RESIDENT}, {SPARK_JOB}, {RESIDENT}]
    assert len({said.split()[1] for burst in bursts for said in burst}) == 1, bursts
    assert count == 415
