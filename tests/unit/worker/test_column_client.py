"""A worker's client of the JVM, its held pages, its resident reader, and times."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.errors import RetriableError
from everflow.protocol.messages import (
    COMMITTED,
    Ages,
    BatchRequest,
    BatchResult,
    WorkerClients,
    as_line,
)
from everflow.records import OffsetRange, StoreChanges, TaskId, TopicPartition
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner
from everflow.topology.batches import BatchInput
from everflow.topology.idle_sources import IdleSource
from everflow.topology.plan import Source
from everflow.worker import columns, serve
from everflow.worker.columns import ColumnClient, ColumnsFailed
from everflow.worker.serve import (
    PAGE_BYTES,
    STOP,
    ResidentStep,
    RetainedPages,
    WorkerPorts,
)
from everflow.worker.times import ages_read, moved
from unit.builders import source

ROWS = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})
TABLE = pa.Table.from_batches([ROWS])


@contextmanager
def service(path: Path, *answers: bytes) -> Iterator[str]:
    """Reads a request for each of the answers, then hangs up."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as requests:
            for answer in answers:
                _, size = struct.unpack(">ii", requests.read(8))
                requests.read(size)
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield str(path)
    finally:
        thread.join(10)
        listener.close()


def rows(batch: pa.RecordBatch = ROWS) -> bytes:
    message: bytes = batch.serialize().to_pybytes()
    return struct.pack(">i", len(message)) + message


def failure(row: int, text: str) -> bytes:
    return struct.pack(">iii", -1, row, len(text.encode())) + text.encode()


def test_an_answer_is_a_batch(tmp_path: Path) -> None:
    with service(tmp_path / "s", rows(), rows()) as path, closing(ColumnClient(path)) as client:
        assert client.run(1, ROWS, ROWS.schema).equals(TABLE)
        assert client.run(2, ROWS, ROWS.schema).equals(TABLE)


def test_many_bytes_go_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "SLICE_BYTES", 1)
    one = pa.RecordBatch.from_pydict({"a": [7]})
    answers = (rows(one), rows(one), failure(0, "third"))
    with (
        service(tmp_path / "s", *answers) as path,
        closing(ColumnClient(path)) as client,
        pytest.raises(ColumnsFailed) as failed,
    ):
        client.run(1, ROWS, ROWS.schema)
    assert failed.value.row == 2
    with service(tmp_path / "t", *[rows(one)] * 3) as path, closing(ColumnClient(path)) as client:
        assert client.run(1, ROWS, ROWS.schema).column("a").to_pylist() == [7, 7, 7]


def test_no_rows_need_no_answer(tmp_path: Path) -> None:
    with closing(ColumnClient(str(tmp_path / "none"))) as client:
        assert client.run(1, ROWS.slice(0, 0), ROWS.schema).num_rows == 0


@pytest.mark.parametrize(("row", "told"), [(2, 2), (-1, None)])
def test_a_failure_has_its_row_and_no_more(tmp_path: Path, row: int, told: int | None) -> None:
    said = "SparkArithmeticException: [DIVIDE_BY_ZERO] é\n\tat ..."
    answers = (failure(row, said), rows())
    with service(tmp_path / "s", *answers) as path, closing(ColumnClient(path)) as client:
        with pytest.raises(ColumnsFailed) as failed:
            client.run(1, ROWS, ROWS.schema)
        assert (failed.value.row, failed.value.text) == (told, said)
        assert client.run(1, ROWS, ROWS.schema).equals(TABLE)


@pytest.mark.parametrize("answer", [b"", rows()[:2], rows()[:40], failure(1, "why")[:9]])
def test_a_jvm_that_hangs_up_is_a_passing_fault(tmp_path: Path, answer: bytes) -> None:
    """The driver knows whether it will ever come back."""
    with (
        service(tmp_path / "s", answer) as path,
        closing(ColumnClient(path)) as client,
        pytest.raises(RetriableError, match="hung up"),
    ):
        client.run(1, ROWS, ROWS.schema)


def test_nobody_there_is_a_passing_fault(tmp_path: Path) -> None:
    with closing(ColumnClient(str(tmp_path / "none"))) as client, pytest.raises(RetriableError):
        client.run(1, ROWS, ROWS.schema)


LARGE = 1 << 40


def test_the_fullest_stores_are_closed_until_the_rest_is_within_the_bound() -> None:
    held, most = RetainedPages(), 10 * PAGE_BYTES
    assert held.wrote("a", 4, LARGE, most) == []
    assert held.wrote("b", 6, LARGE, most) == []
    assert held.wrote("c", 5, LARGE, most) == ["b"]
    assert held.wrote("c", 2, LARGE, most) == [], "what is held is held for the next one"
    assert held.wrote("b", 1, LARGE, most) == []
    assert held.wrote("d", 20, LARGE, most) == ["d"], "no store is closed for another's pages"


def test_no_more_pages_are_held_than_there_are() -> None:
    held = RetainedPages()
    assert held.wrote("a", 1_000, 3 * PAGE_BYTES, 4 * PAGE_BYTES) == []
    assert held.wrote("b", 1_000, 3 * PAGE_BYTES, 4 * PAGE_BYTES) == ["a"]


