"""Writers of sinks (note 072): files and tables in a folder as they are; of PostgreSQL what its
statements are made of, with a fake of its connection."""

import decimal
import errno
import fcntl
import http.server
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from everflow import RefusedRows, SinkBatch
from everflow.errors import RetriableError, SinkError
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.sinks import postgresql
from everflow.sinks.batch import RowRefused, SinkAhead, last_of_each
from everflow.sinks.data_source import PARTITIONS, DataSourceSink
from everflow.sinks.delta import DeltaSink
from everflow.sinks.files import ParquetSink
from everflow.sinks.http_service import HttpSink
from everflow.sinks.postgresql import PostgresSink

IN = TopicPartition("in", 0)


def batch(start: int, end: int, **more: Any) -> SinkBatch:
    """Records from ``start`` to ``end``; each value is its offset."""
    rows = pa.table({"k": [f"k{n}" for n in range(start, end)], "v": pa.array(range(start, end))})
    made = {
        "rows": rows,
        "application_id": "app",
        "sink": "out",
        "task": TaskId(0, 0),
        "offsets": {IN: OffsetRange(start, end)},
    }
    return SinkBatch(**{**made, **more})


def rows_of(sink: Any) -> list[int]:
    if isinstance(sink, ParquetSink):
        table = pq.ParquetDataset(sink.path).read()
    else:
        import deltalake

        table = pa.table(deltalake.DeltaTable(sink.path).to_pyarrow_table())
    return sorted(table.column("v").to_pylist())


# --- files and Delta: they keep a position --------------------------------------------------------


