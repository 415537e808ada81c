"""Stores and changelogs as rows: every kind, places, errors, and stores of one moment."""

import json
import pickle
import re
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everflow import Stores, StreamsBuilder, agg, serdes
from everflow.config import StreamsConfig
from everflow.errors import (
    ConfigError,
    NoChangelogError,
    StateDiskError,
    StatePointError,
    TaskTimeoutError,
    TopologyError,
)
from everflow.instance.query.store_query import rows_of
from everflow.operators.aggregates.aggregate import AggregateSpec
from everflow.records import OffsetRange, StoreChanges
from everflow.serdes.windowed import session_key, window_store_key
from everflow.snapshots import entry_columns, state_reader, state_source
from everflow.snapshots.entry_columns import Difference, EntryColumns, EntryError, compared, pages
from everflow.snapshots.logged_stores import LoggedStore, LoggedStores, logged_stores
from everflow.snapshots.points import Point, Span, before_all
from everflow.snapshots.query_errors import (
    StaleStateError,
    StateElsewhereError,
    StateMovingError,
    StoreNotFoundError,
)
from everflow.snapshots.snapshot import Rows, scratch_folder, write_parquet
from everflow.snapshots.state_reader import LogPart, LogParts, PartReader, StateReader
from everflow.snapshots.state_source import OWN, SourceOptions
from everflow.state.changelog import pack_value
from everflow.state.left_out import KeptEntry
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec, memory_store
from everflow.state.versioned_snapshot import VersionedSnapshot
from everflow.travel.pickled_objects import PickledObjects
from unit.builders import store_spec
from unit.instance.query.query_stores import COUNTS, WINDOWS, Instance, windows, write
from unit.snapshots.changelogs import FakeChangelog, Record


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
    assert "after 0.5 s its process" in said
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


# What a store was, folded from its changelog.

TOPIC = "app-s-changelog"


def read_long(value: int | None) -> bytes | None:
    return serdes.long().encode(value)


def spec(kind: str = "key_value", **more: Any) -> StoreSpec:
    return store_spec("s", kind, **more)


def reader(
    logs: dict[int, dict[int, Record]], folder: Path, of: StoreSpec | None = None, **more: Any
) -> StateReader:
    kept = of or spec()
    fake: Any = FakeChangelog(TOPIC, logs, **more)
    store = LoggedStore(EntryColumns(kept, kept.value_serde), TOPIC)
    return StateReader(store=store, admin=fake, reader=fake, folder=folder)


def counted(*values: tuple[str, int | None, int]) -> dict[int, Record]:
    return {
        at: (key.encode(), read_long(value), time) for at, (key, value, time) in enumerate(values)
    }


def read_content(rows: Rows) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in ("key", "value", "partition"))
        for batch in rows.batches()
        for row in batch.to_pylist()
    ]


def changes(rows: Rows) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in ("key", "change", "old_value", "new_value"))
        for batch in rows.batches()
        for row in batch.to_pylist()
    ]


LOGS = {
    0: counted(("a", 1, 1_000), ("b", 1, 2_000), ("a", 2, 3_000), ("b", None, 4_000)),
    1: counted(("c", 7, 2_500)),
}


def test_a_store_is_what_its_changelog_says_and_the_folder_is_left_empty(tmp_path: Path) -> None:
    rows = reader(LOGS, tmp_path).rows()
    assert read_content(rows) == [("a", 2, 0), ("c", 7, 1)], "the tombstone of b counts"
    assert rows.notes == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("at", "found"),
    [
        ("0=2,1=0", [("a", 1, 0), ("b", 1, 0)]),
        ("0=3", [("a", 2, 0), ("b", 1, 0)]),
        (2_000, [("a", 1, 0)]),
        (2_600, [("a", 1, 0), ("b", 1, 0), ("c", 7, 1)]),
        (99_000, [("a", 2, 0), ("c", 7, 1)]),
    ],
)
def test_a_point_is_a_place_in_each_log(tmp_path: Path, at: Any, found: list[Any]) -> None:
    assert read_content(reader(LOGS, tmp_path).rows(at)) == found


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    asked = reader(LOGS, tmp_path)
    read_content(asked.rows("0=2"))
    assert asked.reader.reads == [(0, 0, 2)]  # type: ignore[attr-defined]


