"""What a store was, folded from its changelog: every kind, and what has to be said of it."""

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everflow import StreamsBuilder, serdes
from everflow.errors import ConfigError, NoChangelogError, StateDiskError, StatePointError
from everflow.records import StoreChanges
from everflow.serdes.windowed import session_key, window_store_key
from everflow.snapshots.entry_columns import EntryColumns, EntryError
from everflow.snapshots.logged_stores import LoggedStore, logged_stores
from everflow.snapshots.query_errors import StoreNotFoundError
from everflow.snapshots.snapshot import Rows, room, write_parquet
from everflow.snapshots.state_reader import StateReader
from everflow.state.left_out import KeptEntry
from everflow.state.store import StoreSpec, memory_store
from unit.builders import store_spec
from unit.snapshots.changelogs import FakeChangelog, Record

TOPIC = "app-s-changelog"


def long(value: int | None) -> bytes | None:
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
    return {at: (key.encode(), long(value), time) for at, (key, value, time) in enumerate(values)}


def content(rows: Rows) -> list[tuple[Any, ...]]:
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
    assert content(rows) == [("a", 2, 0), ("c", 7, 1)], "the tombstone of b counts"
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
    assert content(reader(LOGS, tmp_path).rows(at)) == found


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    asked = reader(LOGS, tmp_path)
    content(asked.rows("0=2"))
    assert asked.reader.reads == [(0, 0, 2)]  # type: ignore[attr-defined]


def test_a_time_before_all_says_when_it_begins(tmp_path: Path) -> None:
    with pytest.raises(StatePointError, match=r"00:00.500Z.*00:01Z"):
        reader(LOGS, tmp_path).rows(500)
    assert content(reader({0: {}}, tmp_path).rows(500)) == []


def test_a_log_without_a_gap_has_nothing_to_be_said_and_one_with_gaps_has(tmp_path: Path) -> None:
    gaps = {0: {at: one for at, one in LOGS[0].items() if at != 0}}
    early = reader(gaps, tmp_path).rows("0=3")
    assert content(early) == [("a", 2, 0), ("b", 1, 0)]
    assert [note.split(":")[0] for note in early.notes] == [
        f"1 of 3 offsets of {TOPIC} up to there have no committed record"
    ]
    now = reader(gaps, tmp_path).rows()
    assert content(now) == [("a", 2, 0)]
    assert now.notes == [], "at the end compaction takes nothing away"


def test_a_log_whose_beginning_was_deleted_says_so(tmp_path: Path) -> None:
    rows = reader(LOGS, tmp_path, starts={0: 1}).rows()
    assert content(rows) == [("a", 2, 0), ("c", 7, 1)]
    (note,) = rows.notes
    assert "deleted in partitions 0 (from 1)" in note


def test_an_open_transaction_is_not_waited_for(tmp_path: Path) -> None:
    asked = reader(LOGS, tmp_path, open_from={0: 2})
    assert content(asked.rows()) == [("a", 1, 0), ("b", 1, 0), ("c", 7, 1)]
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
        at: (stored_key(start), long(at), start) for at, start in enumerate(starts)
    }
    model = memory_store(kept)
    for end in range(len(starts) + 1):
        asked = reader({0: log}, tmp_path, kept)
        found = [value for _, value, _ in content(asked.rows({0: end}))]
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
        content(reader({0: log}, tmp_path).rows())
    with pytest.raises(EntryError, match=rf"{TOPIC}-0@1.*found 3"):
        content(reader({0: log}, tmp_path).rows("0=3"))
    with pytest.raises(EntryError, match=f"{TOPIC}-0@1"):
        changes(reader({0: log}, tmp_path).difference("0=3", "0=5"))
    kept = spec("window", retention_ms=10**6, window_size_ms=1_000)
    with pytest.raises(EntryError, match=rf"{TOPIC}-0@2.*1.*window"):
        content(reader({0: LOGS[0]}, tmp_path, kept).rows())
    assert list(tmp_path.iterdir()) == []


def test_a_topic_that_is_missing_and_a_disk_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(NoChangelogError, match=f"topic {TOPIC}"):
        reader(LOGS, tmp_path, there=False).rows()
    with pytest.raises(StateDiskError, match=r"refuses.*--folder.*TMPDIR"):
        content(reader(LOGS, tmp_path / "missing").rows())
    with pytest.raises(StateDiskError, match="No space"), room(tmp_path):
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
    """At the end, and at a point before it was left out, as far as that is known."""
    log = {0: counted(("a", 1, 1_000), ("a", 2, 2_000), ("b", 3, 3_000), ("b", None, 4_000))}
    entries = [(b"a", KeptEntry(1, long(1), 1_000)), (b"b", KeptEntry(3, long(3), 3_000))]
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
    assert content(asked.rows()) == [("a", 1, 0), ("b", 3, 0)]
    assert content(asked.rows("0=3")) == [("a", 1, 0), ("b", 3, 0)]
    assert content(asked.rows("0=1")) == [("a", 1, 0)]


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