@pytest.fixture(params=["parquet", "delta"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made: Any = ParquetSink if request.param == "parquet" else DeltaSink
    return made(path=str(tmp_path / "rows"))


def other_process(sink: Any) -> Any:
    return pickle.loads(pickle.dumps(sink))


def test_rows_are_there_once_however_the_batch_is_cut_again(sink: Any) -> None:
    sink.write(batch(0, 4))
    sink.write(batch(4, 10))
    again = other_process(sink)
    again.write(batch(4, 10))
    again.write(batch(4, 7))
    with pytest.raises(SinkAhead) as ahead:
        again.write(batch(7, 15))
    assert ahead.value.ends == {IN: 10}
    again.write(batch(7, 10))
    again.write(batch(10, 15))
    assert rows_of(sink) == list(range(15))


def test_inputs_have_positions_of_their_own(sink: Any) -> None:
    other = TopicPartition("in", 1)
    sink.write(batch(0, 4))
    sink.write(batch(0, 4, task=TaskId(0, 1), offsets={other: OffsetRange(0, 4)}))
    sink.write(batch(0, 4, sink="another"))
    assert rows_of(sink) == sorted([*range(4)] * 3)


def test_a_process_that_was_taken_for_dead_does_not_write_the_batch_again(sink: Any) -> None:
    late = other_process(sink)
    sink.write(batch(0, 4))
    late.write(batch(0, 4))  # both know that nothing lies behind 4
    sink.write(batch(4, 10))
    if isinstance(late, DeltaSink):
        late._table.update_incremental = lambda: None  # it has looked already
        with pytest.raises(RetriableError):
            late.write(batch(4, 12))
    with pytest.raises(SinkAhead):
        late.write(batch(4, 12))
    assert rows_of(sink) == list(range(10))


def test_rows_of_one_that_was_taken_for_dead_are_seen_where_the_new_owner_had_none(
    sink: Any,
) -> None:
    """The new owner's batch from 4 to 7 had no rows: nothing says in the sink that it was."""
    late = other_process(sink)
    sink.write(batch(0, 4))
    late.write(batch(4, 10))
    with pytest.raises(SinkAhead) as ahead:
        sink.write(batch(7, 15))
    assert ahead.value.ends == {IN: 10}
    assert rows_of(sink) == list(range(10))


def test_files_of_one_batch_are_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    """One that was taken for dead stands in the middle of a file; what is left of another, which
    died there, goes."""
    sink = ParquetSink(path=str(tmp_path))
    sink.write(batch(0, 4))
    (lock,) = tmp_path.glob(".*.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RetriableError):
            sink.write(batch(4, 8))
    left = tmp_path / f"{lock.name.removesuffix('.lock')}-{4:020d}.99"
    left.touch()
    other_process(sink).write(batch(4, 8))
    assert not left.exists()
    assert rows_of(sink) == list(range(8))


def test_a_topic_that_was_created_again_is_noticed(sink: Any) -> None:
    created_again(sink, rows_of)


def created_again(sink: Any, read: Callable[[Any], list[int]]) -> None:
    """Offsets of the new topic say nothing of the rows that are there."""
    sink.write(batch(0, 4, topic_ids={"in": "first"}))
    other_process(sink).write(batch(4, 6))  # the id is not known
    other_process(sink).write(batch(6, 8, topic_ids={"in": "first"}))
    with pytest.raises(SinkError, match=r"topic in .* second now"):
        other_process(sink).write(batch(0, 2, topic_ids={"in": "second"}))
    other_process(sink).write(batch(0, 2, topic_ids={"in": "second"}, sink="anew"))
    assert read(sink) == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]


def test_rows_of_a_clock_move_no_position(sink: Any) -> None:
    sink.write(batch(0, 4))
    sink.write(batch(4, 6, offsets={}))
    sink.write(batch(4, 6))
    assert rows_of(sink) == [0, 1, 2, 3, 4, 4, 5, 5]


def test_columns_that_do_not_fit_a_delta_table_are_named_with_both_types(tmp_path: Path) -> None:
    sink = DeltaSink(path=str(tmp_path))
    sink.write(batch(0, 1))
    with pytest.raises(SinkError, match=r"'v' .*bigint.*string"):
        sink.write(batch(1, 2, rows=pa.table({"k": ["x"], "v": ["y"]})))
    with pytest.raises(SinkError, match="'w'"):
        sink.write(batch(1, 2, rows=pa.table({"k": ["x"], "w": [1]})))
    assert rows_of(sink) == [0]


def test_a_delta_table_takes_narrower_numbers(tmp_path: Path) -> None:
    sink = DeltaSink(path=str(tmp_path))
    sink.write(batch(0, 1))
    sink.write(batch(1, 2, rows=pa.table({"k": ["x"], "v": pa.array([1], pa.int32())})))
    assert rows_of(sink) == [0, 1]


def test_a_delta_table_may_have_more_columns_in_another_order(tmp_path: Path) -> None:
    import deltalake

    deltalake.write_deltalake(str(tmp_path), pa.table({"v": [-1], "extra": ["theirs"], "k": ["x"]}))
    sink = DeltaSink(path=str(tmp_path))
    sink.write(batch(0, 2))
    assert rows_of(sink) == [-1, 0, 1]


def test_values_that_do_not_fit_a_delta_table_are_rows_that_it_refuses(tmp_path: Path) -> None:
    sink = DeltaSink(path=str(tmp_path))
    sink.write(batch(0, 1, rows=pa.table({"k": ["x"], "v": pa.array([0], pa.int32())})))
    with pytest.raises(RefusedRows) as refused:
        sink.write(batch(1, 4, rows=pa.table({"k": ["x", "y", "z"], "v": [1, 1 << 40, 1 << 41]})))
    assert list(refused.value.rows) == [1, 2]
    why = refused.value.rows[1]
    assert isinstance(why, RowRefused)
    assert (why.target, why.column) == (str(tmp_path), "v")
    assert str(1 << 40) not in str(why)
    assert rows_of(sink) == [0]


def test_a_delta_table_gets_a_column_before_the_program_that_fills_it(tmp_path: Path) -> None:
    """Docs: add-a-column.md. Old and new instances write beside each other."""
    from deltalake import DeltaTable, Field
    from deltalake.schema import PrimitiveType

    before, after = DeltaSink(path=str(tmp_path)), DeltaSink(path=str(tmp_path))
    before.write(batch(0, 1, rows=pa.table({"v": [0]})))
    DeltaTable(str(tmp_path)).alter.add_columns(Field("coupon", PrimitiveType("string")))
    before.write(batch(1, 2, rows=pa.table({"v": [1]})))
    after.write(batch(2, 3, rows=pa.table({"v": [2], "coupon": ["spring"]})))
    before.write(batch(3, 4, rows=pa.table({"v": [3]})))
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("v")
    assert found.column("coupon").to_pylist() == [None, None, "spring", None]


def test_a_file_that_cannot_be_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink(path=str(tmp_path))

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RetriableError, match="No space left"):
        sink.write(batch(0, 4))
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".lock")] == []
    monkeypatch.undo()
    sink.write(batch(0, 4))
    assert rows_of(sink) == [0, 1, 2, 3]


