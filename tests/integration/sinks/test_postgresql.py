"""Rows in a table of a real PostgreSQL (note 072): each once, whatever a connection meets."""

import pickle
import random
import threading
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pytest

from everflow import RefusedRows, SinkBatch
from everflow.errors import RetriableError, SinkError
from everflow.handlers import chain
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.sinks.batch import RowRefused, SinkAhead
from everflow.sinks.postgresql import PostgresSink
from everflow.testing import wait_until
from integration.debezium.postgres import USER, Postgres, server

IN = TopicPartition("in", 0)


@pytest.fixture(scope="module")
def running() -> Iterator[Postgres]:
    with server() as made:
        yield made


@pytest.fixture
def postgres(running: Postgres) -> Postgres:
    running.run(
        "DROP TABLE IF EXISTS rows, everflow_positions;"
        "CREATE TABLE rows (id text PRIMARY KEY, n integer CHECK (n <> 13), extra text)"
    )
    return running


def dsn(postgres: Postgres) -> str:
    return f"host=127.0.0.1 port={postgres.port} user={USER} dbname=postgres"


def sink(postgres: Postgres, **more: Any) -> PostgresSink:
    return PostgresSink(dsn=dsn(postgres), table="rows", **more)


def batch(start: int, end: int, rows: pa.Table | None = None, **more: Any) -> SinkBatch:
    """Records from ``start`` to ``end``; each value is its offset."""
    made = pa.table({"id": [f"k{n}" for n in range(start, end)], "n": pa.array(range(start, end))})
    given = {
        "rows": made if rows is None else rows,
        "application_id": "app",
        "sink": "out",
        "task": TaskId(0, 0),
        "offsets": {IN: OffsetRange(start, end)},
        "keys": ("id",),
    }
    return SinkBatch(**{**given, **more})


def stored(postgres: Postgres) -> list[str]:
    return postgres.run("SELECT id || '=' || coalesce(n::text, '') FROM rows ORDER BY n").split()


def position(postgres: Postgres) -> str:
    return postgres.run("SELECT log, position FROM everflow_positions ORDER BY log").strip()


def test_rows_are_there_once_however_the_batch_is_cut_again(postgres: Postgres) -> None:
    one = sink(postgres)
    one.write(batch(0, 4))
    one.write(batch(4, 10))
    other = pickle.loads(pickle.dumps(one))
    other.write(batch(4, 10))
    other.write(batch(4, 7))
    with pytest.raises(SinkAhead) as ahead:
        other.write(batch(7, 15))
    assert ahead.value.ends == {IN: 10}
    other.write(batch(10, 12))
    assert stored(postgres) == [f"k{n}={n}" for n in range(12)]
    assert position(postgres) == "in-0|12"


def test_an_upsert_keeps_the_last_row_of_a_key_and_deletes(postgres: Postgres) -> None:
    one = sink(postgres, mode="upsert")
    one.write(batch(0, 3))
    rows = pa.table({"id": ["k0", "k1", "k0", "k2", "k9"], "n": [5, None, 6, 7, None]})
    deletes = pa.array([False, True, False, False, True])
    one.write(batch(3, 8, rows, deletes=deletes))
    assert stored(postgres) == ["k0=6", "k2=7"]
    again = pa.table({"id": ["k1", "k1"], "n": [8, None]})
    one.write(batch(8, 10, again, deletes=pa.array([False, True])))
    assert stored(postgres) == ["k0=6", "k2=7"]


