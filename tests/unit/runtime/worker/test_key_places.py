"""Keys that lie elsewhere than their topic's partitioner says are found, and told once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from everflow import metrics as names
from everflow import serdes
from everflow.clock import ManualClock
from everflow.columns.key_partitions import BY_HASH, CRC32, MURMUR2, key_partitions
from everflow.metrics import Metrics
from everflow.records import EdgeBatch, KeyPlaces
from everflow.runtime.commit.batch import COMMITTED, BatchFigures, BatchResult
from everflow.runtime.thread.batch_counts import BatchCounts, misplaced_keys
from everflow.runtime.worker.key_places import ALL_UP_TO, MOST_KEYS, ONE_OF, KeyCheck
from everflow.topology.partitioners import OF_WINDOWS, KeyFunction, KeyPartitioner
from everflow.topology.physical_plan import Source
from everflow.windows import Windowed

SOURCE = Source(
    index=0,
    topic="orders",
    subtopology=0,
    node="orders-source",
    key_serde=serdes.string(),
    value_serde=serdes.string(),
    offset_reset=None,
    kind="stream",
    merged=False,
    slot=0,
    partitioner=MURMUR2,
)
KEYS = [f"key-{number}".encode() for number in range(100)]


def read(keys: list[bytes | None], lie: list[int]) -> EdgeBatch:
    count = len(keys)
    return EdgeBatch(
        key=pa.array(keys, pa.binary()),
        value=pa.nulls(count, pa.binary()),
        timestamp=np.zeros(count, np.int64),
        seq=np.arange(count),
        source=np.zeros(count, np.int32),
        partition=np.array(lie, np.int32),
        offset=np.arange(count),
    )


def written(by: str, keys: list[bytes] = KEYS, partitions: int = 4) -> EdgeBatch:
    return read([*keys], key_partitions(pa.array(keys), partitions, by).tolist())


@pytest.mark.parametrize("by", BY_HASH)
@pytest.mark.parametrize("said", BY_HASH)
def test_keys_of_another_partitioner_are_counted_and_it_is_named(said: str, by: str) -> None:
    check = KeyCheck({"orders": 4})
    found = check.of(replace(SOURCE, partitioner=said), written(by))
    assert found is not None
    assert (found.topic, found.node, found.checked) == ("orders", "orders-source", 100)
    if said == by:
        assert (found.misplaced, found.sample, found.fits) == (0, "", "")
    else:
        assert 50 < found.misplaced < 100
        assert found.fits == by
        assert "key-" in found.sample


def test_a_function_says_where_keys_belong_and_its_failure_ends_nothing() -> None:
    def length(topic: str, key: str, value: None, partitions: int) -> int:
        assert topic == "orders"
        return len(key) % partitions

    by: KeyPartitioner = KeyFunction(length, ("orders",))
    source, lie = replace(SOURCE, partitioner=by), [len(key) % 4 for key in KEYS]
    check = KeyCheck({"orders": 4})
    found = check.of(source, read([*KEYS], lie))
    assert found is not None
    assert found.misplaced == 0
    failing = replace(SOURCE, partitioner=KeyFunction(lambda *_: 1 // 0, ("orders",)))
    found = check.of(failing, read([*KEYS], lie))
    assert found is not None
    assert (found.misplaced, found.fits) == (100, "")


def test_keys_that_lie_anywhere_are_not_looked_at() -> None:
    check = KeyCheck({"orders": 4})
    assert check.of(SOURCE, read([None, None], [1, 3])) is None
    assert check.of(replace(SOURCE, partitioner=CRC32), read([b"", None], [3, 1])) is None
    assert check.of(replace(SOURCE, partitioner=None), written(CRC32)) is None
    assert KeyCheck({"orders": 1}).of(SOURCE, written(CRC32)) is None
    found = check.of(SOURCE, read([None, b"key-1"], [1, 9]))
    assert found is not None
    assert (found.checked, found.misplaced) == (1, 1)


def test_few_keys_of_a_micro_batch_are_looked_at_and_of_few_micro_batches() -> None:
    check, many = KeyCheck({"orders": 4}), written(MURMUR2, KEYS * 20)
    found = [check.of(SOURCE, many) for _ in range(200)]
    looked = [one for one in found if one is not None]
    assert {one.misplaced for one in looked} == {0}
    assert max(one.checked for one in looked) <= MOST_KEYS
    assert len(looked) <= ALL_UP_TO // 200 + 1 + 200 // ONE_OF + 1
    assert all(one is not None for one in found[: ALL_UP_TO // MOST_KEYS])


def test_windowed_keys_lie_by_their_key_alone_as_kafka_streams_puts_them() -> None:
    serde = serdes.time_windowed(serdes.string(), 10)
    keys = [serde.encode(Windowed(f"k{n}", n * 10, n * 10 + 10)) or b"" for n in range(50)]
    inner = key_partitions(pa.array([f"k{n}".encode() for n in range(50)]), 4, MURMUR2)
    source = replace(SOURCE, key_serde=serde, partitioner=OF_WINDOWS)
    check = KeyCheck({"orders": 4})
    found = check.of(source, read([*keys], inner.tolist()))
    assert found is not None
    assert found.misplaced == 0
    for by in (MURMUR2, CRC32):  # of whoever does not know of windows
        found = check.of(source, written(by, keys))
        assert found is not None
        assert found.misplaced > 10
        assert found.fits == by


def test_a_topic_is_told_once_with_the_share_the_cause_and_the_cure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    counts = BatchCounts(metrics, ManualClock(), 0)
    keys = [
        KeyPlaces("orders-source", "orders", MURMUR2, 256, 192, "'a' in 3", CRC32),
        KeyPlaces("clicks-source", "clicks", MURMUR2, 10, 0),
    ]
    for _ in range(3):
        counts.add(BatchResult(outcome=COMMITTED, figures=BatchFigures(keys=keys)))
    (line,) = caplog.messages
    for part in ("192 of 256", "orders", "'a' in 3", "partitioner='crc32'", "orders-source"):
        assert part in line
    series = metrics.series()
    assert series[names.KEYS_CHECKED] == {("orders",): 768, ("clicks",): 30}
    assert series[names.KEYS_MISPLACED] == {("orders",): 576, ("clicks",): 0}
    BatchCounts(metrics, ManualClock(), 1).add(
        BatchResult(outcome=COMMITTED, figures=BatchFigures(keys=keys))
    )
    assert len(caplog.messages) == 1
    unknown = misplaced_keys([KeyPlaces("n", "t", CRC32, 4, 1, "'a' in 3")])["t"]
    assert "crc32 puts them" in unknown
    assert "function" in unknown


def test_what_is_told_travels_as_json() -> None:
    keys = (KeyPlaces("orders-source", "orders", MURMUR2, 256, 192, "'ä' in 3", CRC32),)
    result = BatchResult(outcome=COMMITTED, figures=BatchFigures(keys=keys))
    assert BatchResult.from_json(result.to_json()).figures.keys == keys
