"""Queries of real stores: keys, ranges, windows, pages, moves; and which keys a store holds."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow import Windowed, serdes
from everflow.instance.client_state import ClientState
from everflow.instance.query.queries import default_partitioner
from everflow.instance.query.store_query import ReadOnlyStore, StoreReader
from everflow.operators.table import TableSpec
from everflow.records import TaskId
from everflow.serdes import SerdeError
from everflow.snapshots.query_errors import StateMovingError, StoreKindError
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.topology.graph import EdgeType, MergeNode, SinkNode, SourceNode, StatefulNode
from everflow.topology.partitioners import topics_into_stores
from everflow.topology.program import Topology
from unit.instance.query.query_stores import COUNTS, WINDOWS, Instance, by_first_letter, windows


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path)
    yield made
    made.close()


def store(instance: Instance, name: str, page: int | None = None, **options: Any) -> Any:
    """A store, reading pages of so many entries."""
    found = instance.store(name, partitioner=by_first_letter, **options)
    if page is not None:
        found._reader.page_entries = page
    return found


def fill(instance: Instance) -> None:
    instance.put(0, COUNTS, {b"a": 1, b"a\xc3\xa9": 2, b"aa": 3, b"ab": 4})
    instance.put(1, COUNTS, {b"b": 5, b"ba": 6})


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
def test_keys_ranges_and_prefixes(instance: Instance, page: int) -> None:
    fill(instance)
    counts = store(instance, "counts", page)
    everything = [("a", 1), ("aa", 3), ("ab", 4), ("aé", 2), ("b", 5), ("ba", 6)]
    assert list(counts.all()) == everything
    assert list(counts.reverse_all()) == [*everything[3::-1], *everything[:3:-1]]
    assert list(counts.range("aa", "b")) == everything[1:5]
    assert list(counts.reverse_range("aa", "ab")) == [("ab", 4), ("aa", 3)]
    assert list(counts.range(None, "a")) == [("a", 1)]
    assert list(counts.range("ab", None)) == everything[2:]
    assert list(counts.prefix_scan("a")) == everything[:4]
    assert list(counts.prefix_scan(b"a\xc3")) == [("aé", 2)]
    assert [counts.get(key) for key in ("a", "ba", "ac")] == [1, 6, None]
    assert counts.approximate_num_entries() == 6
    assert counts.partitions == (0, 1)


def test_a_large_value_ends_a_page(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(instance)
    sizes = []
    original = StoreReader._page

    def counted(self: StoreReader, *arguments: Any) -> Any:
        page, more = original(self, *arguments)
        sizes.append(len(page))
        return page, more

    monkeypatch.setattr(StoreReader, "_page", counted)
    reader = instance.store("counts")._reader
    reader.page_bytes = 20
    assert len(list(reader.entries(0, None, None))) == 4
    assert sizes == [2, 2]


def test_a_key_written_by_another_partitioner_is_found_here(instance: Instance) -> None:
    fill(instance)
    instance.put(0, COUNTS, {b"bz": 7})  # belongs to partition 1
    assert store(instance, "counts").get("bz") == 7


@pytest.mark.parametrize(
    ("query", "arguments", "says"),
    [
        ("fetch", ("a", "0", 5), "time_from (ms) must be a whole number, not '0'"),
        ("backward_fetch", ("a", 0, None), "time_to (ms) must be a whole number, not None"),
        ("fetch_all", (0, 1.5), "time_to (ms) must be a whole number, not 1.5"),
        ("backward_fetch_all", (None, 0), "time_from (ms)"),
        ("fetch_range", ("a", "b", "x", 0), "time_from (ms)"),
        ("backward_fetch_range", (None, None, 0, "x"), "time_to (ms)"),
        ("fetch_window", ("a", "0"), "start (ms) must be a whole number, not '0'"),
    ],
)
def test_times_of_another_type_are_named_at_the_call(
    instance: Instance, query: str, arguments: tuple[Any, ...], says: str
) -> None:
    instance.put(0, WINDOWS, windows({("a", 0): 1}))
    with pytest.raises(TypeError, match=re.escape(says)):
        getattr(store(instance, "windows"), query)(*arguments)


def test_times_may_be_numbers_of_numpy(instance: Instance) -> None:
    instance.put(0, WINDOWS, windows({("a", 0): 1}))
    assert list(store(instance, "windows").fetch("a", np.int64(0), np.int64(5))) == [
        (Windowed("a", 0, 1000), 1)
    ]


def test_a_query_of_another_kind_says_what_there_is(instance: Instance) -> None:
    fill(instance)
    with pytest.raises(StoreKindError, match=r"key_value store.*prefix_scan"):
        instance.store("counts").fetch("a", 0, 1)
    with pytest.raises(StoreKindError, match="window"):
        instance.store("windows").get("a")
    with pytest.raises(StoreKindError, match=r"prefixScan.*prefix_scan"):
        instance.store("counts").prefixScan("a")
    assert not hasattr(instance.store("counts"), "fetch")


def test_a_key_of_another_type_names_store_and_type(instance: Instance) -> None:
    fill(instance)
    with pytest.raises(SerdeError, match=r"'counts'.*expected.*5"):
        instance.store("counts").get(5)
    with pytest.raises(SerdeError, match="never null"):
        instance.store("counts").get(None)


def test_a_store_that_is_gone_while_its_task_is_said_to_run_is_moving(instance: Instance) -> None:
    path = instance.put(0, COUNTS, {b"a": 1})
    LmdbStore.close_at(path)
    shutil.rmtree(path)
    with pytest.raises(StateMovingError, match="Partition 0"):
        store(instance, "counts").get("a")


def test_a_store_closed_between_two_reads_is_opened_again(instance: Instance) -> None:
    path = instance.put(0, COUNTS, {b"a": 1})
    counts = store(instance, "counts")
    assert counts.get("a") == 1
    LmdbStore.close_at(path)
    assert counts.get("a") == 1


def test_a_partition_that_moves_away_ends_the_iteration_with_an_error(instance: Instance) -> None:
    fill(instance)
    entries = store(instance, "counts", 1).all()
    assert next(entries) == ("a", 1)
    del instance.active[TaskId(0, 0)]
    instance.state = ClientState.REBALANCING
    with pytest.raises(StateMovingError, match=r"Partition 0.*'counts'"):
        list(entries)


def test_no_read_transaction_is_open_between_two_entries(instance: Instance) -> None:
    path = instance.put(0, COUNTS, {b"a": 1, b"b": 2, b"c": 3})
    entries = store(instance, "counts", 2).all()
    next(entries)
    opened = LmdbStore.open(path)
    assert opened._env._readers == 0
    opened.close()  # would wait for a reader
    assert [key for key, _ in entries] == ["b", "c"]


def test_a_store_is_kept_over_everything_that_happens_to_its_tasks(instance: Instance) -> None:
    counts: ReadOnlyStore = store(instance, "counts")
    assert counts.partitions == ()
    fill(instance)
    assert counts.partitions == (0, 1)
    assert repr(counts) == "<ReadOnlyKeyValueStore counts>"


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # Kafka's own test vectors of Utils.murmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_partitioned_as_java_does(key: bytes, hashed: int) -> None:
    for partitions in (1, 7, 1000):
        assert default_partitioner(key, partitions) == (hashed & 0x7FFFFFFF) % partitions


def test_a_store_holds_the_keys_of_the_topics_that_reach_it() -> None:
    """Not of its whole sub-topology, which may have a wider topic that its keys never meet."""
    edge, data = EdgeType(pa.binary(), pa.binary()), serdes.bytes_()
    topology = Topology(
        (
            SourceNode("S1", (), edge, ("narrow", "narrow-too"), data, data),
            SourceNode("S2", (), edge, ("wide",), data, data),
            StatefulNode(
                "counts",
                ("S1",),
                edge,
                "AGGREGATE",
                TableSpec("counts", data, data),
                (StoreSpec(name="counts", kind="key_value", key_serde=data, value_serde=data),),
            ),
            MergeNode("M", ("counts", "S2"), edge),
            SinkNode("R", ("M",), edge, "by-value-repartition", data, data, "repartition"),
            SourceNode("S3", (), edge, ("by-value-repartition",), data, data, "repartition"),
            StatefulNode(
                "again",
                ("S3",),
                edge,
                "AGGREGATE",
                TableSpec("counts", data, data),
                (StoreSpec(name="by-value", kind="key_value", key_serde=data, value_serde=data),),
            ),
        )
    )
    assert topics_into_stores(topology, "app") == {
        "counts": {"narrow", "narrow-too"},
        "by-value": {"app-by-value-repartition"},
    }