def test_a_worker_closes_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_held", RetainedPages())
    path = str(tmp_path / "s")
    before = LmdbStore.open(path, kind="key_value")
    before.claim("i")
    keys = [b"%d" % number for number in range(100)]
    for batch, most in (("1", LARGE), ("2", PAGE_BYTES)):
        given = StoreChanges("s", keys, [batch.encode()] * 100, np.zeros(100, np.int64))
        expected = Owner("i", "" if batch == "1" else "1")
        WorkerPorts(held_bytes=most).apply(path, given, None, expected, batch, {})
        assert (LmdbStore.open(path) is before) == (most == LARGE)
    with LmdbStore.open(path).snapshot() as view:
        assert view.get_many(keys) == [bytes(8) + b"2"] * 100
    LmdbStore.close_at(path)


WAIT_S = 60.0


class Reader:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_the_first_request_opens_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, asked = Reader(), []
    told = WorkerClients({"bootstrap.servers": "b:1"})
    monkeypatch.setattr(serve, "clients_of", lambda gate: told)

    def answer(
        step: ResidentStep, got: Any, columns: object, opened: contextlib.ExitStack
    ) -> BatchResult:
        asking: Any = SimpleNamespace(gate="")
        step._connected(asking, opened)
        result: BatchResult = got
        return result

    monkeypatch.setattr(ResidentStep, "_result", answer)

    def opened(client: Mapping[str, Any], *_: object, **__: object) -> Reader:
        asked.append(client)
        return reader

    monkeypatch.setattr(serve, "RangeReader", opened)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "r"))
    listener.listen(1)
    listener.settimeout(WAIT_S)
    nothing: Any = SimpleNamespace(headers=False)
    path = str(tmp_path / "r")
    step = ResidentStep(
        step=nothing,
        decoder=nothing,
        read_committed=True,
        ahead_bytes=1,
        columns="",
    )
    served = threading.Thread(target=step, args=(path,), daemon=True)
    served.start()
    connection, _ = listener.accept()
    with listener, connection:
        for reason in ("first", "second"):
            request = as_line(BatchResult(outcome=COMMITTED, reason=reason))
            connection.sendall(request)
            assert connection.makefile("rb").readline() == request
        connection.sendall(STOP)
        served.join(WAIT_S)
    assert not served.is_alive()
    assert reader.closed
    assert asked == [told.reader]


TASK, NEXT = TaskId(0, 0), TaskId(0, 1)


def idle_source(index: int, topic: str, idle: IdleSource | None = None) -> Source:
    return source(topic, index=index, node=topic, offset_reset=None, merged=True, idle=idle)


SOURCES = (idle_source(0, "in", IdleSource("in/idle", 1_000)), idle_source(1, "busy"))


def request(**ends: int) -> BatchRequest:
    partitions = [TopicPartition(topic, p) for topic in ("in", "busy") for p in (0, 1)]
    return BatchRequest(
        batch_id="i.0.0",
        thread=0,
        attempt=0,
        guarantee="exactly_once_v2",
        transactional_id="t",
        wall_clock_ms=0,
        gate="",
        ranges={tp: OffsetRange(4, 4) for tp in partitions},
        log_ends={tp: ends.get(f"{tp.topic}{tp.partition}", 4) for tp in partitions},
        tasks=[],
        application_id="app",
        idle={TASK: {"in/idle": 90}, NEXT: {"in/idle": 80}},
    )


def test_a_task_with_a_record_that_is_left_is_not_moved() -> None:
    asked = request(busy1=5)
    consumed = {tp: one.end for tp, one in asked.ranges.items()}
    assert moved(request(), SOURCES, consumed) == asked.idle
    assert moved(asked, SOURCES, consumed) == {TASK: {"in/idle": 90}}


NAMES = ("a", "b")
READ_SOURCES = [
    source(
        name,
        index=index,
        node=f"{name}-node",
        subtopology=index,
        offset_reset=None,
        kind="source",
        slot=index,
    )
    for index, name in enumerate(NAMES)
]
RUNS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2),
        st.lists(st.integers(-1, 50), min_size=1, max_size=6),
        st.integers(0, 6),
    ),
    unique_by=lambda run: run[:2],
    max_size=5,
)


@given(RUNS, st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 2)), st.integers(-1, 60)))
def test_ages_are_those_of_a_plain_loop(
    runs: list[tuple[int, int, list[int], int]], newest: dict[tuple[int, int], int]
) -> None:
    """Runs: source, partition, times, and how many of them are consumed."""
    rows = [(s, p, n, ms) for s, p, times, _ in runs for n, ms in enumerate(times)]
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(4)]
    hop = BatchInput(
        batches={},
        rows={},
        source=columns[0],
        partition=columns[1],
        offset=columns[2],
        timestamp=columns[3],
    )
    consumed = {TopicPartition(NAMES[s], p): read for s, p, _, read in runs}
    before = {TaskId(*task): ms for task, ms in newest.items()}
    wanted = []
    for s, p, times, read in runs:
        taken = [ms for ms in times[:read] if ms >= 0]
        latest, late = newest.get((s, p), -1), []
        for ms in taken:
            latest = max(latest, ms)
            late.append(latest - ms)
        if taken:
            told = (len(taken), sum(taken), min(taken), max(taken), sum(late), max(late))
            wanted.append(Ages(f"{s}_{p}", f"{NAMES[s]}-node", *told))
    assert ages_read(hop, READ_SOURCES, consumed, before) == wanted


def test_times_become_latency_and_lateness() -> None:
    ages = Ages("0_0", "in", 2, 30.0, 10, 20, 10.0, 10)
    assert ages.latency_ms(100) == (2, 170.0, 80, 90)
    assert ages.lateness_ms == (2, 10.0, 0.0, 10)
