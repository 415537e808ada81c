"""Stores and changelogs as rows: every kind, places, errors, and stores of one moment."""

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow import agg, serdes
from everflow.config import StreamsConfig
from everflow.errors import StatePointError, TaskTimeoutError, TopologyError
from everflow.instance.query.store_query import rows_of
from everflow.operators.aggregates.aggregate import AggregateSpec
from everflow.records import OffsetRange
from everflow.serdes.windowed import session_key, window_store_key
from everflow.snapshots import entry_columns, state_reader, state_source
from everflow.snapshots.entry_columns import Difference, EntryColumns, EntryError, compared, pages
from everflow.snapshots.logged_stores import LoggedStore
from everflow.snapshots.points import Point, Span, before_all
from everflow.snapshots.query_errors import StaleStateError, StateElsewhereError, StateMovingError
from everflow.snapshots.snapshot import Rows
from everflow.state.changelog import pack_value
from everflow.state.lmdb_store import LmdbStore
from everflow.state.versioned_snapshot import VersionedSnapshot
from unit.builders import store_spec
from unit.instance.query.query_stores import COUNTS, WINDOWS, Instance, windows, write


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path / "state")
    yield made
    made.close()


def rows(instance: Instance, folder: Path, name: str = "counts", **options: Any) -> Rows:
    store = instance.store(name, **options)
    columns = EntryColumns(store.spec, store._results, lag=store._reader.stale)
    folder.mkdir(exist_ok=True)
    return rows_of(columns, store._reader, store._ready(), folder)


def content(found: Rows, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(r[one] for one in names) for batch in found.batches() for r in batch.to_pylist()]


def test_rows_are_of_the_moment_in_which_a_partition_is_begun(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_columns, "PAGE_ENTRIES", 1)
    path = instance.put(0, COUNTS, {b"a": 1, b"b": 2, b"c": 3})
    found = []
    for number, batch in enumerate(rows(instance, tmp_path / "room").batches()):
        found += batch["value"].to_pylist()
        if not number:
            write(path, COUNTS, {b"a": None, b"b": 20, b"c": 30, b"d": 4})
    assert found == [1, 2, 3]
    assert content(rows(instance, tmp_path / "room"), "value") == [(20,), (30,), (4,)]
    assert list((tmp_path / "room").iterdir()) == []


def test_a_write_is_not_kept_waiting_by_who_reads_rows(instance: Instance, tmp_path: Path) -> None:
    path = instance.put(0, COUNTS, {b"a": 1})
    batches = rows(instance, tmp_path / "room").batches()
    next(batches)
    with LmdbStore.open(path)._env._gate:
        assert LmdbStore.open(path)._env._readers == 0
    batches.close()  # type: ignore[attr-defined]


def test_windows_and_partitions_are_told_apart(instance: Instance, tmp_path: Path) -> None:
    instance.put(0, WINDOWS, windows({("a", 1_000): 1, ("a", 2_000): 2}))
    instance.put(1, WINDOWS, windows({("b", 1_000): 3}))
    found = content(rows(instance, tmp_path / "room", "windows"), "key", "value", "partition")
    assert found == [("a", 1, 0), ("a", 2, 0), ("b", 3, 1)]


def test_copies_say_how_far_they_are_behind(instance: Instance, tmp_path: Path) -> None:
    instance.put(0, COUNTS, {b"a": 1})
    instance.put(1, COUNTS, {b"b": 2, b"c": 3}, active=False)
    instance.end = 14
    assert content(rows(instance, tmp_path / "room"), "key") == [("a",)]
    stale = rows(instance, tmp_path / "room", stale=True)
    assert content(stale, "key", "lag") == [("a", 0), ("b", 12), ("c", 12)]
    with pytest.raises(StaleStateError, match="lags by 12"):
        rows(instance, tmp_path / "room", stale=True, max_lag=11)
    with pytest.raises((StateMovingError, StateElsewhereError)):
        rows(instance, tmp_path / "room", partition=1)


