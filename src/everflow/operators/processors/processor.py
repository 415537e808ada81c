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
    """A record that a processor receives or forwards: Python values, time in ms, ordered
    headers."""

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
    """Topic, partition and offset of the input record that is being processed."""

    topic: str
    partition: int
    offset: int


class Forwarded(NamedTuple):
    """A forwarded record with its input row and origin (see `Turn`); ``child`` None: to all
    streams."""

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
    """A processor's access to its task. Valid during one micro-batch, on the batch's thread."""

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
        """The sub-topology and partition of the current task."""
        return self._place.task

    @property
    def application_id(self) -> str:
        """The ``application.id`` of the running program."""
        return self._place.around.application_id

    @property
    def stream_time(self) -> int:
        """The highest time (ms) of a record that has reached this processor; -1 before the
        first."""
        return self._turn.stream_time

    @property
    def wall_clock_time(self) -> int:
        """The machine's clock (epoch ms) when the micro-batch was planned."""
        return self._place.around.wall_clock_ms

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Topic, partition and offset of the current input record; None in a punctuator."""
        return self._turn.metadata

    def store(self, name: str) -> Any:
        """The task's part of a store, for reads and writes: a `KeyValueStore`, `VersionedStore`,
        `WindowStore` or `SessionStore`. A table's store is read-only, and that of a global table
        has all rows. Raises KeyError for a store that ``process(..., stores=[...])`` does not
        name."""
        if name not in self._stores:
            raise KeyError(
                f"the processor has no store {name!r}; it has {sorted(self._stores) or 'none'}: "
                f"give it with process(..., stores=[Stores.key_value({name!r}, ...)]), or by name, "
                f"stores=[{name!r}]"
            )
        return self._stores[name]

    def forward(self, record: Record, child: str | None = None) -> None:
        """Emits a record to every stream after the processor, or only to the ``child`` that
        ``process(..., children=[...])`` names. Raises ValueError for an unknown child, a negative
        time or, in ``process_values``, another key, and TypeError if ``record`` is no `Record`."""
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
        """Has no effect, because every micro-batch ends with a commit."""


class PunctuationType(Enum):
    """The clock that calls a punctuator: stream time (the records' times) or the machine's
    clock."""

    STREAM_TIME = "stream time"
    WALL_CLOCK_TIME = "wall clock time"


class Punctuation(NamedTuple):
    """A method that ``clock`` calls every ``every_ms``."""

    method: str
    every_ms: int
    clock: PunctuationType


def punctuate(
    every: Duration, clock: PunctuationType = PunctuationType.STREAM_TIME
) -> Callable[[_Method], _Method]:
    """Makes a method of a `Processor` a punctuator, which is called at an interval with the time
    (ms): ``@punctuate("1 minute")``.

    By stream time: the first call is after the task's first record; the next ones are after the
    record whose time reaches the next multiple of ``every``, once, even if it passes several. By
    wall clock time: after the records of the task's first micro-batch that runs at least ``every``
    after the previous call (or after the task's first batch). A task without records runs an empty
    batch as often as its shortest interval, but not while the instance is paused. Both times are
    committed with the offsets, so a restart neither repeats a call nor skips one. Raises
    TopologyError for a duration that cannot be read or is not above 0.
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
    """The punctuators of a processor's class, in the order of their names."""
    found = ((name, getattr(processor, name)) for name in dir(processor))
    return tuple(
        Punctuation(name, *method.__dict__["punctuation"])
        for name, method in found
        if callable(method) and "punctuation" in getattr(method, "__dict__", {})
    )


class Processor(ABC):
    """Your own operator. An object is made per task and micro-batch, and used by one thread. Keep
    lasting data in stores only: if a batch fails, it runs again on a new object, with the stores as
    they were before the batch. ``self.context`` is available from ``init`` on."""

    context: ProcessorContext

    def init(self, context: ProcessorContext) -> None:  # noqa: B027  # few need it
        """Called before the first record of the micro-batch."""

    @abstractmethod
    def process(self, record: Record) -> None:
        """Called for every record, including null keys and values, in processing order."""

    def close(self) -> None:  # noqa: B027  # few need it
        """Called after the last record of the micro-batch."""


class BatchProcessor(Processor):
    """A processor that receives a task's micro-batch in Arrow columns: see `process_batch`."""

    def process(self, record: Record) -> None:
        """Not called: `process_batch` receives the records."""

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table | None:
        """Receives the columns ``key``, ``value``, ``timestamp`` (ms), ``headers``, in processing
        order. Returns results, with ``key`` and ``value`` in the types of ``returns=``, or None for
        no results.

        A result belongs to the input row that its column ``row`` (int64) names, and has the row's
        time and headers unless ``timestamp`` or ``headers`` are returned. Without ``row``, the n-th
        result belongs to the n-th record if there are as many results as records; otherwise all
        belong to the last record. With ``process_values`` a result keeps the key of its row.
        """


class ValueTransformer(Processor):
    """Computes a new value for each update of a table: ``table.transform_values(...)``. Stores and
    punctuators work as in a `Processor`, but a transformer cannot forward."""

    def process(self, record: Record) -> None:
        """Not called: `transform` receives the updates."""

    @abstractmethod
    def transform(self, key: Any, value: Any) -> Any:
        """Returns the new value. Also called for deletions, with None. Do not change ``key``."""


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
