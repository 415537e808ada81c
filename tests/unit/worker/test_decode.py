"""Decoding of records, and the check of where their keys lie."""

import contextlib
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import metrics as names
from everflow import serdes
from everflow.columns.key_partitions import BY_HASH, CRC32, MURMUR2, key_partitions
from everflow.errors import RetriableError
from everflow.handlers import DESERIALIZATION, ErrorHandlerContext, Handlers, Response
from everflow.instance.thread.batch_counts import BatchCounts, misplaced_keys
from everflow.kafka.reading.record_columns import LogColumns
from everflow.metrics import Metrics
from everflow.protocol.messages import (
    COMMITTED,
    Ages,
    BatchFigures,
    BatchRequest,
    BatchResult,
    WorkerClients,
    as_line,
    from_line,
)
from everflow.records import EdgeBatch, KeyPlaces, OffsetRange, StoreChanges, TaskId, TopicPartition
from everflow.serdes import Serde
from everflow.serdes.by_record import adopted
from everflow.serdes.debezium_serde import of_a_table
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner
from everflow.topology.batches import BatchInput
from everflow.topology.idle_sources import IdleSource
from everflow.topology.partitioners import OF_WINDOWS, KeyFunction, KeyPartitioner
from everflow.topology.plan import DEAD_LETTER_SLOT
from everflow.topology.sources import Source
from everflow.windows import Windowed
from everflow.worker import columns, serve
from everflow.worker.columns import ColumnClient, ColumnsFailed
from everflow.worker.decode import (
    ALL_UP_TO,
    MOST_KEYS,
    ONE_OF,
    Judge,
    KeyCheck,
    LogDecoder,
    decoded_records,
)
from everflow.worker.serve import PAGE_BYTES, STOP, ResidentStep, RetainedPages, WorkerPorts
from everflow.worker.times import ages_read, moved
from unit.builders import edge_batch, source
from unit.builders import source as made_source
from unit.instance.own_serde import OwnSerde
from unit.manual_clock import ManualClock


def reading(value: Serde) -> Source:
    return made_source("in", value=value)


def batch(keys: list[bytes | None], values: list[bytes | None]) -> EdgeBatch:
    return edge_batch(keys, values, pa.binary(), pa.binary(), partition=3, offset=40)


def pairs(found: EdgeBatch) -> list[tuple[Any, Any]]:
    return list(zip(found.key.to_pylist(), found.value.to_pylist(), strict=True))


def test_text_that_is_no_utf8_gets_replacement_characters() -> None:
    good, bad = decoded_records(reading(serdes.string()), batch([b"\xffk"], [b"\xe4"]), Judge())
    assert (pairs(good), len(bad)) == ([("\ufffdk", "\ufffd")], 0)


def test_a_key_and_a_value_that_cannot_be_decoded_are_one_dead_letter() -> None:
    source = reading(serdes.json("a bigint"))
    good, bad = decoded_records(source, batch([b"k", b"l"], [b"{broken", b'{"a": 1}']), Judge())
    assert pairs(good) == [("l", {"a": 1})]
    assert (bad.key.to_pylist(), bad.value[0]["value"].as_py()) == ([b"k"], b"{broken")


def test_a_serde_that_decodes_to_another_type_is_named_with_the_record() -> None:
    source = reading(adopted(Digits()))
    good, bad = decoded_records(source, batch([b"a", b"b", b"c"], [b"1", b"x", b"3"]), Judge())
    assert pairs(good) == [("a", 1), ("c", 3)]
    told = bad.value.to_pylist()[0]["error"]
    assert re.fullmatch(r"value .* Digits\(\): .*\(int\): .* found str 'x'", told)


def test_a_change_without_a_key_is_a_bad_record_of_a_table() -> None:
    changes = serdes.debezium("a bigint")
    data = [b'{"op":"c","after":{"a":1}}', b'{"op":"t"}', None, b'{"op":"c","after":{"a":2}}']
    records = batch([None, None, None, b"k"], data)
    good, bad = decoded_records(reading(of_a_table(changes)), records, Judge())
    assert pairs(good) == [(None, None), ("k", {"a": 2})]
    told = [one["error"] for one in bad.value.to_pylist()]
    assert bad.offset.tolist() == [40, 41]
    assert ["message.key.columns" in told[0], "skipped.operations" in told[1]] == [True, True]
    good, bad = decoded_records(reading(changes), records, Judge())
    assert (len(good), len(bad)) == (4, 0)


