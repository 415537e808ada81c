"""Shows operators the stores of a micro-batch: committed content plus the batch's own changes.

`CheckedAccess` decodes entries as they are read, and finds the one that its serdes do not read. A
batch runs on these stores before a record is blamed: that may only have the entry's key (note 041).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import pyarrow as pa

from everflow.columns.key_partitions import java_partitions
from everflow.errors import DamagedEntryError
from everflow.handlers import chain, is_outage
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.processors.stores import VersionEntries, entry_with, shown_changes
from everflow.protocol.messages import StorePlace, TaskContext
from everflow.records import EdgeBatch, StoreChanges, TaskId, TasksResult
from everflow.serdes.base import ResultDecoder, SerdeError
from everflow.state.changelog import SUFFIX_BYTES, TIMESTAMP_BYTES, expiry_times
from everflow.state.store import (
    OPEN,
    Bounds,
    Entry,
    OverlayView,
    StoreSpec,
    StoreView,
    Version,
    WholeView,
)
from everflow.topology.plan import StatefulOp, shown_by
from everflow.user_program import error_text, shown

# --- views ----------------------------------------------------------------------------------------


class FollowedView(StoreView, Protocol):
    """A store at one moment, and how far it follows its changelog then."""

    @property
    def position(self) -> int:
        """The next offset."""


class StoreAccess(Protocol):
    """Opens the committed content of a task's store (LMDB, test driver); picklable."""

    def view(
        self,
        task: TaskContext,
        spec: StoreSpec,
    ) -> AbstractContextManager[FollowedView]:
        """A consistent snapshot, closed when the step is done."""

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        """Have a store that has a changelog rebuilt from it before a batch reads it again."""


class WholeTable(WholeView):
    """A global table: the stores of all its partitions as one. A key is looked up in the partition
    that Kafka's partitioner gives it, then in the others: the topic's producer may have used
    another."""

    def __init__(self, parts: Sequence[FollowedView]) -> None:
        self._parts = parts

    @property
    def newest_ms(self) -> int:
        return -1

    @property
    def mark(self) -> int:
        return crc32(repr([part.position for part in self._parts]).encode())

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if len(self._parts) == 1:
            return self._parts[0].get_many(keys)
        found: list[bytes | None] = [None] * len(keys)

        def fill(part: FollowedView, rows: Sequence[int]) -> None:
            if rows:
                for row, one in zip(rows, part.get_many([keys[r] for r in rows]), strict=True):
                    found[row] = one

        homes = java_partitions(pa.array(keys, pa.binary()), len(self._parts))
        for number, part in enumerate(self._parts):
            fill(part, np.flatnonzero(homes == number).tolist())
        for number, part in enumerate(self._parts):
            missing = [row for row, one in enumerate(found) if one is None]
            fill(part, [row for row in missing if homes[row] != number])
        return found

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[Entry]:
        """See `StoreView`; of a key that lies in several partitions the entry of the first."""
        parts = [part.range(start, end, reverse=reverse) for part in self._parts]
        merged = merge(*parts, key=itemgetter(0), reverse=reverse)
        return (next(same) for _, same in groupby(merged, key=itemgetter(0)))

    def entries(self) -> int:
        return sum(part.entries() for part in self._parts)