def test_a_rebuilt_store_is_copied_at_its_new_place(instance: Instance, tmp_path: Path) -> None:
    old = instance.put(0, COUNTS, {b"a": 1})
    found = rows(instance, tmp_path / "room")
    new = instance.place(0, COUNTS, 1)
    write(new, COUNTS, {b"a": 2})
    LmdbStore.close_at(old)
    shutil.rmtree(old)
    instance.show(0, COUNTS, new)
    assert content(found, "value") == [(2,)]


def test_bytes_that_cannot_be_read_are_named(instance: Instance, tmp_path: Path) -> None:
    path = instance.put(0, COUNTS, {b"a": 1})
    LmdbStore.open(path).load_chunk([b"b"], [b"abc"], np.zeros(1, np.int64), 2)
    with pytest.raises(EntryError, match=r"b'b'.*partition 0.*'counts'"):
        content(rows(instance, tmp_path / "room"), "value")
    assert list((tmp_path / "room").iterdir()) == []


def test_a_copy_holds_all_versions(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "live", kind="versioned", retention_ms=100_000)
    values = [serdes.long().encode(value) for value in (1, 2)] + [None]
    store.load_chunk([b"a", b"a", b"b"], values, np.array([1, 2, 3]), 3)
    (tmp_path / "copy").mkdir()
    copy = store.copy_to(tmp_path / "copy")
    store.load_chunk([b"a"], [values[0]], np.array([9]), 4)
    with copy.snapshot() as view:
        assert isinstance(view, VersionedSnapshot)
        found = {(key, one.start) for key, one in view.every_version()}
    assert found == {(b"a", 1), (b"a", 2)}
    assert (copy.position, store.position) == (3, 4)
    for one in (store, copy):
        one.close()


UTC_US = pa.timestamp("us", tz="UTC")


def columns(kind: str, value: Any = None, **more: Any) -> EntryColumns:
    spec = store_spec("s", kind, value=value or serdes.long(), **more)
    return EntryColumns(spec, spec.value_serde)


def long(value: int) -> bytes:
    found = serdes.long().encode(value)
    assert found is not None
    return found


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def test_a_table_has_its_serdes_types_and_times() -> None:
    shown = columns("key_value", serdes.json("n int, s string"))
    batch = shown.entries([(b"a", pack_value(1_500, b'{"n":1,"s":"x"}'))], 3, repr)
    assert batch.to_pylist() == [
        {"key": "a", "value": {"n": 1, "s": "x"}, "timestamp": at(1_500), "partition": 3}
    ]
    assert batch.schema == shown.schema
    assert shown.schema.field("timestamp").type == UTC_US
    assert shown.schema.field("partition").type == pa.int32()


def test_windows_and_sessions_have_their_bounds() -> None:
    window = columns("window", retention_ms=10**9, window_size_ms=1_000)
    (row,) = window.entries(
        [(window_store_key(b"a", 5_000), pack_value(5_001, long(7)))], 0, repr
    ).to_pylist()
    assert (row["key"], row["window_start"], row["window_end"]) == ("a", at(5_000), at(6_000))
    session = columns("session", retention_ms=10**9)
    (row,) = session.entries(
        [(session_key(b"a", 5_000, 5_700), pack_value(5_700, long(7)))], 0, repr
    ).to_pylist()
    assert (row["key"], row["window_start"], row["window_end"]) == ("a", at(5_000), at(5_700))
    unknown = columns("window", retention_ms=10**9)
    assert unknown.entries([(window_store_key(b"a", 5_000), pack_value(1, long(7)))], 0, repr)[
        "window_end"
    ].to_pylist() == [None]