def test_a_folder_that_cannot_be_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError):
        ParquetSink(path=str(tmp_path / "file" / "rows")).write(batch(0, 1))


# --- PostgreSQL -----------------------------------------------------------------------------------


def test_copy_reads_each_type_as_it_was() -> None:
    moment = datetime(2026, 1, 1, 12, 0, 0, 5, timezone.utc)
    rows = pa.table(
        {
            "text": ["a", None, "", 'q"x\ny'],
            "long": [1, None, 3, 4],
            "double": [1.5, float("nan"), float("inf"), None],
            "bytes": pa.array([b"\x00a", None, b"", b"z"]),
            "time": pa.array([moment] * 4, pa.timestamp("us", "UTC")),
            "decimal": pa.array([decimal.Decimal("1.50")] * 4, pa.decimal128(10, 2)),
            "day": [date(2026, 1, 1)] * 4,
            "nested": [{"n": [1]}, None, {"n": []}, {"n": None}],
        }
    )
    lines = bytes(postgresql.as_csv(rows, {})).decode().replace('"q""x\ny"', "Q").splitlines()
    ends = "2026-01-01 12:00:00.000005Z,1.50,2026-01-01"
    assert lines == [
        ",".join(f'"{name}"' for name in rows.column_names),
        rf'"a",1,1.5,"\x0061",{ends},"{{""n"": [1]}}"',
        f",,nan,,{ends},",
        rf'"",3,inf,"\x",{ends},"{{""n"": []}}"',
        rf'Q,4,,"\x7a",{ends},"{{""n"": null}}"',
    ]


@pytest.mark.parametrize(("line", "row"), [(2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (7, None)])
def test_a_line_of_copy_is_a_row_though_texts_have_lines(line: int, row: int | None) -> None:
    lines = postgresql._Lines("out", "t")
    lines.begin(pa.table({"t": ["one", "two\nand\nmore", None]}), {})
    assert lines.row_of(line) == row


@dataclass
class ServerError(Exception):
    """As psycopg's."""

    sqlstate: str | None
    diag: Any


def diagnosis(**more: Any) -> SimpleNamespace:
    """As psycopg's ``diag``."""
    names = ("message_primary", "message_detail", "context", "table_name", "column_name")
    none = dict.fromkeys([*names, "constraint_name", "datatype_name"])
    return SimpleNamespace(**{**none, **more})


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (None, RetriableError),  # the connection was lost
        ("08006", RetriableError),
        ("28P01", RetriableError),  # a password that is changed just now
        ("40P01", RetriableError),  # a deadlock
        ("53100", RetriableError),  # a full disk
        ("57P01", RetriableError),  # a shutdown
        ("42501", SinkError),  # no right to write
        ("42P10", SinkError),  # no unique index on the key
        ("23503", SinkError),  # of no row that COPY has named
    ],
)
def test_an_error_of_the_server_passes_or_does_not(state: str | None, kind: type) -> None:
    met = ServerError(state, diagnosis())
    found = postgresql.failure("out", "t", met, postgresql._Lines("out", "t"))
    assert type(found) is kind


def test_a_dsn_that_is_none_is_a_wrong_setting() -> None:
    with pytest.raises(SinkError, match="dsn"):
        PostgresSink(dsn="nonsense", table="t").write(batch(0, 1))


