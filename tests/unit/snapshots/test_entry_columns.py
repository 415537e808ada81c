"""Entries in columns: every kind of store, every error with its place."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from everflow import agg, serdes
from everflow.operators.aggregates.aggregate import AggregateSpec
from everflow.serdes.windowed import session_key, window_store_key
from everflow.snapshots import entry_columns
from everflow.snapshots.entry_columns import Difference, EntryColumns, EntryError, compared, pages
from everflow.state.changelog import pack_value
from markdown_pages import ROOT
from unit.builders import store_spec

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


def test_a_serde_of_the_options_that_does_not_fit_is_no_word_of_a_topology() -> None:
    packed = serdes.packed("orders bigint, mean_sum double, mean_count bigint")
    stored = packed.encode({"orders": 2, "mean_sum": 3.0, "mean_count": 2})
    assert stored is not None
    page = [(b"a", pack_value(1, stored))]

    def read(serde: Any) -> Any:
        shown = dataclasses.replace(columns("key_value", serde), by_options=True)
        return shown.entries(page, 0, lambda _: "topic-0@7").column("value").to_pylist()

    for serde in (
        serdes.json("orders bigint, mean double"),
        serdes.packed("orders bigint, mean double"),
    ):
        with pytest.raises(EntryError) as caught:
            read(serde)
        said = str(caught.value)
        assert "The value of topic-0@7 does not fit the option value.serde" in said
        assert "what the topology says" not in said
        assert "packed" in said
        assert "docs/QUERIES.md" in said
    assert read(packed) == [{"orders": 2, "mean_sum": 3.0, "mean_count": 2}]


def test_the_page_has_the_fields_that_aggregates_are_stored_with() -> None:
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
    page = (ROOT / "docs" / "QUERIES.md").read_text()
    for part in ("mean_sum double, mean_count bigint", "best string, best_by bigint"):
        assert part in page


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
