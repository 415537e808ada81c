"""What coordinators say of transactional ids, and batches that are made of columns."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from everflow.kafka.admin import UNKNOWN_ID, TransactionState, transaction_states
from everflow.kafka.errors import LinkLostError
from everflow.kafka.reading.record_batches import batches, columns
from everflow.kafka.writing import record_encoding
from everflow.kafka.writing.record_encoding import (
    CODECS,
    Producer,
    RecordColumns,
    batch_ends,
    encode,
    encoded_headers,
    framed,
)

NOT_COORDINATOR = 16


class Link:
    """Two brokers: the odd ids are the second one's."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []
        self.lost: set[int] = set()
        self.asked: list[tuple[int, list[str]]] = []

    async def coordinator(self, kind: str, key: str) -> int:
        assert kind == "transaction"
        return int(key[-1]) % 2

    def forget_coordinator(self, kind: str, key: str) -> None:
        self.forgotten.append(key)

    async def send(self, node: int, request: Any, timeout_s: float) -> Any:
        if node in self.lost:
            raise LinkLostError("away", sent=True)
        self.asked.append((node, list(request.transactional_ids)))
        return SimpleNamespace(transaction_states=[told(one) for one in request.transactional_ids])


def asked(link: Any, ids: Iterable[str]) -> dict[str, TransactionState]:
    return asyncio.run(transaction_states(link, ids, 1.0))


STATES = {
    "app-0": (0, "Ongoing", 500),
    "app-1": (0, "CompleteCommit", 400),
    "app-2": (UNKNOWN_ID, "", -1),
    "app-3": (NOT_COORDINATOR, "", -1),
    "app-4": (0, "PrepareAbort", 300),
}


def told(name: str) -> Any:
    code, state, start = STATES[name]
    return SimpleNamespace(
        error_code=code,
        transactional_id=name,
        transaction_state=state,
        transaction_start_time_ms=start,
    )


def test_each_broker_is_asked_once_and_an_open_one_has_its_begin() -> None:
    link = Link()
    assert asked(link, STATES) == {
        "app-0": TransactionState("Ongoing", 500),
        "app-1": TransactionState("CompleteCommit"),
        "app-2": TransactionState(""),
        "app-4": TransactionState("PrepareAbort", 300),
    }
    assert link.asked == [(0, ["app-0", "app-2", "app-4"]), (1, ["app-1", "app-3"])]
    assert link.forgotten == ["app-3"], "the next time another broker is asked"


def test_a_broker_that_is_away_leaves_out_its_ids() -> None:
    link = Link()
    link.lost = {0}
    assert asked(link, ["app-0", "app-1"]) == {"app-1": TransactionState("CompleteCommit")}
    link.lost = {0, 1}
    with pytest.raises(LinkLostError):
        asked(link, ["app-0"])


ME = Producer(7, 3, True)
SIZES = st.sampled_from([0, 1, 2, 3, 4, 7, 63, 64, 65, 127, 128, 200, 9000])
BYTES = st.none() | SIZES.flatmap(lambda size: st.binary(min_size=size, max_size=size))
TIMES = st.sampled_from([0, 1, -1, 1_700_000_000_000, 1 << 45, -(1 << 45)]) | st.integers(
    0, 1 << 42
)
NAMES = st.sampled_from(["", "a", "ü" * 40])
HEADERS = st.none() | st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=80)), max_size=3)
RECORDS = st.lists(st.tuples(BYTES, BYTES, TIMES, HEADERS), min_size=1, max_size=50)


def columns_of(records: list[Any]) -> RecordColumns:
    """Slices of larger columns: a buffer's beginning is not the column's."""
    keys = pa.array([b"before", *(record[0] for record in records)], pa.binary())[1:]
    values = pa.array([None, *(record[1] for record in records)], pa.binary())[1:]
    times = np.array([record[2] for record in records], np.int64)
    return RecordColumns(keys, values, times, encoded_headers([record[3] for record in records]))


def read_by_a_client(data: bytes) -> list[Any]:
    found, records = [], MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        assert (batch.producer_id, batch.producer_epoch, batch.is_transactional) == (7, 3, True)
        own = list(batch)
        assert batch.max_timestamp == max(record.timestamp for record in own)
        found += [(one.key, one.value, one.timestamp, list(one.headers) or None) for one in own]
    return found


@given(RECORDS, st.sampled_from([1, 500, 20_000, 1 << 20]), st.sampled_from([1, 1000, 64 << 20]))
def test_a_client_reads_what_was_written(records: list[Any], limit: int, joined: int) -> None:
    written = columns_of(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_encoding, "_JOINED_BYTES", joined)
        made = encode(written, batch_ends(written.sizes, limit))
    data = [framed(one, ME, sequence, "none", None) for sequence, one in enumerate(made)]
    assert read_by_a_client(b"".join(data)) == [
        (key, value, time, headers or None) for key, value, time, headers in records
    ]
    for one, whole in zip(made, data, strict=True):
        assert len(one) == 1 or len(whole) <= limit + 61  # the header of a batch


@given(RECORDS, st.sampled_from(sorted(CODECS)))
def test_our_own_reader_reads_it_with_any_codec(records: list[Any], codec: str) -> None:
    written = columns_of(records)
    data = b"".join(framed(one, ME, 0, codec, None) for one in encode(written, [len(records)]))
    read = columns(data, batches(data))
    assert read.keys() == [record[0] for record in records]
    assert read.values() == [record[1] for record in records]
    assert read.timestamps.tolist() == [record[2] for record in records]