class Halves:
    """Refuses all, in a text that is no UTF-8."""

    type = "int"

    def decode(self, data: bytes) -> int:
        raise serdes.SerdeError("half of a pair: \ud83d")

    def encode(self, value: int) -> bytes:
        return b""


def test_what_a_serde_says_that_is_no_utf8_can_be_written() -> None:
    good, bad = decoded_records(reading(adopted(Halves())), batch([b"a"], [b"1"]), Judge())
    assert len(good) == 0
    assert bad.value.to_pylist()[0]["error"].endswith(r"half of a pair: \ud83d")


class Digits:
    type = "int"

    def decode(self, data: bytes) -> int | str:
        return int(data) if data.isdigit() else data.decode()

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def __repr__(self) -> str:
        return "Digits()"


def test_records_that_cannot_be_decoded_keep_their_bytes() -> None:
    source = reading(serdes.long())
    one = (1).to_bytes(8, "big")
    good, bad = decoded_records(
        source, batch([b"a", b"b", None, b"d"], [one, b"\x01", b"", None]), Judge()
    )
    assert pairs(good) == [("a", 1), ("d", None)]
    assert bad.offset.tolist() == [41, 42]
    assert bad.key.to_pylist() == [b"b", None]
    assert [value["value"] for value in bad.value.to_pylist()] == [b"\x01", b""]
    assert all("value is not" in value["error"] for value in bad.value.to_pylist())
    assert decoded_records(source, batch([], []), Judge())[1].offset.tolist() == []


def test_bytes_that_a_serde_of_the_user_does_not_take_are_a_dead_letter() -> None:
    source = reading(OwnSerde())
    good, bad = decoded_records(source, batch([b"x", b"y", b"z"], [b"a", b"b", None]), Judge())
    assert pairs(good) == [("x", "A"), ("z", None)]
    assert bad.offset.tolist() == [41]
    assert re.fullmatch(r"value .* own\(\): KeyError: b'b'", bad.value.to_pylist()[0]["error"])


@pytest.mark.parametrize(
    "error", [SystemExit("leave"), GeneratorExit("leave"), ValueError("leave")]
)
def test_whatever_a_serde_of_the_user_raises_is_of_that_record(error: BaseException) -> None:
    class Raising(OwnSerde):
        def decode(self, data: bytes | None) -> str | None:
            if data == b"b":
                raise error
            return super().decode(data)

    records = batch([b"x", b"y"], [b"a", b"b"])
    good, bad = decoded_records(reading(Raising()), records, Judge())
    assert pairs(good) == [("x", "A")]
    assert f"{type(error).__name__}: leave" in bad.value.to_pylist()[0]["error"]


def test_an_outage_of_what_a_serde_asks_is_no_dead_letter() -> None:
    class Registry(OwnSerde):
        def decode(self, data: bytes | None) -> str | None:
            raise RetriableError("the registry does not answer")

    with pytest.raises(RetriableError, match="registry"):
        decoded_records(reading(Registry()), batch([b"x"], [b"a"]), Judge())


def test_json_that_does_not_fit_is_told_by_its_place_and_not_by_the_whole_schema() -> None:
    schema = "before struct<amount:double>, after struct<items:array<struct<price:double>>>"
    source = reading(serdes.json(schema))
    value = b'{"after":{"items":[{"price":1},{"price":"12,50"}]}}'
    good, bad = decoded_records(source, batch([b"a", b"b"], [value, b"{}"]), Judge())
    assert len(good) == 1
    error = bad.value.to_pylist()[0]["error"]
    assert 'after.items[1].price (double): expected a number, found "12,50"' in error
    assert "before" not in error


def test_a_structs_key_is_told_by_its_place() -> None:
    source = replace(reading(serdes.string()), key_serde=serdes.json("o struct<at:timestamp>"))
    _, bad = decoded_records(source, batch([b'{"o":{"at":1706702400000}}'], [b"x"]), Judge())
    error = bad.value.to_pylist()[0]["error"]
    assert re.match(r"key .* json: .*: o\.at \(timestamp\):", error)
    assert "found 1706702400000" in error
    assert "declare a bigint" in error


def test_a_registrys_head_is_recognised() -> None:
    source = reading(serdes.json("a int"))
    _, bad = decoded_records(source, batch([b"k"], [b'\x00\x00\x00\x00\x07{"a":1}']), Judge())
    assert "schema id 7" in bad.value.to_pylist()[0]["error"]


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