class TaskStores(AbstractContextManager["TaskStores"]):
    """Snapshots opened on first use, closed at the end of the step. ``shared``: what needs an
    overlay."""

    def __init__(
        self,
        access: StoreAccess,
        tasks: Iterable[TaskContext],
        shared: frozenset[str],
        global_tasks: Sequence[TaskContext] = (),
    ) -> None:
        self.access = access
        self._global_tasks = global_tasks
        self._whole: dict[str, StoreView] = {}
        self.tasks = {task.task: task for task in tasks}
        self._shared = shared
        self._open: dict[tuple[TaskId, str], StoreView] = {}
        self._stack = ExitStack()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def views(self, task: TaskId, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        """The stores of an operator in one task, by name. KeyError if the job does not own the
        task."""
        return {spec.name: self._view(task, spec) for spec in specs}

    def before(self, task: TaskId, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        """`views` without the batch's own changes."""
        found = {spec.name: self._view(task, spec) for spec in specs}
        return {
            name: view.below if isinstance(view, OverlayView) else view
            for name, view in found.items()
        }

    def whole(self, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        """Global tables by name, each one snapshot for all operators of the step."""
        for spec in specs:
            if spec.name not in self._whole:
                parts = [
                    self._stack.enter_context(self.access.view(task, spec))
                    for task in self._global_tasks
                    if spec.name in task.stores
                ]
                self._whole[spec.name] = WholeTable(parts)
        return {spec.name: self._whole[spec.name] for spec in specs}

    def stream_time(self, task: TaskId, node: str) -> int:
        """The operator's observed stream time before this batch, ms; -1 = none yet."""
        return self.tasks[task].stream_times.get(node, -1)

    def remember(self, task: TaskId, changes: StoreChanges) -> None:
        view = self._open.get((task, changes.store))
        if isinstance(view, OverlayView):
            view.remember(changes)

    def _view(self, task: TaskId, spec: StoreSpec) -> StoreView:
        place = (task, spec.name)
        if place not in self._open:
            below = self._stack.enter_context(self.access.view(self.tasks[task], spec))
            self._open[place] = OverlayView(below) if spec.name in self._shared else below
        return self._open[place]


class _PartView(OverlayView):
    """A store with what a part of a batch has changed: for the next part that is stored."""

    def __init__(self, below: StoreView, spec: StoreSpec) -> None:
        super().__init__(below)
        self._kind = spec.kind if spec.expires else None
        self._newest_ms = below.newest_ms

    @property
    def newest_ms(self) -> int:
        return self._newest_ms

    def remember(self, changes: StoreChanges) -> None:
        for key, value, time in _listed(changes):
            self.put(key, entry_with(time, value))
        if self._kind is not None and len(changes):
            written = expiry_times(changes.keys, self._kind)
            self._newest_ms = max(self._newest_ms, int(written.max()))


class _VersionsPart(_PartView):
    def __init__(self, below: StoreView, spec: StoreSpec) -> None:
        super().__init__(below, spec)
        versions = self._versions = VersionEntries(spec, below)
        self.latest_many, self.versions_many = versions.latest_many, versions.versions_many
        self.begins_after = versions.begins_after

    @property
    def stream_time(self) -> int:
        return self._versions.stream_time

    def remember(self, changes: StoreChanges) -> None:
        for key, value, time in _listed(changes):
            if self._versions.put(key, value, time) == OPEN:
                self.put(key, entry_with(time, value))


def _listed(changes: StoreChanges) -> Iterator[tuple[bytes, bytes | None, int]]:
    return zip(changes.keys, changes.values, changes.timestamps.tolist(), strict=True)


class PartStores(TaskStores):
    """Operators' stores behind the parts of a batch that were remembered (`remember_part`)."""

    def __init__(self, stores: TaskStores) -> None:
        super().__init__(stores.access, stores.tasks.values(), frozenset())
        self._stores = stores
        self._parts: dict[tuple[TaskId, str], _PartView] = {}
        self._times: dict[tuple[TaskId, str], int] = {}

    def views(self, task: TaskId, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        return self._behind_parts(task, specs, self._stores.views)

    def before(self, task: TaskId, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        return self._behind_parts(task, specs, self._stores.before)

    def whole(self, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        return self._stores.whole(specs)

    def stream_time(self, task: TaskId, node: str) -> int:
        return self._times.get((task, node), self._stores.stream_time(task, node))

    def remember_part(self, task: TaskId, node: str, done: TasksResult) -> None:
        for changes in done.changes.get(task.partition, ()):
            self._parts[task, changes.store].remember(changes)
        if task.partition in done.stream_times:
            self._times[task, node] = done.stream_times[task.partition]

    def remember_updates(self, task: TaskId, table: JoinedTable, updates: EdgeBatch) -> None:
        changes = shown_changes(table, updates)
        if len(changes):
            self._parts[task, table.spec.name].remember(changes)

    def _behind_parts(
        self,
        task: TaskId,
        specs: Iterable[StoreSpec],
        read: Callable[[TaskId, Iterable[StoreSpec]], Mapping[str, StoreView]],
    ) -> Mapping[str, StoreView]:
        found: dict[str, StoreView] = {}
        for spec in specs:
            place = (task, spec.name)
            if place not in self._parts:
                made = _VersionsPart if spec.versioned else _PartView
                self._parts[place] = made(read(task, [spec])[spec.name], spec)
            found[spec.name] = self._parts[place]
        return found


# --- checked stores -------------------------------------------------------------------------------


_TOGETHER = 1_000
"""Entries that are decoded at once at most."""
UNREADABLE = (SerdeError, struct.error, pa.ArrowException, ValueError, TypeError, LookupError)
"""What decoding bytes raises that are none."""


@dataclass(frozen=True)
class CheckedAccess:
    """Reading an entry of ``inner`` that cannot be decoded raises DamagedEntryError and distrusts
    the store. By store, ``decoders``: beside those of its spec; ``nodes``: those that read it."""

    inner: StoreAccess
    decoders: Mapping[str, ResultDecoder]
    nodes: Mapping[str, str]

    @staticmethod
    def of(inner: StoreAccess, ops: Sequence[StatefulOp]) -> CheckedAccess:
        decoders = {spec.name: shown_by(op, spec) for op in ops for spec in op.stores}
        nodes: dict[str, list[str]] = {}
        for op in ops:
            for spec in (*op.stores, *op.reads, *op.looks_up):
                nodes.setdefault(spec.name, []).append(op.name)
        return CheckedAccess(inner, decoders, {name: ", ".join(of) for name, of in nodes.items()})

    @contextmanager
    def view(self, task: TaskContext, spec: StoreSpec) -> Iterator[FollowedView]:
        decoders: list[ResultDecoder] = [spec.value_serde]
        if spec.name in self.decoders:
            decoders.append(self.decoders[spec.name])
        with self.inner.view(task, spec) as view:
            yield CheckedView(view, spec, decoders, self._accuse(task, spec))

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        self.inner.distrust(task, spec, reason)

    def unread(
        self, tasks: Sequence[TaskContext], specs: Sequence[StoreSpec], error: Exception
    ) -> DamagedEntryError:
        why = error_text(error)
        pairs = [(task, spec) for task in tasks for spec in specs]
        for task, spec in pairs:
            self.distrust(task, spec, f"an entry cannot be read: {why}")
        if len(pairs) == 1:
            return self._damaged(*pairs[0], None, why)
        places = "\n  ".join(
            f"{spec.name} of task {task.task}, changelog {task.stores[spec.name].changelog}"
            for task, spec in pairs
        )
        return DamagedEntryError(
            f"One of these stores has an entry that cannot be read: {why}\n  {places}"
        )

    def _accuse(
        self,
        task: TaskContext,
        spec: StoreSpec,
    ) -> Callable[[bytes, str], Exception]:
        def accuse(key: bytes, why: str) -> Exception:
            error = self._damaged(task, spec, key, why)
            self.distrust(task, spec, str(error).partition("\n")[0])
            return error

        return accuse

    def _damaged(
        self, task: TaskContext, spec: StoreSpec, key: bytes | None, why: str
    ) -> DamagedEntryError:
        place = task.stores.get(spec.name, StorePlace("", None))
        which = "an entry" if key is None else f"the entry of key {_shown_key(spec, key)}"
        changelog = (
            "it has no changelog"
            if place.changelog is None
            else f"changelog {place.changelog}, partition {task.task.partition}"
        )
        folder = f"; folder {place.path}" if place.path else ""
        return DamagedEntryError(
            f"Store {spec.name} of task {task.task} is damaged: {which} cannot be read, as {why}\n"
            f"  read by node {self.nodes[spec.name]}; {changelog}{folder}",
            store=spec.name,
            task=task.task,
            key=key,
            changelog=place.changelog,
        )


@dataclass(frozen=True, eq=False)
class CheckedView:
    """``_accuse(key, why)`` makes the error. What only shows how far a store is goes to the view
    itself."""

    _view: Any
    _spec: StoreSpec
    _decoders: Sequence[ResultDecoder]
    _accuse: Callable[[bytes, str], Exception]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._view.get_many(keys)
        self._check([(key, one) for key, one in zip(keys, found, strict=True) if one is not None])
        return found

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[Entry]:
        return self._in_parts(self._view.range(start, end, reverse=reverse))

    def range_many(self, bounds: Sequence[tuple[bytes, bytes]]) -> list[list[Entry]]:
        found: list[list[Entry]] = self._view.range_many(bounds)
        self._whole([entry for entries in found for entry in entries])
        return found

    def last_many(self, bounds: Sequence[Bounds]) -> list[Entry | None]:
        found: list[Entry | None] = self._view.last_many(bounds)
        self._whole([entry for entry in found if entry is not None])
        return found

    def latest_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes | None] | None]:
        self.get_many(keys)
        found: list[tuple[int, bytes | None] | None] = self._view.latest_many(keys)
        return found

    def versions_many(self, asked: Sequence[tuple[bytes, int, int]]) -> list[list[Version]]:
        found: list[list[Version]] = self._view.versions_many(asked)
        pairs = zip((key for key, _, _ in asked), found, strict=True)
        self._values(
            [
                (key, one.value)
                for key, versions in pairs
                for one in versions
                if one.value is not None
            ]
        )
        return found

    def _in_parts(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Checks only what is read: one entry, then more at a time."""
        size = 1
        while part := list(islice(entries, size)):
            yield from self._whole(part)
            size = min(2 * size, _TOGETHER)

    def _whole(self, entries: list[Entry]) -> list[Entry]:
        """Keys, too: these are the store's own, not the operator's."""
        suffix = SUFFIX_BYTES.get(self._spec.kind, 0)
        for key, _ in entries:
            if len(key) < suffix:
                why = f"the key has {len(key)} bytes, of which its times alone take {suffix}"
                raise self._accuse(key, why)
        keys = [(key, key[: len(key) - suffix]) for key, _ in entries]
        self._decode("key", self._spec.key_serde, keys)
        self._check(entries)
        return entries

    def _check(self, entries: Sequence[Entry]) -> None:
        for key, stored in entries:
            if len(stored) < TIMESTAMP_BYTES:
                why = f"{len(stored)} bytes are stored, of which the time alone takes 8"
                raise self._accuse(key, why)
        self._values([(key, stored[TIMESTAMP_BYTES:]) for key, stored in entries])

    def _values(self, values: Sequence[Entry]) -> None:
        for decoder in self._decoders:
            self._decode("value", decoder, values)

    def _decode(self, half: str, decoder: ResultDecoder, listed: Sequence[Entry]) -> None:
        try:
            decoder.decode_array(pa.array([data for _, data in listed], pa.binary()))
        except UNREADABLE:
            for key, data in listed:
                try:
                    decoder.decode_array(pa.array([data], pa.binary()))
                except UNREADABLE as error:
                    if is_outage(error):  # of a schema registry: the bytes may be right
                        raise
                    why = f"the {half} is {shown(data, 60)}, and {error_text(error)}"
                    raise self._accuse(key, why) from error


def damage_in(error: BaseException) -> DamagedEntryError | None:
    """The damaged entry for which ``error`` was raised; a user's function may have wrapped it."""
    return next((one for one in chain(error) if isinstance(one, DamagedEntryError)), None)


def _shown_key(spec: StoreSpec, key: bytes) -> str:
    suffix = SUFFIX_BYTES.get(spec.kind, 0)
    try:
        decoded = shown(spec.key_serde.decode(key[: len(key) - suffix]), 60)
    except UNREADABLE:
        decoded = ""
    raw = shown(key, 80)
    return raw if decoded in ("", raw) else f"{decoded} ({raw})"