def test_columns_that_the_rows_do_not_have_keep_what_they_hold(postgres: Postgres) -> None:
    postgres.run("INSERT INTO rows VALUES ('k0', 1, 'theirs')")
    sink(postgres, mode="upsert").write(batch(0, 1))
    assert postgres.run("SELECT * FROM rows").strip() == "k0|0|theirs"


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    ("values", "row"),
    [([1, 2, 99_999_999_999], 2), ([1, 13, 2], 1)],  # of the type, of the CHECK
)
def test_a_row_that_the_table_refuses_is_named_and_nothing_was_written(
    postgres: Postgres, mode: str, values: list[int], row: int
) -> None:
    one = sink(postgres, mode=mode)
    rows = pa.table({"id": ["a\nb", "c", "d"], "n": values})
    with pytest.raises(RefusedRows) as refused:
        one.write(batch(0, 3, rows))
    assert list(refused.value.rows) == [row]
    assert stored(postgres) == []
    good = [at for at in range(3) if at != row]
    one.write(batch(0, 3, rows.take(good)))
    assert postgres.run("SELECT count(*) FROM rows").strip() == "2"


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    ("definition", "value", "state", "column"),
    [
        ("varchar(5)", "secret text", "22001", "extra"),
        ("text NOT NULL", None, "23502", "extra"),
        ("mood", "secret", "22P02", "extra"),
        ("text CHECK (extra <> 'secret')", "secret", "23514", None),
    ],
)
def test_a_refused_row_names_table_and_column_and_none_of_its_values(
    postgres: Postgres,
    mode: str,
    definition: str,
    value: str | None,
    state: str,
    column: str | None,
) -> None:
    postgres.run(
        "DROP TYPE IF EXISTS mood CASCADE; CREATE TYPE mood AS ENUM ('fine');"
        f"ALTER TABLE rows DROP COLUMN extra; ALTER TABLE rows ADD COLUMN extra {definition}"
    )
    rows = pa.table({"id": ["a", "b"], "n": [1, 2], "extra": pa.array(["fine", value])})
    with pytest.raises(RefusedRows) as refused:
        sink(postgres, mode=mode).write(batch(0, 2, rows))
    ((row, why),) = refused.value.rows.items()
    assert isinstance(why, RowRefused)
    assert (row, why.sink, why.target, why.column) == (1, "out", "table rows", column)
    assert state in str(why)
    assert "secret" not in str(why)


def test_a_key_that_is_there_is_the_row_of_an_append(postgres: Postgres) -> None:
    postgres.run("INSERT INTO rows VALUES ('k1', 0, '')")
    with pytest.raises(RefusedRows) as refused:
        sink(postgres).write(batch(0, 3))
    assert list(refused.value.rows) == [1]


def test_a_zero_byte_is_the_row_s_fault(postgres: Postgres) -> None:
    with pytest.raises(RefusedRows) as refused:
        sink(postgres).write(batch(0, 2, pa.table({"id": ["a", "b\0"], "n": [1, 2]})))
    assert list(refused.value.rows) == [1]


SECRETS = ("secret", "471147")


def everything_of(error: BaseException) -> str:
    """What a log may have of it: of the errors it came from, too."""
    found = [error, *(error.rows.values() if isinstance(error, RefusedRows) else ())]
    return "".join(
        text
        for one in found
        for cause in chain(one)
        for text in (str(cause), *traceback.format_exception(cause))
    )


@pytest.mark.parametrize("mode", ["append", "upsert", "scd2"])
@pytest.mark.parametrize(
    ("what", "place"),
    [
        ("n integer", "column n"),  # too large
        ("n bigint CHECK (n < 9)", "n_check"),
        ("n bigint, UNIQUE (extra)", "extra_key"),
        ("n bigint NOT NULL REFERENCES other", "n_fkey"),
        ("n bigint, CHECK (raised(n))", "P0001"),
    ],
)
def test_an_error_has_no_value_of_a_row(
    running: Postgres, mode: str, what: str, place: str
) -> None:
    times = (
        "valid_from timestamptz, valid_to timestamptz, is_current boolean" if mode == "scd2" else ""
    )
    running.run(
        "DROP TABLE IF EXISTS rows, other, everflow_positions;"
        "CREATE TABLE other (id bigint PRIMARY KEY);"
        "CREATE OR REPLACE FUNCTION raised(n bigint) RETURNS boolean LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not %', n; END $$;"
        f"CREATE TABLE rows (id text, extra text, {what}, {times or 'x text'},"
        f" UNIQUE ({'id, valid_from' if times else 'id'}));"
    )
    numbers = [471_147_471_147] * 2
    rows = pa.table({"id": ["secret1", "secret2"], "extra": ["secret"] * 2, "n": numbers})
    times_of = pa.array([1_000, 2_000])
    with pytest.raises((RefusedRows, SinkError)) as refused:
        sink(running, mode=mode).write(batch(0, 2, rows, timestamps=times_of))
    text = everything_of(refused.value)
    assert place in text
    assert "rows" in text
    assert not any(secret in text for secret in SECRETS), text


