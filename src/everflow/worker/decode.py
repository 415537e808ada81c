"""Decodes the records of the log, before all operators, and asks the handlers of those that a batch
leaves out (note 041).

`KeyCheck` counts sampled keys that do not lie where their topic's partitioner puts them.
librdkafka's producers spread keys by crc32, Java's and everflow's by murmur2: a join of topics of
both finds nothing, and nothing fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.columns.key_partitions import BY_HASH, CRC32, key_partitions
from everflow.errors import EverflowError, RetriableError
from everflow.handlers import (
    DESERIALIZATION,
    ErrorHandlerContext,
    Handlers,
    Response,
    is_outage,
)
from everflow.kafka.reading.record_columns import LogColumns
from everflow.operators.user_code import require_users
from everflow.protocol.messages import BadRecord, BatchFailure, BatchRequest
from everflow.records import (
    EdgeBatch,
    Int32,
    Int64,
    KeyPlaces,
    TaskId,
    TopicPartition,
    listed_headers,
    valid,
)
from everflow.serdes import Serde, SerdeError
from everflow.serdes.arrow_types import UnfitError, column_of
from everflow.serdes.debezium_serde import NO_KEY, keyless
from everflow.serdes.json_serde import JsonSerde
from everflow.serdes.registered import Registered
from everflow.serdes.wire_format import with_header, without_ids
from everflow.topology.batches import BatchInput, as_text, concat, empty_like
from everflow.topology.partitioners import KeyPartitioner, partitioner_name, partitions_of
from everflow.topology.plan import DEAD_LETTER_SLOT, DEAD_LETTER_TYPE, PhysicalPlan
from everflow.topology.sources import Source, sources_of_logs
from everflow.user_program import class_of, error_text, shown, writable
from everflow.worker.failures import DescribedFailure, RecordFailure, SparkSays, stack_of
from everflow.worker.times import far_times, odd_times, refuse_negative, timely

# --- records that are left out --------------------------------------------------------------------

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class FailedElsewhere(Exception):
    """Stands for an error of another process or of Spark: its text is all there is of it."""


class Fault(NamedTuple):
    """Why a record is left out; ``cause`` where the error was raised in this process."""

    failure: BatchFailure
    cause: BaseException | None

    @property
    def error(self) -> BaseException:
        if isinstance(self.cause, RecordFailure):
            return self.cause.__cause__ or self.cause
        if self.cause is None or isinstance(self.cause, SparkSays):
            return FailedElsewhere(self.failure.error)
        return self.cause

    @property
    def stack(self) -> str:
        """Stack of the error, with the user's lines; empty where another process raised it."""
        return "" if self.error.__traceback__ is None else stack_of(self.error)


