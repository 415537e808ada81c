"""The test driver, with stores that can be lost: they are restored from their changelogs, or from
the topics that are read as such, as an instance restores them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from everflow import Topology
from everflow.protocol.messages import BatchRequest, BatchResult, StorePlace
from everflow.records import Int64, StoreChanges
from everflow.state.left_out import Chunk, KeptEntry, corrected
from everflow.state.store import StoreSpec, memory_store
from everflow.testing import TopologyTestDriver
from everflow.testing.topics import RawRecord
from everflow.worker.failures import Sources
from everflow.worker.sink import left_out_entries
from everflow.worker.task_step import StepResult


@dataclass(frozen=True)
class _Chunk:
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: Int64
    offsets: Int64
    next_position: int

    @property
    def records(self) -> int:
        return len(self.keys)


class RestoringDriver(TopologyTestDriver):
    """`lose_state` at any time between micro-batches; else it is the driver."""

    def __init__(self, topology: Topology, **options: Any) -> None:
        self._logs: dict[str, list[RawRecord]] = {}
        self._left_out: dict[str, dict[bytes, KeptEntry]] = {}
        super().__init__(topology, **options)

    def _forget(self) -> None:
        self._logs.clear()
        self._left_out.clear()
        super()._forget()

    def _pipe(self, records: Sequence[RawRecord], moves: Any = None) -> None:
        for record in records:
            self._logs.setdefault(record.topic, []).append(record)
        super()._pipe(records, moves)

    def _new_request(self, *given: Any) -> BatchRequest:
        request = super()._new_request(*given)
        places: dict[int, dict[str, StorePlace]] = {}
        for source in self._plan.sources:
            for spec in self._specs.values():
                if spec.source_topic == source.topic:
                    found = places.setdefault(source.subtopology, {})
                    found[spec.name] = StorePlace("", source.topic)
        tasks = [
            replace(task, stores=places.get(task.task.subtopology, task.stores))
            for task in request.tasks
        ]
        return replace(request, tasks=tasks)

    def _keep(self, request: BatchRequest, result: StepResult, sources: Sources) -> BatchResult:
        """Takes what the batch leaves out of topics that are changelogs before the letters are
        taken of it."""
        for one in left_out_entries(
            request, result, sources, lambda _, store, key: self._stores[store].get_many([key])[0]
        ):
            found = self._left_out.setdefault(one.topic, {})
            found.update(zip(one.keys, one.entries, strict=True))
        return super()._keep(request, result, sources)

    def lose_state(self, drawn: random.Random) -> None:
        """All stores are gone, and restored, in chunks of a drawn size, from logs of which a drawn
        part is compacted; functions begin anew, as behind a restart."""
        for name, spec in self._specs.items():
            if spec.logging:
                self._stores.replace(name, memory_store(spec))
                for chunk in self._chunks(spec, drawn):
                    rows = [row for row, key in enumerate(chunk.keys) if key is not None]
                    keys = [key for key in chunk.keys if key is not None]
                    values = [chunk.values[row] for row in rows]
                    changes = StoreChanges(name, keys, values, chunk.timestamps[rows])
                    self._stores[name].apply(changes)
        for table in self._plan.global_tables:
            self._stores.replace(table.store.name, memory_store(table.store))
        self._tables.rewind()
        self._tables.filled(
            [record for topic in self._tables.topics for record in self._logs.get(topic, ())]
        )
        self._step = self._as_travelled(self._step)

    def _chunks(self, spec: StoreSpec, drawn: random.Random) -> Iterator[Chunk]:
        topic = spec.source_topic or self._changelog(spec.name)
        known = self._outputs.of(topic) if spec.source_topic is None else self._logs.get(topic)
        log = list(enumerate(known or ()))
        end = len(log)
        if not spec.versioned:  # its changelog has a min.compaction.lag.ms
            clean = drawn.randint(0, end)
            last = {record.key: offset for offset, record in log[:clean]}
            log = [
                (offset, record)
                for offset, record in log
                if offset >= clean or (last[record.key] == offset and record.key is not None)
            ]
        size = drawn.randint(1, 30)
        chunks = [_chunk(log[at : at + size], end) for at in range(0, len(log), size)]
        chunks = [
            replace(one, next_position=int(later.offsets[0])) for one, later in pairwise(chunks)
        ] + chunks[-1:]
        left_out = self._left_out.get(spec.left_out_topic(self._plan.application_id) or "", {})
        yield from corrected(chunks, 0, left_out, spec) if spec.source_topic else chunks


def _chunk(found: Sequence[tuple[int, RawRecord]], end: int) -> _Chunk:
    return _Chunk(
        [record.key for _, record in found],
        [record.value for _, record in found],
        np.array([record.timestamp for _, record in found], np.int64),
        np.array([offset for offset, _ in found], np.int64),
        end,
    )
