"""Corrupt changelog entries give a result or an error that says where; `--all` draws more."""

import random
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow import serdes
from everflow.errors import DamagedEntryError
from everflow.instance.restore.restoration import RestoreJob, restore
from everflow.instance.restore.restore_plan import RestorePlan
from everflow.operators import AggregateSpec, SessionAggregateSpec, agg
from everflow.operators.table import VersionedTableSpec
from everflow.protocol.messages import StorePlace, TaskContext
from everflow.records import Int64, TaskId, TopicPartition
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec, memory_store, record_as_of
from everflow.topology.graph import TableOperator
from everflow.windows import SessionWindows, TimeWindows
from everflow.worker.stores import UNREADABLE, CheckedAccess
from properties.operators.operator_batches import done_by_one_task, edge_batch
from properties.test_record_batches import COUNT, SEED, corrupt
from unit.builders import store_spec as made_store_spec
from unit.manual_clock import ManualClock

INPUT = pa.struct([("x", pa.float64())])
NAMES = ["n", "mean", "all"]
AGGREGATORS = [agg.count(), agg.avg("x"), agg.collect_list("x")]
TEXT = serdes.string()
TASK, CHANGELOG = TaskId(0, 3), TopicPartition("app-s-changelog", 3)
RETENTION_MS = 60_000
IN_ONE_STORE = 25
"""Cases. A time in a key that is corrupt leaves all others behind: then a new store."""
Entry = tuple[bytes, bytes]


def aggregate(window: TimeWindows | None = None) -> AggregateSpec:
    return AggregateSpec.of("s", TEXT, AGGREGATORS, NAMES, INPUT, window=window)


SPECS: Mapping[str, Any] = {
    "key_value": aggregate(),
    "window": aggregate(TimeWindows(1_000, 1_000, 30_000)),
    "session": SessionAggregateSpec(aggregate(), SessionWindows(1_000, 30_000)),
    "versioned": VersionedTableSpec("s", TEXT, serdes.json("x double"), RETENTION_MS),
}


def store_spec(kind: str) -> StoreSpec:
    kept = None if kind == "key_value" else RETENTION_MS
    value = SPECS[kind].value_serde
    return made_store_spec(
        "s", kind, key=TEXT, value=value, retention_ms=kept, window_size_ms=1_000
    )


def good_entries(kind: str) -> list[Entry]:
    """What the operator writes for a key ``bad`` and a key ``good``."""
    spec: TableOperator = SPECS[kind]
    rows = [(key, {"x": 1.5}, 5_000) for key in ("bad", "good")]
    done = done_by_one_task(spec, edge_batch(rows, INPUT, 0), memory_store(store_spec(kind)), -1)
    (changes,) = done.changes
    return [
        (key, value)
        for key, value in zip(changes.keys, changes.values, strict=True)
        if value is not None
    ]


@dataclass(frozen=True)
class Chunk:
    """One offset of the changelog, with several records for the test's sake."""

    entries: Sequence[Entry]
    next_position: int
    records: int = 1

    @property
    def keys(self) -> list[bytes]:
        return [key for key, _ in self.entries]

    @property
    def values(self) -> list[bytes]:
        return [value for _, value in self.entries]

    @property
    def timestamps(self) -> Int64:
        return np.full(len(self.entries), 5_000, np.int64)

    def offset_of(self, key: bytes) -> int:
        return self.next_position - 1


@dataclass(frozen=True)
class Changelog:
    chunk: Chunk

    def read(self, *_: Any, **__: Any) -> Iterator[Chunk]:
        yield self.chunk


@dataclass(frozen=True)
class Access:
    store: LmdbStore

    def view(self, task: TaskContext, spec: StoreSpec) -> AbstractContextManager[Any]:
        return self.store.snapshot()

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        assert "s of task 0_3 is damaged" in reason