@dataclass
class Judge:
    """Asks the handlers about each failed record once, in one attempt of a micro-batch."""

    handlers: Handlers = field(default_factory=Handlers)
    attempt: int = 0
    wall_clock_ms: int = 0
    """Of the batch."""
    _skipped: dict[Place, Fault] = field(default_factory=dict)
    _known: dict[Place, Response] = field(default_factory=dict)

    @staticmethod
    def of(handlers: Handlers, request: BatchRequest) -> Judge:
        judge = Judge(handlers, request.attempt, request.wall_clock_ms)
        for failure in request.earlier_failures:
            judge.skip(Fault(failure, None))
        return judge

    def skip(self, fault: Fault) -> bool:
        """Skips the record from the next decoding on, if its handler says so. False if it was
        already."""
        assert fault.failure.record is not None
        place = fault.failure.record.place
        known = place in self._skipped
        self._skipped[place] = fault
        return not known

    def in_vain(self, fault: Fault) -> bool:
        """True if the record stops the instance without a question to its handler."""
        record = fault.failure.record
        return record is None or not self.handlers.may_continue(fault.failure.stage, record.node)

    def skipped_rows(self, source: Source, raw: EdgeBatch) -> dict[int, Fault]:
        found: dict[int, Fault] = {}
        for (topic, partition, offset), fault in self._skipped.items():
            tp = TopicPartition(topic, partition)
            if source.reads(tp):
                mine = raw.partition == source.task(tp).partition
                rows = np.flatnonzero(mine & (raw.offset == offset))
                found.update(dict.fromkeys(rows.tolist(), fault))
        return found

    def letters(self, source: Source, raw: EdgeBatch, faults: dict[int, Fault]) -> EdgeBatch:
        """The rows as dead letters, each with its handler's answer. Raises the error of one that
        stops the instance (an undecodable one does if it is consumed); RetriableError for RETRY."""
        rows = sorted(faults)
        bad = raw.take(np.array(rows, np.int64))
        answers = [self._answered(source, bad, at, faults[row]) for at, row in enumerate(rows)]
        texts = [[answer[part] for answer in answers] for part in range(3)]
        columns = [bad.value, *(pa.array(column, pa.string()) for column in texts)]
        value = pa.StructArray.from_arrays(columns, fields=list(DEAD_LETTER_TYPE.value))
        return bad.with_columns(value=value)

    def _answered(
        self, source: Source, bad: EdgeBatch, at: int, fault: Fault
    ) -> tuple[str, str, str]:
        """The texts of the error, of the answer and about both (`DEAD_LETTER_TYPE`)."""
        failure = fault.failure
        task = TaskId(source.subtopology, int(bad.partition[at]))
        record = BadRecord(*source.log(task.partition), int(bad.offset[at]))
        place = record.place
        node = failure.record.node if failure.record is not None else source.node
        if place not in self._known:
            headers = None if bad.headers is None else bad.headers.slice(at, 1)
            context = ErrorHandlerContext(
                stage=failure.stage,
                topic=source.topic,
                partition=record.partition,
                offset=record.offset,
                timestamp=int(bad.timestamp[at]),
                headers=listed_headers(headers, 1)[0],
                source_raw_key=bad.key[at].as_py(),
                source_raw_value=bad.value[at].as_py(),
                processor_node_id=node,
                task_id=str(task),
                attempt=self.attempt,
            )
            self._known[place] = self.handlers.answer(context, fault.error)
        response = self._known[place]
        if response is Response.RETRY:
            raise RetriableError(
                f"{failure.error} (record {record}; its handler says RETRY)",
                [TopicPartition(*place[:2])],
            ) from fault.cause
        if response is Response.FAIL and failure.kind != "undecodable":
            raise _judged(fault)
        about = {
            "exception": failure.exception or failure.error.partition(":")[0],
            "stacktrace": failure.details or fault.stack,
            "stage": failure.stage,
            "node": node or "",
            "task": str(task),
            "attempt": self.attempt,
        }
        return failure.error, response.value, json.dumps(about)


def _judged(fault: Fault) -> Exception:
    failure = replace(fault.failure, judged=True)
    if isinstance(fault.cause, RecordFailure):
        fault.cause.failure = failure
        return fault.cause
    return DescribedFailure(failure)


# --- where keys lie -------------------------------------------------------------------------------


MOST_KEYS = 256
"""Of a topic and micro-batch."""
FEWEST = 8
"""Of fewer keys nothing is concluded: they lie where several partitioners put them."""
ALL_UP_TO = 2_048
"""So many keys of a topic are checked in the first micro-batches; then those of one in `ONE_OF`."""
ONE_OF = 16


