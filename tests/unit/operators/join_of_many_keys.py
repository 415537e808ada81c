"""Joins two streams of very many keys in one window, as a worker does it, and tells what memory it
took: `python join_of_many_keys.py FOLDER KEYS RECORDS_OF_A_BATCH HELD_BYTES`."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from everflow import serdes
from everflow.operators.joins import JoinKind, StreamStreamJoin
from everflow.records import EdgeBatch
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.store_meta import Owner
from everflow.topology.graph import Inputs
from everflow.windows import JoinWindows
from everflow.worker.ports import WorkerPorts

KEY, VALUE = serdes.string(), serdes.json("n bigint, text string")
DAY_MS = 86_400_000
RETENTION_MS = 3 * DAY_MS
LOOK_S = 0.002


def spec(name: str, kind: str) -> StoreSpec:
    retention_ms = RETENTION_MS if kind == "window" else None
    return StoreSpec(
        name=name, kind=kind, key_serde=KEY, value_serde=VALUE, retention_ms=retention_ms
    )


SPECS = [spec("left", "window"), spec("right", "window"), spec("waiting", "key_value")]


def records(numbers: range, time_ms: int) -> EdgeBatch:
    """One for each number; the keys come in no order."""
    count = len(numbers)
    keys = [hashlib.blake2b(b"%d" % number, digest_size=16).hexdigest() for number in numbers]
    value = [pa.array(numbers), pa.array(["some text of forty letters, for each one"] * count)]
    zeros = np.zeros(count, np.int64)
    return EdgeBatch(
        key=pa.array(keys, pa.string()),
        value=pa.StructArray.from_arrays(value, fields=list(VALUE.type)),
        timestamp=np.arange(count) + time_ms,
        seq=np.arange(count),
        source=zeros.astype(np.int32),
        partition=zeros.astype(np.int32),
        offset=zeros,
    )


def batches(keys: int, size: int) -> Iterator[tuple[EdgeBatch, EdgeBatch]]:
    """All left records, then the right record of each."""
    for is_left in (True, False):
        for first in range(0, keys, size):
            mine = records(range(first, min(first + size, keys)), first + (0 if is_left else keys))
            none = mine.take(np.empty(0, np.int64))
            yield (mine, none) if is_left else (none, mine)


class Peak(threading.Thread):
    """The most memory that the process had, files' pages left out, since `begin`; MiB above what it
    had before all."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._least = self._now()
        self.mib = 0.0
        self.start()

    def run(self) -> None:
        while True:
            self.mib = max(self.mib, self._now() - self._least)
            threading.Event().wait(LOOK_S)

    @staticmethod
    def _now() -> float:
        found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
        assert found is not None
        return int(found[1]) / 1024


def main(folder: Path, keys: int, size: int, held_bytes: int) -> None:
    windows = JoinWindows.of_time_difference("1 day").grace("0 ms")
    join = StreamStreamJoin(
        JoinKind.LEFT, windows, (SPECS[0], SPECS[1]), (VALUE.type, VALUE.type), SPECS[2]
    )
    ports = WorkerPorts(held_bytes=held_bytes)
    paths = {one.name: str(folder / one.name) for one in SPECS}
    for one in SPECS:
        made = LmdbStore.open(paths[one.name], kind=one.kind, retention_ms=one.retention_ms)
        made.claim("i")
    peak, times, results, input_bytes = Peak(), {0: -1}, 0, 0
    last = dict.fromkeys(paths, "")
    for number, (left, right) in enumerate(batches(keys, size)):
        input_bytes = max(
            input_bytes, *(one.key.nbytes + one.value.nbytes for one in (left, right))
        )
        with ExitStack() as stack:
            views = {
                name: stack.enter_context(LmdbStore.open(path).snapshot())
                for name, path in paths.items()
            }
            done = join.run(Inputs((left, right), {0: views}, times))
        times = done.stream_times
        results += len(done.output)
        for changes in done.changes[0]:
            name, batch = changes.store, str(number)
            ports.apply(paths[name], changes, None, Owner("i", last[name]), batch, {})
            last[name] = batch
    stored = sum((Path(path) / "data.mdb").stat().st_size for path in paths.values())
    told = {"results": results, "input_bytes": input_bytes, "stored_bytes": stored}
    print(json.dumps({**told, "peak_mib": peak.mib}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:]))