def test_a_time_before_all_says_when_it_begins(tmp_path: Path) -> None:
    with pytest.raises(StatePointError, match=r"00:00.500Z.*00:01Z"):
        reader(LOGS, tmp_path).rows(500)
    assert read_content(reader({0: {}}, tmp_path).rows(500)) == []


def test_a_log_without_a_gap_has_nothing_to_be_said_and_one_with_gaps_has(tmp_path: Path) -> None:
    gaps = {0: {at: one for at, one in LOGS[0].items() if at != 0}}
    early = reader(gaps, tmp_path).rows("0=3")
    assert read_content(early) == [("a", 2, 0), ("b", 1, 0)]
    (note,) = early.notes
    assert re.match(f"1 of 3 offsets of {TOPIC} .* no committed record: ", note)
    now = reader(gaps, tmp_path).rows()
    assert read_content(now) == [("a", 2, 0)]
    assert now.notes == [], "at the end compaction takes nothing away"


def test_a_log_whose_beginning_was_deleted_says_so(tmp_path: Path) -> None:
    rows = reader(LOGS, tmp_path, starts={0: 1}).rows()
    assert read_content(rows) == [("a", 2, 0), ("c", 7, 1)]
    (note,) = rows.notes
    assert "deleted in partitions 0 (from 1)" in note


def test_an_open_transaction_is_not_waited_for(tmp_path: Path) -> None:
    asked = reader(LOGS, tmp_path, open_from={0: 2})
    assert read_content(asked.rows()) == [("a", 1, 0), ("b", 1, 0), ("c", 7, 1)]
    with pytest.raises(StatePointError, match=r"transaction.*2"):
        asked.rows("0=3")


def test_two_points_differ_in_keys_added_changed_and_removed(tmp_path: Path) -> None:
    asked = reader(LOGS, tmp_path)
    assert changes(asked.difference("0=1,1=0", "0=4,1=1")) == [
        ("a", "changed", 1, 2),
        ("c", "added", None, 7),
    ]
    assert changes(asked.difference("0=2", "0=4")) == [
        ("a", "changed", 1, 2),
        ("b", "removed", 1, None),
    ]
    assert changes(asked.difference("0=4", "0=2")) == [
        ("a", "changed", 2, 1),
        ("b", "added", None, 1),
    ], "backwards, too"
    assert changes(asked.difference("0=2", "0=2")) == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StatePointError, match=r"name other partitions \(0=2; 1=1\)"):
        asked.difference("0=2", "1=1")


def test_where_one_point_names_partitions_the_difference_is_of_those(tmp_path: Path) -> None:
    asked = reader(LOGS, tmp_path)
    since = [("a", "changed", 1, 2), ("b", "removed", 1, None)]
    assert changes(asked.difference("0=2", "end")) == since
    assert changes(asked.difference(2_000, "0=4")) == [("a", "changed", 1, 2)]
    with pytest.raises(StatePointError, match=r"partitions 0.*1.*9"):
        asked.difference("9=2", "end")


def test_the_later_point_goes_on_from_the_earlier(tmp_path: Path) -> None:
    asked = reader(LOGS, tmp_path)
    changes(asked.difference("0=2", "0=4"))
    assert asked.reader.reads == [(0, 0, 2), (0, 2, 4)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["window", "session"])
def test_windows_expire_as_in_the_store(tmp_path: Path, kind: str) -> None:
    kept = spec(kind, retention_ms=120_000, window_size_ms=1_000 if kind == "window" else None)

    def stored_key(start: int) -> bytes:
        if kind == "window":
            return window_store_key(b"k", start)
        return session_key(b"k", start, start)

    starts = [0, 60_000, 121_000, 500_000]
    log: dict[int, Record] = {
        at: (stored_key(start), read_long(at), start) for at, start in enumerate(starts)
    }
    model = memory_store(kept)
    for end in range(len(starts) + 1):
        asked = reader({0: log}, tmp_path, kept)
        found = [value for _, value, _ in read_content(asked.rows({0: end}))]
        assert found == [serdes.long().decode(stored[8:]) for _, stored in model.range(None, None)]
        if end < len(starts):
            key, value, time = log[end]
            assert key is not None
            model.apply(StoreChanges("s", [key], [value], np.array([time])))
    found = changes(reader({0: log}, tmp_path, kept).difference("0=3", "0=4"))
    assert found == [("k", "expired", 1, None), ("k", "expired", 2, None), ("k", "added", None, 3)]


