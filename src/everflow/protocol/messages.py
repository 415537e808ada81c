"""The messages between driver and workers about a micro-batch, each a line of a socket."""

from __future__ import annotations

import base64
import json
import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from everflow.errors import DamagedEntryError, EverflowError
from everflow.handlers import PROCESSING
from everflow.memory import Taken
from everflow.metrics import Seen
from everflow.records import UNBOUNDED_BYTES, KeyPlaces, OffsetRange, TaskId, TopicPartition

METADATA_PREFIX = "ef1"
KAFKA_STREAMS_VERSIONS = (1, 2)
KAFKA_STREAMS_HEAD = 12
"""Characters of the version and the time behind it, nine bytes."""

COMMITTED = "committed"
ABORTED = "aborted"
FAILED = "failed"
RENEWED = "renewed"
LEFT = "left"
"""Of `BatchResult.counts`. `LEFT`: records that a batch has read and left to the next one, since
the first of them have no answer of their calls yet (note 070), or more results (note 073)."""


class BatchId(NamedTuple):
    """``<incarnation>.<counter>.<attempt>``: one id per job, never used twice for a commit (D5)."""

    incarnation: str
    counter: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.counter}.{self.attempt}"

    @staticmethod
    def parse(text: str) -> BatchId:
        """Inverse of ``str``; ValueError for anything else."""
        parts = text.rsplit(".", 2)
        if len(parts) != 3 or not parts[0]:
            raise ValueError(f"not a batch id: {text!r}")
        return BatchId(parts[0], int(parts[1]), int(parts[2]))


def as_line(message: BatchRequest | BatchResult) -> bytes:
    """A message as a line of a socket that only the user of both processes can open."""
    return base64.b64encode(pickle.dumps(message, pickle.HIGHEST_PROTOCOL)) + b"\n"


def from_line(line: bytes) -> Any:
    return pickle.loads(base64.b64decode(line))


class StorePlace(NamedTuple):
    """The folder of a store's environment, and its changelog's topic (None: not logged)."""

    path: str
    changelog: str | None


@dataclass(frozen=True)
class TaskContext:
    """One task as the batch's workers see it. For the apply its stores must carry the owner
    ``incarnation`` and the batch id ``last_batch`` (D5; empty: nothing was applied in this
    incarnation). ``stream_times``: ms by node name (-1 = none yet); ``stores``: by name."""

    task: TaskId
    incarnation: str
    last_batch: str
    stream_times: Mapping[str, int] = field(default_factory=dict)
    stores: Mapping[str, StorePlace] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerClients:
    """librdkafka settings of the clients that a worker opens, passwords included. They come over
    the gate's socket alone: what Spark is given is in its log, its event log or on its page."""

    reader: Mapping[str, Any] = field(default_factory=dict, repr=False)
    producer: Mapping[str, Any] = field(default_factory=dict, repr=False)


class GateAnswer(NamedTuple):
    """``group_metadata`` (exactly-once) goes into send_offsets; ``deferred`` (at-least-once): the
    driver holds the offsets back until the group takes commits again."""

    ok: bool
    reason: str = ""
    group_metadata: bytes | None = None
    deferred: bool = False

    @staticmethod
    def of(answer: Mapping[str, Any]) -> GateAnswer:
        metadata = answer.get("group_metadata")
        return GateAnswer(
            ok=bool(answer.get("ok")),
            reason=str(answer.get("reason", "")),
            group_metadata=None if metadata is None else base64.b64decode(metadata),
            deferred=bool(answer.get("deferred", False)),
        )


