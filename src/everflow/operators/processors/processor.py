"""`Processor`: the user's own operator, and what it receives: records, a context, a clock."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from everflow.errors import TopologyError
from everflow.foreign_names import Telling
from everflow.operators.processors.stores import (
    KINDS,
    Entries,
    KeyValueStore,
    SessionStore,
    StoreClock,
    VersionedStore,
    VersionEntries,
    WindowStore,
)
from everflow.operators.user_code import NO_ROW
from everflow.records import TaskId
from everflow.topology.graph import Surroundings
from everflow.user_program import user_line
from everflow.windows import Duration, duration_ms

Headers = Sequence[tuple[str, bytes | None]]
_Method = TypeVar("_Method", bound=Callable[..., None])


class Record(NamedTuple):
    """A record as a processor gets and forwards it: Python values, time in ms, headers in order."""

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()

    def with_key(self, key: Any) -> Record:
        """The same record under another key."""
        return self._replace(key=key)

    def with_value(self, value: Any) -> Record:
        """The same record with another value."""
        return self._replace(value=value)

    def with_timestamp(self, timestamp: int) -> Record:
        """The same record at another time (ms)."""
        return self._replace(timestamp=timestamp)

    def with_headers(self, headers: Headers) -> Record:
        """The same record with other headers."""
        return self._replace(headers=headers)


class RecordMetadata(NamedTuple):
    """The place of the input record that is being processed: topic, partition and offset."""

    topic: str
    partition: int
    offset: int


class Forwarded(NamedTuple):
    """A record that was handed on: its input row and origin (see `Turn`); its child, None: all."""

    origin: int
    row: int
    record: Record
    child: int | None


class Place(NamedTuple):
    task: TaskId
    around: Surroundings


@dataclass(kw_only=True)
class Turn:
    """What is being processed: the row of the batch of the processor ``origin``, time and place."""

    origin: int = 0
    row: int = NO_ROW
    time: int = 0
    stream_time: int = -1
    metadata: RecordMetadata | None = None
    key: Any = None

    def has_key(self, key: Any) -> bool:
        return self.metadata is not None and (key is self.key or key == self.key)


Shown = KeyValueStore | SessionStore | VersionedStore | WindowStore


def shown(entries: Entries | VersionEntries, clock: StoreClock) -> Shown:
    if isinstance(entries, VersionEntries):
        return VersionedStore(entries)
    return KINDS[entries.spec.kind](entries, clock)


class ProcessorContext(Telling):
    """A processor's view of its task; valid during one micro-batch, on its thread."""

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
        return self._place.around.application_id

    @property
    def stream_time(self) -> int:
        """The highest time (ms) of the records that have reached this processor, -1 before the
        first."""
        return self._turn.stream_time

    @property
    def wall_clock_time(self) -> int:
        """The machine's clock (epoch ms) when the micro-batch began."""
        return self._place.around.wall_clock_ms

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """The metadata of the current record; None in a method that a clock calls."""
        return self._turn.metadata

    def store(self, name: str) -> Any:
        """The task's part of a store, to read and write: `KeyValueStore`, `VersionedStore`,
        `WindowStore` or `SessionStore`; that of a table is read only, and a global table is whole.
        KeyError for one that the processor does not have."""
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


class PunctuationType(Enum):
    """The clock by which a method of a processor is called: the records' time, or the machine's."""

    STREAM_TIME = "stream time"
    WALL_CLOCK_TIME = "wall clock time"


class Punctuation(NamedTuple):
    """A method that is called by a clock every ``every_ms``."""

    method: str
    every_ms: int
    clock: PunctuationType