def test_every_version_is_shown_and_the_latest_are_compared(tmp_path: Path) -> None:
    kept = spec("versioned", retention_ms=100_000)
    log = counted(
        ("a", 1, 1_000), ("b", 5, 1_500), ("a", 2, 3_000), ("a", 9, 2_000), ("b", None, 4_000)
    )
    rows = [
        tuple(row[name] for name in ("key", "value", "valid_from", "valid_to"))
        for batch in reader({0: log}, tmp_path, kept).rows().batches()
        for row in batch.to_pylist()
    ]
    times = {(key, value): (start, end) for key, value, start, end in rows}
    assert {
        one: tuple(time and time.timestamp() for time in bounds) for one, bounds in times.items()
    } == {("a", 1): (1.0, 2.0), ("a", 9): (2.0, 3.0), ("a", 2): (3.0, None), ("b", 5): (1.5, 4.0)}
    assert changes(reader({0: log}, tmp_path, kept).difference("0=2", "0=5")) == [
        ("a", "changed", 1, 2),
        ("b", "removed", 5, None),
    ]


def test_wrong_bytes_are_named_by_topic_partition_and_offset(tmp_path: Path) -> None:
    log = {**LOGS[0], 1: (b"x", b"abc", 2_000), 4: (b"x", b"ab", 5_000)}
    with pytest.raises(EntryError, match=rf"{TOPIC}-0@4.*found 2"):
        read_content(reader({0: log}, tmp_path).rows())
    with pytest.raises(EntryError, match=rf"{TOPIC}-0@1.*found 3"):
        read_content(reader({0: log}, tmp_path).rows("0=3"))
    with pytest.raises(EntryError, match=f"{TOPIC}-0@1"):
        changes(reader({0: log}, tmp_path).difference("0=3", "0=5"))
    kept = spec("window", retention_ms=10**6, window_size_ms=1_000)
    with pytest.raises(EntryError, match=rf"{TOPIC}-0@2.*1.*window"):
        read_content(reader({0: LOGS[0]}, tmp_path, kept).rows())
    assert list(tmp_path.iterdir()) == []


def test_a_topic_that_is_missing_and_a_disk_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(NoChangelogError, match=f"topic {TOPIC}"):
        reader(LOGS, tmp_path, there=False).rows()
    with pytest.raises(StateDiskError, match=r"refuses.*--folder.*TMPDIR"):
        read_content(reader(LOGS, tmp_path / "missing").rows())
    with pytest.raises(StateDiskError, match="No space"), scratch_folder(tmp_path):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_parquet_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    home = tmp_path / "out"
    assert write_parquet(reader(LOGS, work).rows(), home) == 2
    assert sorted(path.name for path in home.iterdir()) == [
        "partition-00000.parquet",
        "partition-00001.parquet",
    ]
    assert pq.read_table(home).to_pylist()[0]["value"] == 2
    with pytest.raises(ConfigError, match="exists already"):
        write_parquet(reader(LOGS, work).rows(), home)
    bad: dict[int, dict[int, Record]] = {0: {0: (b"x", b"abc", 1)}}
    with pytest.raises(EntryError):
        write_parquet(reader(bad, work).rows(), tmp_path / "bad")
    write_parquet(reader({0: {}}, work).rows(), tmp_path / "empty")
    assert pq.read_table(tmp_path / "empty").num_rows == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "out", "work"]