class InputTime(NamedTuple):
    """What is certain of an input (note 076). Of a repartition topic's partition: its records from
    the offset ``end`` on are not earlier than ``ms`` (-1: not known), save those that are late in
    their source's own order. ``silent``: it is not waited for; ``ms`` is then what it told last."""

    ms: int = -1
    end: int = -1
    silent: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """One micro-batch of one stream thread; no place for secrets (`WorkerClients`). ``log_ends``:
    last stable offsets (or high watermarks) at its planning. ``gate``: the driver's Unix socket."""

    batch_id: str
    thread: int
    attempt: int
    guarantee: str
    transactional_id: str
    wall_clock_ms: int
    gate: str
    ranges: Mapping[TopicPartition, OffsetRange]
    log_ends: Mapping[TopicPartition, int]
    tasks: list[TaskContext]
    application_id: str
    global_tasks: list[TaskContext] = field(default_factory=list)
    """The partitions of global tables, as they lie on this instance now."""
    transaction_timeout_ms: float | None = None
    """For so long the broker lets its transaction be open; None: not known."""
    calls_ms: float | None = None
    """For so long its operators begin calls to the outside (note 070); None: for ever."""
    most_bytes: int = UNBOUNDED_BYTES
    """Bytes of input that the batch may take (``max.batch.bytes``, or fewer): the reader ends
    there."""
    waits: Sequence[TopicPartition] | None = ()
    """Inputs at whose end the merge stops though the log has no more; None: it stops at none's
    (``max.task.idle.ms``)."""
    earlier_failures: Sequence[BatchFailure] = ()
    """What earlier attempts failed on: the handlers decide about each record (note 041)."""
    patient: bool = True
    """Whether partitions that do not answer are waited for: no other task wants the thread."""
    silent: Sequence[TopicPartition] = ()
    """Partitions that did not answer when the batch was read, nothing of which is in it."""

    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Of the ranges' topics at the start, if known: no record of another one may be committed."""
    idle: Mapping[TaskId, Mapping[str, int]] = field(default_factory=dict)
    """To what silent sources' times are moved behind the records (note 025), by task and name."""

    latest_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where these ranges may end at the latest, if records behind them have come meanwhile."""
    times: Mapping[TopicPartition, InputTime] | None = None
    """Of its inputs, those of whom something is known; None: ``stream.time=highest``."""
    until_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Up to which time records of these inputs are taken; later ones are left
    (``max.event.time.lead``). -1: nothing is taken."""
    most_ms: int | None = None
    """Later records of source topics get this time (``max.event.time.ahead``); None: none do."""
    most_taken: int | None = None
    """With ``times``: of the records that may be taken, held back ones included, so many at most,
    in order of time over all tasks, but all of one time of an input. None: all of them."""

    def ending(self, ends: Mapping[TopicPartition, int], **changes: Any) -> BatchRequest:
        """The same batch up to these ends; ``changes``: of other fields."""
        return replace(
            self,
            ranges={tp: OffsetRange(wanted.start, ends[tp]) for tp, wanted in self.ranges.items()},
            log_ends={tp: max(end, ends.get(tp, end)) for tp, end in self.log_ends.items()},
            **changes,
        )

    def reused(self) -> dict[TopicPartition, tuple[TaskId, str]]:
        """Inputs that are changelogs of tables, too: whose, and of which store."""
        found = {}
        for task in self.tasks:
            for store, place in task.stores.items():
                if place.changelog is not None:
                    tp = TopicPartition(place.changelog, task.task.partition)
                    if tp in self.ranges:
                        found[tp] = (task.task, store)
        return found


class Ages(NamedTuple):
    """Times of the records that one source gave a task, or that one sink got (then ``task`` is "").

    ``records``; ``total``, ``least``, ``most``: their times (ms). ``late_total``, ``late_most``:
    how far they lay behind the newest record of their partition in this micro-batch, or behind the
    task's stream time before it, where an operator of the task keeps one (ms).
    """

    task: str
    node: str
    records: int
    total: float
    least: int
    most: int
    late_total: float = 0.0
    late_most: int = 0

    def latency_ms(self, now_ms: float) -> Seen:
        return Seen(
            self.records,
            self.records * now_ms - self.total,
            now_ms - self.most,
            now_ms - self.least,
        )

    @property
    def lateness_ms(self) -> Seen:
        """The smallest is 0: a task's newest record is not late."""
        return Seen(self.records, self.late_total, 0.0, self.late_most)