def test_another_schema_names_column_and_types(postgres: Postgres) -> None:
    with pytest.raises(SinkError, match=r"'n' of rows is integer.*string"):
        sink(postgres).write(batch(0, 1, pa.table({"id": ["a"], "n": ["b"]})))
    with pytest.raises(SinkError, match="'m'"):
        sink(postgres).write(batch(0, 1, pa.table({"id": ["a"], "m": [1]})))
    with pytest.raises(SinkError, match="42P01"):
        PostgresSink(dsn=dsn(postgres), table="no_such").write(batch(0, 1))
    postgres.run("ALTER TABLE rows DROP CONSTRAINT rows_pkey")
    with pytest.raises(SinkError, match="42P10"):
        sink(postgres, mode="upsert").write(batch(0, 1))


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_gets_a_column_before_the_program_that_fills_it(
    postgres: Postgres, mode: str
) -> None:
    """Docs: add-a-column.md. Old and new instances write beside each other."""
    before, after = sink(postgres, mode=mode), sink(postgres, mode=mode)
    before.write(batch(0, 1))
    postgres.run("ALTER TABLE rows ADD COLUMN coupon text")
    before.write(batch(1, 2))
    rows = pa.table({"id": ["k2"], "n": [2], "coupon": ["spring"]})
    after.write(batch(2, 3, rows))
    before.write(batch(3, 4))
    coupons = "SELECT id || '=' || coalesce(coupon, 'null') FROM rows ORDER BY n"
    assert postgres.run(coupons).split() == ["k0=null", "k1=null", "k2=spring", "k3=null"]


def test_a_table_that_was_altered_is_looked_at_again(postgres: Postgres) -> None:
    one = sink(postgres)
    one.write(batch(0, 1))
    postgres.run("ALTER TABLE rows DROP COLUMN n")
    with pytest.raises(SinkError, match="42703"):
        one.write(batch(1, 2))
    postgres.run("ALTER TABLE rows ADD COLUMN n bigint")
    one.write(batch(1, 2))
    assert position(postgres) == "in-0|2"


def test_a_lost_connection_is_an_outage_and_the_next_attempt_connects(postgres: Postgres) -> None:
    one = sink(postgres)
    one.write(batch(0, 2))
    postgres.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    with pytest.raises(RetriableError):
        one.write(batch(2, 4))
    one.write(batch(2, 4))
    assert stored(postgres) == [f"k{n}={n}" for n in range(4)]


def test_a_list_becomes_an_array_of_the_table(postgres: Postgres) -> None:
    postgres.run("ALTER TABLE rows ADD tags text[], ADD days date[], ADD grid int[], ADD js json")
    lists = {
        "tags": [["a", None, 'q"\\,{}', "", "NULL"], [], None],
        "days": [["2026-01-01"], [None], None],
        "grid": [[[1, 2], [3, None]], [], None],
        "js": [[1, None], [], None],
    }
    rows = pa.table({"id": ["a", "b", "c"], **lists})
    for one in ("tags", "days", "grid"):
        sink(postgres, mode="upsert").write(batch(0, 3, rows, sink=one))
    found = postgres.run("SELECT tags, days, grid, js FROM rows ORDER BY id").splitlines()
    assert found == [
        r"""{a,NULL,"q\"\\,{}","","NULL"}|{2026-01-01}|{{1,2},{3,NULL}}|[1, null]""",
        "{}|{NULL}|{}|[]",
        "|||",
    ]


# --- a row for each version of a key --------------------------------------------------------------

HISTORY = (
    "DROP TABLE IF EXISTS versions, everflow_positions;"
    "CREATE TABLE versions (number bigint GENERATED ALWAYS AS IDENTITY, id text, part int, "
    "n integer NOT NULL CHECK (n <> 13), note json, valid_from timestamptz NOT NULL, "
    "valid_to timestamptz CHECK (valid_to > valid_from), is_current boolean NOT NULL, "
    "UNIQUE (id, part, valid_from));"
    "CREATE UNIQUE INDEX ON versions (id, part) WHERE is_current"
)


