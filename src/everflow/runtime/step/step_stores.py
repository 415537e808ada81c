"""Shows operators the stores of a micro-batch: committed content plus the batch's own changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from heapq import merge
from operator import itemgetter
from typing import Protocol
from zlib import crc32

from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.processors.table_stores import shown_changes
from everflow.operators.processors.stores import entry_with
from everflow.operators.processors.versioned_store import VersionEntries
from everflow.records import EdgeBatch, StoreChanges, TaskId, TasksResult
from everflow.runtime.commit.batch import TaskContext
from everflow.state.changelog import expiry_times
from everflow.state.overlay import OverlayView
from everflow.state.store import Bounds, Entry, StoreSpec, StoreView, last_of_each
from everflow.state.versions import OPEN


class FollowedView(StoreView, Protocol):
    """A store at one moment, and how far it follows its changelog then."""

    @property
    def position(self) -> int:
        """The next offset."""


class StoreAccess(Protocol):
    """Opens the committed content of a task's store. Picklable; implemented for LMDB and for the
    test driver's memory."""

    def view(self, task: TaskContext, spec: StoreSpec) -> AbstractContextManager[FollowedView]:
        """A consistent snapshot, closed when the step is done."""

    def homes(self, keys: Sequence[bytes], partitions: int) -> Sequence[int]:
        """The partition of each key, as Kafka's own partitioner chooses it."""

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        """Have a store that has a changelog rebuilt from it before a batch reads it again."""


class WholeTable:
    """A global table: the stores of all its partitions as one. A key is looked for in the partition
    that Kafka's partitioner gives it, then in the others, in their order: whoever wrote the topic
    may have partitioned it otherwise."""

    def __init__(
        self, parts: Sequence[FollowedView], homes: Callable[[Sequence[bytes], int], Sequence[int]]
    ) -> None:
        self._parts, self._homes = parts, homes

    @property
    def newest_ms(self) -> int:
        """See `StoreView`: entries of a table do not expire."""
        return -1

    @property
    def mark(self) -> int:
        """See `WholeView`."""
        return crc32(repr([part.position for part in self._parts]).encode())

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `StoreView`."""
        if len(self._parts) == 1:
            return self._parts[0].get_many(keys)
        found: list[bytes | None] = [None] * len(keys)
        homes = self._homes(keys, len(self._parts))
        at_home: list[list[int]] = [[] for _ in self._parts]
        for row, home in enumerate(homes):
            at_home[home].append(row)
        self._fill(found, keys, at_home)
        for part in range(len(self._parts)):
            missing = [row for row, one in enumerate(found) if one is None and homes[row] != part]
            if missing:
                self._fill(found, keys, [missing if at == part else [] for at in range(part + 1)])
        return found

    def _fill(
        self, found: list[bytes | None], keys: Sequence[bytes], rows: Sequence[Sequence[int]]
    ) -> None:
        """``rows``: which to look for in each partition."""
        for part, mine in zip(self._parts, rows, strict=False):
            if mine:
                for row, one in zip(mine, part.get_many([keys[r] for r in mine]), strict=True):
                    found[row] = one

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """See `StoreView`; of a key that lies in several partitions the entry of the first."""
        return _first_of_each(
            merge(*(part.range(start, end) for part in self._parts), key=itemgetter(0))
        )

    def reversed_range(
        self, start: bytes | None, end: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        """See `range`."""
        parts = [part.reversed_range(start, end) for part in self._parts]
        return _first_of_each(merge(*parts, key=itemgetter(0), reverse=True))

    def entries(self) -> int:
        """See `StoreView`; a key that lies in several partitions counts in each."""
        return sum(part.entries() for part in self._parts)

    def range_many(self, bounds: Sequence[tuple[bytes, bytes]]) -> list[list[tuple[bytes, bytes]]]:
        """See `StoreView`."""
        return [list(self.range(start, end)) for start, end in bounds]

    def last_many(self, bounds: Sequence[Bounds]) -> list[Entry | None]:
        """See `StoreView`."""
        return last_of_each(self, bounds)


def _first_of_each(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    before: bytes | None = None
    for key, value in entries:
        if key != before:
            yield key, value
        before = key


class TaskStores(AbstractContextManager["TaskStores"]):
    """Snapshots opened on first use and closed at the end of the step. ``shared`` names the stores
    that need an overlay."""

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
        """The stores of one operator in one task, by name. KeyError if the job does not own the
        task."""
        return {spec.name: self._view(task, spec) for spec in specs}

    def before(self, task: TaskId, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        """As `views`, without the batch's own changes."""
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
                self._whole[spec.name] = WholeTable(parts, self.access.homes)
        return {spec.name: self._whole[spec.name] for spec in specs}

    def stream_time(self, task: TaskId, node: str) -> int:
        """The operator's observed stream time before this batch, ms; -1 = none yet."""
        return self.tasks[task].stream_times.get(node, -1)

    def remember(self, task: TaskId, changes: StoreChanges) -> None:
        """Let later operators on a shared store see ``changes``."""
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
    """A store with what a part of a batch has changed, which for the next part is what is
    stored."""

    def __init__(self, below: StoreView, spec: StoreSpec) -> None:
        super().__init__(below)
        self._kind = spec.kind if spec.expires else None
        self._newest_ms = below.newest_ms

    @property
    def newest_ms(self) -> int:
        """See `StoreView`."""
        return self._newest_ms

    def remember(self, changes: StoreChanges) -> None:
        """Put changes on top, in order."""
        for key, value, time in _listed(changes):
            self.put(key, entry_with(time, value))
        if self._kind is not None and len(changes):
            written = expiry_times(changes.keys, self._kind)
            self._newest_ms = max(self._newest_ms, int(written.max()))