def test_bytes_that_are_not_the_serdes_name_their_record() -> None:
    page = [(b"a", pack_value(1, long(1))), (b"b", pack_value(1, b"abc"))]
    with pytest.raises(EntryError, match=r"topic-0@b'b'.*found 3"):
        columns("key_value").entries(page, 0, lambda key: f"topic-0@{key!r}")
    with pytest.raises(EntryError, match=r"topic-0@b'\\xff'"):
        columns("key_value").entries(
            [(b"\xff", pack_value(1, long(1)))], 0, lambda key: f"topic-0@{key!r}"
        )
    with pytest.raises(EntryError, match=r"windowed.*0"):
        columns("window", retention_ms=1, window_size_ms=1).entries(
            [(b"abc", pack_value(1, long(1)))], 0, repr
        )
    with pytest.raises(EntryError, match="timestamp"):
        columns("key_value").entries([(b"a", pack_value(2**62, long(1)))], 0, repr)


def test_aggregates_are_stored_with_these_fields() -> None:
    type_ = pa.struct([("amount", pa.float64()), ("name", pa.string()), ("at", pa.int64())])
    asked = {
        "orders": agg.count(),
        "total": agg.sum("amount"),
        "mean": agg.avg("amount"),
        "best": agg.max_by("name", "at"),
    }
    spec = AggregateSpec.of("s", serdes.string(), list(asked.values()), list(asked), type_)
    fields = "orders bigint, total double, mean_sum double, mean_count bigint, best string"
    written = serdes.packed(f"{fields}, best_by bigint")
    assert [one.type for one in spec.value_serde.type] == [one.type for one in written.type]


def test_differences_are_found_by_key_and_say_what_happened() -> None:
    before = [(b"a", pack_value(1, long(1))), (b"b", pack_value(1, long(2)))]
    after = [(b"b", pack_value(9, long(2))), (b"c", pack_value(9, long(3)))]
    found = list(compared(iter(before), iter(after)))
    assert [one.key for one in found] == [b"a", b"c"], "b has the same value, written again"
    later = [(b"a", pack_value(9, long(5)))]
    found += list(compared(iter(before[:1]), iter(later)))
    rows = columns("key_value").differences(found, 0, -1, (repr, repr)).to_pylist()
    assert [(r["key"], r["change"], r["old_value"], r["new_value"]) for r in rows] == [
        ("a", "removed", 1, None),
        ("c", "added", None, 3),
        ("a", "changed", 1, 5),
    ]
    assert [(r["old_timestamp"], r["new_timestamp"]) for r in rows] == [
        (at(1), None),
        (None, at(9)),
        (at(1), at(9)),
    ]


def test_a_window_that_the_retention_has_ended_is_not_called_removed() -> None:
    stored = pack_value(1, long(1))
    gone = [Difference(window_store_key(b"a", start), stored, None) for start in (100, 101)]
    shown = columns("window", retention_ms=1_000, window_size_ms=10)
    found = shown.differences(gone, 0, 100, (repr, repr))
    assert found["change"].to_pylist() == ["expired", "removed"]
    assert found.schema == shown.difference_schema


def test_pages_are_bounded_in_entries_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_columns, "PAGE_ENTRIES", 3)
    monkeypatch.setattr(entry_columns, "PAGE_BYTES", 10)
    assert [len(page) for page in pages(range(7), lambda one: 1)] == [3, 3, 1]
    assert [len(page) for page in pages(range(3), lambda one: 20)] == [1, 1, 1]
    assert list(pages([], lambda one: 1)) == []


SPANS = {0: Span(0, 100, 100), 1: Span(0, 50, 60)}


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (None, "end"),
        ("end", "end"),
        ("2026-11-21T21:14:06Z", "2026-11-21T21:14:06Z"),
        ("2026-11-21T22:14:06+01:00", "2026-11-21T21:14:06Z"),
        ("1795295646000", "2026-11-21T21:14:06Z"),
        (1795295646000, "2026-11-21T21:14:06Z"),
        (datetime(2026, 11, 21, 21, 14, 6), "2026-11-21T21:14:06Z"),
        (
            datetime(2026, 11, 21, 22, 14, 6, tzinfo=timezone(timedelta(0, 3600))),
            "2026-11-21T21:14:06Z",
        ),
        ("0=120,1=98", "0=120,1=98"),
        ({1: 98, 0: 120}, "0=120,1=98"),
    ],
)
def test_points_are_written_in_many_ways(at: object, text: str) -> None:
    assert str(Point.of(at)) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("at", ["yesterday", "0=", "0=1;1=2", "", "-5"])