def test_a_row_that_the_server_refuses_is_named() -> None:
    lines = postgresql._Lines("out", "t")
    lines.begin(pa.table({"t": ["a\nb", "c"]}), {})
    met = ServerError(
        "22003",
        diagnosis(
            message_primary='value "4711" is out of range for type integer',
            context='COPY staged, line 4, column n: "4711"',
        ),
    )
    found = postgresql.failure("out", "t", met, lines)
    assert isinstance(found, RefusedRows)
    assert list(found.rows) == [1]
    why = found.rows[1]
    assert isinstance(why, RowRefused)
    assert (why.sink, why.target, why.column) == ("out", "table t", "n")
    assert "22003" in str(why)
    assert "4711" not in str(why)


@pytest.mark.parametrize(
    ("state", "said"),
    [("23505", ()), ("22P02", ()), ("P0001", ()), ("42P01", ("no table 4711",)), (None, ("4711",))],
)
def test_what_the_server_says_of_a_row_is_not_said_on(
    state: str | None, said: tuple[str, ...]
) -> None:
    met = ServerError(
        state,
        diagnosis(
            message_primary="no table 4711",
            message_detail="Key (id)=(4711) is there",
            context='COPY t, line 4: "4711,x"',
            constraint_name="t_pkey",
            datatype_name="mood",
        ),
    )
    text = str(postgresql.failure("out", "t", met, postgresql._Lines("out", "t")))
    assert all(one in text for one in said)
    if state is not None:
        assert all(one in text for one in (state, "t_pkey", "mood"))
        assert text.count("4711") == len(said)


def test_a_text_that_would_end_copy_is_refused_alone() -> None:
    rows = pa.table({"t": ["a", "x\n\\.\ny", "\\.", None]})
    with pytest.raises(RefusedRows) as refused:
        postgresql._refuse_ends(rows, postgresql._Lines("out", "t"))
    assert list(refused.value.rows) == [1]


@pytest.mark.parametrize(
    ("kind", "column", "fits"),
    [
        (pa.int64(), "integer", True),
        (pa.int64(), "text", False),
        (pa.string(), "jsonb", True),
        (pa.list_(pa.string()), "text[]", True),
        (pa.string(), "text[]", True),  # as PostgreSQL writes arrays
        (pa.string(), "mood", True),  # an enum of theirs
        (pa.string(), "integer", False),
        (pa.timestamp("us", "UTC"), "timestamp with time zone", True),
        (pa.timestamp("us", "UTC"), "timestamp without time zone", False),
        (pa.struct([("n", pa.int64())]), "jsonb", True),
        (pa.bool_(), "boolean", True),
    ],
)
def test_a_column_of_another_type_is_named_before_anything_is_written(
    kind: pa.DataType, column: str, fits: bool
) -> None:
    rows = pa.schema([("c", kind)])
    if fits:
        postgresql.require_types("out", "t", rows, {"c": column})
        return
    with pytest.raises(SinkError, match=rf"'c' of t is {column}"):
        postgresql.require_types("out", "t", rows, {"c": column})


def test_the_last_row_of_a_key_counts() -> None:
    rows = pa.table({"a": ["x", "y", "x", None, None], "b": [1, 1, 1, 2, 2]})
    assert last_of_each(rows, ("a", "b")).to_pylist() == [1, 2, 4]


def test_a_password_in_a_dsn_is_not_shown() -> None:
    assert "secret" not in repr(PostgresSink(dsn="password=secret", table="t"))


# --- HTTP -----------------------------------------------------------------------------------------


