"""Sinks that are slow, down, full or of another schema, for real (the table in note 072): what each
is for the batch, that nothing of it is there, and that it is there once the fault has passed."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaos.rounds.surroundings import SmallDisk
from everflow import SinkBatch
from everflow.errors import RetriableError, SinkError
from everflow.sinks import postgresql
from everflow.sinks.delta import DeltaSink
from everflow.sinks.files import ParquetSink
from everflow.sinks.http_service import HttpSink
from everflow.sinks.iceberg import IcebergSink
from everflow.sinks.postgresql import PostgresSink
from integration.debezium.postgres import USER, Postgres, server
from unit.sinks import test_iceberg
from unit.sinks.test_sinks import Service, batch, rows_of, serving

NOBODY = "http://127.0.0.1:1"
"""No service has this port."""


def wide(start: int, end: int) -> SinkBatch:
    """Rows that do not compress: 400 bytes each."""
    names = [os.urandom(200).hex() for _ in range(start, end)]
    return batch(start, end, rows=pa.table({"k": names, "v": pa.array(range(start, end))}))


# --- full -----------------------------------------------------------------------------------------


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    if not SmallDisk.possible(path.parent):
        pytest.skip("this process may mount no disk")
    with closing(SmallDisk(path, 1)) as made:
        yield made


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        yield made


def values(sink: Any) -> list[int]:
    return test_iceberg.values(sink) if isinstance(sink, IcebergSink) else rows_of(sink)


def iceberg(folder: Path, warehouse: Path) -> IcebergSink:
    return test_iceberg.table_at(folder, warehouse, "?timeout=0.2")


SINKS: dict[str, Callable[[Path, Path], Any]] = {
    "parquet": lambda folder, disk: ParquetSink(path=str(disk / "rows")),
    "delta": lambda folder, disk: DeltaSink(path=str(disk / "rows")),
    "iceberg": iceberg,
}


@pytest.mark.parametrize("kind", SINKS)
def test_a_full_disk_is_waited_for(
    kind: str, disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everflow.sinks.iceberg.CONFLICTS_MS", 0.0)
    sink = SINKS[kind](tmp_path, disk.path)
    sink.write(batch(0, 2))
    disk.fill()
    with pytest.raises(RetriableError, match="No space left"):
        sink.write(wide(2, 4_000))
    assert values(sink) == [0, 1]
    disk.empty()
    sink.write(batch(2, 4))
    assert values(sink) == [0, 1, 2, 3]


# --- down -----------------------------------------------------------------------------------------


def test_an_object_store_that_is_not_there_is_an_outage() -> None:
    options = {
        "AWS_ENDPOINT_URL": NOBODY,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    with pytest.raises(RetriableError):
        DeltaSink(path="s3://bucket/rows", storage_options=options).write(batch(0, 1))


def test_a_catalog_that_is_not_there_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everflow.sinks.iceberg.CONFLICTS_MS", 0.0)
    sink = IcebergSink(table="a.b", catalog="rest", properties={"type": "rest", "uri": NOBODY})
    with pytest.raises(RetriableError):
        sink.write(batch(0, 1))


def test_a_catalog_that_is_locked_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    monkeypatch.setattr("everflow.sinks.iceberg.CONFLICTS_MS", 0.0)
    sink = iceberg(tmp_path, tmp_path / "warehouse")
    other = sqlite3.connect(tmp_path / "catalog.db")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RetriableError, match="locked"):
        sink.write(batch(0, 1))
    other.close()
    sink.write(batch(0, 1))
    assert values(sink) == [0]


# --- of another schema ----------------------------------------------------------------------------


def test_a_folder_keeps_the_types_of_its_files(tmp_path: Path) -> None:
    """With two types of a column no reader takes the folder."""
    ParquetSink(path=str(tmp_path)).write(batch(0, 1))
    other = pa.table({"k": ["x"], "v": ["y"]})
    with pytest.raises(SinkError, match=r"'v' .*bigint.*string"):
        ParquetSink(path=str(tmp_path)).write(batch(1, 2, rows=other))
    more = pa.table({"k": ["x"], "v": [1], "extra": ["one more"]})
    ParquetSink(path=str(tmp_path)).write(batch(1, 2, rows=more))
    assert sorted(pq.ParquetDataset(tmp_path).read().column("v").to_pylist()) == [0, 1]


def test_a_delta_table_where_none_can_be_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError):
        DeltaSink(path=str(tmp_path / "file" / "rows")).write(batch(0, 1))


# --- PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running() -> Iterator[Postgres]:
    with server() as made:
        yield made


@pytest.fixture
def postgres(running: Postgres) -> Postgres:
    running.run(
        "DROP TABLE IF EXISTS rows, everflow_positions; CREATE TABLE rows (k text, v bigint)"
    )
    return running


def sink_of(postgres: Postgres, user: str = USER) -> PostgresSink:
    dsn = f"host=127.0.0.1 port={postgres.port} user={user} dbname=postgres"
    return PostgresSink(dsn=dsn, table="rows")


def count(postgres: Postgres) -> int:
    return int(postgres.run("SELECT count(*) FROM rows"))


def test_a_table_that_is_locked_is_waited_for_and_then_an_outage(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow: an index is built, a long transaction holds the table."""
    monkeypatch.setattr(postgresql, "LOCK_TIMEOUT", "200ms")
    one = sink_of(postgres)
    one.write(batch(0, 2))
    with psycopg.connect(one.dsn) as other:
        other.execute("LOCK TABLE rows")
        with pytest.raises(RetriableError, match="lock"):
            one.write(batch(2, 4))
    one.write(batch(2, 4))
    assert count(postgres) == 4


