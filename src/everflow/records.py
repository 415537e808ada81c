"""The values that folders hand to one another. Frozen; they can be formatted and parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow.exact_texts import whole

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Bytes: TypeAlias = pa.Array | Sequence[bytes | None]
"""Keys or values as they are written: a binary column, or one object each."""


class ByteColumn(Sequence[Any]):
    """A binary column that is the sequence of its values, too, for callers that take them one by
    one: ``bytes``, or None for a null."""

    def __init__(self, column: pa.Array) -> None:
        self.column = column
        self._listed: list[bytes | None] | None = None

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, at: int | slice) -> Any:
        return self._values()[at]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    def _values(self) -> list[bytes | None]:
        if self._listed is None:
            self._listed = self.column.to_pylist()
        return self._listed


def valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    if column.null_count == 0:
        return np.ones(len(column), bool)
    found: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def rises(numbers: Int64 | Int32) -> bool:
    """Whether none is lower than the one before it."""
    return bool(np.logical_and.reduce(numbers[1:] >= numbers[:-1]))


def run_bounds(numbers: Int64 | Int32) -> list[int]:
    """Where each run of equal numbers begins, and where the last one ends; ``[0]`` of none."""
    if not len(numbers):
        return [0]
    begins = (numbers[1:] != numbers[:-1]).nonzero()[0] + 1
    return [0, *begins.tolist(), len(numbers)]


def partitions_in(column: Int32) -> list[int]:
    """The partitions of tasks that are in a column, in their order."""
    found: list[int] = np.bincount(column).nonzero()[0].tolist()
    return found


def names_a_topic(name: object) -> bool:
    """True if Kafka accepts the text as a topic's name."""
    return isinstance(name, str) and bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


def as_bytes(values: Sequence[bytes | None]) -> Bytes:
    """The column behind a `ByteColumn`; else what it is."""
    return values.column if isinstance(values, ByteColumn) else values


NO_EPOCH = -1
"""The epoch of a leader that is not known, in Kafka's requests and record batches."""
UNBOUNDED_BYTES = 1 << 62
"""A number of bytes that no batch has."""
LAST_SEQ = (1 << 62) - 1
"""The ``seq`` of a result that no record of its batch has brought: it stands behind all records."""
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""A column of records' headers; a record without any has an empty list."""


def joined_headers(columns: Sequence[tuple[pa.Array | None, int]]) -> pa.Array | None:
    """Columns of headers and their lengths, one after the other; None: without any."""
    if all(column is None for column, _ in columns):
        return None
    return pa.concat_arrays(
        [no_headers(count) if column is None else column for column, count in columns]
    )


def listed_headers(column: pa.Array | None, count: int) -> list[list[tuple[str, bytes | None]]]:
    """The headers of each of ``count`` records; ``column`` None: no record has any."""
    if column is None:
        return [[] for _ in range(count)]
    return [
        [(header["key"], header["value"]) for header in row] if row else []
        for row in column.to_pylist()
    ]


def no_headers(count: int) -> pa.Array:
    return pa.ListArray.from_arrays(
        pa.array(np.zeros(count + 1, np.int32)), pa.array([], HEADERS.value_type), type=HEADERS
    )


class TaskId(NamedTuple):
    """Id of a task: sub-topology and partition, written ``0_3`` as in Kafka Streams."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @staticmethod
    def parse(text: str) -> TaskId:
        """Inverse of ``str``; ValueError for anything else."""
        sub, _, partition = text.partition("_")
        return TaskId(whole(sub), whole(partition))


class TopicPartition(NamedTuple):
    """One partition of a topic: the topic's name and a number; written ``topic-0``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @staticmethod
    def parse(text: str) -> TopicPartition:
        """Inverse of ``str``; ValueError for anything else."""
        topic, _, partition = text.rpartition("-")
        return TopicPartition(topic, whole(partition))


def by_topic(
    logs: Iterable[TopicPartition], row: Callable[[TopicPartition], Any] = lambda tp: tp.partition
) -> list[tuple[str, list[Any]]]:
    """The logs as Kafka's requests name them: each topic, with a row for each of its partitions."""
    found: dict[str, list[Any]] = {}
    for tp in logs:
        found.setdefault(tp.topic, []).append(row(tp))
    return list(found.items())


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition."""

    start: int
    end: int


Offsets = Mapping[TopicPartition, int]
"""An offset of each partition."""
Ranges = Mapping[TopicPartition, OffsetRange]


class CommittedOffset(NamedTuple):
    """What a group has committed for one partition: the next offset to read, and its metadata
    text."""

    offset: int
    metadata: str


class MemberMetadata(NamedTuple):
    """A member's identity in its group at one moment; (-1, "") if it has none."""

    generation: int
    member_id: str
    instance_id: str | None