@dataclass(frozen=True)
class KeyCheck:
    """Checks where keys lie. ``partitions``: the number of each topic; ``tasks``: of those that
    have more, the number of tasks: a key may lie in any partition of its task. Each worker counts
    on its own."""

    partitions: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    _checked: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    _turns: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def of(self, source: Source, raw: EdgeBatch) -> KeyPlaces | None:
        """Samples the keys of a micro-batch's raw records; None if none is checked."""
        count = self.partitions.get(source.topic, 1)
        if source.partitioner is None or count == 1 or not len(raw):
            return None
        turn = self._turns[source.topic] = self._turns.get(source.topic, -1) + 1
        if self._checked.get(source.topic, 0) >= ALL_UP_TO and turn % ONE_OF:
            return None
        rows = np.arange(0, len(raw), -(-len(raw) // MOST_KEYS))
        keys = raw.key.take(pa.array(rows))
        keyed = valid(keys)
        if source.partitioner == CRC32:  # librdkafka's spreads empty keys at random, too
            empty = pc.equal(pc.binary_length(keys), 0).fill_null(True)
            keyed = keyed & ~empty.to_numpy(zero_copy_only=False)
        some = np.flatnonzero(keyed)
        if not len(some):
            return None
        keys, lie = keys.take(pa.array(some)), raw.partition[rows[some]].astype(np.int64)
        self._checked[source.topic] = self._checked.get(source.topic, 0) + len(keys)
        tasks = self.tasks.get(source.topic, count)
        wrong = np.flatnonzero(_said(source, source.partitioner, keys, count) % tasks != lie)
        by = partitioner_name(source.partitioner)
        if not len(wrong):
            return KeyPlaces(source.node, source.topic, by, len(keys), 0)
        first = int(wrong[0])
        sample = f"{shown(keys[first].as_py())} in {source.log(int(lie[first])).partition}"
        fits = [one for one in BY_HASH if (key_partitions(keys, count, one) % tasks == lie).all()]
        fits = fits if len(keys) >= FEWEST else []
        return KeyPlaces(
            source.node, source.topic, by, len(keys), len(wrong), sample, fits[0] if fits else ""
        )


def _said(source: Source, by: KeyPartitioner, keys: pa.Array, count: int) -> Int64:
    try:
        return partitions_of(by, source.topic, keys, source.key_serde, count)
    except Exception:  # a check of keys ends no application
        return np.full(len(keys), -1, np.int64)


# --- records --------------------------------------------------------------------------------------


_NO_LETTERS = empty_like(DEAD_LETTER_TYPE.key, DEAD_LETTER_TYPE.value)


@dataclass(frozen=True)
class LogDecoder:
    """Records of the log -> the slots of the sources, and the dead letters."""

    sources: tuple[Source, ...]
    headers: bool
    handlers: Handlers
    check: KeyCheck = field(default_factory=KeyCheck)

    @staticmethod
    def of(
        plan: PhysicalPlan, handlers: Handlers, partitions: Mapping[str, int] | None = None
    ) -> LogDecoder:
        """``partitions``: the number of each topic; None: no key is checked."""
        partitions = partitions or {}
        keyed = [source for source in plan.sources if source.partitioner is not None]
        counts = {source.topic: partitions.get(source.topic, 1) for source in keyed}
        tasks = {one.topic: one.until for one in keyed if one.until is not None and not one.first}
        return LogDecoder(plan.sources, plan.headers, handlers, KeyCheck(counts, tasks))

    def run(
        self, read: Mapping[TopicPartition, LogColumns], judge: Judge, later: bool = False
    ) -> BatchInput:
        """Undecodable records, those whose time nothing holds, and those that are skipped, are
        live on the dead letter slot alone. ``later``: those that have their times in Kafka are
        decoded by `BatchInput.decode_taken`. Raises RecordTimeError for a negative time, and what
        `Judge.letters` raises."""
        source_of = sources_of_logs(self.sources, read)
        indexes = [source.index for source in source_of.values()]
        own = [source.task(tp).partition for tp, source in source_of.items()]
        lengths = [len(columns) for columns in read.values()]
        batch_input = BatchInput(
            batches={},
            rows={},
            source=np.repeat(np.array(indexes, np.int32), lengths),
            partition=np.repeat(np.array(own, np.int32), lengths),
            offset=_joined([columns.offsets for columns in read.values()]),
            timestamp=_joined([columns.timestamps for columns in read.values()]),
        )
        keys, waiting = [], []
        odd = odd_times(batch_input.timestamp)
        decoding = _Decoding(judge, odd)
        for source in self.sources:
            mine = LogColumns.concat(
                [found for tp, found in read.items() if source_of[tp] is source]
            )
            rows = (batch_input.source == source.index).nonzero()[0]
            raw = raw_records(mine, source, batch_input.partition[rows], rows)
            if (places := self.check.of(source, raw)) is not None:
                keys.append(places)
            batch_input.bytes += mine.nbytes
            if later and source.own_times:
                waiting.append((source, mine, raw))
            else:
                decoding.into(batch_input, source, raw, mine.unread)
        batch_input.keys = keys
        if odd:
            batch_input.timestamp = timely(batch_input, judge.wall_clock_ms)
        decoding.close(batch_input)
        if waiting:
            batch_input.decode_taken = partial(_decode_taken, waiting, judge, odd)
        return batch_input


@dataclass
class _Decoding:
    """Puts decoded records into the slots of a batch, and those that are left out, once all are
    there, into that of the dead letters. Owned by one thread."""

    judge: Judge
    odd: bool
    """Some of the batch's records have odd times (`odd_times`)."""
    _letters: list[EdgeBatch] = field(default_factory=list)

    def into(
        self,
        batch: BatchInput,
        source: Source,
        raw: EdgeBatch,
        unread: Mapping[int, Exception],
    ) -> None:
        """``unread``: by row of ``raw``. Raises as `LogDecoder.run`."""
        decoded, bad = decoded_records(source, raw, self.judge, self.odd, unread)
        if self.odd and source.own_times:
            refuse_negative(source, decoded)
        batch.batches[source.slot], batch.rows[source.slot] = decoded, decoded.seq
        self._letters.append(bad)

    def close(self, batch: BatchInput) -> None:
        """Behind all sources."""
        dead = concat(self._letters) if self._letters else _NO_LETTERS
        if self.odd:
            dead = replace(dead, timestamp=batch.timestamp[dead.seq])
        if (before := batch.batches.get(DEAD_LETTER_SLOT)) is not None:
            dead = concat([before, dead])
        batch.batches[DEAD_LETTER_SLOT], batch.rows[DEAD_LETTER_SLOT] = dead, dead.seq


def _decode_taken(
    waiting: Sequence[tuple[Source, LogColumns, EdgeBatch]],
    judge: Judge,
    odd: bool,
    batch: BatchInput,
    taken: np.ndarray,
) -> None:
    """See `BatchInput.decode_taken`."""
    decoding = _Decoding(judge, odd)
    for source, columns, raw in waiting:
        if not (mine := taken[raw.seq]).all():
            rows = np.flatnonzero(mine)
            columns = columns.only(rows)
            raw = raw_records(columns, source, raw.partition[rows], raw.seq[rows])
        decoding.into(batch, source, raw, columns.unread)
        decoded = batch.batches[source.slot]
        # max.event.time.ahead may have set other times.
        batch.batches[source.slot] = replace(decoded, timestamp=batch.timestamp[decoded.seq])
    decoding.close(batch)


def decoded_records(
    source: Source,
    raw: EdgeBatch,
    judge: Judge,
    odd: bool = False,
    unread: Mapping[int, Exception] | None = None,
) -> tuple[EdgeBatch, EdgeBatch]:
    """Raw records of a source -> the decoded ones, and those that are left out, in their own bytes:
    also those with an ``odd`` time, and ``unread`` ones (row: why). Raises as `Judge.letters`."""
    faults: dict[int, Fault] = judge.skipped_rows(source, raw)
    headers = raw.headers
    if odd:
        for row, far in far_times(source, raw).items():
            faults[row] = _fault(source, raw, row, far, str(far), "fatal", far.code)
    for serde, column, part in (
        (source.key_serde, raw.key, "key"),
        (source.value_serde, raw.value, "value"),
    ):
        errors: dict[int, BaseException] = {}
        try:
            if isinstance(serde, Registered) and serde.registry is not None:
                column = with_header(column, raw.headers, part)
                headers = without_ids(headers, part)
            decoded = _decoded(serde, column, errors)
        except RetriableError as outage:  # of a schema registry: no other source waits for it
            mine = (source.log(int(one)) for one in np.unique(raw.partition))
            outage.partitions |= frozenset(mine)
            raise
        if part == "key":
            key = decoded
        for row, error in errors.items():
            faults[row] = _fault(
                source, raw, row, error, f"{part} is not a valid {_called(serde)}: {_why(error)}"
            )
    for row in keyless(source.value_serde, raw.key, raw.value).tolist():
        if row not in faults:
            lacks = SerdeError(NO_KEY)
            faults[row] = _fault(source, raw, row, lacks, f"the record is {NO_KEY}")
    for row, reason in (unread or {}).items():
        why = f"the record cannot be read: {_why(reason)}"
        faults[row] = _fault(source, raw, row, reason, why)
    good = raw.with_columns(key, decoded)
    good.headers = headers
    if not faults:
        return good, _NO_LETTERS
    keep = np.ones(len(raw), dtype=bool)
    keep[list(faults)] = False
    return good.take(np.flatnonzero(keep)), judge.letters(source, raw, faults)


def _decoded(serde: Serde, raw: pa.Array, errors: dict[int, BaseException]) -> pa.Array:
    """The column, null where ``errors`` now says why."""
    if serde.kind == "string":
        return as_text(raw)
    if isinstance(serde, JsonSerde | Registered):
        column, bad = serde.decode_marked(raw)
        errors.update(bad)
        return column
    try:
        return serde.decode_array(raw)
    except RetriableError:  # an outage (of a schema registry, say) is no fault of a record
        raise
    except BaseException as error:  # a serde of the user may raise anything
        require_users(error)
        return _decoded_each(serde, raw.to_pylist(), errors)


def _decoded_each(
    serde: Serde, raw: Iterable[bytes | None], errors: dict[int, BaseException]
) -> pa.Array:
    rows = []
    for row, data in enumerate(raw):
        try:
            rows.append(column_of([serde.decode(data)], serde.type))  # which need not fit
        except RetriableError:
            raise
        except BaseException as error:
            require_users(error)
            if is_outage(error):
                raise RetriableError(
                    f"{serde!r} gets no answer that would tell whether a record can be read: "
                    f"{error_text(error)}"
                ) from error
            errors[row] = error
            rows.append(pa.nulls(1, serde.type))
    return pa.concat_arrays(rows) if rows else pa.nulls(0, serde.type)


def _why(error: BaseException) -> str:
    ours = isinstance(error, EverflowError | UnfitError)
    return writable(str(error)) if ours else error_text(error)


def _fault(
    source: Source,
    raw: EdgeBatch,
    row: int,
    error: BaseException,
    text: str,
    kind: str = "undecodable",
    code: str | None = None,
) -> Fault:
    record = BadRecord(
        *source.log(int(raw.partition[row])),
        int(raw.offset[row]),
        source.node,
    )
    failure = BatchFailure(
        kind=kind,
        error=text,
        code=code,
        record=record,
        stage=DESERIALIZATION,
        exception=class_of(error),
        details=stack_of(error) if error.__traceback__ is not None else "",
    )
    return Fault(failure, error)


_WITH_SCHEMAS = (
    *("json", "packed", "list", "time_windowed", "session_windowed"),
    *("avro", "protobuf", "json_schema", "debezium"),
)


def _called(serde: Serde) -> str:
    """Without its schema: what does not fit names its field."""
    return serde.kind if serde.kind in _WITH_SCHEMAS else repr(serde)


def _joined(columns: Sequence[Int64]) -> Int64:
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


def raw_records(
    found: LogColumns,
    source: Source,
    partitions: Int32,
    places: Int64,
) -> EdgeBatch:
    """The records of one source as they came, at these ``places`` of a batch."""
    return EdgeBatch(
        key=found.keys,
        value=found.values,
        timestamp=found.timestamps,
        seq=places,
        source=np.full(len(found), source.index, np.int32),
        partition=partitions,
        offset=found.offsets,
        headers=found.headers,
    )