class Change(NamedTuple):
    """``row``: None for a deletion. ``time``: in ms."""

    key: str
    time: int
    row: int | None


@dataclass
class Version:
    row: int
    begin: int
    end: int | None = None


Versions = dict[str, list[Version]]


def folded(found: Versions, changes: Iterable[Change]) -> None:
    """What the versions are behind a batch of changes, one after the other."""
    clocks = {
        key: max(one.begin if one.end is None else one.end for one in versions)
        for key, versions in found.items()
        if versions
    }
    for key, own, row in changes:
        time = clocks[key] = max(own, clocks.get(key, own))
        versions = found[key] = [one for one in found.get(key, []) if one.begin != time]
        if versions and versions[-1].end == time:
            versions[-1].end = None
        current = versions[-1] if versions and versions[-1].end is None else None
        if row == (current and current.row):
            continue
        if current is not None:
            current.end = time
        if row is not None:
            versions.append(Version(row, time))


def versions_of(postgres: Postgres) -> Versions:
    found: Versions = {}
    text = postgres.run(
        "SELECT id, n, extract(epoch FROM valid_from) * 1000, "
        "extract(epoch FROM valid_to) * 1000, is_current, note FROM versions ORDER BY valid_from"
    )
    for line in text.splitlines():
        id_, n, begin, end, current, note = line.split("|")
        assert (current == "t") == (end == "")
        assert note == f'{{"n": {n}}}'
        until = None if end == "" else int(float(end))
        found.setdefault(id_, []).append(Version(int(n), int(float(begin)), until))
    return found


def versioned(start: int, changes: list[Change], **more: Any) -> SinkBatch:
    rows = pa.table(
        {
            "id": [one.key for one in changes],
            "part": pa.array([0] * len(changes), pa.int32()),
            "n": pa.array([one.row for one in changes], pa.int64()),
            "note": pa.array(
                [one.row and {"n": one.row} for one in changes], pa.struct([("n", pa.int64())])
            ),
        }
    )
    return batch(
        start,
        start + len(changes),
        rows,
        keys=("id", "part"),
        timestamps=pa.array([one.time for one in changes]),
        deletes=pa.array([one.row is None for one in changes]),
        **more,
    )


@pytest.fixture
def versions(running: Postgres) -> Postgres:
    running.run(HISTORY)
    return running


def history(postgres: Postgres) -> PostgresSink:
    return PostgresSink(dsn=dsn(postgres), table="versions", mode="scd2")


def cut(chance: random.Random, changes: list[Change]) -> Iterator[list[Change]]:
    at = 0
    while at < len(changes):
        size = chance.randrange(1, 8)
        yield changes[at : at + size]
        at += size


def drawn(chance: random.Random, *, ordered: bool) -> list[Change]:
    """``ordered``: each key's times do not fall."""
    made, time = [], 0
    for _ in range(chance.randrange(1, 30)):
        time = time + chance.choice((0, 0, 1, 5)) if ordered else chance.randrange(20)
        row = chance.choice((1, 2, 3, None))
        made.append(Change(chance.choice(("a", "b", "c")), 1_700_000_000_000 + time, row))
    return made


def test_a_version_ends_where_the_next_one_begins(versions: Postgres) -> None:
    one = history(versions)
    one.write(versioned(0, [Change("a", 1, 1), Change("b", 2, 5), Change("a", 3, 2)]))
    one.write(versioned(3, [Change("a", 3, 2), Change("a", 9, None), Change("b", 8, 5)]))
    assert versions_of(versions) == {
        "a": [Version(1, 1, 3), Version(2, 3, 9)],
        "b": [Version(5, 2)],
    }
    one.write(versioned(3, [Change("a", 3, 2), Change("a", 9, None), Change("b", 8, 5)]))
    one.write(versioned(6, [Change("a", 12, 3), Change("a", 10, 4)]))  # time does not go back
    assert versions_of(versions)["a"] == [Version(1, 1, 3), Version(2, 3, 9), Version(4, 12)]
    assert position(versions) == "in-0|8"