class _VersionsPart(_PartView):
    """As `_PartView`, a `VersionsView`."""

    def __init__(self, below: StoreView, spec: StoreSpec) -> None:
        super().__init__(below, spec)
        versions = self._versions = VersionEntries(spec, below)
        self.latest_many, self.versions_many = versions.latest_many, versions.versions_many
        self.begins_after = versions.begins_after

    @property
    def stream_time(self) -> int:
        """See `VersionsView`."""
        return self._versions.stream_time

    def remember(self, changes: StoreChanges) -> None:
        """Put versions on top, in order."""
        for key, value, time in _listed(changes):
            if self._versions.put(key, value, time) == OPEN:
                self.put(key, entry_with(time, value))


def _listed(changes: StoreChanges) -> Iterator[tuple[bytes, bytes | None, int]]:
    return zip(changes.keys, changes.values, changes.timestamps.tolist(), strict=True)


class PartStores(TaskStores):
    """The stores of one operator, or of those that share some, behind the parts of a batch that
    were remembered (`remember_part`), of which nothing stays."""

    def __init__(self, stores: TaskStores) -> None:
        super().__init__(stores.access, stores.tasks.values(), frozenset())
        self._stores = stores
        self._parts: dict[tuple[TaskId, str], _PartView] = {}
        self._times: dict[tuple[TaskId, str], int] = {}

    def views(self, task: TaskId, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        """See `TaskStores`."""
        return self._behind_parts(task, specs, self._stores.views)

    def before(self, task: TaskId, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        """See `TaskStores`; with the updates that were remembered."""
        return self._behind_parts(task, specs, self._stores.before)

    def whole(self, specs: Iterable[StoreSpec]) -> Mapping[str, StoreView]:
        """See `TaskStores`."""
        return self._stores.whole(specs)

    def stream_time(self, task: TaskId, node: str) -> int:
        """The operator's stream time behind the parts."""
        return self._times.get((task, node), self._stores.stream_time(task, node))

    def remember_part(self, task: TaskId, node: str, done: TasksResult) -> None:
        """What an operator has made of a part."""
        for changes in done.changes.get(task.partition, ()):
            self._parts[task, changes.store].remember(changes)
        if task.partition in done.stream_times:
            self._times[task, node] = done.stream_times[task.partition]

    def remember_updates(self, task: TaskId, table: JoinedTable, updates: EdgeBatch) -> None:
        """The updates of a table in a part, which a processor reads."""
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