@pytest.mark.parametrize("by", BY_HASH)
@pytest.mark.parametrize("partitions", [4, 8])
def test_a_key_may_lie_in_any_partition_of_its_task(by: str, partitions: int) -> None:
    """Of a topic that had 4 partitions and has 8, from producers that know so many (note 067)."""
    sources = (
        replace(SOURCE, partitioner=by, until=4),
        replace(SOURCE, partitioner=by, index=1, slot=1, first=4),
    )
    check = KeyCheck({"orders": 8}, {"orders": 4})
    lie = key_partitions(pa.array(KEYS), partitions, by)
    for one in sources:
        mine = [n for n, at in enumerate(lie.tolist()) if one.reads(TopicPartition("orders", at))]
        if not mine:
            assert partitions == 4
            continue
        own = [int(lie[n]) - one.first for n in mine]
        found = check.of(one, read([KEYS[n] for n in mine], own))
        assert found is not None
        assert (found.checked, found.misplaced) == (len(mine), 0)
        elsewhere = check.of(one, read([KEYS[n] for n in mine], [(n + 1) % 4 for n in own]))
        assert elsewhere is not None
        assert elsewhere.misplaced == len(mine)
        place = int(elsewhere.sample.rpartition(" ")[2])
        assert place == one.first + (own[0] + 1) % 4


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


def test_a_topic_is_told_once_with_share_and_cure(caplog: pytest.LogCaptureFixture) -> None:
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
    assert "crc32 puts" in unknown
    assert "function" in unknown


# A worker's client of the JVM, its held pages, its resident reader, and times.


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
    monkeypatch.setattr(serve, "_retained", RetainedPages())
    path = str(tmp_path / "s")
    before = LmdbStore.open(path, kind="key_value")
    before.claim("i")
    keys = [b"%d" % number for number in range(100)]
    for batch, most in (("1", LARGE), ("2", PAGE_BYTES)):
        given = StoreChanges("s", keys, [batch.encode()] * 100, np.zeros(100, np.int64))
        expected = Owner("i", "" if batch == "1" else "1")
        WorkerPorts(most_retained_bytes=most).apply(path, given, None, expected, batch, {})
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
        step=nothing, decoder=nothing, read_committed=True, ahead_bytes=1, columns=""
    )
    served = threading.Thread(target=step, args=(path,), daemon=True)
    served.start()
    connection, _ = listener.accept()
    with listener, connection, connection.makefile("rb") as lines:
        assert int(lines.readline()) == os.getpid()
        for reason in ("first", "second"):
            connection.sendall(as_line(BatchResult(outcome=COMMITTED, reason=reason)))
            assert from_line(lines.readline()).reason == reason
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


def test_only_the_records_that_are_taken_are_decoded() -> None:
    source = reading(serdes.json("a bigint"))
    log, asked = TopicPartition("in", 0), list[int]()

    def skip(context: ErrorHandlerContext, error: BaseException) -> Response:
        asked.append(context.offset)
        return Response.CONTINUE

    read = LogColumns(
        keys=pa.array([b"a", b"b", b"c", b"d"]),
        values=pa.array([b"{", b'{"a": 2}', b"{", b'{"a": 4}']),
        offsets=np.arange(40, 44, dtype=np.int64),
        timestamps=np.array([7, 8, 9, 10], np.int64),
        unread={1: ValueError("cut")},
    )
    decoder = LogDecoder((source,), False, Handlers("dead", {DESERIALIZATION: skip}))
    found = decoder.run({log: read}, Judge(decoder.handlers), later=True)
    assert (found.timestamp.tolist(), found.bytes) == ([7, 8, 9, 10], read.nbytes)
    assert (source.slot in found.batches, len(found.batches[DEAD_LETTER_SLOT])) == (False, 0)
    assert found.decode_taken is not None
    for taken, places, letters in (
        (np.array([True, False, False, True]), [3], [0]),
        (np.array([False, True, False, True]), [3], [1]),
        (np.ones(4, bool), [3], [0, 1, 2]),
    ):
        batch = replace(found, batches=dict(found.batches), rows=dict(found.rows))
        found.decode_taken(batch, taken)
        assert batch.rows[source.slot].tolist() == places
        assert batch.batches[source.slot].value.to_pylist() == [{"a": 4}]
        assert batch.rows[DEAD_LETTER_SLOT].tolist() == letters
    assert asked == [40, 41, 42], "each is asked about once, when it is taken"
    assert decoder.run({log: read}, Judge(decoder.handlers)).decode_taken is None
