"""`Processor`: the user's own operator, and what it is given: records, a context, a clock."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from everflow.errors import TopologyError
from everflow.location import user_line
from everflow.windows import Duration, duration_ms

if TYPE_CHECKING:
    from everflow.operators.processors.context import ProcessorContext

Headers = Sequence[tuple[str, bytes | None]]
_Method = TypeVar("_Method", bound=Callable[..., None])


class Record(NamedTuple):
    """A record as a processor gets and forwards it: Python values, the time in ms, and headers in
    their order."""

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
    """Where the input record that is being processed lies: topic, partition and offset."""

    topic: str
    partition: int
    offset: int


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
    """The user's operator: one object for each task and micro-batch, used by one thread.

    What lasts from one batch to the next is in stores, and only there: a batch that fails runs
    again, on a new object, from the stores of before. ``self.context`` is there from ``init`` on.
    """

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
        """See `ValueTransformer`."""
        return self.fn(key, value, self.context) if self._with_context else self.fn(key, value)


@dataclass(frozen=True)
class Asked:
    """Makes the transformer that is called for those who ask what a table's entries are. A record
    without a key asks nothing."""

    supplier: Callable[[], Processor]

    def __call__(self) -> Processor:
        return AskedTransformer(self.supplier())


class AskedTransformer(ValueTransformer):
    """Calls ``made``, a `ValueTransformer`."""

    def __init__(self, made: Processor) -> None:
        self.made = made

    def init(self, context: ProcessorContext) -> None:
        """See `Processor`."""
        self.made.context = context
        self.made.init(context)

    def transform(self, key: Any, value: Any) -> Any:
        """See `ValueTransformer`."""
        assert isinstance(self.made, ValueTransformer)
        return None if key is None else self.made.transform(key, value)

    def close(self) -> None:
        """See `Processor`."""
        self.made.close()


class FunctionProcessor(Processor):
    """Calls ``fn(record, context)``."""

    def __init__(self, fn: Callable[[Record, ProcessorContext], None]) -> None:
        self.fn = fn

    def process(self, record: Record) -> None:
        """See `Processor`."""
        self.fn(record, self.context)