def test_a_user_without_the_right_to_write_is_named(postgres: Postgres) -> None:
    sink_of(postgres).write(batch(0, 2))
    postgres.run("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    postgres.run("GRANT SELECT ON rows TO reader; GRANT ALL ON everflow_positions TO reader")
    with pytest.raises(SinkError, match="42501"):
        sink_of(postgres, "reader").write(batch(2, 4))
    assert count(postgres) == 2
    assert postgres.run("SELECT position FROM everflow_positions").strip() == "2"


def test_a_server_without_room_is_waited_for(postgres: Postgres) -> None:
    """Its table lies on a disk that is full."""
    with small_disk(postgres.folder / "disk") as disk:
        folder = disk.path / "rows"
        folder.mkdir()
        owner = (postgres.folder / "data").stat()
        for path in (disk.path, folder):
            os.chown(path, owner.st_uid, owner.st_gid)
        in_a_table_space(postgres, disk, folder)


def in_a_table_space(postgres: Postgres, disk: SmallDisk, folder: Path) -> None:
    postgres.run(f"CREATE TABLESPACE small LOCATION '{folder}'")
    postgres.run("ALTER TABLE rows SET TABLESPACE small")
    one = sink_of(postgres)
    one.write(batch(0, 2))
    disk.fill()
    with pytest.raises(RetriableError, match="no room"):
        one.write(wide(2, 4_000))
    assert count(postgres) == 2
    disk.empty()
    one.write(batch(2, 4))
    assert count(postgres) == 4
    postgres.run("DROP TABLE rows; DROP TABLESPACE small")


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (507, RetriableError),  # full
        (429, RetriableError),  # too much at a time
        (401, RetriableError),  # a token that is renewed just now
        (422, SinkError),  # another schema
        (413, SinkError),
        (404, SinkError),
    ],
)
def test_an_answer_of_a_service_passes_or_does_not(status: int, kind: type) -> None:
    with serving(Service([status])) as url, pytest.raises(kind, match=str(status)):
        HttpSink(url=url).write(batch(0, 1))


def test_a_service_that_does_not_answer_in_time_is_an_outage() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/rows"
        with pytest.raises(RetriableError):
            HttpSink(url=url, timeout_s=0.2).write(batch(0, 1))