@dataclass
class Service:
    """Answers with these in turn, then with 200."""

    answers: list[int]
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def serving(service: Service) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            service.got.append((dict(self.headers), body))
            self.send_response(service.answers.pop(0) if service.answers else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/rows"
    finally:
        server.shutdown()
        server.server_close()


def test_a_service_gets_rows_an_id_and_offsets() -> None:
    service = Service([503, 400])
    with serving(service) as url:
        sink = HttpSink(url=url, headers={"X-Key": "k"})
        with pytest.raises(RetriableError):
            sink.write(batch(3, 5))
        with pytest.raises(SinkError, match="400"):
            sink.write(batch(3, 5))
        sink.write(batch(3, 5))
    headers, body = service.got[-1]
    assert [json.loads(line) for line in body.splitlines()] == [
        {"k": "k3", "v": 3},
        {"k": "k4", "v": 4},
    ]
    assert headers["Idempotency-Key"] == "app/out/in-0@3"
    assert json.loads(headers["Everflow-Offsets"]) == {"in-0": [3, 5]}


def test_a_service_that_is_not_there_is_an_outage() -> None:
    with serving(Service([])) as url:
        pass
    with pytest.raises(RetriableError):
        HttpSink(url=url).write(batch(0, 1))


# --- data sources of PySpark ----------------------------------------------------------------------

KEPT: list[Any] = []
SEEN: list[tuple[int, int]] = []
"""Spark's partition and attempt of each write."""


@dataclass
class Count(WriterCommitMessage):
    """How many rows were written."""

    rows: int


class RowWriter(DataSourceStreamWriter):
    """Keeps what it gets, and fails where the option says so."""

    def __init__(self, options: Any) -> None:
        self.fails = options.get("failsat", "")

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        rows = list(iterator)
        KEPT.append(("write", rows))
        context = TaskContext.get()
        assert context is not None
        SEEN.append((context.partitionId(), context.taskAttemptId()))
        if self.fails == "write":
            raise ConnectionError("away")
        return Count(len(rows))

    def commit(self, messages: list[Any], batchId: int) -> None:
        KEPT.append(("commit", messages, batchId))

    def abort(self, messages: list[Any], batchId: int) -> None:
        KEPT.append(("abort", messages, batchId))


class ArrowWriter(RowWriter, DataSourceStreamArrowWriter):
    """The same of Arrow batches."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return super().write(iter([row for one in iterator for row in one.to_pylist()]))


class Rows(DataSource):
    """A data source as others write them."""

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        KEPT.append(("schema", schema.simpleString(), overwrite))
        made = ArrowWriter if self.options.get("arrow") == "true" else RowWriter
        return made(self.options)


@pytest.fixture(autouse=True)
def kept() -> list[Any]:
    KEPT.clear()
    SEEN.clear()
    return KEPT


def test_a_data_source_gets_rows_and_a_commit_with_a_number_that_grows(kept: list[Any]) -> None:
    sink = DataSourceSink(source=Rows)
    sink.write(batch(0, 2))
    sink.write(batch(2, 3))
    assert kept[0] == ("schema", "struct<k:string,v:bigint>", False)
    assert kept[1] == ("write", [Row(k="k0", v=0), Row(k="k1", v=1)])
    assert [one[1:] for one in kept if one[0] == "commit"] == [
        ([Count(2)], 2 * PARTITIONS),
        ([Count(1)], 3 * PARTITIONS),
    ]


def test_no_two_tasks_name_the_same_file(kept: list[Any]) -> None:
    """Writers name files by ``batchId``, or by Spark's partition and attempt."""
    sink = DataSourceSink(source=Rows)
    sink.write(batch(0, 2))
    sink.write(batch(0, 2, task=TaskId(0, 1), offsets={TopicPartition("in", 1): OffsetRange(0, 2)}))
    sink.write(batch(0, 2, offsets={}))
    sink.write(batch(0, 2, offsets={}))
    numbers = [one[2] for one in kept if one[0] == "commit"]
    assert len(set(numbers)) == 4
    tasks = list(zip([0, 1, 0, 0], numbers, strict=True))
    assert tasks == SEEN
    assert TaskContext.get() is None


def test_a_data_source_may_take_arrow_and_its_options_have_no_case(kept: list[Any]) -> None:
    DataSourceSink(source=Rows, options={"ARROW": "true"}).write(batch(0, 1))
    assert kept[1] == ("write", [{"k": "k0", "v": 0}])


def test_a_data_source_that_fails_is_told_to_abort(kept: list[Any]) -> None:
    with pytest.raises(ConnectionError):
        DataSourceSink(source=Rows, options={"failsAt": "write"}).write(batch(0, 1))
    assert kept[-1] == ("abort", [None], PARTITIONS)


def test_a_data_source_with_several_inputs_is_refused(kept: list[Any]) -> None:
    both = {IN: OffsetRange(0, 1), TopicPartition("other", 0): OffsetRange(0, 1)}
    with pytest.raises(SinkError, match="repartition"):
        DataSourceSink(source=Rows).write(replace(batch(0, 1), offsets=both))
    assert not kept