class Sent(NamedTuple):
    """Records, and bytes of their keys and values, that a sink wrote to a topic."""

    node: str
    topic: str
    records: int
    bytes: int


class Rows(NamedTuple):
    """Rows, and their Arrow bytes, that a connector was given; ``ms`` that its call took."""

    connector: str
    rows: int
    bytes: int
    ms: float


class Puts(NamedTuple):
    """Changes of a store of a task."""

    task: str
    store: str
    changes: int


class LetterGroup(NamedTuple):
    """Records left out for one cause; ``sample``: the first's place, and its error's first line."""

    exception: str
    node: str
    topic: str
    records: int
    sample: str


class BatchFigures(NamedTuple):
    """The metrics of a committed micro-batch for `/metrics`, besides its counts. ``rows``: by
    connector, those that it was given."""

    ages: Sequence[Ages] = ()
    sent: Sequence[Sent] = ()
    puts: Sequence[Puts] = ()
    letters: Sequence[LetterGroup] = ()
    keys: Sequence[KeyPlaces] = ()
    rows: Sequence[Rows] = ()


class Printed(NamedTuple):
    """Rows of one ``print_table``. ``most``: to print at once; ``left_out``: how many more there
    were."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    most: int
    left_out: int

    def with_later(self, later: Printed) -> Printed:
        """Both, at most ``most`` rows."""
        rows = [*self.rows, *later.rows]
        too_many = max(0, len(rows) - self.most)
        return self._replace(
            rows=rows[: self.most], left_out=self.left_out + later.left_out + too_many
        )


CALLS = "calls"
"""The phase of a batch in which operators wait for calls to the outside (note 070)."""
SINKS = "sinks"
"""The phase of a batch in which sinks outside Kafka take its rows (note 072)."""


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """The report of a finished micro-batch.

    Attributes:
        outcome: `COMMITTED` (stores applied too), `ABORTED` (nothing happened; ``reason`` is the
            gate's) or `FAILED` (``failure`` says why; whether it was committed is not known).
        consumed: next offset to read, which may lie before the range's end.
        stream_times: task -> node -> ms.
        positions: task -> store -> next changelog offset.
        counts: records ``in, out, changelog, dead_letters``; ``bytes`` of the input; `LEFT`; and
            `RENEWED`: how often its producer, tainted, asked for a new epoch (note 019).
        dropped: node -> reason -> records that it left out.
        deferred_offsets: at-least-once only: the rebalancing group did not take the offsets; they
            go with the next batch.
        timings: ms spent by the worker: ``read`` (waiting for and reading its input),
            ``operators``, `CALLS`, `SINKS`, ``write`` (records to the broker), ``gate``,
            ``offsets``, ``commit``, ``apply``; and ``began``, the epoch ms at which it was called.
        blocked_ms: for so long its transaction was open while the broker was still ending the one
            before.
        processor_ms: of the worker's process, from the request on.
        left_out: the first few records that failed and that a handler left out, each in a line.
        remarks: what else is logged of the batch, each in a line.
        silent: as in the request: nothing of them was read.
        heads: the times (ms) of the first records of source topics that were left: because of
            ``until_ms``, or of what is certain of other inputs.
        next: with ``most_taken``: the first records that were left because of it: one, or several
            of one time and input. Empty: none was.
        memory: of the batch's worker; None: not known, or a small batch.
    """

    outcome: str
    reason: str = ""
    consumed: Mapping[TopicPartition, int] = field(default_factory=dict)
    stream_times: Mapping[TaskId, Mapping[str, int]] = field(default_factory=dict)
    positions: Mapping[TaskId, Mapping[str, int]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deferred_offsets: bool = False
    failure: BatchFailure | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    blocked_ms: float = 0.0
    processor_ms: float = 0.0
    figures: BatchFigures = field(default_factory=BatchFigures)
    left_out: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    printed: list[Printed] = field(default_factory=list)
    silent: Sequence[TopicPartition] = ()
    heads: Mapping[TopicPartition, int] = field(default_factory=dict)
    next: Sequence[BadRecord] = ()
    memory: Taken | None = None

    @property
    def committed(self) -> bool:
        return self.outcome == COMMITTED


class timed:
    """A context that adds to ``timings`` how many ms its block took, also where it fails: the time
    was spent."""

    def __init__(self, timings: dict[str, float], name: str) -> None:
        self._timings, self._name = timings, name

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = (time.perf_counter() - self._began) * 1000
        self._timings[self._name] = round(self._timings.get(self._name, 0.0) + spent, 2)


@dataclass(frozen=True)
class BadRecord:
    """The record a failure names: input coordinates and the node that failed."""

    topic: str
    partition: int
    offset: int
    node: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset


@dataclass(frozen=True)
class CodeLine:
    """A line of the user's program, and the function it belongs to."""

    file: str
    line: int
    function: str


class BadEntry(NamedTuple):
    """An entry that cannot be read. ``key``: in hexadecimal, empty if not known; ``changelog`` or
    None."""

    store: str
    task: TaskId
    key: str
    changelog: str | None

    @staticmethod
    def of(error: DamagedEntryError) -> BadEntry | None:
        """The one that an error is about; None where it may be one of several."""
        if error.task is None:
            return None
        return BadEntry(error.store, error.task, (error.key or b"").hex(), error.changelog)

    def error(self, text: str) -> DamagedEntryError:
        key = bytes.fromhex(self.key) if self.key else None
        return DamagedEntryError(
            text, store=self.store, task=self.task, key=key, changelog=self.changelog
        )


@dataclass(frozen=True, kw_only=True)
class BatchFailure:
    """Why a micro-batch failed: as the worker says, or what Spark says of a worker or a Column.

    Attributes:
        kind: one of `KINDS`.
        error: what happened, for people: class and message of the error, without a stack.
        code: stable identifier of the error where it has one (``EF-...``).
        record: the culprit where it is known.
        stage: of `everflow.handlers.response.STAGES`, which handler is asked about the record.
        also: failures of other records of the same cause.
        judged: a handler has said FAIL.
        partitions: those whose brokers did not answer, where the failure says so.
        entry: of a store, where that is damaged.
        exception: the error's class with its module, empty where no Python error is known.
        line: the innermost line of the user's program that was running.
        where: ``file:line`` of the operator that failed, or of each that may have.
        details: stack and whatever else there is, for the log at DEBUG.
        connector: the one that failed, if one did.
    """

    kind: str
    error: str
    code: str | None = None
    record: BadRecord | None = None
    line: CodeLine | None = None
    where: tuple[str, ...] = ()
    details: str = ""
    stage: str = PROCESSING
    exception: str = ""
    judged: bool = False
    partitions: tuple[TopicPartition, ...] = ()
    entry: BadEntry | None = None
    also: tuple[BatchFailure, ...] = ()
    connector: str = ""

    KINDS: ClassVar[Mapping[str, str]] = {
        "record": "the user's code cannot take a record",
        "undecodable": "the bytes of a record are not what the source's serde reads",
        "column": "a Column cannot be computed for some record",
        "worker": "a Python worker died, or had no memory",
        "hang": "the batch did not end within max.poll.interval.ms, so its workers were ended",
        "migrated": "fenced, or unknown to the group",
        "generation": "the group's generation moved on",
        "data-loss": "a range is no longer, or not yet, in the log",
        "damaged": "an entry of a store cannot be read; the store is rebuilt from its changelog",
        "retriable": "a passing fault, as the worker's own error says",
        "spark-gone": "the JVM ended",
        "fatal": "trying again would meet it again",
        "other": "anything else",
    }

    def __post_init__(self) -> None:
        if self.kind not in self.KINDS:
            raise ValueError(f"unknown kind of batch failure: {self.kind!r}")


class BatchFailedError(EverflowError):
    """A micro-batch failed, which may be committed (D6). ``failure`` says why."""

    code = "EF-BATCH-FAILED"

    def __init__(self, failure: BatchFailure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class CommitMetadata(NamedTuple):
    """The metadata of a committed offset; ``batch_id`` is None for offsets others committed.
    ``layouts``: JSON of the stores (`topology.store_layouts`), empty where none was kept."""

    batch_id: str | None
    stream_times: dict[str, int]
    layouts: Mapping[str, Any] = {}


_encoded = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def format_metadata(
    batch_id: str,
    stream_times: Mapping[str, int],
    layouts: str = "",
) -> str:
    """``ef1|<batch id>|<json of stream times>`` and ``|<json of layouts>``, if any, per input."""
    times = _encoded(dict(stream_times))
    return f"{METADATA_PREFIX}|{batch_id}|{times}" + (f"|{layouts}" if layouts else "")


def parse_metadata(text: str | None) -> CommitMetadata:
    """Inverse of `format_metadata`. Foreign text has no batch id; what is appended is ignored."""
    parts = (text or "").rstrip("\0").split("|", 2)
    if len(parts) != 3 or parts[0] != METADATA_PREFIX:
        return CommitMetadata(None, {})
    try:
        times, end = json.JSONDecoder().raw_decode(parts[2])
        of_nodes = {str(node): int(ms) for node, ms in times.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):  # any client may write any text
        return CommitMetadata(None, {})
    return CommitMetadata(parts[1], of_nodes, _layouts(parts[2][end:]))


# --- batch ids of a migration (note 067) ----------------------------------------------------------


class Mark(NamedTuple):
    """What a migration wrote beside a committed offset, in the place of a batch id. ``kind``:
    `FILLED` (the group is being filled from ``application_id``, by a plan with ``digest``), `GONE`
    (the group's state has gone to it), or `COPIED` (a position in a changelog of it)."""

    kind: str
    application_id: str
    digest: str = ""

    @property
    def batch_id(self) -> str:
        return ":".join(filter(None, self))


FILLED, GONE, COPIED = "filled", "gone", "copied"
_LONGEST_ID = 249
"""An application's id is the beginning of its topics' names."""
MARK_BYTES = len(format_metadata(Mark(FILLED, "x" * _LONGEST_ID, "x" * 16).batch_id, {})) + 1
"""At most, of what is beside an offset with a mark, without times and layouts."""


def mark_in(text: str | None) -> Mark | None:
    """The mark in the metadata of a committed offset; None for what a batch has committed."""
    parts = (parse_metadata(text).batch_id or "").split(":")
    known = parts[0] in (FILLED, GONE, COPIED) and len(parts) in (2, 3)
    return Mark(*parts) if known else None


def gone_to(texts: Iterable[str | None]) -> str:
    """The application that the state went to, of the metadata of a group's offsets; empty: it went
    nowhere."""
    marks = filter(None, map(mark_in, texts))
    return next((mark.application_id for mark in marks if mark.kind == GONE), "")


def of_kafka_streams(text: str | None) -> bool:
    """True if Kafka Streams (Java) wrote the metadata: a version and a time, in base64."""
    try:
        data = base64.b64decode((text or "")[:KAFKA_STREAMS_HEAD], validate=True)
    except ValueError:
        return False
    return len(data) == 9 and data[0] in KAFKA_STREAMS_VERSIONS


def _layouts(text: str) -> Mapping[str, Any]:
    if not text.startswith("|{"):
        return {}
    try:
        layouts: dict[str, Any] = json.JSONDecoder().raw_decode(text[1:])[0]
    except (ValueError, RecursionError):
        return {}
    return layouts