def test_what_is_no_point_is_refused_with_the_ways(at: str) -> None:
    with pytest.raises(StatePointError, match=r"2026-11-21T21:14:06Z.*0=120,1=98; or end"):
        Point.of(at)


def test_the_end_is_where_transactions_are_decided() -> None:
    assert Point.of(None).reaches("t", SPANS, {}) == {0: OffsetRange(0, 100), 1: OffsetRange(0, 50)}


def test_offsets_leave_the_other_partitions_out() -> None:
    assert Point.of("1=7").reaches("t", SPANS, {}) == {1: OffsetRange(0, 7)}
    assert Point.of("1=0").reaches("t", SPANS, {}) == {1: OffsetRange(0, 0)}


@pytest.mark.parametrize(
    ("at", "says"),
    [("0=101", r"t-0.*100.*101"), ("1=55", r"t-1.*50.*55"), ("2=5", r"partitions 0.*1.*2")],
)
def test_offsets_that_the_log_does_not_have(at: str, says: str) -> None:
    with pytest.raises(StatePointError, match=says):
        Point.of(at).reaches("t", SPANS, {})


def test_what_was_deleted_is_said() -> None:
    spans = {0: Span(40, 100, 100)}
    with pytest.raises(StatePointError, match=r"t-0 begins.*40.*39"):
        Point.of({0: 39}).reaches("t", spans, {})
    with pytest.raises(StatePointError, match=r"t-0 begins.*1970.*40"):
        Point.of(5_000).reaches("t", spans, {0: 40})
    assert Point.of({0: 40}).reaches("t", spans, {}) == {0: OffsetRange(40, 40)}


def test_a_time_is_the_place_before_its_first_record() -> None:
    reaches = Point.of(5_000).reaches("t", SPANS, {0: 17, 1: -1})
    assert reaches == {0: OffsetRange(0, 17), 1: OffsetRange(0, 50)}
    assert not before_all(reaches, SPANS)
    assert before_all(Point.of(5_000).reaches("t", SPANS, {0: 0, 1: 0}), SPANS)
    assert not before_all({0: OffsetRange(0, 0)}, {0: Span(0, 0, 0)}), "it is empty anyway"


CONFIG = StreamsConfig(application_id="shop", bootstrap_servers="b:1")


def load(monkeypatch: pytest.MonkeyPatch, folder: Path, loader: str) -> str:
    """What the error says where ``loader`` stands for the loader's code."""
    (folder / "some_loader.py").write_text(loader)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(state_source, "LOADER", "some_loader")
    with pytest.raises(TopologyError, match=r"shop:builder.*loaded") as caught:
        state_source._loaded("shop:builder", CONFIG)
    assert caught.value.code == "EF-PROGRAM"
    return str(caught.value)


def test_a_program_that_stays_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state_source, "LOAD_TIMEOUT_S", 0.5)
    said = load(monkeypatch, tmp_path, "while True:\n    pass\n")
    assert "after 0.5 s its process was still busy" in said
    assert "if __name__ == '__main__':" in said


def test_what_a_program_says_last_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "exit code 3" in load(monkeypatch, tmp_path, "raise SystemExit(3)\n")
    assert "no such topic" in load(monkeypatch, tmp_path, "raise SystemExit('no such topic')\n")


def test_without_a_broker_the_cure_is_in_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_reader, "REACH_S", 0.5)
    spec = store_spec("s")
    config = StreamsConfig(application_id="a", bootstrap_servers="127.0.0.1:1")
    store = LoggedStore(EntryColumns(spec, spec.value_serde), "a-s-changelog")
    with (
        pytest.raises(TaskTimeoutError) as caught,
        state_reader.reading(store, config, None) as reader,
    ):
        reader.parts("end")
    last = str(caught.value).splitlines()[-1]
    assert "127.0.0.1:1" in last
    assert "Check bootstrap.servers" in last
