"""`ProcessorContext`: what a processor sees of its task, and what it has forwarded there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from everflow.foreign_names import Telling
from everflow.operators.processors.processor import Record, RecordMetadata
from everflow.operators.processors.stores import (
    KINDS,
    Entries,
    KeyValueStore,
    SessionStore,
    StoreClock,
    WindowStore,
)
from everflow.operators.processors.versioned_store import VersionedStore, VersionEntries
from everflow.records import ClockCall, TaskId

NO_ROW = -1
"""In place of a row of the batch: a method that a clock has called, without a record."""


class Forwarded(NamedTuple):
    """A record that was handed on: the input row it came from, of the processor of this number, and
    the number of its child (None: all)."""

    origin: int
    row: int
    record: Record
    child: int | None


class Place(NamedTuple):
    """What a context tells of where and when it is; ``skipped``: calls of clocks to leave out."""

    task: TaskId
    application_id: str
    wall_clock_ms: int
    topics: Mapping[int, str]
    skipped: frozenset[ClockCall] = frozenset()


@dataclass(kw_only=True)
class Turn:
    """What is being processed: the row of the batch (of the processor of the number ``origin``),
    its time, and the input record's place."""

    origin: int = 0
    row: int = NO_ROW
    time: int = 0
    stream_time: int = -1
    metadata: RecordMetadata | None = None
    key: Any = None

    def has_key(self, key: Any) -> bool:
        """Whether ``key`` is that of the record that is being processed."""
        return self.metadata is not None and (key is self.key or key == self.key)


Shown = KeyValueStore | SessionStore | VersionedStore | WindowStore


def shown(entries: Entries | VersionEntries, clock: StoreClock) -> Shown:
    """A store as a processor has it."""
    if isinstance(entries, VersionEntries):
        return VersionedStore(entries)
    return KINDS[entries.spec.kind](entries, clock)


class ProcessorContext(Telling):
    """What a processor sees of its task; valid during one micro-batch, on its thread."""

    def __init__(
        self,
        place: Place,
        turn: Turn,
        stores: Mapping[str, Shown],
        children: tuple[str, ...],
        *,
        keeps_key: bool,
        transforms: bool,
        onward: Callable[[Record, int | None], None] | None,
    ) -> None:
        """``onward``: hands a forwarded record to processors that share stores with this one."""
        self._place, self._turn, self._stores, self._children = place, turn, stores, children
        self._keeps_key, self._transforms, self._onward = keeps_key, transforms, onward
        self.forwarded: list[Forwarded] = []

    @property
    def task_id(self) -> TaskId:
        """Sub-topology and partition of what is being processed."""
        return self._place.task

    @property
    def application_id(self) -> str:
        """What ``application.id`` of the running program says."""
        return self._place.application_id

    @property
    def stream_time(self) -> int:
        """The highest time (ms) of the records that have reached this processor, -1 before the
        first."""
        return self._turn.stream_time

    @property
    def wall_clock_time(self) -> int:
        """The machine's clock (epoch ms) when the micro-batch began."""
        return self._place.wall_clock_ms

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Of the record that is being processed; None in a method that a clock calls."""
        return self._turn.metadata

    def store(self, name: str) -> Any:
        """The task's part of a store, to read and write: `KeyValueStore`, `VersionedStore`,
        `WindowStore` or `SessionStore`; that of a table is read only, and a global table is whole.
        KeyError for one that the processor was not given."""
        if name not in self._stores:
            raise KeyError(
                f"the processor has no store {name!r}; it has {sorted(self._stores) or 'none'}: "
                f"give it with process(..., stores=[Stores.key_value({name!r}, ...)]), or by name, "
                f"stores=[{name!r}]"
            )
        return self._stores[name]

    def forward(self, record: Record, child: str | None = None) -> None:
        """Hand a record on, to every stream behind the processor or to the ``child`` named in
        ``process(..., children=[...])``. ValueError for a child that is not there or a negative
        time; TypeError for what is no `Record`."""
        if self._transforms:
            raise ValueError(
                "a value transformer returns the new value, and forwards nothing; what makes other "
                "records is a processor: table.to_stream().process(...)"
            )
        if not isinstance(record, Record):
            raise TypeError(f"forward takes a Record(key, value, timestamp), found {record!r:.100}")
        if child is not None and child not in self._children:
            raise ValueError(
                f"forward found no child {child!r}; there "
                f"{'are ' + ', '.join(self._children) if self._children else 'is none'}: name it "
                f"with process(..., children=[{child!r}, ...])"
            )
        if record.timestamp < 0:
            raise ValueError(
                f"forward found a record with a negative time, {record.timestamp} ms: a time is in "
                f"ms since 1970; record.with_timestamp(...) gives it one"
            )
        if self._keeps_key and not self._turn.has_key(record.key):
            raise ValueError(
                f"process_values keeps the key of the record that it was given, and forward found "
                f"the key {record.key!r:.100}; use process"
            )
        number = None if child is None else self._children.index(child)
        self.forwarded.append(Forwarded(self._turn.origin, self._turn.row, record, number))
        if self._onward is not None:
            self._onward(record, number)

    def commit(self) -> None:
        """Ask for a commit: every micro-batch ends with one, so there is nothing to do."""