def test_what_processing_left_out_of_a_reused_topic_is_not_shown(tmp_path: Path) -> None:
    log = {0: counted(("a", 1, 1_000), ("a", 2, 2_000), ("b", 3, 3_000), ("b", None, 4_000))}
    entries = [(b"a", KeptEntry(1, read_long(1), 1_000)), (b"b", KeptEntry(3, read_long(3), 3_000))]
    left_out = FakeChangelog(
        "app-s-left-out-changelog",
        {0: {at: (key, one.packed(), one.time) for at, (key, one) in enumerate(entries)}},
    )

    class Both(FakeChangelog):
        def describe_topics(self, names: Any) -> Any:
            return left_out.describe_topics(names) or super().describe_topics(names)

        def list_offsets(self, partitions: Any, which: str | int, isolation: str) -> Any:
            of = {tp.topic for tp in partitions}
            one: Any = left_out if of == {left_out.topic} else super()
            return one.list_offsets(partitions, which, isolation)

        def read(self, tp: Any, start: int, end: int, *, every: bool = False) -> Any:
            one: Any = left_out if tp.topic == left_out.topic else super()
            return one.read(tp, start, end, every=every)

    fake: Any = Both("in", log)
    store = LoggedStore(EntryColumns(spec(source_topic="in"), serdes.long()), "in", left_out.topic)
    asked = StateReader(store=store, admin=fake, reader=fake, folder=tmp_path)
    assert read_content(asked.rows()) == [("a", 1, 0), ("b", 3, 0)]
    assert read_content(asked.rows("0=3")) == [("a", 1, 0), ("b", 3, 0)]
    assert read_content(asked.rows("0=1")) == [("a", 1, 0)]


def test_stores_are_found_with_their_changelogs() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts")
    builder.table("users", key=serdes.string(), value=serdes.string(), store="users")
    topology = builder.build()
    assert logged_stores(topology, "app", "none").named("counts").topic == "app-counts-changelog"
    assert logged_stores(topology, "app", "none").named("users").topic == "app-users-changelog"
    reused = logged_stores(topology, "app", "reuse.ktable.source.topics").named("users")
    assert (reused.topic, reused.left_out) == ("users", "app-users-left-out-changelog")
    with pytest.raises(StoreNotFoundError, match=r"'cuonts'.*counts"):
        logged_stores(topology, "app", "none").named("cuonts")


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "2026-11-26T12:00:00Z"),
        (120_000, "2026-11-26T12:00:00.120Z"),
        (120_001, "2026-11-26T12:00:00.120001Z"),
    ],
)
def test_a_time_is_to_the_ms(micros: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And microseconds where a program's own column has some."""
    from everflow.cli import state

    when = datetime(2026, 11, 26, 12, 0, 0, micros, timezone.utc)
    batch = pa.record_batch({"t": pa.array([when], pa.timestamp("us", "UTC"))})
    rows = Rows(batch.schema, iter([(0, iter([batch]))]))
    state.print_table(rows, None)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == ["t", text]


def test_json_of_rows_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from everflow.cli import state

    state.print_document({"store": "s"}, reader(LOGS, tmp_path).rows(), None)
    found = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in found["rows"]] == ["a", "c"]
    assert found["rows"][0]["timestamp"] == "1970-01-01T00:00:03+00:00"
    state.print_lines(reader(LOGS, tmp_path).rows(), 1)
    assert json.loads(capsys.readouterr().out)["key"] == "a"
    state.print_table(reader(LOGS, tmp_path).rows(), 1)
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "key value timestamp partition",
        "a 2 1970-01-01T00:00:03Z 0",
        "... and more: --limit 10 shows them, --format json or parquet all",
    ]


# Options of the data source ``everflow-state``.

WHERE = {"application.id": "shop", "bootstrap.servers": "localhost:1"}
PLAIN = {**WHERE, "store": "counts", "topology": "shop:builder"}


def options(given: dict[str, str], *, registered: bool = False, **settings: Any) -> SourceOptions:
    return SourceOptions.of(given, settings, registered=registered)


def test_an_option_is_what_it_says() -> None:
    found = options(PLAIN)
    assert (found.store, found.topology) == ("counts", "shop:builder")
    assert (found.at, found.diff, dict(found.settings)) == ("end", None, WHERE)