@dataclass(kw_only=True)
class EdgeBatch:
    """Records on one edge of the topology, column by column; all columns have the same length.

    ``key`` and ``value`` hold decoded values in the edge's Arrow types (a struct for JSON values).
    ``timestamp`` is the record's time in ms; ``seq`` the position of the originating input record
    in the task's merge order (D3), never decreasing inside an ``EdgeBatch`` that enters an
    operator. ``source`` is the index of the originating input record's source in the plan,
    ``partition`` that of its task (`Source.log` says which one it lies in), ``offset`` its own.
    ``headers`` is of type `HEADERS`, or None where no
    record has any (or the plan carries none). ``put``: of a table's updates, from which place on
    the table had each, where that is before the update came to who reads it (note 031); None: it
    is not. ``old``: of a table's updates, what each entry was before, row by row, for an operator
    that compares them (note 035).
    """

    key: pa.Array
    value: pa.Array
    timestamp: Int64
    seq: Int64
    source: Int32
    partition: Int32
    offset: Int64
    headers: pa.Array | None = None
    put: Int64 | None = None
    old: EdgeBatch | None = None

    @property
    def known_from(self) -> Int64:
        """From which place on a table has each of its updates."""
        return self.seq if self.put is None else self.put

    def __len__(self) -> int:
        return len(self.timestamp)

    def take(self, indices: Int64) -> EdgeBatch:
        idx = pa.array(indices, pa.int64())
        return EdgeBatch(
            key=self.key.take(idx),
            value=self.value.take(idx),
            timestamp=self.timestamp[indices],
            seq=self.seq[indices],
            source=self.source[indices],
            partition=self.partition[indices],
            offset=self.offset[indices],
            headers=None if self.headers is None else self.headers.take(idx),
            put=None if self.put is None else self.put[indices],
            old=None if self.old is None else self.old.take(indices),
        )

    def with_columns(
        self,
        key: pa.Array | None = None,
        value: pa.Array | None = None,
    ) -> EdgeBatch:
        return EdgeBatch(
            key=self.key if key is None else key,
            value=self.value if value is None else value,
            timestamp=self.timestamp,
            seq=self.seq,
            source=self.source,
            partition=self.partition,
            offset=self.offset,
            headers=self.headers,
            put=self.put,
        )


@dataclass
class StoreChanges:
    """Changes of one store in one task, in the order they were made (a key may appear more than
    once).

    ``keys`` are the store's key bytes as in the changelog; ``values`` the changelog's value bytes,
    None = delete; ``timestamps`` in ms, the record time of the changelog record (and the 8-byte
    prefix of the stored value). An operator that has columns gives `ByteColumn`s.
    """

    store: str
    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    timestamps: Int64

    def __len__(self) -> int:
        return len(self.keys)


class ClockCall(NamedTuple):
    """A clock's call of a processor's method: node, partition, time (ms); unique in a batch."""

    node: str
    partition: int
    method: str
    time_ms: int


class KeyPlaces(NamedTuple):
    """Keys of a topic that were checked, and how many lie elsewhere than the partitioner ``by``
    says; ``sample``: the first of these, and where; ``fits``: the partitioner that fits all."""

    node: str
    topic: str
    by: str
    checked: int
    misplaced: int
    sample: str = ""
    fits: str = ""


LATE = "late"
"""In `TasksResult.dropped`: records left out, as they came too late."""
LATE_UNMATCHED = "late-unmatched"
"""In `TasksResult.dropped`: rows not left out but emitted without a match, as grace was over."""


@dataclass
class TasksResult:
    """Results of a stateful operator for a micro-batch of several tasks, by partition."""

    output: EdgeBatch
    changes: dict[int, list[StoreChanges]]
    stream_times: dict[int, int]
    dropped: dict[str, int]
    """Records left out, by reason (``null-key``, ``null-value``, ``late``): the ``dropped-records``
    metric."""
    clocks: dict[int, dict[str, int]] = field(default_factory=dict)
    """When each method that the wall clock calls was last due (epoch ms), by name."""

    def __post_init__(self) -> None:
        self.dropped = {reason: count for reason, count in self.dropped.items() if count}
        self.remarks: list[str] = []
        """What to log once the batch is committed; an operator adds to it."""
        self.ends: dict[int, int] = {}
        """Of its input the first offset that is not done, where that is not the batch's end: the
        next batch has that record again."""
