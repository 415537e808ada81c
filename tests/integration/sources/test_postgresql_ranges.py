"""Ranges of a table of a real PostgreSQL (note 073)."""

import decimal
from collections.abc import Iterator
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from everflow import StreamsBuilder, TopologyError, serdes
from everflow.errors import RetriableError
from everflow.sources.postgresql import PostgresRanges, ranges
from everflow.sources.splits import SplitError
from integration.debezium.postgres import USER, Postgres, server

COLUMNS = pa.schema(
    list(
        serdes.arrow_type(
            "id bigint, name string, ok boolean, price decimal(10,2), ratio double, "
            "at timestamp, local timestamp_ntz, day date, raw binary, tags string"
        )
    )
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with server() as made:
        made.run(
            "CREATE TABLE items (id bigint, name text, ok boolean, price numeric(10,2), ratio "
            "double precision, at timestamptz, local timestamp, day date, raw bytea, tags text[])"
        )
        yield made


def source(postgres: Postgres, columns: pa.Schema = COLUMNS, **more: Any) -> PostgresRanges:
    given: dict[str, Any] = {
        "dsn": f"host=127.0.0.1 port={postgres.port} user={USER} dbname=postgres",
        "table": "items",
        "partition_column": "id",
        "lower_bound": 0,
        "upper_bound": 100,
        "num_partitions": 4,
        "columns": columns,
    }
    return PostgresRanges(**{**given, **more})


def rows_of(one: PostgresRanges) -> list[dict[str, Any]]:
    kept: dict[str, str] = {}

    class Kept:
        get = staticmethod(kept.get)
        put = staticmethod(kept.__setitem__)

    splits = list(one.plan(Kept()))
    assert list(one.plan(Kept())) == [], "it is planned once"
    return [row for split in splits for batch in one.read(split.data) for row in batch.to_pylist()]


def test_each_row_comes_once_with_its_types(postgres: Postgres) -> None:
    postgres.run(
        "TRUNCATE items;"
        "INSERT INTO items VALUES (NULL, 'nowhere', NULL), (-5, 'a\nb', false), (250, '', true);"
        "INSERT INTO items (id) SELECT n FROM generate_series(0, 99) n;"
        "INSERT INTO items VALUES (101, '\"q\",', true, 1.50, 'NaN',"
        " '2026-11-28 10:00:00.123456+02', '2026-11-28 10:00:00.5',"
        " '2026-11-28', '\\x00ff', '{a,b}'),"
        " (102, 'x', NULL, -1, '-Infinity', '0001-01-01 00:00:00+00', NULL, NULL, NULL, NULL)"
    )
    found = rows_of(source(postgres))
    ids = [row["id"] for row in found]
    assert sorted(one for one in ids if one is not None) == [-5, *range(100), 101, 102, 250]
    assert ids.count(None) == 1
    by_id = {row["id"]: row for row in found}
    assert (by_id[-5]["name"], by_id[-5]["ok"]) == ("a\nb", False)
    assert (by_id[250]["name"], by_id[0]["name"]) == ("", None)
    full = by_id[101]
    assert full.pop("ratio") != full.get("ratio")
    assert full == {
        "id": 101,
        "name": '"q",',
        "ok": True,
        "price": decimal.Decimal("1.50"),
        "at": datetime(2026, 11, 28, 8, 0, 0, 123456, timezone.utc),
        "local": datetime(2026, 11, 28, 10, 0, 0, 500000),
        "day": date(2026, 11, 28),
        "raw": b"\x00\xff",
        "tags": "{a,b}",
    }
    assert by_id[102]["ratio"] == float("-inf")


def test_one_column_of_nulls_is_rows(postgres: Postgres) -> None:
    postgres.run("TRUNCATE items; INSERT INTO items (id) SELECT n FROM generate_series(0, 9) n")
    one = source(postgres, pa.schema([("name", pa.string())]), num_partitions=1)
    assert rows_of(one) == [{"name": None}] * 10


def test_a_query_in_place_of_a_table(postgres: Postgres) -> None:
    postgres.run("TRUNCATE items; INSERT INTO items (id) SELECT n FROM generate_series(0, 9) n")
    one = source(
        postgres,
        pa.schema([("twice", pa.int64())]),
        table=None,
        query="SELECT id, 2 * id AS twice FROM items WHERE id > 7",
    )
    assert rows_of(one) == [{"twice": 16}, {"twice": 18}]


def test_a_server_that_is_away_is_waited_for(postgres: Postgres) -> None:
    with pytest.raises(RetriableError):
        rows_of(source(postgres, dsn="host=127.0.0.1 port=1 dbname=postgres"))


@pytest.mark.parametrize(
    ("columns", "words"),
    [(pa.schema([("nothing", pa.int64())]), "42703"), (pa.schema([("name", pa.int64())]), "type")],
)
def test_what_never_works_is_the_split_s_fault(
    postgres: Postgres, columns: pa.Schema, words: str
) -> None:
    postgres.run("TRUNCATE items; INSERT INTO items VALUES (1, 'x')")
    with pytest.raises(SplitError, match=words):
        rows_of(source(postgres, columns))


def test_ranges_meet_and_leave_nothing_out() -> None:
    assert ranges("n", 0, 10, 3) == ["(n < 3 OR n IS NULL)", "n >= 3 AND n < 6", "n >= 6"]
    assert ranges("n", 5, 5, 8) == ["true"]
    assert ranges("n", 0, 2, 8) == ["(n < 1 OR n IS NULL)", "n >= 1"]


@pytest.mark.parametrize(
    "more",
    [
        {"query": "SELECT 1", "table": "t"},
        {"table": "t", "num_partitions": "4"},
        {"table": "t", "schema": "n struct<a: int>"},
    ],
)
def test_wrong_calls(more: dict[str, Any]) -> None:
    given = {"schema": "n int", "num_partitions": 1, "lower_bound": 0, "upper_bound": 9, **more}
    with pytest.raises(TopologyError, match=r"read\('postgresql'\)"):
        StreamsBuilder().read("postgresql", name="in", dsn="", partition_column="n", **given)
    with pytest.raises(TopologyError, match="read once"):
        StreamsBuilder().read_stream("postgresql", name="in", dsn="", partition_column="n", **given)