@pytest.mark.parametrize("seed", range(40))
def test_versions_are_what_the_changes_lead_to(versions: Postgres, seed: int) -> None:
    chance = random.Random(seed)
    one, wanted, at = history(versions), Versions(), 0
    for changes in cut(chance, drawn(chance, ordered=False)):
        one.write(versioned(at, changes))
        folded(wanted, changes)
        at += len(changes)
        assert versions_of(versions) == {key: found for key, found in wanted.items() if found}


@pytest.mark.parametrize("seed", range(40))
def test_changes_that_are_repeated_leave_the_same_versions(versions: Postgres, seed: int) -> None:
    """As a connector repeats them: from an earlier one on, in their order, with their times."""
    chance = random.Random(seed)
    changes = drawn(chance, ordered=True)
    wanted: Versions = {}
    for change in changes:
        folded(wanted, [change])
    again, end = list(changes), len(changes)
    for _ in range(chance.randrange(1, 4)):
        end = chance.randrange(end + 1)
        again += changes[end:]
        end = len(changes)
    one, at = history(versions), 0
    for some in cut(chance, again):
        one.write(versioned(at, some))
        at += len(some)
    assert versions_of(versions) == {key: found for key, found in wanted.items() if found}


def test_a_row_that_a_table_of_versions_refuses_is_named(versions: Postgres) -> None:
    changes = [Change("a", 1, 1), Change("b", 1, None), Change("c", 1, 13)]
    with pytest.raises(RefusedRows) as refused:
        history(versions).write(versioned(0, changes))
    assert list(refused.value.rows) == [2]
    assert versions_of(versions) == {}


def test_a_table_of_versions_has_the_columns_of_their_times(versions: Postgres) -> None:
    versions.run("ALTER TABLE versions DROP COLUMN valid_to")
    with pytest.raises(SinkError, match="valid_to"):
        history(versions).write(versioned(0, [Change("a", 1, 1)]))


def test_nobody_there_is_an_outage() -> None:
    with pytest.raises(RetriableError):
        PostgresSink(dsn="host=127.0.0.1 port=1", table="rows").write(batch(0, 1))


def test_two_that_write_the_first_batch_wait_for_each_other(postgres: Postgres) -> None:
    """A process that was taken for dead is in its transaction: the new owner waits, then sees what
    it has written."""
    sink(postgres).write(batch(0, 1, offsets={TopicPartition("other", 0): OffsetRange(0, 1)}))
    postgres.run("DELETE FROM rows")
    with psycopg.connect(dsn(postgres)) as late:
        late.execute("INSERT INTO everflow_positions VALUES ('app', 'out', 'in-0', 0, '')")
        late.execute("UPDATE everflow_positions SET position = 4 WHERE log = 'in-0'")
        late.execute("INSERT INTO rows VALUES ('k0', 0), ('k1', 1), ('k2', 2), ('k3', 3)")
        met: list[BaseException] = []

        def write() -> None:
            try:
                sink(postgres).write(batch(0, 6))
            except BaseException as error:
                met.append(error)

        writing = threading.Thread(target=write)
        writing.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: postgres.run(waits).strip() == "1", 30, "the writer to wait")
        late.commit()
        writing.join(30)
    (error,) = met
    assert isinstance(error, SinkAhead)
    assert error.ends == {IN: 4}
    assert stored(postgres) == [f"k{n}={n}" for n in range(4)]


def test_a_topic_that_was_created_again_is_noticed(postgres: Postgres) -> None:
    one = sink(postgres)
    one.write(batch(0, 2, topic_ids={"in": "first"}))
    one.write(batch(2, 4, topic_ids={"in": "first"}))
    with pytest.raises(SinkError, match="DELETE FROM everflow_positions") as noticed:
        one.write(batch(0, 6, topic_ids={"in": "second"}))
    assert {"first", "second"} <= set(str(noticed.value).split())
    assert stored(postgres) == [f"k{n}={n}" for n in range(4)]