def new_store(kind: str, folder: Path, before: LmdbStore | None = None) -> LmdbStore:
    """In place of the one ``before``, which is closed: ten thousand would be too many files."""
    if before is not None:
        before.close()
        shutil.rmtree(folder)
    kept = store_spec(kind).kept_ms
    return LmdbStore.open(folder, kind=kind, retention_ms=kept, map_bytes=1 << 22)


def restored(store: LmdbStore, entries: Sequence[Entry], offset: int) -> bool:
    """Whether they are in the store; else it was said where the one is that cannot be."""
    plan = RestorePlan(offset, offset + 1, False, "test")
    job = RestoreJob(task=TASK, store_name="s", store=store, changelog=CHANGELOG, plan=plan)
    try:
        restore(job, Changelog(Chunk(entries, offset + 1)), clock=ManualClock())
    except DamagedEntryError as error:
        if f"record app-s-changelog-3@{offset} of its changelog" not in str(error):
            raise
        return False
    return True


def counted(kind: str, view: Any) -> Any:
    """The operator's result of each key's next record; a versioned table shows what it was."""
    if kind == "versioned":
        decode = SPECS[kind].value_serde.decode
        return {
            key: record_as_of(view, key.encode(), 5_200, RETENTION_MS, decode)
            for key in ("bad", "good")
        }
    rows = [(key, {"x": 2.5}, 5_500) for key in ("bad", "good")]
    done = done_by_one_task(SPECS[kind], edge_batch(rows, INPUT, 10), view, 5_000)
    keys = [key["key"] if isinstance(key, dict) else key for key in done.output.key.to_pylist()]
    return dict(zip(keys, done.output.value.to_pylist(), strict=True))


def read(kind: str, store: LmdbStore) -> Any:
    """The operator's results, or None: the entry was named. A run that fails is repeated on stores
    that are looked at, and that has to say why."""
    with store.snapshot() as view:
        try:
            return counted(kind, view)
        except (*UNREADABLE, struct.error):
            pass
    access = CheckedAccess(Access(store), {"s": SPECS[kind].results}, {"s": "node"})
    task = TaskContext(TASK, "", "", stores={"s": StorePlace("", CHANGELOG.topic)})
    with access.view(task, store_spec(kind)) as checked:
        try:
            counted(kind, checked)
        except DamagedEntryError as error:
            if "changelog app-s-changelog, partition 3" not in str(error):
                raise
            return None
    raise AssertionError("it has failed, and no entry is to blame")


@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("kind", SPECS)
def test_a_corrupt_entry_is_a_value_or_an_error_that_says_where(kind: str, tmp_path: Path) -> None:
    entries = good_entries(kind)
    at = next(row for row, (key, _) in enumerate(entries) if key.startswith(b"bad"))
    outcomes = {"refused": 0, "named": 0, "read": 0}
    right: Any = None
    fresh, store = False, new_store(kind, tmp_path)
    for n in range(-1, COUNT // 3 if COUNT < 1_000 else COUNT):
        if fresh or (n + 1) % IN_ONE_STORE == 0:
            store = new_store(kind, tmp_path, store)
        rng = random.Random(f"{SEED}/{n}")
        key, value = entries[at]
        if n >= 0 and rng.random() < 0.3:
            key = corrupt(rng, key)
        if n >= 0 and (key == entries[at][0] or rng.random() < 0.5):
            value = corrupt(rng, value)
        fresh = key != entries[at][0]
        says = f"seed {SEED}, number {n}: {key!r} = {value!r}"
        given = [*entries[:at], (key, value), *entries[at + 1 :]]
        try:
            if not restored(store, given, n + 1):
                outcomes["refused"] += 1
                continue
            found = read(kind, store)
        except Exception as error:
            raise AssertionError(f"{says}: {error!r}") from error
        outcomes["named" if found is None else "read"] += 1
        if n == -1:
            right = found
        elif found is not None and key == entries[at][0]:
            assert found["good"] == right["good"], says
    store.close()
    assert outcomes["read"] > 10
    assert outcomes["named"] > 10
    assert (outcomes["refused"] > 0) == (kind in ("window", "session"))