def test_a_program_that_names_a_store_alone_reads_that_of_another_application() -> None:
    builder = StreamsBuilder()
    fields = serdes.json("n long, name string")
    counts = Stores.window(
        "counts", key=serdes.string(), value=fields, size=1_000, retention=60_000
    )
    builder.stream("any").process(lambda record, context: None, stores=[counts])
    found = logged_stores(builder.build(), "shop", "none").named("counts")
    assert found.topic == "shop-counts-changelog"
    spec = found.columns.spec
    assert (spec.kind, spec.retention_ms, spec.window_size_ms) == ("window", 60_000, 1_000)
    schema = found.columns.schema
    assert (schema.field("key").type, schema.field("value").type) == (pa.string(), fields.type)


def test_a_registered_program_needs_the_store_alone() -> None:
    found = options(
        {"store": "s", "diff.from": "0=1"},
        registered=True,
        application_id="shop",
        bootstrap_servers="b:1",
    )
    assert (found.store, found.diff, found.topology) == ("s", ("0=1", "end"), None)
    assert found.settings == {"application_id": "shop", "bootstrap_servers": "b:1"}


def test_other_options_are_settings() -> None:
    secure = {"security.protocol": "SSL", "folder": "/big", "at": "0=3"}
    found = options({**PLAIN, **secure})
    assert (found.folder, found.at) == (Path("/big"), "0=3")
    assert found.settings == {**WHERE, "security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"store": ""}, r"missing.*topology"),
        ({"application.id": ""}, "option application.id is missing"),
        ({"bootstrap.servers": ""}, "option bootstrap.servers is missing: host:port"),
        ({"topology": None}, r"Nothing says.*Give `topology`, or register `EverflowStateSource"),
        ({"diff.to": "end"}, "option diff.from is missing"),
        ({"diff.from": "0=1", "at": "end"}, r"leave.*option"),
        ({"diff_from": "0=1"}, r"option diff_from.*diff.from"),
        ({"path": "counts"}, r"load.*store"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, str | None], says: str) -> None:
    given = {name: one for name, one in {**PLAIN, **change}.items() if one is not None}
    with pytest.raises(ConfigError, match=says):
        options(given)


@pytest.mark.parametrize("option", ["at", "diff.from", "diff.to"])
def test_what_is_no_point_is_named(option: str) -> None:
    points = {"diff.from": "0=1"} if option == "diff.to" else {}
    with pytest.raises(StatePointError, match=rf"option {option}.*'yesterday'"):
        options({**PLAIN, **points, option: "yesterday"})


REMOVED = ("key.serde", "value.serde", "kind", "retention.ms", "window.size.ms", "changelog.topic")


@pytest.mark.parametrize("option", REMOVED)
@pytest.mark.parametrize("registered", [True, False])
def test_an_option_that_was_removed_says_what_to_give(option: str, registered: bool) -> None:
    cure = r"Give `topology`, or register `EverflowStateSource\.of\(builder\.build\(\), \.\.\.\)`"
    with pytest.raises(ConfigError, match=f"option {option} was removed. {cure}"):
        options({**PLAIN, option: "window"}, registered=registered)


def test_a_registered_program_and_a_topology_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match="topology out"):
        options(PLAIN, registered=True)


def test_the_page_has_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "QUERIES.md").read_text()
    assert [name for name in OWN if f"`{name}`" not in page] == []


def test_stores_and_what_is_read_of_them_travel(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    table = builder.table("users", key=serdes.string(), value=serdes.long(), store="users")
    table.to_stream().group_by_key().count(store="counts")
    packed = PickledObjects.of(logged_stores(builder.build(), "shop", "none"))
    stores: LoggedStores = pickle.loads(pickle.dumps(packed)).copy()
    log: dict[int, Record] = {at: (b"a", serdes.long().encode(at), at) for at in range(1, 4)}
    changelog: Any = FakeChangelog("shop-users-changelog", {0: log})
    look: LogParts = pickle.loads(
        pickle.dumps(LogParts([LogPart(0, OffsetRange(0, 2), OffsetRange(0, 4))]))
    )
    with scratch_folder(tmp_path) as folder:
        reader = PartReader(stores.named("users"), changelog, folder)
        with reader.opened(look.parts[0]) as (found, records):
            (row,) = [row for batch in found for row in batch.to_pylist()]
    assert (row["change"], row["old_value"], row["new_value"]) == ("changed", 1, 3)
    assert records == 3