def punctuate(
    every: Duration, clock: PunctuationType = PunctuationType.STREAM_TIME
) -> Callable[[_Method], _Method]:
    """Marks a method of a `Processor` to be called with the time (ms) every so often:
    ``@punctuate("1 minute")``.

    By stream time: behind the record whose time reaches the next multiple of ``every``, once,
    however many it passes; and behind the task's first record. By wall clock time: behind the
    records of the task's first micro-batch at least ``every`` after the call before (or its first
    batch); a task without records has an empty one as often as the shortest interval, but not
    while the instance is paused. Both times are kept with the committed offsets, so a restart
    neither repeats a call nor leaves one out. TopologyError for a duration that cannot be read or
    is not above 0.
    """
    every_ms = duration_ms(every)
    if every_ms < 1:
        raise TopologyError(f"punctuate: every is above 0, found {every!r}", where=user_line())
    if not isinstance(clock, PunctuationType):
        raise TopologyError(
            f"punctuate: clock is PunctuationType.STREAM_TIME or "
            f"PunctuationType.WALL_CLOCK_TIME, found {clock!r}",
            where=user_line(),
        )

    def marked(method: _Method) -> _Method:
        method.__dict__["punctuation"] = (every_ms, clock)
        return method

    return marked


def punctuations(processor: type) -> tuple[Punctuation, ...]:
    """The marked methods of a processor's class, in the order of their names."""
    found = ((name, getattr(processor, name)) for name in dir(processor))
    return tuple(
        Punctuation(name, *method.__dict__["punctuation"])
        for name, method in found
        if callable(method) and "punctuation" in getattr(method, "__dict__", {})
    )


class Processor(ABC):
    """The user's operator: one object for each task and micro-batch, used by one thread. What lasts
    is in stores, and only there: a batch that fails runs again, on a new object, from the stores of
    before. ``self.context`` is there from ``init`` on."""

    context: ProcessorContext

    def init(self, context: ProcessorContext) -> None:  # noqa: B027  # few need it
        """Called before the first record of the batch."""

    @abstractmethod
    def process(self, record: Record) -> None:
        """Called for every record, null keys and values included, in the order of the task."""

    def close(self) -> None:  # noqa: B027  # few need it
        """Called behind the batch's last record."""


class BatchProcessor(Processor):
    """A processor of a task's whole micro-batch in Arrow columns: see `process_batch`."""

    def process(self, record: Record) -> None:
        """Left alone: `process_batch` takes the records."""

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table | None:
        """Takes ``key, value, timestamp (int64, ms), headers`` in processing order; gives the
        results: ``key`` and ``value`` in the types of ``returns=``, or nothing.

        A result belongs to the input row that ``row`` (int64) names, and has its time and headers
        unless ``timestamp`` or ``headers`` are given. Without ``row``, as many results as records
        belong to one each, others to the last record. ``process_values`` keeps the key of that row.
        """


class ValueTransformer(Processor):
    """Gives each update of a table a new value: ``table.transform_values(...)``. Stores, clocks and
    the rest are a `Processor`'s; it cannot forward."""

    def process(self, record: Record) -> None:
        """Left alone: `transform` takes the updates."""

    @abstractmethod
    def transform(self, key: Any, value: Any) -> Any:
        """The new value; called for deletions, too, with None. The key is only to be read."""


class FunctionTransformer(ValueTransformer):
    """Calls ``fn(key, value)``, or ``fn(key, value, context)``."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        required = [
            one
            for one in inspect.signature(fn).parameters.values()
            if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        self._with_context = len(required) > 2

    def transform(self, key: Any, value: Any) -> Any:
        return self.fn(key, value, self.context) if self._with_context else self.fn(key, value)


class AskedTransformer(ValueTransformer):
    """Is called for those who ask for a table's entries. A record without a key asks nothing."""

    def __init__(self, supplier: Callable[[], Processor]) -> None:
        self.made = supplier()

    def init(self, context: ProcessorContext) -> None:
        self.made.context = context
        self.made.init(context)

    def transform(self, key: Any, value: Any) -> Any:
        assert isinstance(self.made, ValueTransformer)
        return None if key is None else self.made.transform(key, value)

    def close(self) -> None:
        self.made.close()


class FunctionProcessor(Processor):
    def __init__(self, fn: Callable[[Record, ProcessorContext], None]) -> None:
        self.fn = fn

    def process(self, record: Record) -> None:
        self.fn(record, self.context)
