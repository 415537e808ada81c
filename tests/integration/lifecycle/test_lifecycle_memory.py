"""An instance with little memory is behind: its batches are as large as there is room for what is
made of them, it is told what that was, and its own process gives back what it has freed (note 045).
"""

from __future__ import annotations

import logging
import re

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, memory, serdes
from everflow.instance import assembly, kafka_streams
from everflow.memory import MIB, WORKER_BYTES, BatchMemory, MemoryBudget, least_budget
from integration.lifecycle.lifecycle_cluster import Application, Cluster, in_json

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS, TEXT = 300, "x" * 60_000
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
    written = [in_json(f"k{n % 7}", {"n": n, "text": TEXT}, n, n % 2) for n in range(RECORDS)]
    cluster.write(source, written)
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json("n bigint, text string"))
    stream.map_values(n=F.col("value.n"), length=F.length("value.text")).to(output)
    total = least_budget(1)
    most = FIRST.most_bytes(256 * MIB, MemoryBudget(total).worker(1))
    assert most < RECORDS * len(TEXT) / 2
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
    assert max(full) <= most * 2 // len(TEXT), "a worker learns, and may read more than at first"
    assert full[0] <= most // len(TEXT) + 2, "one of each partition may be more"
    assert f"idle={WORKER_BYTES}" not in batches[-1][1], "the worker has told what it takes"
    values = [serdes.json("n bigint, length bigint").decode(r.value) for r in cluster.read(output)]
    assert sorted(value["n"] for value in values) == list(range(RECORDS))
    assert {value["length"] for value in values} == {len(TEXT)}
    assert len(given_back) > 1
    assert shared
